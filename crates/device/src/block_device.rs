//! The trait that every device implements.

use crate::{Caching, DeviceError, DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Deref;
use std::sync::Arc;

/// What a device may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reading.
    ReadOnly,
    /// Reading, writing and discarding.
    ReadWrite,
}

/// Bytes to write at one place: `parts` one after the other from `offset` on.
#[derive(Clone, Copy, Debug)]
pub struct WriteRequest<'a> {
    /// Where the first byte goes.
    pub offset: DeviceOffset,
    /// The bytes.
    pub parts: &'a [IoSlice<'a>],
}

impl WriteRequest<'_> {
    /// The bytes of the device that it writes.
    #[must_use]
    pub fn range(&self) -> DeviceRange {
        DeviceRange::of_buffer(self.offset, parts_length(self.parts))
    }
}

/// A fixed number of bytes that can be read, written and made durable.
///
/// Every method may be called from any thread at any time. When overlapping
/// operations run at the same time, the outcome is unspecified, but nothing
/// outside of their ranges changes. A write is durable when a
/// [`flush`](Self::flush) that began after the write returned has succeeded.
pub trait BlockDevice: Send + Sync + Debug {
    /// Size in bytes, as it was last looked up.
    fn size(&self) -> u64;

    /// Looks up the size in bytes again: a file or block device may have become
    /// larger since it was opened. Afterwards [`size`](Self::size) gives no
    /// less than this.
    fn look_at_size(&self) -> u64 {
        self.size()
    }

    /// Checks that the first `size` bytes are still there. Others may cut a
    /// file short while it is in use. The next write would then make it as long
    /// as before, and zeros would fill the gap.
    ///
    /// # Errors
    /// [`DeviceError::CutShort`].
    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        check_length(self, self.size(), size)
    }

    /// Fills `buf` from `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`], [`DeviceError::Io`]; `buf` is then
    /// unspecified.
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError>;

    /// Fills `parts` one after the other from `offset` on.
    ///
    /// # Errors
    /// As [`read_at`](Self::read_at).
    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        let mut at = offset;
        for part in parts {
            self.read_at(at, part)?;
            at = DeviceRange::of_buffer(at, part.len()).end();
        }
        Ok(())
    }

    /// Writes all of `data` from `offset` on.
    ///
    /// # Errors
    /// [`DeviceError::ReadOnly`], [`DeviceError::OutOfRange`],
    /// [`DeviceError::CutShort`], [`DeviceError::Io`]; after the latter any part
    /// may have been written.
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError>;

    /// Writes `parts` one after the other from `offset` on.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at = DeviceRange::of_buffer(at, part.len()).end();
        }
        Ok(())
    }

    /// Writes all requests. They must not overlap, and may reach the device at
    /// the same time and in any order.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at), the first one; any part of any request
    /// may have been written.
    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        let mut requests = requests.iter();
        requests.try_for_each(|request| self.write_vectored_at(request.offset, request.parts))
    }

    /// As [`write_all_at`](Self::write_all_at), but it need not wait until the
    /// device has the bytes. Reads and writes of them wait for that, and
    /// [`finish_at`](Self::finish_at) does.
    ///
    /// # Errors
    /// As [`write_all_at`](Self::write_all_at). `finish_at` tells of a failure
    /// that comes later; while it was not asked, each [`flush`](Self::flush)
    /// fails.
    fn write_behind_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.write_all_at(requests)
    }

    /// Waits for all writes of these ranges for which nobody waited.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at), that of the first write that failed. No
    /// other caller is told.
    fn finish_at(&self, ranges: &[DeviceRange]) -> Result<(), DeviceError> {
        let _ = ranges;
        Ok(())
    }

    /// Writes all of `data` from `offset` on, and makes them durable. This says
    /// nothing about other writes.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at) and [`flush`](Self::flush).
    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.write_at(offset, data)?;
        self.flush()
    }

    /// Makes every write that returned before this call durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`]: some of the writes may be lost, and a later flush
    /// that succeeds says nothing about them.
    fn flush(&self) -> Result<(), DeviceError>;

    /// Says that the content of `range` is not needed any more. Reads of it
    /// give the old content or zeros until it is written again. This is advice:
    /// a device that cannot discard does nothing.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        check_writable(self, Operation::Discard, range)
    }

    /// Name for messages: the path, where there is one.
    fn identity(&self) -> String;

    /// How requests reach what the system has; `None` for a device that is no
    /// file and no block device.
    fn caching(&self) -> Option<Caching> {
        None
    }

    /// What the device may be used for.
    fn access(&self) -> Access;

    /// Lets others use the device: waits for writes under way, gives up locks,
    /// and refuses every write and discard from then on.
    fn let_go(&self) {}
}

impl<D: BlockDevice + ?Sized> BlockDevice for Arc<D> {
    fn size(&self) -> u64 {
        (**self).size()
    }
    fn look_at_size(&self) -> u64 {
        (**self).look_at_size()
    }
    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        (**self).still_has(size)
    }
    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        (**self).read_at(offset, buf)
    }
    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        (**self).read_vectored_at(offset, parts)
    }
    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        (**self).write_at(offset, data)
    }
    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        (**self).write_vectored_at(offset, parts)
    }
    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        (**self).write_all_at(requests)
    }
    fn write_behind_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        (**self).write_behind_at(requests)
    }
    fn finish_at(&self, ranges: &[DeviceRange]) -> Result<(), DeviceError> {
        (**self).finish_at(ranges)
    }
    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        (**self).write_durably_at(offset, data)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        (**self).flush()
    }
    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        (**self).discard(range)
    }
    fn identity(&self) -> String {
        (**self).identity()
    }
    fn caching(&self) -> Option<Caching> {
        (**self).caching()
    }
    fn access(&self) -> Access {
        (**self).access()
    }
    fn let_go(&self) {
        (**self).let_go();
    }
}

/// Refuses a device that has become shorter than `size`.
pub(crate) fn check_length<D: BlockDevice + ?Sized>(
    device: &D,
    now: u64,
    size: u64,
) -> Result<(), DeviceError> {
    if now >= size {
        return Ok(());
    }
    Err(DeviceError::CutShort {
        device: device.identity(),
        now,
        size,
    })
}

/// Refuses a range outside of the device.
pub(crate) fn check_range<D: BlockDevice + ?Sized>(
    device: &D,
    operation: Operation,
    range: DeviceRange,
) -> Result<(), DeviceError> {
    if range.fits(device.size()) {
        return Ok(());
    }
    Err(DeviceError::OutOfRange {
        device: device.identity(),
        operation,
        range,
        size: device.size(),
    })
}

/// Refuses a change of a read-only device, or outside of the device.
pub(crate) fn check_writable<D: BlockDevice + ?Sized>(
    device: &D,
    operation: Operation,
    range: DeviceRange,
) -> Result<(), DeviceError> {
    if device.access() == Access::ReadOnly {
        return Err(DeviceError::ReadOnly {
            device: device.identity(),
            operation,
        });
    }
    check_range(device, operation, range)
}

/// Bytes of all parts together.
pub(crate) fn parts_length<P: Deref<Target = [u8]>>(parts: &[P]) -> usize {
    parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.len()))
}
