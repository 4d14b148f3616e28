//! Changes of trees that nobody sees until the superblock names them.
//!
//! Owns the new nodes and the space for them. A new node lies where nothing
//! lies: neither what the trees reach, nor what the extent tree of the patient
//! records. Reference counts are not kept while trees change; [`crate::settle`]
//! counts all references anew at the end.
//!
//! Memory: new nodes that are not written yet, as many bytes as [`crate::Options`]
//! say, and as many of nodes that were read; 48 bytes for
//! each new node; 48 bytes for each run of used space.

use crate::error::RepairError;
use crate::patient::{BadNode, Patient};
use crate::ranges::Ranges;
use butterfs_format::features::Incompat;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::node::{HEADER_SIZE, POINTER_SIZE};
use butterfs_format::{Generation, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Expected, Node, NodeSink, NodeSource, Packing, TreeError};
use butterfs_volume::{ChunkMap, Profile, superblock_ranges};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Nodes that a writer holds at least.
const NODES_MIN: usize = 1;

/// A block group, as its chunk describes it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) start: u64,
    pub(crate) length: u64,
    pub(crate) flags: BlockGroupFlags,
}

/// A new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born {
    pub(crate) level: u8,
    pub(crate) tree: TreeId,
}

/// A tree by its root item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TreeRoot {
    pub(crate) node: NodeRef,
    /// Key of the root item; `None` for the two trees that the superblock names.
    pub(crate) key: Option<Key>,
}

/// The trees of a patient while they change.
pub(crate) struct Writer {
    pub(crate) patient: Patient,
    pub(crate) generation: Generation,
    pub(crate) roots: BTreeMap<TreeId, TreeRoot>,
    /// Trees whose root is another one than before.
    pub(crate) changed: BTreeSet<TreeId>,
    /// New nodes, by address.
    pub(crate) born: BTreeMap<u64, Born>,
    /// Old nodes that trees without shared nodes gave up.
    pub(crate) gone: BTreeMap<u64, u8>,
    waiting: FxHashMap<u64, Arc<Node>>,
    /// Nodes that `waiting` and `cache` hold at most each.
    nodes_max: usize,
    cache: Mutex<FxHashMap<u64, Arc<Node>>>,
    /// Space that must not be written to.
    pub(crate) used: Ranges,
    groups: Vec<Group>,
    cursors: FxHashMap<bool, (usize, u64)>,
    /// The superblock goes on to name the fsync log.
    pub(crate) keeps_log: bool,
    /// Parts of trees are lost, and nothing says where: no node is overwritten,
    /// not even an old one.
    pub(crate) is_careful: bool,
}

fn groups_of(map: &ChunkMap) -> Vec<Group> {
    let groups = map.iter().map(|(at, chunk)| Group {
        start: at.get(),
        length: chunk.length,
        flags: chunk.flags,
    });
    groups.collect()
}

impl Writer {
    /// Trees of `patient` at `roots`. `used` is what must not be overwritten.
    pub(crate) fn new(
        patient: Patient,
        roots: BTreeMap<TreeId, TreeRoot>,
        mut used: Ranges,
        cache_bytes: usize,
    ) -> Self {
        let map = patient.space.map();
        let groups = groups_of(&map);
        for (at, chunk) in map.iter() {
            for range in superblock_ranges(at, chunk) {
                used.add(range);
            }
        }
        let nodes_max = cache_bytes.checked_div(patient.identity.node_size);
        Self {
            generation: patient.next_generation(),
            nodes_max: nodes_max.unwrap_or(0).max(NODES_MIN),
            patient,
            roots,
            changed: BTreeSet::new(),
            born: BTreeMap::new(),
            gone: BTreeMap::new(),
            waiting: FxHashMap::default(),
            cache: Mutex::default(),
            used,
            groups,
            cursors: FxHashMap::default(),
            keeps_log: false,
            is_careful: false,
        }
    }

    /// Takes the chunks as they are now.
    pub(crate) fn read_groups(&mut self) {
        self.groups = groups_of(&self.patient.space.map());
    }

    /// Adds a chunk whose block group is empty. [`crate::devices::mend`] enters it
    /// into the trees.
    pub(crate) fn add_chunk(&mut self, logical: Logical, chunk: Chunk) -> Result<(), RepairError> {
        let map = self.patient.space.map().with(logical, chunk.clone())?;
        self.patient.space.set_map(map);
        for range in superblock_ranges(logical, &chunk) {
            self.used.add(range);
        }
        self.patient.corrected.push((logical, chunk));
        self.read_groups();
        Ok(())
    }

    /// Leaves the fsync log, which has this space, for its replay.
    pub(crate) fn keep_log(&mut self, space: &Ranges) {
        self.avoid(space);
        self.generation = self.patient.superblock.generation;
        self.keeps_log = true;
    }

    /// Keeps new nodes out of more space.
    pub(crate) fn avoid(&mut self, space: &Ranges) {
        for range in space.within(0..u64::MAX) {
            self.used.add(range);
        }
    }

    /// Block groups by address.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Forgets what was read at an address.
    pub(crate) fn forget(&self, logical: Logical) {
        self.cache.lock().remove(&logical.get());
    }

    /// Pointers that a branch may have.
    pub(crate) fn pointers_max(&self) -> usize {
        let room = self.patient.identity.node_size.saturating_sub(HEADER_SIZE);
        room.checked_div(POINTER_SIZE).unwrap_or(0)
    }

    /// Whether anything was changed.
    pub(crate) fn is_changed(&self) -> bool {
        !self.changed.is_empty() || !self.born.is_empty()
    }

    /// Whether new nodes of other trees than the chunk tree may lie in a group.
    pub(crate) fn is_for_nodes(&self, group: &Group) -> bool {
        self.is_for(group, BlockGroupFlags::METADATA)
    }

    fn is_for(&self, group: &Group, wanted: BlockGroupFlags) -> bool {
        let incompat = self.patient.superblock.incompat;
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        // A chunk of data that says that it holds nodes, too, lies.
        let lies = group.flags.contains(both) && !incompat.contains(Incompat::MIXED_GROUPS);
        group.flags.contains(wanted) && !lies && Profile::from_flags(group.flags).is_some()
    }

    fn allocate(&mut self, tree: TreeId) -> Result<Logical, TreeError> {
        let is_system = tree == TreeId::CHUNK;
        let wanted = match is_system {
            true => BlockGroupFlags::SYSTEM,
            false => BlockGroupFlags::METADATA,
        };
        let length = self.patient.node_bytes();
        let (first, at) = self.cursors.get(&is_system).copied().unwrap_or((0, 0));
        let count = self.groups.len();
        // Once from the cursor to the end, once from the beginning.
        for number in (first..count).chain(0..count) {
            let Some(group) = self.groups.get(number).copied() else {
                continue;
            };
            if !self.is_for(&group, wanted) {
                continue;
            }
            let end = group.start.saturating_add(group.length);
            let from = at.clamp(group.start, end);
            let mut at = from;
            loop {
                let gap = self.used.first_gap(at..end, length);
                let gap = gap.or_else(|| self.used.first_gap(group.start..end, length));
                let Some(start) = gap else {
                    break;
                };
                self.used.add(start..start.saturating_add(length));
                if self.is_careful && self.holds_node(Logical(start)) {
                    at = start;
                    continue;
                }
                self.cursors.insert(is_system, (number, start));
                return Ok(Logical(start));
            }
        }
        Err(TreeError::store(RepairError::NoSpace))
    }

    /// Whether a node of the volume lies at an address, of whatever age.
    fn holds_node(&self, logical: Logical) -> bool {
        let expected = Expected {
            logical,
            generation: None,
            level: None,
        };
        self.patient.load(expected).is_ok()
    }

    fn node_at(&self, logical: Logical, level: u8) -> NodeRef {
        NodeRef {
            logical,
            generation: self.generation,
            level,
        }
    }

    fn keep(&mut self, tree: TreeId, node: Node) -> Result<NodeRef, TreeError> {
        let reference = node.reference();
        let level = node.level();
        self.born
            .insert(reference.logical.get(), Born { level, tree });
        self.cache.lock().remove(&reference.logical.get());
        if self.waiting.len() >= self.nodes_max {
            // A node without items is one that the edit under way fills next.
            let filled = self.waiting.extract_if(|_, node| !node.is_empty());
            let filled = filled.map(|(_, node)| node).collect();
            self.write(filled)?;
        }
        self.waiting.insert(reference.logical.get(), Arc::new(node));
        Ok(reference)
    }

    /// Writes the new nodes that wait. They can be changed later.
    pub(crate) fn write_waiting(&mut self) -> Result<(), TreeError> {
        let nodes = self.waiting.drain().map(|(_, node)| node).collect();
        self.write(nodes)
    }

    fn write(&self, mut nodes: Vec<Arc<Node>>) -> Result<(), TreeError> {
        nodes.sort_by_key(|node| node.logical());
        for node in nodes {
            let mut sealed = Node::clone(&node);
            self.patient
                .identity
                .checksum
                .seal_block(sealed.bytes_mut());
            let written = self.patient.space.write(sealed.logical(), sealed.bytes());
            written.map_err(TreeError::store)?;
        }
        Ok(())
    }

    fn is_new(&self, node: NodeRef) -> bool {
        node.generation == self.generation && self.born.contains_key(&node.logical.get())
    }

    fn note_gone(&mut self, tree: TreeId, node: NodeRef) {
        if !tree.is_subvolume() {
            self.gone.insert(node.logical.get(), node.level);
        }
    }

    /// Puts an empty tree in the place of `tree`. Nothing of the old one is kept.
    pub(crate) fn empty(&mut self, tree: TreeId) -> Result<(), TreeError> {
        let root = self.create(tree, 0)?;
        let key = self.roots.get(&tree).and_then(|root| root.key);
        let own = Key::new(tree.get(), butterfs_format::ItemType::ROOT_ITEM, 0);
        // The superblock names the chunk tree.
        let own = (tree != TreeId::CHUNK).then_some(own);
        self.roots.insert(
            tree,
            TreeRoot {
                node: root,
                key: key.or(own),
            },
        );
        self.changed.insert(tree);
        Ok(())
    }

    /// The address of a node that can be read, or why it cannot.
    pub(crate) fn look(&self, reference: NodeRef) -> Result<Arc<Node>, BadNode> {
        let at = reference.logical.get();
        if let Some(node) = self.waiting.get(&at).filter(|_| self.is_new(reference)) {
            return Ok(Arc::clone(node));
        }
        let known = self.cache.lock().get(&at).cloned();
        if let Some(node) = known.filter(|node| node.reference() == reference) {
            return Ok(node);
        }
        let node = Arc::new(self.patient.load(reference.into())?);
        let mut cache = self.cache.lock();
        if cache.len() >= self.nodes_max {
            cache.clear();
        }
        cache.insert(at, Arc::clone(&node));
        Ok(node)
    }
}

impl NodeSource for Writer {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.look(reference)
            .map_err(|bad| bad.at(reference.logical))
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let root = self.roots.get(&tree);
        root.map(|root| root.node)
            .ok_or(TreeError::NoSuchTree(tree))
    }
}

impl NodeSink for Writer {
    fn packing(&self) -> Packing {
        Packing::Lasting
    }

    fn make_writable(&mut self, tree: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        if self.is_new(node) {
            return Ok(node);
        }
        let old = self.node(node)?;
        let logical = self.allocate(tree)?;
        let copy = old.copied_to(logical, self.generation, tree);
        self.note_gone(tree, node);
        self.keep(tree, copy)
    }

    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError> {
        let logical = self.allocate(tree)?;
        let reference = self.node_at(logical, level);
        let size = self.patient.identity.node_size;
        let node = Node::empty(size, &self.patient.stamp, reference, tree);
        self.keep(tree, node)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        let at = node.logical.get();
        if !self.is_new(node) {
            return Err(TreeError::Misuse(
                "a node that is not new was to be changed",
            ));
        }
        if !self.waiting.contains_key(&at) {
            let read = self.node(node)?;
            self.cache.lock().remove(&at);
            self.waiting.insert(at, read);
        }
        let found = self.waiting.get_mut(&at).map(Arc::make_mut);
        found.ok_or(TreeError::Misuse("a new node is not in memory"))
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        let at = node.logical.get();
        if self.is_new(node) {
            self.waiting.remove(&at);
            self.cache.lock().remove(&at);
            self.born.remove(&at);
            let end = at.saturating_add(self.patient.node_bytes());
            self.used.remove(at..end);
        } else {
            self.note_gone(tree, node);
        }
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        let known = self.roots.get_mut(&tree);
        known.ok_or(TreeError::NoSuchTree(tree))?.node = root;
        self.changed.insert(tree);
        Ok(())
    }
}
