//! Sets of ranges of logical space.

use std::collections::BTreeMap;
use std::ops::Range;

/// Ranges that do not touch, by their first bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range.
    pub(crate) fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        if let Some((before, before_end)) = self.0.range(..=start).next_back()
            && *before_end >= start
        {
            start = *before;
            end = end.max(*before_end);
        }
        let inside: Vec<(u64, u64)> = self.0.range(start..=end).map(|(a, b)| (*a, *b)).collect();
        for (key, key_end) in inside {
            end = end.max(key_end);
            self.0.remove(&key);
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    pub(crate) fn remove(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let before = self
            .0
            .range(..range.start)
            .next_back()
            .map(|(a, b)| (*a, *b));
        let inside = self.0.range(range.clone()).map(|(a, b)| (*a, *b));
        let hit: Vec<(u64, u64)> = before.into_iter().chain(inside).collect();
        for (start, end) in hit {
            if end <= range.start {
                continue;
            }
            self.0.remove(&start);
            if start < range.start {
                self.0.insert(start, range.start);
            }
            if end > range.end {
                self.0.insert(range.end, end);
            }
        }
    }

    /// Bytes of `within` that are in the set.
    pub(crate) fn bytes_within(&self, within: Range<u64>) -> u64 {
        let bytes = self
            .within(within)
            .map(|part| part.end.saturating_sub(part.start));
        bytes.fold(0, u64::saturating_add)
    }

    /// Whether a byte of `within` is in the set.
    pub(crate) fn touches(&self, within: Range<u64>) -> bool {
        self.within(within).next().is_some()
    }

    /// Parts of the set in `within`.
    pub(crate) fn within(&self, within: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.range(..=within.start).next_back();
        let first = first.map_or(within.start, |(start, _)| *start);
        let (from, to) = (within.start, within.end);
        let all = self.0.range(first..to.max(first));
        all.map(move |(a, b)| (*a).max(from)..(*b).min(to))
            .filter(|part| part.start < part.end)
    }

    /// What of `within` is not in the set.
    pub(crate) fn gaps(&self, within: Range<u64>) -> Vec<Range<u64>> {
        let mut at = within.start;
        let mut gaps = Vec::new();
        for part in self.within(within.clone()) {
            if at < part.start {
                gaps.push(at..part.start);
            }
            at = part.end;
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// First gap of `length` bytes in `within` that begins at a multiple of
    /// `length`.
    pub(crate) fn first_gap(&self, within: Range<u64>, length: u64) -> Option<u64> {
        let mut at = within.start.checked_next_multiple_of(length)?;
        loop {
            let end = at.checked_add(length)?;
            if end > within.end {
                return None;
            }
            match self.within(at..end).last() {
                None => return Some(at),
                Some(_) => {
                    let (_, behind) = self.0.range(..end).next_back()?;
                    at = (*behind).max(end).checked_next_multiple_of(length)?;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_testkit::random::Random;

    #[test]
    fn ranges_agree_with_bits() {
        let mut random = Random::new(1);
        let (mut ranges, mut bits) = (Ranges::default(), vec![false; 200]);
        for _ in 0..5000 {
            let start = random.below(190);
            let end = start + random.below(12);
            let set = random.one_in(2);
            match set {
                true => ranges.add(start..end),
                false => ranges.remove(start..end),
            }
            bits[start as usize..end as usize].fill(set);
            let found: Vec<u64> = ranges.within(0..200).flatten().collect();
            let wanted: Vec<u64> = (0..200).filter(|bit| bits[*bit as usize]).collect();
            assert_eq!(found, wanted);
            let gaps: Vec<u64> = ranges.gaps(3..180).into_iter().flatten().collect();
            let wanted: Vec<u64> = (3..180).filter(|bit| !bits[*bit as usize]).collect();
            assert_eq!(gaps, wanted);
            let free = |at: &u64| (*at..at + 4).all(|bit| !bits[bit as usize]);
            let wanted = (8..=180).step_by(4).find(free).filter(|at| at + 4 <= 184);
            assert_eq!(ranges.first_gap(5..184, 4), wanted);
        }
    }
}
