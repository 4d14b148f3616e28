//! Images of a volume's metadata, in the form of btrfs-image(8): to look at a
//! volume elsewhere, without its data.
//!
//! Owns making them, also of volumes that are damaged, and restoring them.

mod clusters;
mod make;
mod restore;
mod sanitize;

pub use make::{ImageOptions, Made, Unreadable, Walk, make};
pub use restore::{OpenDevices, Restored, restore};
pub use sanitize::Names;

use butterfs_format::{Logical, ParseError};
use butterfs_store::StoreError;
use butterfs_volume::VolumeError;
use std::io;
use thiserror::Error;

/// Why an image is not made or restored.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ImageError {
    /// Reading or writing the image.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// What was read is no image, or damaged.
    #[error("it is no metadata image, or damaged: at byte {at}: {what}")]
    Damaged {
        /// Where in the image.
        at: u64,
        /// What is wrong there.
        what: Fault,
    },
    /// A node of the chunk tree that the image does not have.
    #[error(
        "the image has no usable node at logical {0}, which says where the others lie; make the \
         image again, with -w"
    )]
    NoChunks(Logical),
    /// Another number of devices.
    #[error(
        "the image is of a volume of {volume} devices, and {given} are given; give {volume} \
         files or devices, with -m, in the order of the volume's numbers"
    )]
    Devices {
        /// How many the volume has.
        volume: usize,
        /// How many were given.
        given: usize,
    },
    /// A device that is too small.
    #[error("{device} has {has} bytes, and the volume has {needs} of it")]
    TooSmall {
        /// Which.
        device: String,
        /// Its bytes.
        has: u64,
        /// What is needed.
        needs: u64,
    },
    /// Of the volume's space.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Of the volume.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// An item of a tree.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// Of a device.
    #[error(transparent)]
    Device(#[from] butterfs_device::DeviceError),
}

/// What is wrong with an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// It is cut.
    #[error("it ends here")]
    Cut,
    /// No magic number.
    #[error("the magic number is wrong")]
    Magic,
    /// A cluster that says that it is elsewhere.
    #[error("the cluster says that it is elsewhere")]
    Place,
    /// More items than a cluster has room for.
    #[error("too many items")]
    Items,
    /// An unknown compression.
    #[error("an unknown compression")]
    Compression,
    /// An item of an impossible size.
    #[error("an item of an impossible size")]
    Size,
    /// What cannot be decompressed.
    #[error("what is compressed is damaged")]
    Compressed,
    /// The first item is no superblock.
    #[error("the first item is no superblock")]
    NoSuperblock,
    /// More system chunks than anybody has.
    #[error("too much of the chunk tree")]
    Chunks,
}
