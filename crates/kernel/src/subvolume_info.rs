//! What a subvolume says of itself, and how to change that.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, field, put};
use butterfs_format::send_stream::SourceStamp;
use butterfs_format::{Generation, TreeId, UuidBytes};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of what a subvolume says of itself.
const INFO: usize = 504;
/// Bytes of what it was received as.
const RECEIVED: usize = 200;
/// The subvolume is read-only.
pub(crate) const READ_ONLY: u64 = 1 << 1;

/// What a mounted subvolume says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: TreeId,
    /// Its flags, as its root item has them.
    pub flags: u64,
    /// Its own UUID, and the generation of its last change.
    pub own: SourceStamp,
    /// The UUID and generation that it was sent with.
    pub received: SourceStamp,
    /// What it is a snapshot of.
    pub parent_uuid: UuidBytes,
    /// The generation in which it was made.
    pub made: Generation,
}

/// Whether a subvolume can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// It can.
    Allowed,
    /// It cannot.
    Refused,
}

/// Whether the subvolume that holds `file` can be changed.
///
/// # Errors
/// What the file system says.
pub fn changes(file: BorrowedFd<'_>) -> Result<Changes, Errno> {
    const GET: Opcode = opcode::read::<u64>(BTRFS, 25);
    // SAFETY: the request writes one u64.
    let flags: u64 = unsafe { ioctl(file, Getter::<GET, u64>::new())? };
    Ok(match flags & READ_ONLY {
        0 => Changes::Allowed,
        _ => Changes::Refused,
    })
}

/// What the subvolume that holds `file` says of itself.
///
/// # Errors
/// What the file system says.
pub fn subvolume_info(file: BorrowedFd<'_>) -> Result<SubvolumeInfo, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; INFO]>(BTRFS, 60);
    // SAFETY: the request writes at most the 504 bytes that its number has,
    // and Getter gives it memory for exactly these.
    let info: [u8; INFO] = unsafe { ioctl(file, Getter::<NUMBER, _>::new())? };
    let number = |at: usize| u64::from_le_bytes(field(&info, at));
    let uuid = |at: usize| -> UuidBytes { field(&info, at) };
    Ok(SubvolumeInfo {
        id: TreeId(number(0)),
        flags: number(288),
        own: SourceStamp {
            uuid: uuid(296),
            ctransid: Generation(number(344)),
        },
        received: SourceStamp {
            uuid: uuid(328),
            ctransid: Generation(number(360)),
        },
        parent_uuid: uuid(312),
        made: Generation(number(352)),
    })
}

/// Says what a subvolume was received as.
///
/// # Errors
/// What the file system says.
pub fn set_received(subvolume: BorrowedFd<'_>, stamp: SourceStamp) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; RECEIVED]>(BTRFS, 37);
    let mut argument = [0; RECEIVED];
    put(&mut argument, 0, &stamp.uuid);
    put(&mut argument, 16, &stamp.ctransid.get().to_le_bytes());
    // SAFETY: the request reads and writes exactly 200 bytes.
    unsafe { ioctl(subvolume, Updater::<NUMBER, _>::new(&mut argument)) }
}

/// Allows or refuses changes of a subvolume.
///
/// # Errors
/// What the file system says.
pub fn set_changes(subvolume: BorrowedFd<'_>, changes: Changes) -> Result<(), Errno> {
    const GET: Opcode = opcode::read::<u64>(BTRFS, 25);
    const SET: Opcode = opcode::write::<u64>(BTRFS, 26);
    // SAFETY: the request writes one u64.
    let flags: u64 = unsafe { ioctl(subvolume, Getter::<GET, u64>::new())? };
    let flags = match changes {
        Changes::Allowed => flags & !READ_ONLY,
        Changes::Refused => flags | READ_ONLY,
    };
    // SAFETY: the request reads one u64.
    unsafe { ioctl(subvolume, Setter::<SET, u64>::new(flags)) }
}
