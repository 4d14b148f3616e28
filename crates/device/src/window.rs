//! A part of another device, as a device of its own.

use crate::block_device::{check_range, check_writable, parts_length};
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation, WriteRequest};
use butterfs_format::DeviceOffset;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

/// A partition, or what lies behind an offset. Nothing outside of the range is
/// read or written through it.
#[derive(Clone, Debug)]
pub struct WindowDevice {
    inner: Arc<dyn BlockDevice>,
    range: DeviceRange,
}

impl WindowDevice {
    /// The bytes of `range` of `inner`.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] when they are not on the device.
    pub fn new(inner: Arc<dyn BlockDevice>, range: DeviceRange) -> Result<Self, DeviceError> {
        check_range(&inner, Operation::Open, range)?;
        Ok(Self { inner, range })
    }

    /// Where `range` of this device lies on the other; it fits, as was checked.
    fn outside(&self, offset: DeviceOffset) -> DeviceOffset {
        self.range.start.saturating_add(offset.get())
    }
}

impl WindowDevice {
    /// Requests as they are on the other device.
    fn all_outside<'a>(
        &self,
        requests: &[WriteRequest<'a>],
    ) -> Result<Vec<WriteRequest<'a>>, DeviceError> {
        let moved = |request: &WriteRequest<'a>| {
            check_writable(self, Operation::Write, request.range())?;
            Ok(WriteRequest {
                offset: self.outside(request.offset),
                ..*request
            })
        };
        requests.iter().map(moved).collect()
    }
}

impl BlockDevice for WindowDevice {
    fn size(&self) -> u64 {
        self.range.length
    }

    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        self.inner
            .still_has(self.range.start.get().saturating_add(size))
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, buf.len());
        check_range(self, Operation::Read, range)?;
        self.inner.read_at(self.outside(offset), buf)
    }

    fn read_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &mut [IoSliceMut<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        check_range(self, Operation::Read, range)?;
        self.inner.read_vectored_at(self.outside(offset), parts)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        self.inner.write_at(self.outside(offset), data)
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        check_writable(self, Operation::Write, range)?;
        self.inner.write_vectored_at(self.outside(offset), parts)
    }

    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.inner.write_all_at(&self.all_outside(requests)?)
    }

    fn write_behind_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        self.inner.write_behind_at(&self.all_outside(requests)?)
    }

    fn finish_at(&self, ranges: &[DeviceRange]) -> Result<(), DeviceError> {
        let outside =
            |range: &DeviceRange| DeviceRange::new(self.outside(range.start), range.length);
        let ranges: Vec<DeviceRange> = ranges.iter().map(outside).collect();
        self.inner.finish_at(&ranges)
    }

    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        self.inner.write_durably_at(self.outside(offset), data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        check_writable(self, Operation::Discard, range)?;
        let outside = DeviceRange::new(self.outside(range.start), range.length);
        self.inner.discard(outside)
    }

    fn identity(&self) -> String {
        format!(
            "{} from byte {} on",
            self.inner.identity(),
            self.range.start
        )
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn nothing_outside_is_touched() {
        let whole = Arc::new(MemoryDevice::new(10_000));
        whole.write_at(DeviceOffset(0), &[1; 10_000]).unwrap();
        let range = DeviceRange::new(DeviceOffset(3000), 4000);
        let part = WindowDevice::new(Arc::clone(&whole) as _, range).unwrap();
        assert_eq!(part.size(), 4000);
        part.write_at(DeviceOffset(0), &[2; 4000]).unwrap();
        let parts = [IoSlice::new(&[3; 10]), IoSlice::new(&[4; 10])];
        part.write_vectored_at(DeviceOffset(3980), &parts).unwrap();
        let request = |at, parts| WriteRequest {
            offset: DeviceOffset(at),
            parts,
        };
        let (five, six) = ([IoSlice::new(&[5; 10])], [IoSlice::new(&[6; 10])]);
        part.write_all_at(&[request(100, &five), request(50, &six)])
            .unwrap();
        assert!(
            part.write_all_at(&[request(0, &five), request(3999, &six)])
                .is_err()
        );
        part.write_durably_at(DeviceOffset(200), &[7; 10]).unwrap();
        assert!(part.write_durably_at(DeviceOffset(3999), &[5; 2]).is_err());
        assert!(part.write_at(DeviceOffset(3999), &[5; 2]).is_err());
        assert!(part.read_at(DeviceOffset(4000), &mut [0]).is_err());
        assert!(
            part.discard(DeviceRange::new(DeviceOffset(3999), 2))
                .is_err()
        );
        let mut found = vec![0; 10_000];
        whole.read_at(DeviceOffset(0), &mut found).unwrap();
        let mut expected = vec![1; 10_000];
        expected[3000..7000].fill(2);
        expected[6980..6990].fill(3);
        expected[6990..7000].fill(4);
        expected[3100..3110].fill(5);
        expected[3050..3060].fill(6);
        expected[3200..3210].fill(7);
        assert_eq!(found, expected);
        let beyond = DeviceRange::new(DeviceOffset(9000), 2000);
        assert!(WindowDevice::new(whole, beyond).is_err());
    }
}
