//! Writes in place and snapshots exclude each other.
//!
//! Owns one lock for each subvolume. A flush that may overwrite data in place
//! shares it from its decision until its file extents are in the tree. A
//! snapshot holds it exclusively while the tree is copied. So nothing that a
//! snapshot shares is overwritten.
//!
//! Lock order: an inode's, this one, the store's commit lock.

use butterfs_format::TreeId;
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// If there are more locks than this, those that nobody uses are forgotten.
const KEPT: usize = 64;

/// The locks of all subvolumes.
#[derive(Debug, Default)]
pub(crate) struct InPlaceLocks {
    trees: Mutex<FxHashMap<TreeId, Arc<RwLock<()>>>>,
}

impl InPlaceLocks {
    /// The lock of `tree`: flushes share it, a snapshot holds it exclusively.
    pub(crate) fn of(&self, tree: TreeId) -> Arc<RwLock<()>> {
        let mut trees = self.trees.lock();
        if trees.len() >= KEPT {
            trees.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        Arc::clone(trees.entry(tree).or_default())
    }
}
