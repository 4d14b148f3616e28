//! What can be wrong with a file system.

use crate::{Block, InodeNumber};
use std::io;
use thiserror::Error;

/// Why something could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Error {
    /// The device refused.
    #[error("reading {length} bytes at {offset}: {source}")]
    Io {
        /// Bytes from the device's beginning.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Why.
        source: io::Error,
    },
    /// There is no file system of this kind.
    #[error("this is no ext2, ext3 or ext4 file system")]
    NotExt4,
    /// It has something that this crate cannot read.
    #[error("the file system has {0}")]
    Unsupported(#[from] Unsupported),
    /// What lies on the disk contradicts itself.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
}

/// What this crate cannot read.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unsupported {
    /// Bits of the incompatible features that are not known.
    #[error("features that are not known (incompatible {0:#x})")]
    Features(u32),
    /// The device is an external journal.
    #[error("no files: the device is an external journal")]
    JournalDevice,
    /// Files of this kind of compression were never in the kernel.
    #[error("the feature for compression, which no kernel has")]
    Compression,
    /// A revision that is not known.
    #[error("revision {0}, which is not known")]
    Revision(u32),
}

/// What contradicts itself, and where.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{place}: {fault}")]
pub struct Corrupt {
    /// Where.
    pub place: Place,
    /// What.
    pub fault: Fault,
}

/// A place on the disk.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The superblock.
    #[error("superblock")]
    Superblock,
    /// A group's descriptor.
    #[error("descriptor of group {0}")]
    Group(u32),
    /// A group's bitmap of blocks.
    #[error("block bitmap of group {0}")]
    BlockBitmap(u32),
    /// A group's bitmap of inodes.
    #[error("inode bitmap of group {0}")]
    InodeBitmap(u32),
    /// An inode.
    #[error("inode {0}")]
    Inode(InodeNumber),
    /// A block of an inode's extent tree or block map.
    #[error("inode {0}, mapping in block {1}")]
    Mapping(InodeNumber, Block),
    /// A block of a directory, counted from its beginning.
    #[error("directory {0}, its block {1}")]
    Directory(InodeNumber, u64),
    /// The attributes of an inode.
    #[error("attributes of inode {0}")]
    Attributes(InodeNumber),
}

/// How something contradicts itself.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A checksum differs from what it covers.
    #[error("the checksum is wrong")]
    Checksum,
    /// A number is outside of what is possible.
    #[error("{0} is {1}, which is not possible")]
    Number(&'static str, u64),
    /// A magic number is missing.
    #[error("the magic number is missing")]
    Magic,
    /// Something lies outside of the device.
    #[error("block {0} is outside of the file system")]
    Outside(Block),
    /// Parts are not in order, or overlap.
    #[error("parts are not in order at block {0}")]
    Order(u64),
    /// Something is deeper or longer than is possible.
    #[error("{0} goes on without end")]
    Endless(&'static str),
}

impl Place {
    /// A fault at this place.
    pub(crate) const fn has(self, fault: Fault) -> Corrupt {
        Corrupt { place: self, fault }
    }

    /// A number at this place that is not possible.
    pub(crate) fn number(self, name: &'static str, value: impl Into<u64>) -> Error {
        self.has(Fault::Number(name, value.into())).into()
    }
}
