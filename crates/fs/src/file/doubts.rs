//! Bytes that were read though nobody vouches for them (`rescue=`).
//!
//! Owns what a read says about them. Each range is named once, and ranges that
//! touch are one. A file has a bounded number of ranges; beyond that, two
//! neighbours become one, together with what lies between them, so that nothing
//! doubtful is left out.

use parking_lot::Mutex;
use std::ops::Range;

/// The most ranges that are kept of a file.
const RANGES_MAX: usize = 4096;

/// Why bytes are doubtful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doubt {
    /// No copy matches their checksum.
    WrongChecksum,
    /// They should have a checksum, and have none.
    NoChecksum,
}

/// What a read, or several of one file, passed over. Several threads may add
/// to it.
#[derive(Debug, Default)]
pub struct Doubts {
    wrong: Mutex<Vec<Range<u64>>>,
    unverified: Mutex<Vec<Range<u64>>>,
}

impl Doubts {
    /// Ranges of the file whose bytes have a wrong checksum, sorted.
    #[must_use]
    pub fn wrong(&self) -> Vec<Range<u64>> {
        self.wrong.lock().clone()
    }

    /// Ranges of the file whose bytes should have checksums and have none,
    /// sorted.
    #[must_use]
    pub fn unverified(&self) -> Vec<Range<u64>> {
        self.unverified.lock().clone()
    }

    /// True if nothing was passed over.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.wrong.lock().is_empty() && self.unverified.lock().is_empty()
    }

    /// Adds a range of the file.
    pub(crate) fn add(&self, doubt: Doubt, range: Range<u64>) {
        let ranges = match doubt {
            Doubt::WrongChecksum => &self.wrong,
            Doubt::NoChecksum => &self.unverified,
        };
        insert(&mut ranges.lock(), range);
    }
}

fn insert(ranges: &mut Vec<Range<u64>>, mut new: Range<u64>) {
    if new.is_empty() {
        return;
    }
    let first = ranges.partition_point(|range| range.end < new.start);
    let end = ranges.partition_point(|range| range.start <= new.end);
    if let Some(touched) = ranges.get(first..end).filter(|touched| !touched.is_empty()) {
        new.start = new.start.min(touched[0].start);
        new.end = new.end.max(touched[touched.len() - 1].end);
    }
    ranges.splice(first..end, [new]);
    if ranges.len() > RANGES_MAX {
        let gap = |pair: &(usize, &[Range<u64>])| pair.1[1].start - pair.1[0].end;
        let nearest = ranges.windows(2).enumerate().min_by_key(gap);
        if let Some((at, _)) = nearest {
            ranges[at].end = ranges[at + 1].end;
            ranges.remove(at + 1);
        }
    }
}

/// Parts of the sectors that are being read, from the first of their bytes on.
#[derive(Debug, Default)]
pub(crate) struct PassedOver(pub(crate) Vec<(Doubt, Range<u64>)>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_one() {
        let mut ranges = Vec::new();
        for range in [8..12, 0..4, 20..24, 12..16, 3..9, 30..30] {
            insert(&mut ranges, range);
        }
        assert_eq!(ranges, [0..16, 20..24]);
        insert(&mut ranges, 15..21);
        assert_eq!(ranges, [Range { start: 0, end: 24 }]);
    }

    #[test]
    fn no_byte_is_lost_when_there_are_too_many_ranges() {
        let mut ranges = Vec::new();
        for number in (0..2 * RANGES_MAX as u64).rev() {
            insert(&mut ranges, number * 8192..number * 8192 + 4096);
        }
        assert_eq!(ranges.len(), RANGES_MAX);
        for number in 0..2 * RANGES_MAX as u64 {
            let at = number * 8192;
            assert!(ranges.iter().any(|range| range.contains(&at)), "{at}");
        }
    }
}
