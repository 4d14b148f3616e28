//! A chunk map from what is left.
//!
//! Chunks come from the chunk tree. Where that has gaps, they come from older
//! chunk items that the scan found, and from device extents together with block
//! group items: the former say which part of a device belongs to which chunk,
//! the latter how long a chunk is and which profile it has.
//!
//! Nodes can be read without any of this, because the scan knows where they
//! lie. Data cannot.

use crate::live::Live;
use crate::nodes::Nodes;
use crate::plan::{Origin, Plan, PlanRequest, Seen, plan};
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::superblock::Superblock;
use butterfs_format::{
    DeviceId, DeviceOffset, Generation, ItemType, Logical, NodeRef, TreeId, UuidBytes,
};
use butterfs_volume::{ChunkMap, Profile};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;

/// Bytes of a stripe element.
const ELEMENT: u64 = 64 << 10;

/// Where the chunk map comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChunkSource {
    /// There is none.
    #[default]
    Nothing,
    /// The chunk tree, whole.
    Tree,
    /// What is left of the chunk tree, with older chunk items and device
    /// extents.
    Remains,
}

/// How a chunk map was found.
#[derive(Clone, Debug, Default)]
pub struct MapFacts {
    /// Where it comes from.
    pub source: ChunkSource,
    /// Its chunks.
    pub chunks: usize,
    /// Those of them that were made from device extents.
    pub from_device_extents: BTreeSet<Logical>,
    /// Chunks of which device extents tell, but not enough to read them.
    pub unknown: usize,
    /// Devices of the volume, by all that was found.
    pub devices: Vec<DeviceId>,
}

/// Device extents of a chunk.
#[derive(Clone, Debug, Default)]
struct Extents {
    stripes: Vec<(DeviceId, DeviceOffset)>,
    length: u64,
}

/// Finds chunks.
pub(crate) fn build(nodes: &Nodes, superblock: Option<&Superblock>) -> (ChunkMap, MapFacts) {
    let root = superblock.map(|superblock| NodeRef {
        logical: superblock.chunk_root,
        generation: superblock.chunk_root_generation,
        level: superblock.chunk_root_level,
    });
    let newest = root.map_or(Generation(u64::MAX), |root| root.generation);
    let request = PlanRequest::whole(TreeId::CHUNK, root, newest);
    let tree = plan(nodes, &request, &Live::nothing(nodes));
    let mut map = ChunkMap::default();
    let mut facts = MapFacts::default();
    let mut devices = BTreeMap::new();
    let is_whole = tree.is_whole();
    take_chunks(nodes, &tree, &mut map, &mut devices);
    if let Some(superblock) = superblock {
        for (logical, chunk) in &superblock.sys_chunks {
            // A chunk that the tree has otherwise is newer there.
            let _ = map.insert(*logical, chunk.clone());
        }
    }
    if !is_whole && !nodes.index.is_empty() {
        add_from_extents(nodes, &mut map, &mut devices, &mut facts);
    }
    facts.source = match (is_whole, map.is_empty()) {
        (true, false) => ChunkSource::Tree,
        (_, true) => ChunkSource::Nothing,
        (false, false) => ChunkSource::Remains,
    };
    facts.chunks = map.len();
    facts.devices = devices.into_keys().collect();
    (map, facts)
}

/// Takes the chunks and devices of a chunk tree: first those that belong to the
/// tree, then those that the scan found.
fn take_chunks(
    nodes: &Nodes,
    tree: &Plan,
    map: &mut ChunkMap,
    devices: &mut BTreeMap<DeviceId, UuidBytes>,
) {
    for wanted in [Origin::Pointed, Origin::Found] {
        let taken: Result<(), Infallible> = tree.each(nodes, |seen| {
            let Seen::Item { key, data, origin } = seen else {
                return Ok(());
            };
            if origin != wanted {
                return Ok(());
            }
            if key.item_type == ItemType::CHUNK_ITEM && key.objectid == Chunk::OBJECT {
                if let Ok(chunk) = Chunk::parse(data) {
                    let _ = map.insert(Logical(key.offset), chunk);
                }
            } else if key.item_type == ItemType::DEV_ITEM
                && key.objectid == DEVICES_OBJECT
                && let Ok(item) = DeviceItem::parse(data)
            {
                devices.entry(item.id).or_insert(item.uuid);
            }
            Ok(())
        });
        let Ok(()) = taken;
    }
}

/// Adds chunks that device extents and block groups tell of.
fn add_from_extents(
    nodes: &Nodes,
    map: &mut ChunkMap,
    devices: &mut BTreeMap<DeviceId, UuidBytes>,
    facts: &mut MapFacts,
) {
    let extents = device_extents(nodes);
    let groups = block_groups(nodes);
    for (logical, extents) in extents {
        for (device, _) in &extents.stripes {
            devices.entry(*device).or_insert([0; 16]);
        }
        if map.find(logical).is_some() {
            continue;
        }
        let group = groups.get(&logical).copied();
        let chunk = group.and_then(|(length, flags)| chunk_of(&extents, length, flags, devices));
        let chunk = chunk.or_else(|| guessed(&extents, logical, nodes, devices));
        match chunk.map(|chunk| map.insert(logical, chunk)) {
            Some(Ok(())) => {
                facts.from_device_extents.insert(logical);
            }
            Some(Err(_)) | None => facts.unknown = facts.unknown.saturating_add(1),
        }
    }
}

fn chunk_of(
    extents: &Extents,
    length: u64,
    flags: BlockGroupFlags,
    devices: &BTreeMap<DeviceId, UuidBytes>,
) -> Option<Chunk> {
    let profile = Profile::from_flags(flags)?;
    let stripe = |(device, offset): &(DeviceId, DeviceOffset)| Stripe {
        device: *device,
        offset: *offset,
        device_uuid: devices.get(device).copied().unwrap_or([0; 16]),
    };
    Some(Chunk {
        length,
        owner: TreeId::EXTENT.get(),
        stripe_length: ELEMENT,
        flags,
        io_align: 65536,
        io_width: 65536,
        sector_size: 4096,
        sub_stripes: profile.sub_stripes(),
        stripes: extents.stripes.iter().map(stripe).collect(),
    })
}

/// A chunk without a block group item: one device extent is a chunk of one
/// stripe, and two of one device are copies.
fn guessed(
    extents: &Extents,
    logical: Logical,
    nodes: &Nodes,
    devices: &BTreeMap<DeviceId, UuidBytes>,
) -> Option<Chunk> {
    let end = logical.saturating_add(extents.length);
    let has_nodes = nodes
        .index
        .nodes
        .iter()
        .any(|node| (logical..end).contains(&node.logical) && node.owner != TreeId::CHUNK);
    let holds = match has_nodes {
        true => BlockGroupFlags::METADATA,
        false => BlockGroupFlags::DATA,
    };
    let profile = match &extents.stripes[..] {
        [_] => Profile::Single,
        [(one, _), (other, _)] if one == other => Profile::Dup,
        _ => return None,
    };
    chunk_of(extents, extents.length, holds | profile.flag(), devices)
}

/// Device extents by their chunks.
fn device_extents(nodes: &Nodes) -> BTreeMap<Logical, Extents> {
    let request = PlanRequest::whole(TreeId::DEVICE, None, Generation(u64::MAX));
    let tree = plan(nodes, &request, &Live::nothing(nodes));
    let mut all: BTreeMap<Logical, Extents> = BTreeMap::new();
    let taken: Result<(), Infallible> = tree.each(nodes, |seen| {
        if let Seen::Item { key, data, .. } = seen
            && key.item_type == ItemType::DEV_EXTENT
            && let Ok(extent) = DeviceExtent::parse(data)
        {
            let chunk = all.entry(extent.chunk).or_default();
            let stripe = (DeviceId(key.objectid), DeviceOffset(key.offset));
            if chunk.stripes.len() < usize::from(u16::MAX) {
                chunk.stripes.push(stripe);
            }
            chunk.length = extent.length;
        }
        Ok(())
    });
    let Ok(()) = taken;
    all
}

/// Lengths and flags of block groups.
fn block_groups(nodes: &Nodes) -> BTreeMap<Logical, (u64, BlockGroupFlags)> {
    let mut all = BTreeMap::new();
    for tree in [TreeId::BLOCK_GROUP, TreeId::EXTENT] {
        let request = PlanRequest::whole(tree, None, Generation(u64::MAX));
        let taken: Result<(), Infallible> =
            plan(nodes, &request, &Live::nothing(nodes)).each(nodes, |seen| {
                if let Seen::Item { key, data, .. } = seen
                    && key.item_type == ItemType::BLOCK_GROUP_ITEM
                    && let Ok(group) = BlockGroupItem::parse(data)
                {
                    let facts = (key.offset, group.flags);
                    all.entry(Logical(key.objectid)).or_insert(facts);
                }
                Ok(())
            });
        let Ok(()) = taken;
    }
    all
}
