//! A file that stands for a volume: an overlay, which names the devices that it
//! lies over.
//!
//! Reads come from the devices and from the changes in the overlay. Writes go to
//! the overlay alone: the devices are opened for reading.

use crate::Error;
use butterfs_device::{Access, BlockDevice, FileDevice, GrowingFile, OverlayFile};
use butterfs_repair::overlay;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Whether the file at `path` is an overlay, as `butterfs check --repair` and
/// the mount option `overlay=` make them.
#[must_use]
pub fn is_overlay(path: impl AsRef<Path>) -> bool {
    OverlayFile::is_at(path.as_ref())
}

/// Where the devices were when the overlay at `path` was made, in its order.
///
/// # Errors
/// The file is no overlay; reading.
pub fn devices_of_overlay(path: impl AsRef<Path>) -> Result<Vec<PathBuf>, Error> {
    let backing = GrowingFile::open(path.as_ref(), Access::ReadOnly)?;
    let file = OverlayFile::open(Arc::new(backing)).map_err(overlay::PatientError::from)?;
    Ok(file.header().names.iter().map(PathBuf::from).collect())
}

/// Opens the devices of the overlay at `path` with its changes over them.
///
/// # Errors
/// The file is no overlay, or keeps what devices held before a commit; a device
/// is not there any more, is in use, or was changed since.
pub fn open_overlay(
    path: impl AsRef<Path>,
    access: Access,
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    let path = path.as_ref();
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for name in devices_of_overlay(path)? {
        devices.push(Arc::new(FileDevice::open(&name, Access::ReadOnly)?));
    }
    Ok(overlay::open(path, devices, access)?)
}

/// Opens the file or block device at `path` to look at its superblock, without
/// a lock; the first device of an overlay.
///
/// # Errors
/// As [`open_overlay`] and [`FileDevice::open_unlocked`].
pub fn open_to_look(path: impl AsRef<Path>) -> Result<Arc<dyn BlockDevice>, Error> {
    let path = path.as_ref();
    if is_overlay(path)
        && let Some(first) = open_overlay(path, Access::ReadOnly)?.into_iter().next()
    {
        return Ok(first);
    }
    Ok(Arc::new(FileDevice::open_unlocked(path)?))
}

/// Opens the files and block devices at `paths`, or an overlay, which stands for
/// its devices.
///
/// # Errors
/// As [`open_overlay`]; several paths of which one is an overlay.
pub fn open_members<P: AsRef<Path>>(
    paths: &[P],
    access: Access,
) -> Result<Vec<Arc<dyn BlockDevice>>, Error> {
    crate::members::open(paths, access)
}

/// The overlay that is named in the place of devices: the only one of `paths`.
///
/// # Errors
/// An overlay beside other paths.
pub fn only_overlay<P: AsRef<Path>>(paths: &[P]) -> Result<Option<&Path>, Error> {
    let mut overlays = paths
        .iter()
        .map(AsRef::as_ref)
        .filter(|path| is_overlay(path));
    match (overlays.next(), paths.len()) {
        (Some(overlay), 1) => Ok(Some(overlay)),
        (Some(overlay), _) => Err(Error::OverlayAmongDevices(overlay.to_owned())),
        (None, _) => Ok(None),
    }
}
