//! A writable device over one that is only read.

use crate::block_device::{check_range, check_writable};
use crate::pages::{PAGE_SIZE, PageMap, page_start};
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// Shows a base device with changes that live in memory alone: for previews.
/// The base is never written; it must not change meanwhile.
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    changes: RwLock<PageMap>,
}

impl OverlayDevice {
    /// No changes yet over `base`.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            changes: RwLock::default(),
        }
    }

    /// Bytes of memory that the changes take.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        let bytes = self.changes.read().len().saturating_mul(PAGE_SIZE);
        DeviceRange::of_buffer(DeviceOffset(0), bytes).length
    }

    /// Pages that were changed, ascending: where they lie on the device.
    #[must_use]
    pub fn changed(&self) -> Vec<DeviceRange> {
        let size = self.base.size();
        self.changes
            .read()
            .iter()
            .map(|(number, _)| {
                let start = page_start(number);
                let left = size.saturating_sub(start.get());
                let page = DeviceRange::of_buffer(start, PAGE_SIZE);
                DeviceRange::new(start, page.length.min(left))
            })
            .collect()
    }
}

impl fmt::Debug for OverlayDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverlayDevice")
            .field("base", &self.base)
            .field("changed_pages", &self.changes.read().len())
            .finish()
    }
}

impl BlockDevice for OverlayDevice {
    fn size(&self) -> u64 {
        self.base.size()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, buf.len());
        check_range(self, Operation::Read, range)?;
        let changes = self.changes.read();
        changes.read(offset, buf, |at, part| self.base.read_at(at, part))
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        let size = self.base.size();
        self.changes.write().write(offset, data, |at, page| {
            // The base's last page may be cut short.
            let left = usize::try_from(size.saturating_sub(at.get())).unwrap_or(PAGE_SIZE);
            let (part, _) = page.split_at_mut(left.min(PAGE_SIZE));
            self.base.read_at(at, part)
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn identity(&self) -> String {
        format!("{} (preview)", self.base.identity())
    }

    fn caching(&self) -> Option<Caching> {
        self.base.caching()
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn let_go(&self) {
        self.base.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, ReadOnlyDevice};

    #[test]
    fn the_base_stays_as_it_was() {
        let base = Arc::new(MemoryDevice::new(100_003));
        base.write_at(DeviceOffset(0), &[1; 100_003]).unwrap();
        let before = base.snapshot();
        let overlay = OverlayDevice::new(Arc::new(ReadOnlyDevice::new(base.clone())));
        overlay.write_at(DeviceOffset(16_000), &[2; 1000]).unwrap();
        overlay.write_at(DeviceOffset(100_000), &[3; 3]).unwrap();
        let mut expected = vec![1; 100_003];
        expected[16_000..17_000].fill(2);
        expected[100_000..].fill(3);
        let mut found = vec![0; 100_003];
        overlay.read_at(DeviceOffset(0), &mut found).unwrap();
        assert_eq!(found, expected);
        assert_eq!(base.first_difference(&before), None);
        assert_eq!(overlay.allocated(), 3 * 16384);
        let last = overlay.changed().pop().unwrap();
        assert_eq!(last.end(), DeviceOffset(100_003));
        assert!(overlay.write_at(DeviceOffset(100_001), &[3; 3]).is_err());
    }
}
