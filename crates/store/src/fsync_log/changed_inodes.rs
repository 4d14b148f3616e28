//! Which inodes changed, for the fsync log.
//!
//! Threads note changes beside each other. Each has a place of its own, so that
//! they write no memory that they share. Whoever wants to know about an inode
//! looks in all places.

use crate::space::ranges::RangeSet;
use butterfs_format::InodeId;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads beyond this number share places.
const PLACES: usize = 8;

/// What changed of an inode.
#[derive(Debug, Default)]
struct Changed {
    /// Parts of its file extents, since it was logged; `None` if nothing of the
    /// inode changed since then.
    since_log: Option<RangeSet>,
    /// Its names, since the last commit.
    names: bool,
}

type Inodes = FxHashMap<InodeId, Changed>;

/// The inodes that changed in the running generation.
#[derive(Debug, Default)]
pub(crate) struct ChangedInodes {
    places: [CachePadded<Mutex<Inodes>>; PLACES],
}

thread_local! {
    static PLACE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Ordering::Relaxed) % PLACES
    };
}

impl ChangedInodes {
    fn change(&self, id: InodeId, change: impl FnOnce(&mut Changed)) {
        let mut inodes = self.places[PLACE.with(|place| *place)].lock();
        change(inodes.entry(id).or_default());
    }

    fn everywhere(&self, id: InodeId, mut see: impl FnMut(&mut Changed)) {
        for place in &self.places {
            if let Some(changed) = place.lock().get_mut(&id) {
                see(changed);
            }
        }
    }

    /// Notes that the inode changed, and its file extents in `range` if there
    /// is one.
    pub(crate) fn note(&self, id: InodeId, range: Option<Range<u64>>) {
        self.change(id, |changed| {
            let ranges = changed.since_log.get_or_insert_default();
            if let Some(range) = range {
                ranges.insert(range);
            }
        });
    }

    /// Notes that the inode's names changed.
    pub(crate) fn note_names(&self, id: InodeId) {
        self.change(id, |changed| {
            changed.since_log.get_or_insert_default();
            changed.names = true;
        });
    }

    /// Notes that the log has all of the inode.
    pub(crate) fn note_logged(&self, id: InodeId) {
        self.everywhere(id, |changed| changed.since_log = None);
    }

    /// Whether its names changed since the last commit.
    pub(crate) fn has_new_names(&self, id: InodeId) -> bool {
        let mut names = false;
        self.everywhere(id, |changed| names |= changed.names);
        names
    }

    /// Parts of its file extents that changed since it was logged; `None` if
    /// nothing of it did.
    pub(crate) fn since_log(&self, id: InodeId) -> Option<Vec<Range<u64>>> {
        let mut all: Option<RangeSet> = None;
        self.everywhere(id, |changed| {
            if let Some(ranges) = &changed.since_log {
                let all = all.get_or_insert_default();
                ranges.iter().for_each(|range| all.insert(range));
            }
        });
        Some(all?.iter().collect())
    }
}
