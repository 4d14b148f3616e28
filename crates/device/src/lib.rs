//! Block devices: where a volume's bytes lie.
//!
//! Owns the trait that everything above writes through, files and real block
//! devices behind it, and devices in memory. Knows nothing of Btrfs.

mod error;
mod file;
mod memory;

pub use error::{DeviceError, Operation};
pub use file::FileDevice;
pub use memory::MemoryDevice;

use butterfs_format::DeviceOffset;
use std::io::IoSlice;

/// Whether a device is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// It is only read.
    ReadOnly,
    /// It is read and written.
    ReadWrite,
}

/// A device of fixed size, shared by threads.
///
/// A write is durable when a later [`BlockDevice::flush`] has returned.
pub trait BlockDevice: Send + Sync + std::fmt::Debug {
    /// Bytes.
    fn size(&self) -> u64;

    /// What a user calls it.
    fn identity(&self) -> String;

    /// How it is open.
    fn access(&self) -> Access;

    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// All of it or an error.
    fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// After an error any part may have been written.
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes `parts` one after the other from `offset`.
    ///
    /// # Errors
    /// As [`BlockDevice::write_at`].
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// Makes all earlier writes durable.
    ///
    /// # Errors
    /// Afterwards nothing is known of the earlier writes.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Says that a range is not needed any more; it may read as anything.
    ///
    /// # Errors
    /// Advisory: callers may go on.
    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<(), DeviceError>;
}
