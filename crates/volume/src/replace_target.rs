//! The replace target: the device that is to take another one's place, while it
//! gets the content.
//!
//! Owns the copying, unit by unit, of what lies on a device. Makes sure that
//! all writes to the device reach its replace target as well. Before a replace
//! target has taken the place, it is never read and counts for no copy.
//!
//! Invariants: a range is either copied or written, never both at once, so what
//! is copied is never older than what was written; a replace target that failed
//! once is not written again and never takes the place.

use crate::bytes_of;
use crate::error::VolumeError;
use crate::geometry::ELEMENT;
use crate::healing::pieces_of;
use crate::map::ChunkMap;
use crate::member::{Member, Trust, VolumeDevice};
use crate::parity;
use crate::space::{LogicalSpace, check_superblocks};
use butterfs_device::{BlockDevice, DeviceError};
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Which copies are read for a replace target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReplaceReads {
    /// Any that is good.
    #[default]
    Any,
    /// The device's own only where no other is good.
    OthersFirst,
}

/// Something that is verified as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyUnit {
    /// Where it begins.
    pub at: Logical,
    /// Bytes.
    pub length: usize,
}

impl CopyUnit {
    fn end(&self) -> Logical {
        self.at.saturating_add(bytes_of(self.length))
    }
}

/// How copying went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Bytes that the replace target got.
    pub bytes: u64,
    /// Units of which no copy is good; the replace target has the first one
    /// that can be read.
    pub bad: Vec<usize>,
    /// Units of which no copy can be read; the replace target has zeros.
    pub unreadable: Vec<usize>,
}

/// Ranges of a replace target that are in use.
#[derive(Debug, Default)]
struct InUse {
    next: u64,
    ranges: BTreeMap<u64, Range<u64>>,
}

impl InUse {
    fn overlaps(&self, wanted: &Range<u64>) -> bool {
        let mut ranges = self.ranges.values();
        ranges.any(|range| range.start < wanted.end && wanted.start < range.end)
    }
}

/// The device that is to take another one's place.
#[derive(Debug)]
pub(crate) struct ReplaceTarget {
    device: Arc<dyn BlockDevice>,
    failed: Mutex<Option<Arc<DeviceError>>>,
    in_use: Mutex<InUse>,
    freed: Condvar,
}

/// Ranges of replace targets that others neither copy nor write meanwhile.
#[derive(Default)]
pub(crate) struct Claims(Vec<(Arc<ReplaceTarget>, u64)>);

impl Drop for Claims {
    fn drop(&mut self) {
        for (target, number) in &self.0 {
            target.in_use.lock().ranges.remove(number);
            target.freed.notify_all();
        }
    }
}

impl Claims {
    /// Adds ranges of a replace target, once all of them are free. A caller that
    /// claims in several replace targets does so in the order of their devices.
    fn add(&mut self, target: &Arc<ReplaceTarget>, ranges: &[Range<u64>]) {
        let mut in_use = target.in_use.lock();
        while ranges.iter().any(|range| in_use.overlaps(range)) {
            target.freed.wait(&mut in_use);
        }
        for range in ranges {
            let number = in_use.next;
            in_use.next = number.wrapping_add(1);
            in_use.ranges.insert(number, range.clone());
            self.0.push((Arc::clone(target), number));
        }
    }
}

impl ReplaceTarget {
    fn fail(&self, error: DeviceError) {
        let mut failed = self.failed.lock();
        if failed.is_none() {
            tracing::error!(%error, "the target of a replacement failed; nothing else did");
            *failed = Some(Arc::new(error));
        }
    }

    fn failure(&self) -> Option<Arc<DeviceError>> {
        self.failed.lock().clone()
    }

    fn try_do(&self, work: impl FnOnce() -> Result<(), DeviceError>) {
        if self.failure().is_none()
            && let Err(error) = work()
        {
            self.fail(error);
        }
    }

    /// Writes to it. An error is remembered, and the volume goes on.
    pub(crate) fn write(&self, offset: DeviceOffset, parts: &[IoSlice<'_>]) {
        self.try_do(|| self.device.write_vectored_at(offset, parts));
    }

    /// Flushes it, likewise.
    pub(crate) fn flush(&self) {
        self.try_do(|| self.device.flush());
    }
}

/// A part of a buffer and where it goes on the replace target.
struct Place {
    part: Range<usize>,
    offset: DeviceOffset,
}

impl Place {
    fn range(&self) -> Range<u64> {
        let length = bytes_of(self.part.end.saturating_sub(self.part.start));
        self.offset.get()..self.offset.get().saturating_add(length)
    }
}

impl LogicalSpace {
    pub(crate) fn replace_target(&self, device: DeviceId) -> Option<Arc<ReplaceTarget>> {
        self.member(device)?.replace_target.clone()
    }

    /// Claims what is written to devices with replace targets.
    pub(crate) fn claim_replace_targets(&self, pieces: &[(Physical, &[u8])]) -> Claims {
        let mut claims = Claims::default();
        for (id, member) in self.members_now().iter() {
            let Some(target) = &member.replace_target else {
                continue;
            };
            let own = pieces.iter().filter(|(place, _)| place.device == *id);
            let ranges: Vec<Range<u64>> = own
                .map(|(place, part)| {
                    let start = place.offset.get();
                    start..start.saturating_add(bytes_of(part.len()))
                })
                .collect();
            claims.add(target, &ranges);
        }
        claims
    }

    /// Has all writes to device `id` go to `device` as well.
    ///
    /// # Errors
    /// There is no such device, or it has a replace target already.
    pub fn attach_replace_target(
        &self,
        id: DeviceId,
        device: Arc<dyn BlockDevice>,
        reads: ReplaceReads,
    ) -> Result<(), VolumeError> {
        let mut attached = Err(VolumeError::MissingDevice(id));
        self.change_members(|members| {
            let Some(member) = members
                .get(&id)
                .filter(|member| member.replace_target.is_none())
            else {
                return;
            };
            let mut member = Member::clone(member);
            member.replace_target = Some(Arc::new(ReplaceTarget {
                device,
                failed: Mutex::new(None),
                in_use: Mutex::default(),
                freed: Condvar::new(),
            }));
            if reads == ReplaceReads::OthersFirst {
                member.trust = Trust::Last;
            }
            members.insert(id, Arc::new(member));
            attached = Ok(());
        });
        attached
    }

    /// Ends what [`LogicalSpace::attach_twin`] began. `trust` is that of the
    /// device before.
    pub fn detach_replace_target(&self, id: DeviceId, trust: Trust) {
        self.change_members(|members| {
            if let Some(member) = members.get(&id) {
                let mut member = Member::clone(member);
                member.replace_target = None;
                member.trust = trust;
                members.insert(id, Arc::new(member));
            }
        });
    }

    /// How far the copies of a device are trusted.
    #[must_use]
    pub fn trust(&self, id: DeviceId) -> Trust {
        self.member(id)
            .map(|member| member.trust)
            .unwrap_or_default()
    }

    /// The replace target takes the place of device `id`, with fresh counters.
    /// Returns the device that had the place, if it is there.
    ///
    /// # Errors
    /// There is no replace target; the replace target failed: it does not take
    /// the place.
    pub fn switch_to_replace_target(
        &self,
        id: DeviceId,
    ) -> Result<Option<Arc<dyn BlockDevice>>, VolumeError> {
        let mut switched = Err(VolumeError::MissingDevice(id));
        self.change_members(|members| {
            let Some(member) = members.get(&id) else {
                return;
            };
            let Some(target) = &member.replace_target else {
                return;
            };
            if let Some(error) = target.failure() {
                switched = Err(VolumeError::Device(error));
                return;
            }
            let device = Arc::clone(&target.device);
            let former = member.device.clone();
            let (_, member) = Member::new(VolumeDevice::present(id, member.uuid, device));
            members.insert(id, Arc::new(member));
            switched = Ok(former);
        });
        switched
    }

    /// The replace target of a device.
    ///
    /// # Errors
    /// There is none.
    pub fn replace_target_device(&self, id: DeviceId) -> Result<Arc<dyn BlockDevice>, VolumeError> {
        let target = self
            .replace_target(id)
            .ok_or(VolumeError::MissingDevice(id))?;
        Ok(Arc::clone(&target.device))
    }

    /// Errors when the replace target of a device failed.
    ///
    /// # Errors
    /// What it failed with.
    pub fn check_replace_target(&self, id: DeviceId) -> Result<(), VolumeError> {
        match self.replace_target(id).and_then(|target| target.failure()) {
            Some(error) => Err(VolumeError::Device(error)),
            None => Ok(()),
        }
    }

    /// Copies to the replace target what device `id` has of `units`. Units
    /// follow each other without gaps within one chunk; of a chunk with parity
    /// they are whole rows. `verify` is given the index of a unit and its
    /// content.
    ///
    /// # Errors
    /// There is no replace target, or it failed; [`VolumeError::Unmapped`].
    pub fn copy_to_replace_target(
        &self,
        id: DeviceId,
        units: &[CopyUnit],
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
    ) -> Result<Copied, VolumeError> {
        let target = self
            .replace_target(id)
            .ok_or(VolumeError::MissingDevice(id))?;
        let map = self.map();
        let mut copied = Copied::default();
        let Some(first) = units.first() else {
            return Ok(copied);
        };
        let has_rows = map.row(first.at).is_some();
        let mut done = 0_usize;
        while let Some(rest) = units.get(done..).filter(|rest| !rest.is_empty()) {
            let count = match has_rows {
                true => self.copy_row((id, &target), &map, (done, rest), verify, &mut copied)?,
                false => self.copy_some((id, &target), &map, (done, rest), verify, &mut copied)?,
            };
            done = done.saturating_add(count);
            self.check_replace_target(id)?;
        }
        Ok(copied)
    }

    /// Copies the first of `units`, up to where the next stripe element begins,
    /// and returns their number.
    fn copy_some(
        &self,
        (id, target): (DeviceId, &Arc<ReplaceTarget>),
        map: &ChunkMap,
        (before, units): (usize, &[CopyUnit]),
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
        copied: &mut Copied,
    ) -> Result<usize, VolumeError> {
        let Some(first) = units.first() else {
            return Ok(0);
        };
        let all: usize = units.iter().map(|unit| unit.length).sum();
        let mapping = map.map(first.at, bytes_of(all))?;
        let border = first.at.saturating_add(mapping.length);
        // At least one, even if it lies across the border.
        let count = units.partition_point(|unit| unit.end() <= border).max(1);
        let units = units.get(..count).unwrap_or(units);
        let length: usize = units.iter().map(|unit| unit.length).sum();
        let mut places = Vec::new();
        let mut start = 0_usize;
        for piece in pieces_of(map, first.at, length)? {
            let end = start.saturating_add(piece.length());
            let own = piece.mapping.copies.iter().filter(|copy| copy.device == id);
            places.extend(own.map(|copy| Place {
                part: start..end,
                offset: copy.offset,
            }));
            start = end;
        }
        if places.is_empty() {
            return Ok(count);
        }
        let mut claims = Claims::default();
        let ranges: Vec<_> = places.iter().map(Place::range).collect();
        claims.add(target, &ranges);
        let mut buffer = vec![0; length];
        self.read_units(units, before, &mut buffer, verify, copied);
        for place in places {
            let part = buffer.get(place.part).unwrap_or_default();
            let physical = Physical {
                device: id,
                offset: place.offset,
            };
            check_superblocks(first.at, physical, part.len())?;
            target.write(place.offset, &[IoSlice::new(part)]);
            copied.bytes = copied.bytes.saturating_add(bytes_of(part.len()));
        }
        Ok(count)
    }

    /// Copies the element that device `id` has of the first row. Returns the
    /// number of `units` in that row.
    fn copy_row(
        &self,
        (id, target): (DeviceId, &Arc<ReplaceTarget>),
        map: &ChunkMap,
        (before, units): (usize, &[CopyUnit]),
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
        copied: &mut Copied,
    ) -> Result<usize, VolumeError> {
        let Some(first) = units.first() else {
            return Ok(0);
        };
        let unmapped = VolumeError::Unmapped {
            logical: first.at,
            length: bytes_of(first.length),
        };
        let (start, row) = map.row(first.at).ok_or(unmapped)?;
        let data = row.elements.len().saturating_sub(row.parities);
        let end = start.saturating_add(ELEMENT.saturating_mul(bytes_of(data)));
        let count = units.partition_point(|unit| unit.at < end);
        let units = units.get(..count).unwrap_or(units);
        let _nobody_writes = self.hold_row_at(start);
        let own = row.elements.iter().position(|place| place.device == id);
        let Some((own, place)) = own.and_then(|own| Some((own, row.elements.get(own)?))) else {
            return Ok(count);
        };
        // A parity is computed from all data.
        let from = if own < data { own } else { 0 };
        let to = if own < data {
            own.saturating_add(1)
        } else {
            data
        };
        let first_byte = start.saturating_add(ELEMENT.saturating_mul(bytes_of(from)));
        let last_byte = start.saturating_add(ELEMENT.saturating_mul(bytes_of(to)));
        let skipped = units.partition_point(|unit| unit.at < first_byte);
        let wanted = units.partition_point(|unit| unit.at < last_byte);
        let wanted = units.get(skipped..wanted).unwrap_or_default();
        let length: usize = wanted.iter().map(|unit| unit.length).sum();
        let mut buffer = vec![0; length];
        let index = before.saturating_add(skipped);
        self.read_units(wanted, index, &mut buffer, verify, copied);
        let element = crate::memory_of(ELEMENT);
        if own >= data {
            let mut columns: Vec<Vec<u8>> = buffer.chunks(element).map(<[u8]>::to_vec).collect();
            columns.resize(row.elements.len(), vec![0; element]);
            let parities: Vec<usize> = (data..columns.len()).collect();
            parity::solve(&mut columns, row.parities, &parities);
            buffer = columns.swap_remove(own);
        }
        check_superblocks(start, *place, buffer.len())?;
        target.write(place.offset, &[IoSlice::new(&buffer)]);
        copied.bytes = copied.bytes.saturating_add(bytes_of(buffer.len()));
        Ok(count)
    }

    /// Fills a buffer with units, each from a good copy or else from one that
    /// can be read. `before` is the number of units before these.
    fn read_units(
        &self,
        units: &[CopyUnit],
        before: usize,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
        copied: &mut Copied,
    ) {
        let Some(first) = units.first() else { return };
        let is_read = self.read_first(first.at, buffer).is_ok();
        let mut rest = buffer;
        for (index, unit) in (before..).zip(units) {
            let (part, later) = rest.split_at_mut(unit.length.min(rest.len()));
            rest = later;
            if is_read && verify(index, part) {
                continue;
            }
            match self.read_verified(unit.at, part, &mut |bytes| verify(index, bytes)) {
                Ok(_) => {}
                Err(_) if self.read(unit.at, part).is_ok() => copied.bad.push(index),
                Err(_) => {
                    part.fill(0);
                    copied.unreadable.push(index);
                }
            }
        }
    }
}
