//! The size of a mounted volume's device.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, NAMED, named};
use crate::coded::uncoded;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};
use std::os::fd::BorrowedFd;

/// Where the text of a request to resize lies.
const TEXT: usize = 8;

/// Gives a device of the volume that holds `file` another size: `wanted` is as
/// btrfs-filesystem(8) has it (`1:+10g`, `max`).
///
/// # Errors
/// What the file system says; EINVAL for a size that cannot be, ENODEV for no
/// such device, EINPROGRESS while another change of the devices runs, ENOSPC
/// where the remaining space has no room for what must move.
pub fn resize(file: BorrowedFd<'_>, wanted: &str) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 3);
    let mut argument = named(TEXT, wanted.as_bytes())?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a text that ends with a NUL.
    unsafe { uncoded::<NUMBER, _>(file, &mut argument) }
}
