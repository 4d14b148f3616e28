//! Which bytes of the device are what: used by ext4, free, reserved by Btrfs.

use crate::error::ConvertError;
use butterfs_ext4::{FileSystem, Source};
use butterfs_format::superblock::{COPIES, COPY_SPAN, RESERVED};
use std::ops::Range;

/// Bytes of a sector of the new volume.
pub(crate) const SECTOR: u64 = 4096;
/// Chunks begin and end at multiples of this.
pub(crate) const CELL: u64 = 64 << 10;
/// No chunk of data, and no extent, reaches over a multiple of this.
pub(crate) const SLAB: u64 = 1 << 30;
/// The most bytes of an extent. None reaches over a multiple of this, so that
/// the same bytes are always cut at the same places.
pub(crate) const EXTENT_MAX: u64 = 128 << 20;
/// The most runs of free space that are remembered, the longest ones.
const RUNS_MAX: usize = 1 << 20;
/// A volume cannot be smaller.
const SIZE_MIN: u64 = 4 << 20;

/// Rounds down to a multiple of `unit`, a power of two.
pub(crate) const fn down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

/// Rounds up to a multiple of `unit`, a power of two.
pub(crate) const fn up(value: u64, unit: u64) -> u64 {
    down(value.saturating_add(unit - 1), unit)
}

/// Where the old file system ends, and the ranges that Btrfs reserves.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    /// Bytes of the old file system.
    pub(crate) size: u64,
    /// Bytes of the new volume: whole sectors.
    pub(crate) total: u64,
    /// Where chunks end at the latest: whole cells.
    pub(crate) end: u64,
    /// Where no chunk's data lie, ascending: the beginning, copies of the
    /// superblock, what is behind the last whole cell.
    pub(crate) reserved: Vec<Range<u64>>,
}

impl Ground {
    /// Of an ext4 file system.
    ///
    /// # Errors
    /// It is too small.
    pub(crate) fn of<S: Source>(old: &FileSystem<S>) -> Result<Self, ConvertError> {
        let superblock = old.superblock();
        let size = superblock.blocks.saturating_mul(superblock.block_size());
        if size < SIZE_MIN {
            return Err(ConvertError::Refused(
                "the file system is smaller than 4 MiB; no Btrfs volume is",
            ));
        }
        Ok(Self::of_size(size))
    }

    /// Of an ext4 file system of `size` bytes.
    pub(crate) fn of_size(size: u64) -> Self {
        let end = down(size, CELL);
        let copies = COPIES.iter().skip(1).map(|copy| copy.get());
        let copies = copies
            .filter(|at| *at < end)
            .map(|at| at..at.saturating_add(COPY_SPAN).min(end));
        let mut reserved: Vec<_> = std::iter::once(0..RESERVED).chain(copies).collect();
        if end < size {
            reserved.push(end..up(size, SECTOR));
        }
        Self {
            size,
            total: down(size, SECTOR),
            end,
            reserved,
        }
    }

    /// Cuts a range of the device where a reserved range begins or ends, and at
    /// multiples of [`EXTENT_MAX`].
    pub(crate) fn cut<E>(
        &self,
        range: Range<u64>,
        visit: &mut dyn FnMut(Range<u64>, Kind) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = range.start;
        while at < range.end {
            let reserved = self.reserved.iter().find(|one| at < one.end);
            let (mut end, kind) = match reserved {
                Some(one) if one.start <= at => (one.end, Kind::Reserved),
                Some(one) => (one.start, Kind::Usable),
                None => (u64::MAX, Kind::Usable),
            };
            end = end.min(range.end);
            if kind == Kind::Usable {
                end = end.min(down(at, EXTENT_MAX).saturating_add(EXTENT_MAX));
            }
            visit(at..end, kind)?;
            at = end;
        }
        Ok(())
    }
}

/// What a part of the device is to the new volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Data may stay.
    Usable,
    /// Data must be copied.
    Reserved,
}

/// Visits what ext4 uses, in whole sectors, ascending and apart.
///
/// # Errors
/// Reading bitmaps, and what `visit` returns.
pub(crate) fn used_sectors<S: Source>(
    old: &FileSystem<S>,
    visit: &mut dyn FnMut(Range<u64>) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let superblock = old.superblock();
    let size = superblock.block_size();
    // Blocks before the first group: with 1 KiB blocks, the boot block.
    let first = u64::from(superblock.first_block).saturating_mul(size);
    let mut run = 0..up(first, SECTOR);
    for group in 0..superblock.groups() {
        for blocks in old.used_blocks_of(group)? {
            let from = down(blocks.start.saturating_mul(size), SECTOR);
            let to = up(blocks.end.saturating_mul(size), SECTOR);
            if from <= run.end {
                run.end = run.end.max(to);
                continue;
            }
            if !run.is_empty() {
                visit(run)?;
            }
            run = from..to;
        }
    }
    match run.is_empty() {
        true => Ok(()),
        false => visit(run),
    }
}

/// The runs of whole free cells, ascending.
///
/// # Errors
/// Reading bitmaps.
pub(crate) fn free_runs<S: Source>(
    old: &FileSystem<S>,
    ground: &Ground,
) -> Result<Vec<Range<u64>>, ConvertError> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    let mut add = |free: Range<u64>| {
        let cut = ground.cut::<ConvertError>(free, &mut |part, kind| {
            let whole = up(part.start, CELL)..down(part.end, CELL);
            if kind == Kind::Usable && whole.start < whole.end {
                match runs.last_mut() {
                    Some(last) if last.end == whole.start && !whole.start.is_multiple_of(SLAB) => {
                        last.end = whole.end;
                    }
                    _ => runs.push(whole),
                }
            }
            Ok(())
        });
        if runs.len() > RUNS_MAX.saturating_mul(2) {
            keep_longest(&mut runs);
        }
        cut
    };
    used_sectors(old, &mut |used| {
        add(at..used.start.min(ground.end))?;
        at = used.end;
        Ok(())
    })?;
    add(at..ground.end)?;
    keep_longest(&mut runs);
    Ok(runs)
}

fn keep_longest(runs: &mut Vec<Range<u64>>) {
    if runs.len() <= RUNS_MAX {
        return;
    }
    runs.sort_unstable_by_key(|run| std::cmp::Reverse(run.end - run.start));
    runs.truncate(RUNS_MAX);
    runs.sort_unstable_by_key(|run| run.start);
}

/// Free cells for copies of data: taken from the longest run on.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// The longest first.
    runs: Vec<Range<u64>>,
    /// Which of them is being taken from.
    number: usize,
    /// What was taken, in order.
    pub(crate) taken: Vec<Range<u64>>,
}

impl Room {
    /// All of these runs.
    pub(crate) fn new(mut runs: Vec<Range<u64>>) -> Self {
        runs.sort_by_key(|run| (std::cmp::Reverse(run.end - run.start), run.start));
        Self {
            runs,
            number: 0,
            taken: Vec::new(),
        }
    }

    /// Takes at most `length` bytes, whole sectors; `None` if nothing is left.
    pub(crate) fn take(&mut self, length: u64) -> Option<Range<u64>> {
        loop {
            let run = self.runs.get_mut(self.number)?;
            if run.is_empty() {
                self.number = self.number.saturating_add(1);
                continue;
            }
            let slab = down(run.start, SLAB).saturating_add(SLAB);
            let end = run
                .start
                .saturating_add(length.min(EXTENT_MAX))
                .min(run.end)
                .min(slab);
            let taken = run.start..end;
            run.start = end;
            match self.taken.last_mut() {
                Some(last) if last.end == taken.start => last.end = taken.end,
                _ => self.taken.push(taken.clone()),
            }
            return Some(taken);
        }
    }

    /// What is left, in whole cells.
    pub(crate) fn left(&self) -> Vec<Range<u64>> {
        let whole = |run: &Range<u64>| up(run.start, CELL)..run.end;
        let mut left: Vec<_> = self.runs.iter().map(whole).collect();
        left.retain(|run| run.start < run.end);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_where_btrfs_has_its_own() {
        let ground = Ground::of_size((3 << 30) + 5000);
        let mut parts = Vec::new();
        let range = (1 << 20) - 4096..(64 << 20) + 70000;
        ground
            .cut::<()>(range, &mut |part, kind| {
                parts.push((part, kind));
                Ok(())
            })
            .unwrap();
        assert_eq!(
            parts,
            [
                ((1 << 20) - 4096..1 << 20, Kind::Reserved),
                (1 << 20..64 << 20, Kind::Usable),
                (64 << 20..(64 << 20) + 65536, Kind::Reserved),
                ((64 << 20) + 65536..(64 << 20) + 70000, Kind::Usable),
            ]
        );
        assert_eq!(ground.total, (3 << 30) + 4096);
        assert_eq!(ground.reserved.last(), Some(&((3 << 30)..(3 << 30) + 8192)));
    }

    #[test]
    fn room_ends_at_slabs_and_begins_with_the_longest() {
        let mut room = Room::new(vec![1 << 20..2 << 20, SLAB - CELL..SLAB + (2 << 20)]);
        assert_eq!(room.take(1 << 20), Some(SLAB - CELL..SLAB));
        assert_eq!(room.take(4096), Some(SLAB..SLAB + 4096));
        assert_eq!(
            room.left(),
            [SLAB + CELL..SLAB + (2 << 20), 1 << 20..2 << 20]
        );
    }
}
