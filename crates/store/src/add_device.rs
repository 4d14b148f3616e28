//! A new device of a volume.
//!
//! Owns the order of writes. First the new device gets the superblock of the
//! last commit, with its own number in it. The trees of that commit do not have
//! the device, so whoever opens the volume now leaves it out. The next commit
//! has the item of the device, and writes its superblock with the others. So a
//! crash leaves a volume without the device or with it, and never one whose
//! device cannot be found.

use crate::error::StoreError;
use crate::membership_fault::MembershipFault;
use crate::remove_device::wipe_superblocks;
use crate::{Purpose, Store};
use butterfs_device::BlockDevice;
use butterfs_format::DeviceId;
use butterfs_format::superblock::{self, Superblock};
use butterfs_volume::VolumeDevice;
use std::sync::Arc;

/// Nodes that the change touches.
const NODES: usize = 16;
/// The least size of a device in bytes, as in mkfs.
const SIZE_MIN: u64 = 16 << 20;

/// Writes all copies of a superblock to one device, and makes them durable.
pub(crate) fn write_all_copies(
    device: &dyn BlockDevice,
    superblock: &Superblock,
) -> Result<(), StoreError> {
    for offset in superblock::COPIES {
        if superblock::SIZE as u64 <= device.size().saturating_sub(offset.get()) {
            device.write_at(offset, &superblock.encode(offset))?;
        }
    }
    Ok(device.flush()?)
}

impl Store {
    /// Errors unless a device can be added.
    ///
    /// # Errors
    /// It is too small.
    pub fn verify_new_device(device: &dyn BlockDevice) -> Result<(), StoreError> {
        if device.size() < SIZE_MIN {
            return Err(MembershipFault::TooSmall {
                device: device.identity(),
                size: device.size(),
                least: SIZE_MIN,
            }
            .into());
        }
        Ok(())
    }

    /// Adds a device to the volume; what was on it is lost. Gives its number.
    ///
    /// # Errors
    /// The device is too small: nothing was written. A write to it failed: the
    /// volume is as before. Errors of a commit.
    pub fn add_device(&self, device: Arc<dyn BlockDevice>) -> Result<DeviceId, StoreError> {
        Self::verify_new_device(&*device)?;
        self.write_back()?;
        let _one_at_a_time = self.lock_commits();
        self.check_writable()?;
        let uuid = uuid::Uuid::new_v4().into_bytes();
        let (item, last) = {
            let engine = self.read();
            let item = engine.publisher.item_of_new(uuid, device.size());
            let last = engine.publisher.durable().on_device(&item);
            (item, last)
        };
        let id = item.id;
        let written = write_all_copies(&*device, &last);
        if let Err(error) = written {
            // The device may have got some copies. Nobody must believe them.
            let _ = wipe_superblocks(&*device);
            return Err(error);
        }
        let member = VolumeDevice::present(id, uuid, Arc::clone(&device));
        self.space.add_device(member);
        let added = self.commit_with_alone((NODES, Purpose::Shrink), |engine| {
            engine.note_edit();
            let superblock = engine.publisher.superblock_mut();
            superblock.num_devices = superblock.num_devices.saturating_add(1);
            superblock.total_bytes = superblock.total_bytes.saturating_add(item.total_bytes);
            engine.space_map.forget_unallocated();
            engine.publisher.devices_mut().insert(id, item);
            engine.write_device_item(id)
        });
        if added.is_err() && !self.read().publisher.devices().contains_key(&id) {
            // The change was not made.
            self.space.remove_device(id);
            let _ = wipe_superblocks(&*device);
        }
        added.map(|()| id)
    }
}
