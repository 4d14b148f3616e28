//! Which nodes of the running generation the device has already.

use butterfs_format::Logical;
use butterfs_tree::Node;
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{Arc, Weak};

/// Nodes of the running generation that were written before their commit.
#[derive(Debug, Default)]
pub(super) struct WrittenNodes {
    /// The node that was written. If the node changes afterwards, the weak
    /// reference no longer means it.
    written: FxHashMap<Logical, Weak<Node>>,
    /// Addresses of the batch that is being written.
    in_flight: FxHashSet<Logical>,
    /// Those of them that were freed meanwhile.
    freed: Vec<Logical>,
}

impl WrittenNodes {
    /// Whether the device has this very node.
    pub(super) fn has(&self, node: &Arc<Node>) -> bool {
        let written = self.written.get(&node.logical());
        written.is_some_and(|weak| std::ptr::eq(weak.as_ptr(), Arc::as_ptr(node)))
    }

    /// True when nothing is being written.
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.is_empty() && self.freed.is_empty()
    }

    /// Notes that a node without references lost its address. True if the node
    /// is being written; then the address is given back later.
    pub(super) fn keeps(&mut self, logical: Logical) -> bool {
        let keeps = self.in_flight.contains(&logical);
        if keeps {
            self.freed.push(logical);
        }
        keeps
    }

    /// Notes that a node is being written.
    pub(super) fn begin(&mut self, logical: Logical, node: &Arc<Node>) {
        self.written.insert(logical, Arc::downgrade(node));
        self.in_flight.insert(logical);
    }

    /// Notes that what was begun is written. Gives the addresses that were freed
    /// meanwhile.
    pub(super) fn end(&mut self) -> Vec<Logical> {
        self.in_flight.clear();
        std::mem::take(&mut self.freed)
    }
}
