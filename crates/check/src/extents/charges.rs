//! What simple quotas charge each subvolume: the extents that it allocated.
//!
//! Summed up while the trees are walked for other reasons; memory grows with
//! the number of subvolumes alone.

use crate::budget::Taken;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Bytes of memory for one tree.
const OWNER_BYTES: u64 = 48;

/// Bytes that each tree allocated and that are still used.
#[derive(Debug)]
pub(crate) struct Charges {
    /// Older extents are charged to nobody.
    from: u64,
    by_owner: Mutex<FxHashMap<u64, u64>>,
    taken: Taken,
}

impl Charges {
    /// Nothing yet; extents count from generation `from` on.
    pub(crate) fn new(from: u64, taken: Taken) -> Self {
        Self {
            from,
            by_owner: Mutex::default(),
            taken,
        }
    }

    /// The same, empty.
    pub(crate) fn emptied(&self, taken: Taken) -> Self {
        Self::new(self.from, taken)
    }

    /// An extent that `owner` allocated.
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

    /// Trees with what they are charged.
    pub(crate) fn all(&self) -> FxHashMap<u64, u64> {
        self.by_owner.lock().clone()
    }
}
