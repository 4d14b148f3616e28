//! The size of a mounted volume's device, and how far a balance is.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, NAMED, named};
use crate::words::word;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Where the text of a request to resize lies.
const TEXT: usize = 8;
/// Bytes of what a balance says of itself.
const BALANCE: usize = 1024;
/// Where its counters are in them.
const COUNTERS: usize = 424;
/// It runs.
const RUNNING: u64 = 1;

/// Gives a device of the volume that holds `file` another size: `wanted` is as
/// btrfs-filesystem(8) has it (`1:+10g`, `max`).
///
/// # Errors
/// What the file system says; EINVAL for a size that cannot be, ENODEV for no
/// such device, ENOSPC where the rest has no room for what must move.
pub fn resize(file: BorrowedFd<'_>, wanted: &str) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 3);
    let argument = named(TEXT, wanted.as_bytes())?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a text that ends with a NUL.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// How far a balance of a mounted volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceProgress {
    /// It runs; else it waits to go on.
    pub is_running: bool,
    /// Chunks that it will move, about.
    pub expected: u64,
    /// Chunks that it has looked at.
    pub considered: u64,
    /// Chunks that it has moved.
    pub completed: u64,
}

/// The balance of the volume that holds `file`, if there is one. For root.
///
/// # Errors
/// What the file system says.
pub fn balance_progress(file: BorrowedFd<'_>) -> Result<Option<BalanceProgress>, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; BALANCE]>(BTRFS, 34);
    // SAFETY: the request writes at most the 1024 bytes that its number has.
    let found = unsafe { ioctl(file, Getter::<NUMBER, [u8; BALANCE]>::new()) };
    let found = match found {
        Err(Errno::NOTCONN) => return Ok(None),
        found => found?,
    };
    Ok(Some(BalanceProgress {
        is_running: word(&found, 8) & RUNNING != 0,
        expected: word(&found, COUNTERS),
        considered: word(&found, COUNTERS + 8),
        completed: word(&found, COUNTERS + 16),
    }))
}
