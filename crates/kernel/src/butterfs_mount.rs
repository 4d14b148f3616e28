//! Requests that a mount of ButterFS answers in addition to the kernel's.
//!
//! FICLONE and FIDEDUPERANGE never reach a FUSE server, and no request of Btrfs
//! says what defragmenting would do to sharing. Owns the numbers of the
//! requests that stand in for these, their layout (words of 64 bits, in the
//! byte order of the machine), and the unsafe code that pairs both. Other file
//! systems answer ENOTTY.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::sharing::{DedupeRequest, Deduped};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Updater, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

const BUTTERFS: u8 = 0xbf;
/// The version of these requests.
const VERSION: Opcode = opcode::read::<u64>(BUTTERFS, 0);
const DEDUPE: Opcode = opcode::read_write::<[u64; 7]>(BUTTERFS, 1);
const DEFRAGMENT: Opcode = opcode::read_write::<[u64; 11]>(BUTTERFS, 2);

/// The version that this module describes.
pub const CURRENT: u64 = 1;

/// A request, as a server sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// The version. Out: [`CURRENT`].
    Version,
    /// Shares a range of two open files if it is equal in both. In: descriptor
    /// of the source, offset, length (0: only says whether the files can share
    /// at all), descriptor of the target, offset. Out, in the words after
    /// these: bytes shared, 1 when the ranges differ.
    Dedupe,
    /// Rewrites small extents. In: start, end, size that is large enough, flags,
    /// number of a compression, its level. Out, in the words after these:
    /// extents, extents rewritten, bytes rewritten, bytes shared, new extents.
    Defragment,
}

impl Request {
    /// The request with this number.
    #[must_use]
    pub const fn of(number: u32) -> Option<Self> {
        match number {
            0x8008_bf00 => Some(Self::Version),
            0xc038_bf01 => Some(Self::Dedupe),
            0xc058_bf02 => Some(Self::Defragment),
            _ => None,
        }
    }

    /// Words that go in; the answer follows.
    #[must_use]
    pub const fn words_in(self) -> usize {
        match self {
            Self::Version => 0,
            Self::Dedupe => 5,
            Self::Defragment => 6,
        }
    }
}

/// Flag: shared data are rewritten too.
pub const UNSHARE: u64 = 1;
/// Flag: nothing is rewritten; the answer says what would be.
pub const PLAN: u64 = 1 << 1;
/// Flag: the request gives a compression; number 0 removes the compression.
pub const COMPRESS: u64 = 1 << 2;

/// What to rewrite of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct DefragmentRequest {
    /// Where.
    pub start: u64,
    /// Up to where.
    pub end: u64,
    /// Extents with at least this many bytes are left alone.
    pub large: u64,
    /// [`UNSHARE`], [`PLAN`], [`COMPRESS`].
    pub flags: u64,
    /// Number of a compression.
    pub algorithm: u64,
    /// Its level.
    pub level: i64,
}

/// What was rewritten, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DefragmentAnswer {
    /// File extents in the range.
    pub extents: u64,
    /// Those that were rewritten.
    pub rewritten_extents: u64,
    /// Bytes of them.
    pub rewritten: u64,
    /// Bytes worth rewriting that others have too.
    pub shared: u64,
    /// File extents that replace them.
    pub new_extents: u64,
}

/// Whether a file is on a mount of ButterFS that knows these requests.
#[must_use]
pub fn is_butterfs(file: BorrowedFd<'_>) -> bool {
    // SAFETY: the request writes one u64.
    let version: Result<u64, Errno> = unsafe { ioctl(file, Getter::<VERSION, u64>::new()) };
    version == Ok(CURRENT)
}

/// Shares a range of two files if it is equal in both. The source must be open
/// for reading, the target for writing.
///
/// # Errors
/// As FIDEDUPERANGE.
pub fn dedupe(request: DedupeRequest<'_>) -> Result<Deduped, Errno> {
    let descriptor = |file: BorrowedFd<'_>| i64::from(file.as_raw_fd()).cast_unsigned();
    let mut words = [
        descriptor(request.source),
        request.source_offset,
        request.length,
        descriptor(request.target),
        request.target_offset,
        0,
        0,
    ];
    // SAFETY: the request reads and writes exactly 56 bytes; the descriptors
    // outlive the call.
    unsafe { ioctl(request.source, Updater::<DEDUPE, _>::new(&mut words))? };
    let [.., bytes, differs] = words;
    Ok(match differs {
        0 => Deduped::Shared(bytes),
        _ => Deduped::Differs,
    })
}

/// Rewrites small extents of a file, or says what that would do.
///
/// # Errors
/// What the file system says; EPERM for everybody but its owner and the user
/// who mounted.
pub fn defragment(
    file: BorrowedFd<'_>,
    request: DefragmentRequest,
) -> Result<DefragmentAnswer, Errno> {
    let mut words = [
        request.start,
        request.end,
        request.large,
        request.flags,
        request.algorithm,
        request.level.cast_unsigned(),
        0,
        0,
        0,
        0,
        0,
    ];
    // SAFETY: the request reads and writes exactly 88 bytes, numbers alone.
    unsafe { ioctl(file, Updater::<DEFRAGMENT, _>::new(&mut words))? };
    let [
        ..,
        extents,
        rewritten_extents,
        rewritten,
        shared,
        new_extents,
    ] = words;
    Ok(DefragmentAnswer {
        extents,
        rewritten_extents,
        rewritten,
        shared,
        new_extents,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_requests() {
        let pairs = [
            (VERSION, Request::Version),
            (DEDUPE, Request::Dedupe),
            (DEFRAGMENT, Request::Defragment),
        ];
        for (number, request) in pairs {
            assert_eq!(Request::of(number), Some(request));
        }
        assert_eq!(Request::of(0x5000_9401), None);
    }
}
