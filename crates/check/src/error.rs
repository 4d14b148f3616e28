//! Why a volume could not be checked at all.

use butterfs_device::DeviceError;
use thiserror::Error;

/// Why a volume could not be checked at all. What is wrong inside of a volume
/// is in the report instead.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// A device has no good superblock.
    #[error("{device} has no valid Btrfs superblock: {reason}")]
    NoSuperblock {
        /// The device.
        device: String,
        /// What is wrong with the copies.
        reason: String,
    },
    /// Devices of different volumes, or too few.
    #[error("{0}")]
    Devices(String),
    /// A feature that the check does not know.
    #[error("the volume uses {0}, which this version cannot check")]
    Unsupported(String),
    /// Not even the first nodes can be read.
    #[error("the volume cannot be read: {0}")]
    Unreadable(String),
    /// A bound was met.
    #[error("the check needs more than {limit} bytes of memory; give it more (--memory)")]
    Memory {
        /// The bound.
        limit: u64,
    },
    /// Threads.
    #[error("cannot start threads: {0}")]
    Threads(String),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
