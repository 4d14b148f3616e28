//! Ranges of two files that share what they hold.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::argument::{BTRFS, field, put};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

/// A range of one file that another file is to share.
#[derive(Clone, Copy, Debug)]
pub struct CloneRequest<'f> {
    /// File that has it.
    pub source: BorrowedFd<'f>,
    /// Where in that.
    pub source_offset: u64,
    /// Bytes.
    pub length: u64,
    /// Where in the target.
    pub offset: u64,
}

/// Shares a range of another file (FICLONERANGE).
///
/// # Errors
/// What the file system says.
pub fn clone_range(file: BorrowedFd<'_>, request: CloneRequest<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; 32]>(BTRFS, 13);
    let mut argument = [0; 32];
    let descriptor = i64::from(request.source.as_raw_fd());
    put(&mut argument, 0, &descriptor.to_le_bytes());
    put(&mut argument, 8, &request.source_offset.to_le_bytes());
    put(&mut argument, 16, &request.length.to_le_bytes());
    put(&mut argument, 24, &request.offset.to_le_bytes());
    // SAFETY: the request reads exactly 32 bytes; the descriptor in them
    // outlives the call.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// A range of a file that may be equal to one of another.
#[derive(Clone, Copy, Debug)]
pub struct DedupeRequest<'f> {
    /// File that keeps its extents.
    pub source: BorrowedFd<'f>,
    /// Where in that.
    pub source_offset: u64,
    /// Bytes.
    pub length: u64,
    /// File that gets them.
    pub target: BorrowedFd<'f>,
    /// Where in that.
    pub target_offset: u64,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deduped {
    /// This many bytes are shared.
    Shared(u64),
    /// The ranges are not equal.
    Differs,
}

/// Shares a range of two files if it is equal in both (FIDEDUPERANGE).
///
/// # Errors
/// What the file system says.
pub fn dedupe_range(request: DedupeRequest<'_>) -> Result<Deduped, Errno> {
    /// Bytes of the request without targets, and with one target.
    const HEAD: usize = 24;
    const WHOLE: usize = HEAD + 32;
    const NUMBER: Opcode = opcode::read_write::<[u8; HEAD]>(BTRFS, 54);
    const STATUS: usize = HEAD + 24;
    let mut argument = [0; WHOLE];
    let descriptor = i64::from(request.target.as_raw_fd());
    put(&mut argument, 0, &request.source_offset.to_le_bytes());
    put(&mut argument, 8, &request.length.to_le_bytes());
    put(&mut argument, 16, &1_u16.to_le_bytes());
    put(&mut argument, HEAD, &descriptor.to_le_bytes());
    put(
        &mut argument,
        HEAD + 8,
        &request.target_offset.to_le_bytes(),
    );
    // SAFETY: the request reads and writes its 24 bytes and, for the one target
    // that they count, 32 bytes more, which the argument has; the descriptors
    // outlive the call.
    unsafe { ioctl(request.source, Updater::<NUMBER, _>::new(&mut argument))? };
    match i32::from_le_bytes(field(&argument, STATUS)) {
        0 => Ok(Deduped::Shared(u64::from_le_bytes(field(
            &argument,
            HEAD + 16,
        )))),
        1 => Ok(Deduped::Differs),
        error => Err(Errno::from_raw_os_error(error.saturating_neg())),
    }
}
