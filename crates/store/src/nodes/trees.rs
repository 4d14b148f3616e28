//! The trees of a volume that were looked up.
//!
//! A reader may need a tree that nobody has looked up yet. It loads the tree
//! and puts it aside under a lock of its own, until somebody changes the
//! engine. Everybody else finds trees without a lock.

use butterfs_format::item::root::RootItem;
use butterfs_format::{Key, NodeRef, TreeId};
use parking_lot::RwLock;
use rustc_hash::FxHashMap;

/// A tree that was looked at.
#[derive(Clone, Debug)]
pub struct TreeState {
    /// Its root now.
    pub root: NodeRef,
    /// Where its root item is; `None` for the trees in the superblock.
    pub item_key: Option<Key>,
    /// Its root item (of the superblock's trees: a blank one).
    pub item: RootItem,
    /// The root item must be written at the commit.
    pub changed: bool,
    /// Its nodes moved in this generation, and its content did not change.
    /// Only within a commit.
    pub(crate) only_moved: bool,
}

type States = FxHashMap<TreeId, TreeState>;

/// States of trees. Each tree is in one of the two maps.
#[derive(Debug, Default)]
pub(crate) struct Trees {
    known: States,
    /// Loaded by readers since the last change of the engine.
    loaded: RwLock<States>,
}

impl Trees {
    /// Calls `look` with a tree's state and returns its result, if the tree is
    /// here.
    pub(crate) fn see<R>(&self, tree: TreeId, look: impl FnOnce(&TreeState) -> R) -> Option<R> {
        if let Some(state) = self.known.get(&tree) {
            return Some(look(state));
        }
        self.loaded.read().get(&tree).map(look)
    }

    /// Adds what a reader loaded. Readers at the same moment load the same.
    pub(crate) fn add_loaded(&self, tree: TreeId, state: TreeState) {
        self.loaded.write().insert(tree, state);
    }

    fn known_mut(&mut self) -> &mut States {
        let loaded = self.loaded.get_mut();
        if !loaded.is_empty() {
            for (tree, state) in loaded.drain() {
                self.known.entry(tree).or_insert(state);
            }
        }
        &mut self.known
    }

    pub(crate) fn get_mut(&mut self, tree: TreeId) -> Option<&mut TreeState> {
        self.known_mut().get_mut(&tree)
    }

    pub(crate) fn insert(&mut self, tree: TreeId, state: TreeState) {
        self.known_mut().insert(tree, state);
    }

    pub(crate) fn remove(&mut self, tree: TreeId) -> Option<TreeState> {
        self.known_mut().remove(&tree)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&TreeId, &mut TreeState)> {
        self.known_mut().iter_mut()
    }

    /// Whether the root item of some tree must be written.
    pub(crate) fn any_changed(&self) -> bool {
        let changed = |states: &States| states.values().any(|state| state.changed);
        changed(&self.known) || changed(&self.loaded.read())
    }
}
