//! Sets of numbers that are mostly consecutive.

use std::collections::BTreeMap;

/// A set of numbers, as ranges.
#[derive(Clone, Debug, Default)]
pub(crate) struct NumberSet {
    /// First and last number of each range; ranges do not touch.
    ranges: BTreeMap<u64, u64>,
}

impl NumberSet {
    pub(crate) fn insert(&mut self, number: u64) {
        let before = self.ranges.range(..=number).next_back();
        let mut start = number;
        if let Some((first, last)) = before {
            if *last >= number {
                return;
            }
            if last.saturating_add(1) == number {
                start = *first;
            }
        }
        let next = number.checked_add(1);
        let joined = next.and_then(|next| self.ranges.remove(&next));
        self.ranges.insert(start, joined.unwrap_or(number));
    }

    pub(crate) fn contains(&self, number: u64) -> bool {
        let before = self.ranges.range(..=number).next_back();
        before.is_some_and(|(_, last)| *last >= number)
    }
}

/// Ascending byte ranges `start..end`; those that touch are joined.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteRanges(Vec<(u64, u64)>);

impl ByteRanges {
    /// Adds a range.
    pub(crate) fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        if let Some((_, last)) = self.0.last_mut()
            && *last == start
        {
            *last = end;
            return;
        }
        let at = self.0.partition_point(|(_, other)| *other < start);
        let mut merged = (start, end);
        let mut until = at;
        while let Some((first, last)) = self.0.get(until)
            && *first <= end
        {
            merged = (merged.0.min(*first), merged.1.max(*last));
            until = until.saturating_add(1);
        }
        self.0.splice(at..until, [merged]);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().copied()
    }

    /// What of `0..end` is not in them.
    pub(crate) fn gaps(&self, end: u64) -> Self {
        let mut gaps = Self::default();
        let mut at = 0;
        for (start, stop) in self.iter() {
            gaps.add(at, start.min(end));
            at = at.max(stop);
        }
        gaps.add(at, end);
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order() {
        let mut set = NumberSet::default();
        for number in [5, 7, 6, 1, u64::MAX, 2, 5, 0] {
            set.insert(number);
        }
        let inside = [0, 1, 2, 5, 6, 7, u64::MAX];
        assert!(inside.iter().all(|number| set.contains(*number)));
        assert!([3, 4, 8].iter().all(|number| !set.contains(*number)));
        assert_eq!(set.ranges.len(), 3);
    }

    #[test]
    fn bytes_in_any_order() {
        let mut ranges = ByteRanges::default();
        for (start, end) in [(10, 20), (40, 50), (0, 5), (20, 25), (4, 11), (60, 60)] {
            ranges.add(start, end);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 25), (40, 50)]);
        let gaps: Vec<_> = ranges.gaps(60).iter().collect();
        assert_eq!(gaps, [(25, 40), (50, 60)]);
    }
}
