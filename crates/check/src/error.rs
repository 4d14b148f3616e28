//! Why a volume could not be checked at all.

use butterfs_device::DeviceError;
use butterfs_format::DeviceId;
use butterfs_format::features::Incompat;
use std::sync::Arc;
use thiserror::Error;

/// Why not even the first nodes could be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// The chunk tree is damaged, so the place of the nodes is unknown.
    #[error(
        "its chunk tree is damaged; `butterfs rescue chunk-recover` makes it anew from what is left"
    )]
    ChunkTree,
    /// A thread outlived the check, which is a fault of this program.
    #[error("a thread is left over")]
    ThreadLeft,
}

/// Why the given devices do not form a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DevicesFault {
    /// No device was given.
    #[error("no device was given")]
    None,
    /// A device belongs to another volume than the others.
    #[error("{0} belongs to another volume; leave it out")]
    OtherVolume(String),
    /// Two are the same device of the volume.
    #[error(
        "{} and {} are both device {id} of the volume, so one is a copy of the other; leave one of \
         them out",
        names[0],
        names[1]
    )]
    Twice {
        /// Device.
        id: DeviceId,
        /// Where the two are.
        names: [String; 2],
    },
}

/// Why a volume could not be checked at all. Faults inside a volume are in the
/// report instead.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A device has no good superblock.
    #[error("{device} has no valid Btrfs superblock: {reason}; `butterfs info` says what it holds")]
    NoSuperblock {
        /// The device.
        device: String,
        /// What is wrong with the copies.
        reason: String,
    },
    /// The given devices do not form a volume.
    #[error(transparent)]
    Devices(#[from] DevicesFault),
    /// The volume uses a feature that the check does not know.
    #[error("the volume uses {}, which ButterFS does not know; use `btrfs check`", .0.names().join(", "))]
    Unsupported(Incompat),
    /// Not even the first nodes can be read.
    #[error("the volume cannot be read: {0}")]
    Unreadable(Unreadable),
    /// The check needs more memory than it may take.
    #[error("the check needs more than {limit} bytes of memory; give it more with --memory")]
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// Threads could not be started.
    #[error("cannot start threads: {0}")]
    Threads(Arc<rayon::ThreadPoolBuildError>),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
