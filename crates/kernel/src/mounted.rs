//! Whether the kernel's Btrfs has something.

use std::path::Path;

/// True where the kernel's Btrfs has what is at `path`.
#[must_use]
pub fn is_kernel_btrfs(path: &Path) -> bool {
    const MAGIC: i64 = 0x9123_683e;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == MAGIC)
}
