//! What a balance of data would free, found out without writing. In a copy of
//! the space accounts, the allocator's own rules find other places for the
//! extents of block groups.

use super::block_groups::BlockGroups;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::kind::SpaceKind;
use butterfs_format::{DeviceId, Logical};
use butterfs_volume::placement::{self, DeviceSpace};
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// Moves that are only tried and change nothing.
#[derive(Debug)]
pub struct BalanceEstimate<'e> {
    engine: &'e Engine,
    groups: BlockGroups,
    current: Option<Logical>,
    /// Extents that were moved: their new address and length.
    moved: BTreeMap<u64, u64>,
    /// Block groups that are empty now.
    emptied: Vec<Logical>,
}

impl Engine {
    /// Begins to try moves.
    #[must_use]
    pub fn begin_balance_estimate(&self) -> BalanceEstimate<'_> {
        BalanceEstimate {
            engine: self,
            groups: self.space_map.groups.clone(),
            current: self.space_map.current[0],
            moved: BTreeMap::new(),
            emptied: Vec::new(),
        }
    }

    /// The devices as chunks could be made on them if those at `gone` did not
    /// exist.
    #[must_use]
    pub fn device_spaces_without(&self, gone: &[Logical]) -> Vec<DeviceSpace> {
        self.device_spaces_of(|chunk| !gone.contains(&chunk))
    }

    /// Bytes that further chunks of a kind could have on these devices.
    #[must_use]
    pub fn possible_on(&self, kind: SpaceKind, devices: &[DeviceSpace]) -> u64 {
        placement::possible(self.flags_for(kind), devices)
    }

    /// Devices whose files or block devices are larger than the volume's part
    /// of them, and by how much.
    pub fn room_beyond(&self) -> impl Iterator<Item = (DeviceId, u64)> {
        self.space.own_devices().filter_map(|(device, block)| {
            let used = self.publisher.devices().get(&device)?.total_bytes;
            let more = block.size().checked_sub(used)?;
            (more >= 1 << 20).then_some((device, more))
        })
    }
}

impl BalanceEstimate<'_> {
    /// Tries to move all data of a block group to free space of other groups,
    /// as a balance would. False if some of it has no place there. A balance
    /// needs a further chunk then.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn move_group(&mut self, start: Logical) -> Result<bool, StoreError> {
        let Some(group) = self.groups.get(start) else {
            return Ok(false);
        };
        let range = start.get()..group.end();
        self.groups.change(start, |group| group.read_only = true);
        self.current.take_if(|at| *at == start);
        // What came here moves again.
        let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
        extents.extend(self.moved.range(range.clone()));
        self.moved.retain(|at, _| !range.contains(at));
        self.engine.visit_extents(&range, &mut |head, length| {
            if head.level().is_none() {
                extents.insert(head.key.objectid, length);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let sector = self.engine.sector_size();
        for length in extents.into_values() {
            let Some(at) = self.place(length, sector)? else {
                return Ok(false);
            };
            self.moved.insert(at, length);
        }
        self.groups.remove(start);
        self.emptied.push(start);
        Ok(true)
    }

    /// Finds a place for an extent; `None` if only a further chunk has one.
    fn place(&mut self, length: u64, sector: u64) -> Result<Option<u64>, StoreError> {
        loop {
            let current = &mut self.current;
            let taken = self
                .groups
                .take(SpaceKind::Data, (length, sector), current, |_| true);
            if taken.is_some() {
                return Ok(taken);
            }
            let next = self.groups.roomiest_unloaded(SpaceKind::Data);
            let Some(group) = next.and_then(|next| self.groups.get(next)) else {
                return Ok(None);
            };
            let (start, free) = (group.start, self.engine.free_of(group)?);
            self.groups.change(start, |group| group.set_free(free));
        }
    }

    /// Block groups that were emptied.
    #[must_use]
    pub fn emptied(&self) -> &[Logical] {
        &self.emptied
    }

    /// How many more bytes of devices no chunk would have then.
    #[must_use]
    pub fn bytes_of_devices(&self) -> u64 {
        let emptied = self.emptied.iter();
        emptied.map(|start| self.engine.device_bytes(*start)).sum()
    }
}
