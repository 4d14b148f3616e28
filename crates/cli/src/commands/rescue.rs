//! `butterfs rescue`: volumes that do not open, or were not unmounted.

mod chunk_recover;
mod guide;
mod survey;

use crate::commands::repair::{self, Change as Repair};
use crate::fail::{Context, Done};
use crate::place::json;
use butterfs::{Change, PathChange};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::path::PathBuf;

/// Finds out what is left of a damaged volume, repairs single things, and writes
/// overlays to their devices.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs rescue guide disk.img
  butterfs rescue survey disk.img
  butterfs rescue log-preview disk.img
  butterfs rescue zero-log disk.img
  butterfs rescue commit disk.img.overlay      write what a repair left in the overlay
  butterfs rescue undo disk.img.overlay        bring back what was there before
  butterfs rescue super-recover disk.img
  butterfs rescue chunk-recover disk.img       make a lost chunk tree anew, on an overlay

super-recover, chunk-recover, fix-device-size, fix-data-checksum and the clear commands work on an overlay as
`butterfs check --repair` does, and write to the devices only with --commit.")]
pub struct Rescue {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// From "it does not mount" to your files, in at most five steps.
    Guide(guide::Guide),
    /// Say what is left of a volume, and what to type next; nothing is written.
    Survey(survey::Survey),
    /// Show what a replay of the fsync log would change, path by path; nothing
    /// is written.
    LogPreview {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// File or block device.
        volume: PathBuf,
    },
    /// Throw the fsync log away. What programs made durable by fsync since the
    /// last commit is lost; the volume is as of that commit.
    ZeroLog {
        /// File or block device.
        volume: PathBuf,
    },
    /// Write an overlay to its devices. What they held is kept in an undo file
    /// beside it. Goes on with a commit that was cut short.
    Commit {
        /// The overlay.
        overlay: PathBuf,
        /// Its devices, in their order; where they were, if none is given.
        devices: Vec<PathBuf>,
    },
    /// Bring back what the devices held before an overlay was written to them.
    /// Goes on with an undo that was cut short, and ends a commit that was.
    Undo {
        /// The overlay, or its undo file.
        overlay: PathBuf,
        /// Its devices, in their order; where they were, if none is given.
        devices: Vec<PathBuf>,
    },
    /// Write all copies of the superblock from a good one.
    SuperRecover(Repair),
    /// Make a lost chunk tree anew from all that is left of it.
    ChunkRecover(chunk_recover::ChunkRecover),
    /// Make the sizes of devices fit the devices.
    FixDeviceSize(Repair),
    /// Compute checksums anew where data do not match them. The data stay as
    /// they are, right or wrong.
    FixDataChecksum(Repair),
    /// Make the UUID tree anew.
    ClearUuidTree(Repair),
    /// Make the free-space tree anew.
    ClearSpaceCache(Repair),
    /// Remove the inode cache of old kernels.
    ClearInoCache(Repair),
    /// Not needed: ButterFS uses no control device.
    CreateControlDevice,
}

#[derive(Serialize)]
struct ChangeFact {
    subvolume: u64,
    path: Option<String>,
    change: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
}

fn fact(of: &PathChange) -> ChangeFact {
    let (change, from, to, name) = match &of.change {
        Change::NameAdded { .. } => ("name-added", None, None, None),
        Change::NameRemoved { .. } => ("name-removed", None, None, None),
        Change::Inode { old_size, size, .. } => ("inode", *old_size, Some(*size), None),
        Change::Extent { start, end, .. } => ("data", Some(*start), Some(*end), None),
        Change::Unreadable { start, end, .. } => {
            ("unreadable-data", Some(*start), Some(*end), None)
        }
        Change::AttributeSet(_) => ("attribute-set", None, None, None),
        Change::AttributeRemoved { name, .. } => {
            let name = String::from_utf8_lossy(name).into_owned();
            ("attribute-removed", None, None, Some(name))
        }
    };
    ChangeFact {
        subvolume: of.subvolume.get(),
        path: of
            .path
            .as_ref()
            .map(|path| String::from_utf8_lossy(path).into_owned()),
        change,
        from,
        to,
        name,
    }
}

impl Rescue {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Guide(guide) => guide.run(),
            What::Survey(survey) => survey.run(),
            What::LogPreview { json, volume } => preview(&volume, json),
            What::Commit { overlay, devices } => repair::commit(&overlay, &devices),
            What::Undo { overlay, devices } => repair::undo(&overlay, &devices),
            What::SuperRecover(repair) => repair.run(|anew| anew.superblocks = true),
            What::ChunkRecover(recover) => recover.run(),
            What::FixDeviceSize(repair) => repair.run(|anew| anew.superblocks = true),
            What::FixDataChecksum(repair) => repair.run(|anew| anew.data_checksums = true),
            What::ClearUuidTree(repair) => repair.run(|anew| anew.uuids = true),
            What::ClearSpaceCache(repair) => repair.run(|anew| anew.free_space = true),
            What::ClearInoCache(repair) => repair.run(|anew| anew.inode_cache = true),
            What::CreateControlDevice => {
                say!("nothing to do: ButterFS uses no control device (/dev/btrfs-control)");
                Ok(())
            }
            What::ZeroLog { volume } => {
                let had = butterfs::zero_log(&volume).context(volume.display())?;
                if had {
                    say!("the fsync log is gone; the volume is as of its last commit");
                } else {
                    say!("there is no fsync log; nothing was changed");
                }
                Ok(())
            }
        }
    }
}

fn preview(volume: &std::path::Path, as_json: bool) -> Done {
    let changes = butterfs::preview_log(volume).context(volume.display())?;
    let facts: Vec<ChangeFact> = changes.iter().map(fact).collect();
    if as_json {
        return json(&facts);
    }
    if facts.is_empty() {
        say!("there is nothing to replay");
    }
    let mut subvolume = None;
    for fact in &facts {
        if subvolume != Some(fact.subvolume) {
            say!("subvolume {}:", fact.subvolume);
            subvolume = Some(fact.subvolume);
        }
        let path = fact.path.as_deref().unwrap_or("(a file without names)");
        match (fact.change, fact.from, fact.to, &fact.name) {
            ("name-added", ..) => say!("  + {path}"),
            ("name-removed", ..) => say!("  - {path}"),
            ("inode", Some(from), Some(to), _) if from != to => {
                say!("  ~ {path}: size {from} -> {to}");
            }
            ("inode", ..) => say!("  ~ {path}: attributes"),
            ("data", Some(from), Some(to), _) => say!("  ~ {path}: data from {from} to {to}"),
            ("unreadable-data", Some(from), Some(to), _) => {
                say!("  ! {path}: data from {from} to {to} cannot be read: wrong checksum");
            }
            (_, _, _, Some(name)) => say!("  ~ {path}: extended attribute {name} goes"),
            _ => say!("  ~ {path}: extended attributes"),
        }
    }
    Ok(())
}
