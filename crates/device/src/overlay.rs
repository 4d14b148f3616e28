//! A writable device over one that is only read.

use crate::block_device::{check_range, check_writable};
use crate::overlay_file::{OverlayFile, OverlayPage};
use crate::pages::{PAGE_SIZE, PageMap, page_start, pieces};
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation};
use butterfs_format::DeviceOffset;
use parking_lot::RwLock;
use std::fmt;
use std::sync::Arc;

/// Where the changes are.
enum Changes {
    /// In memory; they are gone with the device.
    Memory(RwLock<PageMap>),
    /// In a file, among those of other devices of the volume.
    File {
        file: Arc<OverlayFile>,
        /// Number of this device in the file.
        number: u32,
    },
}

/// Shows a base device with changes that it does not have: for previews and for
/// patients. The base is never written; it must not change meanwhile.
pub struct OverlayDevice {
    base: Arc<dyn BlockDevice>,
    changes: Changes,
}

impl OverlayDevice {
    /// No changes yet over `base`. They will live in memory alone.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            changes: Changes::Memory(RwLock::default()),
        }
    }

    /// The changes that `file` has of device number `number`, over `base`. What
    /// changes later goes to the file too. The caller knows that the file was
    /// made over this device.
    #[must_use]
    pub fn in_file(base: Arc<dyn BlockDevice>, file: Arc<OverlayFile>, number: u32) -> Self {
        let changes = Changes::File { file, number };
        Self { base, changes }
    }

    /// Numbers of the pages that were changed, ascending.
    fn pages(&self) -> Vec<u64> {
        match &self.changes {
            Changes::Memory(pages) => pages.read().iter().map(|(number, _)| number).collect(),
            Changes::File { file, number } => {
                let all = file.pages().into_iter();
                let own = all.filter(|page| page.device == *number);
                own.map(|page| page.page).collect()
            }
        }
    }

    /// Bytes of memory or of the file that the changes take.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        let bytes = self.pages().len().saturating_mul(PAGE_SIZE);
        DeviceRange::of_buffer(DeviceOffset(0), bytes).length
    }

    /// Pages that were changed, ascending: where they lie on the device.
    #[must_use]
    pub fn changed(&self) -> Vec<DeviceRange> {
        let size = self.base.size();
        let place = |number| {
            let start = page_start(number);
            let left = size.saturating_sub(start.get());
            let page = DeviceRange::of_buffer(start, PAGE_SIZE);
            DeviceRange::new(start, page.length.min(left))
        };
        self.pages().into_iter().map(place).collect()
    }

    /// Fills a page from the base, whose last page may be cut short.
    fn fill(&self, at: DeviceOffset, page: &mut [u8; PAGE_SIZE]) -> Result<(), DeviceError> {
        let left = self.base.size().saturating_sub(at.get());
        let left = usize::try_from(left).unwrap_or(PAGE_SIZE);
        let (part, _) = page.split_at_mut(left.min(PAGE_SIZE));
        self.base.read_at(at, part)
    }

    /// Fills `buffer` from the file, and from the base in as few reads as
    /// possible.
    fn read_with_file(
        &self,
        (file, number): (&OverlayFile, u32),
        offset: DeviceOffset,
        buffer: &mut [u8],
    ) -> Result<(), DeviceError> {
        // The part of the buffer that the base has to fill.
        let mut absent = 0..0;
        let mut at = 0_usize;
        for piece in pieces(offset, buffer.len()) {
            let end = at.saturating_add(piece.length);
            let page = OverlayPage {
                device: number,
                page: piece.page,
            };
            let there = match buffer.get_mut(at..end) {
                Some(part) => file.read(page, piece.within, part)?,
                None => break,
            };
            match there {
                true => {
                    self.read_base(offset, buffer, absent)?;
                    absent = end..end;
                }
                false => absent.end = end,
            }
            at = end;
        }
        self.read_base(offset, buffer, absent)
    }

    fn read_base(
        &self,
        offset: DeviceOffset,
        buffer: &mut [u8],
        part: std::ops::Range<usize>,
    ) -> Result<(), DeviceError> {
        let at = DeviceRange::of_buffer(offset, part.start).end();
        match buffer.get_mut(part) {
            Some(part) if !part.is_empty() => self.base.read_at(at, part),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for OverlayDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverlayDevice")
            .field("base", &self.base)
            .field("changed_pages", &self.pages().len())
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
        match &self.changes {
            Changes::Memory(pages) => pages
                .read()
                .read(offset, buf, |at, part| self.base.read_at(at, part)),
            Changes::File { file, number } => self.read_with_file((file, *number), offset, buf),
        }
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        let (file, number) = match &self.changes {
            Changes::Memory(pages) => {
                let mut pages = pages.write();
                return pages.write(offset, data, |at, page| self.fill(at, page));
            }
            Changes::File { file, number } => (file, *number),
        };
        let mut rest = data;
        for piece in pieces(offset, data.len()) {
            let (now, later) = rest.split_at(piece.length.min(rest.len()));
            rest = later;
            file.write(number, piece, now, |at, page| self.fill(at, page))?;
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        match &self.changes {
            Changes::Memory(_) => Ok(()),
            Changes::File { file, .. } => file.flush(),
        }
    }

    fn identity(&self) -> String {
        match &self.changes {
            Changes::Memory(_) => format!("{} (preview)", self.base.identity()),
            Changes::File { file, .. } => {
                format!("{} (overlay {})", self.base.identity(), file.identity())
            }
        }
    }

    fn caching(&self) -> Option<Caching> {
        self.base.caching()
    }

    fn access(&self) -> Access {
        match &self.changes {
            Changes::Memory(_) => Access::ReadWrite,
            Changes::File { file, .. } => file.access(),
        }
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

    #[test]
    fn both_stores_show_the_same() {
        let base = Arc::new(MemoryDevice::new(1_000_003));
        base.write_at(DeviceOffset(0), &vec![1; 1_000_003]).unwrap();
        let backing = Arc::new(MemoryDevice::new(1 << 30));
        let header = crate::OverlayHeader {
            purpose: crate::OverlayPurpose::Changes,
            volume: [0; 16],
            devices: vec![
                crate::OverlayBase {
                    size: 1_000_003,
                    digest: [0; 32],
                };
                2
            ],
            names: Vec::new(),
        };
        let file = Arc::new(OverlayFile::create(backing, header).unwrap());
        let over = |number| OverlayDevice::in_file(base.clone(), file.clone(), number);
        let (memory, first, second) = (OverlayDevice::new(base.clone()), over(0), over(1));
        let mut state = 1_u64;
        for step in 0..200_u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(step);
            let at = DeviceOffset((state >> 20) % 950_000);
            let data = vec![(state >> 40) as u8; (state >> 50) as usize % 50_000];
            for device in [&memory, &first] {
                device.write_at(at, &data).unwrap();
            }
        }
        second.write_at(DeviceOffset(1_000_000), &[7; 3]).unwrap();
        let read = |device: &OverlayDevice| {
            let mut all = vec![0; 1_000_003];
            device.read_at(DeviceOffset(0), &mut all).unwrap();
            let mut part = vec![0; 70_000];
            device.read_at(DeviceOffset(123_456), &mut part).unwrap();
            assert_eq!(part, all[123_456..193_456]);
            all
        };
        assert_eq!(read(&memory), read(&first));
        assert_eq!(memory.changed(), first.changed());
        assert_eq!(second.changed().len(), 1);
        assert_eq!(read(&second)[1_000_000..], [7; 3]);
    }
}
