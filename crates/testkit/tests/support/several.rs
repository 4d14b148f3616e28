//! Volumes of several devices in files, and their judges.

use super::LibraryTree;
use butterfs::{Access, MountOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_check::{DataChecksums as CheckData, Options as CheckOptions};
use butterfs_device::{BlockDevice, FileDevice};
use butterfs_testkit::Manifest;
use butterfs_testkit::content::content;
use butterfs_testkit::judge::{self, DataChecksums, KernelMount, Loop, Mode};
use butterfs_testkit::mounted_tree::MountedTree;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

pub const MIB: u64 = 1 << 20;

/// MiB of devices.
pub const SIZES: [u64; 5] = [500, 700, 600, 900, 500];

pub fn open(images: &[PathBuf], options: &str) -> Result<Volume, butterfs::Error> {
    let options = MountOptions::parse(options).unwrap().open_options();
    Volume::open_all(images, options)
}

pub fn manifest(images: &[PathBuf], options: &str) -> Manifest {
    let volume = open(images, options).unwrap_or_else(|error| panic!("{options}: {error}"));
    Manifest::of(&LibraryTree(volume)).unwrap_or_else(|error| panic!("{options}: {error}"))
}

/// Our own check, with all data.
pub fn check(images: &[PathBuf], context: &str) {
    let devices = images.iter().map(|image| {
        let device = FileDevice::open(image, Access::ReadOnly).unwrap();
        Arc::new(device) as Arc<dyn BlockDevice>
    });
    let options = CheckOptions {
        data: CheckData::Verify,
        ..CheckOptions::default()
    };
    let report =
        butterfs_check::check(devices.collect(), &options, &butterfs_check::NoProgress).unwrap();
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
}

/// btrfs check finds the other devices among the loop devices.
pub fn btrfs_check(images: &[PathBuf], context: &str) {
    let loops: Vec<Loop> = images
        .iter()
        .map(|image| Loop::attach(image, judge::Access::ReadOnly).unwrap())
        .collect();
    for mode in Mode::ALL {
        judge::btrfs_check(loops[0].path(), mode, DataChecksums::Verify).assert_clean(context);
    }
}

pub fn images(dir: &Path, sizes: &[u64]) -> Vec<PathBuf> {
    let image = |(number, size): (usize, &u64)| {
        let path = dir.join(format!("{number}.img"));
        File::create(&path).unwrap().set_len(size * MIB).unwrap();
        path
    };
    sizes.iter().enumerate().map(image).collect()
}

/// Makes a volume with the library, with features that btrfs check knows.
pub fn make(images: &[PathBuf], data: ProfileChoice, metadata: ProfileChoice) {
    let mut options = MkfsOptions {
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    options.features.change("^block-group-tree").unwrap();
    let devices = images.iter().map(|image| {
        let device = FileDevice::open(image, Access::ReadWrite).unwrap();
        Arc::new(device) as Arc<dyn BlockDevice>
    });
    make_on(&devices.collect::<Vec<_>>(), &options).unwrap();
}

pub fn fill(point: &Path, seed: u64) {
    let dir = point.join(format!("dir {seed}"));
    std::fs::create_dir(&dir).unwrap();
    for number in 0..60 {
        let length = [10, 3000, 70_000, 900_000, 2_500_000][number as usize % 5];
        std::fs::write(
            dir.join(format!("{number}")),
            content(seed + number, length),
        )
        .unwrap();
    }
    std::fs::hard_link(dir.join("3"), dir.join("linked")).unwrap();
}

pub fn fill_ours(volume: &Volume, seed: u64) {
    volume
        .create_dir(format!("/ours {seed}").as_bytes())
        .unwrap();
    for number in 0..60 {
        let length = [10, 3000, 70_000, 900_000, 2_500_000][number as usize % 5];
        let path = format!("/ours {seed}/{number}");
        volume
            .write_file(path.as_bytes(), &content(seed + number, length))
            .unwrap();
    }
}

pub fn kernel_manifest(mount: &KernelMount) -> Manifest {
    Manifest::of(&MountedTree::new(mount.path())).unwrap()
}

/// Sets of devices that a profile can do without, except the empty set.
pub fn losses(profile: ProfileChoice, count: usize) -> Vec<Vec<usize>> {
    let sets =
        (1_usize..1 << count).map(|mask| (0..count).filter(|n| mask & (1 << n) != 0).collect());
    sets.filter(|set: &Vec<usize>| set.len() <= profile.tolerated())
        .collect()
}

pub fn without(images: &[PathBuf], lost: &[usize]) -> Vec<PathBuf> {
    let left = images.iter().enumerate().filter(|(n, _)| !lost.contains(n));
    left.map(|(_, image)| image.clone()).collect()
}

pub fn copy_sparse(from: &Path, to: &Path) {
    let copied = Command::new("cp")
        .arg("--sparse=always")
        .args([from, to])
        .status();
    assert!(copied.unwrap().success());
}
