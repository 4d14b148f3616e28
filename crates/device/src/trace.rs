//! A device that reports each operation to `tracing`.

use crate::block_device::parts_length;
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation, WriteRequest};
use butterfs_format::DeviceOffset;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::Instant;

/// Hands everything on to another device, with an event at level TRACE (WARN
/// for failures) after each operation.
#[derive(Clone, Debug)]
pub struct TraceDevice {
    inner: Arc<dyn BlockDevice>,
}

impl TraceDevice {
    /// Wraps `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Self { inner }
    }

    fn traced(
        &self,
        operation: Operation,
        range: Option<DeviceRange>,
        run: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let began = Instant::now();
        let outcome = run();
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let device = || self.inner.identity();
        let offset = range.map(|range| range.start.get());
        let length = range.map(|range| range.length);
        match &outcome {
            Ok(()) => {
                tracing::trace!(device = device(), %operation, offset, length, took_us);
            }
            Err(error) => {
                tracing::warn!(device = device(), %operation, offset, length, took_us, %error);
            }
        }
        outcome
    }
}

impl BlockDevice for TraceDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn look_at_size(&self) -> u64 {
        self.inner.look_at_size()
    }

    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        self.inner.still_has(size)
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, buf.len());
        self.traced(Operation::Read, Some(range), || {
            self.inner.read_at(offset, buf)
        })
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        self.traced(Operation::Write, Some(range), || {
            self.inner.write_at(offset, data)
        })
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        self.traced(Operation::Write, Some(range), || {
            self.inner.write_vectored_at(offset, parts)
        })
    }

    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        match requests {
            [one] => self.write_vectored_at(one.offset, one.parts),
            several => self.traced(Operation::Write, None, || self.inner.write_all_at(several)),
        }
    }

    fn write_behind_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.traced(Operation::Write, None, || {
            self.inner.write_behind_at(requests)
        })
    }

    fn finish_at(&self, ranges: &[DeviceRange]) -> Result<(), DeviceError> {
        self.traced(Operation::Write, None, || self.inner.finish_at(ranges))
    }

    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        self.traced(Operation::Write, Some(range), || {
            self.inner.write_durably_at(offset, data)
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.traced(Operation::Flush, None, || self.inner.flush())
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        self.traced(Operation::Discard, Some(range), || {
            self.inner.discard(range)
        })
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn caching(&self) -> Option<Caching> {
        self.inner.caching()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn let_go(&self) {
        self.inner.let_go();
    }
}
