//! `butterfs device add` and `remove`, and what they share with `replace`: how
//! a device is named, and how its volume is opened.

use super::running::{Running, Turn};
use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::place::Place;
use crate::service::OnVolume;
use crate::sizes::human;
use butterfs::{
    Access, BlockDevice, Degraded, Error, FileDevice, MemberFault, MemberState, OpenOptions,
    StoreError, Subvolume, Volume,
};
use butterfs_admin::devices::{self, Discard, Removal};
use butterfs_device::probe;
use butterfs_format::DeviceId;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::fs::Metadata;
use std::ops::ControlFlow;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Add devices to a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs device add more.img disk.img       disk.img is a volume that is not mounted
  butterfs device add /dev/sdx1 /mnt
  butterfs device add -f /dev/sdx1 /dev/sdy1 /mnt

What was on the devices is lost. New data go to them at once; `butterfs balance start` moves some of the old there, too. A file must exist: `truncate -s 10g more.img` makes one. A crash at any point leaves the volume with the device or without it.")]
pub struct Add {
    /// Do not discard what is on the devices.
    #[arg(short = 'K', long)]
    nodiscard: bool,
    /// Overwrite file systems on the devices.
    #[arg(short, long)]
    force: bool,
    /// Files or block devices, and at the end the volume: one of its devices,
    /// or a directory where it is mounted.
    #[arg(num_args = 2.., required = true, value_names = ["DEVICE", "VOLUME"])]
    words: Vec<PathBuf>,
}

/// Remove devices from a volume; what lies on them moves to the others first.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs device remove 2 one.img
  butterfs device remove /dev/sdx1 /mnt
  butterfs device remove missing /mnt        mounted with -o degraded
  butterfs device remove cancel /mnt         ends the removal that runs there

It may be interrupted at any time: what has moved, moved, and the device stays until nothing lies on it. Its superblocks are wiped at the end. The removal on a mounted volume goes on in its server until it is done or cancelled.")]
pub struct Remove {
    /// Numbers or paths of devices, or `missing`, and at the end the volume.
    #[arg(num_args = 2.., required = true, value_names = ["DEVICE", "VOLUME"])]
    words: Vec<PathBuf>,
}

/// What is to be done.
#[derive(Debug, Deserialize, Serialize)]
enum Action {
    Add {
        devices: Vec<PathBuf>,
        force: bool,
        nodiscard: bool,
    },
    Remove(Vec<String>),
    CancelRemoval,
}

/// What is to be done, and where.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    action: Action,
    place: Place,
}

fn volume_of(words: &mut Vec<PathBuf>) -> Result<Place, Failure> {
    let Some(volume) = words.pop() else {
        return fail(
            "no volume was given; name a mountpoint, or a file or device of the volume, at the end",
        );
    };
    Ok(Place {
        volume,
        path: "/".into(),
    })
}

/// The same file by its full path, because a server has another working
/// directory.
pub fn absolute(path: &Path) -> Result<PathBuf, Failure> {
    std::path::absolute(path).context(path.display())
}

impl Add {
    /// Runs it.
    pub fn run(mut self) -> Done {
        let place = volume_of(&mut self.words)?;
        let devices = self.words.iter().map(|path| absolute(path));
        let action = Action::Add {
            devices: devices.collect::<Result<_, _>>()?,
            force: self.force,
            nodiscard: self.nodiscard,
        };
        OnVolume::run(Order { action, place })
    }
}

impl Remove {
    /// Runs it.
    pub fn run(mut self) -> Done {
        let place = volume_of(&mut self.words)?;
        let named = self.words.iter().map(|word| name_of(word));
        let named: Vec<String> = named.collect::<Result<_, _>>()?;
        let action = match &named[..] {
            [one] if one == "cancel" => Action::CancelRemoval,
            _ => Action::Remove(named),
        };
        OnVolume::run(Order { action, place })
    }
}

/// A device as a user names it, in a form that a server understands, too.
pub fn name_of(word: &Path) -> Result<String, Failure> {
    let text = word.to_string_lossy().into_owned();
    let is_number = text.parse::<u64>().is_ok();
    if is_number || text == "missing" || text == "cancel" {
        return Ok(text);
    }
    Ok(absolute(word)?.to_string_lossy().into_owned())
}

/// Equal for the same file or block device.
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

/// The device of a volume that the user named: by its number, by its path, or
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

/// Opens a volume whose devices are to change, or takes that of the server. If
/// devices are missing, `mended` are the ones with which the command deals.
pub fn open(place: &Place, mended: &[String]) -> Result<(Volume, bool), Failure> {
    if let Some(volume) = host::volume() {
        return Ok((volume, false));
    }
    let path = &place.volume;
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
    // Only the devices that are about to be mended may be missing. All others
    // would become stale by what is written now.
    let mut look = OpenOptions::read_only();
    look.store.degraded = Degraded::Allowed;
    look.subvolume = Subvolume::Id(5);
    let seen = Volume::open(path, look).context(path.display())?;
    let meant: Vec<DeviceId> = mended
        .iter()
        .map(|name| device_of(&seen, name))
        .collect::<Result<_, _>>()?;
    let is_away = |id: &DeviceId| {
        let all = seen.devices();
        let device = all.iter().find(|device| device.item.id == *id);
        device.is_some_and(|device| device.state != MemberState::Present)
    };
    if !meant.iter().any(is_away) {
        return Ok((opened.context(path.display())?, true));
    }
    drop(seen);
    options.store.degraded = Degraded::Allowed;
    let volume = Volume::open(path, options).context(path.display())?;
    Ok((volume, true))
}

impl OnVolume for Order {
    const NAME: &'static str = "device";
    const TAG: &'static str = "Members";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let place = &self.place;
        match &self.action {
            Action::Add {
                devices,
                force,
                nodiscard,
            } => add(place, devices, *force, *nodiscard),
            Action::Remove(named) => remove(place, named),
            Action::CancelRemoval => cancel_removal(place),
        }
    }
}

fn add(place: &Place, paths: &[PathBuf], force: bool, nodiscard: bool) -> Done {
    let discard = match nodiscard {
        true => Discard::Nothing,
        false => Discard::Whole,
    };
    let (volume, is_own) = open(place, &[])?;
    // All are checked before one is written to.
    let new: Vec<_> = paths
        .iter()
        .map(|path| open_new(path, force))
        .collect::<Result<_, _>>()?;
    for (path, device) in paths.iter().zip(new) {
        let size = device.size();
        let id = devices::add(volume.files().store(), device, discard).context(path.display())?;
        say!("Device {id} is {} with {}", path.display(), human(size));
    }
    if is_own {
        volume.close().context(place.volume.display())?;
    }
    Ok(())
}

fn remove(place: &Place, named: &[String]) -> Done {
    let (volume, is_own) = open(place, named)?;
    let turn = Turn::take(&volume, Running::Removal)?;
    let interrupt = is_own.then(Interrupt::watch).transpose()?;
    volume.files().clean_all().context(place.volume.display())?;
    let mut ended = Ok(());
    for name in named {
        ended = remove_one(&volume, name, &turn, interrupt.as_ref());
        if ended.is_err() {
            break;
        }
    }
    drop(turn);
    if is_own {
        volume.close().context(place.volume.display())?;
    }
    ended
}

fn remove_one(volume: &Volume, name: &str, turn: &Turn, interrupt: Option<&Interrupt>) -> Done {
    let id = device_of(volume, name)?;
    let what = match name.parse::<u64>() {
        Ok(_) => format!("error removing devid {id}"),
        Err(_) => format!("error removing device '{name}'"),
    };
    let mut meter = Meter::new();
    let mut most = 0;
    let removed = devices::remove(volume.files().store(), id, &mut |progress| {
        most = most.max(progress.left_in_all);
        let done = most.saturating_sub(progress.left_in_all);
        meter.show(done, most);
        turn.note(done, most, 0);
        let asked = interrupt.is_some_and(|interrupt| interrupt.check().is_err());
        match asked || turn.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    });
    meter.end();
    match removed.context(what)? {
        Removal::Stopped => fail(format!(
            "the removal was cancelled: device {id} stays, with what had not moved"
        )),
        Removal::Removed(gone) => {
            if let (Some(name), Some(error)) = (gone.name, gone.not_wiped) {
                note!(
                    "warning: {name} is no part of the volume any more, but its superblock could \
                     not be wiped: {error}; do not use it with the volume"
                );
            }
            Ok(())
        }
    }
}

fn cancel_removal(place: &Place) -> Done {
    let Some(volume) = host::volume() else {
        return fail(format!(
            "{}: no removal runs: it is not mounted",
            place.volume.display()
        ));
    };
    match Turn::cancel(&volume, Running::Removal) {
        true => Ok(()),
        false => fail("no removal of a device runs"),
    }
}
