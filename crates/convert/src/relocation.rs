//! Copies of what ext4 has where Btrfs reserves space.
//!
//! The image and files refer to the copies. What lies in the reserved ranges
//! themselves is overwritten only where Btrfs puts its superblocks.

use crate::error::ConvertError;
use crate::ground::{CELL, Ground, Kind, Room, down, used_sectors};
use crate::source::Old;
use butterfs_device::BlockDevice;
use butterfs_format::{DeviceOffset, TreeId};
use std::collections::BTreeMap;
use std::ops::Range;

/// Who refers to a copy: tree, inode, and the offset of the file at which the
/// copy would begin.
pub(crate) type Referrer = (TreeId, u64, u64);

/// A copy of used sectors.
#[derive(Clone, Debug)]
pub(crate) struct Relocation {
    /// Where they lie in the old file system.
    pub(crate) from: Range<u64>,
    /// Where the copy lies.
    pub(crate) to: u64,
    /// References to the copy, with their counts.
    pub(crate) referrers: BTreeMap<Referrer, u32>,
}

impl Relocation {
    /// The bytes of the copy.
    pub(crate) const fn copy(&self) -> Range<u64> {
        self.to..self.to + (self.from.end - self.from.start)
    }
}

/// All copies, in the order of what they are copies of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relocations(pub(crate) Vec<Relocation>);

impl Relocations {
    /// Takes room for all that must be copied.
    ///
    /// # Errors
    /// Reading bitmaps; no room.
    pub(crate) fn plan(old: &Old, ground: &Ground, room: &mut Room) -> Result<Self, ConvertError> {
        let mut all: Vec<Relocation> = Vec::new();
        let mut missing = 0_u64;
        used_sectors(old, &mut |used| {
            ground.cut(used, &mut |part, kind| {
                let mut at = part.start;
                while kind == Kind::Reserved && at < part.end {
                    let cell = down(at, CELL).saturating_add(CELL).min(part.end);
                    let Some(taken) = room.take(cell - at) else {
                        missing = missing.saturating_add(part.end - at);
                        break;
                    };
                    let end = at.saturating_add(taken.end - taken.start);
                    all.push(Relocation {
                        from: at..end,
                        to: taken.start,
                        referrers: BTreeMap::new(),
                    });
                    at = end;
                }
                Ok(())
            })
        })?;
        match missing {
            0 => Ok(Self(all)),
            missing => Err(ConvertError::NoSpace {
                needed: missing,
                missing,
            }),
        }
    }

    /// Visits the parts of a reserved range with the number of their copy.
    ///
    /// # Errors
    /// A byte of the range has no copy, because the bitmap calls it free; what
    /// `visit` returns.
    pub(crate) fn each(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(usize, Range<u64>) -> Result<(), ConvertError>,
    ) -> Result<(), ConvertError> {
        let mut at = range.start;
        while at < range.end {
            let number = self.0.partition_point(|one| one.from.end <= at);
            let found = self.0.get(number).filter(|one| one.from.start <= at);
            let one = found.ok_or(ConvertError::Blocks {
                at,
                what: "belongs to a file, but is called free",
            })?;
            let end = one.from.end.min(range.end);
            visit(number, at..end)?;
            at = end;
        }
        Ok(())
    }

    /// The parts of reserved ranges that have no copy: they are called free.
    pub(crate) fn free(&self, ground: &Ground) -> Vec<Range<u64>> {
        let mut free = Vec::new();
        for reserved in &ground.reserved {
            let mut at = reserved.start;
            let first = self.0.partition_point(|one| one.from.end <= at);
            let within = self.0.get(first..).unwrap_or_default().iter();
            for one in within.take_while(|one| one.from.start < reserved.end) {
                free.push(at..one.from.start);
                at = one.from.end;
            }
            free.push(at..reserved.end);
        }
        free.retain(|range| !range.is_empty());
        free
    }

    /// Notes a reference to a copy.
    pub(crate) fn refer(&mut self, number: usize, referrer: Referrer) {
        if let Some(one) = self.0.get_mut(number) {
            let count = one.referrers.entry(referrer).or_insert(0);
            *count = count.saturating_add(1);
        }
    }

    /// Makes the copies. What is behind the end of the old file system is zero
    /// in them.
    ///
    /// # Errors
    /// The device.
    pub(crate) fn write(
        &self,
        device: &dyn BlockDevice,
        ground: &Ground,
    ) -> Result<(), ConvertError> {
        for one in &self.0 {
            let length = usize::try_from(one.from.end - one.from.start).unwrap_or(0);
            let mut bytes = vec![0; length];
            let known = ground.size.min(one.from.end).saturating_sub(one.from.start);
            let known = usize::try_from(known).unwrap_or(0);
            if let Some(target) = bytes.get_mut(..known) {
                device.read_at(DeviceOffset(one.from.start), target)?;
            }
            device.write_at(DeviceOffset(one.to), &bytes)?;
        }
        Ok(())
    }
}
