//! Writes an overlay to its devices, and brings back what was there before.
//!
//! Owns the undo file and the order of writes:
//!
//! 1. The undo file gets the old content of every page that the overlay changes,
//!    and of the superblocks. It is durable, and only then has a header.
//! 2. Every superblock gets a mark that no driver knows, so nobody mounts the
//!    volume while it is half written. Flush.
//! 3. All changes but the superblocks are written. Flush.
//! 4. The superblocks are written. Flush.
//!
//! An undo does the last three steps with the old content. Each step can be
//! repeated, so a commit or an undo that was cut short is done again from the
//! beginning, by the same command; or the other of the two is.
//!
//! Invariant: nothing is written to a device whose superblocks hold anything
//! but the old content, the marked old content, or the new content, sector by
//! sector. Whoever used the volume in between has changed them.
//!
//! An undo file names each device twice: by its first numbers are the pages with
//! the old content, by its second ones the pages with the new superblocks.

use crate::overlay::{PatientError, copies, digest_of};
use butterfs_device::{
    BlockDevice, DeviceError, DeviceRange, OverlayError, OverlayFile, OverlayHeader, OverlayPage,
    OverlayPurpose,
};
use butterfs_format::DeviceOffset;
use butterfs_format::superblock::{SIZE, Superblock};
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// Bytes that a device writes as a whole.
const SECTOR: usize = 512;
/// Flag of a superblock that marks a volume as half written. Nobody uses it.
const MARK: u64 = 1 << 62;
/// Where the flags lie in a superblock.
const FLAGS_AT: usize = 0x38;
const PAGE: usize = OverlayPage::SIZE;

/// Why an overlay was not written, or not undone.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// The overlay or the devices do not fit.
    #[error(transparent)]
    Patient(#[from] PatientError),
    /// The undo file belongs to another commit.
    #[error(
        "{0} belongs to another commit; move it away, or give this commit's undo file another name"
    )]
    OtherUndo(String),
    /// The file is no undo file.
    #[error("{0} is no undo file")]
    NoUndo(String),
    /// The volume was used after the commit, or between its parts.
    #[error(
        "{device} was changed by somebody else since the overlay was made or written; nothing was \
         written now"
    )]
    Changed {
        /// The device.
        device: String,
    },
}

impl From<DeviceError> for TransferError {
    fn from(error: DeviceError) -> Self {
        Self::Patient(error.into())
    }
}

impl From<OverlayError> for TransferError {
    fn from(error: OverlayError) -> Self {
        Self::Patient(error.into())
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transferred {
    /// Pages of 16 KiB, without the superblocks.
    pub pages: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// Whether a superblock has the mark of a volume that is half written.
pub(crate) fn has_mark(superblock: &[u8]) -> bool {
    let field = FLAGS_AT..FLAGS_AT.saturating_add(8);
    let flags = superblock
        .get(field)
        .and_then(|field| field.try_into().ok());
    let is_marked = flags.is_some_and(|field| u64::from_le_bytes(field) & MARK != 0);
    is_marked && Superblock::parse_unverified(superblock).is_ok()
}

/// A superblock with the mark. What is no superblock stays as it is.
fn marked(superblock: &[u8]) -> Vec<u8> {
    let mut bytes = superblock.to_vec();
    let Ok(parsed) = Superblock::parse_unverified(superblock) else {
        return bytes;
    };
    let field = FLAGS_AT..FLAGS_AT.saturating_add(8);
    if let Some(field) = bytes.get_mut(field) {
        field.copy_from_slice(&(parsed.flags.0 | MARK).to_le_bytes());
    }
    parsed.checksum_type.seal_block(&mut bytes);
    bytes
}

/// The page in which a byte of a device lies, and where in it.
fn page_at(device: u32, at: DeviceOffset) -> (OverlayPage, usize) {
    let size = u64::try_from(PAGE).unwrap_or(u64::MAX);
    let page = at.get().checked_div(size).unwrap_or(0);
    let within = at.get().checked_rem(size).unwrap_or(0);
    let within = usize::try_from(within).unwrap_or(0);
    (OverlayPage { device, page }, within)
}

/// One device of a commit.
struct Patient<'p> {
    device: &'p dyn BlockDevice,
    /// Its number in the files.
    number: u32,
    /// Its number for new superblocks in the undo file.
    second: u32,
    /// Its size when the overlay was made.
    size: u64,
}

impl Patient<'_> {
    /// Bytes of a page that are on the device.
    fn length(&self, page: OverlayPage) -> usize {
        let left = self.size.saturating_sub(page.start().get());
        usize::try_from(left).unwrap_or(PAGE).min(PAGE)
    }

    fn read(&self, page: OverlayPage) -> Result<Box<[u8; PAGE]>, DeviceError> {
        let mut content = Box::new([0; PAGE]);
        if let Some(part) = content.get_mut(..self.length(page)) {
            self.device.read_at(page.start(), part)?;
        }
        Ok(content)
    }
}

/// The commit of an overlay, or its undo.
struct Transfer<'p> {
    patients: Vec<Patient<'p>>,
    undo: &'p OverlayFile,
}

/// Which state the devices get.
#[derive(Clone, Copy)]
enum Target<'t> {
    /// That of the overlay.
    New(&'t OverlayFile),
    /// That of the undo file.
    Old,
}

impl<'p> Transfer<'p> {
    /// Matches `devices`, in the order of `header`, with the numbers of the undo
    /// file.
    fn new(
        header: &OverlayHeader,
        devices: &'p [Arc<dyn BlockDevice>],
        undo: &'p OverlayFile,
    ) -> Self {
        let count = u32::try_from(header.devices.len()).unwrap_or(u32::MAX);
        let all = devices.iter().zip(&header.devices).zip(0_u32..);
        let patients = all.map(|((device, base), number)| Patient {
            device: &**device,
            number,
            second: number.saturating_add(count),
            size: base.size,
        });
        Self {
            patients: patients.collect(),
            undo,
        }
    }

    /// The old and the new superblock at `at` of a device.
    fn superblocks(
        &self,
        of: &Patient<'_>,
        at: DeviceOffset,
    ) -> Result<(Vec<u8>, Vec<u8>), TransferError> {
        let read = |number| {
            let mut bytes = vec![0; SIZE];
            let (page, within) = page_at(number, at);
            match self.undo.read(page, within, &mut bytes)? {
                true => Ok(bytes),
                false => Err(TransferError::NoUndo(self.undo.identity())),
            }
        };
        Ok((read(of.number)?, read(of.second)?))
    }

    /// Refuses devices whose superblocks somebody else changed.
    fn verify(&self) -> Result<(), TransferError> {
        for patient in &self.patients {
            for at in copies(patient.size) {
                let (old, new) = self.superblocks(patient, at)?;
                let mark = marked(&old);
                let mut now = vec![0; SIZE];
                patient.device.read_at(at, &mut now)?;
                let known = [&old, &new, &mark];
                let mut sectors = now.chunks(SECTOR).enumerate();
                let fits = |(number, sector): (usize, &[u8])| {
                    let of = |block: &&Vec<u8>| block.chunks(SECTOR).nth(number) == Some(sector);
                    known.iter().any(of)
                };
                if !sectors.all(fits) {
                    return Err(TransferError::Changed {
                        device: patient.device.identity(),
                    });
                }
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let each = self.patients.iter();
        each.map(|patient| patient.device.flush())
            .fold(Ok(()), Result::and)
    }

    /// Writes a page without the superblocks in it.
    fn write(
        &self,
        to: &Patient<'_>,
        page: OverlayPage,
        content: &[u8; PAGE],
    ) -> Result<(), DeviceError> {
        let whole = DeviceRange::of_buffer(page.start(), to.length(page));
        let mut parts = vec![whole];
        for at in copies(to.size) {
            let superblock = DeviceRange::of_buffer(at, SIZE);
            let without = parts.iter().flat_map(|part| part.without(superblock));
            parts = without.flatten().collect();
        }
        for part in parts {
            let from = part.start.get().saturating_sub(page.start().get());
            let from = usize::try_from(from).unwrap_or(PAGE);
            let length = usize::try_from(part.length).unwrap_or(0);
            if let Some(bytes) = content.get(from..from.saturating_add(length)) {
                to.device.write_at(part.start, bytes)?;
            }
        }
        Ok(())
    }

    /// Brings the devices to the target.
    fn run(&self, target: Target<'_>) -> Result<Transferred, TransferError> {
        self.verify()?;
        for patient in &self.patients {
            for at in copies(patient.size) {
                let (old, _) = self.superblocks(patient, at)?;
                patient.device.write_at(at, &marked(&old))?;
            }
        }
        self.flush()?;
        let source = match target {
            Target::New(changes) => changes,
            Target::Old => self.undo,
        };
        let mut pages = 0_u64;
        for page in source.pages() {
            let Some(patient) = self.patients.iter().find(|p| p.number == page.device) else {
                continue;
            };
            let mut content = Box::new([0; PAGE]);
            source.read(page, 0, &mut content[..])?;
            self.write(patient, page, &content)?;
            pages = pages.saturating_add(1);
        }
        self.flush()?;
        for patient in &self.patients {
            for at in copies(patient.size) {
                let (old, new) = self.superblocks(patient, at)?;
                let bytes = match target {
                    Target::New(_) => new,
                    Target::Old => old,
                };
                patient.device.write_at(at, &bytes)?;
            }
        }
        self.flush()?;
        let size = u64::try_from(PAGE).unwrap_or(u64::MAX);
        Ok(Transferred {
            pages,
            bytes: pages.saturating_mul(size),
        })
    }
}

/// Whether the old superblocks in an undo file are those over which the overlay
/// was made.
fn is_undo_of(undo: &OverlayFile, changes: &OverlayHeader) -> Result<bool, TransferError> {
    let header = undo.header();
    let count = changes.devices.len();
    let own = header.devices.get(..count);
    if header.purpose != OverlayPurpose::Undo
        || header.volume != changes.volume
        || own != Some(&changes.devices[..])
        || header.devices.len() != count.saturating_mul(2)
    {
        return Ok(false);
    }
    for (base, number) in changes.devices.iter().zip(0_u32..) {
        let digest = digest_of(base.size, |at, bytes| {
            let (page, within) = page_at(number, at);
            undo.read(page, within, bytes).map(drop)
        })?;
        if digest != base.digest {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Fills an undo file with the old content of all pages that it lacks. Those
/// have not been written: a commit writes only what its undo file has.
fn fill(
    changes: &OverlayFile,
    undo: &OverlayFile,
    patients: &[Patient<'_>],
) -> Result<(), TransferError> {
    let have: BTreeSet<OverlayPage> = undo.pages().into_iter().collect();
    for patient in patients {
        let copies = copies(patient.size).map(|at| page_at(patient.number, at).0);
        let changed = changes.pages().into_iter();
        let changed = changed.filter(|page| page.device == patient.number);
        let wanted: BTreeSet<OverlayPage> = copies.chain(changed).collect();
        for page in wanted.difference(&have) {
            undo.write_page(*page, &*patient.read(*page)?)?;
        }
    }
    Ok(())
}

/// Notes the new superblocks in an undo file.
fn note_new(
    changes: &OverlayFile,
    undo: &OverlayFile,
    patients: &[Patient<'_>],
) -> Result<(), TransferError> {
    for patient in patients {
        for at in copies(patient.size) {
            let (page, _) = page_at(patient.number, at);
            let mut content = Box::new([0; PAGE]);
            if !changes.read(page, 0, &mut content[..])? {
                undo.read(page, 0, &mut content[..])?;
            }
            let second = OverlayPage {
                device: patient.second,
                ..page
            };
            undo.write_page(second, &content)?;
        }
    }
    Ok(())
}

/// Writes `changes` to `devices`, which are in the order of its header. `undo`
/// is the undo file: empty, or what an earlier attempt left of it.
///
/// # Errors
/// [`TransferError::OtherUndo`], [`TransferError::Changed`] and
/// [`TransferError::NoUndo`]: nothing was written to a device. After any other
/// error the devices may be half written; the same call goes on, and [`undo`]
/// brings the old content back.
pub fn commit(
    changes: &OverlayFile,
    devices: &[Arc<dyn BlockDevice>],
    undo: Arc<dyn BlockDevice>,
) -> Result<Transferred, TransferError> {
    let header = changes.header();
    if header.purpose != OverlayPurpose::Changes {
        return Err(PatientError::IsUndo(changes.identity()).into());
    }
    check_count(changes, header.devices.len(), devices)?;
    let file = match OverlayFile::open(Arc::clone(&undo)) {
        Ok(file) => {
            if !is_undo_of(&file, header)? {
                return Err(TransferError::OtherUndo(file.identity()));
            }
            let transfer = Transfer::new(header, devices, &file);
            transfer.verify()?;
            fill(changes, &file, &transfer.patients)?;
            file
        }
        Err(OverlayError::NoHeader(_)) => {
            // Nothing was written to a device yet.
            let bases = header.devices.iter().chain(&header.devices);
            let own = OverlayHeader {
                purpose: OverlayPurpose::Undo,
                volume: header.volume,
                devices: bases.cloned().collect(),
                names: header.names.clone(),
            };
            let file = OverlayFile::create_unnamed(undo, own)?;
            let transfer = Transfer::new(header, devices, &file);
            fill(changes, &file, &transfer.patients)?;
            if !is_undo_of(&file, header)? {
                let device = devices.first().map(|device| device.identity());
                return Err(TransferError::Changed {
                    device: device.unwrap_or_default(),
                });
            }
            file
        }
        Err(error) => return Err(error.into()),
    };
    let transfer = Transfer::new(header, devices, &file);
    note_new(changes, &file, &transfer.patients)?;
    file.name()?;
    transfer.run(Target::New(changes))
}

/// Brings back what `devices` held before a commit, from its undo file. They are
/// in the order of its header.
///
/// # Errors
/// As [`commit`].
pub fn undo(
    undo: &OverlayFile,
    devices: &[Arc<dyn BlockDevice>],
) -> Result<Transferred, TransferError> {
    let header = undo.header();
    if header.purpose != OverlayPurpose::Undo {
        return Err(TransferError::NoUndo(undo.identity()));
    }
    let count = header.devices.len().checked_div(2).unwrap_or(0);
    check_count(undo, count, devices)?;
    let own = OverlayHeader {
        devices: header.devices.get(..count).unwrap_or_default().to_vec(),
        ..header.clone()
    };
    Transfer::new(&own, devices, undo).run(Target::Old)
}

fn check_count(
    file: &OverlayFile,
    wanted: usize,
    devices: &[Arc<dyn BlockDevice>],
) -> Result<(), PatientError> {
    if wanted == devices.len() {
        return Ok(());
    }
    Err(PatientError::DeviceCount {
        overlay: file.identity(),
        wanted,
        given: devices.len(),
    })
}
