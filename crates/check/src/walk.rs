//! Walks a tree in parallel, each node once. Summaries of its content are
//! joined in key order.

use crate::code::FaultCode;
use crate::context::{Context, code_of};
use crate::extents::parents::Parents;
use crate::extents::tally::{By, Record, Shape, Tally};
use crate::report::Place;
use crate::visited::Visited;
use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_RELOC, FLAG_WRITTEN,
};
use butterfs_format::{Key, NodeRef, TreeId};
use butterfs_tree::Node;
use rayon::iter::{IndexedParallelIterator, IntoParallelIterator, ParallelIterator};

/// Leaves that one task reads.
const LEAVES_PER_TASK: usize = 8;

/// A leaf, and how it refers to data.
pub(crate) struct Leaf<'n> {
    pub(crate) tree: TreeId,
    pub(crate) node: &'n Node,
    /// References of this leaf are by parent, not by tree.
    pub(crate) is_parent: bool,
}

impl Leaf<'_> {
    /// Items in key order.
    pub(crate) fn items(&self) -> impl Iterator<Item = (Key, &[u8])> + '_ {
        (0..self.node.len()).map(|slot| (self.node.key(slot), self.node.data(slot)))
    }

    pub(crate) const fn item(&self, key: Key) -> Place {
        Place::item(self.tree, key)
    }
}

/// Summarizes the content of a tree. Summaries are joined in key order.
pub(crate) trait Visitor: Sync {
    /// Summary of a part of a tree.
    type Summary: Send;

    /// Returns the summary of a leaf.
    fn leaf(&self, leaf: &Leaf<'_>) -> Self::Summary;

    /// Joins the summaries of two neighbouring parts.
    fn join(&self, left: Self::Summary, right: Self::Summary) -> Self::Summary;

    /// Returns the summary for a part that could not be read.
    fn gap(&self) -> Self::Summary;

    /// Offers the summary of a whole node, for the case that another tree shares
    /// the node. `nodes` is the number of nodes that it sums up.
    fn keep(&self, _node: NodeRef, _summary: &Self::Summary, _nodes: u64) {}

    /// Returns the summary of a node and its number of nodes, if [`Self::keep`]
    /// kept it.
    fn kept(&self, _node: NodeRef) -> Option<(Self::Summary, u64)> {
        None
    }
}

/// The result of a walk.
pub(crate) struct Outcome<S> {
    pub(crate) summary: S,
    /// Nodes, each as often as the tree reaches it.
    pub(crate) nodes: u64,
    /// False if a node could not be read.
    pub(crate) complete: bool,
}

/// What walks of a volume share.
#[derive(Clone, Copy)]
pub(crate) struct Walker<'w, 'a> {
    pub(crate) context: &'w Context<'a>,
    pub(crate) visited: &'w Visited,
    /// Takes the references that the walk finds; `None` for walks whose
    /// references do not count, such as those of fsync logs.
    pub(crate) tally: Option<&'w Tally>,
    /// Nodes whose references are by parent. Empty for trees that share nothing.
    pub(crate) parents: &'w Parents,
}

/// The first number that no subvolume can have: as the number of a quota group,
/// its level is not 0.
const SUBVOLUMES_END: u64 = 1 << 48;

/// Whether a subvolume can have this number.
fn can_hold_files(owner: TreeId) -> bool {
    owner.is_subvolume() && owner.get() < SUBVOLUMES_END
}

/// A tree to walk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tree {
    pub(crate) id: TreeId,
    pub(crate) root: NodeRef,
    /// The tree or the parent that refers to the root.
    pub(crate) by: By,
    /// Owner that the root must have.
    pub(crate) owner: Option<TreeId>,
    /// The key and the level at which the deletion of the tree continues. What
    /// lies before them is already deleted.
    pub(crate) dropped: Option<(Key, u8)>,
    /// Bytes of all nodes according to the root item, and the item's key. `None`
    /// for trees without a root item, and for those whose item does not follow
    /// the nodes.
    pub(crate) counted: Option<(u64, Key)>,
}

impl Tree {
    /// A tree of which nothing is deleted.
    pub(crate) const fn whole(id: TreeId, root: NodeRef) -> Self {
        Self {
            id,
            root,
            by: By::Tree(id.get()),
            owner: Some(id),
            dropped: None,
            counted: None,
        }
    }
}

/// How a walk reached a node.
#[derive(Clone, Copy)]
struct Hook {
    by: By,
    first: Option<Key>,
    bound: Option<Key>,
    /// The node is on the path on which the deletion of the tree continues.
    on_path: bool,
}

impl<'w> Walker<'w, '_> {
    /// Walks a whole tree.
    pub(crate) fn walk<V: Visitor>(&self, tree: &Tree, visitor: &V) -> Outcome<V::Summary> {
        let hook = Hook {
            by: tree.by,
            first: None,
            bound: None,
            on_path: tree.dropped.is_some(),
        };
        self.found(tree.root, tree.by);
        let outcome = self.node(tree, visitor, tree.root, hook);
        if outcome.complete && self.tally.is_some() {
            self.compare_bytes(tree, outcome.nodes);
        }
        outcome
    }

    /// Compares the number of a tree's nodes with what its root item says.
    fn compare_bytes(&self, tree: &Tree, nodes: u64) {
        let found = nodes.saturating_mul(self.context.node_bytes());
        if let Some((counted, key)) = tree.counted
            && counted != found
        {
            let text = format!("it counts {counted} bytes of nodes; the tree has {found}");
            let place = Place::item(TreeId::ROOT, key);
            self.context.fault(FaultCode::RootBytes, place, text);
        }
    }

    fn found(&self, node: NodeRef, by: By) {
        if let Some(tally) = self.tally {
            let shape = Shape::Node(node.level);
            tally.add(node.logical.get(), Record::Found { by, shape });
        }
    }

    fn node<V: Visitor>(
        &self,
        tree: &Tree,
        visitor: &V,
        reference: NodeRef,
        hook: Hook,
    ) -> Outcome<V::Summary> {
        let gap = || Outcome {
            summary: visitor.gap(),
            nodes: 0,
            complete: false,
        };
        let context = self.context;
        if context.budget.is_exceeded() {
            return gap();
        }
        let place = Place {
            tree: Some(tree.id),
            key: None,
            logical: Some(reference.logical),
        };
        let is_first = match self.visited.claim(reference.logical) {
            Some(is_first) => is_first,
            None => {
                let text = "it lies in no chunk that holds nodes";
                context.fault(FaultCode::NodeUnmapped, place, text);
                return gap();
            }
        };
        let node = if is_first {
            context.load(tree.id, reference.into())
        } else {
            match context.peek(reference.into()) {
                Ok(node) => Some(node),
                Err((code, text)) => {
                    context.fault(code, place, text);
                    None
                }
            }
        };
        let Some(node) = node else {
            return gap();
        };
        if let Some(first) = hook.first
            && let Err(fault) = node.verify_place(&first, hook.bound.as_ref())
        {
            context.fault(code_of(fault), place, fault.to_string());
            return gap();
        }
        if self.tally.is_some() && self.parents.contradicts(&node, hook.by) {
            let text = "its references are by parent although its own tree refers to it";
            context.fault(FaultCode::ExtentByParent, place, text);
        }
        if !is_first {
            return match visitor.kept(reference) {
                Some((summary, nodes)) => Outcome {
                    summary,
                    nodes,
                    complete: true,
                },
                None => {
                    if !tree.id.is_subvolume()
                        && self.tally.is_some()
                        && tree.by == By::Tree(tree.id.get())
                    {
                        let text = "it is reached from two places of trees that share nothing";
                        context.fault(FaultCode::NodeReachedTwice, place, text);
                    }
                    gap()
                }
            };
        }
        self.header(tree, &node, hook, place);
        let outcome = self.content(tree, visitor, &node, hook);
        if outcome.complete {
            visitor.keep(reference, &outcome.summary, outcome.nodes);
        }
        outcome
    }

    fn header(&self, tree: &Tree, node: &Node, hook: Hook, place: Place) {
        if let Some(tally) = self.tally {
            let record = Record::Node {
                level: node.level(),
                generation: node.generation().get(),
                is_parent: self.parents.contains(node),
            };
            tally.add(node.logical().get(), record);
            if let Some(charges) = &self.context.charges {
                let (owner, generation) = (node.owner().get(), node.generation().get());
                charges.add(owner, generation, self.context.node_bytes());
            }
        }
        let context = self.context;
        let owner = node.owner();
        let fits = match (tree.owner, hook.first) {
            (Some(wanted), None) => owner == wanted,
            (Some(wanted), Some(_)) if !wanted.is_subvolume() => owner == wanted,
            _ => can_hold_files(owner) || owner == TreeId::DATA_RELOC,
        };
        if !fits {
            let text = format!("its header names tree {owner} as its owner");
            context.fault(FaultCode::NodeOwner, place, text);
        } else if self.tally.is_some() && self.parents.is_strange(context, node, tree.id, hook.by) {
            let text =
                format!("its header names tree {owner} as its owner, which does not hold it");
            context.fault(FaultCode::NodeOwner, place, text);
        }
        let flags = node.flags();
        let revision = flags.checked_shr(BACKREF_REVISION_SHIFT).unwrap_or(0);
        // Only relocation marks nodes, and each node that it marks is a parent.
        let is_marked = flags & FLAG_RELOC != 0;
        let has_parents = self.tally.is_some() || [TreeId::ROOT, TreeId::CHUNK].contains(&tree.id);
        let marked_alone = is_marked && has_parents && self.parents.excludes(node);
        if revision != BACKREF_REVISION_MIXED || flags & FLAG_WRITTEN == 0 || marked_alone {
            let text = format!("its header has the flags {flags:#x}");
            context.fault(FaultCode::NodeFlags, place, text);
        }
    }

    fn content<V: Visitor>(
        &self,
        tree: &Tree,
        visitor: &V,
        node: &Node,
        hook: Hook,
    ) -> Outcome<V::Summary> {
        let is_parent = self.parents.contains(node);
        if node.is_leaf() {
            let leaf = Leaf {
                tree: tree.id,
                node,
                is_parent,
            };
            return Outcome {
                summary: visitor.leaf(&leaf),
                nodes: 1,
                complete: true,
            };
        }
        let by = if is_parent {
            By::Parent(node.logical().get())
        } else {
            By::Tree(node.owner().get())
        };
        let path = tree
            .dropped
            .filter(|(_, level)| hook.on_path && node.level() >= *level);
        let begin = path.map_or(0, |(key, _)| node.child_slot(&key));
        let child = |slot: usize| {
            let reference = node.child(slot);
            self.found(reference, by);
            let next = slot.saturating_add(1);
            let bound = if next < node.len() {
                Some(node.key(next))
            } else {
                hook.bound
            };
            let hook = Hook {
                by,
                first: Some(node.key(slot)),
                bound,
                on_path: path.is_some() && slot == begin,
            };
            self.node(tree, visitor, reference, hook)
        };
        let per_task = if node.level() == 1 {
            LEAVES_PER_TASK
        } else {
            1
        };
        let parts: Vec<Outcome<V::Summary>> = (begin..node.len())
            .into_par_iter()
            .with_min_len(per_task)
            .map(child)
            .collect();
        let joined = parts.into_iter().reduce(|left, right| Outcome {
            summary: visitor.join(left.summary, right.summary),
            nodes: left.nodes.saturating_add(right.nodes),
            complete: left.complete && right.complete,
        });
        let mut whole = joined.unwrap_or_else(|| Outcome {
            summary: visitor.gap(),
            nodes: 0,
            complete: true,
        });
        whole.nodes = whole.nodes.saturating_add(1);
        whole
    }
}
