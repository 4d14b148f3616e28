//! Block groups with parity, where space is given out by rows.
//!
//! A write to a part of a row changes the parity of the whole row. A power cut
//! in between leaves a parity that does not match. If a device is lost then,
//! other data of the row are lost with it. So the data of a commit share no row
//! with anything that is written later: nodes share a row only with nodes of
//! the same generation, and an extent of data shares its rows with nothing.
//!
//! The free part of a partly used row stays unused until all of the row is
//! free. Only when nothing else is left is it used, in place, as the kernel
//! always does.

use super::SpaceMap;
use super::block_group::BlockGroup;
use super::ranges::RangeSet;
use crate::space::kind::SpaceKind;
use butterfs_format::Logical;
use std::ops::Range;

/// Bytes of `range` that are in a set.
fn covered(set: &RangeSet, range: &Range<u64>) -> u64 {
    let parts = set.overlapping(range.clone());
    parts.map(|part| part.end - part.start).sum()
}

impl BlockGroup {
    /// The row that `at` lies in.
    fn row_at(&self, at: u64, row: u64) -> Range<u64> {
        let start = self.start.get();
        let first = start + (at - start) / row * row;
        first..(first + row).min(self.end())
    }

    /// Whether nothing uses a range.
    pub fn is_free(&self, range: &Range<u64>) -> bool {
        self.free.as_ref().is_none_or(|free| {
            let both = covered(free, range) + covered(&self.left_over, range);
            both == range.end - range.start
        })
    }

    /// Returns space that nothing uses any more.
    pub fn release(&mut self, range: Range<u64>) {
        let Some(free) = &mut self.free else {
            return;
        };
        let Some(row) = self.row else {
            free.insert(range);
            return;
        };
        self.left_over.insert(range.clone());
        let mut at = range.start;
        while at < range.end {
            let whole = self.row_at(at, row);
            at = whole.end;
            if self.is_free(&whole)
                && let Some(free) = &mut self.free
            {
                self.left_over.remove(whole.clone());
                free.insert(whole);
            }
        }
    }

    /// Takes space that was found elsewhere.
    pub fn claim(&mut self, range: &Range<u64>) {
        if let Some(free) = &mut self.free {
            free.remove(range.clone());
            self.left_over.remove(range.clone());
            self.leave_rows_of(range);
        }
    }

    /// Sets aside what is free in the rows that a range uses partly.
    pub fn leave_rows_of(&mut self, range: &Range<u64>) {
        let Some(row) = self.row else {
            return;
        };
        if range.is_empty() {
            return;
        }
        for at in [range.start, range.end - 1] {
            let whole = self.row_at(at, row);
            self.leave(&whole);
        }
    }

    fn leave(&mut self, range: &Range<u64>) {
        let Some(free) = &mut self.free else {
            return;
        };
        let parts: Vec<_> = free.overlapping(range.clone()).collect();
        if parts.first() == Some(range) {
            return;
        }
        for part in parts {
            free.remove(part.clone());
            self.left_over.insert(part);
        }
    }

    /// Sets aside what is free in rows that are partly used.
    pub fn leave_rows(&mut self) {
        let (Some(row), Some(free)) = (self.row, &self.free) else {
            return;
        };
        let partly = |range: Range<u64>| {
            let ends = [range.start, range.end - 1];
            ends.map(|at| self.row_at(at, row))
        };
        let rows: Vec<_> = free.iter().flat_map(partly).collect();
        for whole in rows {
            self.leave(&whole);
        }
    }

    /// Gives out, from now on, what was set aside. False if there is nothing.
    fn use_left_over(&mut self) -> bool {
        if self.left_over.is_empty() || self.read_only {
            return false;
        }
        self.row = None;
        let left_over = std::mem::take(&mut self.left_over);
        if let Some(free) = &mut self.free {
            for range in left_over.iter() {
                free.insert(range);
            }
        }
        true
    }
}

impl SpaceMap {
    /// Closes the rows of everything written so far. Later nodes get other
    /// rows.
    pub(super) fn leave_rows(&mut self) {
        if self.has_rows() {
            for start in self.groups_with_rows() {
                self.groups.change(start, BlockGroup::leave_rows);
            }
        }
    }

    /// Whether some block group has parity.
    pub(crate) fn has_rows(&self) -> bool {
        let kinds = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System];
        let mut flags = kinds
            .into_iter()
            .flat_map(|kind| self.groups.flags_of(kind));
        flags.any(super::block_group::has_parity)
    }

    /// Block groups with parity.
    pub(crate) fn groups_with_rows(&self) -> Vec<Logical> {
        let with = self.groups.values().filter(|group| group.row.is_some());
        with.map(|group| group.start).collect()
    }

    /// Gives out what was set aside in block groups of `kind`, if nothing else
    /// is left. False if there is nothing.
    pub(crate) fn use_left_over(&mut self, kind: SpaceKind) -> bool {
        let mut found = false;
        for start in self.groups_with_rows() {
            let changed = self.groups.change(start, |group| {
                group.flags.contains(kind.flag()) && group.use_left_over()
            });
            found |= changed.unwrap_or(false);
        }
        if found {
            tracing::warn!(
                "no whole rows with parity are free: parts of rows are written in place, and a \
                 power cut together with the loss of a device may damage what lies beside them"
            );
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::block_group::Standing;
    use butterfs_format::item::chunk::BlockGroupFlags;

    const ROW: u64 = 3 * 65536;
    const START: u64 = 5 * 65536;

    fn group() -> BlockGroup {
        let mut free = RangeSet::default();
        free.insert(START..START + 10 * ROW);
        BlockGroup {
            start: Logical(START),
            length: 10 * ROW,
            flags: BlockGroupFlags::METADATA | BlockGroupFlags::RAID5,
            used: 0,
            promised: 0,
            pinned: 0,
            excluded: Vec::new(),
            free: Some(free),
            cursor: START,
            dirty: false,
            standing: Standing::Committed,
            read_only: false,
            row: Some(ROW),
            left_over: RangeSet::default(),
        }
    }

    #[test]
    fn later_generations_get_other_rows() {
        let mut group = group();
        let first = group.take(16384, 16384).unwrap();
        let second = group.take(16384, 16384).unwrap();
        assert_eq!(group.row_at(first, ROW), group.row_at(second, ROW));
        group.leave_rows();
        let third = group.take(16384, 16384).unwrap();
        assert_ne!(group.row_at(first, ROW), group.row_at(third, ROW));
        assert_eq!(group.available(), 10 * ROW - 3 * 16384);
        // All of the first row is free again.
        group.release(first..first + 16384);
        assert!(
            !group
                .free
                .as_ref()
                .unwrap()
                .contains(&(first..first + 16384))
        );
        group.release(second..second + 16384);
        let row = group.row_at(first, ROW);
        assert!(group.free.as_ref().unwrap().contains(&row));
        group.leave_rows();
        let mut taken = Vec::new();
        while let Some(at) = group.take(16384, 16384) {
            taken.push(at);
        }
        assert!(
            taken
                .iter()
                .all(|at| group.row_at(*at, ROW) != group.row_at(third, ROW))
        );
        assert!(group.use_left_over());
        let beside = group.take(16384, 16384).unwrap();
        assert_eq!(group.row_at(beside, ROW), group.row_at(third, ROW));
    }

    /// Compared with a plain count: whatever is taken and released, each byte
    /// is free once or not at all, and no partly used row is given out.
    #[test]
    fn nothing_is_lost_and_nothing_shared() {
        let mut seed = 7_u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let mut group = group();
        let mut used: Vec<Range<u64>> = Vec::new();
        for _ in 0..5000 {
            if random(2) == 0 {
                let length = 4096 * (1 + random(100));
                if let Some(at) = group.take(length, 4096) {
                    let range = at..at + length;
                    group.leave_rows_of(&range);
                    let rows = |range: &Range<u64>| {
                        let row = |at| group.row_at(at, ROW).start;
                        row(range.start)..row(range.end - 1) + 1
                    };
                    let own = rows(&range);
                    let shares = |other: &Range<u64>| {
                        let other = rows(other);
                        own.start < other.end && other.start < own.end
                    };
                    assert!(!used.iter().any(shares));
                    used.push(range);
                }
            } else if !used.is_empty() {
                let range = used.swap_remove(random(used.len() as u64) as usize);
                group.release(range);
            }
            let in_use: u64 = used.iter().map(|range| range.end - range.start).sum();
            assert_eq!(group.available(), 10 * ROW - in_use);
        }
    }
}
