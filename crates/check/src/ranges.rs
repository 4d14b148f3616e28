//! Sorted ranges of logical addresses; ranges that touch are joined.

use crate::budget::bytes_of;
use std::ops::Range;

/// Bytes of memory for each range, while the list of ranges grows.
const RANGE_BYTES: u64 = 32;

/// Ascending ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds a range that begins no earlier than the last one begins. If the two
    /// overlap or touch, they are joined.
    #[inline]
    pub(crate) fn push(&mut self, start: u64, end: u64) {
        if let Some((_, last)) = self.0.last_mut()
            && start <= *last
        {
            *last = end.max(*last);
            return;
        }
        if start < end {
            self.0.push((start, end));
        }
    }

    /// Makes sorted ranges from a list in any order.
    pub(crate) fn of(mut all: Vec<(u64, u64)>) -> Self {
        all.sort_unstable();
        let mut out = Self::default();
        for (start, end) in all {
            out.push(start, end);
        }
        out
    }

    /// Adds ranges that lie after those of `self`.
    pub(crate) fn append(&mut self, later: Self) {
        if self.0.is_empty() {
            *self = later;
            return;
        }
        let mut later = later.0.into_iter();
        if let Some((start, end)) = later.next() {
            self.push(start, end);
        }
        self.0.extend(later);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory(&self) -> u64 {
        bytes_of(self.len(), RANGE_BYTES)
    }

    /// Bytes in all ranges.
    pub(crate) fn bytes(&self) -> u64 {
        self.iter().fold(0, |sum: u64, range| {
            sum.saturating_add(range.end.saturating_sub(range.start))
        })
    }

    /// The parts of ranges that lie within `bounds`.
    pub(crate) fn within(&self, bounds: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|(_, end)| *end <= bounds.start);
        let rest = self.0.get(first..).unwrap_or_default();
        rest.iter()
            .take_while(move |(start, _)| *start < bounds.end)
            .map(move |(start, end)| (*start).max(bounds.start)..(*end).min(bounds.end))
    }

    /// A copy of the parts that lie within `bounds`.
    pub(crate) fn part(&self, bounds: Range<u64>) -> Self {
        Self(
            self.within(bounds)
                .map(|range| (range.start, range.end))
                .collect(),
        )
    }

    /// Bytes of `bounds` that are in ranges.
    pub(crate) fn bytes_within(&self, bounds: Range<u64>) -> u64 {
        self.within(bounds).fold(0, |sum: u64, range| {
            sum.saturating_add(range.end.saturating_sub(range.start))
        })
    }

    /// The parts of `bounds` that are in no range.
    pub(crate) fn gaps_within(&self, bounds: Range<u64>) -> Self {
        let mut gaps = Self::default();
        let mut at = bounds.start;
        for range in self.within(bounds.clone()) {
            gaps.push(at, range.start);
            at = range.end;
        }
        gaps.push(at, bounds.end);
        gaps
    }

    /// The parts of `self` that are not in `other`.
    pub(crate) fn without(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for range in self.iter() {
            for gap in other.gaps_within(range).iter() {
                out.push(gap.start, gap.end);
            }
        }
        out
    }

    /// The parts that are in `self`, in `other` or in both.
    pub(crate) fn union(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    fn of(list: &[(u64, u64)]) -> Ranges {
        let mut ranges = Ranges::default();
        for (start, end) in list {
            ranges.push(*start, *end);
        }
        ranges
    }

    #[test]
    fn sets_of_ranges() {
        let a = of(&[(0, 10), (10, 12), (20, 30)]);
        assert_eq!(a.len(), 2);
        assert_eq!(a.bytes(), 22);
        assert_eq!(a.bytes_within(5..25), 12);
        assert_eq!(a.gaps_within(5..40), of(&[(12, 20), (30, 40)]));
        assert_eq!(a.gaps_within(0..12), of(&[]));
        let b = of(&[(5, 22)]);
        assert_eq!(a.without(&b), of(&[(0, 5), (22, 30)]));
        assert_eq!(a.union(&b), of(&[(0, 30)]));
        let mut c = of(&[(0, 5)]);
        c.append(of(&[(5, 6), (8, 9)]));
        assert_eq!(c, of(&[(0, 6), (8, 9)]));
    }
}
