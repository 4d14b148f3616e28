//! Which nodes the extent tree has: those are in use by the trees of its
//! generation, whatever pointers are lost.

use crate::forest::Forest;
use crate::nodes::Nodes;
use crate::plan::{Origin, Plan, PlanRequest, Seen, plan};
use butterfs_format::bytes::Reader;
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, InlineRefs};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::{Generation, ItemType, Key, NodeRef, TreeId};
use std::sync::Arc;

/// Nodes that decide which of several roots is the last one.
const COUNTED_MAX: usize = 65_536;

/// The nodes that an extent tree has.
#[derive(Clone, Debug)]
pub(crate) struct Live<'n> {
    nodes: &'n Nodes,
    pub(crate) extents: Option<Arc<Plan>>,
}

impl<'n> Live<'n> {
    /// By the extent tree of a forest.
    pub(crate) fn new(nodes: &'n Nodes, forest: &Forest) -> Self {
        let none = Self::nothing(nodes);
        let is_there = forest.trees.contains_key(&TreeId::EXTENT);
        let extents = is_there.then(|| forest.plan(nodes, TreeId::EXTENT, &none));
        Self {
            nodes,
            extents: extents.map(Arc::new),
        }
    }

    /// Nothing is known.
    pub(crate) const fn nothing(nodes: &'n Nodes) -> Self {
        Self {
            nodes,
            extents: None,
        }
    }

    /// By the part of an extent tree that has one node.
    fn around(nodes: &'n Nodes, root: NodeRef, node: NodeRef) -> Self {
        let (from, to) = keys_of(node);
        let request = PlanRequest {
            root: Some(root),
            owners: Vec::new(),
            from,
            to,
        };
        let plan = plan(nodes, &request, &Self::nothing(nodes));
        Self {
            nodes,
            extents: Some(Arc::new(plan)),
        }
    }

    /// Whether it knows anything.
    pub(crate) fn is_known(&self) -> bool {
        self.extents.is_some()
    }

    /// Whether one of `trees` refers to a node of its generation.
    pub(crate) fn has(&self, node: NodeRef, trees: &[(TreeId, Generation)]) -> bool {
        self.look(node, trees) == Some(true)
    }

    /// The same; `None` if that part of the extent tree is lost.
    fn look(&self, node: NodeRef, trees: &[(TreeId, Generation)]) -> Option<bool> {
        let plan = self.extents.as_ref()?;
        let is_of = |tree: u64| trees.iter().any(|(id, _)| id.get() == tree);
        let (mut is_there, mut is_referred, mut is_lost) = (false, false, false);
        plan.each_in(self.nodes, keys_of(node), |seen| match seen {
            Seen::Gap { .. } => is_lost = true,
            Seen::Item {
                origin: Origin::Found,
                ..
            } => is_lost = true,
            Seen::Item { key, data, .. } => match key.item_type {
                ItemType::TREE_BLOCK_REF => is_referred |= is_of(key.offset),
                ItemType::EXTENT_ITEM | ItemType::METADATA_ITEM => {
                    let mut reader = Reader::new("extent", data);
                    let Ok(header) = ExtentHeader::read(key.item_type, &mut reader) else {
                        return;
                    };
                    is_there |= header.generation == node.generation
                        && header.flags.contains(ExtentFlags::TREE_BLOCK);
                    let refs = InlineRefs::new(reader.rest()).flatten();
                    is_referred |= refs.into_iter().any(|one| match one {
                        ExtentRef::TreeBlock { root } => is_of(root.get()),
                        _ => false,
                    });
                }
                _ => {}
            },
        });
        match is_lost {
            true => None,
            false => Some(is_there && is_referred),
        }
    }
}

/// The keys of what the extent tree says of a node.
fn keys_of(node: NodeRef) -> (Key, Key) {
    let at = |kind, offset| Key::new(node.logical.get(), kind, offset);
    (
        at(ItemType::EXTENT_ITEM, 0),
        at(ItemType::TREE_BLOCK_REF, u64::MAX),
    )
}

/// Whether an extent tree has its own root, as that of a whole commit has;
/// `None` if it cannot be read that far.
pub(crate) fn has_itself(nodes: &Nodes, extents: NodeRef) -> Option<bool> {
    let live = Live::around(nodes, extents, extents);
    live.look(extents, &[(TreeId::EXTENT, extents.generation)])
}

/// Whether an extent tree has the root of a tree of roots.
pub(crate) fn has_roots(nodes: &Nodes, extents: NodeRef, roots: NodeRef) -> Option<bool> {
    let live = Live::around(nodes, extents, roots);
    live.look(roots, &[(TreeId::ROOT, roots.generation)])
}

/// How many nodes of its own generation an extent tree has, of those that the
/// scan found.
pub(crate) fn live_of_generation(nodes: &Nodes, extents: NodeRef) -> usize {
    let request = PlanRequest::whole(TreeId::EXTENT, Some(extents), extents.generation);
    let live = Live {
        nodes,
        extents: Some(Arc::new(plan(nodes, &request, &Live::nothing(nodes)))),
    };
    let all = nodes.index.nodes.iter();
    let own = all.filter(|node| node.generation == extents.generation);
    let counted = own.take(COUNTED_MAX).filter(|node| {
        let owner = (node.owner, node.generation);
        live.has(node.reference(), &[owner])
    });
    counted.count()
}
