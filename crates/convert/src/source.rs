//! A device as `ext4` reads it.

use butterfs_device::BlockDevice;
use butterfs_ext4::Source;
use butterfs_format::DeviceOffset;
use std::io;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use thiserror::Error;

/// A device that an ext4 file system lies on.
#[derive(Debug)]
pub(crate) struct DeviceSource {
    device: Arc<dyn BlockDevice>,
    /// What may be written while the file system is still read, ascending.
    free: OnceLock<Vec<Range<u64>>>,
}

/// The file system reads what its bitmaps call free.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("byte {at} is read, but is called free")]
pub(crate) struct CalledFree {
    /// Where.
    pub(crate) at: u64,
}

impl DeviceSource {
    pub(crate) fn new(device: &Arc<dyn BlockDevice>) -> Self {
        Self {
            device: Arc::clone(device),
            free: OnceLock::new(),
        }
    }

    /// From now on nothing can be read in `free`, which ascends: the
    /// conversion writes there, and the image does not keep it.
    pub(crate) fn set_free(&self, free: Vec<Range<u64>>) {
        // It is set once; a second time would be the same.
        let _ = self.free.set(free);
    }

    /// Verifies that nothing of a range of bytes is called free.
    ///
    /// # Errors
    /// Where it is.
    pub(crate) fn verify_used(&self, range: &Range<u64>) -> Result<(), CalledFree> {
        let free = self.free.get().map(Vec::as_slice).unwrap_or_default();
        let next = free.partition_point(|run| run.end <= range.start);
        match free.get(next) {
            Some(run) if run.start < range.end && !range.is_empty() => Err(CalledFree {
                at: run.start.max(range.start),
            }),
            _ => Ok(()),
        }
    }
}

impl Source for DeviceSource {
    fn size(&self) -> u64 {
        self.device.size()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let length = u64::try_from(buffer.len()).unwrap_or(u64::MAX);
        self.verify_used(&(offset..offset.saturating_add(length)))
            .map_err(io::Error::other)?;
        let read = self.device.read_at(DeviceOffset(offset), buffer);
        read.map_err(|error| io::Error::other(error.to_string()))
    }
}

/// The old file system on its device.
pub(crate) type Old = butterfs_ext4::FileSystem<DeviceSource>;
