//! Files that are protected by their flags.

use butterfs::InodeFlags;
use butterfs_fuse::reply::FOREVER;
use std::time::Duration;

/// Flags of files that are protected.
pub(super) const KEPT: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// Flags of files for which the server must know how they are opened. What a
/// conversion saved is protected too.
pub(super) const ASKED: InodeFlags = KEPT.union(InodeFlags::READONLY);

/// How long the kernel may keep attributes. Zero if it must ask before it opens
/// a file.
pub(super) fn attributes_last(flags: InodeFlags) -> Duration {
    if flags.intersects(ASKED) {
        Duration::ZERO
    } else {
        FOREVER
    }
}
