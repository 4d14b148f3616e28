//! Trees and their nodes in memory.
//!
//! Owns the roots of the trees that were looked up (`trees`), the nodes that
//! changed (`changed_nodes`) and which of them the device has (`written_nodes`),
//! the cache of the others (`cache`, `branch_cache`), and the reading of nodes
//! that are not in memory (`reading`; `node_loading` does it without the
//! engine's lock). `leaf_update` changes leaves beside other threads.
//!
//! Does not own the space of the nodes, nor the references to them: whoever
//! adds a node has allocated its address, and whoever drops one gives it back.
//!
//! Invariants: a node that changed in the running generation (`dirty`) has that
//! generation, and nobody on disk refers to it; a node in `writing` belongs to
//! the generation that is being published; everything else is immutable. A
//! frozen node is shared by a snapshot and is copied before it changes. A node
//! that enters the cache was verified against the reference by which it was
//! read.

mod branch_cache;
mod cache;
mod changed_nodes;
pub mod leaf_update;
pub mod node_loading;
mod reading;
mod rescue_read;
pub mod tree_bytes;
pub mod trees;
mod written_nodes;

use crate::rescue::{NodesPassedOver, OnFault};
use branch_cache::EngineNumber;
use butterfs_format::{Generation, Logical, NodeRef, TreeId};
use butterfs_tree::{Headers, Node, NodeStamp, VolumeIdentity};
use butterfs_volume::ReadAs;
use cache::NodeCache;
use changed_nodes::ChangedNodes;
use crossbeam_utils::CachePadded;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tree_bytes::Counted;
use trees::{TreeState, Trees};
use written_nodes::WrittenNodes;

/// The trees of a volume and their nodes in memory.
#[derive(Debug)]
pub(crate) struct NodeStore {
    /// What all nodes have in common.
    identity: VolumeIdentity,
    /// What new nodes carry in their headers.
    stamp: NodeStamp,
    /// Number of this engine. No other engine of the process has it.
    number: EngineNumber,
    /// The trees that were looked up, with their roots.
    trees: Trees,
    /// Nodes that changed in the running generation.
    dirty: ChangedNodes,
    /// Nodes of the generation that is being published.
    writing: ChangedNodes,
    /// Nodes as the devices have them.
    cache: NodeCache,
    /// Nodes of the running generation that a snapshot shares: copied before
    /// they change.
    frozen: FxHashSet<Logical>,
    /// Nodes of the running generation that the device has already.
    written: WrittenNodes,
    /// Identity of the next subvolume, once it was looked for.
    next_tree: Option<u64>,
    /// Whether nodes may be overwritten while they are read, as those of a view
    /// may.
    read_as: ReadAs,
    /// What to do about a node whose checksum no copy matches.
    on_wrong_checksum: OnFault,
    /// Nodes that were read though their checksum is wrong.
    passed_over: NodesPassedOver,
    /// Nodes that were read from the device.
    reads_under_lock: AtomicU64,
    /// How often leaves were changed beside other changes.
    leaf_updates: CachePadded<AtomicU64>,
}

/// What happens when a node is not in memory.
pub(crate) enum OnMissing {
    /// The operation has it already.
    Use(Arc<Node>),
    /// The try ends.
    GiveUp,
    /// It is read now.
    Read,
}

/// Whether the address of a node that was dropped can be given out again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// It can.
    Free,
    /// The node is being written there: the end of the batch gives the address
    /// back.
    InFlight,
}

impl NodeStore {
    /// No trees yet, and room for `cache_bytes` of nodes.
    pub(crate) fn new(
        identity: VolumeIdentity,
        cache_bytes: usize,
        on_wrong_checksum: OnFault,
    ) -> Self {
        Self {
            stamp: NodeStamp {
                fsid: identity.fsid,
                chunk_tree_uuid: [0; 16],
            },
            number: EngineNumber::next(),
            trees: Trees::default(),
            dirty: ChangedNodes::default(),
            writing: ChangedNodes::default(),
            cache: NodeCache::new(cache_bytes, identity.node_size),
            frozen: FxHashSet::default(),
            written: WrittenNodes::default(),
            next_tree: None,
            read_as: ReadAs::Current,
            on_wrong_checksum,
            passed_over: NodesPassedOver::default(),
            reads_under_lock: AtomicU64::new(0),
            leaf_updates: CachePadded::default(),
            identity,
        }
    }

    /// What all nodes have in common.
    pub(crate) const fn identity(&self) -> &VolumeIdentity {
        &self.identity
    }

    /// What new nodes carry in their headers.
    pub(crate) const fn stamp(&self) -> &NodeStamp {
        &self.stamp
    }

    /// While a volume opens: which headers its nodes may have.
    pub(crate) const fn set_headers(&mut self, headers: Headers) {
        self.identity.headers = headers;
    }

    /// While a volume opens: what its nodes say of the chunk tree.
    pub(crate) const fn set_chunk_tree_uuid(&mut self, uuid: [u8; 16]) {
        self.stamp.chunk_tree_uuid = uuid;
    }

    /// From now on, nodes may be overwritten while they are read.
    pub(crate) const fn read_former(&mut self) {
        self.read_as = ReadAs::Former;
    }

    /// How many nodes were read though their checksum is wrong.
    pub(crate) fn passed_over(&self) -> usize {
        self.passed_over.len()
    }

    /// Nodes that were read under the engine's lock.
    pub(crate) fn reads_under_lock(&self) -> u64 {
        self.reads_under_lock.load(Ordering::Relaxed)
    }

    /// Halves the cache of clean nodes.
    pub(crate) fn shrink_cache(&self) {
        self.cache.shrink();
    }

    /// Lets the cache of clean nodes grow. True when it has its full size.
    pub(crate) fn grow_cache(&self) -> bool {
        self.cache.grow()
    }

    /// The node at `logical`, if it is in memory.
    fn in_memory(&self, logical: Logical) -> Option<Arc<Node>> {
        let changed = self.dirty.get(logical);
        let changed = changed.or_else(|| self.writing.get(logical));
        changed.or_else(|| self.cache.get(logical))
    }

    /// Whether the node at `logical` changed and is not durable.
    pub(crate) fn has_changed(&self, logical: Logical) -> bool {
        self.dirty.contains(logical) || self.writing.contains(logical)
    }

    /// Whether the node at `logical` changed in the running generation.
    pub(crate) fn is_dirty(&self, logical: Logical) -> bool {
        self.dirty.contains(logical)
    }

    /// Number of nodes that changed in the running generation.
    pub(crate) fn dirty_len(&self) -> usize {
        self.dirty.len()
    }

    /// Addresses of those nodes.
    pub(crate) fn dirty_addresses(&self) -> impl Iterator<Item = Logical> {
        self.dirty.addresses()
    }

    /// Whether no node and no tree changed in the running generation.
    pub(crate) fn is_clean(&self) -> bool {
        self.dirty.is_empty() && !self.trees.any_changed()
    }

    /// Whether a node may be changed where it is.
    pub(crate) fn is_writable(&self, node: NodeRef, generation: Generation) -> bool {
        node.generation == generation
            && self.dirty.contains(node.logical)
            && !self.frozen.contains(&node.logical)
    }

    /// Whether a snapshot shares a node of the running generation.
    pub(crate) fn is_frozen(&self, logical: Logical) -> bool {
        self.frozen.contains(&logical)
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

    /// Adds an empty node of `tree`.
    pub(crate) fn insert_empty(&mut self, new: NodeRef, tree: TreeId) {
        let node = Node::empty(self.identity.node_size, &self.stamp, new, tree);
        self.dirty.insert(node);
    }

    /// Adds a node that changed.
    pub(crate) fn insert(&mut self, node: Node) {
        self.dirty.insert(node);
    }

    /// A node of the running generation, to change.
    pub(crate) fn edit(&mut self, logical: Logical) -> Option<&mut Node> {
        self.dirty.get_mut(logical).map(Arc::make_mut)
    }

    /// Takes a node of the running generation out of memory; `None` if there is
    /// none.
    pub(crate) fn remove(&mut self, logical: Logical) -> Option<Arc<Node>> {
        self.dirty.remove(logical)
    }

    /// Forgets a node that nobody refers to any more. A node that gets its
    /// address later must not be overwritten by the old one.
    pub(crate) fn forget(&mut self, logical: Logical) -> Dropped {
        self.dirty.remove(logical);
        self.frozen.remove(&logical);
        match self.written.keeps(logical) {
            true => Dropped::InFlight,
            false => Dropped::Free,
        }
    }

    /// From now on, a node of the running generation is copied before it
    /// changes.
    pub(crate) fn freeze(&mut self, logical: Logical) {
        self.frozen.insert(logical);
    }

    /// The same for all nodes of `tree` but its root, because a snapshot shares
    /// them.
    pub(crate) fn freeze_below_root(&mut self, tree: TreeId, root: Logical) {
        let shared = self.dirty.addresses_of(|node| {
            let is_root = node.logical() == root;
            node.owner() == tree && !is_root
        });
        self.frozen.extend(shared);
    }

    /// What `look` sees of a tree that was looked up.
    pub(crate) fn see_tree<R>(
        &self,
        tree: TreeId,
        look: impl FnOnce(&TreeState) -> R,
    ) -> Option<R> {
        self.trees.see(tree, look)
    }

    /// The root of a tree that was looked up; otherwise no node.
    pub(crate) fn root_of(&self, tree: TreeId) -> NodeRef {
        const NONE: NodeRef = NodeRef {
            logical: Logical(0),
            generation: Generation(0),
            level: 0,
        };
        self.see_tree(tree, |state| state.root).unwrap_or(NONE)
    }

    /// How often leaves were changed beside other changes.
    pub(crate) fn leaf_updates(&self) -> u64 {
        self.leaf_updates.load(Ordering::Relaxed)
    }

    /// Adds a tree that was looked up, beside other readers.
    pub(crate) fn add_loaded_tree(&self, tree: TreeId, state: TreeState) {
        self.trees.add_loaded(tree, state);
    }

    /// A tree that was looked up, to change.
    pub(crate) fn tree_mut(&mut self, tree: TreeId) -> Option<&mut TreeState> {
        self.trees.get_mut(tree)
    }

    /// Adds a tree.
    pub(crate) fn insert_tree(&mut self, tree: TreeId, state: TreeState) {
        self.trees.insert(tree, state);
    }

    /// Forgets a tree.
    pub(crate) fn remove_tree(&mut self, tree: TreeId) -> Option<TreeState> {
        self.trees.remove(tree)
    }

    /// The trees that were looked up.
    pub(crate) fn trees_mut(&mut self) -> impl Iterator<Item = (&TreeId, &mut TreeState)> {
        self.trees.iter_mut()
    }

    /// Counts a node that an edit of `tree` made or gave up. A tree that is just
    /// being made is not known yet; its item counts its first node.
    pub(crate) fn count_node(&mut self, tree: TreeId, change: Counted) {
        let size = self.identity.node_size as u64;
        if let Some(state) = self.trees.get_mut(tree) {
            state.count_node(change, size);
        }
    }

    /// Identity of the next subvolume, if it was looked for.
    pub(crate) const fn next_tree(&self) -> Option<u64> {
        self.next_tree
    }

    /// Notes the identity of the next subvolume.
    pub(crate) const fn set_next_tree(&mut self, next: u64) {
        self.next_tree = Some(next);
    }

    /// The running generation ends. Gives those of its nodes that the device
    /// does not have yet, sealed, in ascending order.
    pub(crate) fn end_generation(&mut self) -> Vec<Arc<Node>> {
        debug_assert!(self.writing.is_empty());
        self.writing = std::mem::take(&mut self.dirty);
        self.frozen.clear();
        let mut nodes = Vec::with_capacity(self.writing.len());
        let written = std::mem::take(&mut self.written);
        debug_assert!(written.is_idle());
        let checksum = self.identity.checksum;
        for node in self.writing.values_mut().filter(|node| !written.has(node)) {
            checksum.seal_block(Arc::make_mut(node).bytes_mut());
            nodes.push(node.clone());
        }
        nodes.sort_unstable_by_key(|node| node.logical());
        nodes
    }

    /// The generation is durable: its nodes are clean.
    pub(crate) fn published(&mut self) {
        for node in self.writing.drain() {
            self.cache.insert(node);
        }
    }

    /// Changed nodes that the device does not have.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = Logical> {
        self.dirty.addresses_of(|node| !self.written.has(node))
    }

    /// The nodes at these addresses, as they are now, sealed, to be written
    /// before their commit. Until [`NodeStore::end_batch`] none of these
    /// addresses is given out.
    pub(crate) fn begin_batch(&mut self, addresses: &[Logical]) -> Vec<Arc<Node>> {
        let checksum = self.identity.checksum;
        let mut batch = Vec::with_capacity(addresses.len());
        for logical in addresses {
            let node = self.dirty.get_mut(*logical);
            if let Some(node) = node.filter(|node| !self.written.has(node)) {
                checksum.seal_block(Arc::make_mut(node).bytes_mut());
                batch.push(Arc::clone(node));
                self.written.begin(*logical, node);
            }
        }
        batch
    }

    /// The batch is written. Gives the addresses of those of its nodes that were
    /// dropped meanwhile.
    pub(crate) fn end_batch(&mut self) -> Vec<Logical> {
        self.written.end()
    }
}
