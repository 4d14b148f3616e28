//! What device items and superblocks say of each other, and of chunks.

use super::{Publisher, device_stats};
use crate::error::StoreError;
use crate::open::space_fault::SpaceFault;
use butterfs_device::Access;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::{DeviceId, Logical, UuidBytes};
use butterfs_volume::{ChunkFault, LogicalSpace, MemberState, VolumeError};

impl Publisher {
    /// Whether a device is that of another volume, from which this one grew.
    pub(crate) fn is_of_seed(&self, item: &DeviceItem) -> bool {
        item.fsid != self.superblock.node_fsid()
    }

    /// Whether a chunk lies on devices that are never written.
    pub(crate) fn lies_on_seed(&self, chunk: &Chunk) -> bool {
        chunk.stripes.iter().any(|stripe| {
            let item = self.devices.get(&stripe.device);
            item.is_some_and(|item| self.is_of_seed(item))
        })
    }

    /// Whether new chunks may lie on a device.
    pub(crate) fn takes_chunks(&self, space: &LogicalSpace, item: &DeviceItem) -> bool {
        !self.is_of_seed(item) && space.state(item.id) == Some(MemberState::Present)
    }

    /// Devices that are used and written.
    pub(crate) fn devices_used(&self, space: &LogicalSpace) -> usize {
        let items = self.devices.values();
        items.filter(|item| self.takes_chunks(space, item)).count()
    }

    /// The device item of a device that is added.
    pub(crate) fn item_of_new(&self, uuid: UuidBytes, bytes: u64) -> DeviceItem {
        let highest = self.devices.keys().next_back().map_or(0, |id| id.get());
        let sector = self.superblock.sector_size;
        DeviceItem {
            id: DeviceId(highest.saturating_add(1)),
            total_bytes: bytes - bytes % u64::from(sector),
            io_align: sector,
            io_width: sector,
            sector_size: sector,
            uuid,
            fsid: self.superblock.node_fsid(),
            ..DeviceItem::default()
        }
    }

    /// The item of the device whose superblock speaks for the volume. If item
    /// and superblock differ, the item counts.
    pub(crate) fn own_item(&self) -> Result<DeviceItem, StoreError> {
        let own = self.superblock.device.id;
        let item = self.devices.get(&own).cloned();
        Ok(item.ok_or(SpaceFault::NoDeviceItem(own))?)
    }

    pub(crate) fn bytes_by_item(&self, device: DeviceId) -> u64 {
        let item = self.devices.get(&device);
        item.map_or(0, |item| item.total_bytes)
    }

    pub(crate) fn verify_chunk(&self, logical: Logical, chunk: &Chunk) -> Result<(), StoreError> {
        if chunk.sector_size != self.superblock.sector_size {
            return Err(VolumeError::BadChunk {
                logical,
                fault: ChunkFault::SectorSize(chunk.sector_size),
            }
            .into());
        }
        for stripe in &chunk.stripes {
            let Some(item) = self.devices.get(&stripe.device) else {
                return Err(VolumeError::MissingDevice(stripe.device).into());
            };
            if stripe.device_uuid != item.uuid {
                return Err(SpaceFault::StripeUuid {
                    chunk: logical,
                    device: stripe.device,
                }
                .into());
            }
        }
        Ok(())
    }

    pub(crate) fn verify_device(&self, key: DeviceId, item: &DeviceItem) -> Result<(), StoreError> {
        let own = &self.superblock.device;
        let device = item.id;
        if device != key {
            return Err(SpaceFault::DeviceNumber { key, found: device }.into());
        }
        if item.bytes_used > item.total_bytes {
            return Err(SpaceFault::DeviceUsed {
                device,
                used: item.bytes_used,
                size: item.total_bytes,
            }
            .into());
        }
        if self.is_of_seed(item) && device == own.id {
            return Err(SpaceFault::DeviceOfOtherVolume(device).into());
        }
        if device == own.id && item.uuid != own.uuid {
            return Err(SpaceFault::DeviceUuid(device).into());
        }
        Ok(())
    }

    /// Compares the size of the volume with those of its devices.
    pub(crate) fn verify_volume_size(&self, access: Access) -> Result<(), StoreError> {
        let sizes = self.devices.values().map(|item| item.total_bytes);
        let bytes = sizes.fold(0, u64::saturating_add);
        if self.superblock.total_bytes < bytes && access == Access::ReadWrite {
            return Err(SpaceFault::VolumeSize {
                found: self.superblock.total_bytes,
                devices: bytes,
            }
            .into());
        }
        Ok(())
    }

    /// Whether the trees have all that was counted.
    pub(crate) fn has_written_stats(&self, space: &LogicalSpace) -> bool {
        let same = |device: &DeviceId| {
            let written = self.stats.get(device).copied().unwrap_or_default();
            written == device_stats::stats_of(space, *device)
        };
        self.devices.keys().all(same)
    }
}
