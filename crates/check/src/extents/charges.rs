//! What simple quotas charge each subvolume: the extents that it allocated.
//!
//! The charges are summed up while the trees are walked for other reasons.
//! Their memory grows only with the number of subvolumes.

use crate::budget::Taken;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Bytes of memory for one tree.
const OWNER_BYTES: u64 = 48;

/// Bytes that each tree allocated and that are still used.
#[derive(Debug)]
pub(crate) struct Charges {
    /// The first generation that counts. Older extents are charged to no
    /// subvolume.
    from: u64,
    by_owner: Mutex<FxHashMap<u64, u64>>,
    taken: Taken,
}

impl Charges {
    /// Makes empty charges. Extents count from generation `from` on.
    pub(crate) fn new(from: u64, taken: Taken) -> Self {
        Self {
            from,
            by_owner: Mutex::default(),
            taken,
        }
    }

    /// Makes empty charges with the same first generation.
    pub(crate) fn emptied(&self, taken: Taken) -> Self {
        Self::new(self.from, taken)
    }

    /// Adds an extent that `owner` allocated.
    pub(crate) fn add(&self, owner: u64, generation: u64, bytes: u64) {
        if generation >= self.from {
            let mut by_owner = self.by_owner.lock();
            let sum = by_owner.entry(owner).or_insert_with(|| {
                self.taken.add(OWNER_BYTES);
                0
            });
            *sum = sum.saturating_add(bytes);
        }
    }

    /// Returns the bytes that each tree is charged.
    pub(crate) fn all(&self) -> FxHashMap<u64, u64> {
        self.by_owner.lock().clone()
    }
}
