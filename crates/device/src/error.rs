//! What can go wrong with a device.

use butterfs_format::DeviceOffset;
use std::fmt;
use std::io;
use thiserror::Error;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Flushing.
    Flush,
    /// Discarding.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Why a device operation failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system reported an error.
    #[error("cannot {operation} {device} at offset {offset}: {source}")]
    Io {
        /// Device.
        device: String,
        /// What was done.
        operation: Operation,
        /// Where.
        offset: DeviceOffset,
        /// The system's word.
        source: io::Error,
    },
    /// Beyond the end.
    #[error(
        "{device} ends at {size}, but {operation} of {length} bytes at {offset} was asked; it is shorter than its volume"
    )]
    OutOfRange {
        /// Device.
        device: String,
        /// What was done.
        operation: Operation,
        /// Where.
        offset: DeviceOffset,
        /// Bytes asked for.
        length: u64,
        /// Bytes of the device.
        size: u64,
    },
    /// Open for reading alone.
    #[error("{device} is open for reading only")]
    ReadOnly {
        /// Device.
        device: String,
    },
    /// In use.
    #[error("{device} is in use: {holder}; unmount or close it first")]
    Busy {
        /// Device.
        device: String,
        /// By whom.
        holder: String,
    },
}
