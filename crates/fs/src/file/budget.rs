//! What all inodes' write buffers may hold together.
//!
//! Owns the memory limit, the promise of data space to acknowledged writes and
//! the list of inodes with dirty data.
//!
//! Invariants: an inode whose buffer is not empty is in the list. `total` is
//! the sum of all buffers that were adopted.

use super::buffer::{Spare, Sums};
use super::limits::PREALLOC_MAX;
use crate::inode::{Inode, InodeState};
use butterfs_format::{InodeId, TreeId};
use butterfs_store::{Acknowledged, Promisable};
use parking_lot::{Mutex, MutexGuard};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The smallest budget: a few writes must fit.
const LIMIT_MIN: u64 = 1 << 20;
/// More dirty inodes than this are flushed, however little they hold.
const INODES_MAX: usize = 16_384;

/// Dirty data of all inodes.
#[derive(Debug)]
pub struct Budget {
    limit: u64,
    acknowledged: Acknowledged,
    /// Memory of writes that are on their way into a buffer.
    promised: AtomicU64,
    /// Space of what is being preallocated.
    reserved: AtomicU64,
    /// Part of `total` that has its space already.
    in_flight: AtomicU64,
    /// Space that was free at the last look, minus what was used since.
    free_data: AtomicU64,
    free_metadata: AtomicU64,
    /// The number of commits at that time.
    looked_at: AtomicU64,
    dirty: Mutex<BTreeMap<InodeId, Arc<Inode>>>,
    /// How often something was put into a buffer.
    writes: AtomicU64,
    shedding: Mutex<()>,
    /// Memory for runs of all buffers.
    spare: Arc<Spare>,
    /// Bytes that wait, of each subvolume that had any.
    waiting: Mutex<FxHashMap<TreeId, Arc<AtomicU64>>>,
}

/// Bytes that are counted until it is dropped.
#[must_use = "a promise ends when it is dropped"]
#[derive(Debug)]
pub(crate) struct Promise<'a> {
    count: &'a AtomicU64,
    bytes: u64,
}

impl<'a> Promise<'a> {
    fn new(count: &'a AtomicU64, bytes: u64) -> Self {
        count.fetch_add(bytes, Ordering::SeqCst);
        Self { count, bytes }
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

impl Budget {
    /// A budget of `limit` bytes.
    #[must_use]
    pub fn new(limit: usize, acknowledged: &Acknowledged) -> Self {
        Self {
            limit: (limit as u64).max(LIMIT_MIN),
            acknowledged: acknowledged.clone(),
            promised: AtomicU64::new(0),
            reserved: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            free_data: AtomicU64::new(0),
            free_metadata: AtomicU64::new(0),
            looked_at: AtomicU64::new(0),
            dirty: Mutex::new(BTreeMap::new()),
            writes: AtomicU64::new(0),
            shedding: Mutex::new(()),
            spare: Arc::new(Spare::new(limit as u64)),
            waiting: Mutex::new(FxHashMap::default()),
        }
    }

    /// Dirty bytes of all inodes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.acknowledged.bytes.load(Ordering::SeqCst)
    }

    /// Dirty bytes of one subvolume.
    pub(crate) fn waiting_of(&self, tree: TreeId) -> u64 {
        let waiting = self.waiting.lock();
        waiting
            .get(&tree)
            .map_or(0, |bytes| bytes.load(Ordering::SeqCst))
    }

    /// Bytes that may wait in memory.
    #[must_use]
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// Gives back memory that is kept for later writes.
    pub(crate) fn clear_spare(&self) {
        self.spare.clear();
    }

    /// The memory for `bytes` more, unless the budget is full.
    pub(crate) fn try_promise(&self, bytes: u64) -> Option<Promise<'_>> {
        loop {
            // In this order, so that the exchange fails if a promise became
            // part of the total meanwhile.
            let promised = self.promised.load(Ordering::SeqCst);
            if self.total() + promised + bytes > self.limit {
                return None;
            }
            let taken = self.promised.compare_exchange(
                promised,
                promised + bytes,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if taken.is_ok() {
                return Some(Promise {
                    count: &self.promised,
                    bytes,
                });
            }
        }
    }

    /// Counts `bytes` of space that is about to be preallocated.
    pub(crate) fn reserve(&self, bytes: u64) -> Promise<'_> {
        Promise::new(&self.reserved, bytes)
    }

    /// Counts `bytes` of buffers that got their space, until they leave the
    /// buffers. Drop this before they leave: until then they only count as data
    /// without space, which is safe.
    pub(crate) fn in_flight(&self, bytes: u64) -> Promise<'_> {
        Promise::new(&self.in_flight, bytes)
    }

    /// True if everything that is promised has space.
    pub(crate) fn fits(&self) -> bool {
        // The total is read last, so that nothing that left it is missed.
        let in_flight = self.in_flight.load(Ordering::SeqCst);
        let reserved = self.reserved.load(Ordering::SeqCst);
        let waiting = self.total() + self.promised.load(Ordering::SeqCst);
        let files = self.acknowledged.files.load(Ordering::SeqCst) + 1;
        let metadata = self.free_metadata.load(Ordering::SeqCst);
        let data = waiting.saturating_add(reserved).saturating_sub(in_flight);
        let needed = Acknowledged::metadata_of(waiting, files)
            .saturating_add(Self::metadata_of_reserved(reserved));
        data <= self.free_data.load(Ordering::SeqCst) && needed <= metadata
    }

    /// Metadata of preallocated space: large extents without checksums. If free
    /// space is in small pieces, more is needed, and each piece asks for its
    /// own.
    const fn metadata_of_reserved(bytes: u64) -> u64 {
        Acknowledged::metadata_of(0, bytes.div_ceil(PREALLOC_MAX))
    }

    /// True if little space was free at the last look, or a commit came after
    /// it. Other changes take metadata space too.
    pub(crate) fn is_uncertain(&self) -> bool {
        /// More than what changes between two commits.
        const ABUNDANT: u64 = 256 << 20;
        let metadata = self.free_metadata.load(Ordering::SeqCst);
        let data = self.free_data.load(Ordering::SeqCst);
        metadata.min(data) < ABUNDANT
            || self.looked_at.load(Ordering::SeqCst)
                != self.acknowledged.commits.load(Ordering::SeqCst)
    }

    /// True if writers should bring data to the device before they go on, so
    /// that nobody waits long for a full budget.
    pub(crate) fn is_high(&self) -> bool {
        self.total() > self.limit - self.limit / 4 || self.listed() > INODES_MAX
    }

    /// True if `bytes` more of data space were free at the last look.
    pub(crate) fn has_free(&self, bytes: u64) -> bool {
        self.free_data.load(Ordering::SeqCst) >= bytes
    }

    /// True when enough was flushed.
    pub(crate) fn is_low(&self) -> bool {
        self.above_low() == (0, 0)
    }

    /// Bytes and files that are still to be flushed.
    pub(crate) fn above_low(&self) -> (u64, usize) {
        let bytes = self.total().saturating_sub(self.limit / 8 * 5);
        (bytes, self.listed().saturating_sub(INODES_MAX / 2))
    }

    /// True if no inode is dirty and no thread is about to make one dirty.
    pub(crate) fn is_idle(&self) -> bool {
        self.promised.load(Ordering::SeqCst) == 0 && self.dirty.lock().is_empty()
    }

    /// The right to flush other inodes' buffers; `None` if another thread has
    /// it.
    pub(crate) fn try_shed(&self) -> Option<MutexGuard<'_, ()>> {
        self.shedding.try_lock()
    }

    /// The right to flush others' buffers.
    pub(crate) fn shed(&self) -> MutexGuard<'_, ()> {
        self.shedding.lock()
    }

    /// Counts an inode's buffer from now on and lists the inode as dirty.
    pub(crate) fn adopt(&self, inode: Arc<Inode>, state: &mut InodeState) {
        let subvolume = {
            let mut waiting = self.waiting.lock();
            Arc::clone(waiting.entry(inode.id.tree).or_default())
        };
        state.buffer.charge_to(Sums {
            all: Arc::clone(&self.acknowledged.bytes),
            subvolume,
            spare: Arc::clone(&self.spare),
        });
        let mut dirty = self.dirty.lock();
        dirty.insert(inode.id, inode);
        self.note_files(&dirty);
    }

    pub(crate) fn note_write(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that changes with every write into a buffer.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    fn note_files(&self, dirty: &BTreeMap<InodeId, Arc<Inode>>) {
        let files = dirty.len() as u64;
        self.acknowledged.files.store(files, Ordering::SeqCst);
    }

    /// Takes an inode whose buffer is empty from the list.
    pub(crate) fn forget(&self, id: InodeId, state: &mut InodeState) {
        debug_assert!(state.buffer.is_empty());
        if state.buffer.stop_charging() {
            let mut dirty = self.dirty.lock();
            dirty.remove(&id);
            self.note_files(&dirty);
            lower(&self.free_metadata, Acknowledged::metadata_of(0, 1));
        }
    }

    /// Inodes with dirty data.
    pub(crate) fn dirty(&self) -> Vec<Arc<Inode>> {
        self.dirty.lock().values().cloned().collect()
    }

    /// Notes how much space is free.
    pub(crate) fn set_free(&self, space: Promisable) {
        let commits = self.acknowledged.commits.load(Ordering::SeqCst);
        self.looked_at.store(commits, Ordering::SeqCst);
        self.free_data.store(space.data, Ordering::SeqCst);
        self.free_metadata.store(space.metadata, Ordering::SeqCst);
    }

    /// Notes that data space was allocated.
    pub(crate) fn used(&self, bytes: u64) {
        lower(&self.free_data, bytes);
        lower(&self.free_metadata, Acknowledged::metadata_of(bytes, 0));
    }

    /// Notes that space was preallocated.
    pub(crate) fn preallocated(&self, bytes: u64) {
        lower(&self.free_data, bytes);
        lower(&self.free_metadata, Self::metadata_of_reserved(bytes));
    }

    fn listed(&self) -> usize {
        let files = self.acknowledged.files.load(Ordering::Relaxed);
        usize::try_from(files).unwrap_or(usize::MAX)
    }
}

fn lower(number: &AtomicU64, by: u64) {
    let _ = number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |number| {
        Some(number.saturating_sub(by))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promises_never_exceed_the_limit_and_end() {
        let budget = Budget::new(2 << 20, &Acknowledged::default());
        let first = budget.try_promise(1 << 20).unwrap();
        let second = budget.try_promise(1 << 20).unwrap();
        assert!(budget.try_promise(1).is_none());
        drop(first);
        assert!(budget.try_promise(1 << 20).is_some());
        assert!(!budget.fits());
        budget.set_free(Promisable {
            data: 1 << 20,
            metadata: 1 << 20,
        });
        assert!(budget.fits());
        let reserved = budget.reserve(1);
        assert!(!budget.fits());
        drop((reserved, second));
        assert!(budget.fits());
        // Much preallocated space needs little metadata.
        budget.set_free(Promisable {
            data: 1 << 40,
            metadata: 8 << 20,
        });
        let reserved = budget.reserve(1 << 40);
        assert!(budget.fits());
        drop(reserved);
        budget.preallocated(1 << 40);
        let reserved = budget.reserve(1);
        assert!(!budget.fits());
        drop(reserved);
    }
}
