//! Device extents, device items and sizes, made equal to the chunks.

use crate::error::RepairError;
use crate::items::{self, Items};
use crate::step::{Step, StepKind};
use crate::writer::Writer;
use butterfs_format::features::Incompat;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::superblock::{LABEL_SIZE, Superblock};
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_tree::{Editor, find};
use butterfs_volume::ChunkMap;
use std::collections::BTreeMap;

/// Tree of chunks, as device extents name it.
const CHUNK_TREE: u64 = 3;

/// The type and profile that the block group of a chunk has.
fn group_flags(writer: &Writer, logical: Logical, length: u64) -> Option<BlockGroupFlags> {
    let tree = match writer.patient.superblock.has_block_group_tree() {
        true => TreeId::BLOCK_GROUP,
        false => TreeId::EXTENT,
    };
    let key = Key::new(logical.get(), ItemType::BLOCK_GROUP_ITEM, length);
    let (leaf, slot) = find(writer, tree, &key).ok()??;
    Some(BlockGroupItem::parse(leaf.data(slot)).ok()?.flags)
}

/// Corrects what chunks say of their devices, and what no chunk can say; gives
/// how many.
fn chunks(writer: &mut Writer) -> Result<usize, RepairError> {
    let old = writer.patient.space.map();
    let is_mixed = writer
        .patient
        .superblock
        .incompat
        .contains(Incompat::MIXED_GROUPS);
    let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
    let mut map = ChunkMap::clone(&old);
    let mut changed: Vec<(Logical, Chunk)> = writer.patient.corrected.clone();
    for (logical, chunk) in old.iter() {
        let mut good = chunk.clone();
        for stripe in &mut good.stripes {
            let members = &writer.patient.members;
            let own = members
                .iter()
                .find(|one| one.superblock.device.id == stripe.device);
            if let Some(own) = own {
                stripe.device_uuid = own.superblock.device.uuid;
            }
        }
        if good.flags.contains(both)
            && !is_mixed
            && let Some(flags) = group_flags(writer, logical, good.length)
            && !flags.contains(both)
            && flags.profile() == good.flags.profile()
        {
            good.flags = flags;
        }
        if good != *chunk {
            map = map.without(logical);
            map.insert(logical, good.clone())?;
            changed.retain(|(at, _)| *at != logical);
            changed.push((logical, good));
        }
    }
    writer.patient.space.set_map(map);
    let mut editor = Editor::new(writer, TreeId::CHUNK);
    for (logical, chunk) in &changed {
        let key = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, logical.get());
        editor.replace(&key, &chunk.encode())?;
    }
    writer.read_groups();
    Ok(changed.len())
}

/// Makes device extents equal to the chunks' stripes.
fn extents(writer: &mut Writer) -> Result<usize, RepairError> {
    let map = writer.patient.space.map();
    let uuid = writer.patient.stamp.chunk_tree_uuid;
    let mut want = Items::new();
    for (logical, chunk) in map.iter() {
        let length = map
            .find_stripe_length(logical)
            .map_or(0, |(_, length)| length);
        for stripe in &chunk.stripes {
            let extent = DeviceExtent {
                chunk_tree: CHUNK_TREE,
                chunk_objectid: Chunk::OBJECT,
                chunk: logical,
                length,
                chunk_tree_uuid: uuid,
            };
            let key = Key::new(
                stripe.device.get(),
                ItemType::DEV_EXTENT,
                stripe.offset.get(),
            );
            want.insert(key, extent.encode());
        }
    }
    let mut have = Items::new();
    items::each(writer, TreeId::DEVICE, Key::MIN..=Key::MAX, |key, data| {
        let is_state = [
            ItemType::PERSISTENT_ITEM,
            ItemType::TEMPORARY_ITEM,
            ItemType::DEV_REPLACE,
        ]
        .contains(&key.item_type);
        // Statistics of devices have the object 0, and the device as offset.
        let is_placed = key.item_type != ItemType::PERSISTENT_ITEM || key.offset > 0;
        if !is_state || !is_placed {
            have.insert(key, data.to_vec());
        }
        Ok(())
    })?;
    // The UUID of the chunk tree in an extent is of no use to anybody.
    for (key, data) in &have {
        let Some(wanted) = want.get_mut(key) else {
            continue;
        };
        if let (Ok(old), Ok(new)) = (DeviceExtent::parse(data), DeviceExtent::parse(wanted)) {
            let same = DeviceExtent {
                chunk_tree_uuid: new.chunk_tree_uuid,
                ..old
            };
            if same == new {
                wanted.clone_from(data);
            }
        }
    }
    items::change(writer, TreeId::DEVICE, &have, &want)
}

/// Makes device items equal to the chunks and the devices.
fn device_items(writer: &mut Writer) -> Result<usize, RepairError> {
    let map = writer.patient.space.map();
    let mut used: BTreeMap<DeviceId, (u64, u64)> = BTreeMap::new();
    for (logical, chunk) in map.iter() {
        let length = map
            .find_stripe_length(logical)
            .map_or(0, |(_, length)| length);
        for stripe in &chunk.stripes {
            let (bytes, end) = used.entry(stripe.device).or_default();
            *bytes = bytes.saturating_add(length);
            *end = (*end).max(stripe.offset.get().saturating_add(length));
        }
    }
    let sector = u64::from(writer.patient.superblock.sector_size).max(1);
    let mut have = Items::new();
    items::each(writer, TreeId::CHUNK, Key::MIN..=Key::MAX, |key, data| {
        if key.item_type == ItemType::DEV_ITEM {
            have.insert(key, data.to_vec());
        }
        Ok(())
    })?;
    let mut want = Items::new();
    for member in &writer.patient.members {
        let own = &member.superblock.device;
        let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, own.id.get());
        let (bytes, end) = used.get(&own.id).copied().unwrap_or_default();
        let old = have.get(&key).and_then(|data| DeviceItem::parse(data).ok());
        let mut item = old.unwrap_or_else(|| own.clone());
        item.id = own.id;
        item.uuid = own.uuid;
        item.fsid = own.fsid;
        item.bytes_used = bytes;
        let size = member.device.size();
        // The end of a device that became shorter is given up, if nothing lies
        // there.
        if item.total_bytes > size && end <= size {
            item.total_bytes = size.saturating_sub(size.checked_rem(sector).unwrap_or(0));
        }
        if item.total_bytes < end {
            item.total_bytes = own.total_bytes.max(end);
        }
        want.insert(key, item.encode());
    }
    items::change(writer, TreeId::CHUNK, &have, &want)
}

/// Makes the superblock's facts of devices equal to the chunk tree; false if
/// they were.
fn superblock(writer: &mut Writer) -> Result<bool, RepairError> {
    let mut all = BTreeMap::new();
    items::each(writer, TreeId::CHUNK, Key::MIN..=Key::MAX, |key, data| {
        if key.item_type == ItemType::DEV_ITEM
            && let Ok(item) = DeviceItem::parse(data)
        {
            all.insert(item.id, item);
        }
        Ok(())
    })?;
    let map = writer.patient.space.map();
    let system = map
        .iter()
        .filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::SYSTEM));
    let mut system: Vec<(Logical, Chunk)> = system.map(|(at, chunk)| (at, chunk.clone())).collect();
    let patient = &mut writer.patient;
    let before: Vec<Superblock> = std::iter::once(&patient.superblock)
        .chain(patient.members.iter().map(|member| &member.superblock))
        .cloned()
        .collect();
    let total = all.values().map(|item| item.total_bytes);
    patient.superblock.total_bytes = total.fold(0, u64::saturating_add);
    patient.superblock.num_devices = u64::try_from(all.len()).unwrap_or(1);
    patient.superblock.root_dir = TreeId::ROOT_TREE_DIR.get();
    if ![4096, patient.superblock.sector_size].contains(&patient.superblock.stripe_size) {
        patient.superblock.stripe_size = patient.superblock.sector_size;
    }
    patient
        .superblock
        .label
        .truncate(LABEL_SIZE.saturating_sub(1));
    let mut known = patient.superblock.sys_chunks.clone();
    known.sort_by_key(|(at, _)| *at);
    system.sort_by_key(|(at, _)| *at);
    if known != system && !system.is_empty() && Superblock::array_fits(&system) {
        patient.superblock.sys_chunks = system;
    }
    for member in &mut patient.members {
        if let Some(item) = all.get(&member.superblock.device.id) {
            member.superblock.device = item.clone();
        }
    }
    let first = patient.superblock.device.id;
    if let Some(item) = all.get(&first) {
        patient.superblock.device = item.clone();
    }
    let after = std::iter::once(&patient.superblock)
        .chain(patient.members.iter().map(|member| &member.superblock));
    Ok(!before.iter().eq(after))
}

/// Mends what devices and chunks say of each other; true if the superblocks
/// have to be written.
///
/// # Errors
/// Reading or changing a tree.
pub(crate) fn mend(writer: &mut Writer, steps: &mut Vec<Step>) -> Result<bool, RepairError> {
    let chunks = chunks(writer)?;
    let (extents, items) = (extents(writer)?, device_items(writer)?);
    let superblock = superblock(writer)?;
    if chunks > 0 || extents > 0 || items > 0 || superblock {
        let text = format!("{chunks} chunks, {extents} device extents, {items} device items.");
        steps.push(Step::new(StepKind::Chunks, text));
    }
    Ok(superblock)
}
