//! The tree of roots: which trees exist, and which subvolume holds which.

use super::Items;
use crate::code::FaultCode;
use crate::context::{Context, Lookup};
use crate::extents::tally::By;
use crate::inodes::names::{self, is_valid};
use crate::inodes::run::is_inode;
use crate::inodes::scan;
use crate::report::Place;
use crate::walk::Tree;
use butterfs_format::bytes::Reader;
use butterfs_format::checksum::name_hash;
use butterfs_format::features::CompatRo;
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::inode::{InodeItem, RefEntries};
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{
    Generation, InodeNumber, ItemType, Key, NodeRef, ParseError, TreeId, object,
};
use butterfs_tree::find;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A tree and its root item.
#[derive(Clone, Debug)]
pub(crate) struct Root {
    pub(crate) id: TreeId,
    pub(crate) key: Key,
    pub(crate) item: RootItem,
}

impl Root {
    pub(crate) const fn node(&self) -> NodeRef {
        self.item.root()
    }

    /// True if nothing refers to the tree any more. It is deleted bit by bit.
    pub(crate) const fn is_dead(&self) -> bool {
        self.item.refs == 0
    }

    /// Returns the tree to walk.
    pub(crate) fn tree(&self) -> Tree {
        let is_relocation = self.id == TreeId::RELOC;
        let dropped = self.item.drop_progress.filter(|_| self.is_dead());
        Tree {
            id: self.id,
            root: self.node(),
            by: if is_relocation {
                By::Parent(self.item.logical.get())
            } else {
                By::Tree(self.id.get())
            },
            owner: (!is_relocation).then_some(self.id),
            dropped: dropped.map(|key| (key, self.item.drop_level)),
            // A tree that is being deleted keeps the number that it had.
            counted: (!is_relocation && !self.is_dead())
                .then_some((self.item.bytes_used, self.key)),
        }
    }
}

/// A link between two subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    directory: u64,
    index: u64,
    name: Vec<u8>,
}

impl Link {
    fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("root reference", data);
        let (directory, index) = (r.u64()?, r.u64()?);
        let length = r.u16()?;
        let name = r.bytes(usize::from(length))?.to_vec();
        if r.remaining() != 0 || !is_valid(&name) {
            return Err(ParseError::BadValue {
                what: "root reference",
                field: "name length",
                value: u64::from(length),
            });
        }
        Ok(Self {
            directory,
            index,
            name,
        })
    }
}

/// All trees except the chunk tree and the tree of roots.
#[derive(Debug, Default)]
pub(crate) struct Roots {
    /// Sorted by identity.
    all: Vec<Root>,
    /// Links by (parent, child), from ROOT_REF items.
    refs: BTreeMap<(u64, u64), Link>,
    /// Links by (parent, child), from ROOT_BACKREF items.
    backrefs: BTreeMap<(u64, u64), Link>,
    /// Trees that are marked for cleaning.
    orphans: BTreeSet<u64>,
    /// The default subvolume, with the entry that names it.
    default: Option<(Key, TreeId)>,
}

/// Passes what no root item can have, in the tree of roots or in that of the
/// logs, to `fault`. The kernel then reads nothing of the leaf.
pub(crate) fn impossible_fields(
    item: &RootItem,
    committed: Generation,
    mut fault: impl FnMut(String),
) {
    let newest = committed.saturating_add(1);
    let later = [
        ("last snapshot", item.last_snapshot),
        ("second generation", item.generation_v2),
    ];
    for (what, generation) in later {
        if generation > newest {
            fault(format!("its {what} {generation} is not yet committed"));
        }
    }
    if item.drop_level > LEVEL_MAX {
        fault(format!("its deletion is at level {}", item.drop_level));
    }
    // The key of the progress is that of a branch, so the level is not 0. The
    // object alone decides whether there is a progress.
    if item.drop_level == 0
        && let Some(key) = item.drop_progress.filter(|key| key.objectid != 0)
    {
        fault(format!("its deletion is at {key} of level 0"));
    }
    let known = RootFlags::known().0;
    if item.flags.0 & !known != 0 {
        fault(format!("it has unknown flags {:#x}", item.flags.0 & !known));
    }
}

impl Roots {
    /// Whether items of this type are needed here.
    pub(crate) fn wanted(item_type: ItemType) -> bool {
        matches!(
            item_type,
            ItemType::ROOT_ITEM
                | ItemType::ROOT_REF
                | ItemType::ROOT_BACKREF
                | ItemType::ORPHAN_ITEM
                | ItemType::DIR_ITEM
                | ItemType::INODE_ITEM
                | ItemType::INODE_REF
        )
    }

    pub(crate) fn parse(context: &Context<'_>, items: &Items) -> Self {
        let mut roots = Self::default();
        for (key, data) in items {
            let invalid = |error: ParseError| {
                let place = Place::item(TreeId::ROOT, *key);
                context.fault(FaultCode::RootInvalid, place, error.to_string());
            };
            match key.item_type {
                ItemType::ROOT_ITEM => match RootItem::parse(data) {
                    Ok(item) => roots.add(context, *key, item),
                    Err(error) => invalid(error),
                },
                ItemType::ROOT_REF => match Link::parse(data) {
                    Ok(link) => {
                        roots.refs.insert((key.objectid, key.offset), link);
                    }
                    Err(error) => invalid(error),
                },
                ItemType::ROOT_BACKREF => match Link::parse(data) {
                    Ok(link) => {
                        roots.backrefs.insert((key.offset, key.objectid), link);
                    }
                    Err(error) => invalid(error),
                },
                ItemType::DIR_ITEM => {
                    let read = names::entries(*key, data, |name| {
                        if name.name == b"default" && name.is_subvolume {
                            roots.default = Some((*key, TreeId(name.target)));
                        }
                    });
                    if let Err(fault) = read {
                        let place = Place::item(TreeId::ROOT, *key);
                        context.fault(FaultCode::NameInvalid, place, fault.to_string());
                    }
                }
                ItemType::INODE_ITEM => inode(context, *key, data),
                ItemType::INODE_REF => {
                    if let Some(Err(error)) = RefEntries::new(data).find(Result::is_err) {
                        let place = Place::item(TreeId::ROOT, *key);
                        context.fault(FaultCode::NameInvalid, place, error.to_string());
                    }
                }
                ItemType::ORPHAN_ITEM if key.objectid == object::ORPHAN => {
                    roots.orphans.insert(key.offset);
                }
                _ => {}
            }
        }
        roots
    }

    fn add(&mut self, context: &Context<'_>, key: Key, item: RootItem) {
        let id = TreeId(key.objectid);
        let place = Place::item(TreeId::ROOT, key);
        let fault = |text: String| context.fault(FaultCode::RootInvalid, place, text);
        if item.generation > context.superblock.generation {
            fault(format!(
                "its generation {} is not yet committed",
                item.generation
            ));
        }
        impossible_fields(&item, context.superblock.generation, fault);
        if id > TreeId::SUBVOLUME_MAX && id <= TreeId::LAST_SUBVOLUME {
            let most = TreeId::SUBVOLUME_MAX;
            fault(format!("no tree has number {id}; subvolumes end at {most}"));
        }
        let is_global = [
            TreeId::EXTENT,
            TreeId::CSUM,
            TreeId::FREE_SPACE,
            TreeId::DEVICE,
        ];
        let is_global = is_global.contains(&id);
        if is_global && key.offset != 0 {
            fault(format!("its key has the offset {}", key.offset));
        }
        if id.is_subvolume() && !item.has_flags() && item.flags.contains(RootFlags::READONLY) {
            let text = "it is marked read-only, but its flags do not count".to_owned();
            context.fault(FaultCode::RootFlags, place, text);
        }
        let has_files = id.is_subvolume() || id == TreeId::DATA_RELOC;
        if has_files && item.root_dir != InodeNumber::ROOT {
            fault(format!("its root directory is {}", item.root_dir));
        }
        if item.drop_progress.is_some() && item.drop_level > item.level {
            fault(format!(
                "its deletion is at level {} of {}",
                item.drop_level, item.level
            ));
        }
        // Relocation trees record there how far relocation replaced nodes.
        if item.drop_progress.is_some() && item.refs > 0 && id != TreeId::RELOC {
            fault("it is being deleted and still has references".to_owned());
        }
        let again = self.all.iter().rev().take(1).any(|before| before.id == id);
        if again && id != TreeId::RELOC {
            fault("the tree has several items".to_owned());
            return;
        }
        self.all.push(Root { id, key, item });
    }

    /// Returns the tree with this identity.
    pub(crate) fn get(&self, id: TreeId) -> Option<&Root> {
        let at = self.all.partition_point(|root| root.id < id);
        self.all.get(at).filter(|root| root.id == id)
    }

    /// Returns the subvolume with this identity if it is not deleted.
    pub(crate) fn subvolume(&self, id: TreeId) -> Option<&Root> {
        self.get(id)
            .filter(|root| id.is_subvolume() && !root.is_dead())
    }

    /// Subvolumes that are not deleted.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Root> {
        self.all
            .iter()
            .filter(|root| root.id.is_subvolume() && !root.is_dead())
    }

    /// Trees of subvolumes that are being deleted, and relocation trees.
    pub(crate) fn passing(&self) -> impl Iterator<Item = &Root> {
        self.all
            .iter()
            .filter(|root| root.id == TreeId::RELOC || (root.id.is_subvolume() && root.is_dead()))
    }

    /// Trees that are neither subvolumes nor relocation trees nor in `known`.
    pub(crate) fn others(&self, known: &[TreeId]) -> Vec<&Root> {
        let is_other = |root: &&Root| {
            !root.id.is_subvolume() && root.id != TreeId::RELOC && !known.contains(&root.id)
        };
        self.all.iter().filter(is_other).collect()
    }

    pub(crate) fn nodes(&self) -> FxHashMap<TreeId, NodeRef> {
        self.all.iter().map(|root| (root.id, root.node())).collect()
    }

    /// Roots of trees, by the tree that wrote their nodes. A relocation tree
    /// holds nodes of the subvolume that its key names.
    pub(crate) fn by_owner(&self) -> FxHashMap<TreeId, Vec<NodeRef>> {
        let mut roots: FxHashMap<TreeId, Vec<NodeRef>> = FxHashMap::default();
        for root in &self.all {
            let owner = if root.id == TreeId::RELOC {
                TreeId(root.key.offset)
            } else {
                root.id
            };
            roots.entry(owner).or_default().push(root.node());
        }
        roots
    }

    /// The last generation in which all nodes of a tree became shared, for each
    /// tree.
    pub(crate) fn last_snapshots(&self) -> FxHashMap<TreeId, Generation> {
        let roots = self.all.iter();
        let own = roots.filter(|root| root.id != TreeId::RELOC);
        own.map(|root| (root.id, root.item.last_snapshot)).collect()
    }

    /// Checks that all needed trees exist, and that subvolumes and their parents
    /// agree.
    pub(crate) fn check(&self, context: &Context<'_>) {
        let mut needed = vec![TreeId::EXTENT, TreeId::DEVICE, TreeId::FS, TreeId::CSUM];
        let compat = context.superblock.compat_ro;
        if compat.contains(CompatRo::FREE_SPACE_TREE) {
            needed.push(TreeId::FREE_SPACE);
        }
        if compat.contains(CompatRo::BLOCK_GROUP_TREE) {
            needed.push(TreeId::BLOCK_GROUP);
        }
        for id in needed {
            if self.get(id).is_none() {
                let text = "the tree of roots has no item for it";
                context.fault(FaultCode::RootMissing, Place::tree(id), text);
            }
        }
        if let Some((key, id)) = self.default
            && self.subvolume(id).is_none()
        {
            let text = format!("the default subvolume, tree {id}, does not exist");
            context.fault(FaultCode::RootMissing, Place::item(TreeId::ROOT, key), text);
        }
        let mut parents: FxHashMap<u64, usize> = FxHashMap::default();
        for (_, child) in self.backrefs.keys() {
            let count = parents.entry(*child).or_default();
            *count = count.saturating_add(1);
        }
        for root in self.all.iter().filter(|root| root.id.is_subvolume()) {
            let count = parents.get(&root.id.get()).copied().unwrap_or(0);
            self.subvolume_links(context, root, count);
        }
        let nodes = self.nodes();
        let lookup = Lookup {
            context,
            roots: &nodes,
        };
        for ((parent, child), link) in &self.refs {
            self.link(&lookup, (*parent, *child), link);
        }
        for ((parent, child), link) in &self.backrefs {
            if self.refs.get(&(*parent, *child)) != Some(link) {
                let text = format!("tree {parent} does not refer to tree {child} in the same way");
                let place = Place::tree(TreeId(*child));
                context.fault(FaultCode::RootReferenceMissing, place, text);
            }
        }
    }

    fn subvolume_links(&self, context: &Context<'_>, root: &Root, parents: usize) {
        let place = Place::item(TreeId::ROOT, root.key);
        let id = root.id.get();
        if root.is_dead() {
            if !self.orphans.contains(&id) {
                let text = format!("tree {id} is deleted but not marked for cleaning");
                context.fault(FaultCode::RootOrphanMissing, place, text);
            }
            return;
        }
        if parents == 0 && root.id != TreeId::FS {
            let text = format!("no directory holds subvolume {id}");
            context.fault(FaultCode::RootUnreachable, place, text);
        }
        if parents > 1 || root.item.refs != 1 {
            let text = format!("it has {parents} parents and counts {}", root.item.refs);
            context.fault(FaultCode::RootInvalid, place, text);
        }
    }

    fn link(&self, lookup: &Lookup<'_, '_>, (parent, child): (u64, u64), link: &Link) {
        let context = lookup.context;
        let place = Place::tree(TreeId(child));
        if self.get(TreeId(child)).is_none() {
            let text = format!("tree {parent} refers to a subvolume that does not exist");
            context.fault(FaultCode::RootMissing, place, text);
        }
        if self.backrefs.get(&(parent, child)) != Some(link) {
            let text = format!("it does not know its parent, tree {parent}, in the same way");
            context.fault(FaultCode::RootBackrefMissing, place, text);
        }
        let keys = [
            Key::new(link.directory, ItemType::DIR_ITEM, name_hash(&link.name)),
            Key::new(link.directory, ItemType::DIR_INDEX, link.index),
        ];
        for key in keys {
            let found = match find(lookup, TreeId(parent), &key) {
                Ok(Some((leaf, slot))) => points_to(leaf.data(slot), link, child),
                Ok(None) => false,
                // The walk reports the damage of the node.
                Err(_) => true,
            };
            if !found {
                let text = format!(
                    "tree {parent} refers to it as {:?}, but {key} is missing or another's",
                    String::from_utf8_lossy(&link.name)
                );
                context.fault(FaultCode::RootEntryMissing, place, text);
            }
        }
    }
}

/// Checks an inode of the tree of roots: its directory, or a file of the old
/// space cache.
fn inode(context: &Context<'_>, key: Key, data: &[u8]) {
    let place = Place::item(TreeId::ROOT, key);
    let fault = |text: String| context.fault(FaultCode::InodeInvalid, place, text);
    let others = [TreeId::ROOT_TREE_DIR.get(), object::FREE_INO];
    if !is_inode(key.objectid) && !others.contains(&key.objectid) {
        fault(format!(
            "no inode of the tree of roots has number {}",
            key.objectid
        ));
    }
    let newest = context.superblock.generation.saturating_add(1);
    match InodeItem::parse(data) {
        Ok(item) => scan::impossible_fields(&item, key, newest, fault),
        Err(error) => fault(error.to_string()),
    }
}

fn points_to(data: &[u8], link: &Link, child: u64) -> bool {
    DirEntries::new(data).flatten().any(|entry| {
        entry.name == link.name
            && entry.location.objectid == child
            && entry.location.item_type == ItemType::ROOT_ITEM
    })
}
