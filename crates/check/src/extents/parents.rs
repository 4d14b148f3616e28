//! Nodes whose references to children or data are by parent (FULL_BACKREF).

use super::tally::By;
use butterfs_format::TreeId;
use butterfs_format::node::FLAG_RELOC;
use butterfs_tree::Node;
use rustc_hash::FxHashSet;

/// Nodes that the extent tree says are parents.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    nodes: FxHashSet<u64>,
    /// Trees whose references move to their nodes step by step.
    passing: FxHashSet<TreeId>,
}

impl Parents {
    pub(crate) fn new(nodes: &[u64], passing: impl Iterator<Item = TreeId>) -> Self {
        Self {
            nodes: nodes.iter().copied().collect(),
            passing: passing.collect(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn contains(&self, node: &Node) -> bool {
        self.nodes.contains(&node.logical().get())
    }

    /// True when `node` is a parent although its own tree refers to it by
    /// tree. A node becomes a parent when its tree lets go of it, and no tree
    /// comes back to a node that it left; relocation alone gives a tree nodes
    /// that are parents, and marks them. A tree that is being deleted lets go
    /// after its nodes became parents.
    pub(crate) fn contradicts(&self, node: &Node, by: By) -> bool {
        self.contains(node)
            && by == By::Tree(node.owner().get())
            && node.flags() & FLAG_RELOC == 0
            && !self.passing.contains(&node.owner())
    }
}
