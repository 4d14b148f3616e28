//! The trees of one generation.

use crate::index::NodeRecord;
use crate::live::{Live, has_itself, live_of_generation};
use crate::nodes::Nodes;
use crate::plan::{Origin, Plan, PlanRequest, Seen, plan};
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::superblock::BackupRoot;
use butterfs_format::{Generation, InodeNumber, ItemType, Key, NodeRef, TreeId, UuidBytes};
use std::collections::BTreeMap;

/// Ancestors of a snapshot whose nodes are looked for.
const ANCESTORS_MAX: usize = 64;

/// Nodes that may be the root of the extent tree.
const EXTENT_ROOTS_MAX: usize = 256;

/// A tree as its root item describes it.
#[derive(Clone, Debug)]
pub struct Subvolume {
    /// Its number.
    pub id: TreeId,
    /// Its root; `None` if only nodes of it were found.
    pub root: Option<NodeRef>,
    /// Its root item, without what only few need.
    pub item: Option<Box<RootItem>>,
    /// The directory that has it, in another tree, and its name there.
    pub parent: Option<(TreeId, InodeNumber, Vec<u8>)>,
}

impl Subvolume {
    const fn unknown(id: TreeId) -> Self {
        Self {
            id,
            root: None,
            item: None,
            parent: None,
        }
    }

    /// Whether it was made as a snapshot.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        let item = self.item.as_ref();
        item.is_some_and(|item| item.parent_uuid != [0; 16])
    }

    /// Whether it is being deleted.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        let item = self.item.as_ref();
        item.is_some_and(|item| item.refs == 0 || item.flags.contains(RootFlags::DEAD))
    }

    fn uuid(&self) -> Option<UuidBytes> {
        let item = self.item.as_ref()?;
        (item.uuid != [0; 16]).then_some(item.uuid)
    }
}

/// The trees of one generation.
#[derive(Clone, Debug)]
pub struct Forest {
    /// The newest generation that counts.
    pub generation: Generation,
    /// All trees by their numbers, but not the chunk tree and the tree of roots.
    pub trees: BTreeMap<TreeId, Subvolume>,
    /// The leaves of the tree of roots.
    pub roots: Plan,
}

impl Forest {
    /// The trees that a tree of roots names. Where its own items have gaps,
    /// trees that only left nodes are added, and roots that `backup` names.
    pub(crate) fn load(
        nodes: &Nodes,
        root: Option<NodeRef>,
        newest: Generation,
        backup: Option<&BackupRoot>,
    ) -> Self {
        let request = PlanRequest::whole(TreeId::ROOT, root, newest);
        let roots = plan(nodes, &request, &Live::nothing(nodes));
        let mut forest = Self {
            generation: newest,
            trees: BTreeMap::new(),
            roots: roots.clone(),
        };
        let taken: Result<(), std::convert::Infallible> = roots.each(nodes, |seen| {
            if let Seen::Item { key, data, origin } = seen {
                forest.take(key, data, origin);
            }
            Ok(())
        });
        let Ok(()) = taken;
        if !roots.is_whole() {
            forest.add_found(nodes);
            if let Some(backup) = backup {
                forest.take_backup(backup);
            }
            forest.find_extents(nodes);
        }
        forest
    }

    /// Finds the root of the extent tree, if the tree of roots does not name
    /// it: the newest that has itself. A transaction can have written its root
    /// early, and anew elsewhere: the last one has most nodes of its generation.
    fn find_extents(&mut self, nodes: &Nodes) {
        let known = self.trees.get(&TreeId::EXTENT);
        if known.is_some_and(|tree| tree.root.is_some()) {
            return;
        }
        let newest = self.generation;
        let of_tree = nodes.index.of_tree(TreeId::EXTENT).iter();
        let of_time = of_tree.filter(|node| node.generation <= newest);
        let mut candidates: Vec<NodeRef> = of_time.map(NodeRecord::reference).collect();
        candidates.dedup();
        candidates.truncate(EXTENT_ROOTS_MAX);
        candidates.retain(|node| has_itself(nodes, *node) == Some(true));
        let Some(last) = candidates.first().map(|node| node.generation) else {
            return;
        };
        candidates.retain(|node| node.generation == last);
        let best = match &candidates[..] {
            [one] => Some(*one),
            several => {
                let several = several.iter().copied();
                several.max_by_key(|node| live_of_generation(nodes, *node))
            }
        };
        if let Some(best) = best {
            self.set_root(TreeId::EXTENT, best);
        }
    }

    /// Takes the roots of a commit whose tree of roots is lost, from the copy
    /// of them in the superblock.
    pub(crate) fn take_backup(&mut self, backup: &BackupRoot) {
        let roots = [
            (TreeId::EXTENT, backup.extent_root),
            (TreeId::DEVICE, backup.device_root),
            (TreeId::FS, backup.fs_root),
            (TreeId::CSUM, backup.csum_root),
        ];
        for (tree, root) in roots {
            let is_there = root.logical.get() != 0 && root.generation <= self.generation;
            if is_there {
                self.set_root(tree, root);
            }
        }
    }

    fn tree(&mut self, id: TreeId) -> &mut Subvolume {
        let new = || Subvolume::unknown(id);
        self.trees.entry(id).or_insert_with(new)
    }

    fn take(&mut self, key: Key, data: &[u8], origin: Origin) {
        let id = TreeId(key.objectid);
        match key.item_type {
            ItemType::ROOT_ITEM => {
                let Ok(item) = RootItem::parse(data) else {
                    self.tree(id);
                    return;
                };
                let root = item.root();
                let tree = self.tree(id);
                // A root item that the scan found may be older than the tree:
                // the newest nodes count then, and they include its root.
                tree.root = (origin == Origin::Pointed).then_some(root);
                tree.item = Some(Box::new(item));
            }
            ItemType::ROOT_BACKREF => {
                if let Ok(parent) = RootRef::parse(data) {
                    let parent = (TreeId(key.offset), parent.directory, parent.name.to_vec());
                    self.tree(id).parent = Some(parent);
                }
            }
            ItemType::ROOT_REF => {
                if let Ok(child) = RootRef::parse(data) {
                    let parent = (id, child.directory, child.name.to_vec());
                    self.tree(TreeId(key.offset)).parent.get_or_insert(parent);
                }
            }
            _ => {}
        }
    }

    /// Adds trees that left nodes.
    fn add_found(&mut self, nodes: &Nodes) {
        let newest = self.generation;
        for id in nodes.index.trees() {
            let is_data = id.is_subvolume() || (2..=12).contains(&id.get());
            let of_tree = nodes.index.of_tree(id);
            let is_of_time = of_tree.iter().any(|node| node.generation <= newest);
            if is_data && id != TreeId::CHUNK && is_of_time {
                self.tree(id);
            }
        }
    }

    /// The root of its extent tree.
    pub(crate) fn extents(&self) -> Option<NodeRef> {
        self.trees.get(&TreeId::EXTENT)?.root
    }

    /// Takes a node as the root of a tree.
    pub(crate) fn set_root(&mut self, id: TreeId, root: NodeRef) {
        self.tree(id).root = Some(root);
    }

    /// How to put one of its trees together.
    pub(crate) fn request(&self, id: TreeId) -> PlanRequest {
        let root = self.trees.get(&id).and_then(|tree| tree.root);
        // What is newer than the root is not of this generation.
        let newest = root.map_or(self.generation, |root| root.generation);
        let mut request = PlanRequest::whole(id, root, newest);
        let mut at = self.trees.get(&id);
        let mut limit = newest;
        for _ in 0..ANCESTORS_MAX {
            let Some(item) = at.and_then(|tree| tree.item.as_ref()) else {
                break;
            };
            let parent = item.parent_uuid;
            let found = self.trees.values().find(|tree| tree.uuid() == Some(parent));
            let Some(ancestor) = found.filter(|tree| parent != [0; 16] && tree.id != id) else {
                break;
            };
            limit = limit.min(item.otransid);
            request.owners.push((ancestor.id, limit));
            at = Some(ancestor);
        }
        request
    }

    /// The leaves of one of its trees.
    pub(crate) fn plan(&self, nodes: &Nodes, id: TreeId, live: &Live<'_>) -> Plan {
        plan(nodes, &self.request(id), live)
    }

    /// The trees that hold files and are not being deleted.
    pub fn subvolumes(&self) -> impl Iterator<Item = &Subvolume> {
        let all = self.trees.values();
        all.filter(|tree| tree.id.is_subvolume() && !tree.is_dead())
    }
}
