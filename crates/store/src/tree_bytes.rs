//! The bytes of a tree's nodes, which its root item names (`bytes_used`).
//!
//! It is the number of nodes that the root leads to, times the size of a node.
//! A node that several trees share counts in each of them. So copying a node
//! changes nothing, a snapshot begins with its source's number, and only nodes
//! that an edit makes or gives up are counted. A tree that is being deleted
//! keeps the number that it had. The tree of roots and the chunk tree have no
//! root item.
//!
//! The kernel subtracts from this number while it works, and it sizes its
//! reserve for metadata by those of the trees of extents, checksums and free
//! space. If such a number is too small, it falls below zero, and the reserve
//! takes the last space.
//!
//! Source: volumes of the kernel after snapshots, deletions, a balance and
//! fsyncs.

use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::TreeId;
use butterfs_tree::NodeSink;

/// How the number of a tree's nodes changes.
#[derive(Clone, Copy)]
pub(crate) enum Counted {
    More,
    Less,
}

impl Engine {
    /// Counts a node that an edit of `tree` made or gave up. A tree that is just
    /// being made is not known yet; its item counts its first node.
    pub(crate) fn count_node(&mut self, tree: TreeId, change: Counted) {
        let size = self.identity.node_size as u64;
        if let Some(state) = self.forest.trees.get_mut(tree) {
            // A number that was wrong stays wrong by as much, also below zero.
            let bytes = &mut state.item.bytes_used;
            *bytes = match change {
                Counted::More => bytes.wrapping_add(size),
                Counted::Less => bytes.wrapping_sub(size),
            };
            // The root item may have been written in this commit already.
            state.changed = true;
        }
    }

    /// Gives `tree` a new empty root. The caller drops the nodes that it had.
    pub(crate) fn restart_tree(&mut self, tree: TreeId) -> Result<(), StoreError> {
        let root = self.create(tree, 0)?;
        self.set_root(tree, root)?;
        let size = self.identity.node_size as u64;
        self.change_root_item(tree, |item| item.bytes_used = size)
    }
}
