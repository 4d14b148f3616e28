//! Numbers for new inodes.
//!
//! A thread takes some numbers in a row at a time. So threads that make files at
//! the same moment mostly add them to different leaves. Numbers that a thread
//! does not use are lost, and one subvolume has 2^64 of them.

use crate::error::FsError;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Engine, StoreError};
use butterfs_tree::Cursor;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that a thread takes at a time: the inodes of some thirty leaves.
const RUN: u64 = 2048;
/// Subvolumes for which a thread keeps numbers.
const PLACES: usize = 4;

/// Numbers that a thread took.
struct Run {
    /// Tells the file systems of a process apart.
    owner: u64,
    tree: TreeId,
    left: Range<u64>,
}

thread_local! {
    /// Used last comes first.
    static RUNS: RefCell<Vec<Run>> = const { RefCell::new(Vec::new()) };
}

/// The numbers of a file system.
#[derive(Debug)]
pub(crate) struct InodeNumbers {
    owner: u64,
    /// The first number of each subvolume that nobody has taken.
    next: Mutex<FxHashMap<TreeId, u64>>,
}

impl InodeNumbers {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self {
            owner: LAST.fetch_add(1, Ordering::Relaxed),
            next: Mutex::new(FxHashMap::default()),
        }
    }

    /// A number that no inode of `tree` has or had since the volume was opened.
    /// This thread gets the same one again until it says that the number is
    /// [used](Self::used).
    ///
    /// # Errors
    /// No space if all numbers were given out, as in the kernel; reading,
    /// damage.
    pub(crate) fn next(&self, engine: &Engine, tree: TreeId) -> Result<InodeNumber, FsError> {
        RUNS.with_borrow_mut(|runs| {
            let is_it = |run: &Run| run.owner == self.owner && run.tree == tree;
            if let Some(at) = runs.iter().position(is_it) {
                runs[..=at].rotate_right(1);
                if !runs[0].left.is_empty() {
                    return Ok(InodeNumber(runs[0].left.start));
                }
                runs.remove(0);
            }
            let left = self.take(engine, tree)?;
            let number = InodeNumber(left.start);
            let owner = self.owner;
            runs.truncate(PLACES - 1);
            runs.insert(0, Run { owner, tree, left });
            Ok(number)
        })
    }

    /// This thread made the inode with the number that it got.
    pub(crate) fn used(&self, id: InodeId) {
        RUNS.with_borrow_mut(|runs| {
            let its = |run: &&mut Run| run.owner == self.owner && run.tree == id.tree;
            if let Some(run) = runs.iter_mut().find(its)
                && run.left.start == id.number.get()
            {
                run.left.start += 1;
            }
        });
    }

    /// Numbers that nobody has taken, at least one.
    fn take(&self, engine: &Engine, tree: TreeId) -> Result<Range<u64>, FsError> {
        let mut next = self.next.lock();
        let first = match next.get(&tree) {
            Some(number) => *number,
            None => {
                let last = Key::new(TreeId::LAST_SUBVOLUME.get(), ItemType::MAX, u64::MAX);
                let mut cursor = Cursor::seek_in(engine, tree, &last)?;
                let found = cursor.prev()?.then(|| cursor.key()).flatten();
                let highest = found.map_or(InodeNumber::ROOT.get(), |key| key.objectid);
                highest.max(InodeNumber::ROOT.get()) + 1
            }
        };
        // The numbers above are not inodes'.
        let end = first
            .saturating_add(RUN)
            .min(TreeId::LAST_SUBVOLUME.get() + 1);
        if first >= end {
            tracing::error!(%tree, "no inode number is left in this subvolume");
            return Err(StoreError::NoSpace.into());
        }
        next.insert(tree, end);
        Ok(first..end)
    }

    /// The subvolume is deleted.
    pub(crate) fn forget(&self, tree: TreeId) {
        self.next.lock().remove(&tree);
    }
}
