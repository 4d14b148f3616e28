//! The check finds volumes clean that mkfs.btrfs and the kernel make, and those
//! that our own library makes.

mod support;

use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_check::FaultCode;
use butterfs_device::{Access, FileDevice};
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use std::sync::Arc;
use support::{assert_clean, report, volume};

/// Volumes: name, options of mkfs, options of the mount.
const KINDS: &[(&str, &[&str], &str)] = &[
    ("default", &[], ""),
    ("holes", &["-O", "^no-holes"], ""),
    (
        "old",
        &["-R", "^free-space-tree", "-O", "^no-holes"],
        "space_cache=v1",
    ),
    ("no skinny metadata", &["-O", "^skinny-metadata"], ""),
    ("mixed", &["-M", "--csum", "xxhash"], "compress-force=zstd"),
    (
        "nodes of 4 KiB, sha256",
        &["-n", "4096", "--csum", "sha256"],
        "",
    ),
    ("nodes of 32 KiB", &["-n", "32768"], "compress-force=zstd"),
    (
        "nodes of 64 KiB, blake2",
        &["-n", "65536", "--csum", "blake2"],
        "compress=lzo",
    ),
    ("dup", &["-d", "dup", "-m", "dup"], "compress-force=zlib"),
    ("single", &["-m", "single"], "max_inline=4095"),
    ("nodatacow", &[], "nodatacow"),
    ("nodatasum", &[], "nodatasum"),
    ("quotas", &["-R", "quota"], ""),
];

/// Makes more links than one item holds, and snapshots with changes on both
/// sides.
const HISTORY: &str = r#"
mkdir links; echo x > links/file
for i in $(seq 600); do ln links/file "links/another-name-of-the-same-file-$i"; done
for i in $(seq 55); do
  btrfs -q subvolume snapshot . s$i
  echo $i > d/file-$i; echo $i > s$i/new; rm -f s$i/d/file-1$i d/file-2$i
  head -c 20000 /dev/urandom | dd of=big bs=1 seek=$((i*40000)) conv=notrunc status=none
  [ $((i%7)) = 0 ] && sync; true
done
btrfs -q subvolume delete s3 s4 s50
"#;

#[test]
fn volumes_of_the_kernel_are_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    for (name, mkfs, options) in KINDS {
        volume::make(&path, mkfs, options, volume::MIXTURE);
        assert_clean(&report(&path), name);
        // The unmount may interrupt the deletion of a subvolume.
        let history = if *name == "no skinny metadata" {
            "true"
        } else {
            HISTORY
        };
        volume::change(&path, options, history);
        assert_clean(&report(&path), &format!("{name}, with snapshots"));
        std::fs::remove_file(&path).expect("the image can be removed");
    }
}

#[test]
fn crashed_volumes_of_the_kernel_are_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let copy = dir.path().join("copy.img");
    // The deletion of a tree of several levels, with commits in between.
    let deletion = r#"
mkdir many; for i in $(seq 3000); do echo $i > many/f$i; done
btrfs -q subvolume create doomed; cp -a many doomed/; sync
btrfs -q subvolume snapshot doomed kept; rm -rf doomed/many/f1*; sync
btrfs -q subvolume delete doomed; sync; sync
"#;
    let steps = [
        (
            "a deleted file that is open",
            "exec 9> open; head -c 100000 /dev/urandom >&9; rm open; sync",
        ),
        (
            "a log of files without checksums",
            "touch n; chattr +C n; head -c 90000 /dev/urandom > n; sync n; head -c 90000 /dev/urandom > m; sync m",
        ),
        (
            "a log",
            "echo a > logged; sync logged; head -c 90000 /dev/urandom > b; sync b; mv b c; sync c; ln c e; sync e",
        ),
        ("a deletion", deletion),
        (
            "a balance, cut off early",
            "for i in $(seq 2000); do echo $i > x$i; done; sync; btrfs -q balance start --full-balance . & sleep 0.05; sync; btrfs -q balance cancel . || true; wait; sync",
        ),
        // If relocation copied nodes but their tree did not get the copies, the
        // tree keeps nodes that are parents.
        (
            "a balance, cut off several times",
            "for i in $(seq 2000); do echo $i > x$i; done; sync; for n in 1 2 3 4 5 6; do btrfs -q balance start --full-balance . & sleep 0.0$n; sync; btrfs -q balance cancel . || true; wait; done; sync",
        ),
    ];
    for (name, script) in steps {
        volume::make(&path, &["-n", "4096"], "commit=300", volume::MIXTURE);
        volume::crash(&path, "commit=300", script, &copy);
        assert_clean(&report(&copy), name);
        assert_clean(&report(&path), &format!("{name}, unmounted"));
    }
}

/// Volumes with relocation trees, and with a subvolume that is being deleted.
/// Relocation records how far it replaced a subvolume's nodes in the same field
/// as the progress of a deletion.
#[test]
fn volumes_half_way_are_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::balancing(&path, &["-n", "4096", "-m", "single"]);
    btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean("a balance");
    assert_clean(&report(&path), "a balance");
    let mut image = support::image::Image::open(&path);
    let (key, _) = image.find(TreeId::ROOT, |key, _| key.objectid == TreeId::RELOC.get());
    let progress = Key::new(300, ItemType::INODE_ITEM, 0).to_bytes();
    image.update(TreeId::ROOT, key, |item| {
        item[220..][..progress.len()].copy_from_slice(&progress);
        // Its level.
        item[237] = 1;
    });
    assert_clean(&report(&path), "a balance that merges");

    std::fs::remove_file(&path).expect("the image can be removed");
    volume::deleting(&path, &["-n", "4096", "-m", "dup"]);
    btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean("a deletion");
    assert_clean(&report(&path), "a deletion");
}

#[test]
fn bitmaps_of_free_space_are_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let fragments = r#"
head -c 60000000 /dev/zero > filled; sync
for i in $(seq 0 2 6000); do fallocate -p -o $((i*8192)) -l 4096 filled; done; sync
for i in $(seq 3000); do head -c 5000 /dev/zero > f$i; done; sync
rm -f f*[13579]; sync
"#;
    volume::make(&path, &[], "nodatasum", fragments);
    let found = report(&path);
    assert_clean(&found, "fragmented");
    assert!(found.figures.extents > 1000);
}

/// Volumes that our own library writes have neither faults nor warnings.
#[test]
fn volumes_of_the_library_are_clean() {
    let dir = scratch_dir();
    for (index, node_size) in [4096, 16384, 65536].into_iter().enumerate() {
        let path = dir.path().join(format!("{index}.img"));
        let device = FileDevice::create(&path, 300 << 20).expect("the image can be made");
        let options = MkfsOptions {
            node_size,
            ..MkfsOptions::default()
        };
        make(&device, &options).expect("mkfs");
        drop(device);
        let found = report(&path);
        assert!(found.faults.is_empty(), "mkfs: {:?}", found.faults);
        let device = FileDevice::open(&path, Access::ReadWrite).expect("the image opens");
        let store = Store::open(Arc::new(device), &OpenOptions::default()).expect("it opens");
        let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
        let file = NewInode::new(S_IFREG | 0o644, Owner::default());
        let folder = NewInode::new(S_IFDIR | 0o755, Owner::default());
        let directory = fs.create(fs.root(), b"directory", &folder).expect("mkdir");
        for number in 0..500_usize {
            let name = format!("file {number}");
            let made = fs
                .create(directory.id, name.as_bytes(), &file)
                .expect("create");
            fs.write(&made, 0, &vec![7; number * 100]).expect("write");
        }
        fs.sync_all().expect("commit");
        drop(fs);
        let found = report(&path);
        assert!(found.faults.is_empty(), "written: {:?}", found.faults);
    }
}

/// Entries that mkfs.btrfs 6.2 leaves in the free-space tree are one warning.
/// They are gone after the library first wrote to the volume.
#[test]
fn orphans_in_the_free_space_tree_are_cleaned() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::make(&path, &[], "", "echo content > file");
    let mut image = support::image::Image::open(&path);
    let key = Key::new(1 << 50, ItemType::FREE_SPACE_EXTENT, 65536);
    image.insert(TreeId::FREE_SPACE, key, &[]);
    let found = report(&path);
    assert!(found.is_clean());
    assert_eq!(found.counts.get(&FaultCode::FreeSpaceOrphan), Some(&1));
    let open = |access| {
        let device = FileDevice::open(&path, access).expect("the image opens");
        let options = OpenOptions {
            access,
            ..OpenOptions::default()
        };
        let store = Arc::new(Store::open(Arc::new(device), &options).expect("it opens"));
        Filesystem::new(store, TreeId::FS, Options::default())
    };
    drop(open(Access::ReadOnly));
    assert!(report(&path).has(FaultCode::FreeSpaceOrphan));
    open(Access::ReadWrite).sync_all().expect("commit");
    let found = report(&path);
    assert!(found.faults.is_empty(), "{:?}", found.faults);
    for mode in Mode::ALL {
        btrfs_check(&path, mode, DataChecksums::Verify).assert_clean("cleaned");
    }
}

/// Two files share preallocated space, and one of them has written to it.
#[test]
fn shared_preallocation_with_data_is_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let script = "fallocate -l 1M a; sync; head -c 8192 /dev/zero | dd of=a bs=4096 seek=9 conv=notrunc status=none; sync; cp --reflink=always a b";
    volume::make(&path, &[], "", script);
    let mut image = support::image::Image::open(&path);
    let written = |inode| {
        move |key: Key, data: &[u8]| {
            key.objectid == inode && key.item_type == ItemType::EXTENT_DATA && data[20] == 1
        }
    };
    let (key, _) = image.find(TreeId::FS, written(258));
    image.update(TreeId::FS, key, |data| data[20] = 2);
    assert_clean(&report(&path), "shared");
    let (key, _) = image.find(TreeId::FS, written(257));
    image.update(TreeId::FS, key, |data| data[20] = 2);
    assert!(report(&path).has(FaultCode::ChecksumUnexpected));
}

/// Both checks that this file uses can find a fault.
#[test]
fn canary() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    volume::make(&path, &[], "", volume::MIXTURE);
    btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean("before");
    assert_clean(&report(&path), "before");
    let mut image = support::image::Image::open(&path);
    let (key, _) = image.first(TreeId::CSUM, butterfs_format::ItemType::EXTENT_CSUM);
    image.update(TreeId::CSUM, key, |sums| sums[0] ^= 1);
    assert!(report(&path).has(FaultCode::DataChecksum));
    assert!(!btrfs_check(&path, Mode::Original, DataChecksums::Verify).clean);
}
