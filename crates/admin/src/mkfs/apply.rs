//! Writes a planned volume to its devices.
//!
//! First the old content is made unrecognizable. The superblocks come last, so a
//! volume that was written only in part cannot be opened.

use super::MkfsError;
use super::volume::NewVolume;
use butterfs_device::{BlockDevice, DeviceError};
use butterfs_format::superblock::{self, COPIES, RESERVED};
use butterfs_format::{DeviceOffset, Logical};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage};
use std::sync::Arc;

/// Bytes at the end of the device that are wiped too. Backup partition tables
/// and labels of other file systems and volume managers lie there.
const TAIL: u64 = 1 << 20;

/// Wipes the devices, calls `write` to write the nodes, then writes the
/// superblocks.
pub(super) fn apply(
    devices: &[&dyn BlockDevice],
    volume: &NewVolume,
    write: impl FnOnce(&NewVolume) -> Result<(), MkfsError>,
) -> Result<(), MkfsError> {
    let flush = || devices.iter().try_for_each(|device| device.flush());
    for device in devices {
        wipe(*device)?;
    }
    flush()?;
    write(volume)?;
    flush()?;
    for (device, item) in devices.iter().zip(&volume.devices) {
        let own = volume.superblock.on_device(item);
        for copy in COPIES {
            if copy.get() + superblock::SIZE as u64 <= item.total_bytes {
                device.write_at(copy, &own.encode(copy))?;
            }
        }
    }
    flush()?;
    Ok(())
}

/// Writes the nodes of a volume on one device. Each stripe holds a copy.
pub(super) fn write_on_one(device: &dyn BlockDevice, volume: &NewVolume) -> Result<(), MkfsError> {
    for node in &volume.nodes {
        let planned = volume
            .layout
            .chunks()
            .find(|planned| planned.range().contains(&node.logical.get()));
        let Some(planned) = planned else {
            unreachable!("every node was placed in a chunk");
        };
        let inside = node.logical.get() - planned.logical.get();
        for stripe in &planned.chunk.stripes {
            device.write_at(stripe.offset.saturating_add(inside), &node.bytes)?;
        }
    }
    Ok(())
}

/// Writes the nodes of a volume on several devices.
pub(super) fn write_on_several(
    devices: &[Arc<dyn BlockDevice>],
    volume: &NewVolume,
) -> Result<(), MkfsError> {
    let mut map = ChunkMap::default();
    for planned in volume.layout.chunks() {
        map.insert(planned.logical, planned.chunk.clone())?;
    }
    let ids = volume.devices.iter().map(|item| item.id);
    let devices = ids.zip(devices.iter().cloned()).collect();
    let space = LogicalSpace::new(devices, map, OnDamage::Leave);
    let blocks: Vec<(Logical, &[u8])> = volume
        .nodes
        .iter()
        .map(|node| (node.logical, &node.bytes[..]))
        .collect();
    Ok(space.write_many(&blocks)?)
}

/// Makes what was on a device unrecognizable: zeros its beginning, its end and the
/// places of superblock copies.
pub(crate) fn wipe(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    let zeros = vec![0; RESERVED as usize];
    device.write_at(DeviceOffset(0), &zeros)?;
    for copy in COPIES {
        if copy.get() + superblock::SIZE as u64 <= device.size() {
            device.write_at(copy, &zeros[..superblock::SIZE])?;
        }
    }
    let tail = device.size().saturating_sub(TAIL).max(RESERVED);
    let length = (device.size() - tail) as usize;
    device.write_at(DeviceOffset(tail), &zeros[..length])?;
    Ok(())
}
