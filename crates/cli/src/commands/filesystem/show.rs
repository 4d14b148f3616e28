//! `butterfs filesystem show`.

use crate::facts;
use crate::fail::{Done, fail};
use crate::patience;
use crate::place::json;
use crate::units::Units;
use butterfs::FoundVolume;
use butterfs_server::{Facts, Mount, server_of};
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use uuid::Uuid;

/// Label, UUID, devices and space used: of one volume, or of all that are
/// mounted or on block devices that may be read.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs filesystem show disk.img
  butterfs filesystem show -m
  butterfs filesystem show photos")]
pub struct Show {
    /// Volumes that are mounted.
    #[arg(short, long)]
    mounted: bool,
    /// Volumes on block devices, as these have them.
    #[arg(short = 'd', long, conflicts_with = "mounted")]
    all_devices: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// File or block device that holds the volume, its mountpoint, its UUID or
    /// its label.
    volume: Option<PathBuf>,
}

/// A device as it is shown.
struct Device {
    id: u64,
    size: u64,
    used: u64,
    path: Option<String>,
    /// What is wrong with it.
    state: Option<String>,
}

/// A volume as it is shown.
pub struct Shown {
    label: String,
    uuid: String,
    total: u64,
    used: u64,
    devices: Vec<Device>,
}

impl From<&Facts> for Shown {
    fn from(facts: &Facts) -> Self {
        let devices = facts.members.iter().map(|device| Device {
            id: device.id,
            size: device.size,
            used: device.allocated,
            path: device.path.clone(),
            state: match &device.state[..] {
                "stale" | "failing" => Some(device.state.clone()),
                _ => None,
            },
        });
        Self {
            label: facts.label.clone(),
            uuid: facts.uuid.clone(),
            total: facts.devices,
            used: facts.used,
            devices: devices.collect(),
        }
    }
}

impl From<&FoundVolume> for Shown {
    fn from(found: &FoundVolume) -> Self {
        let devices = found.devices.iter().map(|device| Device {
            id: device.id.get(),
            size: device.size,
            used: device.allocated,
            path: Some(device.path.display().to_string()),
            state: None,
        });
        Self {
            label: String::from_utf8_lossy(&found.label).into_owned(),
            uuid: Uuid::from_bytes(found.fsid).to_string(),
            total: found.total,
            used: found.used,
            devices: devices.collect(),
        }
    }
}

/// Volumes that the kernel or a server of ButterFS has mounted, each of them
/// once.
fn mounted() -> Vec<Facts> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for mount in Mount::seen_by("self") {
        let is_served = || patience::asking(&mount.point, || server_of(&mount.point).is_some());
        let is_known = mount.kind == "btrfs" || is_served();
        if is_known
            && seen.insert(mount.device)
            // A mount that is covered, or gone by now, says nothing.
            && let Ok(facts) = facts::at(&mount.point)
            && seen.insert(facts.uuid.clone())
        {
            all.push(facts);
        }
    }
    all
}

impl Show {
    /// Runs it.
    pub fn run(self) -> Done {
        match &self.volume {
            Some(volume) if volume.exists() => {
                let facts = facts::at(volume)?;
                if self.json {
                    return json(&facts);
                }
                Shown::from(&facts).print(self.units)
            }
            wanted => self.all(wanted.as_deref()),
        }
    }

    /// All volumes, or those of a UUID or label.
    fn all(&self, wanted: Option<&Path>) -> Done {
        let wanted = wanted.map(|wanted| wanted.to_string_lossy().into_owned());
        let is_wanted = |shown: &Shown| {
            let wanted = wanted.as_ref();
            wanted.is_none_or(|wanted| *wanted == shown.uuid || *wanted == shown.label)
        };
        let mounted = match self.all_devices {
            true => Vec::new(),
            false => mounted(),
        };
        let found = match self.mounted {
            true => Vec::new(),
            false => butterfs::scan(&[]),
        };
        let mut shown: Vec<Shown> = mounted.iter().map(Shown::from).collect();
        for volume in found.iter().map(Shown::from) {
            if !shown.iter().any(|other| other.uuid == volume.uuid) {
                shown.push(volume);
            }
        }
        shown.retain(is_wanted);
        if let Some(wanted) = wanted.filter(|_| shown.is_empty()) {
            return fail(format!(
                "{wanted}: no such file, device or mountpoint, and no volume that is mounted or on \
                 a block device that may be read has it as its UUID or label"
            ));
        }
        if self.json {
            return fail(
                "--json shows one volume: name it; `butterfs device scan --json` shows all",
            );
        }
        for volume in &shown {
            volume.print(self.units)?;
        }
        Ok(())
    }
}

impl Shown {
    /// As btrfs-filesystem(8) prints it.
    pub fn print(&self, units: Units) -> Done {
        let size = |bytes| units.size(bytes);
        let label = match &self.label[..] {
            "" => "none".to_owned(),
            label => format!("'{label}'"),
        };
        say!("Label: {label}  uuid: {}", self.uuid);
        let (total, used) = (self.total, size(self.used));
        say!("\tTotal devices {total} FS bytes used {used}");
        for device in &self.devices {
            let path = device.path.as_deref().unwrap_or("MISSING");
            let state = device.state.as_ref().map(|state| format!(" ({state})"));
            say!(
                "\tdevid {:>4} size {} used {} path {path}{}",
                device.id,
                size(device.size),
                size(device.used),
                state.unwrap_or_default()
            );
        }
        if (self.devices.len() as u64) < self.total {
            say!("\t*** Some devices missing");
        }
        say!("");
        Ok(())
    }
}
