//! Small extents of a file become larger ones.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, put};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of a request to defragment, and its flags.
pub const DEFRAGMENT: usize = 48;
/// Flag: the request gives the type of compression.
pub const DEFRAGMENT_COMPRESS: u64 = 1;
/// Flag: the request also gives its level.
pub const DEFRAGMENT_LEVEL: u64 = 1 << 2;
/// Flag: the compression is removed.
pub const DEFRAGMENT_UNCOMPRESS: u64 = 1 << 3;

/// What to rewrite of a file.
#[derive(Clone, Copy, Debug)]
pub struct DefragmentRequest {
    /// Where.
    pub start: u64,
    /// Bytes; all to the end where it is `u64::MAX`.
    pub length: u64,
    /// Extents with at least this many bytes are left alone.
    pub large: u32,
    /// Number of a compression and its level. `Some((0, _))` removes the
    /// compression, `None` keeps it.
    pub compression: Option<(u8, Option<i8>)>,
}

/// Rewrites small extents of a file, shared ones too.
///
/// # Errors
/// What the file system says; EOPNOTSUPP from kernels that know no levels, or
/// that cannot remove compression.
pub fn defragment(file: BorrowedFd<'_>, request: DefragmentRequest) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; DEFRAGMENT]>(BTRFS, 16);
    let mut argument = [0; DEFRAGMENT];
    let mut flags = 0;
    put(&mut argument, 0, &request.start.to_le_bytes());
    put(&mut argument, 8, &request.length.to_le_bytes());
    put(&mut argument, 24, &request.large.to_le_bytes());
    match request.compression {
        None => {}
        Some((0, _)) => flags = DEFRAGMENT_UNCOMPRESS,
        Some((number, level)) => {
            flags = DEFRAGMENT_COMPRESS;
            put(&mut argument, 28, &[number]);
            if let Some(level) = level {
                flags |= DEFRAGMENT_LEVEL;
                put(&mut argument, 29, &level.to_le_bytes());
            }
        }
    }
    put(&mut argument, 16, &flags.to_le_bytes());
    // SAFETY: the request reads exactly 48 bytes, numbers alone.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}
