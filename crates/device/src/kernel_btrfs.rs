//! Requests to a mounted Btrfs that have no safe wrapper elsewhere: the
//! kernel's, or a mount of ButterFS.
//!
//! Owns their numbers and layouts, and the unsafe code that pairs them. Where
//! a file system is none of these, they answer ENOTTY or EOPNOTSUPP.
//!
//! Source: the documentation's page on ioctls.
#![allow(unsafe_code, reason = "ioctl numbers pair with types by hand")]

use butterfs_format::item::qgroup::GroupId;
use butterfs_format::send_stream::SourceStamp;
use butterfs_format::{Generation, TreeId, UuidBytes};
use rustix::io::Errno;
use rustix::ioctl::{Getter, NoArg, Opcode, Setter, Updater, ioctl, opcode};
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
/// There are quota groups to be put into.
const INHERIT: u64 = 1 << 2;

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

/// Quota groups that a new subvolume is put into, as requests point to them.
struct Inherit(Vec<u64>);

impl Inherit {
    /// Words before the groups: flags, three counts, five of limits.
    const HEADER: usize = 9;

    fn new(groups: &[GroupId]) -> Self {
        let mut words = vec![0; Self::HEADER];
        if let Some(count) = words.get_mut(1) {
            *count = u64::try_from(groups.len()).unwrap_or(u64::MAX);
        }
        words.extend(groups.iter().map(|group| group.0));
        Self(words)
    }

    /// Has `argument` point here.
    fn enter(&self, argument: &mut [u8; NAMED], flags: u64) {
        let is_wanted = self.0.len() > Self::HEADER;
        let flags = if is_wanted { flags | INHERIT } else { flags };
        put(argument, 16, &flags.to_le_bytes());
        if is_wanted {
            let size = size_of_val(self.0.as_slice());
            put(argument, 24, &size.to_le_bytes());
            let address = self.0.as_ptr().expose_provenance();
            put(argument, 32, &address.to_le_bytes());
        }
    }
}

/// Makes all durable that was written to the file system of `file`.
///
/// # Errors
/// What the file system says.
pub fn sync(file: BorrowedFd<'_>) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::none(BTRFS, 8);
    // SAFETY: the request takes no argument.
    unsafe { ioctl(file, NoArg::<NUMBER>::new()) }
}

/// Makes an empty subvolume in a directory, within quota groups.
///
/// # Errors
/// What the file system says.
pub fn create_subvolume(
    directory: BorrowedFd<'_>,
    name: &[u8],
    groups: &[GroupId],
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 24);
    let inherit = Inherit::new(groups);
    let mut argument = named(NAME_V2, name)?;
    inherit.enter(&mut argument, 0);
    // SAFETY: the request reads exactly 4096 bytes: flags, a name that ends
    // with a NUL, which `named` leaves room for, and, where the flags say so,
    // size and address of `inherit`, which outlives the call and is only read.
    unsafe { ioctl(directory, Setter::<NUMBER, _>::new(argument)) }
}

/// Makes a snapshot in a directory, within quota groups.
///
/// # Errors
/// What the file system says.
pub fn snapshot(
    directory: BorrowedFd<'_>,
    source: BorrowedFd<'_>,
    name: &[u8],
    (changes, groups): (Changes, &[GroupId]),
) -> Result<(), Errno> {
    const NUMBER: Opcode = opcode::write::<[u8; NAMED]>(BTRFS, 23);
    let inherit = Inherit::new(groups);
    let mut argument = named(NAME_V2, name)?;
    let descriptor = i64::from(source.as_raw_fd());
    put(&mut argument, 0, &descriptor.to_le_bytes());
    let flags = match changes {
        Changes::Refused => READ_ONLY,
        Changes::Allowed => 0,
    };
    inherit.enter(&mut argument, flags);
    // SAFETY: the request reads exactly 4096 bytes: a descriptor, flags, a name
    // that ends with a NUL and, where the flags say so, size and address of
    // `inherit`; descriptor and `inherit` outlive the call.
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
    /// So many bytes are shared.
    Shared(u64),
    /// The ranges are not equal.
    Differs,
}

/// Shares a range of two files where it is equal (FIDEDUPERANGE).
///
/// # Errors
/// What the file system says.
pub fn dedupe_range(request: DedupeRequest<'_>) -> Result<Deduped, Errno> {
    /// Bytes of the request, and of it with one target.
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

/// What to rewrite of a file.
#[derive(Clone, Copy, Debug)]
pub struct DefragmentRequest {
    /// Where.
    pub start: u64,
    /// Bytes; all to the end where it is `u64::MAX`.
    pub length: u64,
    /// Extents of so many bytes are large enough.
    pub large: u32,
    /// Number of a compression and its level, `Some((0, _))` for none; as it
    /// is where nothing is said.
    pub compression: Option<(u8, Option<i8>)>,
}

/// Rewrites small extents of a file, shared ones too.
///
/// # Errors
/// What the file system says; EOPNOTSUPP of kernels that know no levels, or
/// not how to take compression away.
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

/// Bytes of a request to defragment, and its flags.
pub const DEFRAGMENT: usize = 48;
/// The type of compression is said.
pub const DEFRAGMENT_COMPRESS: u64 = 1;
/// Its level too.
pub const DEFRAGMENT_LEVEL: u64 = 1 << 2;
/// Compression is taken away.
pub const DEFRAGMENT_UNCOMPRESS: u64 = 1 << 3;

/// Subvolumes that hang in the one that holds `file`, with the inodes of their
/// directories.
///
/// # Errors
/// What the file system says.
pub fn subvolumes_in(file: BorrowedFd<'_>) -> Result<Vec<(TreeId, u64)>, Errno> {
    const SIZE: usize = 4096;
    const NUMBER: Opcode = opcode::read_write::<[u8; SIZE]>(BTRFS, 61);
    const COUNT: usize = SIZE - 8;
    let mut found = Vec::new();
    let mut from = 0_u64;
    loop {
        let mut argument = [0; SIZE];
        put(&mut argument, 0, &from.to_le_bytes());
        // SAFETY: the request reads and writes exactly 4096 bytes.
        let done = unsafe { ioctl(file, Updater::<NUMBER, _>::new(&mut argument)) };
        let more = match done {
            Ok(()) => false,
            Err(Errno::OVERFLOW) => true,
            Err(error) => return Err(error),
        };
        let [count] = field(&argument, COUNT);
        for at in 0..usize::from(count) {
            let number = |skip: usize| u64::from_le_bytes(field(&argument, 8 + 16 * at + skip));
            found.push((TreeId(number(0)), number(8)));
        }
        let next = u64::from_le_bytes(field(&argument, 0));
        if !more {
            return Ok(found);
        }
        if count == 0 || next <= from {
            return Err(Errno::OVERFLOW);
        }
        from = next;
    }
}

/// Where a subvolume hangs, below the root of the one that holds it, which
/// `root` is: its directory's path, and its name.
///
/// # Errors
/// What the file system says.
pub fn subvolume_place(
    root: BorrowedFd<'_>,
    directory: u64,
    id: TreeId,
) -> Result<(Vec<u8>, Vec<u8>), Errno> {
    const SIZE: usize = 4096;
    const NUMBER: Opcode = opcode::read_write::<[u8; SIZE]>(BTRFS, 62);
    const NAME: usize = 16;
    const PATH: usize = NAME + 256;
    let mut argument = [0; SIZE];
    put(&mut argument, 0, &directory.to_le_bytes());
    put(&mut argument, 8, &id.get().to_le_bytes());
    // SAFETY: the request reads and writes exactly 4096 bytes.
    unsafe { ioctl(root, Updater::<NUMBER, _>::new(&mut argument))? };
    let text = |from: usize, to: usize| {
        let bytes = argument.get(from..to).unwrap_or_default();
        bytes
            .split(|byte| *byte == 0)
            .next()
            .unwrap_or_default()
            .to_vec()
    };
    Ok((text(PATH, SIZE), text(NAME, PATH)))
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
