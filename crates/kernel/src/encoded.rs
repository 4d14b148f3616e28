//! Compressed data that are written as they are.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, put};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::os::fd::BorrowedFd;

/// Bytes of the request.
const ENCODED: usize = 128;

/// Compressed data for a file.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRequest<'d> {
    /// Where in the file.
    pub offset: u64,
    /// Bytes of the file.
    pub file_length: u64,
    /// Bytes of the extent, decoded.
    pub length: u64,
    /// Where the file's bytes begin in the decoded extent.
    pub skip: u64,
    /// Number of the compression, as in streams.
    pub compression: u32,
    /// Encoded bytes.
    pub data: &'d [u8],
}

/// Writes compressed data as they are.
///
/// # Errors
/// What the file system says; EPERM for all but root.
pub fn encoded_write(file: BorrowedFd<'_>, request: EncodedRequest<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; ENCODED]>(BTRFS, 64);
    let vector = [rustix::io::IoSlice::new(request.data)];
    let mut argument = [0; ENCODED];
    let address = vector.as_ptr().expose_provenance();
    put(&mut argument, 0, &address.to_le_bytes());
    put(&mut argument, 8, &1_u64.to_le_bytes());
    put(&mut argument, 16, &request.offset.to_le_bytes());
    put(&mut argument, 32, &request.file_length.to_le_bytes());
    put(&mut argument, 40, &request.length.to_le_bytes());
    put(&mut argument, 48, &request.skip.to_le_bytes());
    put(&mut argument, 56, &request.compression.to_le_bytes());
    // SAFETY: the request reads exactly 128 bytes, and through them one iovec
    // (IoSlice has its layout) and the bytes that it spans; both outlive the
    // call and are only read.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}
