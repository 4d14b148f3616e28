//! Restoring an image: writes all copies of its nodes where the volume had them,
//! on as many devices as it had.
//!
//! The superblock comes last, so a volume that was restored only in part cannot
//! be opened. Its flag METADUMP_V2 says that the volume has no data.

use super::clusters::{Item, each_item};
use super::{Fault, ImageError};
use butterfs_device::BlockDevice;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{COPIES, SIZE, SuperFlags, Superblock};
use butterfs_format::{ItemType, Logical, NodeRef};
use butterfs_tree::{Expected, Headers, Node, VolumeIdentity};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage};
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// The most bytes of nodes in system chunks. They are kept in memory.
const SYSTEM_MAX: usize = 256 << 20;

/// What was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Bytes of nodes, without second copies.
    pub bytes: u64,
    /// Number of devices of the volume.
    pub devices: usize,
}

/// Opens a device for each device item.
pub type OpenDevices<'o> =
    dyn FnMut(&[DeviceItem]) -> Result<Vec<Arc<dyn BlockDevice>>, ImageError> + 'o;

/// Restores an image. `open` gets the device items of the volume, sorted by
/// number, and returns the devices in this order. Each must be at least as large
/// as its item says. What was on the devices is lost.
///
/// # Errors
/// - [`ImageError::Damaged`], [`ImageError::NoChunks`] and [`ImageError::Parse`] if
///   the image is damaged, [`ImageError::Io`] if it cannot be read.
/// - [`ImageError::Devices`] and [`ImageError::TooSmall`] if the devices do not fit
///   the volume.
/// - [`ImageError::Device`] and [`ImageError::Volume`] if the devices cannot be
///   written or the chunks are not possible.
/// - Any error that `open` returns.
pub fn restore<I: Read + Seek>(
    image: &mut I,
    open: &mut OpenDevices<'_>,
) -> Result<Restored, ImageError> {
    let contents = Contents::read(image)?;
    let (map, items) = contents.chunks()?;
    let devices = open(&items)?;
    if devices.len() != items.len() {
        return Err(ImageError::Devices {
            volume: items.len(),
            given: devices.len(),
        });
    }
    for (device, item) in devices.iter().zip(&items) {
        if device.size() < item.total_bytes {
            return Err(ImageError::TooSmall {
                device: device.identity(),
                has: device.size(),
                needs: item.total_bytes,
            });
        }
        // Removes the superblocks of a volume that was there before.
        for offset in COPIES {
            if offset.get() + SIZE as u64 <= device.size() {
                device.write_at(offset, &[0; SIZE])?;
            }
        }
        device.flush()?;
    }
    let members = items.iter().map(|item| item.id).zip(devices.clone());
    let space = LogicalSpace::new(members.collect(), map, OnDamage::Leave);
    space.check_chunks()?;
    let mut restored = Restored {
        bytes: 0,
        devices: devices.len(),
    };
    image.seek(SeekFrom::Start(0))?;
    let mut is_first = true;
    each_item(image, &mut |_, item| {
        if !std::mem::take(&mut is_first) {
            space.write(Logical(item.at), &item.bytes)?;
            restored.bytes += item.bytes.len() as u64;
        }
        Ok(())
    })?;
    space.flush()?;
    let mut superblock = contents.superblock;
    superblock.flags |= SuperFlags::METADUMP_V2;
    let [first, ..] = COPIES;
    for (device, item) in devices.iter().zip(&items) {
        device.write_at(first, &superblock.on_device(item).encode(first))?;
    }
    space.flush()?;
    Ok(restored)
}

/// The parts of an image that say where nodes lie.
struct Contents {
    superblock: Superblock,
    /// Runs of nodes in system chunks, by address.
    system: BTreeMap<u64, Vec<u8>>,
}

impl Contents {
    fn read(image: &mut dyn Read) -> Result<Self, ImageError> {
        let mut contents: Option<Self> = None;
        let mut held = 0;
        each_item(image, &mut |at, item| {
            let Some(contents) = &mut contents else {
                contents = Some(Self {
                    superblock: superblock_in(at, &item)?,
                    system: BTreeMap::new(),
                });
                return Ok(());
            };
            let is_system = contents.superblock.sys_chunks.iter().any(|(start, chunk)| {
                item.at
                    .checked_sub(start.get())
                    .is_some_and(|into| into < chunk.length)
            });
            if is_system {
                held += item.bytes.len();
                if held > SYSTEM_MAX {
                    return Err(ImageError::Damaged {
                        at,
                        what: Fault::Chunks,
                    });
                }
                contents.system.insert(item.at, item.bytes);
            }
            Ok(())
        })?;
        contents.ok_or(ImageError::Damaged {
            at: 0,
            what: Fault::NoSuperblock,
        })
    }

    fn node(&self, reference: NodeRef, identity: &VolumeIdentity) -> Result<Node, ImageError> {
        let missing = || ImageError::NoChunks(reference.logical);
        let at = reference.logical.get();
        let (start, run) = self.system.range(..=at).next_back().ok_or_else(missing)?;
        let from = usize::try_from(at - start).map_err(|_| missing())?;
        let bytes = from
            .checked_add(identity.node_size)
            .and_then(|to| run.get(from..to))
            .ok_or_else(missing)?;
        Node::verify(bytes.into(), identity, Expected::from(reference)).map_err(|_| missing())
    }

    /// Returns the chunks, and the device items sorted by number.
    fn chunks(&self) -> Result<(ChunkMap, Vec<DeviceItem>), ImageError> {
        let superblock = &self.superblock;
        let identity = VolumeIdentity {
            fsid: superblock.node_fsid(),
            node_size: superblock.node_size as usize,
            sector_size: superblock.sector_size.into(),
            checksum: superblock.checksum_type,
            headers: Headers::Agree,
        };
        let mut map = ChunkMap::default();
        let mut devices = BTreeMap::new();
        let mut waiting = vec![NodeRef {
            logical: superblock.chunk_root,
            generation: superblock.chunk_root_generation,
            level: superblock.chunk_root_level,
        }];
        let mut left = SYSTEM_MAX / identity.node_size;
        while let Some(reference) = waiting.pop() {
            left = left
                .checked_sub(1)
                .ok_or(ImageError::NoChunks(reference.logical))?;
            let node = self.node(reference, &identity)?;
            for slot in 0..node.len() {
                if !node.is_leaf() {
                    waiting.push(node.child(slot));
                    continue;
                }
                let key = node.key(slot);
                match key.item_type {
                    ItemType::CHUNK_ITEM => {
                        map.insert(Logical(key.offset), Chunk::parse(node.data(slot))?)?;
                    }
                    ItemType::DEV_ITEM => {
                        let item = DeviceItem::parse(node.data(slot))?;
                        devices.insert(item.id, item);
                    }
                    _ => {}
                }
            }
        }
        Ok((map, devices.into_values().collect()))
    }
}

fn superblock_in(at: u64, item: &Item) -> Result<Superblock, ImageError> {
    let [first, ..] = COPIES;
    let damaged = ImageError::Damaged {
        at,
        what: Fault::NoSuperblock,
    };
    if item.at != first.get() || item.bytes.len() != SIZE {
        return Err(damaged);
    }
    Superblock::parse(&item.bytes, first).map_err(|_| damaged)
}
