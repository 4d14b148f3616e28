//! Changing a tree.
//!
//! One descent from the root makes the path writable and splits branches that
//! are nearly full on the way, so that a leaf can split into three without
//! climbing. The path is kept between edits: keys that fall into the same leaf
//! cost no descent.
//!
//! Between a split and a merge is a margin. A node is split when its items do not
//! fit into one node, and two nodes are merged only if an eighth of the room
//! stays free. So the two halves of a split are merged only after an eighth of a
//! node was removed from them, and a merged node is split only after an eighth
//! was added.

use crate::error::TreeError;
use crate::node::Node;
use crate::{NodeSink, NodeSource, Packing};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, LEVEL_MAX};
use butterfs_format::{Key, NodeRef, TreeId};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Loads the child in `slot` of `parent` and checks its place. `bound` is the
/// first key beyond the parent; it becomes the first key beyond the child.
pub fn load_child<S: NodeSource>(
    source: &S,
    parent: &Node,
    slot: usize,
    bound: &mut Option<Key>,
) -> Result<Arc<Node>, TreeError> {
    let reference = parent.child(slot);
    let child = source.node(reference)?;
    if slot + 1 < parent.len() {
        *bound = Some(parent.key(slot + 1));
    }
    child
        .verify_place(&parent.key(slot), bound.as_ref())
        .and_then(|()| child.verify_owner(parent))
        .map_err(|fault| TreeError::Corrupt {
            logical: reference.logical,
            fault,
        })?;
    Ok(child)
}

/// Room for this many pointers is kept in every branch on an insert's path.
const SPARE_POINTERS: usize = 2;

/// Bytes that are left free in a node that two others were merged into.
const fn margin(room: usize) -> usize {
    room / 8
}

#[derive(Clone, Copy, Debug)]
struct Step {
    node: NodeRef,
    /// Slot of the next step, for a branch.
    slot: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Intent {
    Insert,
    Change,
}

/// Edits one tree.
#[derive(Debug)]
pub struct Editor<'s, S: NodeSink> {
    sink: &'s mut S,
    tree: TreeId,
    /// Writable nodes from the root to a leaf; empty when unknown.
    path: Vec<Step>,
    /// Keys that belong to the path's leaf: from `lower` (any, if `None`) ...
    lower: Option<Key>,
    /// ... to before `bound` (any, if `None`).
    bound: Option<Key>,
    /// The path's branches have spare pointers.
    spare: bool,
}

impl<'s, S: NodeSink> Editor<'s, S> {
    /// An editor of `tree`.
    pub const fn new(sink: &'s mut S, tree: TreeId) -> Self {
        Self {
            sink,
            tree,
            path: Vec::new(),
            lower: None,
            bound: None,
            spare: false,
        }
    }

    /// The trees as they are now, to read.
    pub const fn source(&self) -> &S {
        self.sink
    }

    /// What is edited, to change what is no node of the tree.
    pub const fn sink(&mut self) -> &mut S {
        self.sink
    }

    /// Makes the leaf writable that has `key` or would get it, and the nodes
    /// above it.
    ///
    /// # Errors
    /// Reading, no space.
    pub fn touch(&mut self, key: &Key) -> Result<(), TreeError> {
        self.position(key, Intent::Change)
    }

    /// Inserts an item.
    ///
    /// # Errors
    /// [`TreeError::Exists`], [`TreeError::ItemTooLarge`], reading, no space.
    pub fn insert(&mut self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.insert_with(key, data.len())?.copy_from_slice(data);
        Ok(())
    }

    /// Inserts an item and returns its data, for the caller to fill. What they
    /// hold before that is undefined.
    ///
    /// # Errors
    /// As [`Editor::insert`].
    pub fn insert_with(&mut self, key: &Key, size: usize) -> Result<&mut [u8], TreeError> {
        self.position(key, Intent::Insert)?;
        let leaf_ref = self.leaf();
        let leaf = self.sink.edit(leaf_ref)?;
        if size > Node::item_data_max(leaf.bytes().len()) {
            return Err(TreeError::ItemTooLarge { key: *key, size });
        }
        let slot = match leaf.search(key) {
            Ok(_) => return Err(TreeError::Exists(*key)),
            Err(slot) => slot,
        };
        if leaf.free_bytes() >= ITEM_SIZE + size {
            leaf.insert_item(slot, key, size);
            if slot == 0 {
                self.fix_first_key(self.path.len() - 1)?;
                self.lower = self.lower.map(|lower| lower.min(*key));
            }
            return Ok(self.sink.edit(leaf_ref)?.data_mut(slot));
        }
        let (target, slot) = self.split_leaf(key, slot, size)?;
        Ok(self.sink.edit(target)?.data_mut(slot))
    }

    /// Data of an item, to change in place; `None` when it is not there.
    ///
    /// # Errors
    /// Reading, no space.
    pub fn get_mut(&mut self, key: &Key) -> Result<Option<&mut [u8]>, TreeError> {
        self.position(key, Intent::Change)?;
        let leaf = self.sink.edit(self.leaf())?;
        Ok(match leaf.search(key) {
            Ok(slot) => Some(leaf.data_mut(slot)),
            Err(_) => None,
        })
    }

    /// Sets an item to `data`, whether it exists or not.
    ///
    /// # Errors
    /// As [`Editor::insert`], but not [`TreeError::Exists`].
    pub fn replace(&mut self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        self.position(key, Intent::Insert)?;
        let leaf = self.sink.edit(self.leaf())?;
        if let Ok(slot) = leaf.search(key) {
            let old = leaf.data(slot).len();
            if data.len() <= old + leaf.free_bytes() {
                leaf.resize_item(slot, data.len()).copy_from_slice(data);
                return Ok(());
            }
            if data.len() > Node::item_data_max(leaf.bytes().len()) {
                return Err(TreeError::ItemTooLarge {
                    key: *key,
                    size: data.len(),
                });
            }
            self.remove(key)?;
        }
        self.insert(key, data)
    }

    /// Appends `data` to the data of an item, or inserts the item with them.
    ///
    /// # Errors
    /// [`TreeError::ItemTooLarge`], reading, no space.
    pub fn append(&mut self, key: &Key, data: &[u8]) -> Result<(), TreeError> {
        let old: &[u8] = match self.insert(key, data) {
            Err(TreeError::Exists(_)) => self.get_mut(key)?.map_or(&[], |data| &*data),
            inserted => return inserted,
        };
        let all = [old, data].concat();
        self.replace(key, &all)
    }

    /// Removes an item; false when it was not there.
    ///
    /// # Errors
    /// Reading, no space.
    pub fn remove(&mut self, key: &Key) -> Result<bool, TreeError> {
        self.position(key, Intent::Change)?;
        let leaf = self.sink.edit(self.leaf())?;
        let Ok(slot) = leaf.search(key) else {
            return Ok(false);
        };
        self.remove_slots(slot..slot + 1)?;
        Ok(true)
    }

    /// Gives an item another key; false when it was not there. No node is made
    /// or given up for that. The caller knows that no item lies between the two
    /// keys.
    ///
    /// # Errors
    /// [`TreeError::Misuse`] if the key is not between those beside the item in
    /// its leaf; reading, no space.
    pub fn rekey(&mut self, old: &Key, new: &Key) -> Result<bool, TreeError> {
        self.position(old, Intent::Change)?;
        let bound = self.bound;
        let leaf = self.sink.edit(self.leaf())?;
        let Ok(slot) = leaf.search(old) else {
            return Ok(false);
        };
        let before = slot.checked_sub(1).map(|slot| leaf.key(slot));
        let after = match slot + 1 < leaf.len() {
            true => Some(leaf.key(slot + 1)),
            false => bound,
        };
        if before.is_some_and(|key| key >= *new) || after.is_some_and(|key| *new >= key) {
            return Err(TreeError::Misuse("a new key is not where the old one was"));
        }
        leaf.set_key(slot, new);
        if slot == 0 {
            self.fix_first_key(self.path.len() - 1)?;
            // The keys that belong to the leaf are others now.
            self.path.clear();
        }
        Ok(true)
    }

    /// Removes all items in `keys`; gives how many.
    ///
    /// # Errors
    /// Reading, no space.
    pub fn remove_range(&mut self, keys: RangeInclusive<Key>) -> Result<usize, TreeError> {
        let mut removed = 0;
        let mut from = *keys.start();
        while from <= *keys.end() {
            self.position(&from, Intent::Change)?;
            let leaf = self.sink.edit(self.leaf())?;
            let start = leaf.search(&from).unwrap_or_else(|slot| slot);
            let end = match leaf.search(keys.end()) {
                Ok(slot) => slot + 1,
                Err(slot) => slot,
            };
            let next = self.bound;
            if start < end {
                removed += end - start;
                self.remove_slots(start..end)?;
            }
            match next {
                Some(bound) => from = bound,
                None => break,
            }
        }
        Ok(removed)
    }

    /// Drops the pointer to `child`, with everything below it, which need not be
    /// readable. `key` is the first key below the pointer. False if no such
    /// pointer is there. The other nodes on the way must be readable.
    ///
    /// # Errors
    /// Reading, no space.
    pub fn drop_pointer(&mut self, key: &Key, child: NodeRef) -> Result<bool, TreeError> {
        if !self.position_above(key, child)? {
            return Ok(false);
        }
        let depth = self.path.len() - 1;
        self.drop_child(depth, self.path[depth].slot)?;
        let result = self.shrink();
        self.path.clear();
        result.map(|()| true)
    }

    /// Puts a new branch with `children`, each with its first key, in the place
    /// of the branch `lost`, which need not be readable. `key` is the first key
    /// below the pointer to it, `None` if it is the root. False if no such
    /// pointer is there.
    ///
    /// # Errors
    /// Reading, no space; [`TreeError::Misuse`] if `children` do not fit into a
    /// branch, or have another level.
    pub fn replace_branch(
        &mut self,
        key: Option<&Key>,
        lost: NodeRef,
        children: &[(Key, NodeRef)],
    ) -> Result<bool, TreeError> {
        self.path.clear();
        let is_there = match key {
            Some(key) => self.position_above(key, lost)?,
            None => self.sink.root(self.tree)? == lost,
        };
        if !is_there {
            return Ok(false);
        }
        let new = self.make_branch(lost.level, children)?;
        let Some(Step { node: parent, slot }) = self.path.last().copied() else {
            self.sink.set_root(self.tree, new)?;
            return Ok(true);
        };
        let above = self.sink.edit(parent)?;
        above.set_child(slot, new);
        above.set_key(slot, &children[0].0);
        let result = match slot {
            0 => self.fix_first_key(self.path.len() - 1),
            _ => Ok(()),
        };
        self.path.clear();
        result.map(|()| true)
    }

    /// A new branch with `children`, each with its first key, in their order.
    /// Nothing points to it yet.
    ///
    /// # Errors
    /// No space; [`TreeError::Misuse`] if `children` do not fit into a branch, or
    /// have another level.
    pub fn make_branch(
        &mut self,
        level: u8,
        children: &[(Key, NodeRef)],
    ) -> Result<NodeRef, TreeError> {
        let is_below = |(_, child): &(Key, NodeRef)| child.level + 1 == level;
        if children.is_empty() || !children.iter().all(is_below) {
            return Err(TreeError::Misuse("children of another level"));
        }
        let new = self.sink.create(self.tree, level)?;
        let branch = self.sink.edit(new)?;
        if children.len() > branch.pointers_max() {
            return Err(TreeError::Misuse("too many children for a branch"));
        }
        for (slot, (first, child)) in children.iter().enumerate() {
            branch.insert_pointer(slot, first, *child);
        }
        Ok(new)
    }

    /// Makes the path to the pointer to `child` writable, and goes there. `key` is
    /// the first key below the pointer. False if no such pointer is there.
    fn position_above(&mut self, key: &Key, child: NodeRef) -> Result<bool, TreeError> {
        self.path.clear();
        let mut at = self.sink.root(self.tree)?;
        while at.level > child.level + 1 {
            let node = self.sink.node(at)?;
            at = node.child(node.child_slot(key));
        }
        let is_there = at.level == child.level + 1 && {
            let node = self.sink.node(at)?;
            node.child(node.child_slot(key)) == child
        };
        if !is_there {
            return Ok(false);
        }
        let mut current = self.writable_root(Intent::Change)?;
        loop {
            let node = self.sink.node(current)?;
            let slot = node.child_slot(key);
            let next = node.child(slot);
            drop(node);
            self.path.push(Step {
                node: current,
                slot,
            });
            if next == child {
                return Ok(true);
            }
            let writable = self.sink.make_writable(self.tree, next)?;
            if writable != next {
                self.sink.edit(current)?.set_child(slot, writable);
            }
            current = writable;
        }
    }

    fn leaf(&self) -> NodeRef {
        self.path.last().expect("positioned before").node
    }

    fn position(&mut self, key: &Key, intent: Intent) -> Result<(), TreeError> {
        let inside = !self.path.is_empty()
            && (intent == Intent::Change || self.spare)
            && self.lower.is_none_or(|lower| lower <= *key)
            && self.bound.is_none_or(|bound| *key < bound);
        if inside {
            return Ok(());
        }
        let result = self.descend(key, intent);
        if result.is_err() {
            self.path.clear();
        }
        result
    }

    fn descend(&mut self, key: &Key, intent: Intent) -> Result<(), TreeError> {
        self.path.clear();
        self.bound = None;
        self.lower = None;
        self.spare = intent == Intent::Insert;
        let mut current = self.writable_root(intent)?;
        while current.level > 0 {
            let (mut slot, child, mut first, mut bound) = {
                let node = self.sink.node(current)?;
                let slot = node.child_slot(key);
                let mut bound = self.bound;
                load_child(self.sink, &node, slot, &mut bound)?;
                let first = (slot > 0).then(|| node.key(slot)).or(self.lower);
                (slot, node.child(slot), first, bound)
            };
            let mut writable = self.sink.make_writable(self.tree, child)?;
            if writable != child {
                self.sink.edit(current)?.set_child(slot, writable);
            }
            if intent == Intent::Insert && writable.level > 0 && self.nearly_full(writable)? {
                let right = self.split_branch(current, slot, writable, key)?;
                let parent = self.sink.node(current)?;
                let right_key = parent.key(slot + 1);
                if *key >= right_key {
                    slot += 1;
                    writable = right;
                    first = Some(right_key);
                } else {
                    bound = Some(right_key);
                }
            }
            self.path.push(Step {
                node: current,
                slot,
            });
            self.bound = bound;
            self.lower = first;
            current = writable;
        }
        self.path.push(Step {
            node: current,
            slot: 0,
        });
        Ok(())
    }

    fn writable_root(&mut self, intent: Intent) -> Result<NodeRef, TreeError> {
        let root = self.sink.root(self.tree)?;
        let writable = self.sink.make_writable(self.tree, root)?;
        if writable != root {
            self.sink.set_root(self.tree, writable)?;
        }
        if intent == Intent::Insert && writable.level > 0 && self.nearly_full(writable)? {
            return self.raise_root(writable);
        }
        Ok(writable)
    }

    /// Puts a branch with one pointer above the root.
    fn raise_root(&mut self, old: NodeRef) -> Result<NodeRef, TreeError> {
        if old.level >= LEVEL_MAX {
            return Err(TreeError::TooHigh(self.tree));
        }
        let first = self.sink.node(old)?.first_key().unwrap_or(Key::MIN);
        let root = self.sink.create(self.tree, old.level + 1)?;
        self.sink.edit(root)?.insert_pointer(0, &first, old);
        self.sink.set_root(self.tree, root)?;
        Ok(root)
    }

    fn nearly_full(&self, branch: NodeRef) -> Result<bool, TreeError> {
        let node = self.sink.node(branch)?;
        Ok(node.len() + SPARE_POINTERS > node.pointers_max())
    }

    /// Splits `child` (in `slot` of `parent`, which has room) and returns the
    /// new right node.
    fn split_branch(
        &mut self,
        parent: NodeRef,
        slot: usize,
        child: NodeRef,
        key: &Key,
    ) -> Result<NodeRef, TreeError> {
        let right = self.sink.create(self.tree, child.level)?;
        let from = self.sink.node(child)?;
        let count = from.len();
        let ascending = self.sink.packing() == Packing::Dense
            && from.last_key().is_some_and(|last| last <= *key);
        let middle = if ascending {
            count - count / 8
        } else {
            count / 2
        };
        let right_key = from.key(middle);
        self.sink.edit(right)?.append_slots(&from, middle..count);
        drop(from);
        self.sink.edit(child)?.remove_slots(middle..count);
        self.sink
            .edit(parent)?
            .insert_pointer(slot + 1, &right_key, right);
        Ok(right)
    }

    /// Splits the path's leaf, inserts `key` with `size` bytes (it belongs in
    /// `slot`) and returns its place. The path is unknown afterwards.
    fn split_leaf(
        &mut self,
        key: &Key,
        slot: usize,
        size: usize,
    ) -> Result<(NodeRef, usize), TreeError> {
        let leaf = self.leaf();
        if self.path.len() == 1 {
            let root = self.raise_root(leaf)?;
            self.path.insert(
                0,
                Step {
                    node: root,
                    slot: 0,
                },
            );
        }
        let Step {
            node: parent,
            slot: parent_slot,
        } = self.path[self.path.len() - 2];
        let from = self.sink.node(leaf)?;
        let count = from.len();
        let plan = plan_split(&from, slot, (key, size), self.sink.packing());
        let right = self.sink.create(self.tree, 0)?;
        let right_items = match plan {
            Split::At { position, .. } => position..count,
            Split::Alone => slot..count,
        };
        let right_start = right_items.start;
        self.sink
            .edit(right)?
            .append_items(&from, right_items.clone());
        drop(from);
        self.sink.edit(leaf)?.remove_items(right_items);
        let (target, target_slot) = match plan {
            Split::At { left: true, .. } => (leaf, slot),
            Split::At { left: false, .. } => (right, slot - right_start),
            Split::Alone if slot == 0 => (leaf, 0),
            Split::Alone => (self.sink.create(self.tree, 0)?, 0),
        };
        self.sink.edit(target)?.insert_item(target_slot, key, size);
        let right_key = self.sink.node(right)?.key(0);
        self.sink
            .edit(parent)?
            .insert_pointer(parent_slot + 1, &right_key, right);
        if target != leaf && target != right {
            self.sink
                .edit(parent)?
                .insert_pointer(parent_slot + 1, key, target);
        }
        if target == leaf && target_slot == 0 {
            self.fix_first_key(self.path.len() - 1)?;
        }
        self.path.clear();
        Ok((target, target_slot))
    }

    /// Updates the ancestors' keys of the path's node at `depth` after the
    /// node's first key changed.
    fn fix_first_key(&mut self, depth: usize) -> Result<(), TreeError> {
        let Some(key) = self.sink.node(self.path[depth].node)?.first_key() else {
            return Ok(());
        };
        for step in self.path[..depth].iter().rev() {
            self.sink.edit(step.node)?.set_key(step.slot, &key);
            if step.slot != 0 {
                break;
            }
        }
        Ok(())
    }

    fn remove_slots(&mut self, slots: Range<usize>) -> Result<(), TreeError> {
        let leaf = self.leaf();
        let first = slots.start == 0;
        self.sink.edit(leaf)?.remove_items(slots);
        if first {
            self.fix_first_key(self.path.len() - 1)?;
        }
        let node = self.sink.node(leaf)?;
        if holds_little(&node, self.sink.packing()) {
            drop(node);
            let result = self.shrink();
            self.path.clear();
            return result;
        }
        Ok(())
    }

    /// Merges or drops nodes of the path that hold too little, from the leaf
    /// up.
    fn shrink(&mut self) -> Result<(), TreeError> {
        for depth in (1..self.path.len()).rev() {
            let Step { node: current, .. } = self.path[depth];
            let Step { node: parent, slot } = self.path[depth - 1];
            let node = self.sink.node(current)?;
            if !holds_little(&node, self.sink.packing()) {
                return Ok(());
            }
            let room = node.bytes().len() - HEADER_SIZE;
            let most = (room - margin(room)).saturating_sub(node.used_bytes());
            let empty = node.is_empty();
            drop(node);
            if empty {
                self.drop_child(depth - 1, slot)?;
                self.sink.release(self.tree, current)?;
            } else if !self.merge(depth, parent, slot, most)? {
                break;
            }
        }
        self.lower_root()
    }

    /// The first key beyond the path's node at `depth`; `None` when no key of the
    /// tree is beyond it.
    fn bound_at(&self, depth: usize) -> Result<Option<Key>, TreeError> {
        for step in self.path[..depth].iter().rev() {
            let node = self.sink.node(step.node)?;
            if step.slot + 1 < node.len() {
                return Ok(Some(node.key(step.slot + 1)));
            }
        }
        Ok(None)
    }

    /// Merges the path's node at `depth` with a neighbour that uses at most
    /// `most` bytes. False if no such neighbour can be read.
    fn merge(
        &mut self,
        depth: usize,
        parent: NodeRef,
        slot: usize,
        most: usize,
    ) -> Result<bool, TreeError> {
        let current = self.path[depth].node;
        let siblings = self.sink.node(parent)?.len();
        let candidates = [
            slot.checked_sub(1),
            (slot + 1 < siblings).then_some(slot + 1),
        ];
        for sibling_slot in candidates.into_iter().flatten() {
            let mut bound = match sibling_slot + 1 == siblings {
                true => self.bound_at(depth - 1)?,
                false => None,
            };
            let above = self.sink.node(parent)?;
            // A damaged neighbour is no error: the node just stays small.
            let sibling = match load_child(self.sink, &above, sibling_slot, &mut bound) {
                Ok(sibling) => sibling,
                Err(TreeError::Corrupt { .. } | TreeError::Store(_)) => continue,
                Err(error) => return Err(error),
            };
            if sibling.used_bytes() > most {
                continue;
            }
            let old = sibling.reference();
            drop((above, sibling));
            let sibling = self.sink.make_writable(self.tree, old)?;
            if sibling != old {
                self.sink.edit(parent)?.set_child(sibling_slot, sibling);
            }
            let content = self.sink.node(sibling)?;
            let node = self.sink.edit(current)?;
            if sibling_slot < slot {
                node.prepend_all(&content);
            } else {
                node.append_slots(&content, 0..content.len());
            }
            drop(content);
            self.drop_child(depth - 1, sibling_slot)?;
            if sibling_slot < slot {
                self.path[depth - 1].slot -= 1;
                self.fix_first_key(depth)?;
            }
            self.sink.release(self.tree, sibling)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Removes the pointer in `slot` of the path's branch at `depth`.
    fn drop_child(&mut self, depth: usize, slot: usize) -> Result<(), TreeError> {
        self.sink
            .edit(self.path[depth].node)?
            .remove_pointers(slot..slot + 1);
        if slot == 0 {
            self.fix_first_key(depth)?;
        }
        Ok(())
    }

    /// Drops root branches with one pointer; an empty one becomes a leaf.
    fn lower_root(&mut self) -> Result<(), TreeError> {
        let needed = match self.sink.packing() {
            Packing::Dense => 2,
            // A root with one pointer stays.
            Packing::Lasting => 1,
        };
        loop {
            let root = self.sink.root(self.tree)?;
            let node = self.sink.node(root)?;
            if node.is_leaf() || node.len() >= needed {
                return Ok(());
            }
            let child = node.first_key().map(|_| node.child(0));
            drop(node);
            let new = match child {
                Some(child) => child,
                None => self.sink.create(self.tree, 0)?,
            };
            // The child is referred to by the tree, whatever is above it.
            let writable = self.sink.make_writable(self.tree, root)?;
            self.sink.set_root(self.tree, new)?;
            self.sink.release(self.tree, writable)?;
        }
    }
}

enum Split {
    /// Items from `position` go right; the new one goes `left` or right.
    At { position: usize, left: bool },
    /// The new item gets a leaf of its own, between those before and after.
    Alone,
}

/// True if the item at `key` seems to continue a run: its object is that of the
/// item in the slot before or the next one, and the object of the item in
/// `slot` is further away.
fn continues(leaf: &Node, slot: usize, key: &Key) -> bool {
    let Some(before) = slot.checked_sub(1) else {
        return false;
    };
    let step = key.objectid - leaf.key(before).objectid;
    step <= 1 && leaf.key(slot).objectid - key.objectid > step
}

/// Whether `node` is to be merged, or dropped if it is empty.
fn holds_little(node: &Node, packing: Packing) -> bool {
    match packing {
        Packing::Dense => node.used_bytes() < (node.bytes().len() - HEADER_SIZE) / 3,
        Packing::Lasting => node.is_empty(),
    }
}

/// Where to split `leaf` so that an item of `size` bytes fits in `slot`, where
/// `key` belongs.
fn plan_split(leaf: &Node, slot: usize, (key, size): (&Key, usize), packing: Packing) -> Split {
    let count = leaf.len();
    let behind = Split::At {
        position: count,
        left: false,
    };
    if slot == count && packing == Packing::Dense {
        // Ascending keys fill leaves to the end.
        return behind;
    }
    let room = leaf.bytes().len() - HEADER_SIZE;
    let total = leaf.used_bytes();
    let new = ITEM_SIZE + size;
    let before = slot.checked_sub(1);
    let left_used = before.map_or(0, |last| {
        slot * ITEM_SIZE + (leaf.bytes().len() - leaf.data_range(last).start)
    });
    // If less lies before it, items are being added to many objects in turn,
    // and each split would leave a leaf with little in it.
    let dense = packing == Packing::Dense;
    if dense && continues(leaf, slot, key) && left_used >= total / 2 {
        // More such items will come. They then fill leaves of their own, so
        // threads that add to different objects do not meet in one leaf.
        for (used, left) in [(left_used, true), (total - left_used, false)] {
            if used + new <= room {
                return Split::At {
                    position: slot,
                    left,
                };
            }
        }
    }
    let mut best: Option<(usize, usize, bool)> = None;
    for position in 1..count {
        let left_used =
            position * ITEM_SIZE + (leaf.bytes().len() - leaf.data_range(position - 1).start);
        for left in [true, false] {
            let possible = if left {
                slot <= position
            } else {
                slot >= position
            };
            let (a, b) = if left {
                (left_used + new, total - left_used)
            } else {
                (left_used, total - left_used + new)
            };
            if possible && a <= room && b <= room {
                let imbalance = a.abs_diff(b);
                if best.is_none_or(|(least, ..)| imbalance < least) {
                    best = Some((imbalance, position, left));
                }
            }
        }
    }
    match best {
        Some((_, position, left)) => Split::At { position, left },
        None if slot == count => behind,
        None => Split::Alone,
    }
}

/// Inserts one item; see [`Editor::insert`].
///
/// # Errors
/// As there.
pub fn insert<S: NodeSink>(
    sink: &mut S,
    tree: TreeId,
    key: &Key,
    data: &[u8],
) -> Result<(), TreeError> {
    Editor::new(sink, tree).insert(key, data)
}

/// Sets one item; see [`Editor::replace`].
///
/// # Errors
/// As there.
pub fn replace<S: NodeSink>(
    sink: &mut S,
    tree: TreeId,
    key: &Key,
    data: &[u8],
) -> Result<(), TreeError> {
    Editor::new(sink, tree).replace(key, data)
}

/// Changes the data of one item in place.
///
/// # Errors
/// [`TreeError::NotFound`]; as [`Editor::get_mut`].
pub fn update<S: NodeSink, R>(
    sink: &mut S,
    tree: TreeId,
    key: &Key,
    change: impl FnOnce(&mut [u8]) -> R,
) -> Result<R, TreeError> {
    match Editor::new(sink, tree).get_mut(key)? {
        Some(data) => Ok(change(data)),
        None => Err(TreeError::NotFound(*key)),
    }
}

/// Removes one item; see [`Editor::remove`].
///
/// # Errors
/// As there.
pub fn remove<S: NodeSink>(sink: &mut S, tree: TreeId, key: &Key) -> Result<bool, TreeError> {
    Editor::new(sink, tree).remove(key)
}
