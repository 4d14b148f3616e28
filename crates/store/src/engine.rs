//! All of a volume's state that changes, in four rooms: the forest (trees and
//! their nodes), the allocation of space, what is pending, and the publication
//! of generations.
//!
//! One lock (in [`crate::Store`]) guards it. Nothing here does data I/O; nodes
//! that are not in memory are read from the device.

use crate::acknowledged::Acknowledged;
use crate::commit::Publisher;
use crate::commit::rounds::Rounds;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::fsync_log::FsyncLog;
use crate::inject;
use crate::item_fault::ItemFault;
use crate::nodes::tree_bytes::Counted;
use crate::nodes::trees::TreeState;
use crate::nodes::{Dropped, NodeStore};
use crate::quota::QuotaState;
use crate::refs::RefLedger;
use crate::refs::pending::{Backref, ExtentKind, Outcome};
use crate::rescue::Rescue;
use crate::space::SpaceMap;
use crate::space::block_group::BlockGroup;
use butterfs_format::features::Incompat;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{LABEL_SIZE, Superblock};
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Cursor, Node, NodeFault, NodeSink, NodeSource, Packing, TreeError};
use butterfs_volume::LogicalSpace;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// The state of an open volume, in rooms.
#[derive(Debug)]
pub struct Engine {
    /// Which damage is passed over.
    pub(crate) rescue: Rescue,
    /// Logical space: devices, chunks and their copies.
    pub(crate) space: Arc<LogicalSpace>,
    /// The generation that is running; the superblock's is one less.
    pub(crate) generation: Generation,
    /// Trees and nodes.
    pub(crate) nodes: NodeStore,
    /// Chunks, block groups and free space.
    pub(crate) space_map: SpaceMap,
    /// References and checksums that wait for their trees.
    pub(crate) ledger: RefLedger,
    /// Superblocks and devices.
    pub(crate) publisher: Publisher,
    /// The fsync log.
    pub(crate) log: FsyncLog,
    /// How many users keep each subvolume as it is.
    pub(crate) kept_trees: FxHashMap<TreeId, usize>,
    /// Data that wait in memory.
    pub(crate) acknowledged: Acknowledged,
    /// Quota groups, where quotas are on.
    pub(crate) quotas: QuotaState,
    /// The rounds of commits.
    pub(crate) rounds: Rounds,
    /// Bytes of changed nodes at which a generation is committed.
    pub(crate) generation_bytes: usize,
    /// How often something was changed that a commit publishes.
    pub(crate) edits: u64,
}

impl Engine {
    /// Bytes of a node.
    #[must_use]
    pub fn node_size(&self) -> usize {
        self.nodes.identity().node_size
    }

    /// Bytes of a sector.
    #[must_use]
    pub const fn sector_size(&self) -> u64 {
        self.nodes.identity().sector_size
    }

    /// The running generation: what changes now is stamped with it.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The superblock as of the last commit.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        self.publisher.superblock()
    }

    /// Names the volume; the next commit writes it.
    ///
    /// # Errors
    /// [`StoreError::BadLabel`] for a label too long or with a NUL.
    pub fn set_label(&mut self, label: &[u8]) -> Result<(), StoreError> {
        // The field keeps room for a NUL.
        if label.len() >= LABEL_SIZE || label.contains(&0) {
            return Err(StoreError::BadLabel);
        }
        self.note_edit();
        self.publisher.superblock_mut().label = label.to_vec();
        Ok(())
    }

    /// Notes a feature that the volume uses from now on; the next commit writes
    /// it.
    pub fn set_incompat(&mut self, feature: Incompat) {
        if !self.publisher.superblock().incompat.contains(feature) {
            self.note_edit();
            self.publisher.superblock_mut().incompat |= feature;
        }
    }

    /// Logical space, for data I/O outside of the engine's lock.
    #[must_use]
    pub const fn space(&self) -> &Arc<LogicalSpace> {
        &self.space
    }

    /// Whether quotas are on, and what is noted for counting.
    #[must_use]
    pub const fn quota_state(&self) -> &QuotaState {
        &self.quotas
    }

    /// Quota groups, and what is noted for counting them.
    pub const fn quota_state_mut(&mut self) -> &mut QuotaState {
        &mut self.quotas
    }

    /// References and checksums that wait for their trees, to add to them.
    pub const fn ledger_mut(&mut self) -> &mut RefLedger {
        &mut self.ledger
    }

    /// The space of the volume.
    #[must_use]
    pub const fn space_map(&self) -> &SpaceMap {
        &self.space_map
    }

    /// The space of the volume, to change.
    pub const fn space_map_mut(&mut self) -> &mut SpaceMap {
        &mut self.space_map
    }

    /// The fsync log.
    #[must_use]
    pub const fn log(&self) -> &FsyncLog {
        &self.log
    }

    /// The fsync log, to change.
    pub const fn log_mut(&mut self) -> &mut FsyncLog {
        &mut self.log
    }

    /// Which damage is passed over.
    #[must_use]
    pub const fn rescue(&self) -> Rescue {
        self.rescue
    }

    /// How many nodes were read though their checksum is wrong. Everything that
    /// came from them may be wrong: names, metadata, places of data.
    #[must_use]
    pub fn nodes_passed_over(&self) -> usize {
        self.nodes.passed_over()
    }

    /// Bytes of nodes changed in the running generation.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        self.nodes.dirty_len() * self.node_size()
    }

    /// Number of extents with pending changes.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.ledger.pending().len()
    }

    /// Block groups, ascending.
    pub fn groups(&self) -> impl Iterator<Item = &BlockGroup> {
        self.space_map.groups().values()
    }

    /// Chunks, ascending.
    pub fn chunks(&self) -> impl Iterator<Item = (Logical, &Chunk)> {
        self.space_map
            .chunks()
            .iter()
            .map(|(logical, chunk)| (*logical, chunk))
    }

    /// Bytes of devices that the chunk at `start` takes.
    #[must_use]
    pub fn device_bytes(&self, start: Logical) -> u64 {
        self.space_map.device_bytes(start)
    }

    /// Root item of `tree`.
    ///
    /// # Errors
    /// [`TreeError::NoSuchTree`], reading.
    pub fn tree_state(&self, tree: TreeId) -> Result<TreeState, StoreError> {
        if let Some(state) = self.nodes.see_tree(tree, TreeState::clone) {
            return Ok(state);
        }
        let state = self.load_tree(tree)?;
        self.nodes.add_loaded_tree(tree, state.clone());
        Ok(state)
    }

    fn load_tree(&self, tree: TreeId) -> Result<TreeState, StoreError> {
        let last = Key::new(tree.get(), ItemType::ROOT_ITEM, u64::MAX);
        let mut cursor = Cursor::seek_in(self, TreeId::ROOT, &last)?;
        let found = cursor.key() == Some(last) || cursor.prev()?;
        let item = cursor.item().filter(|(key, _)| {
            found && key.objectid == tree.get() && key.item_type == ItemType::ROOT_ITEM
        });
        let Some((key, data)) = item else {
            return Err(TreeError::NoSuchTree(tree).into());
        };
        let item = RootItem::parse(data).map_err(|e| bad_item(TreeId::ROOT, key, &e))?;
        let root = item.root();
        // What cannot be read becomes an error when it is needed.
        match self.node(root) {
            Ok(node) if node.owner() != tree && tree != TreeId::RELOC => {
                return Err(TreeError::Corrupt {
                    logical: root.logical,
                    fault: NodeFault::Owner,
                }
                .into());
            }
            Err(error @ TreeError::Missing(_)) => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
        Ok(TreeState {
            root,
            item_key: Some(key),
            item,
            changed: false,
            only_moved: false,
        })
    }

    /// Changes the root item of `tree`; it is written at the commit.
    ///
    /// # Errors
    /// [`TreeError::NoSuchTree`], reading.
    pub fn change_root_item(
        &mut self,
        tree: TreeId,
        change: impl FnOnce(&mut RootItem),
    ) -> Result<(), StoreError> {
        self.tree_state(tree)?;
        self.note_edit();
        if let Some(state) = self.nodes.tree_mut(tree) {
            change(&mut state.item);
            state.changed = true;
        }
        Ok(())
    }

    /// The leaf at an address that a reference by parent names.
    pub(crate) fn leaf_at(&self, logical: Logical) -> Result<Arc<Node>, StoreError> {
        self.node_at(logical, Some(0))
    }

    /// The node at an address, of any generation. If a level is named, the node
    /// must have it.
    ///
    /// # Errors
    /// There is no node, or it has another level; reading failed.
    pub fn node_at(&self, logical: Logical, level: Option<u8>) -> Result<Arc<Node>, StoreError> {
        self.nodes.node_at(&self.space, logical, level)
    }

    /// Counts an edit. It is called before the edit, so that a transaction
    /// knows when an edit leaves it half done.
    pub(crate) const fn note_edit(&mut self) {
        self.edits = self.edits.wrapping_add(1);
    }

    /// Notes a change of one node's references.
    pub(crate) fn change_node_ref(&mut self, node: NodeRef, by: Backref, count: i64) -> Outcome {
        self.note_edit();
        let length = self.node_size() as u64;
        let kind = ExtentKind::of_node(node);
        self.ledger
            .pending_mut()
            .change(node.logical, length, kind, (by, count))
    }

    pub(crate) fn new_node(
        &mut self,
        tree: TreeId,
        level: u8,
        first_key: Option<Key>,
    ) -> Result<NodeRef, StoreError> {
        let logical = self.allocate_node(tree)?;
        self.note_edit();
        let kind = ExtentKind::Node { level, first_key };
        let length = self.node_size() as u64;
        self.ledger
            .pending_mut()
            .insert_new(logical, length, kind, Backref::Tree(tree))?;
        Ok(NodeRef {
            logical,
            generation: self.generation,
            level,
        })
    }

    pub(crate) fn is_writable(&self, node: NodeRef) -> bool {
        self.nodes.is_writable(node, self.generation)
    }

    fn copy_on_write(&mut self, tree: TreeId, old: NodeRef) -> Result<NodeRef, StoreError> {
        let node = self.node(old)?;
        let new = self.new_node(tree, old.level, node.first_key())?;
        if new.logical == old.logical {
            let key = Key::new(old.logical.get(), ItemType::FREE_SPACE_EXTENT, 0);
            let fault = ItemFault::FreeButUsed;
            return Err(corrupt_item(TreeId::FREE_SPACE, key, fault));
        }
        let copy = self.nodes.copy_of(&node, new, tree);
        self.nodes.insert(copy);
        self.move_references(tree, &node)?;
        Ok(new)
    }
}

impl NodeSource for Engine {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        inject::point()?;
        let on_missing = |missing| self.on_missing(missing);
        self.nodes.find(&self.space, reference, on_missing)
    }

    fn see<R>(&self, reference: NodeRef, look: impl FnOnce(&Node) -> R) -> Result<R, TreeError> {
        inject::point()?;
        let on_missing = |missing| self.on_missing(missing);
        self.nodes.see(&self.space, reference, on_missing, look)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        if let Some(root) = self.nodes.see_tree(tree, |state| state.root) {
            return Ok(root);
        }
        Ok(self.tree_state(tree)?.root)
    }
}

impl NodeSink for Engine {
    fn packing(&self) -> Packing {
        self.rounds.packing
    }

    fn make_writable(&mut self, tree: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        inject::point()?;
        if self.is_writable(node) {
            return Ok(node);
        }
        Ok(self.copy_on_write(tree, node)?)
    }

    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError> {
        inject::point()?;
        let new = self.new_node(tree, level, None)?;
        self.nodes.count_node(tree, Counted::More);
        self.quotas.note_growth(tree, self.node_size() as u64);
        self.nodes.insert_empty(new, tree);
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        inject::point()?;
        self.note_edit();
        self.nodes
            .edit(node.logical)
            .ok_or(TreeError::Misuse("a node was edited that is not writable"))
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        inject::point()?;
        self.note_edit();
        if self.nodes.remove(node.logical).is_none() {
            return Err(TreeError::Misuse("a node was dropped that is not writable"));
        }
        self.nodes.count_node(tree, Counted::Less);
        self.drop_node_ref(node, Backref::Tree(tree));
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.note_edit();
        let state = self
            .nodes
            .tree_mut(tree)
            .ok_or(TreeError::NoSuchTree(tree))?;
        state.root = root;
        state.changed = true;
        Ok(())
    }
}

impl Engine {
    /// Gives a tree the moved copy of its root. The content stays as it is, and
    /// so do the generation and the time of its last change, which streams name.
    /// The commit follows at once.
    pub(crate) fn move_root(&mut self, tree: TreeId, moved: NodeRef) -> Result<(), TreeError> {
        let before = self.tree_state(tree).map(|state| state.root.generation)?;
        self.set_root(tree, moved)?;
        if let Some(state) = self.nodes.tree_mut(tree) {
            state.only_moved = before != self.generation;
        }
        Ok(())
    }

    /// Drops one reference to a node. If the node was born in this generation,
    /// its space is free at once.
    pub(crate) fn drop_node_ref(&mut self, node: NodeRef, by: Backref) {
        if self.change_node_ref(node, by, -1) == Outcome::Vanished {
            let length = self.node_size() as u64;
            if self.nodes.forget(node.logical) == Dropped::Free {
                self.give_back(node.logical, length);
            }
        }
    }
}
