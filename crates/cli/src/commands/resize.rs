//! `butterfs filesystem resize`: the size of a volume's device.

use crate::commands::device::running::begun;
use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::interrupt::Interrupt;
use crate::place::Place;
use crate::service::{Effect, OnVolume};
use crate::sizes::{self, human};
use butterfs::{BlockDevice, DeviceChange, OnShortDevice, OpenOptions, Part, Subvolume, Volume};
use butterfs_admin::resize::{self, End, Progress, Size};
use butterfs_format::DeviceId;
use butterfs_kernel::{self as kernel, is_kernel_btrfs};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Make the volume on a device larger or smaller.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs filesystem resize max disk.img        all that the file or device has
  butterfs filesystem resize +10g disk.img       a file that is too small grows
  butterfs filesystem resize -10g disk.img
  butterfs filesystem resize 1:200g disk.img     device 1

A volume that shrinks moves what lies beyond its new end first, and keeps its size until that is done: it may be interrupted at any time. The file or device keeps its own size. While it is mounted, the file is enlarged first, by truncate(1) for example, and `max` takes all of it. If a device is shorter than its volume and nothing lies beyond its end, `DEVID:max` ends the volume there.")]
pub struct Resize {
    /// `[DEVID:]SIZE`, `[DEVID:]+SIZE`, `[DEVID:]-SIZE` or `[DEVID:]max`; bytes, or
    /// with k, m, g, t for KiB, MiB, GiB, TiB. `cancel` ends the resize that runs
    /// on a mount.
    #[arg(allow_hyphen_values = true, value_name = "SIZE", value_parser = understood)]
    size: String,
    /// Fail if the volume is mounted.
    #[arg(long)]
    offline: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: Place,
}

/// A size, and of which device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    device: DeviceId,
    size: Size,
}

/// Ends a resize in place of a size.
const CANCEL: &str = "cancel";

/// A size that can be understood, as it was written.
fn understood(text: &str) -> Result<String, String> {
    if text == CANCEL {
        return Ok(text.to_owned());
    }
    text.parse::<Wanted>().map(|_| text.to_owned())
}

/// Ends the resize that runs in this process.
fn cancel(path: &Path) -> Done {
    match host::volume() {
        Some(volume) if volume.cancel_device_change(DeviceChange::Resize) => Ok(()),
        Some(_) => fail(format!("{}: no resize runs", path.display())),
        None => fail(format!(
            "{}: no resize runs: it is not mounted",
            path.display()
        )),
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (device, size) = text.split_once(':').unwrap_or(("1", text));
        let device: u64 = device
            .parse()
            .map_err(|_| format!("`{device}` is no device's number"))?;
        let size = match size.as_bytes() {
            b"max" => Size::Max,
            [b'+', ..] => Size::Plus(sizes::parse(&size[1..])?),
            [b'-', ..] => Size::Minus(sizes::parse(&size[1..])?),
            _ => Size::Exactly(sizes::parse(size)?),
        };
        Ok(Self {
            device: DeviceId(device),
            size,
        })
    }
}

/// A file that was made larger for a device of the volume.
struct Extended {
    path: PathBuf,
    from: u64,
}

impl Extended {
    /// Makes the file that holds the device as large as the device will be.
    /// `None` if it is large enough, or if the device is not the whole of a
    /// file.
    fn new(volume: &Volume, wanted: Wanted) -> Result<Option<Self>, Failure> {
        let store = volume.files().store();
        let old = store.device_bytes(wanted.device)?;
        store.verify_own(wanted.device)?;
        let needed = match wanted.size {
            Size::Exactly(bytes) => bytes,
            Size::Plus(bytes) => old.saturating_add(bytes),
            Size::Max | Size::Minus(_) => return Ok(None),
        };
        let all = volume.devices();
        let own = all.iter().find(|own| own.item.id == wanted.device);
        let block = store.space().device(wanted.device);
        let (Some(name), Some(block)) = (own.and_then(|own| own.name.clone()), block) else {
            return Ok(None);
        };
        let path = PathBuf::from(name);
        let Ok(metadata) = path.metadata() else {
            return Ok(None);
        };
        let from = metadata.len();
        if !metadata.is_file() || from != block.look_at_size() || needed <= from {
            return Ok(None);
        }
        if i64::try_from(needed).is_err() {
            return fail(format!(
                "a file cannot have {needed} bytes; choose a smaller size"
            ));
        }
        let file = File::options().write(true).open(&path);
        let file = file.context(path.display())?;
        file.set_len(needed).context(path.display())?;
        Ok(Some(Self { path, from }))
    }

    /// Makes the file as large as before, if the volume was not resized.
    fn take_back(self) {
        let file = File::options().write(true).open(&self.path);
        let _ = file.and_then(|file| file.set_len(self.from));
    }
}

/// Opens a volume whose device may be shorter than the volume. The resize sets
/// that right.
fn open_to_resize(path: &Path) -> Result<Volume, Failure> {
    let mut options = OpenOptions {
        subvolume: Subvolume::Id(5),
        ..OpenOptions::default()
    };
    options.store.on_short_device = OnShortDevice::EndThere;
    Volume::open(path, options).context(path.display())
}

impl OnVolume for Resize {
    const NAME: &'static str = "filesystem resize";
    const TAG: &'static str = "Resize";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.volume)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.volume, Part::Whole))
    }

    fn effect(&self) -> Effect {
        Effect::Changes
    }

    fn run_here(self) -> Done {
        let path = &self.volume.volume;
        if self.size == CANCEL {
            return cancel(path);
        }
        let wanted: Wanted = self.size.parse()?;
        let (volume, is_own) = match host::volume() {
            Some(volume) => (volume, false),
            None => (open_to_resize(path)?, true),
        };
        let extended = match is_own {
            true => Extended::new(&volume, wanted).map_err(|failure| failure.at(path.display()))?,
            false => None,
        };
        let running = begun(&volume, DeviceChange::Resize)?;
        let interrupt = is_own.then(Interrupt::watch).transpose()?;
        volume.files().clean_all().context(path.display())?;
        let target = match is_own {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} block groups{msg}") {
            bar.set_style(style);
        }
        let store = volume.files().store();
        let watch = &mut |progress: &Progress| {
            bar.set_length(progress.groups as u64);
            bar.set_position(progress.moved as u64);
            bar.set_message(format!(", {} left in this one", human(progress.left)));
            let asked = interrupt.as_ref().is_some_and(|own| own.check().is_err());
            match asked || running.is_cancelled() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let resized = resize::resize(store, wanted.device, wanted.size, watch);
        bar.finish_and_clear();
        drop(running);
        // After a commit that failed, the device may have its new size.
        let is_as_before = |extended: &Extended| {
            let bytes = store.device_bytes(wanted.device);
            store.poison().is_none() && bytes.is_ok_and(|bytes| bytes <= extended.from)
        };
        if resized.is_err()
            && let Some(extended) = extended.filter(is_as_before)
        {
            extended.take_back();
        }
        let end = resized.context(path.display())?;
        if is_own {
            volume.close().context(path.display())?;
        }
        match end {
            End::Stopped => fail("the resize was cancelled: the volume has its old size"),
            End::Resized { from, to } => {
                say!(
                    "Device {} of {} had {} and has {}",
                    wanted.device,
                    path.display(),
                    human(from),
                    human(to)
                );
                Ok(())
            }
        }
    }
}

impl Resize {
    /// Runs it. If the kernel has the volume mounted, the kernel does it.
    pub fn run(self) -> Done {
        let path = &self.volume.volume;
        if self.offline && path.is_dir() {
            return fail(format!(
                "{}: --offline is for a volume that is not mounted; name the file or device that \
                 holds it",
                path.display()
            ));
        }
        let is_root_of_volume = self.volume.path == "/";
        if !(is_root_of_volume && path.is_dir() && is_kernel_btrfs(path)) {
            return OnVolume::run(self);
        }
        let at = |error| Failure(format!("{}: {}", path.display(), refused(error)));
        let file = crate::host_file::open(path).context(path.display())?;
        if self.size == CANCEL {
            return kernel::resize(file.as_fd(), CANCEL).map_err(at);
        }
        let wanted: Wanted = self.size.parse()?;
        let device = kernel::mounted_device(file.as_fd(), wanted.device).map_err(at)?;
        let to = match wanted.size {
            Size::Max => "max".to_owned(),
            Size::Exactly(bytes) => human(bytes),
            Size::Plus(bytes) => human(device.size.saturating_add(bytes)),
            Size::Minus(bytes) => human(device.size.saturating_sub(bytes)),
        };
        kernel::resize(file.as_fd(), &self.size).map_err(at)?;
        let name = String::from_utf8_lossy(&device.path);
        let (id, from) = (device.id, human(device.size));
        say!("Resize device id {id} ({name}) from {from} to {to}");
        Ok(())
    }
}

/// Why the kernel does not do it.
fn refused(error: Errno) -> String {
    match error {
        Errno::INVAL => "the kernel takes no such size: a device has at least 256 MiB".into(),
        Errno::FBIG => "the device is not as large as that".into(),
        Errno::NODEV => "it has no such device; `butterfs device usage` lists them".into(),
        Errno::NOSPC => "what lies beyond the new end has no room before it; `butterfs filesystem \
                         usage` shows what is free"
            .into(),
        Errno::PERM => "not permitted: this is for root".into(),
        Errno::NOTCONN => "no resize runs".into(),
        Errno::ROFS => "the file system is read-only".into(),
        Errno::INPROGRESS => {
            "a balance, a replacement or another change of devices runs; wait for it".into()
        }
        other => std::io::Error::from(other).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_understood() {
        let size = |text: &str| text.parse::<Wanted>().map(|wanted| wanted.size);
        assert_eq!(size("max"), Ok(Size::Max));
        assert_eq!(size("2g"), Ok(Size::Exactly(2 << 30)));
        assert_eq!(size("+1m"), Ok(Size::Plus(1 << 20)));
        assert_eq!(size("-1k"), Ok(Size::Minus(1024)));
        let wanted = "3:max".parse::<Wanted>().unwrap();
        assert_eq!((wanted.device, wanted.size), (DeviceId(3), Size::Max));
        assert!("x:max".parse::<Wanted>().is_err());
        assert!("+".parse::<Wanted>().is_err());
        assert!("most".parse::<Wanted>().is_err());
    }
}
