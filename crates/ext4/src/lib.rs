//! Reads ext2, ext3 and ext4: inodes, directories, extended attributes, and
//! where the data of files lie.
//!
//! [`FileSystem::open`] reads a superblock and the group descriptors from
//! anything that can be read at an offset ([`Source`]). From there on
//! everything is asked for: an inode by its number, all inodes that are in use,
//! the mappings of a file, the entries of a directory, the attributes of an
//! inode, the clusters that are in use.
//!
//! Owns the format and nothing else: no cache, no path lookup, no writing.
//! Nothing is replayed: [`FileSystem::needs_replay`] says that the journal
//! must be replayed first.
//!
//! Bytes from the disk are hostile. Each parser answers bad bytes with an
//! [`Error`]; nothing panics, loops without end or allocates without bound.
//! Checksums are verified where the file system has them.
//!
//! Source of the facts: the kernel's documentation of ext4
//! (filesystems/ext4), and volumes made by mke2fs and the kernel, looked at
//! with debugfs.

#![cfg_attr(
    not(test),
    deny(
        clippy::as_conversions,
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::panic
    )
)]

mod attributes;
mod bitmap;
mod bytes;
mod checksum;
mod directory;
mod error;
mod features;
mod file_system;
mod group;
mod inode;
mod mapping;
mod superblock;

pub use attributes::{Acl, AclEntry, Attribute};
pub use directory::{DirectoryEntry, EntryKind};
pub use error::{Corrupt, Error, Fault, Place, Unsupported};
pub use features::{Compatible, Incompatible, ReadOnlyCompatible};
pub use file_system::{FileSystem, Source};
pub use inode::{Inode, InodeFlags, InodeNumber, Kind, Time};
pub use mapping::{Mapping, State};
pub use superblock::Superblock;

/// A block of the device: a number, in blocks of the file system.
pub type Block = u64;
