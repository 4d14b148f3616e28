//! Everything that the trees reach: nodes, data, and who refers to them.
//!
//! Owns the walk. It goes down level by level, so when it comes to a node it
//! knows all references to the node. These decide whether the references of the
//! node's content are by tree or by parent (FULL_BACKREF). Each node is read
//! once, in the order of addresses.
//!
//! Memory: 112 bytes for each pointer of one level, and what it finds: 56 bytes
//! for each node and each reference to one, 64 bytes for each reference of a
//! file to an extent.

use crate::error::RepairError;
use crate::patient::BadNode;
use crate::writer::Writer;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_RELOC, FLAG_WRITTEN, LEVEL_MAX, field,
};
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Cursor, Node, NodeFault};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Who refers to something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum By {
    /// A tree.
    Tree(u64),
    /// A node.
    Parent(u64),
}

/// A tree to walk.
#[derive(Clone, Debug)]
pub(crate) struct WalkTree {
    pub(crate) id: TreeId,
    pub(crate) root: NodeRef,
    pub(crate) by: By,
    /// Owner that the root has.
    owner: Option<TreeId>,
    /// Where the deletion of the tree goes on; what lies before is deleted.
    dropped: Option<(Key, u8)>,
    last_snapshot: Generation,
    /// It is being deleted, or a balance's.
    pub(crate) is_passing: bool,
}

/// A node that trees reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FoundNode {
    pub(crate) logical: u64,
    pub(crate) generation: u64,
    pub(crate) level: u8,
    pub(crate) is_parent: bool,
    pub(crate) first_key: Key,
}

/// A reference of files to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DataRef {
    pub(crate) extent: u64,
    pub(crate) length: u64,
    pub(crate) by: DataBy,
    pub(crate) generation: u64,
}

/// Who refers to data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DataBy {
    /// File extents of a tree.
    File { root: u64, inode: u64, offset: u64 },
    /// File extents of a leaf.
    Leaf(u64),
}

/// A pointer that leads to no node.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    /// A tree that has the pointer.
    pub(crate) tree: TreeId,
    /// Where the pointer is; `None` for a root.
    pub(crate) parent: Option<Logical>,
    /// Owner of the node that has the pointer.
    pub(crate) above: Option<TreeId>,
    /// The node.
    pub(crate) node: NodeRef,
    /// First key below the pointer, and the first one behind it.
    pub(crate) first: Option<Key>,
    pub(crate) bound: Option<Key>,
    pub(crate) bad: BadNode,
}

/// What the extent tree of the patient says of nodes, as far as it can be read.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// Nodes whose content is referred to by parent.
    pub(crate) parents: FxHashSet<u64>,
    /// All of it could be read.
    pub(crate) is_whole: bool,
}

/// What the trees reach.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// By address.
    pub(crate) nodes: Vec<FoundNode>,
    /// References to nodes, by address.
    pub(crate) node_refs: Vec<(u64, By)>,
    /// References to data, by address.
    pub(crate) data: Vec<DataRef>,
    pub(crate) lost: Vec<Lost>,
    /// Nodes of which a copy was made equal to a good one.
    pub(crate) healed: u64,
    /// Nodes whose flags were corrected in place.
    pub(crate) corrected: u64,
    /// Subvolumes whose root names another owner.
    pub(crate) strange_roots: Vec<TreeId>,
}

impl Found {
    /// Whether pointers of files' trees lead nowhere. What lies below them is
    /// unknown.
    pub(crate) fn lacks_files(&self) -> bool {
        self.lost.iter().any(|lost| !is_derived(lost.tree))
    }
}

/// Whether all that a tree holds can be found out from others.
pub(crate) fn is_derived(tree: TreeId) -> bool {
    let all = [
        TreeId::EXTENT,
        TreeId::FREE_SPACE,
        TreeId::BLOCK_GROUP,
        TreeId::UUID,
        TreeId::DEVICE,
        TreeId::CSUM,
    ];
    all.contains(&tree)
}

/// A pointer that waits.
#[derive(Clone, Copy)]
struct Reach {
    node: NodeRef,
    by: By,
    tree: TreeId,
    /// Owner of the node above; of the root itself, for a root.
    above: Option<TreeId>,
    parent: Option<Logical>,
    first: Option<Key>,
    bound: Option<Key>,
    /// Number of the tree on whose deletion's path the node is.
    path: Option<usize>,
}

/// The trees that the tree of roots names, with the two that the superblock
/// names. Unreadable root items are left out.
pub(crate) fn trees(writer: &Writer) -> Result<Vec<WalkTree>, RepairError> {
    let plain = |id: TreeId, root: NodeRef| WalkTree {
        id,
        root,
        by: By::Tree(id.get()),
        owner: Some(id),
        dropped: None,
        last_snapshot: Generation(0),
        is_passing: false,
    };
    let mut all = Vec::new();
    let mut known = BTreeSet::new();
    for id in [TreeId::CHUNK, TreeId::ROOT] {
        if let Some(root) = writer.roots.get(&id) {
            all.push(plain(id, root.node));
        }
    }
    let Some(root) = writer.roots.get(&TreeId::ROOT) else {
        return Ok(all);
    };
    let mut cursor = Cursor::at_root(writer, root.node);
    cursor.seek(&Key::MIN)?;
    while let Some((key, data)) = cursor.item() {
        let id = TreeId(key.objectid);
        if key.item_type == ItemType::ROOT_ITEM
            && let Ok(item) = RootItem::parse(data)
            && (known.insert(id) || id == TreeId::RELOC)
        {
            let is_relocation = id == TreeId::RELOC;
            let is_dead = item.refs == 0;
            let own = item.root();
            let now = writer.roots.get(&id).filter(|_| !is_relocation);
            all.push(WalkTree {
                id,
                root: now.map_or(own, |root| root.node),
                by: match is_relocation {
                    true => By::Parent(item.logical.get()),
                    false => By::Tree(id.get()),
                },
                owner: (!is_relocation).then_some(id),
                dropped: item
                    .drop_progress
                    .filter(|_| is_dead)
                    .map(|key| (key, item.drop_level)),
                last_snapshot: item.last_snapshot,
                is_passing: is_relocation || (id.is_subvolume() && is_dead),
            });
        }
        cursor.next()?;
    }
    // Trees that were made anew and have no root item yet.
    for (id, root) in &writer.roots {
        if ![TreeId::CHUNK, TreeId::ROOT].contains(id) && known.insert(*id) {
            all.push(plain(*id, root.node));
        }
    }
    Ok(all)
}

/// A walk of all trees.
struct Walk<'w> {
    writer: &'w Writer,
    trees: &'w [WalkTree],
    recorded: &'w Recorded,
    last_snapshots: FxHashMap<TreeId, Generation>,
    passing: FxHashSet<TreeId>,
    is_relocating: bool,
    pending: Vec<Vec<Reach>>,
    found: Found,
    heal: bool,
    memory_max: u64,
}

/// Walks all `trees`. Bad copies of nodes are made equal to good ones if `heal`
/// is set.
///
/// # Errors
/// [`RepairError::Memory`]; writing a copy.
pub(crate) fn walk(
    writer: &Writer,
    trees: &[WalkTree],
    recorded: &Recorded,
    heal: Heal,
    memory_max: u64,
) -> Result<Found, RepairError> {
    let owners = trees.iter().filter(|tree| tree.id != TreeId::RELOC);
    let mut walk = Walk {
        writer,
        trees,
        recorded,
        last_snapshots: owners.map(|tree| (tree.id, tree.last_snapshot)).collect(),
        passing: trees
            .iter()
            .filter(|tree| tree.is_passing)
            .map(|tree| tree.id)
            .collect(),
        is_relocating: trees.iter().any(|tree| tree.id == TreeId::RELOC),
        pending: (0..=LEVEL_MAX).map(|_| Vec::new()).collect(),
        found: Found::default(),
        heal: heal == Heal::Yes,
        memory_max,
    };
    for (number, tree) in trees.iter().enumerate() {
        walk.add(Reach {
            node: tree.root,
            by: tree.by,
            tree: tree.id,
            above: tree.owner,
            parent: None,
            first: None,
            bound: None,
            path: tree.dropped.map(|_| number),
        });
    }
    for level in (0..=usize::from(LEVEL_MAX)).rev() {
        let mut all = walk
            .pending
            .get_mut(level)
            .map(std::mem::take)
            .unwrap_or_default();
        all.sort_by_key(|reach| (reach.node.logical, reach.by));
        for group in all.chunk_by(|a, b| a.node.logical == b.node.logical) {
            walk.node(group)?;
        }
        walk.check_memory()?;
    }
    let mut found = walk.found;
    found.nodes.sort_unstable_by_key(|node| node.logical);
    found.node_refs.sort_unstable();
    found.node_refs.dedup();
    found.data.sort_unstable();
    Ok(found)
}

/// Whether copies of nodes are healed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heal {
    /// They are.
    Yes,
    /// They are not even read.
    No,
}

impl Walk<'_> {
    fn add(&mut self, reach: Reach) {
        let level = usize::from(reach.node.level);
        if let Some(pending) = self.pending.get_mut(level) {
            pending.push(reach);
        }
    }

    fn check_memory(&self) -> Result<(), RepairError> {
        let bytes = |count: usize, each: u64| {
            u64::try_from(count)
                .unwrap_or(u64::MAX)
                .saturating_mul(each)
        };
        let waiting = self
            .pending
            .iter()
            .map(Vec::len)
            .fold(0, usize::saturating_add);
        let needed = bytes(waiting, 112)
            .saturating_add(bytes(self.found.nodes.len(), 56))
            .saturating_add(bytes(self.found.node_refs.len(), 24))
            .saturating_add(bytes(self.found.data.len(), 64));
        match needed > self.memory_max {
            true => Err(RepairError::Memory(self.memory_max)),
            false => Ok(()),
        }
    }

    fn lose(&mut self, reach: &Reach, bad: BadNode) {
        self.found.lost.push(Lost {
            tree: reach.tree,
            parent: reach.parent,
            above: reach.above,
            node: reach.node,
            first: reach.first,
            bound: reach.bound,
            bad,
        });
    }

    /// Takes a node with all pointers to it.
    fn node(&mut self, group: &[Reach]) -> Result<(), RepairError> {
        let mut good: Vec<&Reach> = Vec::new();
        let mut node: Option<Arc<Node>> = None;
        for reach in group {
            let read = match &node {
                Some(node) if node.reference() == reach.node => Ok(Arc::clone(node)),
                _ => self.look(reach.node)?,
            };
            let placed = read.and_then(|read| {
                place(&read, reach).map_err(BadNode::Fault)?;
                Ok(read)
            });
            match placed {
                Ok(read) => {
                    let is_strange = reach.first.is_none()
                        && reach.above.is_some_and(|owner| owner != read.owner());
                    if is_strange {
                        self.found.strange_roots.push(reach.tree);
                    }
                    node = Some(read);
                    good.push(reach);
                }
                Err(bad) => self.lose(reach, bad),
            }
        }
        let Some(node) = node else {
            return Ok(());
        };
        let at = node.logical().get();
        let is_parent = self.is_parent(&node, &good);
        self.found.nodes.push(FoundNode {
            logical: at,
            generation: node.generation().get(),
            level: node.level(),
            is_parent,
            first_key: node.first_key().unwrap_or(Key::MIN),
        });
        for reach in &good {
            self.found.node_refs.push((at, reach.by));
        }
        if self.heal && !self.writer.born.contains_key(&at) {
            if let Some(good) = with_good_flags(&node) {
                self.writer.patient.rewrite(good)?;
                self.writer.forget(node.logical());
                self.found.corrected = self.found.corrected.saturating_add(1);
            } else {
                let healed = self.writer.patient.heal(&node)?;
                self.found.healed = self.found.healed.saturating_add(healed);
            }
        }
        let owner = node.owner();
        let by = match is_parent {
            true => By::Parent(at),
            false => By::Tree(owner.get()),
        };
        if node.is_leaf() {
            self.leaf(&node, by);
        } else {
            self.branch(&node, by, &good);
        }
        Ok(())
    }

    /// Reads a node. A branch with bad pointers is corrected in its place.
    fn look(&mut self, at: NodeRef) -> Result<Result<Arc<Node>, BadNode>, RepairError> {
        let read = self.writer.look(at);
        let is_pointer = matches!(
            read,
            Err(BadNode::Fault(
                NodeFault::Pointer | NodeFault::PointerGeneration
            ))
        );
        if is_pointer
            && self.heal
            && let Some(node) = self.writer.patient.without_bad_pointers(at.into())
        {
            self.writer.patient.rewrite(node)?;
            self.found.corrected = self.found.corrected.saturating_add(1);
            return Ok(self.writer.look(at));
        }
        Ok(read)
    }

    /// Whether the references of a node's content are by parent.
    fn is_parent(&self, node: &Node, reaches: &[&Reach]) -> bool {
        let owner = node.owner();
        let by_owner = reaches
            .iter()
            .any(|reach| reach.by == By::Tree(owner.get()));
        let recorded = self.recorded.parents.contains(&node.logical().get());
        if by_owner {
            // A tree keeps a node that is a parent only where a relocation made
            // it one, or while it is deleted.
            let may_be = node.flags() & FLAG_RELOC != 0
                || self.is_relocating
                || self.passing.contains(&owner)
                || self
                    .last_snapshots
                    .get(&owner)
                    .is_some_and(|last| node.generation() <= *last);
            return recorded && may_be;
        }
        if !owner.is_subvolume() {
            return recorded && owner != TreeId::ROOT;
        }
        recorded || !self.recorded.is_whole || !self.is_held(owner, node)
    }

    /// Whether the tree that wrote a node still leads to it.
    fn is_held(&self, owner: TreeId, node: &Node) -> bool {
        if self.passing.contains(&owner) {
            return true;
        }
        let (Some(first), Some(tree)) = (
            node.first_key(),
            self.trees.iter().find(|tree| tree.id == owner),
        ) else {
            return false;
        };
        let mut at = tree.root;
        while at.level > node.level() {
            let Ok(above) = self.writer.look(at) else {
                return true;
            };
            at = above.child(above.child_slot(&first));
        }
        at.logical == node.logical()
    }

    fn branch(&mut self, node: &Node, by: By, reaches: &[&Reach]) {
        let path = reaches.iter().find_map(|reach| reach.path);
        let only_path = reaches.iter().all(|reach| reach.path.is_some());
        let dropped = path.and_then(|number| self.trees.get(number)?.dropped);
        let dropped = dropped.filter(|(_, level)| node.level() >= *level && only_path);
        let begin = dropped.map_or(0, |(key, _)| node.child_slot(&key));
        let Some(first) = reaches.first() else {
            return;
        };
        for slot in begin..node.len() {
            let next = slot.saturating_add(1);
            let bound = match next < node.len() {
                true => Some(node.key(next)),
                false => first.bound,
            };
            self.add(Reach {
                node: node.child(slot),
                by,
                tree: first.tree,
                above: Some(node.owner()),
                parent: Some(node.logical()),
                first: Some(node.key(slot)),
                bound,
                path: path.filter(|_| dropped.is_some() && slot == begin),
            });
        }
    }

    fn leaf(&mut self, node: &Node, by: By) {
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let Ok(extent) = FileExtent::parse(node.data(slot)) else {
                continue;
            };
            let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = extent.body
            else {
                continue;
            };
            if place.disk.get() == 0 || place.disk_length == 0 {
                continue;
            }
            let by = match by {
                By::Parent(leaf) => DataBy::Leaf(leaf),
                By::Tree(root) => DataBy::File {
                    root,
                    inode: key.objectid,
                    offset: key.offset.wrapping_sub(place.offset),
                },
            };
            self.found.data.push(DataRef {
                extent: place.disk.get(),
                length: place.disk_length,
                by,
                generation: extent.generation.get(),
            });
        }
    }
}

/// The node with possible flags, if it has others.
fn with_good_flags(node: &Node) -> Option<Node> {
    let flags = node.flags();
    let revision = flags.checked_shr(BACKREF_REVISION_SHIFT).unwrap_or(0);
    if revision == BACKREF_REVISION_MIXED && flags & FLAG_WRITTEN != 0 {
        return None;
    }
    let mixed = BACKREF_REVISION_MIXED
        .checked_shl(BACKREF_REVISION_SHIFT)
        .unwrap_or(0);
    let new = (flags & FLAG_RELOC) | FLAG_WRITTEN | mixed;
    let mut good = node.clone();
    let field = field::FLAGS..field::FLAGS.saturating_add(8);
    good.bytes_mut()
        .get_mut(field)?
        .copy_from_slice(&new.to_le_bytes());
    Some(good)
}

/// Checks a node against the pointer to it.
fn place(node: &Node, reach: &Reach) -> Result<(), NodeFault> {
    match (reach.first, reach.above) {
        // Only the header of a subvolume's root may be wrong here: other trees
        // have other items.
        (None, Some(owner)) if node.owner() != owner => {
            match owner.is_subvolume() && node.owner().is_subvolume() {
                true => Ok(()),
                false => Err(NodeFault::Owner),
            }
        }
        (None, _) => Ok(()),
        (Some(first), above) => {
            node.verify_place(&first, reach.bound.as_ref())?;
            above.map_or(Ok(()), |above| node.verify_owner_below(above))
        }
    }
}
