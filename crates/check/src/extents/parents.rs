//! Nodes whose references to children or data are by parent (FULL_BACKREF),
//! called parents here, and what follows for the tree that a node names as its
//! owner.

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
    /// Some of its nodes are damaged, so nodes may be parents without being
    /// known as such.
    Part,
}

/// The nodes that are parents by the extent tree.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    nodes: FxHashSet<u64>,
    /// Nodes with several references.
    shared: FxHashSet<u64>,
    /// For each owner, the roots of the trees that hold its nodes.
    roots: FxHashMap<TreeId, Vec<NodeRef>>,
    /// Trees that are being deleted, and relocation trees. They drop or take over
    /// nodes step by step.
    passing: FxHashSet<TreeId>,
    /// The last generation in which all nodes of a tree became shared, by a
    /// snapshot or by relocation.
    last_snapshots: FxHashMap<TreeId, Generation>,
    knowledge: Knowledge,
    /// A balance was interrupted. It moves references of any tree.
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

    /// True if the tree that `node` names as its owner does not hold the node.
    /// The node was found in `tree`.
    ///
    /// A tree holds every node that it wrote by its own reference. When it drops
    /// the node, the node becomes a parent. There are two exceptions. Relocation
    /// puts a parent above a node that stays as it was, and passes the nodes
    /// that it replaced to its own tree. Deletion drops nodes step by step.
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

    /// True if the tree of `owner` at `root` has no reference to `node`, neither
    /// by the owner nor by a parent. False if a node on the path cannot be read,
    /// since the reference may be there.
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

    /// True if `node` is certainly no parent.
    pub(crate) fn excludes(&self, node: &Node) -> bool {
        self.knowledge == Knowledge::All && !self.contains(node)
    }

    /// True if `node` is a parent although its own tree refers to it by tree.
    ///
    /// A node becomes a parent when its tree drops it, and a tree never takes
    /// back a node that it dropped. There are three exceptions. Relocation gives
    /// a tree nodes that are parents, and marks them. It also makes parents of
    /// the nodes that it copies, and their tree keeps them if the balance ends
    /// before the tree gets the copies. Such nodes are no newer than the last
    /// snapshot of the tree, because relocation counts as one. A tree that is
    /// being deleted drops its nodes after they became parents.
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
