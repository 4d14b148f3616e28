//! Commands as values.

use super::CommandKind;
use crate::compression::Algorithm;
use crate::item::inode::Timespec;
use crate::{FileOffset, Generation, InodeNumber, UuidBytes};

/// Identifies a subvolume that a receiver has: by the UUID under which it was
/// first sent, and its generation at that sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SourceStamp {
    /// UUID.
    pub uuid: UuidBytes,
    /// Generation of its last change.
    pub ctransid: Generation,
}

/// What a new inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    /// Device, of `mode` type.
    Node,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

/// Times of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathTimes {
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
    /// Birth, from version 2 on.
    pub otime: Option<Timespec>,
}

/// A range of a file that is the same as one that the receiver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloneRange<'a> {
    /// File.
    pub path: &'a [u8],
    /// Where in it.
    pub offset: FileOffset,
    /// Bytes.
    pub length: u64,
    /// Subvolume of the source.
    pub from: SourceStamp,
    /// File in it.
    pub from_path: &'a [u8],
    /// Where in that.
    pub from_offset: FileOffset,
}

/// Compressed data as they lie on the sender's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedWrite<'a> {
    /// File.
    pub path: &'a [u8],
    /// Where in it.
    pub offset: FileOffset,
    /// Bytes of the file.
    pub file_length: u64,
    /// Bytes of the whole extent, decoded.
    pub length: u64,
    /// Where the file's bytes begin in the decoded ones.
    pub skip: u64,
    /// How they are encoded; `None`: they are not.
    pub compression: Option<Encoding>,
    /// The encoded bytes.
    pub data: &'a [u8],
}

/// How data are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Encoding {
    /// Algorithm.
    pub algorithm: Algorithm,
    /// Sector size to which LZO's segments are aligned; 0 for other algorithms.
    pub sector_size: usize,
}

impl Encoding {
    /// Encodings with their stored number.
    pub const TABLE: [(Self, u32); 7] = [
        (Self::new(Algorithm::Zlib, 0), 1),
        (Self::new(Algorithm::Zstd, 0), 2),
        (Self::new(Algorithm::Lzo, 4 << 10), 3),
        (Self::new(Algorithm::Lzo, 8 << 10), 4),
        (Self::new(Algorithm::Lzo, 16 << 10), 5),
        (Self::new(Algorithm::Lzo, 32 << 10), 6),
        (Self::new(Algorithm::Lzo, 64 << 10), 7),
    ];

    const fn new(algorithm: Algorithm, sector_size: usize) -> Self {
        Self {
            algorithm,
            sector_size,
        }
    }

    /// The encoding of a volume's extents, if streams can express it.
    #[must_use]
    pub fn of(algorithm: Algorithm, sector_size: usize) -> Option<Self> {
        let wanted = match algorithm {
            Algorithm::Lzo => Self::new(algorithm, sector_size),
            Algorithm::Zlib | Algorithm::Zstd => Self::new(algorithm, 0),
        };
        let known = Self::TABLE.iter().any(|(known, _)| *known == wanted);
        known.then_some(wanted)
    }

    /// Its stored number; 0 when it has none.
    #[must_use]
    pub fn number(self) -> u32 {
        Self::TABLE
            .iter()
            .find(|(known, _)| *known == self)
            .map_or(0, |(_, number)| *number)
    }

    /// The encoding stored as `number`, if it is known.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::TABLE
            .iter()
            .find(|(_, stored)| *stored == number)
            .map(|(known, _)| *known)
    }
}

/// One command. Paths are relative to the subvolume, without a slash at
/// either end; the subvolume itself is the empty path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are named after the attributes")]
pub enum Command<'a> {
    Subvolume {
        path: &'a [u8],
        stamp: SourceStamp,
    },
    Snapshot {
        path: &'a [u8],
        stamp: SourceStamp,
        parent: SourceStamp,
    },
    MakeFile {
        path: &'a [u8],
        inode: Option<InodeNumber>,
    },
    MakeDirectory {
        path: &'a [u8],
        inode: Option<InodeNumber>,
    },
    MakeSpecial {
        path: &'a [u8],
        inode: Option<InodeNumber>,
        kind: Special,
        /// Type and permissions.
        mode: u64,
        /// Device number as stat(2) packs it.
        rdev: u64,
    },
    Symlink {
        path: &'a [u8],
        inode: Option<InodeNumber>,
        target: &'a [u8],
    },
    Rename {
        path: &'a [u8],
        to: &'a [u8],
    },
    /// `path` becomes one more name of `existing`.
    Link {
        path: &'a [u8],
        existing: &'a [u8],
    },
    Unlink {
        path: &'a [u8],
    },
    RemoveDirectory {
        path: &'a [u8],
    },
    SetXattr {
        path: &'a [u8],
        name: &'a [u8],
        value: &'a [u8],
    },
    RemoveXattr {
        path: &'a [u8],
        name: &'a [u8],
    },
    Write {
        path: &'a [u8],
        offset: FileOffset,
        data: &'a [u8],
    },
    Clone(CloneRange<'a>),
    Truncate {
        path: &'a [u8],
        size: u64,
    },
    Chmod {
        path: &'a [u8],
        mode: u64,
    },
    Chown {
        path: &'a [u8],
        uid: u64,
        gid: u64,
    },
    Times {
        path: &'a [u8],
        times: PathTimes,
    },
    End,
    UpdateExtent {
        path: &'a [u8],
        offset: FileOffset,
        length: u64,
    },
    Allocate {
        path: &'a [u8],
        /// As fallocate(2) has it.
        mode: u32,
        offset: FileOffset,
        length: u64,
    },
    FileFlags {
        path: &'a [u8],
        flags: u64,
    },
    EncodedWrite(EncodedWrite<'a>),
    EnableVerity {
        path: &'a [u8],
        algorithm: u8,
        block_size: u32,
        salt: &'a [u8],
        signature: &'a [u8],
    },
}

impl<'a> Command<'a> {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> CommandKind {
        match self {
            Self::Subvolume { .. } => CommandKind::Subvolume,
            Self::Snapshot { .. } => CommandKind::Snapshot,
            Self::MakeFile { .. } => CommandKind::MakeFile,
            Self::MakeDirectory { .. } => CommandKind::MakeDirectory,
            Self::MakeSpecial { kind, .. } => match kind {
                Special::Node => CommandKind::MakeNode,
                Special::Fifo => CommandKind::MakeFifo,
                Special::Socket => CommandKind::MakeSocket,
            },
            Self::Symlink { .. } => CommandKind::Symlink,
            Self::Rename { .. } => CommandKind::Rename,
            Self::Link { .. } => CommandKind::Link,
            Self::Unlink { .. } => CommandKind::Unlink,
            Self::RemoveDirectory { .. } => CommandKind::RemoveDirectory,
            Self::SetXattr { .. } => CommandKind::SetXattr,
            Self::RemoveXattr { .. } => CommandKind::RemoveXattr,
            Self::Write { .. } => CommandKind::Write,
            Self::Clone(_) => CommandKind::Clone,
            Self::Truncate { .. } => CommandKind::Truncate,
            Self::Chmod { .. } => CommandKind::Chmod,
            Self::Chown { .. } => CommandKind::Chown,
            Self::Times { .. } => CommandKind::Times,
            Self::End => CommandKind::End,
            Self::UpdateExtent { .. } => CommandKind::UpdateExtent,
            Self::Allocate { .. } => CommandKind::Allocate,
            Self::FileFlags { .. } => CommandKind::FileFlags,
            Self::EncodedWrite(_) => CommandKind::EncodedWrite,
            Self::EnableVerity { .. } => CommandKind::EnableVerity,
        }
    }

    /// The path that it is about; `None` for the end.
    #[must_use]
    pub const fn path(&self) -> Option<&'a [u8]> {
        match self {
            Self::End => None,
            Self::Clone(clone) => Some(clone.path),
            Self::EncodedWrite(write) => Some(write.path),
            Self::Subvolume { path, .. }
            | Self::Snapshot { path, .. }
            | Self::MakeFile { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::MakeSpecial { path, .. }
            | Self::Symlink { path, .. }
            | Self::Rename { path, .. }
            | Self::Link { path, .. }
            | Self::Unlink { path }
            | Self::RemoveDirectory { path }
            | Self::SetXattr { path, .. }
            | Self::RemoveXattr { path, .. }
            | Self::Write { path, .. }
            | Self::Truncate { path, .. }
            | Self::Chmod { path, .. }
            | Self::Chown { path, .. }
            | Self::Times { path, .. }
            | Self::UpdateExtent { path, .. }
            | Self::Allocate { path, .. }
            | Self::FileFlags { path, .. }
            | Self::EnableVerity { path, .. } => Some(path),
        }
    }
}
