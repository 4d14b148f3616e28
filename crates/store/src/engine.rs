//! All of a volume's state that changes: trees, space, pending references.
//!
//! One lock (in [`crate::Store`]) guards it. Nothing here does data I/O; nodes
//! that are not in memory are read from the device.
//!
//! Invariants: a node in `dirty` has the running generation and nobody on disk
//! refers to it; a node in `writing` belongs to the generation that is being
//! published; everything else is immutable.

use crate::cache::NodeCache;
use crate::checksums::PendingChecksums;
use crate::data::LostRefs;
use crate::device_stats::StatsOfDevices;
use crate::devices::DeviceItems;
use crate::early::Early;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::extent::pending::{Backref, ExtentKind, Outcome, PendingRefs};
use crate::inject;
use crate::item_fault::ItemFault;
use crate::log::{FsyncLog, LogSpace};
use crate::missing::OnMissing;
use crate::near::{self, EngineNumber};
use crate::quota::Quotas;
use crate::rescue::{OnFault, Rescue};
use crate::reserve::Acknowledged;
use crate::space::block_group::BlockGroup;
use crate::space::block_groups::BlockGroups;
use crate::space::ranges::RangeSet;
use crate::trees::Trees;
use crate::view::{Held, HoldId};
use butterfs_format::features::Incompat;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{LABEL_SIZE, Superblock};
use butterfs_format::{DeviceId, Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{
    Cursor, Expected, Headers, Node, NodeFault, NodeSink, NodeSource, NodeStamp, TreeError,
    VolumeIdentity,
};
use butterfs_volume::{LogicalSpace, ReadAs};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A tree that was looked at.
#[derive(Clone, Debug)]
pub struct TreeState {
    /// Its root now.
    pub root: NodeRef,
    /// Where its root item is; `None` for the trees in the superblock.
    pub item_key: Option<Key>,
    /// Its root item (of the superblock's trees: a blank one).
    pub item: RootItem,
    /// The root item must be written at the commit.
    pub changed: bool,
}

/// What a block group may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SpaceKind {
    /// File data.
    Data,
    /// Nodes of all trees but the chunk tree.
    Metadata,
    /// Nodes of the chunk tree.
    System,
}

impl SpaceKind {
    /// The flag that block groups of this kind carry.
    #[must_use]
    pub const fn flag(self) -> BlockGroupFlags {
        match self {
            Self::Data => BlockGroupFlags::DATA,
            Self::Metadata => BlockGroupFlags::METADATA,
            Self::System => BlockGroupFlags::SYSTEM,
        }
    }
}

/// What a new chunk of one kind could be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unallocated {
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// Bytes of the next one.
    pub(crate) next: u64,
}

/// What new chunks could be, per kind, until a chunk comes or goes.
#[derive(Debug, Default)]
pub(crate) struct UnallocatedCache(parking_lot::Mutex<[Option<Unallocated>; 3]>);

impl UnallocatedCache {
    /// What is known of `kind`; `look` finds it if nothing is known.
    pub(crate) fn get(&self, kind: SpaceKind, look: impl FnOnce() -> Unallocated) -> Unallocated {
        *self.0.lock()[kind as usize].get_or_insert_with(look)
    }

    /// A chunk came or went.
    pub(crate) fn forget(&mut self) {
        *self.0.get_mut() = [None; 3];
    }
}

/// The state of an open volume.
#[derive(Debug)]
pub struct Engine {
    pub(crate) identity: VolumeIdentity,
    /// Which damage is passed over.
    pub(crate) rescue: Rescue,
    /// No other engine of the process has it.
    pub(crate) number: EngineNumber,
    pub(crate) stamp: NodeStamp,
    pub(crate) superblock: Superblock,
    pub(crate) space: Arc<LogicalSpace>,
    /// Whether nodes may be overwritten while they are read, as those of a view
    /// may.
    pub(crate) read_as: ReadAs,
    /// The generation that is running; the superblock's is one less.
    pub(crate) generation: Generation,
    pub(crate) trees: Trees,
    pub(crate) dirty: FxHashMap<Logical, Arc<Node>>,
    pub(crate) writing: FxHashMap<Logical, Arc<Node>>,
    pub(crate) cache: NodeCache,
    pub(crate) chunks: BTreeMap<Logical, Chunk>,
    pub(crate) groups: BlockGroups,
    /// The group that was allocated from last, per kind.
    pub(crate) current: [Option<Logical>; 3],
    pub(crate) pending: PendingRefs,
    pub(crate) checksums: PendingChecksums,
    /// File extents that lost their references to data in the running
    /// generation. A crash may give them back.
    pub(crate) lost: LostRefs,
    /// The same, of the generation that is being published.
    pub(crate) lost_writing: LostRefs,
    /// Freed in the running generation.
    pub(crate) pinned: RangeSet,
    /// Space freed in the generation that is being published.
    pub(crate) pinned_writing: RangeSet,
    /// Space freed by commits, and kept from being overwritten while somebody
    /// reads an older state.
    pub(crate) held: Option<Held>,
    /// How many users keep each subvolume as it is.
    pub(crate) kept_trees: FxHashMap<TreeId, usize>,
    pub(crate) last_hold: HoldId,
    /// Backup root that the next commit overwrites.
    pub(crate) backup_slot: usize,
    /// What new chunks could be.
    pub(crate) unallocated_cache: UnallocatedCache,
    /// Kind and profile of new chunks and of what is allocated, per kind, where
    /// a conversion says so.
    pub(crate) new_profiles: [Option<BlockGroupFlags>; 3],
    /// Where devices end for new chunks, while they shrink.
    pub(crate) device_ends: FxHashMap<DeviceId, u64>,
    /// The superblock's own fields (label, flags) changed.
    pub(crate) superblock_changed: bool,
    /// The free-space tree is there, valid and kept.
    pub(crate) free_space_tree: bool,
    /// It is to be made anew before anything else, and is not believed until
    /// then.
    pub(crate) remakes_free_space: bool,
    /// Gaps between block groups for which that tree has items; the next
    /// commit removes them.
    pub(crate) orphan_free_space: Vec<std::ops::Range<u64>>,
    /// The superblock that is on the devices.
    pub(crate) durable: Superblock,
    /// The devices, as the trees of the running generation have them.
    pub(crate) devices: DeviceItems,
    /// The devices, as the superblocks that are on them say.
    pub(crate) durable_devices: DeviceItems,
    /// The fsync log of the running generation.
    pub(crate) log: FsyncLog,
    /// Space of the log of the generation that is being published.
    pub(crate) log_writing: LogSpace,
    /// Error counters as the device tree has them.
    pub(crate) stats: StatsOfDevices,
    /// A log of an earlier run waits for its replay.
    pub(crate) log_waits: bool,
    /// Data that wait in memory.
    pub(crate) acknowledged: Acknowledged,
    /// The primary superblock was damaged when the volume was opened, and is not
    /// written yet.
    pub(crate) primary_damaged: bool,
    /// Nodes of the running generation that a snapshot shares: copied before
    /// they change.
    pub(crate) frozen: FxHashSet<Logical>,
    /// Nodes of the running generation that the device has.
    pub(crate) early: Early,
    /// Quota groups, where quotas are on.
    pub(crate) quotas: Option<Quotas>,
    /// Identity of the next subvolume, once it was looked for.
    pub(crate) next_tree: Option<u64>,
    /// How often something was changed that a commit publishes.
    pub(crate) edits: u64,
    /// Nodes that were read from the device.
    pub(crate) reads_under_lock: AtomicU64,
}

impl Engine {
    /// Bytes of a node.
    #[must_use]
    pub fn node_size(&self) -> usize {
        self.identity.node_size
    }

    /// Bytes of a sector.
    #[must_use]
    pub const fn sector_size(&self) -> u64 {
        self.identity.sector_size
    }

    /// The running generation: what changes now is stamped with it.
    #[must_use]
    pub const fn generation(&self) -> Generation {
        self.generation
    }

    /// The superblock as of the last commit.
    #[must_use]
    pub const fn superblock(&self) -> &Superblock {
        &self.superblock
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
        self.superblock.label = label.to_vec();
        self.superblock_changed = true;
        Ok(())
    }

    /// Notes a feature that the volume uses from now on; the next commit writes
    /// it.
    pub fn set_incompat(&mut self, feature: Incompat) {
        if !self.superblock.incompat.contains(feature) {
            self.note_edit();
            self.superblock.incompat |= feature;
            self.superblock_changed = true;
        }
    }

    /// Logical space, for data I/O outside of the engine's lock.
    #[must_use]
    pub const fn space(&self) -> &Arc<LogicalSpace> {
        &self.space
    }

    /// Bytes of nodes changed in the running generation.
    #[must_use]
    pub fn dirty_bytes(&self) -> usize {
        self.dirty.len() * self.identity.node_size
    }

    /// Number of extents with pending changes.
    #[must_use]
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Block groups, ascending.
    pub fn groups(&self) -> impl Iterator<Item = &BlockGroup> {
        self.groups.values()
    }

    /// Chunks, ascending.
    pub fn chunks(&self) -> impl Iterator<Item = (Logical, &Chunk)> {
        self.chunks.iter().map(|(logical, chunk)| (*logical, chunk))
    }

    /// Root item of `tree`.
    ///
    /// # Errors
    /// [`TreeError::NoSuchTree`], reading.
    pub fn tree_state(&self, tree: TreeId) -> Result<TreeState, StoreError> {
        if let Some(state) = self.trees.see(tree, TreeState::clone) {
            return Ok(state);
        }
        let state = self.load_tree(tree)?;
        self.trees.add_loaded(tree, state.clone());
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
        let root = NodeRef {
            logical: item.logical,
            generation: item.generation,
            level: item.level,
        };
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
        if let Some(state) = self.trees.get_mut(tree) {
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
        let here = self
            .dirty
            .get(&logical)
            .or_else(|| self.writing.get(&logical));
        let here = here.cloned().or_else(|| self.cache.get(logical));
        let fits = |node: &Arc<Node>| level.is_none_or(|level| node.level() == level);
        if let Some(node) = here.filter(fits) {
            return Ok(node);
        }
        self.read_expected(Expected {
            logical,
            generation: None,
            level,
        })
    }

    fn find_node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        let found = self
            .dirty
            .get(&reference.logical)
            .or_else(|| self.writing.get(&reference.logical))
            .cloned()
            .or_else(|| self.cache.get(reference.logical));
        if let Some(node) = found {
            // A cached node may have been verified against another pointer.
            if node.reference() == reference {
                return Ok(node);
            }
        }
        match self.on_missing(reference) {
            OnMissing::Use(node) => {
                self.cache.insert(Arc::clone(&node));
                Ok(node)
            }
            OnMissing::GiveUp => Err(TreeError::Missing(reference)),
            OnMissing::Read => Ok(self.read_node(reference)?),
        }
    }

    fn read_node(&self, reference: NodeRef) -> Result<Arc<Node>, StoreError> {
        self.read_expected(Expected::from(reference))
    }

    fn read_expected(&self, expected: Expected) -> Result<Arc<Node>, StoreError> {
        self.reads_under_lock.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; self.identity.node_size];
        let mut node = None;
        let mut fault = None;
        let verify = &mut |bytes: &[u8]| match Node::verify(bytes.into(), &self.identity, expected)
        {
            Ok(good) => {
                node = Some(Arc::new(good));
                true
            }
            Err(bad) => {
                fault = Some(bad);
                false
            }
        };
        let result =
            self.space
                .read_verified_as(self.read_as, expected.logical, &mut buffer, verify);
        match (result, node) {
            (Ok(_), Some(node)) => {
                self.cache.insert(node.clone());
                Ok(node)
            }
            (Err(error), _) => match fault {
                Some(NodeFault::Checksum) if self.rescue.nodes == OnFault::PassOver => {
                    self.read_without_checksum(expected)
                }
                Some(fault) => Err(TreeError::Corrupt {
                    logical: expected.logical,
                    fault,
                }
                .into()),
                None => Err(error.into()),
            },
            (Ok(_), None) => Err(StoreError::Internal("a node was read but not verified")),
        }
    }

    pub(crate) const fn node_kind(reference: NodeRef) -> ExtentKind {
        ExtentKind::Node {
            level: reference.level,
            first_key: None,
        }
    }

    /// Counts an edit. It is called before the edit, so that a transaction
    /// knows when an edit leaves it half done.
    pub(crate) const fn note_edit(&mut self) {
        self.edits = self.edits.wrapping_add(1);
    }

    /// Notes a change of one node's references.
    pub(crate) fn change_node_ref(&mut self, node: NodeRef, by: Backref, count: i64) -> Outcome {
        self.note_edit();
        let length = self.identity.node_size as u64;
        let kind = Self::node_kind(node);
        self.pending.change(node.logical, length, kind, (by, count))
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
        let length = self.identity.node_size as u64;
        self.pending
            .insert_new(logical, length, kind, Backref::Tree(tree))?;
        Ok(NodeRef {
            logical,
            generation: self.generation,
            level,
        })
    }

    fn is_writable(&self, node: NodeRef) -> bool {
        node.generation == self.generation
            && self.dirty.contains_key(&node.logical)
            && !self.frozen.contains(&node.logical)
    }

    /// A copy of a node as a new one of this volume, at another place and of
    /// another generation.
    pub(crate) fn copy_of(&self, node: &Node, new: NodeRef, owner: TreeId) -> Node {
        let mut copy = node.copied_to(new.logical, new.generation, owner);
        if let Headers::Seeded(_) = self.identity.headers {
            // A node of a seed has the seed's UUID.
            copy.set_fsid(&self.stamp.fsid);
        }
        copy
    }

    fn copy_on_write(&mut self, tree: TreeId, old: NodeRef) -> Result<NodeRef, StoreError> {
        let node = self.node(old)?;
        let new = self.new_node(tree, old.level, node.first_key())?;
        if new.logical == old.logical {
            let key = Key::new(old.logical.get(), ItemType::FREE_SPACE_EXTENT, 0);
            let fault = ItemFault::FreeButUsed;
            return Err(corrupt_item(TreeId::FREE_SPACE, key, fault));
        }
        let copy = self.copy_of(&node, new, tree);
        self.dirty.insert(new.logical, Arc::new(copy));
        self.move_references(tree, &node)?;
        Ok(new)
    }
}

impl NodeSource for Engine {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        inject::point()?;
        self.find_node(reference)
    }

    fn see<R>(&self, reference: NodeRef, look: impl FnOnce(&Node) -> R) -> Result<R, TreeError> {
        inject::point()?;
        let changed = self
            .dirty
            .get(&reference.logical)
            .or_else(|| self.writing.get(&reference.logical));
        match changed {
            Some(node) if node.reference() == reference => Ok(look(node)),
            Some(_) => self.find_node(reference).map(|node| look(&node)),
            None => near::see(self.number, reference, || self.find_node(reference), look),
        }
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        if let Some(root) = self.trees.see(tree, |state| state.root) {
            return Ok(root);
        }
        Ok(self.tree_state(tree)?.root)
    }
}

impl NodeSink for Engine {
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
        self.note_growth(tree, self.identity.node_size as u64);
        let node = Node::empty(self.identity.node_size, &self.stamp, new, tree);
        self.dirty.insert(new.logical, Arc::new(node));
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        inject::point()?;
        self.note_edit();
        self.dirty
            .get_mut(&node.logical)
            .map(Arc::make_mut)
            .ok_or(TreeError::Misuse("a node was edited that is not writable"))
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        inject::point()?;
        self.note_edit();
        if self.dirty.remove(&node.logical).is_none() {
            return Err(TreeError::Misuse("a node was dropped that is not writable"));
        }
        self.drop_node_ref(node, Backref::Tree(tree));
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.note_edit();
        let state = self
            .trees
            .get_mut(tree)
            .ok_or(TreeError::NoSuchTree(tree))?;
        state.root = root;
        state.changed = true;
        Ok(())
    }
}

impl Engine {
    /// Drops one reference to a node. If the node was born in this generation,
    /// its space is free at once.
    pub(crate) fn drop_node_ref(&mut self, node: NodeRef, by: Backref) {
        if self.change_node_ref(node, by, -1) == Outcome::Vanished {
            // A node that gets this address later must not be overwritten by
            // the old one.
            self.dirty.remove(&node.logical);
            self.frozen.remove(&node.logical);
            let length = self.identity.node_size as u64;
            if !self.early.keeps(node.logical) {
                self.give_back(node.logical, length);
            }
        }
    }
}
