//! A device that refuses all changes.

use crate::block_device::check_writable;
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use std::sync::Arc;

/// Reads of another device; writes and discards are errors.
#[derive(Clone, Debug)]
pub struct ReadOnlyDevice {
    inner: Arc<dyn BlockDevice>,
}

impl ReadOnlyDevice {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner }
    }
}

impl BlockDevice for ReadOnlyDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn look_at_size(&self) -> u64 {
        self.inner.look_at_size()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        check_writable(
            self,
            Operation::Write,
            DeviceRange::of_buffer(offset, data.len()),
        )
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn caching(&self) -> Option<Caching> {
        self.inner.caching()
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn let_go(&self) {
        self.inner.let_go();
    }
}
