//! A file that holds changed pages of devices.
//!
//! Owns its form and its order on the disk. One such file serves all devices of
//! a volume. It grows by a page of 16 KiB for each page of a device that is
//! changed, and names what it lies over, so that it refuses other devices.
//!
//! The form: a header block, then groups of an index block and its pages. An
//! index entry says which page of which device lies in the slot with the same
//! number. An entry never changes. Its checksum covers the entry before it and
//! the session that wrote it, so the valid entries are those from the first one
//! up to the first that does not follow: what an earlier session left behind
//! them does not count.
//!
//! Invariants: after a [`OverlayFile::flush`] that succeeded, everything written
//! before is found again. Pages are durable before the entries that name them.
//! What was not flushed when the program ended is there in part, or not at all,
//! as on any device.

use crate::pages::{PAGE_SIZE, Piece};
use crate::{Access, BlockDevice, DeviceError};
use butterfs_format::checksum::crc32c;
use butterfs_format::{DeviceOffset, UuidBytes};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;
use thiserror::Error;

const MAGIC: [u8; 16] = *b"ButterFS overlay";
const VERSION: u32 = 1;
/// Bytes of the header, and of each index block.
const BLOCK: u64 = 16 * 1024;
const BLOCK_BYTES: usize = 16 * 1024;
const ENTRY: usize = 32;
/// Entries of an index block.
const ENTRIES: u64 = 512;
/// Bytes of a group: an index block and its pages.
const GROUP: u64 = BLOCK + ENTRIES * BLOCK;
const HEADER_FIXED: usize = 48;
const DEVICE_BYTES: usize = 40;
/// The most devices that a header names.
const DEVICES_MAX: usize = (BLOCK_BYTES - HEADER_FIXED - 4) / DEVICE_BYTES;

/// What the pages of a file are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlayPurpose {
    /// Changes that the devices do not have.
    Changes,
    /// What the devices held before changes were written to them.
    Undo,
}

/// What a device was when a file was made over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverlayBase {
    /// Bytes of the device.
    pub size: u64,
    /// Digest of what tells the device's state from others. The caller chooses
    /// what that is.
    pub digest: [u8; 32],
}

/// What a file lies over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverlayHeader {
    /// What its pages are.
    pub purpose: OverlayPurpose,
    /// UUID of the volume.
    pub volume: UuidBytes,
    /// Its devices, in the order of the pages' numbers.
    pub devices: Vec<OverlayBase>,
    /// Names of the devices, to find them again; what does not fit the header is
    /// left out.
    pub names: Vec<String>,
}

/// Why a file cannot be used.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum OverlayError {
    /// The file or a device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The file has no valid header.
    #[error("{0} is no overlay of ButterFS, or its header is damaged")]
    NoHeader(String),
    /// A newer program made the file.
    #[error("{0} is an overlay of a newer form; use a newer ButterFS")]
    Version(String),
    /// More devices than a header has room for.
    #[error("an overlay has room for {DEVICES_MAX} devices")]
    TooManyDevices,
}

impl OverlayHeader {
    fn encode(&self) -> Result<Vec<u8>, OverlayError> {
        if self.devices.len() > DEVICES_MAX {
            return Err(OverlayError::TooManyDevices);
        }
        let purpose: u32 = match self.purpose {
            OverlayPurpose::Changes => 1,
            OverlayPurpose::Undo => 2,
        };
        let count = u32::try_from(self.devices.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(BLOCK_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&purpose.to_le_bytes());
        bytes.extend_from_slice(&count.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&self.volume);
        for device in &self.devices {
            bytes.extend_from_slice(&device.size.to_le_bytes());
            bytes.extend_from_slice(&device.digest);
        }
        for name in &self.names {
            let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
            let end = bytes.len().saturating_add(name.len()).saturating_add(2);
            if end > BLOCK_BYTES.saturating_sub(4) || length == u16::MAX {
                break;
            }
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.resize(BLOCK_BYTES.saturating_sub(4), 0);
        let sum = crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        Ok(bytes)
    }

    /// `None` if the bytes are no header.
    fn parse(bytes: &[u8]) -> Option<Result<Self, u32>> {
        let (body, sum) = bytes.split_at_checked(BLOCK_BYTES.checked_sub(4)?)?;
        if crc32c(body).to_le_bytes() != *sum || body.get(..16)? != MAGIC {
            return None;
        }
        let version = number32(body, 16)?;
        if version != VERSION {
            return Some(Err(version));
        }
        let purpose = match number32(body, 20)? {
            1 => OverlayPurpose::Changes,
            2 => OverlayPurpose::Undo,
            _ => return None,
        };
        let count = usize::try_from(number32(body, 24)?).ok()?;
        if count > DEVICES_MAX {
            return None;
        }
        let volume = body.get(32..HEADER_FIXED)?.try_into().ok()?;
        let devices = body.get(HEADER_FIXED..)?.chunks_exact(DEVICE_BYTES);
        let devices = devices.take(count).map(|device| {
            Some(OverlayBase {
                size: number64(device, 0)?,
                digest: device.get(8..)?.try_into().ok()?,
            })
        });
        let end = HEADER_FIXED.checked_add(count.checked_mul(DEVICE_BYTES)?)?;
        let mut rest = body.get(end..)?;
        let mut names = Vec::new();
        while let Some((length, behind)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some((name, behind)) = behind.split_at_checked(length).filter(|_| length > 0)
            else {
                break;
            };
            names.push(String::from_utf8_lossy(name).into_owned());
            rest = behind;
        }
        Some(Ok(Self {
            purpose,
            volume,
            devices: devices.collect::<Option<_>>()?,
            names,
        }))
    }
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_le_bytes(field.try_into().ok()?))
}

fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(field.try_into().ok()?))
}

/// A page of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OverlayPage {
    /// Number of the device in the header, from 0 on.
    pub device: u32,
    /// Number of the page on the device, in pages of 16 KiB.
    pub page: u64,
}

impl OverlayPage {
    /// Bytes of a page.
    pub const SIZE: usize = PAGE_SIZE;

    /// First byte of the page on its device.
    #[must_use]
    pub const fn start(self) -> DeviceOffset {
        crate::pages::page_start(self.page)
    }
}

/// An index entry for `page`, which follows one with the checksum `before`.
fn entry(page: OverlayPage, session: u64, before: u32) -> ([u8; ENTRY], u32) {
    let mut bytes = [0; ENTRY];
    let mut put = |at: usize, field: &[u8]| {
        if let Some(to) = bytes.get_mut(at..at.saturating_add(field.len())) {
            to.copy_from_slice(field);
        }
    };
    put(0, &page.device.to_le_bytes());
    put(4, &before.to_le_bytes());
    put(8, &page.page.to_le_bytes());
    put(16, &session.to_le_bytes());
    // Zeros are no entry, so the checksum of an entry is never 0.
    let sum = crc32c(&bytes).max(1);
    if let Some(to) = bytes.get_mut(4..8) {
        to.copy_from_slice(&sum.to_le_bytes());
    }
    (bytes, sum)
}

/// Reads an entry that follows one with the checksum `before`.
fn parse_entry(bytes: &[u8], before: u32) -> Option<(OverlayPage, u32)> {
    let page = OverlayPage {
        device: number32(bytes, 0)?,
        page: number64(bytes, 8)?,
    };
    let (wanted, sum) = entry(page, number64(bytes, 16)?, before);
    (wanted == *bytes).then_some((page, sum))
}

/// Where the entry of a slot lies, and its page.
fn places(slot: u64) -> (DeviceOffset, DeviceOffset) {
    let group = (slot / ENTRIES).saturating_mul(GROUP).saturating_add(BLOCK);
    let within = slot % ENTRIES;
    let entry = group.saturating_add(within.saturating_mul(32));
    let page = group.saturating_add(BLOCK.saturating_mul(within.saturating_add(1)));
    (DeviceOffset(entry), DeviceOffset(page))
}

#[derive(Debug, Default)]
struct Index {
    slots: BTreeMap<OverlayPage, u64>,
    /// Pages in the order of their slots, from the first without a durable
    /// entry on.
    unnamed: Vec<OverlayPage>,
    /// Slots in use.
    count: u64,
}

/// The last entry that is durable.
#[derive(Debug)]
struct Chain {
    slot: u64,
    sum: u32,
}

/// An open file of changed pages.
#[derive(Debug)]
pub struct OverlayFile {
    backing: Arc<dyn BlockDevice>,
    header: OverlayHeader,
    index: RwLock<Index>,
    /// Held while entries are written.
    chain: Mutex<Chain>,
    session: u64,
}

fn new_session() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

impl OverlayFile {
    /// Makes an empty file over what `header` says. `backing` is the file,
    /// without any content. The file is durable when this returns.
    ///
    /// # Errors
    /// [`OverlayError::TooManyDevices`], [`OverlayError::Device`]
    pub fn create(
        backing: Arc<dyn BlockDevice>,
        header: OverlayHeader,
    ) -> Result<Self, OverlayError> {
        let file = Self::create_unnamed(backing, header)?;
        file.name()?;
        Ok(file)
    }

    /// Makes an empty file whose header is not written until [`Self::name`].
    /// Until then it cannot be opened.
    ///
    /// # Errors
    /// [`OverlayError::TooManyDevices`]
    pub fn create_unnamed(
        backing: Arc<dyn BlockDevice>,
        header: OverlayHeader,
    ) -> Result<Self, OverlayError> {
        header.encode()?;
        Ok(Self {
            backing,
            header,
            index: RwLock::default(),
            chain: Mutex::new(Chain { slot: 0, sum: 0 }),
            session: new_session(),
        })
    }

    /// Makes everything durable, and then the header.
    ///
    /// # Errors
    /// [`OverlayError::Device`]
    pub fn name(&self) -> Result<(), OverlayError> {
        self.flush()?;
        let bytes = self.header.encode()?;
        self.backing.write_at(DeviceOffset(0), &bytes)?;
        self.backing.flush()?;
        Ok(())
    }

    /// Whether the file at `path` begins as an overlay does.
    #[must_use]
    pub fn is_at(path: &Path) -> bool {
        // Opening a pipe would wait for somebody.
        if !path.metadata().is_ok_and(|found| found.is_file()) {
            return false;
        }
        let mut bytes = [0; MAGIC.len()];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
        read.is_ok() && bytes == MAGIC
    }

    /// Opens a file that [`Self::create`] made.
    ///
    /// # Errors
    /// [`OverlayError::NoHeader`], [`OverlayError::Version`],
    /// [`OverlayError::Device`]
    pub fn open(backing: Arc<dyn BlockDevice>) -> Result<Self, OverlayError> {
        let mut block = vec![0; BLOCK_BYTES];
        backing.read_at(DeviceOffset(0), &mut block)?;
        let header = match OverlayHeader::parse(&block) {
            None => return Err(OverlayError::NoHeader(backing.identity())),
            Some(Err(_)) => return Err(OverlayError::Version(backing.identity())),
            Some(Ok(header)) => header,
        };
        let mut index = Index::default();
        let mut sum = 0;
        'groups: loop {
            let (at, _) = places(index.count);
            if backing.read_at(at, &mut block).is_err() {
                // The file ends here.
                break;
            }
            for bytes in block.chunks_exact(ENTRY) {
                let Some((page, next)) = parse_entry(bytes, sum) else {
                    break 'groups;
                };
                let known = usize::try_from(page.device).ok();
                let base = known.and_then(|known| header.devices.get(known));
                if base.is_none_or(|base| page.start().get() >= base.size) {
                    break 'groups;
                }
                sum = next;
                index.slots.insert(page, index.count);
                index.count = index.count.saturating_add(1);
            }
        }
        Ok(Self {
            backing,
            header,
            chain: Mutex::new(Chain {
                slot: index.count,
                sum,
            }),
            index: RwLock::new(index),
            session: new_session(),
        })
    }

    /// What it lies over.
    #[must_use]
    pub const fn header(&self) -> &OverlayHeader {
        &self.header
    }

    /// Name of the file for messages.
    #[must_use]
    pub fn identity(&self) -> String {
        self.backing.identity()
    }

    /// What the file may be used for.
    #[must_use]
    pub fn access(&self) -> Access {
        self.backing.access()
    }

    /// Its pages, by device and place.
    #[must_use]
    pub fn pages(&self) -> Vec<OverlayPage> {
        self.index.read().slots.keys().copied().collect()
    }

    /// Number of its pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.index.read().slots.len()
    }

    /// Whether it has no page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from a page, from its byte `within` on. False if the page
    /// is not there; `buffer` is then as it was.
    ///
    /// # Errors
    /// Reading the file.
    pub fn read(
        &self,
        page: OverlayPage,
        within: usize,
        buffer: &mut [u8],
    ) -> Result<bool, DeviceError> {
        let Some(slot) = self.index.read().slots.get(&page).copied() else {
            return Ok(false);
        };
        let (_, at) = places(slot);
        let within = u64::try_from(within).unwrap_or(u64::MAX);
        self.backing.read_at(at.saturating_add(within), buffer)?;
        Ok(true)
    }

    /// Writes a whole page.
    ///
    /// # Errors
    /// Writing the file.
    pub fn write_page(
        &self,
        page: OverlayPage,
        content: &[u8; PAGE_SIZE],
    ) -> Result<(), DeviceError> {
        let piece = Piece {
            page: page.page,
            within: 0,
            length: PAGE_SIZE,
        };
        self.write(page.device, piece, content, |_, _| Ok(()))
    }

    /// Writes a part of a page. If the page is not there yet, `absent` fills
    /// what is not written; it gets a page of zeros.
    pub(crate) fn write(
        &self,
        device: u32,
        piece: Piece,
        data: &[u8],
        absent: impl FnOnce(DeviceOffset, &mut [u8; PAGE_SIZE]) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let page = OverlayPage {
            device,
            page: piece.page,
        };
        let mut index = self.index.write();
        let within = u64::try_from(piece.within).unwrap_or(u64::MAX);
        if let Some(slot) = index.slots.get(&page) {
            let (_, at) = places(*slot);
            return self.backing.write_at(at.saturating_add(within), data);
        }
        let (_, at) = places(index.count);
        if piece.length == PAGE_SIZE {
            self.backing.write_at(at, data)?;
        } else {
            let mut fresh = Box::new([0; PAGE_SIZE]);
            absent(page.start(), &mut fresh)?;
            let end = piece.within.saturating_add(data.len());
            if let Some(to) = fresh.get_mut(piece.within..end) {
                to.copy_from_slice(data);
            }
            self.backing.write_at(at, &fresh[..])?;
        }
        let slot = index.count;
        index.slots.insert(page, slot);
        index.unnamed.push(page);
        index.count = index.count.saturating_add(1);
        Ok(())
    }

    /// Makes everything durable that was written before.
    ///
    /// # Errors
    /// The file cannot be written. A later call tries again.
    pub fn flush(&self) -> Result<(), DeviceError> {
        let mut chain = self.chain.lock();
        let pages = self.index.read().unnamed.clone();
        self.backing.flush()?;
        if pages.is_empty() {
            return Ok(());
        }
        let (mut slot, mut sum) = (chain.slot, chain.sum);
        for page in &pages {
            let (bytes, next) = entry(*page, self.session, sum);
            self.backing.write_at(places(slot).0, &bytes)?;
            sum = next;
            slot = slot.saturating_add(1);
        }
        self.backing.flush()?;
        *chain = Chain { slot, sum };
        self.index.write().unnamed.drain(..pages.len());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn header() -> OverlayHeader {
        let base = |number: u8| OverlayBase {
            size: 1 << 40,
            digest: [number; 32],
        };
        OverlayHeader {
            purpose: OverlayPurpose::Changes,
            volume: [7; 16],
            devices: vec![base(1), base(2)],
            names: vec!["/dev/one".to_owned(), "two".to_owned()],
        }
    }

    fn page(device: u32, page: u64) -> OverlayPage {
        OverlayPage { device, page }
    }

    fn content(file: &OverlayFile, of: OverlayPage) -> Option<u8> {
        let mut byte = [0];
        file.read(of, 5, &mut byte).unwrap().then_some(byte[0])
    }

    #[test]
    fn what_was_flushed_is_found_again() {
        let backing = Arc::new(MemoryDevice::new(1 << 30));
        let file = OverlayFile::create(backing.clone(), header()).unwrap();
        for number in 0..1500 {
            let fill = [(number % 251) as u8; PAGE_SIZE];
            let at = page((number % 2) as u32, number * 3);
            file.write_page(at, &fill).unwrap();
        }
        file.flush().unwrap();
        file.write_page(page(0, 0), &[9; PAGE_SIZE]).unwrap();
        file.write_page(page(1, 1), &[8; PAGE_SIZE]).unwrap();
        drop(file);

        let file = OverlayFile::open(backing.clone()).unwrap();
        assert_eq!(file.header(), &header());
        assert_eq!(file.len(), 1500);
        assert_eq!(content(&file, page(1, 9)), Some(3));
        assert_eq!(content(&file, page(1, 1499 * 3)), Some((1499 % 251) as u8));
        assert_eq!(content(&file, page(1, 1)), None);
        assert_eq!(content(&file, page(0, 9)), None);
    }

    #[test]
    fn entries_that_an_earlier_session_left_do_not_count() {
        let backing = Arc::new(MemoryDevice::new(1 << 30));
        let file = OverlayFile::create(backing.clone(), header()).unwrap();
        for number in 0..3 {
            file.write_page(page(0, number), &[1; PAGE_SIZE]).unwrap();
        }
        file.flush().unwrap();
        // The second entry is lost, as if the power was cut in the flush.
        backing.write_at(places(1).0, &[0; ENTRY]).unwrap();
        let file = OverlayFile::open(backing.clone()).unwrap();
        assert_eq!(file.len(), 1);
        file.write_page(page(0, 1), &[2; PAGE_SIZE]).unwrap();
        file.flush().unwrap();
        let file = OverlayFile::open(backing).unwrap();
        assert_eq!(file.pages(), [page(0, 0), page(0, 1)]);
        assert_eq!(content(&file, page(0, 1)), Some(2));
    }

    #[test]
    fn a_file_without_its_header_is_refused() {
        let backing: Arc<MemoryDevice> = Arc::new(MemoryDevice::new(1 << 20));
        let file = OverlayFile::create_unnamed(backing.clone(), header()).unwrap();
        file.write_page(page(0, 0), &[1; PAGE_SIZE]).unwrap();
        file.flush().unwrap();
        let opened = OverlayFile::open(backing.clone());
        assert!(matches!(opened, Err(OverlayError::NoHeader(_))));
        file.name().unwrap();
        assert_eq!(OverlayFile::open(backing).unwrap().len(), 1);
    }
}
