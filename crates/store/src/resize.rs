//! Sizes of devices.
//!
//! Owns the numbers that say how large a device is: its item, the superblock's
//! copy of the item, and the sum of all devices. Before a device shrinks,
//! relocation moves what lies beyond the new end. Meanwhile no chunk is made
//! there, but the numbers stay, so a crash leaves the old size.
//!
//! The size says which copies of the superblock a device has. If it gets more of
//! them, these have the last commit before the next one is written: otherwise
//! the only whole copy might be one that an earlier, larger volume left there.
//! Copies beyond a new end are wiped, because no commit writes them any more.

use crate::error::StoreError;
use crate::membership_fault::MembershipFault;
use crate::{Purpose, Store};
use butterfs_format::superblock::{self, COPIES};
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use butterfs_volume::VolumeError;

/// Nodes that a change of a size touches.
const NODES: usize = 16;

/// No chunk is made beyond an end of a device until this is dropped.
#[derive(Debug)]
pub struct DeviceEnd<'s> {
    store: &'s Store,
    device: DeviceId,
}

/// Copies of the superblock that a device of `larger` bytes has and one of
/// `smaller` bytes does not.
fn copies_between(smaller: u64, larger: u64) -> impl Iterator<Item = DeviceOffset> {
    let end = |offset: DeviceOffset| offset.saturating_add(superblock::SIZE as u64).get();
    let ends = smaller..larger;
    COPIES
        .into_iter()
        .filter(move |offset| ends.contains(&end(*offset).saturating_sub(1)))
}

impl Drop for DeviceEnd<'_> {
    fn drop(&mut self) {
        let mut engine = self.store.change();
        engine.space_map.limit_device(self.device, None);
    }
}

impl Store {
    /// Bytes of a device that the volume may use.
    ///
    /// # Errors
    /// The volume has no such device.
    pub fn device_bytes(&self, device: DeviceId) -> Result<u64, StoreError> {
        let engine = self.read();
        match engine.publisher.devices().get(&device) {
            Some(item) => Ok(item.total_bytes),
            None => Err(MembershipFault::NoSuchDevice(device.to_string()).into()),
        }
    }

    /// Errors where a device is a seed.
    ///
    /// # Errors
    /// [`MembershipFault::Seed`]
    pub fn verify_own(&self, device: DeviceId) -> Result<(), MembershipFault> {
        match self.space.is_seed(device) {
            true => Err(MembershipFault::Seed(device)),
            false => Ok(()),
        }
    }

    /// Keeps new chunks from lying beyond `end` of a device.
    ///
    /// # Errors
    /// Not writable.
    pub fn end_device_at(&self, device: DeviceId, end: u64) -> Result<DeviceEnd<'_>, StoreError> {
        let mut engine = self.change_writable()?;
        engine.space_map.limit_device(device, Some(end));
        drop(engine);
        Ok(DeviceEnd {
            store: self,
            device,
        })
    }

    /// Block groups that have a part beyond `end` of a device, beginning with
    /// the one that reaches furthest.
    pub fn groups_beyond(&self, device: DeviceId, end: u64) -> Vec<Logical> {
        let engine = self.read();
        let mut beyond: Vec<_> = engine.space_map.chunks_beyond(device, end).collect();
        beyond.sort_unstable_by(|a, b| b.cmp(a));
        beyond.into_iter().map(|(_, logical)| logical).collect()
    }

    /// First byte of a device behind everything that is allocated there; 0 if
    /// nothing is.
    #[must_use]
    pub fn allocated_end(&self, device: DeviceId) -> u64 {
        self.read().space_map.allocated_end(device)
    }

    /// Gives a device another size. No chunk may lie beyond it.
    ///
    /// # Errors
    /// [`StoreError::BadSize`]; the volume has no such device; writing.
    pub fn set_device_size(&self, device: DeviceId, size: u64) -> Result<(), StoreError> {
        self.verify_own(device)?;
        let bad = |reason: &str| {
            Err(StoreError::BadSize {
                device,
                wanted: size,
                reason: reason.to_owned(),
            })
        };
        let Some(block) = self.space.device(device) else {
            return Err(VolumeError::MissingDevice(device).into());
        };
        if size > block.size() {
            return bad("it is smaller than that");
        }
        if !size.is_multiple_of(self.identity.sector_size) {
            return bad("that is no multiple of a sector");
        }
        self.write_back()?;
        let _one_at_a_time = self.lock_commits();
        let old = self.device_bytes(device)?;
        self.write_new_mirrors(device, old, size)?;
        self.commit_with_alone((NODES, Purpose::Grow), |engine| {
            if engine.space_map.allocated_end(device) > size {
                return bad("something lies beyond it");
            }
            engine.note_edit();
            let total = engine
                .publisher
                .superblock()
                .total_bytes
                .saturating_sub(old);
            engine.publisher.superblock_mut().total_bytes = total.saturating_add(size);
            engine.space_map.forget_unallocated();
            engine.change_size_of_device(device, size)
        })?;
        self.wipe_former_mirrors(device, old, size)
    }

    /// Gives the last commit to the mirrors that a device gets when it grows.
    /// They are durable with the next flush.
    fn write_new_mirrors(&self, device: DeviceId, old: u64, new: u64) -> Result<(), StoreError> {
        let last = {
            let engine = self.read();
            let item = engine.publisher.durable_devices().get(&device);
            item.map(|item| engine.publisher.durable().on_device(item))
        };
        if let Some(last) = last {
            for offset in copies_between(old, new) {
                self.space
                    .write_superblock(device, offset, &last.encode(offset), new)?;
            }
        }
        Ok(())
    }

    /// Wipes the mirrors that a device no longer has when it shrank. A device
    /// that is shorter than the volume was may not have had them. The size is
    /// durable, so a mirror that cannot be wiped is only told of.
    fn wipe_former_mirrors(&self, device: DeviceId, old: u64, new: u64) -> Result<(), StoreError> {
        let zeros = [0; superblock::SIZE];
        let there = self.space.device(device).map_or(0, |block| block.size());
        let mut former = copies_between(new, old.min(there)).peekable();
        if former.peek().is_none() {
            return Ok(());
        }
        for offset in former {
            let wiped = self.space.write_superblock(device, offset, &zeros, old);
            if let Err(error) = wiped {
                tracing::warn!(%device, %offset, %error, "a former mirror of the superblock stays");
            }
        }
        self.flush()
    }
}
