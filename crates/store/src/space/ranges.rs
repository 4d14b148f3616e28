//! Sets of byte ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Disjoint, coalesced ranges of bytes. The greatest one is at hand.
#[derive(Clone, Debug, Default)]
pub struct RangeSet {
    by_start: BTreeMap<u64, u64>,
    /// (length, start) of the same ranges.
    by_length: BTreeSet<(u64, u64)>,
    total: u64,
}

impl RangeSet {
    /// Bytes in all ranges.
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.by_start.len()
    }

    /// True without ranges.
    pub fn is_empty(&self) -> bool {
        self.by_start.is_empty()
    }

    /// All ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_start
            .iter()
            .map(|(start, length)| *start..start + length)
    }

    /// Ranges that overlap `window`, cut to it.
    pub fn overlapping(&self, window: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .by_start
            .range(..=window.start)
            .next_back()
            .filter(|(start, length)| **start + **length > window.start)
            .map_or(window.start, |(start, _)| *start);
        let end = window.end;
        self.by_start
            .range(first..end.max(first))
            .map(move |(start, length)| (*start).max(window.start)..(start + length).min(end))
            .filter(|range| !range.is_empty())
    }

    /// The greatest range.
    pub fn greatest_range(&self) -> Option<Range<u64>> {
        let (length, start) = *self.by_length.last()?;
        Some(start..start + length)
    }

    /// Length of the greatest range.
    pub fn greatest(&self) -> u64 {
        self.by_length.last().map_or(0, |(length, _)| *length)
    }

    fn add(&mut self, start: u64, length: u64) {
        self.by_start.insert(start, length);
        self.by_length.insert((length, start));
        self.total += length;
    }

    fn delete(&mut self, start: u64, length: u64) {
        self.by_start.remove(&start);
        self.by_length.remove(&(length, start));
        self.total -= length;
    }

    /// Adds `range`, which may overlap or touch what is there.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&other, &length)) = self.by_start.range(..=end).next_back() {
            if other + length < start {
                break;
            }
            self.delete(other, length);
            start = start.min(other);
            end = end.max(other + length);
        }
        self.add(start, end - start);
    }

    /// Removes whatever of `range` is there.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some((&start, &length)) = self.by_start.range(..range.end).next_back() {
            let end = start + length;
            if end <= range.start {
                break;
            }
            self.delete(start, length);
            if end > range.end {
                self.add(range.end, end - range.end);
            }
            if start < range.start {
                self.add(start, range.start - start);
            }
        }
    }

    /// True when all of `range` is in the set.
    pub fn contains(&self, range: &Range<u64>) -> bool {
        self.by_start
            .range(..=range.start)
            .next_back()
            .is_some_and(|(start, length)| start + length >= range.end)
    }

    /// Takes `length` bytes at a multiple of `align`: from the first range at
    /// or after `from` that has them, or else from any range before it.
    pub fn take(&mut self, from: u64, length: u64, align: u64) -> Option<u64> {
        if self.greatest() < length {
            return None;
        }
        let fits = |start: u64, have: u64| {
            let aligned = start.next_multiple_of(align);
            (aligned + length <= start + have).then_some(aligned)
        };
        let inside = self
            .by_start
            .range(..from)
            .next_back()
            .filter(|(start, have)| **start + **have > from)
            .and_then(|(start, have)| fits(from, start + have - from));
        let found = inside.or_else(|| {
            let after = self.by_start.range(from..);
            let before = self.by_start.range(..from);
            // The search is bounded. Beyond that, the best fit is as good as
            // the nearest range.
            after
                .chain(before)
                .take(64)
                .find_map(|(start, have)| fits(*start, *have))
                .or_else(|| {
                    self.by_length
                        .range((length, 0)..)
                        .find_map(|(have, start)| fits(*start, *have))
                })
        })?;
        self.remove(found..found + length);
        Some(found)
    }

    /// Takes the greatest range, at most `most` bytes of it.
    pub fn take_greatest(&mut self, most: u64) -> Option<Range<u64>> {
        let (length, start) = *self.by_length.last()?;
        let taken = start..start + length.min(most);
        self.remove(taken.clone());
        Some(taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random operations, compared with a bitmap of 512 bits.
    #[test]
    fn behaves_like_a_bitmap() {
        let mut seed = 42_u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut set = RangeSet::default();
        let mut bits = [false; 512];
        for _ in 0..20_000 {
            let start = random(500);
            let end = (start + 1 + random(20)).min(512);
            match random(4) {
                0 | 1 => {
                    set.insert(start..end);
                    bits[start as usize..end as usize].fill(true);
                }
                2 => {
                    set.remove(start..end);
                    bits[start as usize..end as usize].fill(false);
                }
                _ => {
                    let length = 1 + random(16);
                    let align = 1 << random(3);
                    if let Some(at) = set.take(start, length, align) {
                        assert_eq!(at % align, 0);
                        let taken = &mut bits[at as usize..(at + length) as usize];
                        assert!(taken.iter().all(|bit| *bit));
                        taken.fill(false);
                    }
                }
            }
            let total = bits.iter().filter(|bit| **bit).count() as u64;
            assert_eq!(set.total(), total);
            let mut runs = Vec::new();
            for (at, bit) in bits.iter().enumerate() {
                let at = at as u64;
                match runs.last_mut() {
                    Some(Range { end, .. }) if *bit && *end == at => *end = at + 1,
                    _ if *bit => runs.push(at..at + 1),
                    _ => {}
                }
            }
            assert!(set.iter().eq(runs.iter().cloned()));
            assert_eq!(
                set.greatest(),
                runs.iter().map(|r| r.end - r.start).max().unwrap_or(0)
            );
            let window = start..end;
            let cut: Vec<_> = set.overlapping(window.clone()).collect();
            let count: u64 = cut.iter().map(|r| r.end - r.start).sum();
            assert_eq!(
                count,
                window.clone().filter(|at| bits[*at as usize]).count() as u64
            );
        }
    }
}
