//! Reading and writing logical space.
//!
//! Owns the devices of a volume, its current chunk map, and writing to all
//! copies. The choice among copies when reading is in `healing`, rows with
//! parity are in `rows`.
//!
//! Invariants: a write that succeeds has reached all copies on the devices that
//! are used, and at least one. A device is not used again after a write or
//! flush of it failed and the volume went on. No write of data or nodes touches
//! a superblock.

use crate::error::VolumeError;
use crate::locked_row::RowLock;
use crate::map::ChunkMap;
use crate::member::{Member, MemberFacts, MemberState, Role, VolumeDevice};
use crate::runs::{Run, Wait, runs_of};
use crate::stats::DeviceStats;
use crate::workers::Workers;
use crate::{bytes_of, memory_of};
use butterfs_device::{Access, BlockDevice, Caching, DeviceError, DeviceRange};
use butterfs_format::superblock;
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What is done with bad copies when a good one is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// They are rewritten.
    Heal,
    /// They are left alone.
    Leave,
}

/// What is done when a device cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnLoss {
    /// It is an error.
    Fail,
    /// Where every chunk keeps its content without the device, writing goes on
    /// without it.
    GoOn,
}

/// Writes that may be under way. [`LogicalSpace::finish`] waits for them.
#[derive(Debug, Default)]
#[must_use = "nobody else is told whether the writes fail"]
pub struct WritesBehind(Vec<(DeviceId, DeviceRange)>);

/// The devices of a volume at one moment.
type Members = Arc<BTreeMap<DeviceId, Arc<Member>>>;

/// A volume's logical space.
#[derive(Debug)]
pub struct LogicalSpace {
    members: RwLock<Members>,
    /// Held for reading while copies are written, and for writing while the
    /// devices to which they go change.
    pub(crate) writing: RwLock<()>,
    map: RwLock<Arc<ChunkMap>>,
    pub(crate) on_damage: OnDamage,
    on_loss: OnLoss,
    /// Number of devices that fell out since the space was made.
    losses: AtomicUsize,
    /// Held while a device falls out: they do so one at a time.
    losing: Mutex<()>,
    pub(crate) workers: Workers,
    /// Locks of rows with parity, by their addresses.
    pub(crate) rows: [RowLock; ROW_LOCKS],
}

/// About this many rows with parity can be changed at the same time. Rows are
/// some elements apart, so it is a prime number.
pub(crate) const ROW_LOCKS: usize = 17;

impl LogicalSpace {
    /// The space of `map` over `devices`, all of them present. Damage is healed
    /// where the device is open for writing and `on_damage` says so; a write
    /// that fails on one device is an error.
    #[must_use]
    pub fn new(
        devices: Vec<(DeviceId, Arc<dyn BlockDevice>)>,
        map: ChunkMap,
        on_damage: OnDamage,
    ) -> Self {
        let present = |(id, device)| VolumeDevice::present(id, [0; 16], device);
        let devices = devices.into_iter().map(present).collect();
        Self::over(devices, map, on_damage, OnLoss::Fail)
    }

    /// The space of `map` over devices in whatever state.
    #[must_use]
    pub fn over(
        devices: Vec<VolumeDevice>,
        map: ChunkMap,
        on_damage: OnDamage,
        on_loss: OnLoss,
    ) -> Self {
        let member = |given| {
            let (id, member) = Member::new(given);
            (id, Arc::new(member))
        };
        let members: BTreeMap<_, _> = devices.into_iter().map(member).collect();
        Self {
            members: RwLock::new(Arc::new(members)),
            writing: RwLock::new(()),
            map: RwLock::new(Arc::new(map)),
            on_damage,
            on_loss,
            losses: AtomicUsize::new(0),
            losing: Mutex::new(()),
            workers: Workers::default(),
            rows: Default::default(),
        }
    }

    /// The chunks now.
    #[must_use]
    pub fn map(&self) -> Arc<ChunkMap> {
        self.map.read().clone()
    }

    /// Replaces the chunks. A caller that asked for the map before goes on with
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
            let member = self.member(id)?;
            Some(member.used()?.size())
        })
    }

    /// Devices that are used, with their numbers.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceId, Arc<dyn BlockDevice>)> + use<> {
        let members = self.members_now();
        let used = members
            .iter()
            .filter_map(|(id, member)| Some((*id, Arc::clone(member.used()?))));
        used.collect::<Vec<_>>().into_iter()
    }

    /// Of the devices that are used, those that are the volume's own: seeds are
    /// left out.
    pub fn own_devices(&self) -> impl Iterator<Item = (DeviceId, Arc<dyn BlockDevice>)> + use<> {
        let members = self.members_now();
        self.devices().filter(move |(id, _)| {
            let member = members.get(id);
            member.is_some_and(|member| member.role == Role::Own)
        })
    }

    /// A device that is used.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> Option<Arc<dyn BlockDevice>> {
        self.member(id)?.used().map(Arc::clone)
    }

    pub(crate) fn members_now(&self) -> Members {
        Arc::clone(&self.members.read())
    }

    /// Changes which devices there are. Writes that are under way end first.
    pub(crate) fn change_members(&self, change: impl FnOnce(&mut BTreeMap<DeviceId, Arc<Member>>)) {
        let _no_writes = self.writing.write();
        change(Arc::make_mut(&mut self.members.write()));
    }

    /// Brings in a device that no chunk lies on yet.
    pub fn add_device(&self, device: VolumeDevice) {
        let (id, member) = Member::new(device);
        self.change_members(|members| {
            members.insert(id, Arc::new(member));
        });
    }

    /// Takes out a device that is there and not used. It counts as missing
    /// afterwards.
    pub fn take_unused(&self, id: DeviceId) -> Option<Arc<dyn BlockDevice>> {
        let mut taken = None;
        self.change_members(|members| {
            let member = members.get(&id).filter(|member| member.used().is_none());
            let Some(member) = member.map(|member| Member::clone(member)) else {
                return;
            };
            taken = member.device.clone();
            let (_, missing) = Member::new(VolumeDevice::missing(id, member.uuid));
            members.insert(id, Arc::new(missing));
        });
        taken
    }

    /// Removes a device that no chunk lies on. Returns it if it is there.
    pub fn remove_device(&self, id: DeviceId) -> Option<Arc<dyn BlockDevice>> {
        let mut removed = None;
        self.change_members(|members| removed = members.remove(&id));
        removed.and_then(|member| member.device.clone())
    }

    /// All devices and their states, also of those that are not used.
    pub fn members(&self) -> impl Iterator<Item = MemberFacts> + use<> {
        let members = self.members_now();
        let facts = members.iter().map(|(id, member)| MemberFacts {
            id: *id,
            uuid: member.uuid,
            state: member.state(),
            name: member.device.as_ref().map(|device| device.identity()),
            caching: member.device.as_ref().and_then(|device| device.caching()),
            size: member.device.as_ref().map(|device| device.size()),
            stats: member.stats.values().map(|(_, value)| value),
        });
        facts.collect::<Vec<_>>().into_iter()
    }

    /// State of a device; `None` if the volume has no such device.
    #[must_use]
    pub fn state(&self, device: DeviceId) -> Option<MemberState> {
        self.member(device).map(|member| member.state())
    }

    /// True when every device is used.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        let members = self.members_now();
        members.values().all(|member| member.used().is_some())
    }

    /// How many devices fell out since the space was made.
    #[must_use]
    pub fn losses(&self) -> usize {
        self.losses.load(Ordering::Acquire)
    }

    /// Error counters of a device.
    #[must_use]
    pub fn stats(&self, device: DeviceId) -> Option<Arc<DeviceStats>> {
        self.member(device).map(|member| Arc::clone(&member.stats))
    }

    /// Copies of the byte at `logical`; 0 where there is no chunk.
    #[must_use]
    pub fn copies(&self, logical: Logical) -> usize {
        self.map.read().copies(logical)
    }

    /// Number of ways to read the byte at `logical`: its copies, and the ways
    /// to rebuild it from the rest of its row; 0 if there is no chunk.
    #[must_use]
    pub fn ways(&self, logical: Logical) -> usize {
        let mapping = self.map().map(logical, 1);
        mapping.map_or(0, |mapping| {
            mapping.copies.len().saturating_add(mapping.rebuilds)
        })
    }

    /// Where a copy of the byte at `logical` lies.
    #[must_use]
    pub fn place(&self, logical: Logical, copy: usize) -> Option<Physical> {
        let mapping = self.map().map(logical, 1).ok()?;
        mapping.copies.get(copy).copied()
    }

    /// Whether there is a choice among devices.
    #[must_use]
    pub fn has_several(&self) -> bool {
        self.count() > 1
    }

    /// Whether each read waits for devices: they are several, or one is read by
    /// direct I/O.
    #[must_use]
    pub fn reads_wait(&self) -> bool {
        let members = self.members_now();
        let is_direct = |member: &Arc<Member>| {
            let device = member.used();
            device.is_some_and(|device| device.caching() == Some(Caching::Direct))
        };
        members.len() > 1 || members.values().any(is_direct)
    }

    pub(crate) fn count(&self) -> usize {
        self.members.read().len()
    }

    pub(crate) fn member(&self, device: DeviceId) -> Option<Arc<Member>> {
        self.members.read().get(&device).map(Arc::clone)
    }

    /// A device that is used, with its counters.
    pub(crate) fn used(
        &self,
        device: DeviceId,
    ) -> Result<(Arc<dyn BlockDevice>, Arc<DeviceStats>), VolumeError> {
        let missing = VolumeError::MissingDevice(device);
        let Some(member) = self.member(device) else {
            return Err(missing);
        };
        member
            .used()
            .map(|device| (Arc::clone(device), Arc::clone(&member.stats)))
            .ok_or(missing)
    }

    /// Whether a write may leave out a device: it is not used, and writing goes
    /// on without it.
    pub(crate) fn leaves_out(&self, device: DeviceId) -> bool {
        self.on_loss == OnLoss::GoOn
            && self
                .member(device)
                .is_some_and(|member| member.used().is_none())
    }

    /// Whether writes to a device reach something: it, or its replace target.
    pub(crate) fn is_written(&self, device: DeviceId) -> bool {
        self.member(device)
            .is_some_and(|member| member.is_written())
    }

    /// Goes on without a device that failed, where that is possible.
    ///
    /// # Errors
    /// `error`, if it is not possible.
    pub(crate) fn lose(&self, device: DeviceId, error: DeviceError) -> Result<(), VolumeError> {
        if self.on_loss == OnLoss::Fail {
            return Err(error.into());
        }
        let _one_at_a_time = self.losing.lock();
        let Some(member) = self.member(device) else {
            return Err(error.into());
        };
        if member.used().is_none() {
            // Another write lost it meanwhile.
            return Ok(());
        }
        if matches!(error, DeviceError::Released { .. }) {
            // The volume was closed. The device did not fail.
            return Err(error.into());
        }
        let is_lost = |id: DeviceId| id == device || self.leaves_out(id);
        if let Some((logical, profile)) = self.map().first_lost(is_lost) {
            tracing::error!(
                %device,
                chunk = %logical,
                %profile,
                %error,
                "a device failed that the volume cannot do without"
            );
            return Err(error.into());
        }
        member.set_failing();
        self.losses.fetch_add(1, Ordering::Release);
        tracing::error!(
            %device,
            %error,
            "a device failed; the volume goes on without it: replace it"
        );
        Ok(())
    }

    /// Errors if some chunk loses content without the devices that are not
    /// used. Then nothing may be written.
    ///
    /// # Errors
    /// The chunk and its profile.
    pub fn check_degraded(&self) -> Result<(), VolumeError> {
        let is_lost = |id: DeviceId| {
            let member = self.member(id);
            member.is_none_or(|member| member.used().is_none())
        };
        match self.map().first_lost(is_lost) {
            None => Ok(()),
            Some((logical, profile)) => Err(VolumeError::TooFewDevices { logical, profile }),
        }
    }

    /// Writes `data` to all copies.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::HitsSuperblock`],
    /// [`VolumeError::MissingDevice`]: no byte was written.
    /// [`VolumeError::Device`]: any part of any copy may have been written.
    pub fn write(&self, logical: Logical, data: &[u8]) -> Result<(), VolumeError> {
        self.write_many(&[(logical, data)])
    }

    /// Writes blocks to all copies. Neighbours on a device go out together,
    /// whatever their order here; blocks must not overlap.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn write_many(&self, blocks: &[(Logical, &[u8])]) -> Result<(), VolumeError> {
        self.write_blocks(blocks, Wait::UntilDone).map(|_| ())
    }

    /// As [`LogicalSpace::write_many`], but it need not wait for the devices:
    /// [`LogicalSpace::finish`] does.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn write_many_behind(
        &self,
        blocks: &[(Logical, &[u8])],
    ) -> Result<WritesBehind, VolumeError> {
        self.write_blocks(blocks, Wait::NotAtAll)
    }

    /// Waits for writes.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn finish(&self, writes: &WritesBehind) -> Result<(), VolumeError> {
        let mut outcome = Ok(());
        for writes in writes.0.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((id, _)) = writes.first() else {
                continue;
            };
            // What fell out has no writes that count.
            let Ok((device, stats)) = self.used(*id) else {
                continue;
            };
            let ranges: Vec<DeviceRange> = writes.iter().map(|(_, range)| *range).collect();
            if let Err(error) = device.finish_at(&ranges) {
                DeviceStats::count(&stats.write_errs);
                outcome = outcome.and(self.lose(*id, error));
            }
        }
        outcome
    }

    fn write_blocks(
        &self,
        blocks: &[(Logical, &[u8])],
        wait: Wait,
    ) -> Result<WritesBehind, VolumeError> {
        let map = self.map();
        let mut pieces: Vec<(Physical, &[u8])> = Vec::with_capacity(blocks.len());
        let mut with_parity: Vec<(Logical, &[u8])> = Vec::new();
        for (logical, data) in blocks {
            let mut at = *logical;
            let mut rest = *data;
            while !rest.is_empty() {
                let mapping = map.map(at, bytes_of(rest.len()))?;
                let (part, later) = rest.split_at(memory_of(mapping.length).min(rest.len()));
                if mapping.rebuilds > 0 {
                    self.check_row(&map, at)?;
                    with_parity.push((at, part));
                } else {
                    self.plan_copies(at, &mapping.copies, part, &mut pieces)?;
                }
                at = at.saturating_add(mapping.length);
                rest = later;
            }
        }
        if !with_parity.is_empty() {
            self.write_rows(&map, with_parity)?;
        }
        self.write_pieces_and(pieces, wait)
    }

    /// Where the copies of a part go.
    fn plan_copies<'a>(
        &self,
        at: Logical,
        copies: &[Physical],
        part: &'a [u8],
        pieces: &mut Vec<(Physical, &'a [u8])>,
    ) -> Result<(), VolumeError> {
        let mut written = 0_usize;
        let mut missing = None;
        for physical in copies {
            if self.leaves_out(physical.device) {
                missing = Some(physical.device);
                // A replace target is no copy before it has everything.
                if self.is_written(physical.device) {
                    check_superblocks(at, *physical, part.len())?;
                    pieces.push((*physical, part));
                }
                continue;
            }
            self.check_write(at, *physical, part.len())?;
            pieces.push((*physical, part));
            written = written.saturating_add(1);
        }
        match missing {
            Some(device) if written == 0 => Err(VolumeError::MissingDevice(device)),
            _ => Ok(()),
        }
    }

    /// Writes parts to their places.
    pub(crate) fn write_pieces(&self, pieces: Vec<(Physical, &[u8])>) -> Result<(), VolumeError> {
        self.write_pieces_and(pieces, Wait::UntilDone).map(|_| ())
    }

    fn write_pieces_and(
        &self,
        mut pieces: Vec<(Physical, &[u8])>,
        wait: Wait,
    ) -> Result<WritesBehind, VolumeError> {
        pieces.sort_by_key(|(physical, _)| *physical);
        let _same_devices = self.writing.read();
        let _claims = self.claim_replace_targets(&pieces);
        let runs = runs_of(pieces);
        let behind = match wait {
            Wait::UntilDone => Vec::new(),
            Wait::NotAtAll => runs.iter().map(Run::place).collect(),
        };
        self.write_runs(runs, wait)?;
        Ok(WritesBehind(behind))
    }

    /// Errors if it is known beforehand that a copy cannot be written.
    pub(crate) fn check_write(
        &self,
        logical: Logical,
        physical: Physical,
        length: usize,
    ) -> Result<(), VolumeError> {
        self.used(physical.device)?;
        if self.is_seed(physical.device) {
            return Err(VolumeError::Seed {
                logical,
                device: physical.device,
            });
        }
        check_superblocks(logical, physical, length)
    }

    /// Whether a device is read and never written.
    #[must_use]
    pub fn is_seed(&self, device: DeviceId) -> bool {
        let member = self.member(device);
        member.is_some_and(|member| member.role == Role::Seed)
    }

    /// Whether all that is written goes to one device.
    #[must_use]
    pub fn has_one_device(&self) -> bool {
        let members = self.members_now();
        let mut all = members.values();
        all.next().is_some_and(|one| one.replace_target.is_none()) && all.next().is_none()
    }

    /// Writes a copy of a superblock, if the device still has the `size` bytes
    /// that the volume has on it, or those that it had when it was opened. It is
    /// durable after the next flush.
    ///
    /// # Errors
    /// [`VolumeError::Device`], where the volume cannot do without the device.
    pub fn write_superblock(
        &self,
        id: DeviceId,
        offset: DeviceOffset,
        bytes: &[u8],
        size: u64,
    ) -> Result<(), VolumeError> {
        self.write_checked(id, size, |device| device.write_at(offset, bytes))
    }

    /// [`LogicalSpace::write_superblock`], durable when it returns.
    ///
    /// # Errors
    /// As there.
    pub fn write_superblock_durably(
        &self,
        id: DeviceId,
        offset: DeviceOffset,
        bytes: &[u8],
        size: u64,
    ) -> Result<(), VolumeError> {
        self.write_checked(id, size, |device| device.write_durably_at(offset, bytes))
    }

    fn write_checked(
        &self,
        id: DeviceId,
        size: u64,
        write: impl FnOnce(&dyn BlockDevice) -> Result<(), DeviceError>,
    ) -> Result<(), VolumeError> {
        let Ok((device, stats)) = self.used(id) else {
            return Ok(());
        };
        // A device may have been shorter than its item before it was opened.
        let there = device.still_has(size.min(device.size()));
        match there.and_then(|()| write(&*device)) {
            Ok(()) => Ok(()),
            Err(error) => {
                DeviceStats::count(&stats.write_errs);
                self.lose(id, error)
            }
        }
    }

    /// Makes all earlier writes durable on all devices.
    ///
    /// # Errors
    /// The first failure, after every device was asked, of a device that the
    /// volume cannot do without. Afterwards nothing is known of the earlier
    /// writes.
    pub fn flush(&self) -> Result<(), VolumeError> {
        let members = self.members_now();
        let written = members.iter().filter(|(_, member)| member.is_written());
        if !self.has_several() {
            let each = written.map(|(id, _)| self.flush_one(*id));
            return each.fold(Ok(()), Result::and);
        }
        let jobs = written.map(|(id, _)| (*id, *id)).collect();
        let outcome = Mutex::new(Ok(()));
        self.workers.run(self.count(), jobs, |id| {
            let flushed = self.flush_one(id);
            let mut outcome = outcome.lock();
            if outcome.is_ok() {
                *outcome = flushed;
            }
        });
        outcome.into_inner()
    }

    fn flush_one(&self, id: DeviceId) -> Result<(), VolumeError> {
        if let Some(target) = self.replace_target(id) {
            target.flush();
        }
        let Ok((device, stats)) = self.used(id) else {
            return Ok(());
        };
        match device.flush() {
            Ok(()) => Ok(()),
            Err(error) => {
                DeviceStats::count(&stats.flush_errs);
                self.lose(id, error)
            }
        }
    }

    /// Tells the devices that the content of a range is no longer needed.
    /// Nothing is discarded in rows with parity, because unused content is part
    /// of the parity too.
    ///
    /// # Errors
    /// Advisory: callers may go on.
    pub fn discard(&self, logical: Logical, length: u64) -> Result<(), VolumeError> {
        let map = self.map();
        let mut at = logical;
        let mut left = length;
        while left > 0 {
            let mapping = map.map(at, left)?;
            let copies = match mapping.rebuilds {
                0 => &mapping.copies[..],
                _ => &[],
            };
            for copy in copies {
                if self.leaves_out(copy.device) || self.is_seed(copy.device) {
                    continue;
                }
                self.check_write(at, *copy, memory_of(mapping.length))?;
                let (device, _) = self.used(copy.device)?;
                device.discard(DeviceRange::new(copy.offset, mapping.length))?;
            }
            at = at.saturating_add(mapping.length);
            left = left.saturating_sub(mapping.length);
        }
        Ok(())
    }

    /// True when the copies on this device may be rewritten.
    pub(crate) fn may_heal(&self, device: &dyn BlockDevice) -> bool {
        self.on_damage == OnDamage::Heal && device.access() == Access::ReadWrite
    }
}

/// Refuses to write where copies of the superblock are.
pub(crate) fn check_superblocks(
    logical: Logical,
    physical: Physical,
    length: usize,
) -> Result<(), VolumeError> {
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
