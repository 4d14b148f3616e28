//! A device in memory, sparse, with cheap copies.

use crate::{Access, BlockDevice, DeviceError, Operation};
use butterfs_format::DeviceOffset;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of a page.
const PAGE: u64 = 64 << 10;

/// A device in memory. Pages that were never written read as zeros and take
/// no space; [`MemoryDevice::snapshot`] shares pages until they change.
#[derive(Debug)]
pub struct MemoryDevice {
    size: u64,
    pages: RwLock<BTreeMap<u64, Arc<[u8]>>>,
}

impl MemoryDevice {
    /// A device of zeros.
    #[must_use]
    pub const fn new(size: u64) -> Self {
        Self {
            size,
            pages: RwLock::new(BTreeMap::new()),
        }
    }

    /// A device with the same content, independent from now on.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            size: self.size,
            pages: RwLock::new(self.pages.read().clone()),
        }
    }

    fn check(
        &self,
        operation: Operation,
        offset: DeviceOffset,
        length: usize,
    ) -> Result<(), DeviceError> {
        let inside = offset
            .checked_add(length as u64)
            .is_some_and(|end| end.get() <= self.size);
        if inside {
            return Ok(());
        }
        Err(DeviceError::OutOfRange {
            device: self.identity(),
            operation,
            offset,
            length: length as u64,
            size: self.size,
        })
    }
}

/// Parts of a range by page: page, offset in it, bytes.
fn parts(offset: u64, length: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = offset + length as u64;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let within = at % PAGE;
        let take = (PAGE - within).min(end - at);
        let part = (at / PAGE, within as usize, take as usize);
        at += take;
        Some(part)
    })
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn identity(&self) -> String {
        "memory".to_owned()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.check(Operation::Read, offset, buffer.len())?;
        let pages = self.pages.read();
        let mut done = 0;
        for (page, within, take) in parts(offset.get(), buffer.len()) {
            let target = &mut buffer[done..done + take];
            match pages.get(&page) {
                Some(bytes) => target.copy_from_slice(&bytes[within..within + take]),
                None => target.fill(0),
            }
            done += take;
        }
        Ok(())
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.check(Operation::Write, offset, data.len())?;
        let mut pages = self.pages.write();
        let mut done = 0;
        for (page, within, take) in parts(offset.get(), data.len()) {
            let bytes = pages
                .entry(page)
                .or_insert_with(|| vec![0; PAGE as usize].into());
            if Arc::get_mut(bytes).is_none() {
                *bytes = bytes.to_vec().into();
            }
            let unique = Arc::get_mut(bytes).expect("just copied");
            unique[within..within + take].copy_from_slice(&data[done..done + take]);
            done += take;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<(), DeviceError> {
        self.check(
            Operation::Discard,
            offset,
            usize::try_from(length).unwrap_or(usize::MAX),
        )?;
        let first = offset.get().div_ceil(PAGE);
        let last = (offset.get() + length) / PAGE;
        if first < last {
            let mut pages = self.pages.write();
            let whole: Vec<u64> = pages.range(first..last).map(|(page, _)| *page).collect();
            for page in whole {
                pages.remove(&page);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_are_independent_and_sparse() {
        let device = MemoryDevice::new(1 << 40);
        device.write_at(DeviceOffset(PAGE - 3), b"abcdef").unwrap();
        let copy = device.snapshot();
        device.write_at(DeviceOffset(PAGE), b"X").unwrap();
        let mut buffer = [0; 8];
        copy.read_at(DeviceOffset(PAGE - 4), &mut buffer).unwrap();
        assert_eq!(&buffer, b"\0abcdef\0");
        device.read_at(DeviceOffset(PAGE - 4), &mut buffer).unwrap();
        assert_eq!(&buffer, b"\0abcXef\0");
        assert!(device.write_at(DeviceOffset((1 << 40) - 1), b"ab").is_err());
    }
}
