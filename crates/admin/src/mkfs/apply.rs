//! Writing a planned volume to its device.
//!
//! The old content is made unrecognizable first and the superblocks come
//! last, so that a volume cut off half way is no volume at all.

use super::MkfsError;
use super::volume::NewVolume;
use butterfs_device::BlockDevice;
use butterfs_format::DeviceOffset;
use butterfs_format::superblock::{self, COPIES, RESERVED};

/// Bytes at the end of the device that are wiped too: backup partition tables
/// and labels of other file systems and volume managers lie there.
const TAIL: u64 = 1 << 20;

/// Wipes what was there, writes the nodes, then the superblocks.
pub(super) fn apply(device: &dyn BlockDevice, volume: &NewVolume) -> Result<(), MkfsError> {
    wipe(device)?;
    device.flush()?;
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
    device.flush()?;
    for copy in COPIES {
        if copy.get() + superblock::SIZE as u64 <= volume.superblock.total_bytes {
            device.write_at(copy, &volume.superblock.encode(copy))?;
        }
    }
    device.flush()?;
    Ok(())
}

fn wipe(device: &dyn BlockDevice) -> Result<(), MkfsError> {
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
