//! Makes volumes by mkfs, and checks them by btrfs check, the kernel and our own
//! library.

use butterfs_admin::mkfs::{
    Layout, MkfsError, MkfsOptions, ProfileChoice, RootOwner, make, make_on,
};
use butterfs_device::record::{Crash, Event, Fate, Position};
use butterfs_device::{Access, BlockDevice, FileDevice, MemoryDevice, RecordDevice};
use butterfs_format::superblock::{COPIES, Superblock};
use butterfs_format::{ChecksumType, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFREG};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

fn is_root() -> bool {
    let root = run("id", &["-u"]).trim() == "0";
    if !root {
        assert!(std::env::var_os("CI").is_none(), "CI runs as root");
        eprintln!("skipped: kernel mounts need root");
    }
    root
}

/// Runs btrfs check. Does nothing for volumes with a block group tree, which
/// Debian's version 6.2 does not know.
fn check(image: &str, options: &MkfsOptions) {
    let known = !options
        .features
        .compat_ro
        .contains(butterfs_format::features::CompatRo::BLOCK_GROUP_TREE);
    if !known {
        return;
    }
    for mode in ["original", "lowmem"] {
        let text = run(
            "btrfs",
            &["check", "--mode", mode, "--check-data-csum", image],
        );
        let clean = text.contains("no error found") && !text.to_lowercase().contains("warning");
        assert!(clean && !text.contains("mismatch"), "{options:?}: {text}");
    }
}

/// A kernel mount. It is unmounted with the test, also if the test fails.
struct Mounted<'a>(&'a str);

impl<'a> Mounted<'a> {
    fn new(image: &str, point: &'a str, options: &str) -> Self {
        run("mount", &["-o", options, image, point]);
        Self(point)
    }

    fn end(self) {
        run("umount", &[self.0]);
        std::mem::forget(self);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

fn scrub(args: &[&str]) {
    let text = run("btrfs", &[&["scrub", "start", "-B"], args].concat());
    assert!(text.contains("no errors found"), "{text}");
}

/// Allows only one volume at a time. Btrfs check looks at all loop devices, and a
/// process that another test starts may hold a file of a mount for a moment.
static JUDGING: Mutex<()> = Mutex::new(());

fn judge(size: u64, options: &MkfsOptions) {
    let _alone = JUDGING.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("v.img");
    let image = path.to_str().unwrap();
    let device = FileDevice::create(&path, size).unwrap();
    make(&device, options).unwrap();
    drop(device);
    check(image, options);
    let mount = dir.path().join("mnt");
    std::fs::create_dir(&mount).unwrap();
    let point = mount.to_str().unwrap();
    // Scrubs both copies of each node before anything rewrites them.
    let mounted = Mounted::new(image, point, "loop,ro");
    scrub(&["-r", point]);
    mounted.end();
    write_by_library(&path);
    check(image, options);
    for round in 0..2 {
        let mounted = Mounted::new(image, point, "loop");
        assert_eq!(std::fs::read(mount.join("ours")).unwrap(), vec![3; 100_000]);
        std::fs::write(mount.join(format!("kernel{round}")), vec![7; 50_000]).unwrap();
        run("sync", &["-f", point]);
        scrub(&[point]);
        mounted.end();
        check(image, options);
    }
    let mounted = Mounted::new(image, point, "loop,ro");
    assert_eq!(
        std::fs::read(mount.join("kernel1")).unwrap(),
        vec![7; 50_000]
    );
    mounted.end();
}

fn write_by_library(path: &Path) {
    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
    let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
    let fs = Filesystem::new(Arc::new(store), TreeId::FS, Options::default());
    let new = NewInode::new(S_IFREG | 0o644, Owner::default());
    let file = fs.create(fs.root(), b"ours", &new).unwrap();
    fs.write(&file, 0, &vec![3; 100_000]).unwrap();
    fs.sync_all().unwrap();
}

/// Tests three node sizes with every checksum, two profiles, and with and without
/// a free-space tree.
#[test]
fn matrix() {
    if !is_root() {
        return;
    }
    let mut old = MkfsOptions::default();
    old.features.change("^block-group-tree").unwrap();
    for node_size in [4096, 16384, 65536] {
        for (checksum, _, _) in ChecksumType::TABLE {
            for profile in [ProfileChoice::Single, ProfileChoice::Dup] {
                for change in ["free-space-tree", "^free-space-tree"] {
                    let mut options = MkfsOptions {
                        node_size,
                        checksum,
                        metadata: Some(profile),
                        label: "a label".to_owned(),
                        ..old.clone()
                    };
                    options.features.change(change).unwrap();
                    judge(300 << 20, &options);
                }
            }
        }
    }
}

#[test]
fn block_group_tree() {
    if !is_root() {
        return;
    }
    for (node_size, size) in [
        (4096, 300),
        (16384, 1 << 10),
        (65536, 300),
        (16384, 200 << 10),
    ] {
        let options = MkfsOptions {
            node_size,
            ..MkfsOptions::default()
        };
        judge(size << 20, &options);
    }
}

#[test]
fn older_features() {
    if !is_root() {
        return;
    }
    for node_size in [4096, 16384, 65536] {
        for changes in [
            "^block-group-tree,^skinny-metadata",
            "^block-group-tree,^no-holes",
            "^block-group-tree,^extref",
            "^block-group-tree,^skinny-metadata,^no-holes,^free-space-tree",
        ] {
            let mut options = MkfsOptions {
                node_size,
                data: Some(ProfileChoice::Dup),
                ..MkfsOptions::default()
            };
            options.features.change(changes).unwrap();
            judge(300 << 20, &options);
        }
    }
}

/// Tests mixed block groups, also on the smallest volume.
#[test]
fn mixed() {
    if !is_root() {
        return;
    }
    for profile in [ProfileChoice::Single, ProfileChoice::Dup] {
        for changes in ["^block-group-tree", "^block-group-tree,^free-space-tree"] {
            let mut options = MkfsOptions {
                mixed: Layout::Mixed,
                node_size: 4096,
                data: Some(profile),
                ..MkfsOptions::default()
            };
            options.features.change(changes).unwrap();
            judge(options.bytes_min().unwrap(), &options);
            judge(120 << 20, &options);
        }
    }
}

/// Tests the smallest volumes, and sizes for which the first or the second copy of
/// metadata covers, begins at or ends at the superblock copy at 64 MiB.
#[test]
fn sizes() {
    if !is_root() {
        return;
    }
    let mut dup = MkfsOptions::default();
    dup.features.change("^block-group-tree").unwrap();
    let single = MkfsOptions {
        metadata: Some(ProfileChoice::Single),
        ..dup.clone()
    };
    for options in [&dup, &single] {
        judge(options.bytes_min().unwrap(), options);
        for mebibytes in [64, 109, 240, 470, 940, 941] {
            judge(mebibytes << 20, options);
        }
    }
    let part = MkfsOptions {
        byte_count: Some((100 << 20) + 1234),
        ..single
    };
    judge(400 << 20, &part);
}

/// No superblock of a larger volume that was there before is left.
#[test]
fn forgets_older_volumes() {
    let device = MemoryDevice::new(300 << 30);
    make(&device, &MkfsOptions::default()).unwrap();
    let mut sector = vec![0; 4096];
    device.read_at(COPIES[2], &mut sector).unwrap();
    assert!(Superblock::parse(&sector, COPIES[2]).is_ok());
    let small = MkfsOptions {
        byte_count: Some(60 << 20),
        ..MkfsOptions::default()
    };
    make(&device, &small).unwrap();
    for copy in [COPIES[1], COPIES[2]] {
        device.read_at(copy, &mut sector).unwrap();
        assert_eq!(sector, [0; 4096]);
    }
}

/// A crash at any point leaves the older volume, the new one or none. A volume
/// that is found can be opened.
#[test]
fn crashes_leave_no_half_volume() {
    let old = MemoryDevice::new(300 << 20);
    let old_fsid = make(&old, &MkfsOptions::default()).unwrap().fsid;
    let device = RecordDevice::new(Arc::new(old.snapshot()));
    let new_fsid = make(&device, &MkfsOptions::default()).unwrap().fsid;
    let events = device.events();
    let bases = [old];
    let mut found_old = 0;
    let mut found_new = 0;
    for at in 0..=events.len() {
        let crash = Crash::new(&events, Position(at));
        let latest = crash.in_flight().last().copied();
        for kept in [0, 1, 2, 3] {
            // Of the writes in flight, keeps all, the even ones, the odd ones, or
            // the latest.
            let fate = |position: Position, _: &Event| match (kept, position.0 % 2) {
                (0, _) | (1, 0) | (2, 1) => Fate::Kept,
                (3, _) if Some(position) == latest => Fate::Kept,
                _ => Fate::Lost,
            };
            let after = crash.replay(&bases, fate).unwrap().remove(0);
            let Ok(found) = butterfs_store::read_superblock(&after) else {
                continue;
            };
            let fsid = found.superblock.fsid;
            assert!(fsid == old_fsid || fsid == new_fsid);
            found_old += usize::from(fsid == old_fsid);
            found_new += usize::from(fsid == new_fsid);
            let options = OpenOptions {
                access: butterfs_store::Access::ReadOnly,
                ..OpenOptions::default()
            };
            Store::open(Arc::new(after), &options)
                .unwrap_or_else(|error| panic!("crash before {at}, kept {kept}: {error}"));
        }
    }
    assert!(found_old > 0 && found_new > 0, "{found_old} {found_new}");
}

/// The smallest possible volumes can be written, also by the kernel.
#[test]
fn the_smallest_volumes_have_room() {
    if !is_root() {
        return;
    }
    let (single, dup) = (ProfileChoice::Single, ProfileChoice::Dup);
    for (node_size, data, metadata) in [
        (4096, single, dup),
        (16384, single, single),
        (32768, single, dup),
        (65536, single, single),
        (65536, single, dup),
        (65536, dup, dup),
    ] {
        let options = MkfsOptions {
            node_size,
            data: Some(data),
            metadata: Some(metadata),
            ..MkfsOptions::default()
        };
        judge(options.bytes_min().unwrap(), &options);
    }
    for profile in [single, dup] {
        let options = MkfsOptions {
            node_size: 4096,
            mixed: Layout::Mixed,
            data: Some(profile),
            metadata: Some(profile),
            ..MkfsOptions::default()
        };
        judge(options.bytes_min().unwrap(), &options);
    }
    let large_nodes = MkfsOptions {
        node_size: 65536,
        ..MkfsOptions::default()
    };
    for bytes in [64 << 20, 100 << 20] {
        let small = make(&MemoryDevice::new(bytes), &large_nodes);
        assert!(matches!(small, Err(MkfsError::TooSmall { .. })));
    }
}

#[test]
fn the_root_directory_has_the_owner_that_is_named() {
    let device = Arc::new(MemoryDevice::new(128 << 20));
    let options = MkfsOptions {
        root_owner: RootOwner { uid: 12, gid: 34 },
        ..MkfsOptions::default()
    };
    make(&*device, &options).unwrap();
    let store = Arc::new(Store::open(device, &OpenOptions::default()).unwrap());
    let files = Filesystem::new(store, TreeId::FS, Options::default());
    let root = files.attributes(files.root()).unwrap();
    assert_eq!((root.uid, root.gid), (12, 34));
}

#[test]
fn takes_identities_and_label() {
    let device = MemoryDevice::new(300 << 20);
    let options = MkfsOptions {
        fsid: Some([7; 16]),
        device_uuid: Some([8; 16]),
        label: "photos".to_owned(),
        ..MkfsOptions::default()
    };
    let summary = make(&device, &options).unwrap();
    assert_eq!((summary.fsid, summary.device_uuid), ([7; 16], [8; 16]));
    let mut sector = vec![0; 4096];
    device.read_at(COPIES[0], &mut sector).unwrap();
    let superblock = Superblock::parse(&sector, COPIES[0]).unwrap();
    assert_eq!(superblock.label, b"photos");
    assert_eq!(superblock.bytes_used, summary.bytes_used);
    assert_eq!(superblock.total_bytes, 300 << 20);
}

#[test]
fn refuses_what_cannot_be() {
    let device = MemoryDevice::new(20 << 20);
    let small = make(&device, &MkfsOptions::default());
    let minimum = MkfsOptions::default().bytes_min().unwrap();
    let Err(MkfsError::TooSmall { minimum: told, .. }) = small else {
        panic!("{small:?}");
    };
    assert_eq!(told, minimum);
    let device_of = |bytes| make(&MemoryDevice::new(bytes), &MkfsOptions::default());
    assert!(device_of(minimum).is_ok());
    assert!(device_of(minimum - 4096).is_err());
    for (node_size, sector_size) in [(1024, 4096), (12288, 4096), (131_072, 4096), (4096, 8192)] {
        let options = MkfsOptions {
            node_size,
            sector_size,
            ..MkfsOptions::default()
        };
        assert!(make(&device, &options).is_err());
    }
    let mut features = MkfsOptions::default().features;
    assert!(matches!(
        features.change("no-hole"),
        Err(MkfsError::UnknownFeature(name)) if name == "no-hole"
    ));
    assert!(matches!(
        features.change("zoned"),
        Err(MkfsError::NotYet { .. })
    ));
}

/// Volumes of odd sizes on several devices can be opened, take files in new
/// chunks, and can be opened again.
#[test]
fn odd_sizes_of_several_devices() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4).map(|n| dir.path().join(n.to_string())).collect();
    let all = [
        (ProfileChoice::Single, 2),
        (ProfileChoice::Raid0, 2),
        (ProfileChoice::Raid1, 2),
        (ProfileChoice::Raid1c3, 3),
        (ProfileChoice::Raid1c4, 4),
        (ProfileChoice::Raid10, 2),
        (ProfileChoice::Raid5, 2),
        (ProfileChoice::Raid6, 3),
    ];
    let sizes = [
        [1 << 30; 4],
        [777_777_777, 1_000_000_000, 2_147_479_551, 300_000_001],
        [60_000_000_001, 31_415_926_535, 5_000_000_000, 271_828_182],
    ];
    for (profile, least) in all {
        for sizes in sizes {
            for count in least..=4 {
                let context = format!("{profile:?} on {:?}", &sizes[..count]);
                let options = MkfsOptions {
                    data: Some(profile),
                    metadata: Some(profile),
                    ..MkfsOptions::default()
                };
                let open = |(path, size): (&std::path::PathBuf, u64)| {
                    std::fs::File::create(path).unwrap().set_len(size).unwrap();
                    let device = FileDevice::open(path, Access::ReadWrite).unwrap();
                    Arc::new(device) as Arc<dyn BlockDevice>
                };
                let devices: Vec<_> = paths[..count].iter().zip(sizes).map(open).collect();
                make_on(&devices, &options).unwrap_or_else(|error| panic!("{context}: {error}"));
                let open = || {
                    let store = Store::open_all(devices.clone(), &OpenOptions::default());
                    let store = store.unwrap_or_else(|error| panic!("{context}: {error}"));
                    Filesystem::new(Arc::new(store), TreeId::FS, Options::default())
                };
                let fs = open();
                let new = NewInode::new(S_IFREG | 0o644, Owner::default());
                let file = fs.create(fs.root(), b"file", &new).unwrap();
                let data = vec![7; 1 << 20];
                for n in 0..40 {
                    fs.write(&file, n << 20, &data).unwrap();
                }
                fs.sync_all()
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                drop((file, fs));
                let fs = open();
                let found = fs.lookup(fs.root(), b"file").unwrap();
                assert_eq!(fs.attributes(found.inode).unwrap().size, 40 << 20);
            }
        }
    }
}
