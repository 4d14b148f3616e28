//! How a device is named that a command is about, and how its volume is opened.

use crate::fail::{Context, Failure, fail};
use crate::host;
use crate::place::Place;
use butterfs::{
    Access, BlockDevice, Degraded, DeviceFacts, Error, FileDevice, MemberFault, MemberState,
    OpenOptions, StoreError, Subvolume, Volume,
};
use butterfs_admin::devices;
use butterfs_device::probe;
use butterfs_format::DeviceId;
use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The absolute path of a file: a server has another working directory.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).context(path.display())
}

/// A device as a user names it, so that a server understands it, too.
pub fn name_of(word: &Path) -> Result<String, Failure> {
    let text = word.to_string_lossy().into_owned();
    let is_number = text.parse::<u64>().is_ok();
    if is_number || text == "missing" || text == "cancel" {
        return Ok(text);
    }
    Ok(absolute(word)?.to_string_lossy().into_owned())
}

/// What is equal for all paths of one file or block device.
fn identity(facts: &Metadata) -> (u64, u64) {
    match facts.file_type().is_block_device() {
        true => (0, facts.rdev()),
        false => (facts.dev().saturating_add(1), facts.ino()),
    }
}

/// Whether two paths name one file or block device.
pub fn is_same(one: &Path, other: &Path) -> bool {
    let (Ok(one), Ok(other)) = (one.metadata(), other.metadata()) else {
        return false;
    };
    identity(&one) == identity(&other)
}

/// A device for messages: its number, its path if it has one, and its state.
pub fn named_with_state(device: &DeviceFacts) -> String {
    let (id, state) = (device.item.id, device.state.name());
    match &device.name {
        Some(name) => format!("device {id} ({name}, {state})"),
        None => format!("device {id} ({state})"),
    }
}

/// Errors if two of the paths name one file or block device.
pub fn verify_different(paths: &[PathBuf]) -> Result<(), Failure> {
    for (index, path) in paths.iter().enumerate() {
        let mut earlier = paths.iter().take(index);
        if let Some(first) = earlier.find(|first| *first == path || is_same(first, path)) {
            return fail(match first == path {
                true => format!("{} is named twice", path.display()),
                false => format!(
                    "{} and {} are the same device",
                    first.display(),
                    path.display()
                ),
            });
        }
    }
    Ok(())
}

/// The device of a volume that somebody named: by its number, by its path, or
/// `missing`.
pub fn device_of(volume: &Volume, name: &str) -> Result<DeviceId, Failure> {
    if name == "missing" {
        return Ok(devices::first_missing(volume.files().store())?);
    }
    let all = volume.devices();
    if let Ok(number) = name.parse::<u64>() {
        return match all.iter().any(|device| device.item.id.get() == number) {
            true => Ok(DeviceId(number)),
            false => fail(format!("'{name}' is not a valid devid of the volume")),
        };
    }
    let is_it = |path: &String| is_same(Path::new(name), Path::new(path));
    let found = all
        .iter()
        .find(|device| device.name.as_ref().is_some_and(is_it));
    match found {
        Some(device) => Ok(device.item.id),
        None => fail(format!(
            "{name} is no device of the volume; `butterfs filesystem show` lists its devices"
        )),
    }
}

/// Errors where a device that is to become a part of a volume is one already.
pub fn verify_new(volume: &Volume, path: &Path) -> Result<(), Failure> {
    let all = volume.devices();
    let is_it = |name: &String| is_same(path, Path::new(name));
    match all.iter().find(|own| own.name.as_ref().is_some_and(is_it)) {
        None => Ok(()),
        Some(own) => fail(format!(
            "{} is device {} of the volume already; `butterfs device usage` lists its devices",
            path.display(),
            own.item.id
        )),
    }
}

/// Errors if a device that is to be overwritten holds something.
pub fn verify_nothing_there(path: &Path, device: &FileDevice) -> Result<(), Failure> {
    let found = probe::contents(device).context(path.display())?;
    match found.first() {
        None => Ok(()),
        Some(first) => fail(format!(
            "{} holds {first}; use -f to overwrite it",
            path.display()
        )),
    }
}

/// Opens a file or block device that is to become a part of a volume.
pub fn open_new(path: &Path, force: bool) -> Result<Arc<dyn BlockDevice>, Failure> {
    let device = FileDevice::open(path, Access::ReadWrite)?;
    if !force {
        let found = probe::contents(&device).context(path.display())?;
        if let Some(first) = found.first() {
            return fail(format!(
                "{path} appears to contain {first}; use the -f option to force overwrite of {path}",
                path = path.display()
            ));
        }
    }
    Ok(Arc::new(device))
}

/// Opens a volume whose devices are to change, or takes that of the server.
/// Where devices are missing, `mended` are the ones that the command is about.
pub fn open(place: &Place, mended: &[String]) -> Result<(Volume, bool), Failure> {
    if let Some(volume) = host::volume() {
        return Ok((volume, false));
    }
    let path = &place.volume;
    if butterfs::is_overlay(path) {
        return fail(format!(
            "{path} is an overlay, which lies over just the devices that it names; write it with \
             `butterfs rescue commit {path}` first",
            path = path.display()
        ));
    }
    let mut options = OpenOptions {
        subvolume: Subvolume::Id(5),
        ..OpenOptions::default()
    };
    let opened = Volume::open(path, options.clone());
    let is_incomplete = matches!(
        opened,
        Err(Error::Store(StoreError::Members(
            MemberFault::Missing(_) | MemberFault::Stale { .. }
        )))
    );
    if !is_incomplete || mended.is_empty() {
        return Ok((opened.context(path.display())?, true));
    }
    // Only what is about to be mended may be missing: any other missing device
    // would become stale by what is written now.
    let mut look = OpenOptions::as_committed();
    look.store.degraded = Degraded::Allowed;
    look.subvolume = Subvolume::Id(5);
    let seen = Volume::open(path, look).context(path.display())?;
    let meant: Vec<DeviceId> = mended
        .iter()
        .map(|name| device_of(&seen, name))
        .collect::<Result<_, _>>()?;
    let all = seen.devices();
    let mut away = all
        .iter()
        .filter(|device| device.state != MemberState::Present);
    if !away.all(|device| meant.contains(&device.item.id)) {
        return Ok((opened.context(path.display())?, true));
    }
    drop(seen);
    options.store.degraded = Degraded::Allowed;
    let volume = Volume::open(path, options).context(path.display())?;
    Ok((volume, true))
}
