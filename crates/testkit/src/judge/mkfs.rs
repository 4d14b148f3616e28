//! `mkfs.btrfs`, and where images are kept.

use super::run;
use std::fs::File;
use std::path::Path;
use tempfile::TempDir;

/// A directory for images, in memory if the machine offers that. It is removed
/// when dropped, unless `BUTTERFS_KEEP` is set.
///
/// # Panics
/// When none can be made.
#[must_use]
pub fn scratch_dir() -> TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    };
    let mut dir = made.expect("a directory for images");
    dir.disable_cleanup(std::env::var_os("BUTTERFS_KEEP").is_some());
    dir
}

/// Makes a volume with `mkfs.btrfs` in a new sparse file of `size` bytes.
///
/// # Panics
/// When that fails.
pub fn mkfs_btrfs(path: &Path, size: u64, args: &[&str]) {
    let file = File::create(path).expect("the image can be created");
    file.set_len(size).expect("the image can be sized");
    let path = path.to_str().expect("a path of characters");
    let verdict = run("mkfs.btrfs", [args, &["-q", path]].concat());
    verdict.assert_clean("mkfs.btrfs");
}
