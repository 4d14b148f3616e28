//! Balances of the kernel are interrupted at any moment, and undone here. The
//! kernel and all checks then find the volume sound.

use butterfs::{MountOptions, Volume};
use butterfs_check::{DataChecksums as CheckData, Options as CheckOptions};
use butterfs_device::{Access, BlockDevice, FileDevice};
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{
    self, DataChecksums, KernelMount, Mode, btrfs_check, mkfs_btrfs, scratch_dir,
};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::{Capability, Manifest, run_script};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

mod support;

use support::LibraryTree;

/// Files that several snapshots share, with changes on all sides, and data
/// without checksums.
const SHARED: &str = r#"
btrfs -q subvolume create source
for i in $(seq 900); do echo "line $i of a file with some text in it" > source/file-$i; done
seq 100000 250000 > source/big; head -c 9000000 /dev/urandom > random
touch plain; chattr +C plain; head -c 3000000 /dev/urandom > plain; sync
for s in 1 2 3 4; do
  btrfs -q subvolume snapshot source snap$s
  for i in $(seq $s 60 900); do echo $s > source/file-$i; done
  for i in $(seq $s 70 900); do echo $s > snap$s/file-$i; done; sync
done
"#;

/// Changes during a balance, with fsync logs, and the interruption in the
/// middle.
const BALANCE: &str = r#"
( for i in $(seq 60); do echo $i > source/file-$i; echo $i >> snap2/big; sync source/file-$i; sleep 0.01; done ) &
btrfs -q balance start --full-balance . &
sleep 0.1; btrfs -q balance cancel . ; wait
btrfs -q balance start --full-balance .
"#;

/// States kept of one run.
const KEPT_MAX: usize = 12;

fn open(image: &Path, options: &str) -> Result<Volume, butterfs::Error> {
    let options = MountOptions::parse(options).unwrap().open_options();
    Volume::open_all(&[image.to_owned()], options)
}

fn check(image: &Path, context: &str) {
    let device = FileDevice::open(image, Access::ReadOnly).unwrap();
    let options = CheckOptions {
        data: CheckData::Verify,
        ..CheckOptions::default()
    };
    let devices = vec![Arc::new(device) as Arc<dyn BlockDevice>];
    let report = butterfs_check::check(devices, &options, &butterfs_check::NoProgress).unwrap();
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
    for mode in Mode::ALL {
        btrfs_check(image, mode, DataChecksums::Verify).assert_clean(context);
    }
}

fn copy(from: &Path, to: &Path, how: &str) {
    let done = Command::new("cp").arg(how).args([from, to]).status();
    assert!(done.unwrap().success());
}

/// How many relocation trees a volume has, and how many files for the
/// relocation of data.
fn left_over(image: &Path) -> (usize, usize) {
    let volume = open(image, "ro,norecovery").unwrap();
    let engine = volume.files().store().read();
    let tree = engine.cancelled_balance().unwrap().is_some();
    let mut files = 0;
    let first = butterfs_format::Key::new(u64::MAX - 4, butterfs_format::ItemType::ORPHAN_ITEM, 0);
    let reloc = butterfs_format::TreeId::DATA_RELOC;
    let mut cursor = butterfs_tree::Cursor::seek_in(&*engine, reloc, &first).unwrap();
    while cursor.key().is_some_and(|key| key.objectid == u64::MAX - 4) {
        files += 1;
        cursor.next().unwrap();
    }
    (usize::from(tree), files)
}

/// Volumes as crashes would leave them while the kernel balances. They share no
/// extents with one another.
fn caught(dir: &Path, mkfs: &[&str]) -> Vec<PathBuf> {
    let below = dir.join("below");
    mkfs_btrfs(&below, 4 << 30, &["-m", "single"]);
    let below = KernelMount::mount(&below, judge::Access::ReadWrite, "").unwrap();
    let image = below.path().join("image");
    mkfs_btrfs(&image, 700 << 20, mkfs);
    let mount = KernelMount::mount(&image, judge::Access::ReadWrite, "").unwrap();
    run_script(mount.path(), SHARED);
    let mut balance = Command::new("bash")
        .args(["-c", BALANCE])
        .current_dir(mount.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut moments = Vec::new();
    while balance.try_wait().unwrap().is_none() {
        let moment = below.path().join(format!("moment-{}", moments.len()));
        copy(&image, &moment, "--reflink=always");
        moments.push(moment);
    }
    let left: Vec<_> = moments
        .iter()
        .map(|moment| (left_over(moment), moment))
        .collect();
    let with_trees: Vec<_> = left.iter().filter(|((trees, _), _)| *trees > 0).collect();
    let with_files: Vec<_> = left
        .iter()
        .filter(|(left, _)| matches!(left, (0, 1..)))
        .collect();
    let mut all = Vec::new();
    for some in [with_trees, with_files] {
        // Spread over the whole run.
        let step = some.len().div_ceil(KEPT_MAX / 2).max(1);
        for (_, moment) in some.into_iter().step_by(step) {
            let kept = dir.join(format!("caught-{}", all.len()));
            copy(moment, &kept, "--sparse=always");
            all.push(kept);
        }
    }
    mount.unmount().unwrap();
    all
}

#[test]
fn what_a_cut_balance_left_is_taken_back() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    for mkfs in [
        &["-n", "4096", "-m", "single"][..],
        &["-n", "16384", "-m", "dup", "-d", "dup"],
    ] {
        let dir = scratch_dir();
        let all = caught(dir.path(), mkfs);
        assert!(!all.is_empty(), "{mkfs:?}: no state was caught");
        let (mut trees, mut files) = (0, 0);
        for image in &all {
            let left = left_over(image);
            trees += left.0;
            files += left.1;
            let context = format!("{mkfs:?} {left:?}");
            let theirs = dir.path().join("theirs");
            copy(image, &theirs, "--sparse=always");
            let mount =
                KernelMount::mount(&theirs, judge::Access::ReadWrite, "skip_balance").unwrap();
            let expected = Manifest::of(&MountedTree::new(mount.path())).unwrap();
            mount.unmount().unwrap();
            let volume = open(image, "").unwrap_or_else(|error| panic!("{context}: {error}"));
            volume.close().unwrap();
            drop(volume);
            assert_eq!(left_over(image), (0, 0), "{context}");
            check(image, &context);
            let volume = open(image, "").unwrap();
            Manifest::of(&LibraryTree(volume.share()))
                .unwrap()
                .assert_same(&expected, &context);
            // Every subvolume is changed where it shared with the copies.
            for name in ["source", "snap1", "snap2", "snap3", "snap4"] {
                for number in 0..90 {
                    let path = format!("/{name}/file-{}", number * 10 + 1);
                    let text = content(number, 60 + number as usize);
                    volume.write_file(path.as_bytes(), &text).unwrap();
                }
            }
            let expected = Manifest::of(&LibraryTree(volume.share())).unwrap();
            volume.close().unwrap();
            drop(volume);
            check(image, &format!("{context}, changed"));
            let mut mount = KernelMount::mount(image, judge::Access::ReadWrite, "").unwrap();
            mount.scrub().assert_clean(&context);
            let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
            found.assert_same(&expected, &context);
            mount.unmount().unwrap();
        }
        eprintln!(
            "{mkfs:?}: {} states, {trees} with trees, {files} files",
            all.len()
        );
        assert!(trees > 0, "{mkfs:?}: no tree of a relocation was caught");
    }
}
