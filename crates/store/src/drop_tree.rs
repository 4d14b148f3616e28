//! Freeing the tree of a deleted subvolume, in bounded steps.
//!
//! Owns the walk and its position. The root item keeps the position
//! (`drop_progress`: the key of the next child in the branch at `drop_level`), so
//! the walk goes on after a crash, here or in the kernel.
//!
//! A node that only this tree holds is freed after its children. A node that
//! others hold too loses one reference. If this tree owns such a node, the
//! node's children name this tree as their owner, and this tree will be gone.
//! So their references are first moved to the node itself (FULL_BACKREF). That
//! happens in the whole shared part, lowest nodes first, so that no node is
//! visited twice.
//!
//! Each visit of a node reads all that it needs before it changes anything. It also
//! verifies that the extent tree has the references which are to be dropped, since
//! a commit that finds one missing would fail. If something cannot be read or is
//! missing, the step ends there: what came before is whole, and nothing behind it
//! is touched.
//!
//! Source: the documentation's chapter on back references; volumes on which
//! the kernel deleted subvolumes.

use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::pending::{ExtentKind, Outcome};
use crate::refs::share::{ExtentState, Keyed, data_children};
use crate::subvolume::orphan_key;
use butterfs_format::{Generation, Key, NodeRef, TreeId};
use butterfs_tree::{Node, NodeSource};
use std::sync::Arc;

/// Whether a walk has come to its end.
#[derive(Clone, Debug)]
pub enum DropProgress {
    /// There is more to do.
    More,
    /// The next part of the tree cannot be read, or the extent tree lacks
    /// references to it. What was done before is whole, and the next step
    /// begins at the same place.
    Stopped(StoreError),
    /// The tree and its root item are gone.
    Done,
}

/// Where a step ended before the end of the tree.
pub(crate) struct Place {
    /// Key of the child that comes next.
    pub(crate) key: Key,
    /// Level of the branch that has it.
    pub(crate) level: u8,
    /// What keeps the walk from it.
    pub(crate) fault: Option<StoreError>,
}

/// A tree that is dropped.
#[derive(Clone, Copy)]
pub(crate) struct Top {
    pub(crate) tree: TreeId,
    pub(crate) root: NodeRef,
    /// How the root is referred to.
    pub(crate) by: Keyed,
    /// Nodes older than this generation have another owner.
    pub(crate) born: Generation,
}

/// How far a step came.
pub(crate) enum Dropped {
    /// It ended at its first node.
    Nothing(DropProgress),
    UpTo(Place),
    All,
}

/// A branch on the way, which only this tree holds.
struct Frame {
    node: Arc<Node>,
    slot: usize,
    full_backref: bool,
}

impl Frame {
    /// How its children refer to it.
    fn children(&self) -> Keyed {
        keyed(&self.node, self.full_backref)
    }
}

fn keyed(node: &Node, full_backref: bool) -> Keyed {
    if full_backref {
        Keyed::ByParent(node.logical())
    } else {
        Keyed::ByTree(node.owner())
    }
}

/// How many more nodes a step may visit.
struct Budget(usize);

impl Budget {
    fn take(&mut self, nodes: usize) -> bool {
        let enough = self.0 > 0;
        self.0 = self.0.saturating_sub(nodes);
        enough
    }
}

impl Engine {
    /// Frees about `nodes` nodes of a deleted subvolume, within a transaction
    /// that has room for as many. If the tree cannot be read, or the extent
    /// tree lacks references, the result is [`DropProgress::Stopped`] and no
    /// error.
    ///
    /// # Errors
    /// The tree of roots is damaged, or reading it failed.
    pub fn drop_step(&mut self, tree: TreeId, nodes: usize) -> Result<DropProgress, StoreError> {
        let state = self.tree_state(tree)?;
        if !tree.is_subvolume() || state.item.refs != 0 {
            return Err(StoreError::Internal("a subvolume is dropped that lives"));
        }
        // Nodes that are older than the snapshot have another owner.
        let born = state.item_key.map_or(0, |key| key.offset);
        let top = Top {
            tree,
            root: state.root,
            by: Keyed::ByTree(tree),
            born: Generation(born),
        };
        let begin = state.item.drop_progress;
        let begin = begin.map(|key| (key, state.item.drop_level));
        let place = match self.drop_from(top, begin, nodes) {
            Dropped::Nothing(progress) => return Ok(progress),
            Dropped::All => {
                self.forget_tree(tree)?;
                return Ok(DropProgress::Done);
            }
            Dropped::UpTo(place) => place,
        };
        let old = (state.item.drop_progress, state.item.drop_level);
        if old != (Some(place.key), place.level) {
            self.change_root_item(tree, |item| {
                item.drop_progress = Some(place.key);
                item.drop_level = place.level;
            })?;
        }
        Ok(match place.fault {
            Some(error) => DropProgress::Stopped(error),
            None => DropProgress::More,
        })
    }

    /// Frees about `nodes` nodes of a tree, from where an earlier step ended.
    pub(crate) fn drop_from(
        &mut self,
        top: Top,
        begin: Option<(Key, u8)>,
        nodes: usize,
    ) -> Dropped {
        let mut walk = Walk {
            engine: self,
            top,
            budget: Budget(nodes),
            stack: Vec::new(),
        };
        let begun = match begin {
            Some((key, level)) => walk.resume(top.root, &key, level),
            None => walk.visit(top.root, top.by),
        };
        match begun {
            Ok(Visit::Gone | Visit::Entered) => {}
            Ok(Visit::Later) => return Dropped::Nothing(DropProgress::More),
            Err(error) => return Dropped::Nothing(DropProgress::Stopped(error)),
        }
        walk.run().map_or(Dropped::All, Dropped::UpTo)
    }

    fn forget_tree(&mut self, tree: TreeId) -> Result<(), StoreError> {
        let state = self.nodes.remove_tree(tree);
        if let Some(key) = state.and_then(|state| state.item_key) {
            butterfs_tree::remove(self, TreeId::ROOT, &key)?;
        }
        butterfs_tree::remove(self, TreeId::ROOT, &orphan_key(tree))?;
        self.quotas.note_forgotten_tree(tree);
        Ok(())
    }

    /// The references of a node. Errors unless `by`, which is to be dropped, is
    /// among them.
    fn state_to_drop(&self, node: NodeRef, by: Keyed) -> Result<ExtentState, StoreError> {
        self.verify_node_ref(node, by.of_node())?;
        self.state_of_node(node)
    }

    fn state_of_node(&self, node: NodeRef) -> Result<ExtentState, StoreError> {
        let length = self.nodes.identity().node_size as u64;
        self.extent_state(node.logical, length, ExtentKind::of_node(node))
    }

    /// Drops the references of a leaf to its data. Before an error nothing is
    /// dropped.
    fn drop_data_of(&mut self, leaf: &Node, by: Keyed) -> Result<(), StoreError> {
        self.verify_refs_of_children(leaf, by)?;
        for (place, by) in data_children(leaf, by)? {
            let change = (by, -1);
            let outcome = self.ledger.pending_mut().change(
                place.disk,
                place.disk_length,
                ExtentKind::Data,
                change,
            );
            if outcome == Outcome::Vanished {
                self.ledger.forget_lost(place.disk);
                self.release_data(place.disk, place.disk_length);
            } else {
                self.ledger.note_lost(place.disk, by);
            }
        }
        Ok(())
    }
}

/// What became of a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    /// This tree has no reference to it any more.
    Gone,
    /// It is a branch that is walked now.
    Entered,
    /// There was not enough left of the step.
    Later,
}

struct Walk<'e> {
    engine: &'e mut Engine,
    top: Top,
    budget: Budget,
    stack: Vec<Frame>,
}

impl Walk<'_> {
    /// Goes back to where a step ended: the child at `key` of the branch at
    /// `level`.
    fn resume(&mut self, root: NodeRef, key: &Key, level: u8) -> Result<Visit, StoreError> {
        let (mut at, mut by) = (root, self.top.by);
        loop {
            let node = self.engine.node(at)?;
            if node.is_leaf() || at.level < level {
                return Err(corrupt_item(TreeId::ROOT, *key, ItemFault::DropPosition));
            }
            let slot = node.child_slot(key);
            let full_backref = self.engine.state_to_drop(at, by)?.full_backref;
            by = keyed(&node, full_backref);
            let child = node.child(slot);
            self.stack.push(Frame {
                node,
                slot,
                full_backref,
            });
            if at.level == level {
                return Ok(Visit::Entered);
            }
            at = child;
        }
    }

    /// Walks until the step's end or to what cannot be read, and says where to
    /// go on.
    fn run(&mut self) -> Option<Place> {
        while let Some(frame) = self.stack.last() {
            if frame.slot == frame.node.len() {
                self.leave();
                continue;
            }
            let by = frame.children();
            let (key, level) = (frame.node.key(frame.slot), frame.node.level());
            let child = frame.node.child(frame.slot);
            let fault = match self.visit(child, by) {
                Ok(Visit::Gone) => {
                    self.advance();
                    continue;
                }
                Ok(Visit::Entered) => continue,
                Ok(Visit::Later) => None,
                Err(error) => Some(error),
            };
            return Some(Place { key, level, fault });
        }
        None
    }

    fn advance(&mut self) {
        if let Some(frame) = self.stack.last_mut() {
            frame.slot += 1;
        }
    }

    /// All children of the lowest branch are gone, so the branch goes too.
    fn leave(&mut self) {
        let Some(frame) = self.stack.pop() else {
            return;
        };
        let by = self.stack.last().map_or(self.top.by, Frame::children);
        self.engine
            .drop_node_ref(frame.node.reference(), by.of_node());
        self.advance();
    }

    /// Drops this tree's reference `by` to a node, or enters the node. After an
    /// error the reference is still there, and references that were handed over
    /// stay handed over.
    fn visit(&mut self, reference: NodeRef, by: Keyed) -> Result<Visit, StoreError> {
        if !self.budget.take(1) {
            return Ok(Visit::Later);
        }
        let state = self.engine.state_to_drop(reference, by)?;
        if state.count > 1 {
            if !state.full_backref && !self.hand_over(reference)? {
                return Ok(Visit::Later);
            }
            if self.top.tree != TreeId::RELOC {
                self.engine.note_dropped_subtree(reference);
            }
            self.engine.drop_node_ref(reference, by.of_node());
            return Ok(Visit::Gone);
        }
        let node = self.engine.node(reference)?;
        if node.is_leaf() {
            self.engine
                .drop_data_of(&node, keyed(&node, state.full_backref))?;
            self.engine.drop_node_ref(reference, by.of_node());
            return Ok(Visit::Gone);
        }
        self.stack.push(Frame {
            node,
            slot: 0,
            full_backref: state.full_backref,
        });
        Ok(Visit::Entered)
    }

    /// Moves this tree's references to the children of a shared node, and to
    /// their children, to the nodes themselves. False if the step ended before
    /// that was done.
    fn hand_over(&mut self, reference: NodeRef) -> Result<bool, StoreError> {
        // A node that was moved before does not end the step. Otherwise the
        // step would never get beyond it.
        if reference.generation <= self.top.born
            || self.engine.state_of_node(reference)?.full_backref
        {
            return Ok(true);
        }
        let node = self.engine.node(reference)?;
        if node.owner() != self.top.tree {
            return Ok(true);
        }
        if !node.is_leaf() {
            for slot in 0..node.len() {
                if !self.hand_over(node.child(slot))? {
                    return Ok(false);
                }
            }
        }
        if !self.budget.take(1) {
            return Ok(false);
        }
        let by_tree = Keyed::ByTree(self.top.tree);
        self.engine.verify_refs_of_children(&node, by_tree)?;
        let by_itself = Keyed::ByParent(reference.logical);
        self.engine.refer_to_children(&node, by_itself, 1)?;
        self.engine.refer_to_children(&node, by_tree, -1)?;
        self.engine.mark_full_backref(reference);
        Ok(true)
    }
}
