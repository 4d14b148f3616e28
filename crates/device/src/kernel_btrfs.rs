//! Requests to a mounted Btrfs that have no safe wrapper elsewhere: the
//! kernel's, or a mount of ButterFS.
//!
//! Owns their numbers and layouts, and the unsafe code that pairs them. Where
//! a file system is none of these, they answer ENOTTY or EOPNOTSUPP.
//!
//! Source: the documentation's page on ioctls.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use butterfs_format::send_stream::SourceStamp;
use butterfs_format::{Generation, TreeId, UuidBytes};
use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, Setter, Updater, ioctl, opcode};
use std::os::fd::{AsRawFd, BorrowedFd};

const BTRFS: u8 = 0x94;
/// Bytes of the argument of requests that name a subvolume.
const NAMED: usize = 4096;
/// Where the name lies in the first layout, and in the second.
const NAME_V1: usize = 8;
const NAME_V2: usize = 56;
const INFO: usize = 504;
const RECEIVED: usize = 200;
const ENCODED: usize = 128;
const SEND: usize = 72;
/// The subvolume is read-only.
const READ_ONLY: u64 = 1 << 1;
/// The id says which subvolume, not the name.
const BY_ID: u64 = 1 << 4;

/// What a mounted subvolume says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: TreeId,
    /// Its flags, as its root item has them.
    pub flags: u64,
    /// By what it is known here.
    pub own: SourceStamp,
    /// By what it was sent.
    pub received: SourceStamp,
    /// What it is a snapshot of.
    pub parent_uuid: UuidBytes,
    /// The generation in which it was made.
    pub made: Generation,
}

/// Whether a subvolume can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// It can.
    Allowed,
    /// It cannot.
    Refused,
}

/// A range of one file that is to be another's too.
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

/// Compressed data for a file.
#[derive(Clone, Copy, Debug)]
pub struct EncodedRequest<'d> {
    /// Where in the file.
    pub offset: u64,
    /// Bytes of the file.
    pub file_length: u64,
    /// Bytes of the extent, decoded.
    pub length: u64,
    /// Where the file's bytes begin in them.
    pub skip: u64,
    /// Number of the compression, as in streams.
    pub compression: u32,
    /// Encoded bytes.
    pub data: &'d [u8],
}

/// Puts a field into an argument, which has room for it.
fn put<const N: usize>(bytes: &mut [u8; N], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

/// A field of an answer, which is that long.
fn field<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.copied().unwrap_or([0; N])
}

fn named(at: usize, name: &[u8]) -> Result<[u8; NAMED], Errno> {
    if name.is_empty() || name.len() > 255 || name.contains(&0) || name.contains(&b'/') {
        return Err(Errno::INVAL);
    }
    let mut argument = [0; NAMED];
    put(&mut argument, at, name);
    Ok(argument)
}

/// Makes an empty subvolume in a directory.
///
/// # Errors
/// What the file system says.
pub fn create_subvolume(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 14);
    let argument = named(NAME_V1, name)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a name that ends with a NUL, which `named` leaves room for.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Makes a snapshot in a directory.
///
/// # Errors
/// What the file system says.
pub fn snapshot(
    directory: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    name: &[u8],
    changes: Changes,
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 23);
    let mut argument = named(NAME_V2, name)?;
    let descriptor = i64::from(source.as_raw_fd());
    put(&mut argument, 0, &descriptor.to_le_bytes());
    if changes == Changes::Refused {
        put(&mut argument, 16, &READ_ONLY.to_le_bytes());
    }
    // SAFETY: the request reads exactly 4096 bytes: a descriptor, which
    // outlives the call, flags that tell of no pointer and a name that ends
    // with a NUL.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Deletes a subvolume by its name in a directory.
///
/// # Errors
/// What the file system says.
pub fn delete_subvolume(directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 15);
    let argument = named(NAME_V1, name)?;
    // SAFETY: the request reads exactly 4096 bytes: a descriptor that it does
    // not use and a name that ends with a NUL.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Deletes a subvolume by its id, anywhere in the mount of `file`.
///
/// # Errors
/// What the file system says.
pub fn delete_subvolume_by_id(file: BorrowedFd<'_>, id: TreeId) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 63);
    let mut argument = [0; NAMED];
    put(&mut argument, 16, &BY_ID.to_le_bytes());
    put(&mut argument, NAME_V2, &id.get().to_le_bytes());
    // SAFETY: the request reads exactly 4096 bytes: flags that tell of no
    // pointer, and a number.
    unsafe { ioctl(file, Setter::<NUMBER, _>::new(argument)) }
}

/// Has a subvolume mounted when none is named.
///
/// # Errors
/// What the file system says.
pub fn set_default_subvolume(file: BorrowedFd<'_>, id: TreeId) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<u64>(BTRFS, 19);
    // SAFETY: the request reads one u64.
    unsafe { ioctl(file, Setter::<NUMBER, u64>::new(id.get())) }
}

/// Whether the subvolume that holds `file` can be changed.
///
/// # Errors
/// What the file system says.
pub fn changes(file: BorrowedFd<'_>) -> Result<Changes, Errno> {
    const GET: Opcode = opcode::read::<u64>(BTRFS, 25);
    // SAFETY: the request writes one u64.
    let flags: u64 = unsafe { ioctl(file, Getter::<GET, u64>::new())? };
    Ok(match flags & READ_ONLY {
        0 => Changes::Allowed,
        _ => Changes::Refused,
    })
}

/// What the subvolume that holds `file` says of itself.
///
/// # Errors
/// What the file system says.
pub fn subvolume_info(file: BorrowedFd<'_>) -> Result<SubvolumeInfo, Errno> {
    const NUMBER: Opcode = opcode::read::<[u8; INFO]>(BTRFS, 60);
    // SAFETY: the request writes at most the 504 bytes that its number has,
    // and Getter gives it memory for exactly these.
    let info: [u8; INFO] = unsafe { ioctl(file, Getter::<NUMBER, _>::new())? };
    let number = |at: usize| u64::from_le_bytes(field(&info, at));
    let uuid = |at: usize| -> UuidBytes { field(&info, at) };
    Ok(SubvolumeInfo {
        id: TreeId(number(0)),
        flags: number(288),
        own: SourceStamp {
            uuid: uuid(296),
            ctransid: Generation(number(344)),
        },
        received: SourceStamp {
            uuid: uuid(328),
            ctransid: Generation(number(360)),
        },
        parent_uuid: uuid(312),
        made: Generation(number(352)),
    })
}

/// Says what a subvolume was received as.
///
/// # Errors
/// What the file system says.
pub fn set_received(subvolume: BorrowedFd<'_>, stamp: SourceStamp) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::read_write::<[u8; RECEIVED]>(BTRFS, 37);
    let mut argument = [0; RECEIVED];
    put(&mut argument, 0, &stamp.uuid);
    put(&mut argument, 16, &stamp.ctransid.get().to_le_bytes());
    // SAFETY: the request reads and writes exactly 200 bytes.
    unsafe { ioctl(subvolume, Updater::<NUMBER, _>::new(&mut argument)) }
}

/// Allows or refuses changes of a subvolume.
///
/// # Errors
/// What the file system says.
pub fn set_changes(subvolume: BorrowedFd<'_>, changes: Changes) -> Result<(), Errno> {
    const GET: Opcode = opcode::read::<u64>(BTRFS, 25);
    const SET: Opcode = opcode::write::<u64>(BTRFS, 26);
    // SAFETY: the request writes one u64.
    let flags: u64 = unsafe { ioctl(subvolume, Getter::<GET, u64>::new())? };
    let flags = match changes {
        Changes::Allowed => flags & !READ_ONLY,
        Changes::Refused => flags | READ_ONLY,
    };
    // SAFETY: the request reads one u64.
    unsafe { ioctl(subvolume, Setter::<SET, u64>::new(flags)) }
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

/// How the kernel sends a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct SendCommand<'f> {
    /// Where the stream goes.
    pub output: BorrowedFd<'f>,
    /// Snapshot that the receiver has.
    pub parent: Option<TreeId>,
    /// Snapshots to clone from.
    pub clone_sources: &'f [TreeId],
    /// [`SEND_NO_DATA`] and the others.
    pub flags: u64,
    /// Version of the stream.
    pub version: u32,
}

/// Leave out data.
pub const SEND_NO_DATA: u64 = 1;
/// Leave out the stream's header.
pub const SEND_NO_HEADER: u64 = 1 << 1;
/// Leave out the command that ends the stream.
pub const SEND_NO_END: u64 = 1 << 2;
/// The version is given.
const SEND_VERSION: u64 = 1 << 3;
/// Send compressed extents as they lie.
pub const SEND_COMPRESSED: u64 = 1 << 4;

/// Has the kernel send a read-only snapshot.
///
/// # Errors
/// What the file system says; EPERM for all but root.
pub fn send(snapshot: BorrowedFd<'_>, command: &SendCommand<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; SEND]>(BTRFS, 38);
    let sources: Vec<u64> = command.clone_sources.iter().map(|id| id.get()).collect();
    let output = i64::from(command.output.as_raw_fd());
    let parent = command.parent.map_or(0, TreeId::get);
    let mut argument = [0; SEND];
    put(&mut argument, 0, &output.to_le_bytes());
    let count = u64::try_from(sources.len()).unwrap_or(0);
    put(&mut argument, 8, &count.to_le_bytes());
    let address = sources.as_ptr().expose_provenance();
    put(&mut argument, 16, &address.to_le_bytes());
    put(&mut argument, 24, &parent.to_le_bytes());
    let flags = command.flags | SEND_VERSION;
    put(&mut argument, 32, &flags.to_le_bytes());
    put(&mut argument, 40, &command.version.to_le_bytes());
    // SAFETY: the request reads exactly 72 bytes and, through them, as many
    // ids as they say; these and the descriptor outlive the call.
    unsafe { ioctl(snapshot, Setter::<NUMBER, _>::new(argument)) }
}
