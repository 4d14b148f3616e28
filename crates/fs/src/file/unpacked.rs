//! The last compressed extents that were read, decompressed.
//!
//! Owns a few units, so that small reads of a compressed file do not
//! decompress 128 KiB each.
//!
//! Invariant: space that is allocated anew is forgotten here before a file
//! extent names it. A reader of an extent holds the lock of an inode that
//! refers to it. So nobody adds an extent that was freed meanwhile.

use butterfs_format::Logical;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Units kept: 2 MiB.
const UNITS: usize = 16;

#[derive(Debug)]
struct Unit {
    logical: Logical,
    packed: u64,
    bytes: Arc<Vec<u8>>,
}

/// Decompressed units, the last used one at the end.
#[derive(Debug, Default)]
pub(crate) struct Unpacked {
    units: Mutex<Vec<Unit>>,
    /// How often data had moved when the first of them was read.
    moves: AtomicU64,
}

impl Unpacked {
    /// The decompressed bytes of the extent at `logical` with `packed` bytes on
    /// disk, if they are here and `length` bytes long.
    pub(crate) fn get(&self, logical: Logical, packed: u64, length: u64) -> Option<Arc<Vec<u8>>> {
        let mut units = self.units.lock();
        let at = units.iter().position(|unit| {
            unit.logical == logical && unit.packed == packed && unit.bytes.len() as u64 == length
        })?;
        let unit = units.remove(at);
        let bytes = Arc::clone(&unit.bytes);
        units.push(unit);
        Some(bytes)
    }

    /// Forgets everything if data have moved since, because an address may hold
    /// something else now.
    pub(crate) fn follow(&self, moves: u64) {
        if self.moves.swap(moves, Ordering::AcqRel) != moves {
            self.units.lock().clear();
        }
    }

    /// Keeps an extent's decompressed bytes.
    pub(crate) fn insert(&self, logical: Logical, packed: u64, bytes: Arc<Vec<u8>>) {
        let mut units = self.units.lock();
        units.retain(|unit| unit.logical != logical);
        if units.len() == UNITS {
            units.remove(0);
        }
        units.push(Unit {
            logical,
            packed,
            bytes,
        });
    }

    /// Forgets what lies in `range`, because the space is given out anew.
    pub(crate) fn forget(&self, range: &Range<u64>) {
        self.units.lock().retain(|unit| {
            let start = unit.logical.get();
            start >= range.end || start.saturating_add(unit.packed) <= range.start
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_last_and_forgets_what_is_given_out() {
        let cache = Unpacked::default();
        for index in 0..20 {
            let bytes = Arc::new(vec![index as u8; 10]);
            cache.insert(Logical(index * 8192), 4096, bytes);
        }
        assert!(cache.get(Logical(0), 4096, 10).is_none());
        assert_eq!(cache.get(Logical(19 * 8192), 4096, 10).unwrap()[0], 19);
        assert!(cache.get(Logical(19 * 8192), 8192, 10).is_none());
        assert!(cache.get(Logical(19 * 8192), 4096, 11).is_none());
        cache.forget(&(18 * 8192 + 4095..18 * 8192 + 4096));
        assert!(cache.get(Logical(18 * 8192), 4096, 10).is_none());
        assert!(cache.get(Logical(17 * 8192), 4096, 10).is_some());
        cache.follow(0);
        assert!(cache.get(Logical(17 * 8192), 4096, 10).is_some());
        cache.follow(1);
        assert!(cache.get(Logical(17 * 8192), 4096, 10).is_none());
    }
}
