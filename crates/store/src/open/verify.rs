//! Whether the descriptions of space agree with each other.
//!
//! Chunks, device items, device extents and block groups describe the same
//! space from four sides. If they differ, a driver that writes by one of them
//! overwrites what is in use. So such a volume is not opened. It is not even
//! opened for reading, because each description leads to other bytes. The
//! kernel refuses the same volumes, and opens those that are opened here.
//!
//! Reads the chunk tree, the device tree and the block group items: nothing
//! that grows with the number of files.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::open::options::{OnShortDevice, OpenOptions};
use crate::open::space_fault::SpaceFault;
use butterfs_device::Access;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::{DeviceId, DeviceOffset, ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use butterfs_volume::ChunkMap;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// How many items are looked at in a range that should have no block group.
const STRAY_ITEMS_MAX: usize = 4096;

/// Chunks as the superblock and the chunk tree have them.
pub(super) struct FoundChunks {
    pub map: ChunkMap,
    pub chunks: BTreeMap<Logical, Chunk>,
}

impl Engine {
    /// The chunks, each verified by itself. Where the superblock lists a chunk
    /// too, its list counts, because the chunk tree itself is read by it.
    pub(super) fn read_chunks(&self) -> Result<FoundChunks, StoreError> {
        let mut map = ChunkMap::default();
        let mut chunks = BTreeMap::new();
        for (logical, chunk) in &self.publisher.superblock().sys_chunks {
            self.publisher.verify_chunk(*logical, chunk)?;
            map.insert(*logical, chunk.clone())?;
            chunks.insert(*logical, chunk.clone());
        }
        let first = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::CHUNK, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != Chunk::OBJECT || key.item_type != ItemType::CHUNK_ITEM {
                break;
            }
            let logical = Logical(key.offset);
            let chunk = Chunk::parse(data).map_err(|e| bad_item(TreeId::CHUNK, key, &e))?;
            match chunks.entry(logical) {
                Entry::Occupied(_) => ChunkMap::default().insert(logical, chunk)?,
                Entry::Vacant(place) => {
                    self.publisher.verify_chunk(logical, &chunk)?;
                    map.insert(logical, chunk.clone())?;
                    place.insert(chunk);
                }
            }
            cursor.next()?;
        }
        Ok(FoundChunks { map, chunks })
    }

    /// The items of all devices, each compared with the superblock of its device
    /// where that is there.
    pub(super) fn read_devices(&self) -> Result<BTreeMap<DeviceId, DeviceItem>, StoreError> {
        let mut devices = BTreeMap::new();
        let first = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::CHUNK, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != DEVICES_OBJECT || key.item_type != ItemType::DEV_ITEM {
                break;
            }
            let item = DeviceItem::parse(data).map_err(|e| bad_item(TreeId::CHUNK, key, &e))?;
            self.publisher.verify_device(DeviceId(key.offset), &item)?;
            devices.insert(item.id, item);
            cursor.next()?;
        }
        Ok(devices)
    }

    /// Compares the size of each device with its item. The chunks must be
    /// known: they decide whether something lies beyond the end of a device
    /// that is too short.
    pub(super) fn verify_device_sizes(&mut self, options: &OpenOptions) -> Result<(), StoreError> {
        for (device, block) in self.space.devices() {
            let found = self.publisher.bytes_by_item(device);
            let size = block.size();
            if found <= size {
                continue;
            }
            let beyond = self.space_map.chunks_beyond(device, size).count();
            let fault = SpaceFault::DeviceSize {
                device,
                name: block.identity(),
                found,
                size,
                beyond,
            };
            match (options.access, options.on_short_device) {
                (Access::ReadOnly, _) => tracing::warn!("{fault}"),
                (Access::ReadWrite, OnShortDevice::EndThere) if beyond == 0 => {
                    let end = size - size % self.sector_size();
                    self.space_map.limit_device(device, Some(end));
                }
                (Access::ReadWrite, _) => return Err(fault.into()),
            }
        }
        Ok(())
    }

    /// Whether all chunks fit their devices. The item counts where a device is
    /// shorter, because [`Self::verify_device_sizes`] decides about those.
    pub(super) fn verify_stripes(&self) -> Result<(), StoreError> {
        Ok(self.space.map().check_devices(|device| {
            let size = self.space.device(device)?.size();
            Some(size.max(self.publisher.bytes_by_item(device)))
        })?)
    }

    /// Compares the device extents with the stripes of all chunks.
    pub(super) fn verify_device_extents(&self) -> Result<(), StoreError> {
        let map = self.space.map();
        let mut waiting: FxHashMap<(DeviceId, DeviceOffset), Logical> = FxHashMap::default();
        for part in map.stripes() {
            waiting.insert((part.device, part.offset), part.chunk);
        }
        let first = Key::new(1, ItemType::DEV_EXTENT, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::DEVICE, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::DEV_EXTENT {
                let extent =
                    DeviceExtent::parse(data).map_err(|e| bad_item(TreeId::DEVICE, key, &e))?;
                let place = (DeviceId(key.objectid), DeviceOffset(key.offset));
                verify_extent(&map, &mut waiting, place, &extent)?;
            }
            cursor.next()?;
        }
        // The first one, so that the message is always the same.
        let left = waiting
            .iter()
            .min_by_key(|(place, chunk)| (**chunk, **place));
        match left {
            None => Ok(()),
            Some(((device, offset), chunk)) => Err(SpaceFault::StripeWithoutExtent {
                chunk: *chunk,
                device: *device,
                offset: *offset,
            }
            .into()),
        }
    }

    /// The item of a chunk's block group. `None` if the chunk has none; the
    /// kernel accepts that, and nothing is then allocated from the chunk.
    pub(super) fn read_group(
        &self,
        logical: Logical,
        chunk: &Chunk,
    ) -> Result<Option<BlockGroupItem>, StoreError> {
        let tree = self.publisher.group_tree();
        let key = Key::new(logical.get(), ItemType::BLOCK_GROUP_ITEM, chunk.length);
        let Some((leaf, slot)) = butterfs_tree::find(self, tree, &key)? else {
            self.verify_no_group(logical.get(), logical.get().saturating_add(chunk.length))?;
            return Ok(None);
        };
        let item = BlockGroupItem::parse(leaf.data(slot)).map_err(|e| bad_item(tree, key, &e))?;
        let (found, expected) = (
            item.flags & BlockGroupFlags::TYPE,
            chunk.flags & BlockGroupFlags::TYPE,
        );
        if item.used > chunk.length || item.chunk_objectid != CHUNK_OBJECTID {
            return Err(SpaceFault::GroupNumbers { group: logical }.into());
        }
        if found != expected {
            return Err(SpaceFault::GroupType {
                group: logical,
                found,
                expected,
            }
            .into());
        }
        Ok(Some(item))
    }

    /// Errors for a block group between the chunks.
    pub(super) fn verify_gaps(&self) -> Result<(), StoreError> {
        let mut at = 0;
        for (logical, chunk) in self.space_map.chunks() {
            if logical.get() > at {
                self.verify_no_group(at, logical.get())?;
            }
            at = logical.get().saturating_add(chunk.length);
        }
        self.verify_no_group(at, u64::MAX)
    }

    /// Errors for a block group that begins in a range.
    fn verify_no_group(&self, start: u64, end: u64) -> Result<(), StoreError> {
        let first = Key::new(start, ItemType::MIN, 0);
        let mut cursor = Cursor::seek_in(self, self.publisher.group_tree(), &first)?;
        for _ in 0..STRAY_ITEMS_MAX {
            let Some(key) = cursor.key().filter(|key| key.objectid < end) else {
                break;
            };
            if key.item_type == ItemType::BLOCK_GROUP_ITEM {
                return Err(SpaceFault::GroupWithoutChunk {
                    group: Logical(key.objectid),
                    length: key.offset,
                }
                .into());
            }
            cursor.next()?;
        }
        Ok(())
    }
}

/// Compares a device extent with its chunk. The chunk's stripe is then no
/// longer without a device extent.
fn verify_extent(
    map: &ChunkMap,
    waiting: &mut FxHashMap<(DeviceId, DeviceOffset), Logical>,
    (device, offset): (DeviceId, DeviceOffset),
    extent: &DeviceExtent,
) -> Result<(), SpaceFault> {
    if extent.chunk_tree != TreeId::CHUNK.get() || extent.chunk_objectid != Chunk::OBJECT {
        return Err(SpaceFault::ExtentKind { device, offset });
    }
    // As in the kernel, any address in the chunk may name it.
    let Some((chunk, stripe)) = map.find_stripe_length(extent.chunk) else {
        return Err(SpaceFault::ExtentWithoutChunk {
            device,
            offset,
            chunk: extent.chunk,
        });
    };
    if extent.length != stripe {
        return Err(SpaceFault::ExtentLength {
            device,
            offset,
            chunk,
            found: extent.length,
            expected: stripe,
        });
    }
    if waiting.get(&(device, offset)) != Some(&chunk) {
        return Err(SpaceFault::ExtentWithoutStripe {
            device,
            offset,
            chunk,
        });
    }
    waiting.remove(&(device, offset));
    Ok(())
}
