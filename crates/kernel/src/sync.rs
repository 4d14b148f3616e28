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
