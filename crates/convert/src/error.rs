//! Why there is no conversion, and no way back.

use crate::source::CalledFree;
use butterfs_device::DeviceError;
use butterfs_ext4::InodeNumber;
use butterfs_format::ParseError;
use butterfs_tree::TreeError;
use butterfs_volume::VolumeError;
use std::io;
use thiserror::Error;

/// Why a conversion or the way back did not happen. Unless it says otherwise,
/// the device holds what it held before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The old file system cannot be read.
    #[error("{0}; let `e2fsck -f` mend it first")]
    Ext4(butterfs_ext4::Error),
    /// There is no such file system.
    #[error("this is no ext2, ext3 or ext4 file system")]
    NotExt4,
    /// It has something that no conversion takes over.
    #[error("{0}")]
    Refused(&'static str),
    /// Parts of the old file system contradict each other.
    #[error("inode {inode}: {what}; let `e2fsck -f` mend it first")]
    Contradiction {
        /// Where.
        inode: InodeNumber,
        /// What.
        what: &'static str,
    },
    /// Blocks that two files have, or that are called free.
    #[error("the block at byte {at} {what}; let `e2fsck -f` mend it first")]
    Blocks {
        /// Where.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Btrfs cannot hold a file as it is.
    #[error("inode {inode} (`find -inum {inode}` finds it): {what}")]
    TooLarge {
        /// Which.
        inode: InodeNumber,
        /// What, and what to do.
        what: String,
    },
    /// Too little free space for the new metadata.
    #[error(
        "the new metadata need {needed} bytes of free space in pieces of at least 128 KiB, and \
         {missing} of them are missing; delete files or enlarge the file system, and try again"
    )]
    NoSpace {
        /// Bytes that are needed.
        needed: u64,
        /// Bytes of these that are missing.
        missing: u64,
    },
    /// A wrong option.
    #[error("{0}")]
    Option(String),
    /// The device has a Btrfs already.
    #[error("this is a Btrfs volume already")]
    AlreadyBtrfs,
    /// Between two superblocks, somebody used the old file system.
    #[error(
        "the device holds a Btrfs volume, and an ext4 file system that was used after its \
         conversion; the one that is not wanted must be wiped with wipefs(8)"
    )]
    UsedMeanwhile,
    /// The way back is not there.
    #[error("there is no way back: {0}")]
    NoWayBack(#[from] InTheWay),
    /// A converted volume cannot be read.
    #[error("the volume cannot be read: {0}")]
    Tree(#[from] TreeError),
    /// The same.
    #[error("the volume cannot be read: {0}")]
    Volume(#[from] VolumeError),
    /// The same.
    #[error("the volume cannot be read: {0}")]
    Parse(#[from] ParseError),
    /// The temporary file for sorting.
    #[error("the temporary file for sorting (TMPDIR says where): {0}")]
    Temporary(io::Error),
    /// Somebody stopped it.
    #[error("stopped; nothing was changed")]
    Stopped,
    /// A fault of this program, seen before the deciding write.
    #[error("a fault of this program ({0}); no more than free space was written")]
    Fault(&'static str),
}

/// What is in the way of the way back.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum InTheWay {
    /// Not one device.
    #[error("the volume has several devices; remove the others with `device remove`")]
    Devices,
    /// No subvolume with the image.
    #[error("the volume has no subvolume ext2_saved (it was deleted, or was never converted)")]
    NoSubvolume,
    /// No image in it.
    #[error("the subvolume ext2_saved has no file `image`")]
    NoImage,
    /// Data of the image are elsewhere.
    #[error(
        "byte {at} of the image is no longer at its place (a balance or a defragmentation moved \
         it)"
    )]
    Moved {
        /// Offset in the image.
        at: u64,
    },
    /// The image lacks data.
    #[error("byte {at} of the image is missing (somebody changed the image)")]
    Missing {
        /// Offset in the image.
        at: u64,
    },
    /// Data of the image differ from their checksum.
    #[error("byte {at} of the image differs from its checksum (somebody wrote to its place)")]
    Overwritten {
        /// Offset in the image.
        at: u64,
    },
    /// The image is no file system.
    #[error("what the image holds is not readable as ext4: {0}")]
    NotExt4(String),
    /// The image is longer than the device.
    #[error("the device is shorter than the image")]
    Shorter,
    /// No free place for the note.
    #[error("there are no 64 KiB that both file systems call free; delete a file")]
    NoRoom,
}

impl From<butterfs_ext4::Error> for ConvertError {
    fn from(error: butterfs_ext4::Error) -> Self {
        match error {
            butterfs_ext4::Error::NotExt4 => Self::NotExt4,
            butterfs_ext4::Error::Unsupported(_) => Self::Refused(
                "the file system has features that are not known here; a newer version may know \
                 them",
            ),
            butterfs_ext4::Error::Io { ref source, .. }
                if let Some(called) = source
                    .get_ref()
                    .and_then(|own| own.downcast_ref::<CalledFree>()) =>
            {
                Self::from(*called)
            }
            other => Self::Ext4(other),
        }
    }
}

impl From<CalledFree> for ConvertError {
    fn from(CalledFree { at }: CalledFree) -> Self {
        Self::Blocks {
            at,
            what: "belongs to the file system itself, but is called free",
        }
    }
}
