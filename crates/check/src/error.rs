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
    /// Where chunks lie is not known.
    #[error("its chunk tree is damaged")]
    ChunkTree,
    /// A fault of this program.
    #[error("a thread is left over")]
    ThreadLeft,
}

/// Why devices are not those of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DevicesFault {
    /// There is none.
    #[error("no device was given")]
    None,
    /// One is not of the volume of the others.
    #[error("{0} belongs to another volume; leave it out")]
    OtherVolume(String),
    /// One is there twice.
    #[error("device {0} was given twice; leave one of the two out")]
    Twice(DeviceId),
}

/// Why a volume could not be checked at all. What is wrong inside of a volume
/// is in the report instead.
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
    /// Devices of different volumes, or one twice.
    #[error(transparent)]
    Devices(#[from] DevicesFault),
    /// A feature that the check does not know.
    #[error("the volume uses {}, which ButterFS does not know; use `btrfs check`", .0.names().join(", "))]
    Unsupported(Incompat),
    /// Not even the first nodes can be read.
    #[error("the volume cannot be read: {0}")]
    Unreadable(Unreadable),
    /// A bound was met.
    #[error("the check needs more than {limit} bytes of memory; give it more with --memory")]
    Memory {
        /// The bound.
        limit: u64,
    },
    /// Threads.
    #[error("cannot start threads: {0}")]
    Threads(Arc<rayon::ThreadPoolBuildError>),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
