//! `butterfs info`: one screen about a volume.
//!
//! Owns what is said first to somebody who has an image and knows nothing about
//! it. Everything comes from the trees and the superblock. File data are not
//! read, and nothing is written.

use super::subvolume::draw;
use crate::dates::date;
use crate::fail::{Done, Failure};
use crate::host;
use crate::part::PartArguments;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::sizes::human;
use butterfs::list::{SubvolumeInfo, Subvolumes};
use butterfs::{Caching, NotDirect, OpenOptions, Part, TreeId, Volume};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::superblock::Superblock;
use butterfs_server::{Facts, KindFacts, StatsFacts};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::os::unix::fs::MetadataExt;

/// Subvolumes that are drawn; more are counted.
const DRAWN_MAX: usize = 24;

/// Says on one screen what a volume is, what it holds and what to do with it.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs info disk.img
  butterfs info --partition 2 disk.img
  butterfs info --json /mnt")]
pub struct Info {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    part: PartArguments,
    /// File or block device that holds the volume, or a path on its mount.
    #[arg(value_name = "VOLUME")]
    place: Place,
}

#[derive(Serialize)]
struct SubvolumeFact {
    id: u64,
    path: Option<String>,
    read_only: bool,
    snapshot: bool,
}

#[derive(Serialize)]
struct InfoFacts {
    label: String,
    uuid: String,
    size: u64,
    used: u64,
    free: u64,
    /// Bytes of the image file that are on its disk.
    on_disk: Option<u64>,
    devices: u64,
    /// How requests reach the devices of a volume that is in use.
    requests: Vec<String>,
    generation: u64,
    changed_seconds: i64,
    node_size: u32,
    sector_size: u32,
    checksum: &'static str,
    features: Vec<&'static str>,
    kinds: Vec<KindFacts>,
    default_subvolume: u64,
    subvolumes: Vec<SubvolumeFact>,
    deleted_subvolumes: usize,
    log_waits: bool,
    device_stats: StatsFacts,
    read_only_because: Option<String>,
}

impl OnVolume for Info {
    const NAME: &'static str = "info";
    const TAG: &'static str = "Info";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, self.part.part()))
    }

    fn run_here(self) -> Done {
        let volume = self
            .place
            .open_with(OpenOptions::as_committed(), None, self.part.part())?;
        let subvolumes = volume.subvolumes()?;
        let facts = self.facts(&volume, &subvolumes)?;
        if self.json {
            return json(&facts);
        }
        self.show(&facts, &subvolumes)
    }
}

impl Info {
    fn facts(&self, volume: &Volume, subvolumes: &Subvolumes) -> Result<InfoFacts, Failure> {
        let facts = Facts::of(volume);
        let superblock = volume.superblock();
        let alive = |info: &&SubvolumeInfo| !info.is_being_deleted();
        let others = subvolumes.iter().filter(|info| info.id != TreeId::FS);
        Ok(InfoFacts {
            label: facts.label,
            uuid: facts.uuid,
            size: facts.device_size,
            used: facts.device_used,
            free: facts.free_estimated,
            on_disk: self.on_disk(),
            devices: facts.devices,
            requests: requests(volume),
            generation: superblock.generation.get(),
            changed_seconds: subvolumes.iter().map(changed).max().unwrap_or(0),
            node_size: superblock.node_size,
            sector_size: superblock.sector_size,
            checksum: superblock.checksum_type.name(),
            features: in_words(&superblock),
            kinds: facts.kinds,
            default_subvolume: volume.files().default_subvolume()?.get(),
            subvolumes: others
                .filter(alive)
                .map(|info| SubvolumeFact {
                    id: info.id.get(),
                    path: info
                        .path
                        .as_deref()
                        .map(|path| String::from_utf8_lossy(path).into_owned()),
                    read_only: info.is_read_only(),
                    snapshot: info.is_snapshot(),
                })
                .collect(),
            deleted_subvolumes: subvolumes.iter().filter(|info| !alive(info)).count(),
            log_waits: superblock.log_root.get() != 0 && !host::is_serving(),
            device_stats: facts.device_stats,
            read_only_because: facts.read_only_because,
        })
    }

    /// Bytes that a regular file has on its disk.
    fn on_disk(&self) -> Option<u64> {
        let meta = std::fs::metadata(&self.place.volume).ok()?;
        meta.is_file().then(|| meta.blocks() * 512)
    }

    fn show(&self, facts: &InfoFacts, subvolumes: &Subvolumes) -> Done {
        let image = self.place.volume.display();
        let label = match facts.label.is_empty() {
            true => "Btrfs volume without a label",
            false => &facts.label,
        };
        say!("{label} — {image}{}", self.part.words());
        say!("  UUID        {}", facts.uuid);
        let percent = facts.used.saturating_mul(100) / facts.size.max(1);
        say!(
            "  Size        {}, of which {} ({percent} %) are used; files can take about {} more",
            human(facts.size),
            human(facts.used),
            human(facts.free)
        );
        if let Some(on_disk) = facts.on_disk.filter(|on_disk| *on_disk < facts.size) {
            say!(
                "  File        sparse: {} of it are on the disk",
                human(on_disk)
            );
        }
        say!(
            "  Devices     {}",
            match facts.devices {
                1 => "one".to_owned(),
                more => more.to_string(),
            }
        );
        for (at, line) in facts.requests.iter().enumerate() {
            let heading = if at == 0 { "Requests" } else { "" };
            say!("  {heading:<11} {line}");
        }
        for kind in &facts.kinds {
            say!(
                "  {:<11} {}, {} of {} used",
                kind.kind,
                profile(&kind.profile),
                human(kind.used),
                human(kind.total)
            );
        }
        say!(
            "  Format      checksums {}, nodes of {}, sectors of {}",
            facts.checksum,
            human(facts.node_size.into()),
            human(facts.sector_size.into())
        );
        say!("  Features    {}", facts.features.join(", "));
        say!(
            "  Last commit number {}; last change {} UTC",
            facts.generation,
            date(facts.changed_seconds)
        );
        Self::show_subvolumes(facts, subvolumes)?;
        for (at, line) in health(facts).iter().enumerate() {
            let heading = if at == 0 { "Health" } else { "" };
            say!("  {heading:<11} {line}");
        }
        self.show_next()
    }

    fn show_subvolumes(facts: &InfoFacts, subvolumes: &Subvolumes) -> Done {
        let snapshots = facts.subvolumes.iter().filter(|one| one.snapshot).count();
        let count = facts.subvolumes.len();
        let default = match TreeId(facts.default_subvolume) {
            TreeId::FS => "a mount shows the top level".to_owned(),
            other => {
                let path = subvolumes.get(other).and_then(|info| info.path.as_deref());
                let path = path.map_or("?".into(), String::from_utf8_lossy);
                format!("a mount shows {path} ({other})")
            }
        };
        let snapshots = match (count, snapshots) {
            (_, 0) => String::new(),
            (1, 1) => ", a snapshot".to_owned(),
            (_, 1) => ", one of them a snapshot".to_owned(),
            (_, many) => format!(", {many} of them snapshots"),
        };
        say!("  Subvolumes  {count}{snapshots}; {default}");
        if (1..=DRAWN_MAX).contains(&count) {
            draw(subvolumes, &" ".repeat(14))?;
        }
        Ok(())
    }

    fn show_next(&self) -> Done {
        let (image, part) = (self.place.volume.display(), self.part.words());
        if host::is_serving() || self.place.volume.is_dir() {
            say!("  Next        butterfs filesystem usage {image}    how its space is used");
            return Ok(());
        }
        let option = self.part.part().option();
        let option = option.map_or(String::new(), |option| format!(" -o {option}"));
        say!("  Next        butterfs ls -l{part} {image}:/");
        say!("              butterfs copy{part} {image}:/PATH DIRECTORY");
        say!("              butterfs mount{option} {image} DIRECTORY");
        say!("              butterfs check{part} {image}");
        Ok(())
    }
}

/// How requests reach the devices, where somebody asked for direct I/O.
fn requests(volume: &Volume) -> Vec<String> {
    let mut lines: Vec<String> = volume
        .devices()
        .into_iter()
        .filter_map(|device| device.caching)
        .filter(|caching| *caching != Caching::PageCache(NotDirect::NotAsked))
        .map(|caching| caching.to_string())
        .collect();
    lines.dedup();
    lines
}

/// When a subvolume changed last.
fn changed(info: &SubvolumeInfo) -> i64 {
    info.item.ctime.seconds
}

/// A profile in words.
fn profile(name: &str) -> String {
    match name {
        "single" => "one copy".to_owned(),
        "DUP" => "two copies on one device".to_owned(),
        other => other.to_owned(),
    }
}

/// What the feature bits mean, for somebody who does not know their names.
fn in_words(superblock: &Superblock) -> Vec<&'static str> {
    let incompat = [
        (
            Incompat::MIXED_GROUPS,
            "data and metadata share block groups",
        ),
        (Incompat::COMPRESS_LZO, "has lzo"),
        (Incompat::COMPRESS_ZSTD, "has zstd"),
        (Incompat::EXTENDED_IREF, "many links to one file"),
        (Incompat::RAID56, "raid5 or raid6"),
        (Incompat::SKINNY_METADATA, "small extent records"),
        (Incompat::NO_HOLES, "holes without records"),
        (Incompat::METADATA_UUID, "UUID changed later"),
        (Incompat::SIMPLE_QUOTA, "simple quotas"),
    ];
    let compat_ro = [
        (CompatRo::FREE_SPACE_TREE, "free-space tree"),
        (CompatRo::BLOCK_GROUP_TREE, "block-group tree"),
        (CompatRo::VERITY, "fs-verity"),
    ];
    let of_readers = incompat
        .into_iter()
        .filter(|(bit, _)| superblock.incompat.contains(*bit))
        .map(|(_, words)| words);
    let of_writers = compat_ro
        .into_iter()
        .filter(|(bit, _)| superblock.compat_ro.contains(*bit))
        .map(|(_, words)| words);
    of_readers.chain(of_writers).collect()
}

/// What should be known before the volume is used.
fn health(facts: &InfoFacts) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(reason) = &facts.read_only_because {
        lines.push(format!("nothing is written any more: {reason}"));
    }
    for (name, count) in facts.device_stats.named() {
        if count > 0 {
            lines.push(format!(
                "{name} {count}: `butterfs device stats` has the counters"
            ));
        }
    }
    if facts.log_waits {
        lines.push(
            "a crash left a log of fsyncs: the next mount replays it; `butterfs rescue \
             log-preview` shows what it would change"
                .to_owned(),
        );
    }
    if facts.deleted_subvolumes > 0 {
        lines.push(format!(
            "{} deleted subvolumes wait until their space is freed",
            facts.deleted_subvolumes
        ));
    }
    if lines.is_empty() {
        lines
            .push("its devices have counted no errors; `butterfs check` looks at all of it".into());
    }
    lines
}
