//! Files that are protected by their flags.

use butterfs::InodeFlags;

/// Flags of files that are protected.
pub(super) const KEPT: InodeFlags = InodeFlags::IMMUTABLE.union(InodeFlags::APPEND);

/// Flags of files for which the server must know how they are opened. What a
/// conversion saved is protected too.
pub(super) const ASKED: InodeFlags = KEPT.union(InodeFlags::READONLY);
