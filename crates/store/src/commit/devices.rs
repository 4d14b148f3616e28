//! The devices of a volume as its trees and superblocks describe them.
//!
//! Owns their items and the superblock of each. All superblocks are equal
//! except for the item of the device on which each lies.

use crate::Purpose;
use crate::commit::DeviceItems;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::open::superblocks::has_room;
use butterfs_device::Caching;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceItem};
use butterfs_format::superblock::{self, Superblock};
use butterfs_format::{DeviceId, DeviceOffset, ItemType, Key, Logical, TreeId};
use butterfs_tree::Editor;
use butterfs_volume::{LogicalSpace, MemberFacts, MemberState, stripe_length};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device of an open volume.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// What its item says.
    pub item: DeviceItem,
    /// Whether it is used, and if not, why.
    pub state: MemberState,
    /// The device itself; `None` when it is missing.
    pub name: Option<String>,
    /// How requests reach it, for a file or block device that is there.
    pub caching: Option<Caching>,
    /// Error counters: writes, reads, flushes, corruption, generations.
    pub stats: [u64; 5],
    /// Bytes of it in chunks, by the flags of these, in order.
    pub chunks: Vec<(BlockGroupFlags, u64)>,
}

/// Which copies of the superblock are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copies {
    /// The one that is read first.
    Primary,
    /// The others that fit the device.
    Mirrors,
}

/// When copies that were written are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durable {
    /// When the write returns.
    AtOnce,
    /// After the next flush.
    AfterFlush,
}

/// Writes copies of a superblock to each device that is used, with the
/// device's own item.
pub(crate) fn write_superblocks(
    space: &LogicalSpace,
    superblock: &Superblock,
    items: &DeviceItems,
    (copies, durable): (Copies, Durable),
) -> Result<(), StoreError> {
    let is_wanted = |_, offset| match copies {
        Copies::Primary => offset == superblock::COPIES[0],
        Copies::Mirrors => offset != superblock::COPIES[0],
    };
    write_wanted(space, superblock, items, (durable, &is_wanted))
}

/// [`write_superblocks`] for the copies that `is_wanted` names by their device
/// and offset.
pub(crate) fn write_superblocks_at(
    space: &LogicalSpace,
    superblock: &Superblock,
    items: &DeviceItems,
    is_wanted: &dyn Fn(DeviceId, DeviceOffset) -> bool,
) -> Result<(), StoreError> {
    write_wanted(space, superblock, items, (Durable::AfterFlush, is_wanted))
}

fn write_wanted(
    space: &LogicalSpace,
    superblock: &Superblock,
    items: &DeviceItems,
    (durable, is_wanted): (Durable, &dyn Fn(DeviceId, DeviceOffset) -> bool),
) -> Result<(), StoreError> {
    for (id, device) in space.own_devices() {
        let other;
        let own = match items.get(&id) {
            Some(item) if *item != superblock.device => {
                other = superblock.on_device(item);
                &other
            }
            Some(_) => superblock,
            // It is just being removed.
            None => continue,
        };
        let is_written = |offset: &DeviceOffset| {
            is_wanted(id, *offset) && has_room(&*device, &own.device, *offset)
        };
        for offset in superblock::COPIES.into_iter().filter(is_written) {
            let (bytes, size) = (own.encode(offset), own.device.total_bytes);
            match durable {
                Durable::AtOnce => space.write_superblock_durably(id, offset, &bytes, size)?,
                Durable::AfterFlush => space.write_superblock(id, offset, &bytes, size)?,
            }
        }
    }
    Ok(())
}

impl Engine {
    /// Whether what is at an address may be written over: not on a seed.
    #[must_use]
    pub fn may_be_written(&self, at: Logical) -> bool {
        let chunk = self.space_map.chunk_before(at);
        chunk.is_none_or(|(_, chunk)| !self.publisher.lies_on_seed(chunk))
    }

    /// All devices of the volume and how they are.
    #[must_use]
    pub fn devices(&self) -> Vec<DeviceFacts> {
        let mut members: BTreeMap<DeviceId, MemberFacts> = self
            .space
            .members()
            .map(|facts| (facts.id, facts))
            .collect();
        let mut shares: BTreeMap<(DeviceId, u64), u64> = BTreeMap::new();
        for chunk in self.space_map.chunks().values() {
            for stripe in &chunk.stripes {
                let share = shares.entry((stripe.device, chunk.flags.0)).or_default();
                *share = share.saturating_add(stripe_length(chunk));
            }
        }
        let chunks = |id: DeviceId| {
            let own = shares.range((id, 0)..=(id, u64::MAX));
            own.map(|((_, flags), bytes)| (BlockGroupFlags(*flags), *bytes))
                .collect()
        };
        let items = self.publisher.devices.iter();
        items
            .map(|(id, item)| {
                let member = members.remove(id);
                let (state, name, caching, stats) = match member {
                    Some(member) => (member.state, member.name, member.caching, member.stats),
                    None => (MemberState::Missing, None, None, [0; 5]),
                };
                DeviceFacts {
                    item: item.clone(),
                    state,
                    name,
                    caching,
                    stats,
                    chunks: chunks(*id),
                }
            })
            .collect()
    }

    /// Notes that chunks took or gave back this many bytes of devices, and
    /// writes their items.
    pub(crate) fn change_devices(
        &mut self,
        changed: &[DeviceId],
        change: impl Fn(u64) -> u64,
    ) -> Result<(), StoreError> {
        let devices = Arc::make_mut(&mut self.publisher.devices);
        for id in changed {
            if let Some(item) = devices.get_mut(id) {
                item.bytes_used = change(item.bytes_used);
            }
        }
        let mut written = changed.to_vec();
        written.sort_unstable();
        written.dedup();
        for id in written {
            self.write_device_item(id)?;
        }
        Ok(())
    }

    /// Gives a device another size.
    pub(crate) fn change_size_of_device(
        &mut self,
        device: DeviceId,
        bytes: u64,
    ) -> Result<(), StoreError> {
        if let Some(item) = Arc::make_mut(&mut self.publisher.devices).get_mut(&device) {
            item.total_bytes = bytes;
        }
        self.write_device_item(device)
    }

    /// Compares what device items call used with the chunks on the devices. A
    /// wrong number is corrected, durably with the next commit: the kernel makes
    /// chunks by it.
    ///
    /// # Errors
    /// No space; reading.
    pub(crate) fn verify_device_bytes(&mut self) -> Result<(), StoreError> {
        let mut used: BTreeMap<DeviceId, u64> = BTreeMap::new();
        for chunk in self.space_map.chunks().values() {
            let length = stripe_length(chunk);
            for stripe in &chunk.stripes {
                let bytes = used.entry(stripe.device).or_default();
                *bytes = bytes.saturating_add(length);
            }
        }
        let items = self.publisher.devices.values();
        let wrong: Vec<(DeviceId, u64, u64)> = items
            .filter(|item| !self.publisher.is_of_seed(item))
            .map(|item| {
                let found = used.get(&item.id).copied().unwrap_or(0);
                (item.id, item.bytes_used, found)
            })
            .filter(|(_, says, found)| says != found)
            .collect();
        if wrong.is_empty() {
            return Ok(());
        }
        self.reserve(wrong.len(), Purpose::Shrink)?;
        for (device, says, found) in wrong {
            tracing::warn!(
                %device,
                was = says,
                used = found,
                "the count of used bytes of a device was wrong; it is corrected from the chunks"
            );
            self.change_devices(&[device], |_| found)?;
        }
        Ok(())
    }

    /// Writes the item of a device as it is in memory.
    pub(crate) fn write_device_item(&mut self, id: DeviceId) -> Result<(), StoreError> {
        let Some(item) = self.publisher.devices.get(&id).cloned() else {
            return Ok(());
        };
        if id == self.publisher.superblock.device.id {
            self.publisher.superblock.device = item.clone();
        }
        let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, id.get());
        Editor::new(self, TreeId::CHUNK).replace(&key, &item.encode())?;
        Ok(())
    }
}
