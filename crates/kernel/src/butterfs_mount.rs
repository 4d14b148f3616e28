//! Requests that a mount of ButterFS answers in addition to the kernel's.
//!
//! FICLONE and FIDEDUPERANGE never reach a FUSE server, and no request of Btrfs
//! says what defragmenting would do to sharing. Owns the numbers of the
//! requests that stand in for these, their layout (words of 64 bits, in the
//! byte order of the machine), and the unsafe code that pairs both. Other file
//! systems answer ENOTTY.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use crate::sharing::{CloneRequest, DedupeRequest, Deduped};
use rustix::fs::{copy_file_range, fdatasync, fstat, fstatfs};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Updater, ioctl, opcode};
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

const BUTTERFS: u8 = 0xbf;
/// The version of these requests.
const VERSION: Opcode = opcode::read::<u64>(BUTTERFS, 0);
const DEDUPE: Opcode = opcode::read_write::<[u64; 7]>(BUTTERFS, 1);
const DEFRAGMENT: Opcode = opcode::read_write::<[u64; 11]>(BUTTERFS, 2);
const EXTENTS: Opcode = opcode::read_write::<[u64; EXTENT_WORDS]>(BUTTERFS, 3);
const EXCLUSIVE: Opcode = opcode::read::<u64>(BUTTERFS, 6);

/// Pauses the running balance, and cancels the balance: BTRFS_IOC_BALANCE_CTL
/// with 1 and 2. The kernel takes the number for an address of the caller's
/// memory, and never asks the server.
pub const BALANCE_PAUSE: u32 = 0xbf04;
/// The other one.
pub const BALANCE_CANCEL: u32 = 0xbf05;

/// Words of [`Request::Extents`].
const EXTENT_WORDS: usize = 2040;
/// Extents that one answer has at most.
pub const EXTENTS_MAX: usize = (EXTENT_WORDS - 3) / 4;

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
    /// Where a file lies. In: start, end. Out, in the words after these: how many
    /// extents follow, at most [`EXTENTS_MAX`], and of each its offset in the
    /// file, its logical address, its length, and its flags as FIEMAP has them.
    Extents,
    /// The operation on the whole volume that is under way. Out: its number, as
    /// [`ExclusiveOperation`] has them; 0 if none is.
    Exclusive,
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
            0xffc0_bf03 => Some(Self::Extents),
            0x8008_bf06 => Some(Self::Exclusive),
            _ => None,
        }
    }

    /// Words that go in; the answer follows.
    #[must_use]
    pub const fn words_in(self) -> usize {
        match self {
            Self::Version | Self::Exclusive => 0,
            Self::Extents => 2,
            Self::Dedupe => 5,
            Self::Defragment => 6,
        }
    }
}

/// An operation on a whole volume. Only one is under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveOperation {
    /// A balance runs.
    Balance,
    /// A balance waits to be resumed.
    BalancePaused,
    /// A device is being added.
    DeviceAdd,
    /// A device is being removed.
    DeviceRemove,
    /// A device is being replaced.
    DeviceReplace,
    /// A device is being resized.
    Resize,
}

impl ExclusiveOperation {
    const ALL: [Self; 6] = [
        Self::Balance,
        Self::BalancePaused,
        Self::DeviceAdd,
        Self::DeviceRemove,
        Self::DeviceReplace,
        Self::Resize,
    ];

    /// Its number in a request.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Balance => 1,
            Self::BalancePaused => 2,
            Self::DeviceAdd => 3,
            Self::DeviceRemove => 4,
            Self::DeviceReplace => 5,
            Self::Resize => 6,
        }
    }

    /// Its name in `/sys/fs/btrfs/UUID/exclusive_operation`.
    ///
    /// Source: the documentation's page on the sysfs interface.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Balance => "balance",
            Self::BalancePaused => "balance paused",
            Self::DeviceAdd => "device add",
            Self::DeviceRemove => "device remove",
            Self::DeviceReplace => "device replace",
            Self::Resize => "resize",
        }
    }
}

/// The operation on the whole volume that is under way on the mount that holds
/// `file`; `None` if none is.
///
/// # Errors
/// ENOTTY where no mount of ButterFS holds it, or one of an older version; EIO if
/// it knows an operation that this version does not.
pub fn exclusive_operation(file: BorrowedFd<'_>) -> Result<Option<ExclusiveOperation>, Errno> {
    // SAFETY: the request writes one u64.
    let number: u64 = unsafe { ioctl(file, Getter::<EXCLUSIVE, u64>::new())? };
    let mut all = ExclusiveOperation::ALL.into_iter();
    match number {
        0 => Ok(None),
        number => all
            .find(|one| one.number() == number)
            .map(Some)
            .ok_or(Errno::IO),
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

/// Pauses the running balance of the mount that holds `file`, and returns when
/// it has paused. For whoever administers the volume.
///
/// # Errors
/// ENOTCONN where none runs.
pub fn pause_balance(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BUTTERFS, 4);
    // SAFETY: the request has no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}

/// Ends the balance of the mount that holds `file`, running or paused, and
/// returns when there is none. For whoever administers the volume.
///
/// # Errors
/// ENOTCONN where there is none.
pub fn cancel_balance(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BUTTERFS, 5);
    // SAFETY: the request has no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
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

/// An extent of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedExtent {
    /// Where in the file.
    pub offset: u64,
    /// Its logical address in the volume; 0 if the tree has its data.
    pub logical: u64,
    /// Bytes of the file.
    pub length: u64,
    /// Flags as FIEMAP has them.
    pub flags: u32,
}

/// The first extents of a file in `range`; holes are left out. Empty if there
/// are none.
///
/// # Errors
/// What the file system says.
pub fn mapped_extents(file: BorrowedFd<'_>, range: Range<u64>) -> Result<Vec<MappedExtent>, Errno> {
    let mut words = [0_u64; EXTENT_WORDS];
    let [start, end, ..] = &mut words;
    (*start, *end) = (range.start, range.end);
    // SAFETY: the request reads and writes exactly these words, numbers alone.
    unsafe { ioctl(file, Updater::<EXTENTS, _>::new(&mut words))? };
    let [_, _, count, all @ ..] = &words;
    let (all, _) = all.as_chunks::<4>();
    let count = usize::try_from(*count).unwrap_or(0).min(EXTENTS_MAX);
    let extents = all.iter().take(count);
    Ok(extents
        .map(|[offset, logical, length, flags]| MappedExtent {
            offset: *offset,
            logical: *logical,
            length: *length,
            flags: u32::try_from(*flags).unwrap_or(0),
        })
        .collect())
}

/// Shares a range of two open files of one mount, as FICLONERANGE does; gives
/// how many bytes. A length of 0 is all up to the end of the source. The source
/// must be open for reading, the target for writing.
///
/// The server shares what copy_file_range(2) copies in whole sectors. It is asked
/// before whether the files can share at all, and afterwards whether they do, so
/// that no copy passes for a clone.
///
/// # Errors
/// EINVAL if the range does not consist of whole sectors or ends both files, or
/// data with and without checksums would be mixed; EXDEV for files of two
/// mounts; EAGAIN if the source changed meanwhile.
pub fn clone_range(file: BorrowedFd<'_>, request: CloneRequest<'_>) -> Result<u64, Errno> {
    let size = |file: BorrowedFd<'_>| fstat(file).map(|facts| facts.st_size.cast_unsigned());
    let (source, from, to) = (request.source, request.source_offset, request.offset);
    let left = size(source)?.checked_sub(from).ok_or(Errno::INVAL)?;
    let length = match request.length {
        0 => left,
        length => length,
    };
    let sector = fstatfs(file)?.f_bsize.cast_unsigned().max(1);
    let aligned = from.is_multiple_of(sector) && to.is_multiple_of(sector);
    let ends_both = length == left && to.saturating_add(length) >= size(file)?;
    if length > left || !aligned || !(ends_both || length.is_multiple_of(sector)) {
        return Err(Errno::INVAL);
    }
    fdatasync(source).map_err(|_| Errno::IO)?;
    let shared = |length| {
        dedupe(DedupeRequest {
            source,
            source_offset: from,
            length,
            target: file,
            target_offset: to,
        })
    };
    shared(0)?;
    let mut done = 0_u64;
    while done < length {
        let (mut from, mut to) = (from.saturating_add(done), to.saturating_add(done));
        let room = usize::try_from(length.saturating_sub(done)).unwrap_or(usize::MAX);
        match copy_file_range(source, Some(&mut from), file, Some(&mut to), room)? {
            0 => return Err(Errno::INVAL),
            part => done = done.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)),
        }
    }
    // Inline data, of less than a sector, are never shared.
    match shared(length)? {
        Deduped::Shared(bytes) if bytes == length || length <= sector => Ok(length),
        Deduped::Shared(_) | Deduped::Differs => Err(Errno::AGAIN),
    }
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
            (EXTENTS, Request::Extents),
        ];
        for (number, request) in pairs {
            assert_eq!(Request::of(number), Some(request));
        }
        assert_eq!(Request::of(0x5000_9401), None);
    }
}
