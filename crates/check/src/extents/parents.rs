//! Nodes whose references to children or data are by parent (FULL_BACKREF),
//! and what follows for the tree that a node names as its owner.

use super::tally::By;
use crate::context::Context;
use crate::trees::roots::Roots;
use butterfs_format::node::FLAG_RELOC;
use butterfs_format::{Generation, NodeRef, TreeId};
use butterfs_tree::Node;
use rustc_hash::{FxHashMap, FxHashSet};

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
    /// Trees that hold what an owner wrote.
    roots: FxHashMap<TreeId, Vec<NodeRef>>,
    /// Trees whose references move to their nodes step by step.
    passing: FxHashSet<TreeId>,
    /// When something else last had a share in all nodes that a tree wrote.
    last_snapshots: FxHashMap<TreeId, Generation>,
    knowledge: Knowledge,
    /// A balance was interrupted: it moves references of any tree.
    is_relocating: bool,
}

impl Parents {
    pub(crate) fn new(nodes: &[u64], shared: &[u64], roots: &Roots, knowledge: Knowledge) -> Self {
        let passing: FxHashSet<TreeId> = roots.passing().map(|root| root.id).collect();
        Self {
            roots: roots.by_owner(),
            last_snapshots: roots.last_snapshots(),
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

    /// True when the tree that `node`, found in `tree`, names as its owner
    /// does not hold it. A tree holds every node that it wrote by a reference
    /// of its own until it lets go, and with that the node becomes a parent.
    /// Relocation puts a parent above a node that stays as it was, and hands
    /// what it replaced to its own tree. Deletion lets go step by step.
    pub(crate) fn is_strange(
        &self,
        context: &Context<'_>,
        node: &Node,
        tree: TreeId,
        by: By,
    ) -> bool {
        let owner = node.owner();
        let is_held = match by {
            By::Tree(holder) => holder == owner.get(),
            _ => tree == owner,
        };
        if is_held
            || self.contains(node)
            || self.passing.contains(&owner)
            || self.knowledge == Knowledge::Part
        {
            return false;
        }
        let roots = self.roots.get(&owner).map_or(&[][..], Vec::as_slice);
        let is_missing = |root: &NodeRef| self.is_missing_in(owner, *root, context, node);
        roots.iter().all(is_missing)
    }

    /// True when the tree of `owner` at `root` has no reference to `node` that
    /// is the owner's or by a parent. What cannot be read may have one.
    fn is_missing_in(
        &self,
        owner: TreeId,
        root: NodeRef,
        context: &Context<'_>,
        node: &Node,
    ) -> bool {
        let Some(first) = node.first_key() else {
            return true;
        };
        let (mut at, mut by) = (root, By::Tree(owner.get()));
        while at.level > node.level() {
            let Ok(above) = context.peek(at.into()) else {
                return false;
            };
            by = if self.contains(&above) {
                By::Parent(above.logical().get())
            } else {
                By::Tree(above.owner().get())
            };
            at = above.child(above.child_slot(&first));
        }
        let is_own = matches!(by, By::Parent(_)) || by == By::Tree(owner.get());
        at.logical != node.logical() || !is_own
    }

    /// True when `node` is certainly no parent.
    pub(crate) fn excludes(&self, node: &Node) -> bool {
        self.knowledge == Knowledge::All && !self.contains(node)
    }

    /// True when `node` is a parent although its own tree refers to it by
    /// tree. A node becomes a parent when its tree lets go of it, and no tree
    /// comes back to a node that it left; relocation alone gives a tree nodes
    /// that are parents, and marks them. It makes parents also of nodes that it
    /// copies, which their tree keeps where the balance ends without handing it
    /// the copies. Such nodes are no newer than the share that relocation took,
    /// which counts as a snapshot. A tree that is being deleted lets go after
    /// its nodes became parents.
    pub(crate) fn contradicts(&self, node: &Node, by: By) -> bool {
        self.contains(node)
            && by == By::Tree(node.owner().get())
            && node.flags() & FLAG_RELOC == 0
            && !self.is_relocating
            && !self.passing.contains(&node.owner())
            && self
                .last_snapshots
                .get(&node.owner())
                .is_none_or(|last| node.generation() > *last)
    }
}
