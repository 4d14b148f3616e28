//! What the tests of this crate share: volumes, checks, randomness.
#![allow(dead_code, reason = "each test uses a part")]

pub mod paused;

use butterfs_device::{Access, DeviceError, FileDevice};
use butterfs_format::TreeId;
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{judge_image, mkfs_btrfs, scratch_dir, unmount};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs a program that must succeed; gives what it printed.
pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {text}");
    text
}

/// True where the kernel can mount volumes; else says that the test is skipped
/// (in CI: fails).
pub fn is_root() -> bool {
    Capability::all_here(&Capability::KERNEL_MOUNT)
}

/// A directory with a volume of `size` bytes that mkfs.btrfs made.
pub fn mkfs(size: u64, options: &[&str]) -> (TempDir, PathBuf) {
    let dir = scratch_dir();
    let image = dir.path().join("volume.img");
    mkfs_btrfs(&image, size, options);
    (dir, image)
}

/// Opens an image. The kernel may still hold it for a moment.
fn open_when_free(image: &Path) -> FileDevice {
    let begun = Instant::now();
    loop {
        match FileDevice::open(image, Access::ReadWrite) {
            Err(DeviceError::Busy { .. }) if begun.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(50));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Opens a volume for writing, seen from one subvolume.
pub fn open_with(image: &Path, tree: TreeId, options: &Options) -> Filesystem {
    let device = open_when_free(image);
    let all_early = OpenOptions {
        left_to_commit: 0,
        ..OpenOptions::default()
    };
    let store = Store::open(Arc::new(device), &all_early).unwrap();
    butterfs_fs::log::replay(&store).unwrap();
    store.mend_tree_bytes().unwrap();
    Filesystem::new(Arc::new(store), tree, options.clone())
}

/// As [`open_with`], with default options.
pub fn open_subvolume(image: &Path, tree: TreeId) -> Filesystem {
    open_with(image, tree, &Options::default())
}

/// btrfs check in both modes, with data checksums.
pub fn check(image: &Path) {
    judge_image(image, "btrfs check");
}

/// Our own check, with data checksums.
pub fn check_ours(image: &Path) {
    let report = report_of(image);
    assert!(report.is_exact(), "{:?}", report.faults);
}

/// The same of a volume that others wrote last. mkfs.btrfs leaves numbers that only
/// warnings are about.
pub fn check_theirs(image: &Path) {
    let report = report_of(image);
    assert!(report.is_clean(), "{:?}", report.faults);
}

fn report_of(image: &Path) -> butterfs_check::Report {
    let device: Arc<dyn butterfs_device::BlockDevice> =
        Arc::new(FileDevice::open(image, Access::ReadOnly).unwrap());
    let options = butterfs_check::Options {
        data: butterfs_check::DataChecksums::Verify,
        ..butterfs_check::Options::default()
    };
    butterfs_check::check(vec![device], &options, &butterfs_check::NoProgress).unwrap()
}

/// A mount by the kernel, undone when dropped.
pub struct KernelMount(PathBuf);

impl KernelMount {
    /// Mounts `image` with `options` below `dir`.
    pub fn new(image: &Path, dir: &Path, options: &str) -> Self {
        let point = dir.join("mnt");
        std::fs::create_dir_all(&point).unwrap();
        let options = format!("loop,{options}");
        let paths = [image.to_str().unwrap(), point.to_str().unwrap()];
        run("mount", &["-o", &options, paths[0], paths[1]]);
        Self(point)
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        unmount(&self.0).unwrap();
    }
}

/// Seeded randomness.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Bytes that compress well, badly or not at all.
    pub fn data(&mut self, length: usize) -> Vec<u8> {
        let kind = self.below(3);
        (0..length)
            .map(|at| match kind {
                0 => self.below(256) as u8,
                1 => (at / 100) as u8,
                _ if at % 16 < 8 => self.below(256) as u8,
                _ => 7,
            })
            .collect()
    }
}
