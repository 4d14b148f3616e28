//! Requests on open files.
//!
//! Owns only the structures. Offsets and lengths are bytes. Their sums may
//! overflow, because the caller chose them.

use super::{FallocateFlags, OFlags, SetIdBits};
use crate::{FileHandle, NodeId};

/// Opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The file.
    pub node: NodeId,
    /// As given to open(2), without O_CREAT and O_EXCL.
    pub flags: OFlags,
    /// Set-id bits when O_TRUNC is among the flags.
    pub set_id: SetIdBits,
}

/// Reads data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The file.
    pub node: NodeId,
    /// What open returned; zero where opens are stateless.
    pub handle: FileHandle,
    /// Where to start.
    pub offset: u64,
    /// Flags of the open file.
    pub flags: OFlags,
}

/// Circumstances of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// It comes from the kernel's page cache, so the caller's identity is not
    /// the writer's.
    pub from_cache: bool,
    /// Set-id bits must go.
    pub clear_set_id: bool,
}

/// Writes data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write<'a> {
    /// The file.
    pub node: NodeId,
    /// What open returned; zero where opens are stateless.
    pub handle: FileHandle,
    /// Where to start.
    pub offset: u64,
    /// The data, in the request buffer and there aligned to a page.
    pub data: &'a [u8],
    /// Flags of the open file.
    pub flags: OFlags,
    /// Circumstances.
    pub write_flags: WriteFlags,
}

/// close(2) of one descriptor of an open file; may come several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// The file.
    pub node: NodeId,
    /// The open file.
    pub handle: FileHandle,
}

/// Ends the use of a file's handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The file.
    pub node: NodeId,
    /// The handle that ends.
    pub handle: FileHandle,
    /// As given to open(2).
    pub flags: OFlags,
}

/// How much fsync makes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsyncKind {
    /// Data and all attributes.
    Full,
    /// Data and what is needed to read it back (fdatasync).
    DataOnly,
}

/// Makes a file durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fsync {
    /// The file.
    pub node: NodeId,
    /// The open file.
    pub handle: FileHandle,
    /// How much.
    pub kind: FsyncKind,
}

/// Allocates, zeroes, punches or moves ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallocate {
    /// The file.
    pub node: NodeId,
    /// The open file.
    pub handle: FileHandle,
    /// Start of the range.
    pub offset: u64,
    /// Bytes of the range.
    pub length: u64,
    /// As in fallocate(2).
    pub mode: FallocateFlags,
}

/// What lseek looks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next data (SEEK_DATA).
    Data,
    /// The next hole (SEEK_HOLE).
    Hole,
}

/// Finds data or a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lseek {
    /// The file.
    pub node: NodeId,
    /// The open file.
    pub handle: FileHandle,
    /// Where to start.
    pub offset: u64,
    /// What to find.
    pub target: SeekTarget,
}

/// Copies or shares a range between files of this file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyFileRange {
    /// The source.
    pub node_in: NodeId,
    /// The source's open file.
    pub handle_in: FileHandle,
    /// Start in the source.
    pub offset_in: u64,
    /// The destination; may be the source.
    pub node_out: NodeId,
    /// The destination's open file.
    pub handle_out: FileHandle,
    /// Start in the destination.
    pub offset_out: u64,
    /// Bytes wanted. At most what the reply can count: 32 bits on kernels
    /// before 6.18.
    pub length: u64,
}

/// Circumstances of an ioctl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoctlFlags {
    /// The node is a directory.
    pub directory: bool,
    /// The caller is a 32-bit program.
    pub caller_is_32bit: bool,
}

/// An ioctl whose sizes the command encodes (`_IOR`, `_IOW`, `_IOWR`). The
/// kernel also sends FS_IOC_GETFLAGS, SETFLAGS, FSGETXATTR and FSSETXATTR this
/// way; the first two then carry 4 bytes whatever their number says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ioctl<'a> {
    /// The node.
    pub node: NodeId,
    /// The open file.
    pub handle: FileHandle,
    /// The command's number.
    pub command: u32,
    /// The third argument as the caller passed it, an address in the caller's
    /// memory for most commands.
    pub argument: u64,
    /// What the kernel copied from the caller.
    pub data: &'a [u8],
    /// Circumstances.
    pub flags: IoctlFlags,
}

/// Maps a file's block to the device's; only on block mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bmap {
    /// The file.
    pub node: NodeId,
    /// Index of the block in the file.
    pub block: u64,
    /// Bytes of a block.
    pub block_size: u32,
}
