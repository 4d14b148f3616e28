//! Nodes whose references to children or data are by parent (FULL_BACKREF).

use super::tally::By;
use butterfs_format::TreeId;
use butterfs_format::node::FLAG_RELOC;
use butterfs_tree::Node;
use rustc_hash::FxHashSet;

/// How much of the extent tree was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Knowledge {
    /// All of it.
    #[default]
    All,
    /// Some of its nodes are damaged: what is not known may be.
    Part,
}

/// Nodes that the extent tree says are parents.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    nodes: FxHashSet<u64>,
    /// Nodes with several references.
    shared: FxHashSet<u64>,
    /// Trees whose references move to their nodes step by step.
    passing: FxHashSet<TreeId>,
    knowledge: Knowledge,
    /// A balance was interrupted: it moves references of any tree.
    is_relocating: bool,
}

impl Parents {
    pub(crate) fn new(
        nodes: &[u64],
        shared: &[u64],
        passing: impl Iterator<Item = TreeId>,
        knowledge: Knowledge,
    ) -> Self {
        let passing: FxHashSet<TreeId> = passing.collect();
        Self {
            nodes: nodes.iter().copied().collect(),
            shared: shared.iter().copied().collect(),
            is_relocating: passing.contains(&TreeId::RELOC),
            passing,
            knowledge,
        }
    }

    pub(crate) fn contains(&self, node: &Node) -> bool {
        self.nodes.contains(&node.logical().get())
    }

    /// Nodes with several references.
    pub(crate) const fn shared(&self) -> &FxHashSet<u64> {
        &self.shared
    }

    /// True when a tree that does not own `node` holds its only reference by
    /// tree: a node that its owner left is a parent.
    pub(crate) fn is_strange(&self, node: &Node, by: By) -> bool {
        let logical = node.logical().get();
        matches!(by, By::Tree(tree) if tree != node.owner().get())
            && !self.nodes.contains(&logical)
            && !self.shared.contains(&logical)
            && !self.is_relocating
            && !self.passing.contains(&node.owner())
            && self.knowledge == Knowledge::All
    }

    /// True when `node` is certainly no parent.
    pub(crate) fn excludes(&self, node: &Node) -> bool {
        self.knowledge == Knowledge::All && !self.contains(node)
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
            && !self.is_relocating
            && !self.passing.contains(&node.owner())
    }
}
