//! Translates commands into the library's terms.

use super::error::TargetError;
use crate::attr::{SetAttributes, SetTime};
use crate::file::FallocateMode;
use crate::names::{Inheritance, NewInode, Owner, S_IFBLK, S_IFCHR, S_IFIFO, S_IFMT, S_IFSOCK};
use butterfs_format::send_stream::{Command, PathTimes, Special};

/// fallocate(2): the size stays; the range becomes a hole; the range becomes
/// zeros.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// An inode to make.
#[derive(Debug)]
pub(super) struct New {
    pub path: Vec<u8>,
    /// Type and permissions.
    pub mode: u32,
    pub rdev: u64,
    pub symlink: Vec<u8>,
}

impl New {
    pub fn of(path: &[u8], mode: u32) -> Self {
        Self {
            path: path.to_vec(),
            mode,
            rdev: 0,
            symlink: Vec::new(),
        }
    }

    pub fn inode(&self) -> NewInode<'_> {
        NewInode {
            rdev: self.rdev,
            symlink: &self.symlink,
            inheritance: Inheritance::Nothing,
            ..NewInode::new(self.mode, Owner::default())
        }
    }
}

/// Mode and device number of an inode that is no file, directory or link.
pub(super) fn special(kind: Special, mode: u64, rdev: u64) -> Result<(u32, u64), TargetError> {
    let kind = match kind {
        Special::Fifo => S_IFIFO,
        Special::Socket => S_IFSOCK,
        Special::Node => match u32::try_from(mode).unwrap_or(0) & S_IFMT {
            kind @ (S_IFCHR | S_IFBLK) => kind,
            _ => return Err(TargetError::Other("it is no kind of device".into())),
        },
    };
    let is_device = kind == S_IFCHR || kind == S_IFBLK;
    let rdev = if is_device { stored_device(rdev) } else { 0 };
    Ok((kind | 0o600, rdev))
}

/// Adds the attributes that a command sets to `set`.
pub(super) fn note_attributes(
    set: &mut SetAttributes,
    command: &Command<'_>,
) -> Result<(), TargetError> {
    match *command {
        Command::Chmod { mode, .. } => {
            set.mode = Some(u32::try_from(mode & 0o7777).unwrap_or(0));
        }
        Command::Chown { uid, gid, .. } => {
            let narrow = |id: u64| {
                u32::try_from(id).map_err(|_| TargetError::Other("no user has this number".into()))
            };
            (set.uid, set.gid) = (Some(narrow(uid)?), Some(narrow(gid)?));
        }
        Command::Times { times, .. } => {
            let PathTimes {
                atime,
                mtime,
                otime,
                ..
            } = times;
            set.atime = Some(SetTime::At(atime));
            set.mtime = Some(SetTime::At(mtime));
            set.btime = otime;
        }
        _ => {}
    }
    Ok(())
}

/// Translates the mode of fallocate(2).
pub(super) fn allocation(mode: u32) -> Result<FallocateMode, TargetError> {
    Ok(match mode {
        0 => FallocateMode::Allocate,
        KEEP_SIZE => FallocateMode::AllocateKeepSize,
        mode if mode == KEEP_SIZE | PUNCH_HOLE => FallocateMode::PunchHole,
        ZERO_RANGE => FallocateMode::ZeroRange,
        mode if mode == KEEP_SIZE | ZERO_RANGE => FallocateMode::ZeroRangeKeepSize,
        _ => return Err(TargetError::Other(format!("mode {mode} is not supported"))),
    })
}

/// A device number as items have it: major and minor apart at bit 20.
const fn stored_device(rdev: u64) -> u64 {
    let major = ((rdev >> 8) & 0xfff) | ((rdev >> 32) & !0xfff);
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xfff00);
    (major << 20) | minor
}
