//! A run of bytes on a device.

use butterfs_format::DeviceOffset;
use std::fmt;

/// `length` bytes from `start` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRange {
    /// First byte.
    pub start: DeviceOffset,
    /// Bytes.
    pub length: u64,
}

impl DeviceRange {
    /// `length` bytes from `start` on.
    #[must_use]
    pub const fn new(start: DeviceOffset, length: u64) -> Self {
        Self { start, length }
    }

    /// The range that `bytes` bytes of memory fill from `start` on.
    #[must_use]
    pub fn of_buffer(start: DeviceOffset, bytes: usize) -> Self {
        Self::new(start, u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// The byte after the last, clamped at the greatest offset.
    #[must_use]
    pub const fn end(self) -> DeviceOffset {
        self.start.saturating_add(self.length)
    }

    /// True when all of it lies in `0..size`.
    #[must_use]
    pub fn fits(self, size: u64) -> bool {
        self.start
            .checked_add(self.length)
            .is_some_and(|end| end.get() <= size)
    }

    /// What both have in common, if anything.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let start = self.start.max(other.start);
        let end = self.end().min(other.end());
        let length = end.get().checked_sub(start.get())?;
        (length > 0).then_some(Self { start, length })
    }

    /// True when they share a byte.
    #[must_use]
    pub fn overlaps(self, other: Self) -> bool {
        self.intersection(other).is_some()
    }

    /// What is left of `self` before and after `other`.
    #[must_use]
    pub fn without(self, other: Self) -> [Option<Self>; 2] {
        let Some(common) = self.intersection(other) else {
            return [Some(self), None];
        };
        let piece = |start: DeviceOffset, end: DeviceOffset| {
            let length = end.get().saturating_sub(start.get());
            (length > 0).then_some(Self { start, length })
        };
        [
            piece(self.start, common.start),
            piece(common.end(), self.end()),
        ]
    }
}

impl fmt::Display for DeviceRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at offset {}", self.length, self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, length: u64) -> DeviceRange {
        DeviceRange::new(DeviceOffset(start), length)
    }

    #[test]
    fn fits_knows_overflow() {
        assert!(range(0, 10).fits(10));
        assert!(range(10, 0).fits(10));
        assert!(!range(5, 6).fits(10));
        assert!(!range(u64::MAX, 2).fits(u64::MAX));
    }

    #[test]
    fn without_agrees_with_sets_of_bytes() {
        for (a, b, c, d) in (0..6_u64).flat_map(|a| {
            (0..5).flat_map(move |b| (0..6).flat_map(move |c| (0..5).map(move |d| (a, b, c, d))))
        }) {
            let bytes = |r: DeviceRange| r.start.get()..r.end().get();
            let (whole, cut) = (range(a, b), range(c, d));
            let expected: Vec<u64> = bytes(whole).filter(|x| !bytes(cut).contains(x)).collect();
            let found: Vec<u64> = whole
                .without(cut)
                .into_iter()
                .flatten()
                .flat_map(bytes)
                .collect();
            assert_eq!(found, expected, "{whole} without {cut}");
        }
    }
}
