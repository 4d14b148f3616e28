//! One device takes the place of another one.
//!
//! From the beginning on, the target gets all writes to the device. At the same
//! time, what lies on the device is copied, and verified where it has
//! checksums. Meanwhile the target has no superblock, and the trees do not
//! mention it. So a crash leaves the volume as it was, with its device, and the
//! replacement begins anew.
//!
//! At the end the target gets the device's number and UUID, as in the kernel,
//! so nothing in the chunk tree changes. The order is: a commit with all its
//! nodes on both devices; the target's superblock; the superblocks of the
//! others; then the source's superblocks are wiped. A crash in between leaves
//! both devices, each with everything, and the one with the newer superblock
//! counts (`open/members`).
//!
//! The copy has everything but space that is free by the extent tree, by what
//! records free space, and by the count of its block group
//! ([`Engine::unneeded`]). So an extent whose item is lost, and a chunk whose
//! block group is lost, are copied too. What is allocated later is written to
//! both.

use crate::add_device::write_all_copies;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::membership_fault::MembershipFault;
use crate::parallel::in_parallel;
use crate::refs::checksums::SectorChecksums;
use crate::refs::record::ExtentHead;
use crate::remove_device::{RemovedDevice, wipe_superblocks};
use crate::space::ranges::RangeSet;
use crate::{Purpose, Store};
use butterfs_device::BlockDevice;
use butterfs_format::item::state::DeviceReplace;
use butterfs_format::{DeviceId, Generation, ItemType, Key, Logical, TreeId};
use butterfs_tree::{Expected, Node};
use butterfs_volume::{
    Copied, CopyUnit, ReplaceReads, Trust, VolumeError, row_length, stripe_length,
};
use parking_lot::Mutex;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nodes that a change of the item touches.
const NODES: usize = 16;
/// Bytes of logical space in a step, about.
const STEP: u64 = 8 << 20;
/// Bytes that are read and written at once, about.
const RUN: u64 = 1 << 20;
/// How often data that do not match are looked up again before they are called
/// bad.
const TRIES: usize = 8;

const fn key() -> Key {
    Key::new(0, ItemType::DEV_REPLACE, 0)
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// How a unit is verified.
#[derive(Clone, Copy, Debug)]
enum Check {
    Node {
        level: u8,
        generation: Generation,
    },
    /// By its checksum, where it has one.
    Sector,
    /// No extent is known here, and nobody says that the space is free. If it
    /// cannot be read, it counts as lost.
    Unnamed,
    /// Free space of a row, or a node that will be written to both devices.
    Nothing,
}

/// What is copied in a step: runs without gaps.
#[derive(Debug, Default)]
struct Plan {
    runs: Vec<Vec<(CopyUnit, Check)>>,
    /// Checksums from an address on.
    sums: Option<(u64, SectorChecksums)>,
    end: u64,
    /// Threads that may share the runs. Rows are held one at a time.
    threads: usize,
}

impl Plan {
    fn sum(&self, at: Logical, sector: u64) -> Option<&[u8]> {
        let (first, sums) = self.sums.as_ref()?;
        let index = at.get().checked_sub(*first)? / sector;
        sums.get(index as usize)
    }
}

/// Allocated space with what is in it.
struct Part {
    range: Range<u64>,
    check: Check,
}

fn gaps(parts: &[Part], within: &Range<u64>) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut at = within.start;
    for part in parts {
        if part.range.start > at {
            gaps.push(at..part.range.start.min(within.end));
        }
        at = at.max(part.range.end);
    }
    if at < within.end {
        gaps.push(at..within.end);
    }
    gaps
}

impl Engine {
    /// The replacement that was last begun or ended.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn replace_item(&self) -> Result<Option<DeviceReplace>, StoreError> {
        let Some((leaf, slot)) = butterfs_tree::find(self, TreeId::DEVICE, &key())? else {
            return Ok(None);
        };
        let item = DeviceReplace::parse(leaf.data(slot));
        item.map(Some)
            .map_err(|error| bad_item(TreeId::DEVICE, key(), &error))
    }

    /// Cancels the kernel's replacement in memory if it was interrupted.
    /// Whatever the next commit writes, it says at once that the replacement is
    /// cancelled.
    ///
    /// # Errors
    /// Damage of the device tree, no space, reading.
    pub(crate) fn cancel_interrupted_replacement(&mut self) -> Result<(), StoreError> {
        let Some(item) = self.replace_item()?.filter(DeviceReplace::is_under_way) else {
            return Ok(());
        };
        self.reserve(NODES, Purpose::Shrink)?;
        let item = DeviceReplace {
            state: DeviceReplace::CANCELLED,
            stopped_seconds: seconds_now(),
            ..item
        };
        Ok(butterfs_tree::replace(
            self,
            TreeId::DEVICE,
            &key(),
            &item.encode(),
        )?)
    }

    /// Space of a chunk that a copy may leave out. Space that is allocated after
    /// this was asked must be written to both devices.
    ///
    /// # Errors
    /// Reading.
    fn unneeded(&self, start: Logical) -> Result<RangeSet, StoreError> {
        let Some(group) = self.space_map.groups().get(start) else {
            return Ok(RangeSet::default());
        };
        let mut unneeded = match &group.free {
            Some(free) => free.clone(),
            None => self.agreed_free_space(group)?,
        };
        for range in group.left_over.iter() {
            unneeded.insert(range);
        }
        for range in &group.excluded {
            unneeded.insert(range.clone());
        }
        Ok(unneeded)
    }

    /// What is to be copied of a chunk, starting at `from`.
    fn plan_copy(
        &self,
        start: Logical,
        from: u64,
        unneeded: &RangeSet,
    ) -> Result<Option<Plan>, StoreError> {
        let Some(chunk) = self.space_map.chunks().get(&start) else {
            return Ok(None);
        };
        let group_end = start.get().saturating_add(chunk.length);
        let row = row_length(chunk);
        let first = start.get();
        let whole_rows = |at: u64| match row {
            Some(row) => first.saturating_add((at - first).next_multiple_of(row)),
            None => at,
        };
        let mut end = whole_rows(from.saturating_add(STEP)).min(group_end);
        let mut parts: Vec<Part> = Vec::new();
        self.visit_extents(&(from..group_end), &mut |head, length| {
            let at = head.key.objectid;
            if at >= end {
                return Ok(ControlFlow::Break(()));
            }
            let range = at..at.saturating_add(length);
            end = end.max(whole_rows(range.end).min(group_end));
            let check = match self.nodes.has_changed(Logical(at)) {
                // It will be written to both devices.
                true => Check::Nothing,
                false => check_of(head),
            };
            parts.push(Part { range, check });
            Ok(ControlFlow::Continue(()))
        })?;
        let within = from..end;
        let mut unnamed = RangeSet::default();
        for gap in gaps(&parts, &within) {
            unnamed.insert(gap);
        }
        for range in unneeded.overlapping(within) {
            unnamed.remove(range);
        }
        add_unverified(&mut parts, unnamed.iter(), Check::Unnamed);
        if let Some(row) = row {
            let mut rest = RangeSet::default();
            for part in &parts {
                let begin = first + (part.range.start - first) / row * row;
                rest.insert(begin..whole_rows(part.range.end));
            }
            for part in &parts {
                rest.remove(part.range.clone());
            }
            add_unverified(&mut parts, rest.iter(), Check::Nothing);
        }
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let mut plan = Plan {
            end,
            threads: row.map_or_else(cores, |_| 1),
            ..Plan::default()
        };
        let is_data = |part: &&Part| matches!(part.check, Check::Sector);
        let mut data = parts.iter().filter(is_data);
        if let Some(first) = data.next() {
            let last = data.next_back().unwrap_or(first);
            let span = first.range.start..last.range.end;
            plan.sums = Some((span.start, self.data_checksums(span)?));
        }
        plan.add_all(&parts, self.sector_size(), row);
        Ok(Some(plan))
    }
}

fn check_of(head: &ExtentHead) -> Check {
    match head.level() {
        None => Check::Sector,
        Some(level) => Check::Node {
            level,
            generation: head.generation,
        },
    }
}

fn add_unverified(parts: &mut Vec<Part>, ranges: impl Iterator<Item = Range<u64>>, check: Check) {
    parts.extend(ranges.map(|range| Part { range, check }));
    parts.sort_by_key(|part| part.range.start);
}

impl Plan {
    /// Adds parts, in units: nodes as they are, everything else by sectors.
    /// With rows, a run consists of whole rows.
    fn add_all(&mut self, parts: &[Part], sector: u64, row: Option<u64>) {
        let mut run: Vec<(CopyUnit, Check)> = Vec::new();
        let (mut run_start, mut run_end) = (0, 0);
        for part in parts {
            let unit = match part.check {
                Check::Node { .. } => part.range.end - part.range.start,
                Check::Sector | Check::Unnamed | Check::Nothing => sector,
            };
            let mut at = part.range.start;
            while at < part.range.end {
                let is_full = row.is_none() && run_end - run_start >= RUN;
                if at != run_end || is_full {
                    if !run.is_empty() {
                        self.runs.push(std::mem::take(&mut run));
                    }
                    run_start = at;
                }
                let unit = CopyUnit {
                    at: Logical(at),
                    length: unit as usize,
                };
                run.push((unit, part.check));
                at += unit.length as u64;
                run_end = at;
            }
        }
        if !run.is_empty() {
            self.runs.push(run);
        }
    }
}

/// What was copied of a group so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupCopied {
    /// Bytes of the group's logical space that are done.
    pub done: u64,
    /// Bytes that the target got.
    pub copied: u64,
    /// Sectors of which no copy is good any more.
    pub uncorrectable: u64,
}

/// A replacement that is under way. Dropped before its end, it leaves the
/// volume as it was.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Replacement<'s> {
    store: &'s Store,
    device: DeviceId,
    trust: Trust,
    item: DeviceReplace,
    /// The chunk that is being copied, and what need not be copied of it.
    unneeded: Mutex<Option<(Logical, Arc<RangeSet>)>>,
    switched: bool,
}

impl Drop for Replacement<'_> {
    fn drop(&mut self) {
        if !self.switched {
            self.store
                .space
                .detach_replace_target(self.device, self.trust);
        }
    }
}

impl Store {
    /// Errors unless `target` can take the place of a device.
    ///
    /// # Errors
    /// There is no such device; the target is too small.
    pub fn verify_target(
        &self,
        device: DeviceId,
        target: &dyn BlockDevice,
    ) -> Result<(), StoreError> {
        let no_such = || MembershipFault::NoSuchDevice(device.to_string());
        self.verify_own(device)?;
        let bytes = {
            let engine = self.read();
            engine
                .publisher
                .devices()
                .get(&device)
                .ok_or_else(no_such)?
                .total_bytes
        };
        if target.size() < bytes {
            return Err(MembershipFault::TooSmall {
                device: target.identity(),
                size: target.size(),
                least: bytes,
            }
            .into());
        }
        Ok(())
    }

    /// Begins to replace a device by `target`, which must not hold a superblock.
    ///
    /// # Errors
    /// [`MembershipFault`]; not writable; those of a commit.
    pub fn begin_replace(
        &self,
        device: DeviceId,
        target: Arc<dyn BlockDevice>,
        reads: ReplaceReads,
    ) -> Result<Replacement<'_>, StoreError> {
        self.check_writable()?;
        self.verify_target(device, &*target)?;
        let trust = self.space.trust(device);
        self.space.attach_replace_target(device, target, reads)?;
        let replacement = Replacement {
            store: self,
            device,
            trust,
            item: DeviceReplace {
                source: device,
                read_mode: u64::from(reads == ReplaceReads::OthersFirst),
                started_seconds: seconds_now(),
                ..DeviceReplace::default()
            },
            unneeded: Mutex::new(None),
            switched: false,
        };
        // After this, the trees have all that was written before, and the
        // content of the fsync log.
        self.commit_something()?;
        Ok(replacement)
    }

    /// Commits that the kernel's interrupted replacement is cancelled, if
    /// [`OnReplacement::Cancel`] asked for that, and wipes the superblock of its
    /// target. The kernel mounts no volume that has a target without a
    /// replacement.
    ///
    /// # Errors
    /// Those of a commit; writing to the target.
    ///
    /// [`OnReplacement::Cancel`]: crate::OnReplacement::Cancel
    pub fn commit_cancelled_replacement(&self) -> Result<(), StoreError> {
        if !self.read().is_clean() {
            self.commit()?;
        }
        for target in &self.replacement_targets {
            wipe_superblocks(&**target)?;
        }
        Ok(())
    }

    /// The names of devices that were given and are targets of the kernel's
    /// replacement.
    #[must_use]
    pub fn replacement_targets(&self) -> Vec<String> {
        let targets = self.replacement_targets.iter();
        targets.map(|target| target.identity()).collect()
    }

    /// A commit, even if nothing changed.
    fn commit_something(&self) -> Result<(), StoreError> {
        {
            let mut engine = self.change_writable()?;
            engine.note_edit();
            engine.publisher.note_superblock_change();
        }
        self.commit().map(|_| ())
    }

    fn set_replace_item(&self, item: &DeviceReplace) -> Result<(), StoreError> {
        self.commit_with(NODES, |engine| {
            butterfs_tree::replace(engine, TreeId::DEVICE, &key(), &item.encode())?;
            Ok(())
        })
    }
}

impl Replacement<'_> {
    /// The block groups that have a part on the device, with the bytes of each.
    #[must_use]
    pub fn groups(&self) -> Vec<(Logical, u64)> {
        let engine = self.store.read();
        let own = engine.space_map.chunks().iter().filter(|(_, chunk)| {
            let mut stripes = chunk.stripes.iter();
            stripes.any(|stripe| stripe.device == self.device)
        });
        own.map(|(logical, chunk)| (*logical, chunk.length))
            .collect()
    }

    /// Bytes of the device in chunks.
    #[must_use]
    pub fn device_bytes(&self) -> u64 {
        let engine = self.store.read();
        let of_chunk = |chunk: &butterfs_format::item::chunk::Chunk| {
            let own = chunk.stripes.iter();
            let count = own.filter(|stripe| stripe.device == self.device).count();
            stripe_length(chunk).saturating_mul(count as u64)
        };
        engine.space_map.chunks().values().map(of_chunk).sum()
    }

    /// Copies some of a group, and notes in `copied` how far it came. True if
    /// the group is done, or gone.
    ///
    /// # Errors
    /// The target failed; data without checksums cannot be read; the extent
    /// tree is damaged; reading failed.
    pub fn copy_step(&self, group: Logical, copied: &mut GroupCopied) -> Result<bool, StoreError> {
        self.store.check_writable()?;
        let from = group.get().saturating_add(copied.done);
        let unneeded = self.unneeded(group)?;
        for attempt in 1..=TRIES {
            let plan = |engine: &Engine| engine.plan_copy(group, from, &unneeded);
            let plan = self.store.look(plan)?;
            let Some(plan) = plan else { return Ok(true) };
            let outcome = self.copy_plan(&plan, attempt == TRIES)?;
            let Some(step) = outcome else { continue };
            copied.copied += step.copied;
            copied.uncorrectable += step.uncorrectable;
            copied.done = plan.end - group.get();
            break;
        }
        let engine = self.store.read();
        let chunk = engine.space_map.chunks().get(&group);
        Ok(chunk.is_none_or(|chunk| copied.done >= chunk.length))
    }

    /// [`Engine::unneeded`], asked once for each chunk.
    fn unneeded(&self, chunk: Logical) -> Result<Arc<RangeSet>, StoreError> {
        let mut known = self.unneeded.lock();
        if let Some((_, unneeded)) = known.as_ref().filter(|(of, _)| *of == chunk) {
            return Ok(Arc::clone(unneeded));
        }
        let found = Arc::new(self.store.look(|engine| engine.unneeded(chunk))?);
        *known = Some((chunk, Arc::clone(&found)));
        Ok(found)
    }

    /// Copies what was planned. `None` if something does not match and may have
    /// changed meanwhile, unless this is the `last` time.
    fn copy_plan(&self, plan: &Plan, last: bool) -> Result<Option<GroupCopied>, StoreError> {
        let step = Mutex::new(Some(GroupCopied::default()));
        in_parallel(&plan.runs, plan.threads, |run| {
            let copied = self.copy_run(plan, run, last)?;
            let mut step = step.lock();
            *step = step.zip(copied).map(|(step, run)| GroupCopied {
                copied: step.copied + run.copied,
                uncorrectable: step.uncorrectable + run.uncorrectable,
                ..step
            });
            Ok::<(), StoreError>(())
        })?;
        Ok(step.into_inner())
    }

    /// [`Replacement::copy_plan`] for one run.
    fn copy_run(
        &self,
        plan: &Plan,
        run: &[(CopyUnit, Check)],
        last: bool,
    ) -> Result<Option<GroupCopied>, StoreError> {
        let store = self.store;
        let sector = store.identity.sector_size;
        let units: Vec<CopyUnit> = run.iter().map(|(unit, _)| *unit).collect();
        let verify = &mut |index: usize, bytes: &[u8]| {
            let Some((unit, check)) = run.get(index) else {
                return false;
            };
            match check {
                Check::Unnamed | Check::Nothing => true,
                Check::Sector => plan
                    .sum(unit.at, sector)
                    .is_none_or(|sum| store.identity.checksum.compute(bytes)[..sum.len()] == *sum),
                Check::Node { level, generation } => {
                    let expected = Expected {
                        logical: unit.at,
                        generation: Some(*generation),
                        level: Some(*level),
                    };
                    Node::check(bytes, &store.identity, expected).is_ok()
                }
            }
        };
        let copied = match store
            .space
            .copy_to_replace_target(self.device, &units, verify)
        {
            Ok(copied) => copied,
            // The group was removed meanwhile.
            Err(VolumeError::Unmapped { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Copied {
            bytes,
            bad,
            unreadable,
        } = copied;
        let is_good = bad.is_empty() && unreadable.is_empty();
        if !last && !is_good {
            return Ok(None);
        }
        // Data without checksums: nobody could tell later that they are lost.
        let ends = |(unit, check): &(CopyUnit, Check)| {
            matches!(check, Check::Sector) && plan.sum(unit.at, sector).is_none()
        };
        let lost = unreadable.iter().filter_map(|index| run.get(*index));
        let lost = lost.filter(|(_, check)| !matches!(check, Check::Nothing));
        if let Some((unit, _)) = lost.clone().find(|one| ends(one)) {
            return Err(MembershipFault::Unreadable {
                logical: unit.at,
                bytes: unit.length,
            }
            .into());
        }
        let bad = bad.iter().filter_map(|index| run.get(*index));
        let mut uncorrectable = 0;
        for (unit, _) in bad.chain(lost) {
            tracing::warn!(
                logical = %unit.at,
                "no copy is good; the new device has none either"
            );
            uncorrectable += unit.length as u64 / sector;
        }
        Ok(Some(GroupCopied {
            copied: bytes,
            uncorrectable,
            done: 0,
        }))
    }

    /// Ends the replacement early: the device stays, and the volume notes that,
    /// with the number of `uncorrectable` sectors and whether the target failed.
    ///
    /// # Errors
    /// Those of a commit.
    pub fn cancel(mut self, uncorrectable: u64) -> Result<(), StoreError> {
        // A target that failed once gets no more writes: there is one error.
        let has_failed = self.store.space.check_replace_target(self.device).is_err();
        self.item.state = DeviceReplace::CANCELLED;
        self.item.stopped_seconds = seconds_now();
        self.item.read_errors = uncorrectable;
        self.item.write_errors = u64::from(has_failed);
        let (store, item) = (self.store, self.item);
        drop(self);
        store.set_replace_item(&item)
    }

    /// The target takes the device's place. All groups were copied.
    ///
    /// # Errors
    /// The target failed: the device stays, as after [`Replacement::cancel`].
    /// Errors of a commit.
    pub fn finish(mut self, uncorrectable: u64) -> Result<RemovedDevice, StoreError> {
        let store = self.store;
        let former = match self.switch() {
            Ok(former) => former,
            Err(error) => {
                // The first error says more than one of this commit.
                let _ = self.cancel(uncorrectable);
                return Err(error);
            }
        };
        self.item.state = DeviceReplace::FINISHED;
        self.item.stopped_seconds = seconds_now();
        self.item.read_errors = uncorrectable;
        store.set_replace_item(&self.item)?;
        // A superblock that could not be wiped is now so far behind that nobody
        // takes it for one that a crash left behind.
        store.commit_something()?;
        Ok(former)
    }

    /// Commits so that both devices have everything, and gives the target the
    /// device's place.
    fn switch(&mut self) -> Result<RemovedDevice, StoreError> {
        let store = self.store;
        let _one_at_a_time = store.lock_commits();
        store.space.flush()?;
        store.space.check_replace_target(self.device)?;
        // Without an fsync log, so that only this commit is written.
        store.commit_alone()?;
        {
            let mut engine = store.change_writable()?;
            engine.note_edit();
            engine.publisher.note_superblock_change();
        }
        let mut taken = Err(VolumeError::MissingDevice(self.device));
        store.commit_once(&mut |superblock, items| {
            taken = self.take_place(superblock, items);
        })?;
        let former = taken?;
        self.switched = true;
        Ok(RemovedDevice::wipe(former))
    }

    /// Gives the target its superblock, and then the device's place.
    fn take_place(
        &self,
        superblock: &butterfs_format::superblock::Superblock,
        items: &crate::commit::DeviceItems,
    ) -> Result<Option<Arc<dyn BlockDevice>>, VolumeError> {
        let missing = VolumeError::MissingDevice(self.device);
        let target = self.store.space.replace_target_device(self.device)?;
        let item = items.get(&self.device).ok_or(missing)?;
        self.store.space.check_replace_target(self.device)?;
        if let Err(error) = write_all_copies(&*target, &superblock.on_device(item)) {
            let _ = wipe_superblocks(&*target);
            return Err(match error {
                StoreError::Device(error) => VolumeError::Device(error),
                _ => VolumeError::MissingDevice(self.device),
            });
        }
        self.store.space.switch_to_replace_target(self.device)
    }
}
