//! Compares chunks, device items and device extents with one another.

use crate::code::FaultCode;
use crate::context::Context;
use crate::report::Place;
use crate::superblocks::{Member, cut_short};
use crate::trees::Items;
use butterfs_format::features::Incompat;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::item::state::{DEVICE_STATS_OBJECTID, DeviceReplace, DeviceStats};
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId, UuidBytes};
use butterfs_volume::{ChunkMap, Profile};
use std::collections::BTreeMap;

/// What the chunk tree holds.
#[derive(Debug, Default)]
pub(crate) struct ChunkTree {
    pub(crate) chunks: Vec<(Logical, Chunk)>,
    pub(crate) devices: Vec<DeviceItem>,
}

/// Parses the items of the chunk tree.
pub(crate) fn parse(context: &Context<'_>, items: &Items) -> ChunkTree {
    let mut out = ChunkTree::default();
    for (key, data) in items {
        let place = Place::item(TreeId::CHUNK, *key);
        match key.item_type {
            ItemType::CHUNK_ITEM => match Chunk::parse(data) {
                Ok(chunk) if key.objectid == Chunk::OBJECT => {
                    out.chunks.push((Logical(key.offset), chunk));
                }
                Ok(_) => context.fault(FaultCode::ChunkInvalid, place, "its key is impossible"),
                Err(error) => context.fault(FaultCode::ChunkInvalid, place, error.to_string()),
            },
            ItemType::DEV_ITEM => match DeviceItem::parse(data) {
                Ok(item) => {
                    if key.objectid != DEVICES_OBJECT {
                        let text = "its key is impossible";
                        context.fault(FaultCode::DeviceItemInvalid, place, text);
                    }
                    if item.id.get() != key.offset || item.bytes_used > item.total_bytes {
                        let text = format!(
                            "device {} uses {} of {} bytes",
                            item.id, item.bytes_used, item.total_bytes
                        );
                        context.fault(FaultCode::DeviceItemInvalid, place, text);
                    }
                    out.devices.push(item);
                }
                Err(error) => context.fault(FaultCode::DeviceItemInvalid, place, error.to_string()),
            },
            _ => {
                let text = "the chunk tree holds no such items";
                context.fault(FaultCode::ItemUnexpected, place, text);
            }
        }
    }
    out
}

/// Finds the devices of other volumes, from which this one grew, among those
/// that were given.
pub(crate) fn choose_seeds(context: &Context<'_>, tree: &ChunkTree) {
    for item in tree.devices.iter().filter(|item| is_foreign(context, item)) {
        let is_it = |seed: &&Member| {
            let own = &seed.superblock;
            (own.device.id, own.device.uuid, own.node_fsid()) == (item.id, item.uuid, item.fsid)
        };
        let mut same: Vec<&Member> = context.seeds.iter().filter(is_it).collect();
        // If copies of the seed were given, the one that did not change wins.
        same.sort_by_key(|seed| seed.superblock.generation != item.generation);
        let Some(seed) = same.first() else {
            continue;
        };
        let (found, expected) = (seed.superblock.generation, item.generation);
        if found != expected {
            let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, item.id.get());
            let text = format!(
                "device {} is a seed that changed since the volume grew from it: its generation \
                 was {expected} and is {found}",
                item.id
            );
            let place = Place::item(TreeId::CHUNK, key);
            context.fault(FaultCode::DeviceItemInvalid, place, text);
        }
        context.add_seed(seed);
    }
}

/// Whether a device item belongs to a device of another volume.
fn is_foreign(context: &Context<'_>, item: &DeviceItem) -> bool {
    item.fsid != context.superblock.node_fsid()
}

/// Builds the map of all possible chunks, and reports the others.
pub(crate) fn map(context: &Context<'_>, tree: &ChunkTree) -> ChunkMap {
    let mut map = ChunkMap::default();
    // The volume's own devices were checked with their superblocks.
    for item in tree.devices.iter().filter(|item| is_foreign(context, item)) {
        let mut devices = context.space.devices();
        if let Some((_, device)) = devices.find(|(id, _)| *id == item.id)
            && let Some(text) = cut_short(&*device, item)
        {
            context.fault(FaultCode::DeviceSize, Place::default(), text);
        }
    }
    let mut add = |logical: Logical, chunk: &Chunk| {
        let bytes = stripe_bytes(chunk);
        // A chunk that does not fit its devices is left out, also to bound
        // memory.
        let fits = chunk.stripes.iter().all(|stripe| {
            let found = context.space.devices().find(|(id, _)| *id == stripe.device);
            let end = stripe.offset.saturating_add(bytes);
            // The device item gives the size of a missing device, and the
            // former size of one that was cut short. The chunk stays in the map
            // then, because other copies of it may be left. The short device is
            // reported as a fault of its own.
            let size = found.map(|(_, device)| device.size());
            let size = size.max(size_by_item(tree, stripe.device));
            size.is_some_and(|size| end.get() <= size)
        });
        let place = Place::at(logical);
        if !fits {
            let text = "it does not fit the devices of the volume";
            context.fault(FaultCode::ChunkInvalid, place, text);
        } else if let Err(error) = map.insert(logical, chunk.clone()) {
            context.fault(FaultCode::ChunkInvalid, place, error.to_string());
        }
    };
    for (logical, chunk) in &tree.chunks {
        add(*logical, chunk);
    }
    for (logical, chunk) in &context.superblock.sys_chunks {
        if !tree.chunks.iter().any(|(at, _)| at == logical) {
            add(*logical, chunk);
        }
    }
    map
}

/// The size of a device by its item in the chunk tree.
fn size_by_item(tree: &ChunkTree, device: DeviceId) -> Option<u64> {
    let mut items = tree.devices.iter();
    let item = items.find(|item| item.id == device)?;
    Some(item.total_bytes)
}

/// Reports which devices are missing, and which chunks cannot do without them.
pub(crate) fn missing(context: &Context<'_>, tree: &ChunkTree) {
    let is_there = |id: DeviceId| context.space.state(id).is_some();
    for item in tree.devices.iter().filter(|item| !is_there(item.id)) {
        let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, item.id.get());
        let why = match context.is_stale(item.id) {
            true => "has an old state",
            false => "is missing",
        };
        let text = format!(
            "device {} {why}; what lies on it was not looked at",
            item.id
        );
        context.fault(
            FaultCode::DeviceMissing,
            Place::item(TreeId::CHUNK, key),
            text,
        );
    }
    for (logical, chunk) in &tree.chunks {
        let stripes = chunk.stripes.iter();
        let gone = stripes.filter(|stripe| !is_there(stripe.device)).count();
        let profile = Profile::from_flags(chunk.flags);
        if let Some(profile) = profile.filter(|profile| gone > profile.tolerated()) {
            let text = format!(
                "{gone} of its {} devices are missing; {profile} can do without {}",
                chunk.stripes.len(),
                profile.tolerated()
            );
            context.fault(FaultCode::ChunkLost, Place::at(*logical), text);
        }
    }
}

/// Bytes that each stripe of a chunk takes on its device.
fn stripe_bytes(chunk: &Chunk) -> u64 {
    let stripes = chunk.stripes.len();
    let data = Profile::from_flags(chunk.flags).map_or(stripes, |p| p.data_stripes(stripes));
    let data = u64::try_from(data).unwrap_or(u64::MAX);
    chunk.length.checked_div(data).unwrap_or(chunk.length)
}

/// Compares the superblock's copies of system chunks and device items with the
/// chunk tree.
pub(crate) fn superblock(context: &Context<'_>, tree: &ChunkTree) {
    identities(context, tree);
    let superblock = &context.superblock;
    let fault = |code, text: String| context.fault(code, Place::default(), text);
    for (logical, chunk) in &superblock.sys_chunks {
        let found = tree.chunks.iter().find(|(at, _)| at == logical);
        if found.is_none_or(|(_, found)| found != chunk) {
            let text = format!("its chunk at logical {logical} is not the one of the chunk tree");
            fault(FaultCode::SuperblockChunks, text);
        }
    }
    let system = butterfs_format::item::chunk::BlockGroupFlags::SYSTEM;
    for (logical, chunk) in &tree.chunks {
        let known = superblock.sys_chunks.iter().any(|(at, _)| at == logical);
        if chunk.flags.contains(system) && !known {
            let text = format!("it lacks the system chunk at logical {logical}");
            fault(FaultCode::SuperblockChunks, text);
        }
    }
    for own in &*context.device_items {
        own_item(context, own, tree);
    }
    let count = u64::try_from(tree.devices.len()).unwrap_or(u64::MAX);
    if superblock.num_devices != count {
        let text = format!(
            "it counts {} devices; there are {count}",
            superblock.num_devices
        );
        fault(FaultCode::SuperblockDevices, text);
    }
    let sum = |sum: u64, item: &DeviceItem| sum.saturating_add(item.total_bytes);
    let total = tree.devices.iter().fold(0, sum);
    if superblock.total_bytes != total {
        let text = format!(
            "it says {} bytes; the devices have {total}",
            superblock.total_bytes
        );
        fault(FaultCode::SuperblockTotalBytes, text);
    }
}

/// Compares a superblock's item of its own device with that of the chunk tree.
fn own_item(context: &Context<'_>, own: &DeviceItem, tree: &ChunkTree) {
    let fault = |text: String| {
        context.fault(FaultCode::SuperblockDeviceItem, Place::default(), text);
    };
    let Some(item) = tree.devices.iter().find(|item| item.id == own.id) else {
        return fault(format!("the chunk tree does not know device {}", own.id));
    };
    if item.uuid != own.uuid {
        fault(format!(
            "device {} has another UUID in the chunk tree",
            own.id
        ));
    }
    let facts = |i: &DeviceItem| (i.total_bytes, i.bytes_used, i.sector_size);
    if facts(item) != facts(own) {
        fault(format!(
            "device {} has {} of {} bytes in use, by the chunk tree {} of {}",
            own.id, own.bytes_used, own.total_bytes, item.bytes_used, item.total_bytes
        ));
    }
}

/// Checks the UUIDs of device items and of chunks' stripes, and the fields of
/// chunks that must agree with the volume.
fn identities(context: &Context<'_>, tree: &ChunkTree) {
    let superblock = &context.superblock;
    for item in tree
        .devices
        .iter()
        // The rest are seeds or missing. Missing devices are reported elsewhere.
        .filter(|item| is_foreign(context, item) && context.is_own_device(item.id))
    {
        let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, item.id.get());
        let place = Place::item(TreeId::CHUNK, key);
        let text = format!("device {} belongs to another volume", item.id);
        context.fault(FaultCode::DeviceItemInvalid, place, text);
    }
    let uuids: BTreeMap<DeviceId, UuidBytes> = tree
        .devices
        .iter()
        .map(|item| (item.id, item.uuid))
        .collect();
    for (logical, chunk) in &tree.chunks {
        let fault = |text: String| {
            context.fault(FaultCode::ChunkInvalid, Place::at(*logical), text);
        };
        for stripe in &chunk.stripes {
            if uuids.get(&stripe.device) != Some(&stripe.device_uuid) {
                let (device, offset) = (stripe.device, stripe.offset);
                fault(format!(
                    "its stripe at offset {offset} names another UUID than device {device} has"
                ));
            }
        }
        if chunk.owner != TreeId::EXTENT.get() {
            fault(format!("it belongs to tree {}", chunk.owner));
        }
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        if chunk.flags.contains(both) && !superblock.incompat.contains(Incompat::MIXED_GROUPS) {
            fault("it holds data and metadata, but the volume lacks MIXED_GROUPS".to_owned());
        }
        if chunk.sector_size != superblock.sector_size {
            fault(format!("its sectors have {} bytes", chunk.sector_size));
        }
    }
}

/// Compares device extents with chunks and device items.
pub(crate) fn extents(context: &Context<'_>, tree: &ChunkTree, items: &Items) {
    let mut found: BTreeMap<(DeviceId, u64), (Key, DeviceExtent)> = BTreeMap::new();
    for (key, data) in items {
        let place = Place::item(TreeId::DEVICE, *key);
        if key.item_type != ItemType::DEV_EXTENT {
            state(context, *key, data);
            continue;
        }
        match DeviceExtent::parse(data) {
            Ok(extent) if is_possible(*key, &extent) => {
                found.insert((DeviceId(key.objectid), key.offset), (*key, extent));
            }
            Ok(extent) => {
                let text = format!(
                    "{} bytes at {} of chunk {} in tree {} are impossible",
                    extent.length, key.offset, extent.chunk_objectid, extent.chunk_tree
                );
                context.fault(FaultCode::DeviceExtentInvalid, place, text);
            }
            Err(error) => {
                context.fault(FaultCode::DeviceExtentInvalid, place, error.to_string());
            }
        }
    }
    on_devices(context, tree, &found);
    let mut wanted = BTreeMap::new();
    for (logical, chunk) in &tree.chunks {
        for stripe in &chunk.stripes {
            let at = (stripe.device, stripe.offset.get());
            wanted.insert(at, (*logical, stripe_bytes(chunk)));
            let fits = found.get(&at).is_some_and(|(_, extent)| {
                extent.chunk == *logical && extent.length == stripe_bytes(chunk)
            });
            if !fits {
                let text = format!(
                    "its stripe at offset {} of device {} has no device extent of {} bytes",
                    stripe.offset,
                    stripe.device,
                    stripe_bytes(chunk)
                );
                context.fault(
                    FaultCode::ChunkWithoutDeviceExtent,
                    Place::at(*logical),
                    text,
                );
            }
        }
    }
    for (at, (key, extent)) in &found {
        if wanted.get(at) != Some(&(extent.chunk, extent.length)) {
            let text = format!("the chunk at logical {} has no such stripe", extent.chunk);
            let place = Place::item(TreeId::DEVICE, *key);
            context.fault(FaultCode::DeviceExtentWithoutChunk, place, text);
        }
    }
}

/// Checks an item of the device tree that is no device extent: statistics, or
/// the progress of a replacement. Statistics outlive their device, so they need
/// not belong to one.
fn state(context: &Context<'_>, key: Key, data: &[u8]) {
    let place = Place::item(TreeId::DEVICE, key);
    let parsed = match key.item_type {
        ItemType::PERSISTENT_ITEM if key.objectid == DEVICE_STATS_OBJECTID => {
            DeviceStats::parse(data).map(drop)
        }
        ItemType::DEV_REPLACE if (key.objectid, key.offset) == (0, 0) => {
            DeviceReplace::parse(data).map(drop)
        }
        _ => {
            let text = "the device tree holds no such items";
            return context.fault(FaultCode::ItemUnexpected, place, text);
        }
    };
    if let Err(error) = parsed {
        context.fault(FaultCode::ItemInvalid, place, error.to_string());
    }
}

/// Whether a device extent is possible, seen on its own.
fn is_possible(key: Key, extent: &DeviceExtent) -> bool {
    extent.length > 0
        && key.offset.checked_add(extent.length).is_some()
        && extent.chunk_tree == TreeId::CHUNK.get()
        && extent.chunk_objectid == Chunk::OBJECT
}

fn on_devices(
    context: &Context<'_>,
    tree: &ChunkTree,
    found: &BTreeMap<(DeviceId, u64), (Key, DeviceExtent)>,
) {
    let mut before: Option<(DeviceId, u64)> = None;
    let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
    let sizes: BTreeMap<DeviceId, u64> = tree
        .devices
        .iter()
        .map(|item| (item.id, item.total_bytes))
        .collect();
    for ((device, start), (key, extent)) in found {
        let place = Place::item(TreeId::DEVICE, *key);
        let end = start.saturating_add(extent.length);
        if before.is_some_and(|(other, end)| other == *device && end > *start) {
            let text = "it overlaps the one before it";
            context.fault(FaultCode::DeviceExtentOverlap, place, text);
        }
        before = Some((*device, end));
        let sum = used.entry(*device).or_insert(0);
        *sum = sum.saturating_add(extent.length);
        if sizes.get(device).is_none_or(|size| end > *size) {
            let text = format!("device {device} does not reach up to {end}");
            context.fault(FaultCode::DeviceExtentBeyondDevice, place, text);
        }
    }
    for item in &tree.devices {
        let sum = used.get(&item.id).copied().unwrap_or(0);
        if item.bytes_used != sum {
            let text = format!(
                "device {} counts {} allocated bytes; its extents have {sum}",
                item.id, item.bytes_used
            );
            context.fault(FaultCode::DeviceBytesUsed, Place::tree(TreeId::CHUNK), text);
        }
    }
}
