//! Nodes that move together: some nodes, and all nodes above them.
//!
//! Owns the move of nodes with everything that refers to them. A node that
//! moves keeps its content and its owner. Its parents get its new address, so
//! they move too, up to the roots of all trees that reach it. Nodes that the
//! running generation wrote have addresses that nobody knows yet. They are
//! changed where they are, and nothing above them changes.
//!
//! References follow the format's two forms. As long as only one tree reaches a
//! node, its children may go on to refer to it by tree. A node that several
//! trees reach gets a new generation, which would hide that it is shared. So it
//! is marked as relocated, which says that it may be shared. From then on its
//! children refer to it by its address (FULL_BACKREF), as after a balance of
//! the kernel.
//!
//! Everything is looked up and verified before the first edit.
//!
//! Source: the documentation's chapter on back references; volumes that the
//! kernel balanced.

use super::moves::Moves;
use super::terms::RefsNow;
use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::pending::{Backref, ExtentKind};
use crate::refs::share::{Keyed, data_children};
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::{ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Node, NodeSource};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What refers to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Above {
    /// It is the root of a tree.
    Root(TreeId),
    /// A branch.
    Branch(Logical),
}

/// Who reaches a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reached {
    /// One tree.
    One(TreeId),
    /// Several.
    Many,
}

/// A node of the graph.
struct Member {
    node: Arc<Node>,
    /// The running generation wrote it: it stays where it is.
    is_new: bool,
    /// Its children refer to it by its address.
    full_backref: bool,
    /// References to it, each with what is behind it.
    above: Vec<(Backref, Above)>,
}

/// How a member changes.
struct Step {
    old: Logical,
    new: NodeRef,
    /// Its children refer to it by its new address.
    full_backref: bool,
    /// References to it after the move.
    by: Vec<Backref>,
    /// File extents that it holds, with their references before and after.
    data: Vec<(ExtentPlace, Backref, Backref)>,
}

/// Nodes that move together.
#[derive(Default)]
pub(super) struct Graph {
    members: FxHashMap<Logical, Member>,
}

fn strange(logical: Logical, fault: ItemFault) -> StoreError {
    let key = Key::new(logical.get(), ItemType::METADATA_ITEM, 0);
    corrupt_item(TreeId::EXTENT, key, fault)
}

impl Engine {
    /// What is behind a reference to a node.
    fn above(&self, node: &Node, by: Backref) -> Result<Above, StoreError> {
        let (logical, level) = (node.logical(), node.level());
        let (branch, owner) = match by {
            Backref::Tree(tree) => {
                let state = self.tree_state(tree)?;
                if state.item.drop_progress.is_some() {
                    return Err(StoreError::HalfFreed(tree));
                }
                if state.root.logical == logical {
                    return Ok(Above::Root(tree));
                }
                let missing = || strange(logical, ItemFault::RefOfTreeWithoutNode);
                let key = node.first_key().ok_or_else(missing)?;
                let mut at = state.root;
                while at.level > level + 1 {
                    let branch = self.node(at)?;
                    at = branch.child(branch.child_slot(&key));
                }
                if at.level != level + 1 {
                    return Err(missing());
                }
                (self.node(at)?, Some(tree))
            }
            Backref::SharedNode(parent) => (self.node_at(parent, Some(level + 1))?, None),
            Backref::Data { .. } | Backref::SharedData(_) => {
                return Err(strange(logical, ItemFault::RefForData));
            }
        };
        let key = node.first_key().unwrap_or(Key::MIN);
        let child = branch.child(branch.child_slot(&key));
        if child.logical != logical || owner.is_some_and(|owner| branch.owner() != owner) {
            return Err(strange(logical, ItemFault::RefLeadsElsewhere));
        }
        Ok(Above::Branch(branch.logical()))
    }
}

impl Member {
    /// How its children refer to it.
    fn children(&self) -> Keyed {
        match self.full_backref {
            true => Keyed::ByParent(self.node.logical()),
            false => Keyed::ByTree(self.node.owner()),
        }
    }

    fn load(engine: &Engine, logical: Logical, level: u8) -> Result<Self, StoreError> {
        let node = engine.node_at(logical, Some(level))?;
        let mut member = Self {
            is_new: engine.nodes.is_dirty(logical),
            node,
            full_backref: false,
            above: Vec::new(),
        };
        if member.is_new {
            if engine.nodes.is_frozen(logical) {
                return Err(StoreError::Internal(
                    "a node moves in the middle of a snapshot",
                ));
            }
            return Ok(member);
        }
        let kind = ExtentKind::Node {
            level,
            first_key: None,
        };
        let RefsNow {
            by, full_backref, ..
        } = engine.refs_now(logical, engine.node_size() as u64, kind)?;
        member.full_backref = full_backref;
        for (by, count) in by {
            if count != 1 {
                return Err(strange(logical, ItemFault::RefCount));
            }
            let above = engine.above(&member.node, by)?;
            member.above.push((by, above));
        }
        match member.above.is_empty() {
            true => Err(strange(logical, ItemFault::NoRefs)),
            false => Ok(member),
        }
    }
}

impl Graph {
    /// Nodes in it.
    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// Adds a node, with all above it.
    pub(super) fn add(
        &mut self,
        engine: &Engine,
        logical: Logical,
        level: u8,
    ) -> Result<(), StoreError> {
        let mut waiting = vec![(logical, level)];
        while let Some((logical, level)) = waiting.pop() {
            if self.members.contains_key(&logical) {
                continue;
            }
            let member = Member::load(engine, logical, level)?;
            for (_, above) in &member.above {
                if let Above::Branch(branch) = above {
                    waiting.push((*branch, level + 1));
                }
            }
            self.members.insert(logical, member);
        }
        Ok(())
    }

    /// Members, highest level first.
    fn downwards(&self) -> Vec<Logical> {
        let mut order: Vec<_> = self.members.keys().copied().collect();
        order.sort_by_key(|at| (std::cmp::Reverse(self.members[at].node.level()), *at));
        order
    }

    /// Who reaches each member.
    fn reached(&self, order: &[Logical]) -> Result<FxHashMap<Logical, Reached>, StoreError> {
        let mut all: FxHashMap<Logical, Reached> = FxHashMap::default();
        for logical in order {
            let member = &self.members[logical];
            let mut reached = member.is_new.then(|| Reached::One(member.node.owner()));
            for (by, above) in &member.above {
                let part = match above {
                    Above::Root(tree) => Reached::One(*tree),
                    Above::Branch(branch) => {
                        let parent = &self.members[branch];
                        // The node's form and that of the reference are the
                        // same.
                        if parent.children().of_node() != *by {
                            return Err(strange(*logical, ItemFault::RefForm));
                        }
                        all[branch]
                    }
                };
                reached = match reached {
                    Some(known) if known != part => Some(Reached::Many),
                    _ => Some(part),
                };
            }
            let reached = reached.ok_or_else(|| strange(*logical, ItemFault::Unreached))?;
            all.insert(*logical, reached);
        }
        Ok(all)
    }

    /// Verifies that each pointer from a branch to a node that gets another
    /// place is one that the node's references name, and that it leads to the
    /// node as it is: with its level, its generation and its first key. A
    /// pointer of a damaged branch may name any address.
    fn verify_pointers(&self, order: &[Logical]) -> Result<(), StoreError> {
        for logical in order {
            let branch = &self.members[logical].node;
            let slots = match branch.is_leaf() {
                true => 0,
                false => branch.len(),
            };
            for slot in 0..slots {
                let child = branch.child(slot);
                let Some(member) = self.members.get(&child.logical) else {
                    continue;
                };
                let by_branch = Above::Branch(*logical);
                let is_known =
                    member.is_new || member.above.iter().any(|(_, above)| *above == by_branch);
                let is_same = child == member.node.reference()
                    && member.node.first_key() == Some(branch.key(slot));
                if !is_known || !is_same {
                    return Err(strange(child.logical, ItemFault::PointerWithoutRef));
                }
            }
        }
        Ok(())
    }

    /// Moves all of it, and writes the new addresses of `data` into leaves.
    /// Gives the number of nodes. An error before the first edit leaves
    /// everything as it was.
    pub(super) fn move_all(
        &self,
        engine: &mut Engine,
        data: &mut Moves,
    ) -> Result<usize, StoreError> {
        let order = self.downwards();
        self.verify_pointers(&order)?;
        let reached = self.reached(&order)?;
        let mut places: FxHashMap<Logical, NodeRef> = FxHashMap::default();
        let planned = self
            .allocate(engine, &order, &mut places)
            .and_then(|()| self.plan(engine, &order, &reached, &places, data));
        let steps = match planned {
            Ok(steps) => steps,
            Err(error) => {
                let length = engine.node_size() as u64;
                for place in places.values() {
                    engine.give_back(place.logical, length);
                }
                return Err(error);
            }
        };
        engine.note_edit();
        for step in &steps {
            self.move_one(engine, step, &places, data)?;
        }
        Ok(order.len())
    }

    fn allocate(
        &self,
        engine: &mut Engine,
        order: &[Logical],
        places: &mut FxHashMap<Logical, NodeRef>,
    ) -> Result<(), StoreError> {
        for logical in order {
            let member = &self.members[logical];
            if !member.is_new {
                let new = NodeRef {
                    logical: engine.allocate_node(member.node.owner())?,
                    generation: engine.generation(),
                    level: member.node.level(),
                };
                places.insert(*logical, new);
            }
        }
        Ok(())
    }

    /// Decides what happens to each member; nothing is changed.
    fn plan(
        &self,
        engine: &Engine,
        order: &[Logical],
        reached: &FxHashMap<Logical, Reached>,
        places: &FxHashMap<Logical, NodeRef>,
        data: &Moves,
    ) -> Result<Vec<Step>, StoreError> {
        let mut full: FxHashMap<Logical, bool> = FxHashMap::default();
        let mut steps = Vec::with_capacity(order.len());
        for logical in order {
            let member = &self.members[logical];
            let is_full =
                !member.is_new && (member.full_backref || reached[logical] == Reached::Many);
            full.insert(*logical, is_full);
            let new = places
                .get(logical)
                .copied()
                .unwrap_or(member.node.reference());
            let before = member.children();
            let after = match is_full {
                true => Keyed::ByParent(new.logical),
                false => Keyed::ByTree(member.node.owner()),
            };
            if before != after {
                engine.verify_refs_of_children(&member.node, before)?;
            }
            let by = member.above.iter().map(|(_, above)| match above {
                Above::Root(tree) => Backref::Tree(*tree),
                Above::Branch(branch) => match (full[branch], places.get(branch)) {
                    (true, Some(place)) => Backref::SharedNode(place.logical),
                    _ => Backref::Tree(self.members[branch].node.owner()),
                },
            });
            let mut step = Step {
                old: *logical,
                new,
                full_backref: is_full,
                by: by.collect(),
                data: Vec::new(),
            };
            if member.node.is_leaf() {
                let new = data_children(&member.node, after)?;
                for ((place, old), (_, new)) in
                    data_children(&member.node, before)?.into_iter().zip(new)
                {
                    let moves = data.has(place.disk);
                    if moves {
                        let extent = (place.disk, place.disk_length);
                        engine.verify_refs(extent, ExtentKind::Data, &[(old, 1)])?;
                    }
                    if moves || old != new {
                        step.data.push((place, old, new));
                    }
                }
            }
            steps.push(step);
        }
        Ok(steps)
    }

    fn move_one(
        &self,
        engine: &mut Engine,
        step: &Step,
        places: &FxHashMap<Logical, NodeRef>,
        data: &mut Moves,
    ) -> Result<(), StoreError> {
        let member = &self.members[&step.old];
        let node = &member.node;
        let mut copy = match member.is_new {
            true => Node::clone(node),
            false => engine.nodes.copy_of(node, step.new, node.owner()),
        };
        if step.full_backref {
            copy.mark_relocated();
        }
        if node.is_leaf() {
            rename_data(&mut copy, data)?;
        } else {
            for slot in 0..node.len() {
                if let Some(place) = places.get(&node.child(slot).logical) {
                    copy.set_child(slot, *place);
                }
            }
        }
        engine.note_edit();
        engine.nodes.insert(copy);
        if !member.is_new {
            self.move_references(engine, step, places)?;
        }
        for (place, old, new) in &step.data {
            data.refer(engine, place, *old, *new)?;
        }
        Ok(())
    }

    /// Moves the references to a node, and those of its children that stay
    /// where they are.
    fn move_references(
        &self,
        engine: &mut Engine,
        step: &Step,
        places: &FxHashMap<Logical, NodeRef>,
    ) -> Result<(), StoreError> {
        let member = &self.members[&step.old];
        let node = &member.node;
        let length = engine.node_size() as u64;
        for (by, _) in &member.above {
            engine.change_node_ref(node.reference(), *by, -1);
        }
        let kind = ExtentKind::Node {
            level: node.level(),
            first_key: node.first_key(),
        };
        let mut by = step.by.iter();
        let first = *by
            .next()
            .ok_or(StoreError::Internal("a node moves that nobody refers to"))?;
        let owner = Some(node.owner());
        engine
            .ledger
            .pending_mut()
            .insert_moved((step.new.logical, length), kind, first, owner)?;
        for by in by {
            engine.change_node_ref(step.new, *by, 1);
        }
        if step.full_backref {
            engine.mark_full_backref(step.new);
            engine.nodes.freeze(step.new.logical);
        }
        let before = member.children();
        let after = match step.full_backref {
            true => Keyed::ByParent(step.new.logical),
            false => Keyed::ByTree(node.owner()),
        };
        if !node.is_leaf() && before != after {
            for slot in 0..node.len() {
                let child = node.child(slot);
                if !places.contains_key(&child.logical) {
                    engine.change_node_ref(child, before.of_node(), -1);
                    engine.change_node_ref(child, after.of_node(), 1);
                }
            }
        }
        for (_, above) in &member.above {
            if let Above::Root(tree) = above {
                engine.move_root(*tree, step.new)?;
            }
        }
        Ok(())
    }
}

/// Writes new addresses into the file extents of a leaf.
fn rename_data(leaf: &mut Node, data: &Moves) -> Result<(), StoreError> {
    for slot in 0..leaf.len() {
        let key = leaf.key(slot);
        if key.item_type != ItemType::EXTENT_DATA {
            continue;
        }
        let owner = leaf.owner();
        let mut extent = FileExtent::parse(leaf.data(slot))
            .map_err(|error| crate::bad_item(owner, key, &error))?;
        let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = &mut extent.body
        else {
            continue;
        };
        let Some(to) = data.place_of(place.disk) else {
            continue;
        };
        place.disk = to;
        let bytes = extent.encode();
        leaf.data_mut(slot).copy_from_slice(&bytes);
    }
    Ok(())
}
