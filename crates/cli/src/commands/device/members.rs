//! `butterfs device add` and `remove`.

use super::named::{absolute, device_of, is_same, name_of, open, open_new, verify_different};
use super::of_kernel::{self, Fresh};
use super::running::begun;
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::place::Place;
use crate::service::{Effect, OnKernel, OnVolume};
use crate::sizes::human;
use butterfs::{DeviceChange, DeviceChangeProgress, RunningChange, Volume};
use butterfs_admin::devices::{self, Discard, Removal};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

/// Add devices to a volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs device add more.img disk.img       disk.img is a volume that is not mounted
  butterfs device add /dev/sdx1 /mnt
  butterfs device add -f /dev/sdx1 /dev/sdy1 /mnt
  butterfs device add more.img seed.img       more.img grows from a seed (butterfs tune -S 1)

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
    /// Accepted: several devices are removed without a pause before it.
    #[arg(short = 'f', long = "force")]
    _force: bool,
    /// Numbers or paths of devices, or `missing`, and at the end the volume.
    #[arg(num_args = 2.., required = true, value_names = ["DEVICE", "VOLUME"])]
    words: Vec<PathBuf>,
}

/// What is to be done.
#[derive(Debug, Deserialize, Serialize)]
enum Action {
    Add {
        devices: Vec<OsString>,
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

impl Add {
    /// Runs it.
    pub fn run(mut self) -> Done {
        let place = volume_of(&mut self.words)?;
        facts::note_mixed_profiles_of_mount(&place.volume);
        let devices = self
            .words
            .iter()
            .map(|path| absolute(path).map(PathBuf::into_os_string));
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
            _ => {
                facts::note_mixed_profiles_of_mount(&place.volume);
                Action::Remove(named)
            }
        };
        OnVolume::run(Order { action, place })
    }
}

impl OnVolume for Order {
    const NAME: &'static str = "device";
    const TAG: &'static str = "Members";
    const ON_KERNEL: OnKernel = OnKernel::Asks;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn effect(&self) -> Effect {
        match self.action {
            Action::Add { .. } | Action::Remove(_) => Effect::Changes,
            Action::CancelRemoval => Effect::Reads,
        }
    }

    fn run_here(self) -> Done {
        let place = &self.place;
        match &self.action {
            Action::Add {
                devices,
                force,
                nodiscard,
            } => add(place, &paths(devices), *force, *nodiscard),
            Action::Remove(named) => remove(place, named),
            Action::CancelRemoval => cancel_removal(place),
        }
    }

    fn ask_kernel(self, _: &Path, given: &Path) -> Done {
        match self.action {
            Action::Add {
                devices,
                force,
                nodiscard,
            } => of_kernel::add(given, &paths(&devices), Fresh { force, nodiscard }),
            Action::Remove(named) => of_kernel::remove(given, &named),
            Action::CancelRemoval => of_kernel::cancel_removal(given),
        }
    }
}

fn paths(devices: &[OsString]) -> Vec<PathBuf> {
    devices.iter().map(PathBuf::from).collect()
}

fn add(place: &Place, paths: &[PathBuf], force: bool, nodiscard: bool) -> Done {
    let discard = match nodiscard {
        true => Discard::Nothing,
        false => Discard::Whole,
    };
    let own: Vec<PathBuf> = match host::volume() {
        Some(volume) => {
            let names = volume.devices().into_iter().filter_map(|own| own.name);
            names.map(PathBuf::from).collect()
        }
        None => butterfs::find_members(&place.volume),
    };
    verify_different(paths)?;
    // All are checked before one is written to.
    for path in paths {
        if own.iter().any(|own| is_same(path, own)) {
            return fail(format!(
                "{} is a device of the volume already; `butterfs device usage` lists its devices",
                path.display()
            ));
        }
    }
    let new = paths.iter().map(|path| open_new(path, force));
    let mut new: Vec<_> = new.collect::<Result<_, _>>()?;
    let mut paths = paths;
    let mut place = place.clone();
    if host::volume().is_none() && butterfs::is_seed(&place.volume) {
        let Some((path, others)) = paths.split_first() else {
            return Ok(());
        };
        let device = new.remove(0);
        let size = device.size();
        let id =
            butterfs::sprout(&place.volume, device, discard).context(place.volume.display())?;
        let (name, seed) = (path.display(), place.volume.display());
        say!("Device {id} is {name} with {}", human(size));
        say!("{name} is a new volume, which grows from {seed}; it needs {seed} beside it");
        place.volume.clone_from(path);
        paths = others;
    }
    let place = &place;
    if paths.is_empty() {
        return Ok(());
    }
    let (volume, is_own) = open(place, &[])?;
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
    let running = begun(&volume, DeviceChange::Removal)?;
    let interrupt = is_own.then(Interrupt::watch).transpose()?;
    volume.files().clean_all().context(place.volume.display())?;
    let mut ended = Ok(());
    for name in named {
        ended = remove_one(&volume, name, &running, interrupt.as_ref());
        if ended.is_err() {
            break;
        }
    }
    drop(running);
    if is_own {
        volume.close().context(place.volume.display())?;
    }
    ended
}

fn remove_one(
    volume: &Volume,
    name: &str,
    running: &RunningChange,
    interrupt: Option<&Interrupt>,
) -> Done {
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
        let is_cancelled = running.note(DeviceChangeProgress {
            done,
            all: most,
            errors: 0,
        });
        let asked = interrupt.is_some_and(|interrupt| interrupt.check().is_err());
        match asked || is_cancelled {
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
    match volume.cancel_device_change(DeviceChange::Removal) {
        true => Ok(()),
        false => fail("no removal of a device runs"),
    }
}
