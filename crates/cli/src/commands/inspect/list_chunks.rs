//! `butterfs inspect-internal list-chunks`: what lies where on the devices.

use crate::fail::{Context, Done, Failure};
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::units::Units;
use butterfs::{Part, TreeId, Volume};
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::{ItemType, Key, Logical};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// List the chunks of each device, by their places there.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs inspect list-chunks disk.img
  butterfs inspect list-chunks --json /mnt")]
pub struct ListChunks {
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Order: devid, pstart, lstart, usage, length, type or profile, several with
    /// commas between them; - before one turns it round.
    #[arg(long, value_name = "ORDER", value_delimiter = ',', value_parser = known,
          allow_hyphen_values = true)]
    sort: Vec<String>,
    #[command(flatten)]
    units: Units,
    /// The volume, or a path on a mount of it.
    place: Place,
}

/// The part of a chunk on a device; sizes and places in bytes.
#[derive(Serialize)]
struct Fact {
    device: u64,
    /// Its number among those of the device.
    number: u64,
    kind: String,
    profile: String,
    physical: u64,
    length: u64,
    /// Its number among those of the device, by logical addresses.
    logical_number: u64,
    logical: u64,
    /// How much of the chunk is in use, in percent.
    used_percent: f64,
}

impl OnVolume for ListChunks {
    const NAME: &'static str = "inspect-internal list-chunks";
    const TAG: &'static str = "ListChunks";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, Part::Whole))
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_as_committed()?;
        let facts = facts(&volume).map_err(|error| error.at(self.place.volume.display()))?;
        let facts = self.sorted(facts);
        match self.json {
            true => json(&facts),
            false => self.print(&facts),
        }
    }
}

/// All items of a kind in a tree; none where there is no such tree.
fn items(volume: &Volume, tree: TreeId, kind: ItemType) -> Result<Vec<(Key, Vec<u8>)>, Failure> {
    let mut found = Vec::new();
    let trees = volume.trees();
    let done = trees.items_from(tree, &Key::MIN, &mut |item| {
        if item.key.item_type == kind {
            found.push((item.key, item.data.to_vec()));
        }
        ControlFlow::Continue(())
    });
    match done {
        Err(butterfs::FsError::NotFound) => Ok(found),
        done => done.map(|()| found).context("reading trees"),
    }
}

fn kind_of(flags: BlockGroupFlags) -> String {
    let names = [
        (BlockGroupFlags::DATA, "Data"),
        (BlockGroupFlags::SYSTEM, "System"),
        (BlockGroupFlags::METADATA, "Metadata"),
    ];
    let set = names.iter().filter(|(bit, _)| flags.contains(*bit));
    set.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
}

/// What chunks are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortedBy {
    Device,
    Physical,
    Logical,
    Usage,
    Length,
    Kind,
    Profile,
}

/// What a word means, and whether the order is reversed.
fn sorting(word: &str) -> Option<(SortedBy, bool)> {
    let by = match word.trim_start_matches(['+', '-']) {
        "devid" => SortedBy::Device,
        "pstart" => SortedBy::Physical,
        "lstart" => SortedBy::Logical,
        "usage" => SortedBy::Usage,
        "length" => SortedBy::Length,
        "type" => SortedBy::Kind,
        "profile" => SortedBy::Profile,
        _ => return None,
    };
    Some((by, word.starts_with('-')))
}

/// A word that can be understood, as it was written.
fn known(word: &str) -> Result<String, String> {
    match sorting(word) {
        Some(_) => Ok(word.to_owned()),
        None => Err("must be devid, pstart, lstart, usage, length, type or profile".to_owned()),
    }
}

/// Place of a name in a list of names; behind all of them if it is not there.
fn rank(names: &[&str], name: &str) -> usize {
    let found = names.iter().position(|one| one.eq_ignore_ascii_case(name));
    found.unwrap_or(names.len())
}

impl SortedBy {
    fn compare(self, one: &Fact, other: &Fact) -> Ordering {
        const KINDS: [&str; 3] = ["Data", "Metadata", "System"];
        const PROFILES: [&str; 9] = [
            "single", "DUP", "RAID0", "RAID1", "RAID1C3", "RAID1C4", "RAID10", "RAID5", "RAID6",
        ];
        match self {
            Self::Device => one.device.cmp(&other.device),
            Self::Physical => one.physical.cmp(&other.physical),
            Self::Logical => one.logical.cmp(&other.logical),
            Self::Usage => one.used_percent.total_cmp(&other.used_percent),
            Self::Length => one.length.cmp(&other.length),
            Self::Kind => rank(&KINDS, &one.kind).cmp(&rank(&KINDS, &other.kind)),
            Self::Profile => rank(&PROFILES, &one.profile).cmp(&rank(&PROFILES, &other.profile)),
        }
    }
}

fn facts(volume: &Volume) -> Result<Vec<Fact>, Failure> {
    let mut chunks = BTreeMap::new();
    // Each stripe counts, as in the Btrfs tools.
    let mut stripes: BTreeMap<u64, u64> = BTreeMap::new();
    let mut numbers: BTreeMap<(u64, u64), u64> = BTreeMap::new();
    for (key, data) in items(volume, TreeId::CHUNK, ItemType::CHUNK_ITEM)? {
        let chunk = Chunk::parse(&data)?;
        for stripe in &chunk.stripes {
            let device = stripe.device.get();
            let number = stripes.entry(device).or_default();
            *number += 1;
            numbers.insert((device, stripe.offset.get()), *number);
        }
        chunks.insert(Logical(key.offset), chunk);
    }
    let mut used = BTreeMap::new();
    for tree in [TreeId::BLOCK_GROUP, TreeId::EXTENT] {
        for (key, data) in items(volume, tree, ItemType::BLOCK_GROUP_ITEM)? {
            used.insert(Logical(key.objectid), BlockGroupItem::parse(&data)?.used);
        }
    }
    let mut facts: Vec<Fact> = Vec::new();
    for (key, data) in items(volume, TreeId::DEVICE, ItemType::DEV_EXTENT)? {
        let extent = DeviceExtent::parse(&data)?;
        let Some(chunk) = chunks.get(&extent.chunk) else {
            continue;
        };
        let before = facts.last().filter(|fact| fact.device == key.objectid);
        let used = used.get(&extent.chunk).copied().unwrap_or(0);
        facts.push(Fact {
            device: key.objectid,
            number: before.map_or(1, |fact| fact.number + 1),
            kind: kind_of(chunk.flags),
            profile: chunk.flags.profile_name().to_owned(),
            physical: key.offset,
            length: extent.length,
            logical_number: *numbers.get(&(key.objectid, key.offset)).unwrap_or(&0),
            logical: extent.chunk.get(),
            used_percent: used as f64 * 100.0 / chunk.length.max(1) as f64,
        });
    }
    Ok(facts)
}

impl ListChunks {
    /// Sorts chunks, which come by device and place, in the order that is asked
    /// for.
    fn sorted(&self, mut facts: Vec<Fact>) -> Vec<Fact> {
        facts.sort_by(|one, other| {
            let wanted = self.sort.iter().filter_map(|word| sorting(word));
            let mut orders = wanted.map(|(by, is_descending)| {
                let order = by.compare(one, other);
                if is_descending {
                    order.reverse()
                } else {
                    order
                }
            });
            orders
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        facts
    }

    fn print(&self, facts: &[Fact]) -> Done {
        const NAMES: [&str; 9] = [
            "Devid",
            "PNumber",
            "Type/profile",
            "PStart",
            "Length",
            "PEnd",
            "LNumber",
            "LStart",
            "Usage%",
        ];
        let size = |bytes| self.units.size(bytes);
        let mut rows: Vec<[String; 9]> =
            vec![NAMES.map(str::to_owned), NAMES.map(|_| String::new())];
        rows.extend(facts.iter().map(|fact| {
            [
                fact.device.to_string(),
                fact.number.to_string(),
                format!("{:>10}/{:<6}", fact.kind, fact.profile),
                size(fact.physical),
                size(fact.length),
                size(fact.physical.saturating_add(fact.length)),
                fact.logical_number.to_string(),
                size(fact.logical),
                format!("{:>6.2}", fact.used_percent),
            ]
        }));
        let width = |at: usize| rows.iter().map(|row| row[at].len()).max().unwrap_or(0);
        let widths: [usize; 9] = std::array::from_fn(width);
        rows[1] = widths.map(|width| "-".repeat(width));
        for row in &rows {
            let cells = row
                .iter()
                .zip(widths)
                .map(|(cell, width)| format!("{cell:>width$}"));
            say!("{}", cells.collect::<Vec<_>>().join(" "));
        }
        Ok(())
    }
}
