//! A device in memory.

use crate::block_device::{check_range, check_writable};
use crate::pages::{PAGE_SIZE, PageMap, page_start};
use crate::{Access, BlockDevice, DeviceError, DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use parking_lot::RwLock;
use std::convert::Infallible;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Sparse memory of any size: only what was written takes space, the rest
/// reads as zeros. [`snapshot`](Self::snapshot) is cheap: pages are shared
/// until one side writes them. Everything is durable at once.
pub struct MemoryDevice {
    size: u64,
    pages: RwLock<PageMap>,
}

impl MemoryDevice {
    /// `size` bytes of zeros.
    #[must_use]
    pub fn new(size: u64) -> Self {
        Self {
            size,
            pages: RwLock::default(),
        }
    }

    /// An independent device with the content of this moment.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            size: self.size,
            pages: RwLock::new(self.pages.read().clone()),
        }
    }

    /// Bytes of memory that its pages take.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        DeviceRange::of_buffer(
            DeviceOffset(0),
            self.pages.read().len().saturating_mul(PAGE_SIZE),
        )
        .length
    }

    /// The first byte that differs from `other`. The shorter device counts as
    /// continued by zeros. Shared pages are not compared.
    #[must_use]
    pub fn first_difference(&self, other: &Self) -> Option<DeviceOffset> {
        let (ours, theirs) = (self.pages.read().clone(), other.pages.read().clone());
        let zeros = [0_u8; PAGE_SIZE];
        let mut numbers: Vec<u64> = ours.iter().chain(theirs.iter()).map(|(n, _)| n).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter().find_map(|number| {
            let (a, b) = (ours.get(number), theirs.get(number));
            if let (Some(a), Some(b)) = (a, b)
                && std::sync::Arc::ptr_eq(a, b)
            {
                return None;
            }
            let a = a.map_or(&zeros, |page| page);
            let b = b.map_or(&zeros, |page| page);
            let at = a.iter().zip(b).position(|(x, y)| x != y)?;
            Some(page_start(number).saturating_add(u64::try_from(at).ok()?))
        })
    }

    /// A device with the content of a regular file. Holes and pages of zeros
    /// take no memory.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn load(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let device = Self::new(size);
        let mut pages = PageMap::default();
        let mut at = 0_u64;
        let mut buf = vec![0; PAGE_SIZE];
        while at < size {
            at = match rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(at)) {
                // Align down, so that pages are read as a whole.
                Ok(data) => data
                    .saturating_sub(data.checked_rem(page_start(1).get()).unwrap_or(0))
                    .max(at),
                Err(rustix::io::Errno::NXIO) => break,
                Err(_) => at,
            };
            let left = usize::try_from(size.saturating_sub(at)).unwrap_or(PAGE_SIZE);
            let (part, _) = buf.split_at_mut(left.min(PAGE_SIZE));
            file.read_exact_at(part, at)?;
            if part.iter().any(|byte| *byte != 0) {
                let stored = pages.write(DeviceOffset(at), part, |_, _| Ok::<_, Infallible>(()));
                stored.unwrap_or_else(|never| match never {});
            }
            at = at.saturating_add(page_start(1).get());
        }
        *device.pages.write() = pages;
        Ok(device)
    }

    /// Writes the content to a regular file, sparsely; an existing file is
    /// replaced.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let file = File::create(path)?;
        file.set_len(self.size)?;
        let pages = self.pages.read().clone();
        for (number, page) in pages.iter() {
            let start = page_start(number).get();
            let left = usize::try_from(self.size.saturating_sub(start)).unwrap_or(PAGE_SIZE);
            let (part, _) = page.split_at(left.min(PAGE_SIZE));
            file.write_all_at(part, start)?;
        }
        Ok(())
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryDevice")
            .field("size", &self.size)
            .field("pages", &self.pages.read().len())
            .finish()
    }
}

impl BlockDevice for MemoryDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        check_range(
            self,
            Operation::Read,
            DeviceRange::of_buffer(offset, buf.len()),
        )?;
        self.pages.read().read(offset, buf, |_, part| {
            part.fill(0);
            Ok(())
        })
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        check_writable(
            self,
            Operation::Write,
            DeviceRange::of_buffer(offset, data.len()),
        )?;
        self.pages.write().write(offset, data, |_, _| Ok(()))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        check_writable(self, Operation::Discard, range)?;
        self.pages.write().clear(range.start, range.length);
        Ok(())
    }

    fn identity(&self) -> String {
        "memory".into()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_tebibyte_costs_only_what_is_written() {
        let device = MemoryDevice::new(1 << 40);
        let last = DeviceOffset((1 << 40) - 3);
        device.write_at(last, b"end").unwrap();
        let mut buf = [1; 5];
        device
            .read_at(DeviceOffset((1 << 40) - 5), &mut buf)
            .unwrap();
        assert_eq!(&buf, b"\0\0end");
        assert_eq!(device.allocated(), 16384);
        assert!(matches!(
            device.write_at(last, b"over"),
            Err(DeviceError::OutOfRange { .. })
        ));
        assert!(matches!(
            device.read_at(DeviceOffset(u64::MAX), &mut buf),
            Err(DeviceError::OutOfRange { .. })
        ));
        device
            .discard(DeviceRange::new(DeviceOffset(0), 1 << 40))
            .unwrap();
        assert_eq!(device.allocated(), 0);
    }

    #[test]
    fn snapshots_are_independent() {
        let device = MemoryDevice::new(1 << 20);
        device.write_at(DeviceOffset(100), b"before").unwrap();
        let snapshot = device.snapshot();
        assert_eq!(device.first_difference(&snapshot), None);
        device.write_at(DeviceOffset(102), b"XX").unwrap();
        let mut buf = [0; 6];
        snapshot.read_at(DeviceOffset(100), &mut buf).unwrap();
        assert_eq!(&buf, b"before");
        assert_eq!(snapshot.first_difference(&device), Some(DeviceOffset(102)));
    }

    #[test]
    fn files_come_back_as_they_were() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let device = MemoryDevice::new((5 << 20) + 77);
        device.write_at(DeviceOffset(3_000_001), b"middle").unwrap();
        device
            .write_at(DeviceOffset((5 << 20) + 70), b"the end")
            .unwrap();
        device.save(&path).unwrap();
        let loaded = MemoryDevice::load(&path).unwrap();
        assert_eq!(loaded.size(), device.size());
        assert_eq!(loaded.first_difference(&device), None);
        assert_eq!(loaded.allocated(), device.allocated());
    }

    proptest! {
        #[test]
        fn behaves_as_an_array(ops in prop::collection::vec((0_u8..3, 0_usize..70_000, 0_usize..40_000, any::<u8>()), 1..40)) {
            let device = MemoryDevice::new(70_000);
            let mut array = vec![0_u8; 70_000];
            for (kind, start, length, byte) in ops {
                let end = (start + length).min(array.len());
                let offset = DeviceOffset(start as u64);
                match kind {
                    0 => {
                        array[start..end].fill(byte);
                        device.write_at(offset, &vec![byte; end - start]).unwrap();
                    }
                    1 => {
                        array[start..end].fill(0);
                        device.discard(DeviceRange::of_buffer(offset, end - start)).unwrap();
                    }
                    _ => {
                        let mut buf = vec![0xaa; end - start];
                        device.read_at(offset, &mut buf).unwrap();
                        prop_assert_eq!(&buf, &array[start..end]);
                    }
                }
            }
        }
    }
}
