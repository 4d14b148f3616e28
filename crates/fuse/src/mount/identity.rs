//! Which mount is at a path.
//!
//! Owns the numbers that tell mounts apart, and unmounting by descriptor. A path
//! can change hands: a mount goes and another one takes its place, or something
//! is mounted over it. A device number can too: the next mount of the same block
//! device, or the next file system without a device, gets the number that became
//! free.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};
use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use super::mountinfo;

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): a number that no other mount ever
/// gets.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// A mount, as far as the kernel tells it from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// `major:minor` of the file system.
    pub(super) device: String,
    /// The mount's number; `None` before Linux 5.8, and if the kernel refuses
    /// to tell. Before Linux 6.8 a later mount may have it again.
    number: Option<u64>,
}

impl Identity {
    /// What is seen at an absolute path; `None` if there is nothing.
    pub(super) fn at(path: &Path) -> Option<Self> {
        match numbers(CWD, path, UNIQUE | StatxFlags::MNT_ID) {
            Ok(facts) => Some(Self::from(&facts)),
            Err(Os::NOENT | Os::NOTDIR) => None,
            // The kernel tells nothing of a mount to those who may not use it.
            Err(_) => mountinfo::device_at(path).map(|device| Self {
                device,
                number: None,
            }),
        }
    }

    /// Of an open file.
    fn of(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        Ok(Self::from(&numbers(
            file,
            Path::new(""),
            UNIQUE | StatxFlags::MNT_ID,
        )?))
    }

    fn from(facts: &Statx) -> Self {
        let told = StatxFlags::from_bits_retain(facts.stx_mask);
        Self {
            device: format!("{}:{}", facts.stx_dev_major, facts.stx_dev_minor),
            number: told
                .intersects(UNIQUE | StatxFlags::MNT_ID)
                .then_some(facts.stx_mnt_id),
        }
    }

    /// Whether both are one mount, as far as is known of both.
    pub(super) fn is(&self, other: &Self) -> bool {
        let numbers = self.number.zip(other.number);
        self.device == other.device && numbers.is_none_or(|(one, other)| one == other)
    }

    /// Takes this mount at `path` out of sight, and no other one.
    pub(super) fn detach(&self, path: &Path) -> rustix::io::Result<()> {
        let root = match root_at(path) {
            Ok(root) => root,
            // A process without a free descriptor must be able to clean up.
            Err(Os::MFILE | Os::NFILE) => {
                let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
                return rustix::mount::unmount(path, flags);
            }
            Err(error) => return Err(error),
        };
        match Self::of(root.as_fd()) {
            Ok(seen) if !self.is(&seen) => Err(Os::INVAL),
            _ => detach(root.as_fd()),
        }
    }
}

fn root_at(path: &Path) -> rustix::io::Result<rustix::fd::OwnedFd> {
    use rustix::fs::{Mode, OFlags};
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
}

/// Asks no file system, so the server of the mount may be gone, or may be this
/// thread.
fn numbers(at: impl AsFd, path: &Path, wanted: StatxFlags) -> rustix::io::Result<Statx> {
    let flags = AtFlags::EMPTY_PATH
        | AtFlags::SYMLINK_NOFOLLOW
        | AtFlags::NO_AUTOMOUNT
        | AtFlags::STATX_DONT_SYNC;
    statx(at, path, flags, wanted)
}

/// Whether what is seen at an absolute path is the mount with this number of
/// /proc/self/mountinfo. True also if the kernel does not tell (before Linux
/// 5.8).
#[must_use]
pub fn is_on_top(path: &Path, number: u64) -> bool {
    match numbers(CWD, path, StatxFlags::MNT_ID) {
        Ok(facts) if StatxFlags::from_bits_retain(facts.stx_mask).contains(StatxFlags::MNT_ID) => {
            facts.stx_mnt_id == number
        }
        Err(Os::NOENT | Os::NOTDIR) => false,
        _ => true,
    }
}

/// Takes out of sight the mount whose root is open as `root`. Whatever was
/// mounted at its path meanwhile stays.
///
/// Errors: what umount2(2) says; ENOENT without /proc.
pub fn detach(root: BorrowedFd<'_>) -> rustix::io::Result<()> {
    let path = format!("/proc/self/fd/{}", root.as_raw_fd());
    rustix::mount::unmount(path, UnmountFlags::DETACH)
}
