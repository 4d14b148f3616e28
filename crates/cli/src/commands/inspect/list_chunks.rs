//! `butterfs inspect-internal list-chunks`: what lies where on the devices.

use crate::fail::{Context, Done, Failure};
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::units::Units;
use butterfs::{TreeId, Volume};
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::{ItemType, Key, Logical};
use clap::Args;
use serde::{Deserialize, Serialize};
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
    #[command(flatten)]
    units: Units,
    /// The volume, or a path on a mount of it.
    place: Place,
}

/// What a chunk has of a device; sizes and places in bytes.
#[derive(Serialize)]
struct Fact {
    device: u64,
    /// Its number among those of the device.
    number: u64,
    kind: String,
    physical: u64,
    length: u64,
    /// Number of its chunk among all, by logical addresses.
    logical_number: u64,
    logical: u64,
    /// Of the chunk, in use: percent.
    used_percent: f64,
}

impl OnVolume for ListChunks {
    const NAME: &'static str = "inspect-internal list-chunks";
    const TAG: &'static str = "ListChunks";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(None)?;
        let facts = facts(&volume).map_err(|error| error.at(self.place.volume.display()))?;
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
    let names: Vec<&str> = set.map(|(_, name)| *name).collect();
    format!("{}/{}", names.join("+"), flags.profile_name())
}

fn facts(volume: &Volume) -> Result<Vec<Fact>, Failure> {
    let mut chunks = BTreeMap::new();
    for (key, data) in items(volume, TreeId::CHUNK, ItemType::CHUNK_ITEM)? {
        let number = chunks.len() as u64 + 1;
        chunks.insert(Logical(key.offset), (number, Chunk::parse(&data)?));
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
        let Some((logical_number, chunk)) = chunks.get(&extent.chunk) else {
            continue;
        };
        let before = facts.last().filter(|fact| fact.device == key.objectid);
        let used = used.get(&extent.chunk).copied().unwrap_or(0);
        facts.push(Fact {
            device: key.objectid,
            number: before.map_or(1, |fact| fact.number + 1),
            kind: kind_of(chunk.flags),
            physical: key.offset,
            length: extent.length,
            logical_number: *logical_number,
            logical: extent.chunk.get(),
            used_percent: used as f64 * 100.0 / chunk.length.max(1) as f64,
        });
    }
    Ok(facts)
}

impl ListChunks {
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
                fact.kind.clone(),
                size(fact.physical),
                size(fact.length),
                size(fact.physical.saturating_add(fact.length)),
                fact.logical_number.to_string(),
                size(fact.logical),
                format!("{:.2}", fact.used_percent),
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
