//! Which bytes of a file may differ between two versions of it, found from
//! its file extents.
//!
//! Owns the comparison of two lists of file extents that come in the order of
//! their offsets. Bytes are equal if both versions refer to the same bytes of
//! the same extent, or if neither has any (holes and preallocated space read as
//! zeros). Data that were written again with the same content count as changed,
//! because data are never read.
//!
//! It holds one file extent of each side, and the ranges found.

use butterfs_format::compression::Algorithm;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{FileOffset, Logical};
use std::ops::Range;

/// How many ranges are kept apart. Beyond that, the last one grows over what is
/// equal.
pub const RANGES_MAX: usize = 1 << 16;

/// Which version of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The old one.
    Old,
    /// The new one.
    New,
}

/// Where the bytes of a piece come from.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bytes {
    Zeros,
    /// `start` is the position in the extent's uncompressed bytes that belongs
    /// to the file's offset 0. It may wrap below zero.
    Extent {
        disk: Logical,
        compression: Option<Algorithm>,
        start: u64,
    },
    Inline {
        compression: Option<Algorithm>,
        data: Vec<u8>,
    },
}

/// A file extent: bytes of a file, and where they come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    range: Range<u64>,
    bytes: Bytes,
}

impl Piece {
    /// What the file extent at `offset` holds; `None` when it reaches beyond
    /// the greatest offset.
    #[must_use]
    pub fn new(offset: FileOffset, extent: &FileExtent<'_>) -> Option<Self> {
        let start = offset.get();
        let (length, bytes) = match extent.body {
            FileExtentBody::Inline(data) => {
                let bytes = Bytes::Inline {
                    compression: extent.compression,
                    data: data.to_vec(),
                };
                (extent.ram_bytes, bytes)
            }
            FileExtentBody::Regular(place) if place.disk != Logical(0) => {
                let bytes = Bytes::Extent {
                    disk: place.disk,
                    compression: extent.compression,
                    start: place.offset.wrapping_sub(start),
                };
                (place.length, bytes)
            }
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
                (place.length, Bytes::Zeros)
            }
        };
        Some(Self {
            range: start..start.checked_add(length)?,
            bytes,
        })
    }
}

/// The bytes of a version in one piece; zeros if there is no piece.
fn bytes(piece: Option<&Piece>) -> &Bytes {
    piece.map_or(&Bytes::Zeros, |piece| &piece.bytes)
}

/// A comparison under way.
#[derive(Debug, Default)]
pub struct ContentDiff {
    /// All before it is compared.
    done: u64,
    old: Option<Piece>,
    new: Option<Piece>,
    changed: Vec<Range<u64>>,
}

impl ContentDiff {
    /// Takes the next file extent of one version. They must come in the order
    /// of their offsets, both versions together. False if one does not, or if
    /// it overlaps the one before it.
    #[must_use]
    pub fn add(&mut self, version: Version, piece: Piece) -> bool {
        if piece.range.start < self.done {
            return false;
        }
        self.advance(piece.range.start);
        let side = match version {
            Version::Old => &mut self.old,
            Version::New => &mut self.new,
        };
        if side.is_some() {
            return false;
        }
        *side = Some(piece);
        true
    }

    /// Compares all before `end`.
    fn advance(&mut self, end: u64) {
        while self.done < end {
            let stops = [&self.old, &self.new];
            let stops = stops.into_iter().flatten().map(|piece| piece.range.end);
            let stop = stops.fold(end, u64::min);
            if stop > self.done && bytes(self.old.as_ref()) != bytes(self.new.as_ref()) {
                self.note(self.done..stop);
            }
            self.done = stop.max(self.done);
            for side in [&mut self.old, &mut self.new] {
                if side.as_ref().is_some_and(|piece| piece.range.end <= stop) {
                    *side = None;
                }
            }
            if self.old.is_none() && self.new.is_none() {
                self.done = end;
            }
        }
    }

    fn note(&mut self, range: Range<u64>) {
        let full = self.changed.len() >= RANGES_MAX;
        match self.changed.last_mut() {
            Some(last) if full || last.end >= range.start => last.end = last.end.max(range.end),
            _ => self.changed.push(range),
        }
    }

    /// The ranges that may differ, up to the greater of the two sizes. They do
    /// not touch each other.
    #[must_use]
    pub fn finish(mut self, size_old: u64, size_new: u64) -> Vec<Range<u64>> {
        self.advance(u64::MAX);
        let (common, all) = (size_old.min(size_new), size_old.max(size_new));
        let mut changed = std::mem::take(&mut self.changed);
        changed.retain(|range| range.start < common);
        for range in &mut changed {
            range.end = range.end.min(common);
        }
        if common < all {
            match changed.last_mut() {
                Some(last) if last.end == common => last.end = all,
                _ => changed.push(common..all),
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::Generation;
    use butterfs_format::item::file_extent::ExtentPlace;

    fn piece(at: u64, disk: u64, offset: u64, length: u64) -> Piece {
        let extent = FileExtent {
            generation: Generation(1),
            ram_bytes: 1 << 20,
            compression: None,
            encryption: 0,
            other_encoding: 0,
            body: FileExtentBody::Regular(ExtentPlace {
                disk: Logical(disk),
                disk_length: 1 << 20,
                offset,
                length,
            }),
        };
        Piece::new(FileOffset(at), &extent).unwrap()
    }

    #[test]
    fn a_write_into_the_middle_is_one_range() {
        let mut diff = ContentDiff::default();
        assert!(diff.add(Version::Old, piece(0, 100, 0, 12)));
        assert!(diff.add(Version::New, piece(0, 100, 0, 4)));
        assert!(diff.add(Version::New, piece(4, 200, 0, 4)));
        assert!(diff.add(Version::New, piece(8, 100, 8, 4)));
        let four = 4..8;
        assert_eq!(diff.finish(12, 12), std::slice::from_ref(&four));
    }

    #[test]
    fn holes_growth_and_moved_parts() {
        let mut diff = ContentDiff::default();
        // A hole became data; data became a hole; the tail was cut.
        assert!(diff.add(Version::New, piece(0, 300, 0, 4)));
        assert!(diff.add(Version::Old, piece(8, 400, 0, 4)));
        assert!(diff.add(Version::Old, piece(16, 500, 0, 4)));
        assert!(diff.add(Version::New, piece(16, 500, 1, 4)));
        assert_eq!(diff.finish(20, 30), [0..4, 8..12, 16..30]);
        let tail = 4..10;
        assert_eq!(
            ContentDiff::default().finish(10, 4),
            std::slice::from_ref(&tail)
        );
        assert!(ContentDiff::default().finish(7, 7).is_empty());
    }

    #[test]
    fn hostile_order_is_refused() {
        let mut diff = ContentDiff::default();
        assert!(diff.add(Version::Old, piece(0, 100, 0, 12)));
        assert!(!diff.add(Version::Old, piece(4, 100, 0, 12)));
        let mut diff = ContentDiff::default();
        assert!(diff.add(Version::Old, piece(8, 100, 0, 12)));
        assert!(!diff.add(Version::New, piece(4, 100, 0, 12)));
        let far = FileExtent::inline(Generation(1), b"x");
        assert!(Piece::new(FileOffset(u64::MAX), &far).is_none());
    }
}
