//! Nodes that changed and that no superblock names yet.
//!
//! Branches change only while the engine is held for writing. A leaf has a lock
//! of its own, so that threads can change different leaves beside each other
//! and beside readers ([`crate::beside`]). Nobody waits for anything else while
//! a reader holds the lock of a leaf; a thread that changes leaves takes their
//! locks in ascending order of addresses.

use butterfs_format::Logical;
use butterfs_tree::Node;
use parking_lot::{RwLock, RwLockWriteGuard};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// How often a thread looks whether the lock of a leaf is free before it sleeps.
/// Locks are held for less than a microsecond, and sleeping costs many.
const ROUNDS: usize = 100;

fn spin<G>(mut attempt: impl FnMut() -> Option<G>) -> Option<G> {
    (0..ROUNDS).find_map(|round| {
        if round > 0 {
            (0..8).for_each(|_| std::hint::spin_loop());
        }
        attempt()
    })
}

/// Nodes by address.
#[derive(Debug, Default)]
pub(crate) struct ChangedNodes(FxHashMap<Logical, Changed>);

/// A changed node.
#[derive(Debug)]
pub(crate) enum Changed {
    Branch(Arc<Node>),
    Leaf(RwLock<Arc<Node>>),
}

impl Changed {
    fn new(node: Arc<Node>) -> Self {
        match node.is_leaf() {
            true => Self::Leaf(RwLock::new(node)),
            false => Self::Branch(node),
        }
    }

    /// Calls `look` with it and returns the result. `look` asks for no other
    /// node.
    pub(crate) fn see<R>(&self, look: impl FnOnce(&Arc<Node>) -> R) -> R {
        match self {
            Self::Branch(node) => look(node),
            Self::Leaf(leaf) => {
                let soon = spin(|| leaf.try_read());
                look(&soon.unwrap_or_else(|| leaf.read()))
            }
        }
    }

    fn get_mut(&mut self) -> &mut Arc<Node> {
        match self {
            Self::Branch(node) => node,
            Self::Leaf(leaf) => leaf.get_mut(),
        }
    }

    fn into_node(self) -> Arc<Node> {
        match self {
            Self::Branch(node) => node,
            Self::Leaf(leaf) => leaf.into_inner(),
        }
    }
}

impl ChangedNodes {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn contains(&self, logical: Logical) -> bool {
        self.0.contains_key(&logical)
    }

    pub(crate) fn find(&self, logical: Logical) -> Option<&Changed> {
        self.0.get(&logical)
    }

    pub(crate) fn get(&self, logical: Logical) -> Option<Arc<Node>> {
        self.find(logical).map(|changed| changed.see(Arc::clone))
    }

    pub(crate) fn get_mut(&mut self, logical: Logical) -> Option<&mut Arc<Node>> {
        self.0.get_mut(&logical).map(Changed::get_mut)
    }

    /// The leaf at `logical`, to change while others use the engine.
    pub(crate) fn lock_leaf(&self, logical: Logical) -> Option<RwLockWriteGuard<'_, Arc<Node>>> {
        match self.0.get(&logical)? {
            Changed::Branch(_) => None,
            Changed::Leaf(leaf) => {
                let soon = spin(|| leaf.try_write());
                Some(soon.unwrap_or_else(|| leaf.write()))
            }
        }
    }

    pub(crate) fn insert(&mut self, node: Node) {
        self.0.insert(node.logical(), Changed::new(Arc::new(node)));
    }

    pub(crate) fn remove(&mut self, logical: Logical) -> Option<Arc<Node>> {
        self.0.remove(&logical).map(Changed::into_node)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = Logical> {
        self.0.keys().copied()
    }

    /// Addresses of the nodes of which `wanted` is true. It asks for no other
    /// node.
    pub(crate) fn addresses_of(
        &self,
        mut wanted: impl FnMut(&Arc<Node>) -> bool,
    ) -> impl Iterator<Item = Logical> {
        let found = self.0.iter().filter(move |(_, node)| node.see(&mut wanted));
        found.map(|(logical, _)| *logical)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Arc<Node>> {
        self.0.values_mut().map(Changed::get_mut)
    }

    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Arc<Node>> {
        self.0.drain().map(|(_, node)| node.into_node())
    }
}
