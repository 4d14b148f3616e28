//! `butterfs device`: the devices of volumes, and facts about them.

pub mod members;
pub mod named;
pub mod of_kernel;
pub mod running;
mod stats;

use super::filesystem::Shown;
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::json;
use crate::units::Units;
use butterfs::{FileDevice, FoundVolume};
use butterfs_kernel as kernel;
use clap::{Args, Subcommand};
use rustix::io::Errno;
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Adds, removes and replaces devices of a volume, and shows facts about them.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs device add more.img disk.img
  butterfs device remove 2 disk.img
  butterfs device replace start 2 new.img disk.img
  butterfs device stats disk.img
  butterfs device stats -z /mnt
  butterfs device scan /srv/images       volumes in the files of a directory
  butterfs device scan                   and in all block devices
  butterfs device ready /dev/sdx1")]
pub struct Device {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Add(members::Add),
    #[command(visible_alias = "delete")]
    Remove(members::Remove),
    Replace(super::replace::Replace),
    /// Show the error counters, which are kept across mounts.
    Stats(stats::Stats),
    Scan(Scan),
    /// Show how much of each device is used.
    #[command(disable_help_flag = true)]
    Usage(Usage),
    /// Succeed when all devices of the volume that a device belongs to can be
    /// found.
    Ready {
        /// One of its devices.
        device: PathBuf,
    },
}

/// Look for volumes and show their devices. As root, tell the kernel of those on
/// block devices, so that it can mount a volume of several by one of them.
#[derive(Args, Debug)]
struct Scan {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Have the kernel forget these block devices; without any, all whose
    /// volume is not mounted.
    #[arg(short = 'u', long, conflicts_with = "json")]
    forget: bool,
    /// All block devices, as without any place.
    #[arg(short = 'd', long = "all-devices", conflicts_with = "places")]
    _all_devices: bool,
    /// Files, block devices and directories of files; all block devices
    /// without any.
    places: Vec<PathBuf>,
}

#[derive(Args, Debug)]
struct Usage {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

impl Device {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Add(add) => add.run(),
            What::Remove(remove) => remove.run(),
            What::Replace(replace) => replace.run(),
            What::Stats(stats) => stats.run(),
            What::Scan(scan) => scan.run(),
            What::Usage(usage) => usage.run(),
            What::Ready { device } => ready(&device),
        }
    }
}

#[derive(Serialize)]
struct ScannedDevice<'v> {
    path: &'v Path,
    id: u64,
    uuid: String,
    size: u64,
    allocated: u64,
    generation: u64,
    is_first_superblock_damaged: bool,
}

#[derive(Serialize)]
struct Scanned<'v> {
    uuid: String,
    label: String,
    used: u64,
    devices_total: u64,
    is_whole: bool,
    devices: Vec<ScannedDevice<'v>>,
}

impl<'v> Scanned<'v> {
    fn new(volume: &'v FoundVolume) -> Self {
        let devices = volume.devices.iter().map(|device| ScannedDevice {
            path: &device.path,
            id: device.id.get(),
            uuid: Uuid::from_bytes(device.uuid).to_string(),
            size: device.size,
            allocated: device.allocated,
            generation: device.generation.get(),
            is_first_superblock_damaged: device.is_first_damaged,
        });
        Self {
            uuid: Uuid::from_bytes(volume.fsid).to_string(),
            label: String::from_utf8_lossy(&volume.label).into_owned(),
            used: volume.used,
            devices_total: volume.total,
            is_whole: volume.is_whole(),
            devices: devices.collect(),
        }
    }
}

impl Scan {
    fn run(self) -> Done {
        let missing = self.places.iter().find(|place| !place.exists());
        if let Some(missing) = missing {
            return fail(format!("{} does not exist", missing.display()));
        }
        if self.forget {
            return self.forget();
        }
        let files = self.places.iter().filter(|place| !place.is_dir());
        let mut unread: Vec<_> = files
            .filter_map(|file| FileDevice::open_unlocked(file).err())
            .collect();
        let volumes = butterfs::scan(&self.places);
        tell_kernel(&volumes);
        let found: Vec<Scanned<'_>> = volumes.iter().map(Scanned::new).collect();
        if self.json {
            json(&found)?;
        } else {
            for volume in &volumes {
                Shown::from(volume).print(Units::default())?;
            }
            note_damaged(&volumes);
        }
        // The others are shown anyway.
        let last = unread.pop();
        for error in &unread {
            note!("butterfs: {error}");
        }
        last.map_or(Ok(()), |error| Err(error.into()))
    }
}

impl Scan {
    fn forget(&self) -> Done {
        let said = |error: Errno| match error {
            Errno::BUSY => "its volume is mounted".to_owned(),
            Errno::NOENT => "the kernel knows nothing of it, or has no Btrfs".to_owned(),
            Errno::ACCESS | Errno::PERM => "this is for root".to_owned(),
            other => std::io::Error::from(other).to_string(),
        };
        if self.places.is_empty() {
            let done = kernel::forget_devices();
            return done.map_err(|error| Failure(format!("forgetting devices: {}", said(error))));
        }
        for place in &self.places {
            let path = place.canonicalize().context(place.display())?;
            kernel::forget_device(path.as_os_str().as_bytes())
                .map_err(|error| Failure(format!("{}: {}", place.display(), said(error))))?;
        }
        Ok(())
    }
}

/// Tells the kernel of the block devices that were found, where it has Btrfs and
/// this user may.
fn tell_kernel(volumes: &[FoundVolume]) {
    for device in volumes.iter().flat_map(|volume| &volume.devices) {
        tell_kernel_of(&device.path);
    }
}

/// Tells the kernel of a device of a volume, if it is a block device.
pub fn tell_kernel_of(device: &Path) {
    let meta = device.metadata();
    if !meta.is_ok_and(|meta| meta.file_type().is_block_device()) {
        return;
    }
    let Ok(path) = device.canonicalize() else {
        return;
    };
    match kernel::register_device(path.as_os_str().as_bytes()) {
        // Not root, or no Btrfs in the kernel: there is nobody to tell.
        Ok(()) | Err(Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::NODEV) => {}
        Err(error) => note!(
            "butterfs: {}: the kernel does not take it: {}",
            path.display(),
            std::io::Error::from(error)
        ),
    }
}

/// Names the devices whose first superblock is damaged, and the command that
/// repairs it.
fn note_damaged(volumes: &[FoundVolume]) {
    let devices = volumes.iter().flat_map(|volume| &volume.devices);
    for device in devices.filter(|device| device.is_first_damaged) {
        note!(
            "butterfs: the first superblock of {path} is damaged; another copy says that it is \
             device {id}; what changes the volume mends it, the kernel does not mount it before",
            path = device.path.display(),
            id = device.id,
        );
    }
}

impl Usage {
    fn run(self) -> Done {
        let facts = facts::at(&self.volume)?;
        facts::note_mixed_profiles(&facts);
        if self.json {
            return json(&facts.members);
        }
        for device in &facts.members {
            say!("{}, ID: {}", device.name(), device.id);
            let unallocated = device.size.saturating_sub(device.allocated);
            let line = |name: &str, bytes: u64| -> Done {
                say!("   {name:<22}{:>10}", self.units.size(bytes));
                Ok(())
            };
            line("Device size:", device.size.saturating_add(device.slack))?;
            line("Device slack:", device.slack)?;
            let mut chunks: Vec<_> = device.chunks.iter().collect();
            chunks.sort_by(|a, b| a.kind.cmp(&b.kind));
            for share in chunks {
                line(&format!("{},{}:", share.kind, share.profile), share.bytes)?;
            }
            line("Unallocated:", unallocated)?;
            if device.state != "present" {
                say!("   {:<16}{:>16}", "State:", device.state);
            }
            say!("");
        }
        Ok(())
    }
}

fn ready(device: &Path) -> Done {
    FileDevice::open_unlocked(device)?;
    let paths = butterfs::find_members(device);
    let volumes = butterfs::scan(&paths);
    note_damaged(&volumes);
    let own = |volume: &&FoundVolume| volume.devices.iter().any(|found| found.path == device);
    let Some(volume) = volumes.iter().find(own) else {
        return fail(format!("{} holds no Btrfs volume", device.display()));
    };
    // What is found beside them are seeds, from which the volume may have grown.
    let others = volumes.iter().filter(|other| other.fsid != volume.fsid);
    let seeds: usize = others.map(|other| other.devices.len()).sum();
    let there = (volume.devices.len() + seeds) as u64;
    match there >= volume.total {
        true => Ok(()),
        false => fail(format!(
            "{there} of the {} devices of the volume are there",
            volume.total
        )),
    }
}
