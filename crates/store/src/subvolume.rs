//! Trees of subvolumes: how they are made, copied and found by their UUIDs.
//!
//! Owns the items of a subvolume in the tree of roots and in the UUID tree. The
//! file layer knows in which directory of which subvolume it is.
//!
//! A snapshot shares all nodes with its source from one moment on. That moment
//! is a commit. Nodes of the running generation are changed in place, so the
//! shared ones among them are frozen until the generation ends.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::nodes::trees::TreeState;
use crate::refs::share::Keyed;
use crate::{Purpose, Store, now};
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::item::uuid;
use butterfs_format::{ItemType, Key, TreeId, UuidBytes, object};
use butterfs_tree::{Cursor, Editor, Node, NodeSink, NodeSource, TreeError, find};
use std::fmt::Display;

const NO_UUID: UuidBytes = [0; 16];

pub(crate) const fn orphan_key(tree: TreeId) -> Key {
    Key::new(object::ORPHAN, ItemType::ORPHAN_ITEM, tree.0)
}

/// What may be done with a subvolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TreeAccess {
    /// It was deleted, or never was.
    Dead,
    /// Reading.
    ReadOnly,
    /// Everything.
    ReadWrite,
}

impl Store {
    /// Runs `change`, with room for `nodes` changed nodes, and commits. Nothing
    /// comes between the change and the commit. A change that fails because of
    /// a user's mistake must fail before its first edit; then nothing is
    /// committed.
    ///
    /// # Errors
    /// Errors of `change`; [`StoreError::NoSpace`] before anything changed; the
    /// volume is not writable; writing failed, which poisons the volume.
    pub fn commit_with<R, E: From<StoreError> + Display>(
        &self,
        nodes: usize,
        change: impl FnOnce(&mut Engine) -> Result<R, E>,
    ) -> Result<R, E> {
        self.commit_for((nodes, Purpose::Grow), change)
    }

    /// [`Store::commit_with`] for a purpose. What frees space, or only notes
    /// something, may use the space that is kept for deletions.
    pub(crate) fn commit_for<R, E: From<StoreError> + Display>(
        &self,
        (nodes, purpose): (usize, Purpose),
        change: impl FnOnce(&mut Engine) -> Result<R, E>,
    ) -> Result<R, E> {
        self.write_back()?;
        let _one_at_a_time = self.lock_commits();
        self.commit_with_alone((nodes, purpose), change)
    }

    /// [`Store::commit_for`] with its locks held.
    pub(crate) fn commit_with_alone<R, E: From<StoreError> + Display>(
        &self,
        (nodes, purpose): (usize, Purpose),
        change: impl FnOnce(&mut Engine) -> Result<R, E>,
    ) -> Result<R, E> {
        let mut transaction = self.begin_in_commit(nodes, purpose)?;
        let value = match change(&mut transaction) {
            Ok(value) => value,
            Err(error) => return transaction.end(Err(error)),
        };
        let prepared = transaction.prepare_commit(now());
        if let Err(error) = &prepared {
            self.fail(error);
        }
        transaction.finish();
        prepared
            .and_then(|prepared| self.publish(&prepared))
            .inspect_err(|error| self.fail(error))?;
        if self.device_loss.owes_another(&self.space) {
            self.commit_alone()?;
        }
        Ok(value)
    }
}

/// While this lives, the subvolume is neither deleted nor made writable.
#[derive(Debug)]
pub struct KeptTree<'s> {
    store: &'s Store,
    tree: TreeId,
}

impl Drop for KeptTree<'_> {
    fn drop(&mut self) {
        let mut engine = self.store.change();
        if let Some(count) = engine.kept_trees.get_mut(&self.tree) {
            *count -= 1;
            if *count == 0 {
                engine.kept_trees.remove(&self.tree);
            }
        }
    }
}

impl Store {
    /// True while some operation keeps a subvolume as it is.
    pub(crate) fn keeps_trees(&self) -> bool {
        !self.read().kept_trees.is_empty()
    }

    /// Keeps a subvolume as it is, for an operation that reads it for a long
    /// time.
    pub fn keep_tree(&self, tree: TreeId) -> KeptTree<'_> {
        *self.change().kept_trees.entry(tree).or_default() += 1;
        KeptTree { store: self, tree }
    }
}

impl Engine {
    /// True while some operation keeps `tree` as it is.
    #[must_use]
    pub fn is_tree_kept(&self, tree: TreeId) -> bool {
        self.kept_trees.contains_key(&tree)
    }

    /// The identity of the next subvolume. No identity is given twice while the
    /// volume is open.
    ///
    /// # Errors
    /// No identity is left; reading.
    pub fn next_tree(&mut self) -> Result<TreeId, StoreError> {
        let next = match self.nodes.next_tree() {
            Some(next) => next,
            None => {
                let last = Key::new(TreeId::SUBVOLUME_MAX.get(), ItemType::MAX, u64::MAX);
                let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &last)?;
                let highest = if cursor.prev()? { cursor.key() } else { None };
                let highest = highest.map_or(0, |key| key.objectid);
                // The group of a subvolume that this generation freed is still
                // there.
                let highest = highest.max(self.quotas.last_forgotten_tree());
                highest.max(TreeId::FIRST_SUBVOLUME.get() - 1) + 1
            }
        };
        if next > TreeId::SUBVOLUME_MAX.get() {
            return Err(StoreError::NoSpace);
        }
        self.nodes.set_next_tree(next + 1);
        Ok(TreeId(next))
    }

    /// Makes an empty tree, with `item` as its root item. The addresses in the
    /// item are set here.
    ///
    /// # Errors
    /// No space; reading.
    pub fn create_tree(&mut self, tree: TreeId, item: RootItem) -> Result<(), StoreError> {
        let root = self.create(tree, 0)?;
        self.enter_tree(tree, root, 0, item)
    }

    /// Gives `tree` a new empty root. The caller drops the nodes that it had.
    ///
    /// # Errors
    /// No space; reading.
    pub(crate) fn restart_tree(&mut self, tree: TreeId) -> Result<(), StoreError> {
        let root = self.create(tree, 0)?;
        self.set_root(tree, root)?;
        let size = self.nodes.identity().node_size as u64;
        self.change_root_item(tree, |item| item.bytes_used = size)
    }

    /// Makes `tree` a copy of `source`, with `item` as its root item. The copy
    /// shares all nodes below the root. Only within [`Store::commit_with`].
    ///
    /// # Errors
    /// No space; reading.
    pub fn copy_tree(
        &mut self,
        source: TreeId,
        tree: TreeId,
        item: RootItem,
    ) -> Result<(), StoreError> {
        let generation = self.generation();
        let old = self.tree_state(source)?.root;
        let node = self.node(old)?;
        let new = self.new_node(tree, old.level, node.first_key())?;
        let copy = node.copied_to(new.logical, generation, tree);
        // Everything below the root is shared now, also nodes that are not
        // written yet.
        self.nodes.freeze_below_root(source, old.logical);
        self.nodes.insert(copy);
        self.refer_to_children(&node, Keyed::ByTree(tree), 1)?;
        self.change_root_item(source, |item| item.last_snapshot = generation)?;
        let mut item = RootItem {
            last_snapshot: generation,
            ..item
        };
        if old.generation == generation {
            // The source changed since its item was written.
            item.ctransid = generation;
            item.ctime = now();
        }
        self.enter_tree(tree, new, generation.get(), item)?;
        self.quotas.note_snapshot(source, tree);
        Ok(())
    }

    fn enter_tree(
        &mut self,
        tree: TreeId,
        root: butterfs_format::NodeRef,
        key_offset: u64,
        item: RootItem,
    ) -> Result<(), StoreError> {
        let mut item = RootItem {
            logical: root.logical,
            level: root.level,
            generation: root.generation,
            generation_v2: root.generation,
            ..item
        };
        if tree.is_subvolume() {
            item.vouch_for_flags();
        }
        let key = Key::new(tree.get(), ItemType::ROOT_ITEM, key_offset);
        butterfs_tree::insert(self, TreeId::ROOT, &key, &item.encode())?;
        let state = TreeState {
            root,
            item_key: Some(key),
            item,
            changed: false,
            only_moved: false,
        };
        self.nodes.insert_tree(tree, state);
        self.quotas.note_new_tree(tree);
        Ok(())
    }

    /// Registers `tree` under `uuid`, of the kind `item_type` (a subvolume's
    /// own or a received one), if the volume has a UUID tree. Does nothing for
    /// an empty UUID.
    ///
    /// # Errors
    /// No space; a damaged item; reading.
    pub fn add_uuid(
        &mut self,
        uuid: &UuidBytes,
        item_type: ItemType,
        tree: TreeId,
    ) -> Result<(), StoreError> {
        self.change_uuid(uuid, item_type, |trees| {
            if !trees.contains(&tree) {
                trees.push(tree);
            }
        })
    }

    /// Ends [`Engine::add_uuid`].
    ///
    /// # Errors
    /// No space; a damaged item; reading.
    pub fn remove_uuid(
        &mut self,
        uuid: &UuidBytes,
        item_type: ItemType,
        tree: TreeId,
    ) -> Result<(), StoreError> {
        self.change_uuid(uuid, item_type, |trees| {
            trees.retain(|other| *other != tree)
        })
    }

    /// Whether one more subvolume can be registered under `uuid`. All of them
    /// are in one item.
    ///
    /// # Errors
    /// A damaged item; reading.
    pub fn has_room_for_uuid(
        &self,
        uuid: &UuidBytes,
        item_type: ItemType,
    ) -> Result<bool, StoreError> {
        let mut trees = self.find_uuid(uuid, item_type)?;
        trees.push(TreeId(0));
        Ok(uuid::encode(&trees).len() <= Node::item_data_max(self.node_size()))
    }

    fn change_uuid(
        &mut self,
        uuid: &UuidBytes,
        item_type: ItemType,
        change: impl FnOnce(&mut Vec<TreeId>),
    ) -> Result<(), StoreError> {
        if *uuid == NO_UUID || !self.has_tree(TreeId::UUID)? {
            return Ok(());
        }
        let key = uuid::key(uuid, item_type);
        let old = match find(self, TreeId::UUID, &key)? {
            Some((leaf, slot)) => {
                uuid::parse(leaf.data(slot)).map_err(|error| bad_item(TreeId::UUID, key, &error))?
            }
            None => Vec::new(),
        };
        let mut trees = old.clone();
        change(&mut trees);
        if trees == old {
            return Ok(());
        }
        let mut editor = Editor::new(self, TreeId::UUID);
        if trees.is_empty() {
            editor.remove(&key)?;
        } else {
            editor.replace(&key, &uuid::encode(&trees))?;
        }
        Ok(())
    }

    /// Subvolumes that are registered under `uuid`; none if the volume has no
    /// UUID tree.
    ///
    /// # Errors
    /// A damaged item; reading.
    pub fn find_uuid(
        &self,
        uuid: &UuidBytes,
        item_type: ItemType,
    ) -> Result<Vec<TreeId>, StoreError> {
        if !self.has_tree(TreeId::UUID)? {
            return Ok(Vec::new());
        }
        let key = uuid::key(uuid, item_type);
        match find(self, TreeId::UUID, &key)? {
            Some((leaf, slot)) => {
                uuid::parse(leaf.data(slot)).map_err(|error| bad_item(TreeId::UUID, key, &error))
            }
            None => Ok(Vec::new()),
        }
    }

    /// True when the volume has `tree`.
    ///
    /// # Errors
    /// Reading.
    pub fn has_tree(&self, tree: TreeId) -> Result<bool, StoreError> {
        match self.tree_state(tree) {
            Ok(_) => Ok(true),
            Err(StoreError::Tree(TreeError::NoSuchTree(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// What may be done with a subvolume.
    ///
    /// # Errors
    /// Reading.
    pub fn tree_access(&self, tree: TreeId) -> Result<TreeAccess, StoreError> {
        let of = |item: &RootItem| match item {
            item if item.refs == 0 => TreeAccess::Dead,
            item if item.flags.contains(RootFlags::READONLY) => TreeAccess::ReadOnly,
            _ => TreeAccess::ReadWrite,
        };
        if let Some(access) = self.nodes.see_tree(tree, |state| of(&state.item)) {
            return Ok(access);
        }
        match self.tree_state(tree) {
            Ok(state) => Ok(of(&state.item)),
            Err(StoreError::Tree(TreeError::NoSuchTree(_))) => Ok(TreeAccess::Dead),
            Err(error) => Err(error),
        }
    }

    /// Marks `tree` as deleted: no name leads to it any more, and
    /// [`Engine::drop_step`] frees it.
    ///
    /// # Errors
    /// No space; reading.
    pub fn kill_tree(&mut self, tree: TreeId) -> Result<(), StoreError> {
        self.change_root_item(tree, |item| {
            item.refs = 0;
            item.flags |= RootFlags::DEAD;
            item.drop_progress = None;
            item.drop_level = 0;
        })?;
        butterfs_tree::replace(self, TreeId::ROOT, &orphan_key(tree), &[])?;
        Ok(())
    }

    /// Deleted subvolumes whose trees are not free yet.
    ///
    /// # Errors
    /// Reading.
    pub fn dead_trees(&self) -> Result<Vec<TreeId>, StoreError> {
        let mut trees = Vec::new();
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &orphan_key(TreeId(0)))?;
        while let Some(key) = cursor.key() {
            if key.objectid != object::ORPHAN || key.item_type != ItemType::ORPHAN_ITEM {
                break;
            }
            // Trees that have no item of their own would look as if nobody
            // referred to them.
            trees.extend(Some(TreeId(key.offset)).filter(|tree| tree.is_subvolume()));
            cursor.next()?;
        }
        Ok(trees)
    }
}
