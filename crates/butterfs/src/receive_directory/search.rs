//! Finding a snapshot anywhere in the volume that a directory lies in, as far
//! as the mount shows it.
//!
//! Asks only for what an ordinary user may ask. Where this user may not go,
//! nothing is found.

use butterfs_format::TreeId;
use butterfs_format::send_stream::SourceStamp;
use butterfs_fs::receive::{BaseSearch, Candidate};
use butterfs_kernel::{self as btrfs, Changes};
use rustix::fs::{
    AtFlags, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags, openat, openat2, statx,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

/// Directories between a directory and the root of its mount.
const DEPTH_MAX: usize = 4096;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::CLOEXEC)
    .union(OFlags::NOFOLLOW);

/// The read-only subvolume that was received with a stamp, or whose own stamp
/// it is; or else the one that the UUID names (see [`BaseSearch`]).
pub(super) fn find(directory: BorrowedFd<'_>, stamp: SourceStamp) -> Option<OwnedFd> {
    let mut seen = BTreeSet::new();
    let mut waiting = vec![mount_root(directory).ok()?];
    let mut search = BaseSearch::new(stamp);
    while let Some(root) = waiting.pop() {
        let Ok(info) = btrfs::subvolume_info(root.as_fd()) else {
            continue;
        };
        if !seen.insert(info.id) {
            continue;
        }
        for (id, parent) in btrfs::subvolumes_in(root.as_fd()).unwrap_or_default() {
            waiting.extend(open(root.as_fd(), parent, id));
        }
        let usable = [info.own.uuid, info.received.uuid].contains(&stamp.uuid)
            && btrfs::changes(root.as_fd()) == Ok(Changes::Refused);
        let candidate = Candidate {
            own: info.own,
            made: info.made,
            received: info.received,
        };
        if usable && let Some(found) = search.offer(&candidate, root) {
            return Some(found);
        }
    }
    search.by_uuid()
}

/// Opens a subvolume by its path from `root`; `None` if another mount covers
/// it.
fn open(root: BorrowedFd<'_>, parent: u64, id: TreeId) -> Option<OwnedFd> {
    let (mut path, name) = btrfs::subvolume_place(root, parent, id).ok()?;
    path.extend(name);
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let path = OsStr::from_bytes(&path);
    let found = openat2(root, path, DIRECTORY, Mode::empty(), inside).ok()?;
    let info = btrfs::subvolume_info(found.as_fd()).ok()?;
    (info.id == id).then_some(found)
}

/// The root of the mount that shows `directory`. The path of `directory` is
/// unknown.
fn mount_root(directory: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let mut at = openat(directory, ".", DIRECTORY, Mode::empty())?;
    for _ in 0..DEPTH_MAX {
        let known = statx(&at, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        if known.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
            return Ok(at);
        }
        at = openat(&at, "..", DIRECTORY, Mode::empty())?;
    }
    Err(Errno::LOOP)
}
