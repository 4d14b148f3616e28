//! Whether a path is on a mount of the kernel's Btrfs.

use std::path::Path;

/// True where `path` is on a mount of the kernel's Btrfs.
#[must_use]
pub fn is_kernel_btrfs(path: &Path) -> bool {
    const MAGIC: i64 = 0x9123_683e;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == MAGIC)
}
