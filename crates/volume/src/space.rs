//! Reading and writing logical space.
//!
//! Owns the devices of a volume, its chunk map of the moment, and writing to
//! all copies. The choice among copies when reading is in `healing`.
//!
//! Invariants: a write reaches all copies or is an error; no write touches a
//! superblock.

use crate::error::VolumeError;
use crate::map::ChunkMap;
use crate::stats::DeviceStats;
use crate::{bytes_of, memory_of};
use butterfs_device::{Access, BlockDevice, DeviceRange};
use butterfs_format::superblock;
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::sync::Arc;

/// Bytes of one vectored write at most, unless a single block is larger.
const WRITE_MAX: usize = 4 << 20;
/// Parts of one vectored write at most.
const PARTS_MAX: usize = 512;

#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) stats: DeviceStats,
}

/// What is done with bad copies when a good one is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// They are rewritten.
    Heal,
    /// They are left alone.
    Leave,
}

/// A volume's logical space.
#[derive(Debug)]
pub struct LogicalSpace {
    members: BTreeMap<DeviceId, Member>,
    map: RwLock<Arc<ChunkMap>>,
    pub(crate) on_damage: OnDamage,
}

impl LogicalSpace {
    /// The space of `map` over `devices`. Damage is healed where the device
    /// is open for writing and `on_damage` says so.
    #[must_use]
    pub fn new(
        devices: Vec<(DeviceId, Arc<dyn BlockDevice>)>,
        map: ChunkMap,
        on_damage: OnDamage,
    ) -> Self {
        let members = devices
            .into_iter()
            .map(|(id, device)| {
                let stats = DeviceStats::default();
                (id, Member { device, stats })
            })
            .collect();
        Self {
            members,
            map: RwLock::new(Arc::new(map)),
            on_damage,
        }
    }

    /// The chunks now.
    #[must_use]
    pub fn map(&self) -> Arc<ChunkMap> {
        self.map.read().clone()
    }

    /// Replaces the chunks. Whoever has asked for the map before goes on with
    /// the old one.
    pub fn set_map(&self, map: ChunkMap) {
        *self.map.write() = Arc::new(map);
    }

    /// Errors unless the stripes of all chunks lie on their devices (as far
    /// as these are present) and apart from each other.
    ///
    /// # Errors
    /// [`VolumeError::BadChunk`]
    pub fn check_chunks(&self) -> Result<(), VolumeError> {
        self.map().check_devices(|id| {
            let member = self.members.get(&id)?;
            Some(member.device.size())
        })
    }

    /// Devices with their numbers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, &Arc<dyn BlockDevice>)> {
        self.members
            .iter()
            .map(|(id, member)| (*id, &member.device))
    }

    /// Errors of a device.
    #[must_use]
    pub fn stats(&self, device: DeviceId) -> Option<&DeviceStats> {
        self.members.get(&device).map(|member| &member.stats)
    }

    /// Copies of the byte at `logical`; 0 where there is no chunk.
    #[must_use]
    pub fn copies(&self, logical: Logical) -> usize {
        self.map.read().copies(logical)
    }

    pub(crate) fn member(&self, device: DeviceId) -> Result<&Member, VolumeError> {
        self.members
            .get(&device)
            .ok_or(VolumeError::MissingDevice(device))
    }

    /// Writes `data` to all copies.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::Profile`] for parity,
    /// [`VolumeError::HitsSuperblock`], [`VolumeError::MissingDevice`]: no
    /// byte was written. [`VolumeError::Device`]: any part of any copy may
    /// have been written.
    pub fn write(&self, logical: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_many(&[(logical, data)])
    }

    /// Writes blocks to all copies. Neighbours on a device go out together,
    /// whatever their order here; blocks must not overlap.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn write_many(&self, blocks: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        let map = self.map();
        let mut pieces: Vec<(Physical, &[u8])> = Vec::with_capacity(blocks.len());
        for (logical, data) in blocks {
            let mut at = *logical;
            let mut rest = *data;
            while !rest.is_empty() {
                let mapping = map.map_write(at, bytes_of(rest.len()))?;
                let (part, later) = rest.split_at(memory_of(mapping.length).min(rest.len()));
                for physical in mapping.copies {
                    self.check_write(at, physical, part.len())?;
                    pieces.push((physical, part));
                }
                at = at.saturating_add(mapping.length);
                rest = later;
            }
        }
        pieces.sort_by_key(|(physical, _)| *physical);
        let mut run = Run::default();
        for (physical, part) in pieces {
            if !run.accepts(physical, part.len()) {
                self.write_run(&std::mem::take(&mut run))?;
            }
            run.push(physical, part);
        }
        self.write_run(&run)
    }

    /// Refuses what can be refused before anything is written.
    pub(crate) fn check_write(
        &self,
        logical: Logical,
        physical: Physical,
        length: usize,
    ) -> Result<(), VolumeError> {
        self.member(physical.device)?;
        let range = DeviceRange::of_buffer(physical.offset, length);
        let hit = superblock::COPIES
            .into_iter()
            .find(|copy| range.overlaps(DeviceRange::of_buffer(*copy, superblock::SIZE)));
        match hit {
            Some(offset) => Err(VolumeError::HitsSuperblock {
                logical,
                physical: Physical { offset, ..physical },
            }),
            None => Ok(()),
        }
    }

    fn write_run(&self, run: &Run<'_>) -> Result<(), VolumeError> {
        let Some(start) = run.start else {
            return Ok(());
        };
        let member = self.member(start.device)?;
        let parts: Vec<IoSlice<'_>> = run.parts.iter().map(|part| IoSlice::new(part)).collect();
        member
            .device
            .write_vectored_at(start.offset, &parts)
            .inspect_err(|_| DeviceStats::count(&member.stats.write_errs))?;
        Ok(())
    }

    /// Makes all earlier writes durable on all devices.
    ///
    /// # Errors
    /// The first failure, after every device was asked. Afterwards nothing is
    /// known of the earlier writes.
    pub fn flush(&self) -> Result<(), VolumeError> {
        let mut outcome = Ok(());
        for member in self.members.values() {
            let flushed = member.device.flush();
            if flushed.is_err() {
                DeviceStats::count(&member.stats.flush_errs);
            }
            outcome = outcome.and(flushed);
        }
        Ok(outcome?)
    }

    /// Says that the content of a range is not needed any more.
    ///
    /// # Errors
    /// Advisory: callers may go on.
    pub fn discard(&self, logical: Logical, length: u64) -> Result<(), VolumeError> {
        let map = self.map();
        let mut at = logical;
        let mut left = length;
        while left > 0 {
            let mapping = map.map_write(at, left)?;
            for copy in &mapping.copies {
                self.check_write(at, *copy, memory_of(mapping.length))?;
                self.member(copy.device)?
                    .device
                    .discard(DeviceRange::new(copy.offset, mapping.length))?;
            }
            at = at.saturating_add(mapping.length);
            left = left.saturating_sub(mapping.length);
        }
        Ok(())
    }

    /// True when the copies on this device may be rewritten.
    pub(crate) fn may_heal(&self, member: &Member) -> bool {
        self.on_damage == OnDamage::Heal && member.device.access() == Access::ReadWrite
    }
}

/// Neighbouring parts of one device.
#[derive(Default)]
struct Run<'a> {
    start: Option<Physical>,
    bytes: usize,
    parts: Vec<&'a [u8]>,
}

impl<'a> Run<'a> {
    fn accepts(&self, at: Physical, length: usize) -> bool {
        let Some(start) = self.start else {
            return true;
        };
        let end: DeviceOffset = DeviceRange::of_buffer(start.offset, self.bytes).end();
        start.device == at.device
            && end == at.offset
            && self.bytes.saturating_add(length) <= WRITE_MAX
            && self.parts.len() < PARTS_MAX
    }

    fn push(&mut self, at: Physical, part: &'a [u8]) {
        self.start.get_or_insert(at);
        self.bytes = self.bytes.saturating_add(part.len());
        self.parts.push(part);
    }
}
