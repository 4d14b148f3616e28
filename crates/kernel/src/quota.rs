//! Quotas: on and off, counts, groups and their limits.
//!
//! Where quotas are off, these requests answer ENOTCONN.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::BTRFS;
use crate::words::{word, words};
use butterfs_format::item::qgroup::GroupId;
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// The value that removes a limit.
const NO_LIMIT: u64 = u64::MAX;

/// What is done with quotas as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaSwitch {
    /// On; existing data are counted in the background.
    On,
    /// Off; all groups and limits are removed.
    Off,
    /// On, as simple quotas.
    OnSimple,
}

/// Whether something is added or removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// It is added.
    Add,
    /// It is removed.
    Remove,
}

impl Way {
    const fn number(self) -> u64 {
        match self {
            Self::Add => 1,
            Self::Remove => 0,
        }
    }
}

/// A limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// The group.
    pub group: GroupId,
    /// The flag of the limit (QGROUP_LIMIT): of all bytes, or of exclusive ones.
    pub flag: u64,
    /// Bytes; `None` takes the limit away.
    pub bytes: Option<u64>,
}

/// Lets other processes read the memory of this one. A mount of ButterFS does
/// so for the arguments that the kernel does not pass to it. Some systems allow
/// that only if the program agrees.
pub fn allow_reading() {
    // Systems that do not know this call allow it anyway.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
}

/// Switches quotas on or off.
///
/// # Errors
/// What the file system says.
pub fn switch_quotas(file: BorrowedFd<'_>, switch: QuotaSwitch) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; 16]>(BTRFS, 40);
    let command = match switch {
        QuotaSwitch::On => 1,
        QuotaSwitch::Off => 2,
        QuotaSwitch::OnSimple => 4,
    };
    let mut argument: [u8; 16] = words([command, 0]);
    // SAFETY: the request reads and writes exactly 16 bytes.
    unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) }
}

/// Begins to count all groups anew.
///
/// # Errors
/// What the file system says; EINPROGRESS while a count runs.
pub fn start_rescan(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 64]>(BTRFS, 44);
    // SAFETY: the request reads exactly 64 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, [u8; 64]>::new([0; 64])) }
}

/// How far a count is; `None` when there is none.
///
/// # Errors
/// What the file system says.
pub fn rescan_progress(file: BorrowedFd<'_>) -> Result<Option<u64>, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; 64]>(BTRFS, 45);
    // SAFETY: the request writes exactly 64 bytes.
    let answer: [u8; 64] = unsafe { ioctl(file, Getter::<NUMBER, _>::new())? };
    Ok((word(&answer, 0) != 0).then(|| word(&answer, 8)))
}

/// Waits for the end of a count.
///
/// # Errors
/// What the file system says.
pub fn wait_for_rescan(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BTRFS, 46);
    // SAFETY: the request has no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}

/// Makes or removes a group.
///
/// # Errors
/// What the file system says.
pub fn change_group(file: BorrowedFd<'_>, group: GroupId, way: Way) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 16]>(BTRFS, 42);
    let argument: [u8; 16] = words([way.number(), group.0]);
    // SAFETY: the request reads exactly 16 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Puts `child` into `parent`, or takes it out.
///
/// # Errors
/// What the file system says.
pub fn change_relation(
    file: BorrowedFd<'_>,
    (child, parent): (GroupId, GroupId),
    way: Way,
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 24]>(BTRFS, 41);
    let argument: [u8; 24] = words([way.number(), child.0, parent.0]);
    // SAFETY: the request reads exactly 24 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Limits a group.
///
/// # Errors
/// What the file system says.
pub fn limit_group(file: BorrowedFd<'_>, limit: GroupLimit) -> Result<(), Errno> {
    // The number is one of requests that only answer, but this one only takes
    // an argument.
    const NUMBER: Opcode = opcode::read::<[u8; 48]>(BTRFS, 43);
    let bytes = limit.bytes.unwrap_or(NO_LIMIT);
    let argument: [u8; 48] = words([limit.group.0, limit.flag, bytes, bytes, 0, 0]);
    // SAFETY: the request reads exactly 48 bytes.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}
