//! How large files and their extents may be.

/// Greatest size of a file: offsets are signed in the kernel.
pub const SIZE_MAX: u64 = i64::MAX as u64;
/// Greatest preallocated extent.
pub(crate) const PREALLOC_MAX: u64 = 256 << 20;
