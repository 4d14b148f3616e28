//! A device leaves its volume, when nothing lies on it any more.
//!
//! Owns the order of writes, and the rule that says by the number of devices
//! which ones a volume can do without. First comes the commit that no longer
//! has the device. Then the device's superblocks are wiped. A crash in between
//! leaves a device that the volume does not have, and whoever opens the volume
//! leaves it out.

use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::membership_fault::MembershipFault;
use crate::space::block_group::BlockGroup;
use crate::space::kind::SpaceKind;
use butterfs_device::{Access, BlockDevice, DeviceError};
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceItem};
use butterfs_format::superblock;
use butterfs_format::{DeviceId, ItemType, Key, TreeId};
use butterfs_volume::Profile;
use std::sync::Arc;

/// Nodes that the change touches.
const NODES: usize = 16;

/// A device that left.
#[derive(Clone, Debug)]
pub struct RemovedDevice {
    /// The device itself; `None` if it was missing.
    pub name: Option<String>,
    /// Why it still looks like a device of the volume.
    pub not_wiped: Option<Arc<DeviceError>>,
}

impl RemovedDevice {
    pub(crate) fn wipe(device: Option<Arc<dyn BlockDevice>>) -> Self {
        let Some(device) = device else {
            return Self {
                name: None,
                not_wiped: None,
            };
        };
        let name = device.identity();
        if device.access() == Access::ReadOnly {
            // A seed stays what it is.
            return Self {
                name: Some(name),
                not_wiped: None,
            };
        }
        let not_wiped = wipe_superblocks(&*device).err().map(Arc::new);
        if let Some(error) = &not_wiped {
            tracing::warn!(device = name, %error, "what it held could not be wiped");
        }
        Self {
            name: Some(name),
            not_wiped,
        }
    }
}

/// Makes sure that a device is not taken for one of a volume.
///
/// # Errors
/// Writing; all copies were tried.
pub(crate) fn wipe_superblocks(device: &dyn BlockDevice) -> Result<(), DeviceError> {
    let zeros = vec![0; superblock::SIZE];
    let mut wiped = Ok(());
    for offset in superblock::COPIES {
        if superblock::SIZE as u64 <= device.size().saturating_sub(offset.get()) {
            wiped = wiped.and(device.write_at(offset, &zeros));
        }
    }
    wiped.and(device.flush())
}

impl Engine {
    /// Errors unless the volume can do with one device less.
    ///
    /// # Errors
    /// [`MembershipFault`]
    pub fn verify_removal(&self, device: DeviceId) -> Result<(), MembershipFault> {
        if !self.publisher.devices().contains_key(&device) {
            return Err(MembershipFault::NoSuchDevice(device.to_string()));
        }
        let left = self.publisher.devices().len().saturating_sub(1);
        let profiles = self.space_map.chunks().values().filter_map(|chunk| {
            let profile = Profile::from_flags(chunk.flags)?;
            (profile.devices_min() > left).then_some(profile)
        });
        if let Some(profile) = profiles.max_by_key(|profile| profile.devices_min())
            && left > 0
        {
            return Err(MembershipFault::TooFewDevices {
                profile,
                least: profile.devices_min(),
            });
        }
        let is_other =
            |item: &DeviceItem| item.id != device && self.publisher.takes_chunks(&self.space, item);
        match self.publisher.devices().values().any(is_other) {
            true => Ok(()),
            false => Err(MembershipFault::OnlyWritable),
        }
    }

    /// Errors if what lies on a device cannot fit on the others, even in the
    /// best distribution.
    ///
    /// # Errors
    /// [`MembershipFault::NoRoom`]
    pub fn verify_room_without(&self, device: DeviceId) -> Result<(), MembershipFault> {
        let is_on = |group: &BlockGroup| {
            let chunk = self.space_map.chunks().get(&group.start);
            let mut stripes = chunk.iter().flat_map(|chunk| &chunk.stripes);
            stripes.any(|stripe| stripe.device == device)
        };
        let others = self.device_spaces().into_iter();
        let others = others.filter(|space| space.device != device);
        let unallocated: u64 = others.map(|space| space.unallocated()).sum();
        let kinds = [(SpaceKind::Data, "data"), (SpaceKind::Metadata, "metadata")];
        for (kind, name) in kinds {
            let (mut needed, mut room) = (0_u64, 0_u64);
            for group in self.space_map.groups().values() {
                if !group.flags.contains(kind.flag()) {
                    continue;
                }
                match is_on(group) {
                    true => needed += group.used,
                    false => room += group.available(),
                }
            }
            room = room.saturating_add(unallocated / self.copies(kind).max(1));
            if needed > room {
                return Err(MembershipFault::NoRoom {
                    device,
                    kind: name,
                    needed,
                    room,
                });
            }
        }
        Ok(())
    }

    /// Removes the items that say that a device is there from the trees.
    fn forget_device(&mut self, id: DeviceId) -> Result<(), StoreError> {
        let is_used = |chunk: &&butterfs_format::item::chunk::Chunk| {
            chunk.stripes.iter().any(|stripe| stripe.device == id)
        };
        if self
            .space_map
            .chunks()
            .values()
            .any(|chunk| is_used(&chunk))
        {
            return Err(MembershipFault::InUse(id).into());
        }
        self.verify_removal(id)?;
        self.note_edit();
        let gone = self.publisher.devices_mut().remove(&id);
        let bytes = gone.map_or(0, |item| item.total_bytes);
        if self.publisher.superblock().device.id == id {
            let takes_chunks = |item: &&DeviceItem| self.publisher.takes_chunks(&self.space, item);
            let other = self
                .publisher
                .devices()
                .values()
                .find(takes_chunks)
                .cloned();
            let none = StoreError::Internal("a volume without devices");
            self.publisher.superblock_mut().device = other.ok_or(none)?;
        }
        let superblock = self.publisher.superblock_mut();
        superblock.num_devices = superblock.num_devices.saturating_sub(1);
        superblock.total_bytes = superblock.total_bytes.saturating_sub(bytes);
        self.space_map.forget_unallocated();
        self.publisher.forget_stats(id);
        let item = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, id.get());
        butterfs_tree::remove(self, TreeId::CHUNK, &item)?;
        let stats = crate::commit::device_stats::key_of(id);
        butterfs_tree::remove(self, TreeId::DEVICE, &stats)?;
        Ok(())
    }
}

impl Store {
    /// Takes a device on which no chunk lies out of the volume. Wipes its
    /// superblocks if the device is there.
    ///
    /// # Errors
    /// [`MembershipFault`]: nothing changed. Errors of a commit.
    pub fn remove_device(&self, id: DeviceId) -> Result<RemovedDevice, StoreError> {
        self.commit_with(NODES, |engine| engine.forget_device(id))?;
        Ok(RemovedDevice::wipe(self.space.remove_device(id)))
    }
}
