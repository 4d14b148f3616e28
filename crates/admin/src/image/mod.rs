//! Images of a volume's metadata, in the form of btrfs-image(8). With them, a
//! volume can be examined elsewhere, without its data.
//!
//! Owns making images, also of damaged volumes, and restoring them.

mod clusters;
mod make;
mod restore;
mod sanitize;

pub use clusters::read_begin;
pub use make::{ImageOptions, Made, Unreadable, Walk, make};
pub use restore::{OpenDevices, Restored, restore};
pub use sanitize::Names;

use butterfs_format::{Logical, ParseError};
use butterfs_store::StoreError;
use butterfs_volume::VolumeError;
use std::io;
use thiserror::Error;

/// Why an image cannot be made or restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The image cannot be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The input is no image, or is damaged.
    #[error("it is no metadata image, or damaged: at byte {at}: {what}")]
    Damaged {
        /// Offset in the image.
        at: u64,
        /// What is wrong there.
        what: Fault,
    },
    /// The image lacks a node of the chunk tree, or has it damaged.
    #[error(
        "the image has no usable node at logical {0}, which says where the others lie; make the \
         image again, with -w"
    )]
    NoChunks(Logical),
    /// The number of devices is wrong.
    #[error(
        "the image is of a volume of {volume} devices, and {given} are given; give {volume} \
         files or devices, with -m, in the order of the volume's numbers"
    )]
    Devices {
        /// Number of devices of the volume.
        volume: usize,
        /// Number of devices that were given.
        given: usize,
    },
    /// A device is too small.
    #[error("{device} has {has} bytes, and the volume has {needs} of it")]
    TooSmall {
        /// The device.
        device: String,
        /// Its size in bytes.
        has: u64,
        /// The needed size in bytes.
        needs: u64,
    },
    /// Logical space of the volume could not be mapped, read or written.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The volume cannot be opened.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An item of a tree cannot be parsed.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] butterfs_device::DeviceError),
}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// The image ends early.
    #[error("it ends here")]
    Cut,
    /// The magic number of a cluster is wrong.
    #[error("the magic number is wrong")]
    Magic,
    /// A cluster names another offset.
    #[error("the cluster says that it is elsewhere")]
    Place,
    /// A cluster has no items, or more than it has room for.
    #[error("it has no items, or too many")]
    Items,
    /// An unknown compression.
    #[error("an unknown compression")]
    Compression,
    /// An item of an impossible size.
    #[error("an item of an impossible size")]
    Size,
    /// An item cannot be decompressed.
    #[error("what is compressed is damaged")]
    Compressed,
    /// The first item is no superblock.
    #[error("the first item is no superblock")]
    NoSuperblock,
    /// The nodes in system chunks are more than any volume has.
    #[error("too much of the chunk tree")]
    Chunks,
}
