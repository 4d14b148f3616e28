//! The overlay over the devices of one volume.
//!
//! Owns what ties a file to its patient: the sizes of the devices and digests
//! of their superblocks.

use butterfs_device::{
    Access, BlockDevice, DeviceError, GrowingFile, OverlayBase, OverlayDevice, OverlayError,
    OverlayFile, OverlayHeader, OverlayPurpose,
};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{ChecksumType, DeviceOffset, UuidBytes};
use std::path::Path;
use std::sync::Arc;
use thiserror::Error;

/// Why an overlay cannot be used over devices.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PatientError {
    /// The file or a device failed, or the file is no overlay.
    #[error(transparent)]
    Overlay(#[from] OverlayError),
    /// The overlay was made over other devices, or these changed since.
    #[error(
        "the overlay {overlay} was not made over {device} as it is now: it belongs to another \
         volume, or the volume was changed since; nothing was written"
    )]
    OtherPatient {
        /// The file.
        overlay: String,
        /// A device that it does not know.
        device: String,
    },
    /// A device of the overlay was not given.
    #[error("the overlay {overlay} lies over {wanted} devices, and {given} were given")]
    DeviceCount {
        /// The file.
        overlay: String,
        /// Devices that it names.
        wanted: usize,
        /// Devices that were given.
        given: usize,
    },
    /// The writing of the overlay to its devices was cut short.
    #[error(
        "writing the overlay {overlay} to its devices was cut short; end it with `butterfs rescue \
         commit {overlay}`, or bring the old content back with `butterfs rescue undo {overlay}`"
    )]
    CutShort {
        /// The file.
        overlay: String,
    },
    /// The file was made for another use.
    #[error("{0} holds what devices were before a commit (an undo file), not changes of them")]
    IsUndo(String),
}

impl From<DeviceError> for PatientError {
    fn from(error: DeviceError) -> Self {
        Self::Overlay(error.into())
    }
}

/// Offsets of the copies of the superblock that a device has room for.
pub(crate) fn copies(device_size: u64) -> impl Iterator<Item = DeviceOffset> {
    let size = u64::try_from(SIZE).unwrap_or(u64::MAX);
    let fits = move |at: &DeviceOffset| at.saturating_add(size).get() <= device_size;
    COPIES.into_iter().filter(fits)
}

/// Digest of the copies of a superblock, each with its place.
pub(crate) fn digest_of<E>(
    device_size: u64,
    mut read: impl FnMut(DeviceOffset, &mut [u8]) -> Result<(), E>,
) -> Result<[u8; 32], E> {
    let mut all = Vec::new();
    for at in copies(device_size) {
        let mut bytes = vec![0; SIZE];
        read(at, &mut bytes)?;
        all.extend_from_slice(&at.get().to_le_bytes());
        all.extend_from_slice(&bytes);
    }
    Ok(ChecksumType::Sha256.compute(&all))
}

/// What a device is now.
fn base(device: &dyn BlockDevice) -> Result<OverlayBase, DeviceError> {
    let size = device.size();
    let digest = digest_of(size, |at, bytes| device.read_at(at, bytes))?;
    Ok(OverlayBase { size, digest })
}

/// UUID of the volume of the first device with a superblock; zeros if none has
/// one.
fn volume_of(devices: &[Arc<dyn BlockDevice>]) -> UuidBytes {
    let read = |device: &Arc<dyn BlockDevice>, at: DeviceOffset| {
        let mut bytes = vec![0; SIZE];
        device.read_at(at, &mut bytes).ok()?;
        Superblock::parse(&bytes, at).ok()
    };
    let found = devices.iter().find_map(|device| {
        let mut all = copies(device.size());
        all.find_map(|at| read(device, at))
    });
    found.map_or([0; 16], |superblock| superblock.fsid)
}

/// The name by which a device is found again.
fn name_of(device: &dyn BlockDevice) -> String {
    let name = device.identity();
    let whole = std::fs::canonicalize(&name).ok();
    let whole = whole.and_then(|path| path.into_os_string().into_string().ok());
    whole.unwrap_or(name)
}

/// What a new overlay over `devices` says of them.
///
/// # Errors
/// A device cannot be read.
pub fn header_over(devices: &[Arc<dyn BlockDevice>]) -> Result<OverlayHeader, PatientError> {
    let bases = devices.iter().map(|device| base(&**device));
    Ok(OverlayHeader {
        purpose: OverlayPurpose::Changes,
        volume: volume_of(devices),
        devices: bases.collect::<Result<_, _>>()?,
        names: devices.iter().map(|device| name_of(&**device)).collect(),
    })
}

/// Whether a commit to these devices was cut short: a copy of a superblock has
/// the mark that [`crate::transfer`] sets.
fn is_cut_short(devices: &[Arc<dyn BlockDevice>]) -> bool {
    devices.iter().any(|device| {
        copies(device.size()).any(|at| {
            let mut bytes = vec![0; SIZE];
            device.read_at(at, &mut bytes).is_ok() && crate::transfer::has_mark(&bytes)
        })
    })
}

/// For each device, its number in `file`.
///
/// # Errors
/// [`PatientError::IsUndo`], [`PatientError::CutShort`],
/// [`PatientError::OtherPatient`], [`PatientError::DeviceCount`]
pub fn numbers(
    file: &OverlayFile,
    devices: &[Arc<dyn BlockDevice>],
) -> Result<Vec<u32>, PatientError> {
    let header = file.header();
    if header.purpose == OverlayPurpose::Undo {
        return Err(PatientError::IsUndo(file.identity()));
    }
    if header.devices.len() != devices.len() {
        return Err(PatientError::DeviceCount {
            overlay: file.identity(),
            wanted: header.devices.len(),
            given: devices.len(),
        });
    }
    if is_cut_short(devices) {
        return Err(PatientError::CutShort {
            overlay: file.identity(),
        });
    }
    let mut taken: Vec<u32> = Vec::new();
    for device in devices {
        let now = base(&**device)?;
        let mut fitting = header.devices.iter().zip(0_u32..);
        let found = fitting.find(|(base, number)| **base == now && !taken.contains(number));
        let Some((_, number)) = found else {
            return Err(PatientError::OtherPatient {
                overlay: file.identity(),
                device: device.identity(),
            });
        };
        taken.push(number);
    }
    Ok(taken)
}

/// The devices with the changes of `file` over them.
///
/// # Errors
/// As [`numbers`].
pub fn over(
    file: &Arc<OverlayFile>,
    devices: Vec<Arc<dyn BlockDevice>>,
) -> Result<Vec<Arc<dyn BlockDevice>>, PatientError> {
    let numbers = numbers(file, &devices)?;
    let laid = devices.into_iter().zip(numbers).map(|(device, number)| {
        let laid = OverlayDevice::in_file(device, Arc::clone(file), number);
        let laid: Arc<dyn BlockDevice> = Arc::new(laid);
        laid
    });
    Ok(laid.collect())
}

/// Opens the overlay at `path` over `devices`, or makes it if nothing is there
/// and it is opened for writing.
///
/// # Errors
/// As [`numbers`], and those of the file.
pub fn open(
    path: &Path,
    devices: Vec<Arc<dyn BlockDevice>>,
    access: Access,
) -> Result<Vec<Arc<dyn BlockDevice>>, PatientError> {
    let file = if access == Access::ReadWrite && !path.exists() {
        let header = header_over(&devices)?;
        if is_cut_short(&devices) {
            return Err(PatientError::CutShort {
                overlay: path.display().to_string(),
            });
        }
        let backing = Arc::new(GrowingFile::create(path)?);
        OverlayFile::create(backing, header)?
    } else {
        OverlayFile::open(Arc::new(GrowingFile::open(path, access)?))?
    };
    over(&Arc::new(file), devices)
}
