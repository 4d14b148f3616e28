//! Making a file system durable.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::BTRFS;
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Makes everything durable that was written to the file system of `file`.
///
/// # Errors
/// What the file system says.
pub fn sync(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BTRFS, 8);
    // SAFETY: the request takes no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}

/// As [`sync`], for any file system. What programs wrote is durable even if a
/// server of ButterFS holds the volume: syncfs(2) brings the kernel's pages to
/// the server and ends there, and the ioctl makes the server commit.
///
/// # Errors
/// What the file system says.
pub fn sync_any(file: BorrowedFd<'_>) -> Result<(), Errno> {
    rustix::fs::syncfs(file)?;
    match sync(file) {
        // Another file system: syncfs(2) was enough.
        Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::INVAL | Errno::NOSYS) => Ok(()),
        synced => synced,
    }
}
