//! Operations on whole volumes: making, checking and scrubbing them.

use crate::{Error, Volume};
use butterfs_admin::devices::{self, Discard};
use butterfs_admin::mkfs::{self, MkfsOptions, Summary};
use butterfs_admin::scrub::{self, DeviceProgress, Repair};
use butterfs_check::{NoProgress, Report};
use butterfs_device::{Access, BlockDevice, FileDevice, probe};
use butterfs_format::DeviceId;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// What happens to the content of devices before a volume is made on them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Content {
    /// A device with known content is refused.
    #[default]
    Keep,
    /// It is overwritten.
    Overwrite,
}

/// Makes a volume in a new file of `bytes`. The file is sparse: it takes only
/// the space of its content.
///
/// # Errors
/// There is a file at `path`; options contradict each other or need more bytes;
/// writing failed. No file is left then.
pub fn make_volume(
    path: impl AsRef<Path>,
    bytes: u64,
    options: &MkfsOptions,
) -> Result<Summary, Error> {
    let path = path.as_ref();
    let device = FileDevice::create(path, bytes)?;
    let made = mkfs::make(&device, options);
    if made.is_err() {
        // The file was made for the volume, and holds none.
        let _ = std::fs::remove_file(path);
    }
    Ok(made?)
}

/// Makes a volume on one or several existing files or block devices.
///
/// # Errors
/// A device is in use, or holds something and `content` keeps it; options
/// contradict each other or do not fit the devices. All these come before
/// anything is written. Writing failed.
pub fn make_volume_on<P: AsRef<Path>>(
    paths: &[P],
    options: &MkfsOptions,
    content: Content,
) -> Result<Summary, Error> {
    let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for path in paths {
        let device = FileDevice::open(path.as_ref(), Access::ReadWrite)?;
        if content == Content::Keep
            && let Some(found) = probe::contents(&device)?.first()
        {
            return Err(Error::InUse {
                device: device.identity(),
                found: *found,
            });
        }
        devices.push(Arc::new(device));
    }
    let made = match &devices[..] {
        [one] => mkfs::make(&**one, options),
        several => mkfs::make_on(several, options),
    };
    Ok(made?)
}

/// Whether the file or block device at `path` is a seed: a volume that others
/// grow from, and that never changes.
#[must_use]
pub fn is_seed(path: impl AsRef<Path>) -> bool {
    crate::members::is_seed(path.as_ref())
}

/// Makes a volume that grows from the seed at `seed`, with `device` as its own:
/// it shows what the seed shows, and what changes goes to `device`. What was on
/// `device` is lost; nothing is written to the seed. Returns the number of
/// `device` in the new volume. To open that volume, name `device` and the seed.
///
/// # Errors
/// It is no seed; the device is too small; reading, writing.
pub fn sprout(
    seed: impl AsRef<Path>,
    device: Arc<dyn BlockDevice>,
    discard: Discard,
) -> Result<DeviceId, Error> {
    let paths = crate::find_members(seed.as_ref());
    let seeds = crate::members::open(&paths, Access::ReadOnly)?;
    Ok(devices::sprout(seeds, device, discard)?)
}

/// Checks the volume in the file or block device at `path`, and on the others
/// that belong to it, with the options of [`crate::check::Options::default`].
/// Writes nothing. The volume must not be open for writing.
///
/// # Errors
/// The volume could not be checked at all. For a volume that was checked, the
/// report says what is wrong.
pub fn check(path: impl AsRef<Path>) -> Result<Report, Error> {
    let paths = crate::find_members(path.as_ref());
    let devices = crate::members::open(&paths, Access::ReadOnly)?;
    let options = butterfs_check::Options::default();
    Ok(butterfs_check::check(devices, &options, &NoProgress)?)
}

impl Volume {
    /// Reads every copy of everything on all devices and compares it with its
    /// checksum. `repair` says whether bad copies are rewritten from good ones.
    /// Others may use the volume meanwhile. [`crate::scrub::scrub`] also has
    /// progress, a limit of the rate, and an end on demand.
    ///
    /// # Errors
    /// Trees that cannot be read; a RAID stripe tree. Bad copies are no error:
    /// they are counted.
    pub fn scrub(&self, repair: Repair) -> Result<Vec<DeviceProgress>, Error> {
        self.check_open()?;
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let options = scrub::Options { repair, threads };
        let pace = scrub::Pace::default();
        let mut go_on = |_: &scrub::News<'_>| ControlFlow::Continue(pace);
        Ok(scrub::scrub(self.store(), &options, &[], &mut go_on)?)
    }
}
