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

use crate::nodes::trees::TreeState;

/// How the number of a tree's nodes changes.
#[derive(Clone, Copy)]
pub(crate) enum Counted {
    More,
    Less,
}

impl TreeState {
    /// Counts a node of `size` bytes that an edit made or gave up.
    pub(crate) const fn count_node(&mut self, change: Counted, size: u64) {
        // A number that was wrong stays wrong by as much, also below zero.
        let bytes = &mut self.item.bytes_used;
        *bytes = match change {
            Counted::More => bytes.wrapping_add(size),
            Counted::Less => bytes.wrapping_sub(size),
        };
        // The root item may have been written in this commit already.
        self.changed = true;
    }
}
