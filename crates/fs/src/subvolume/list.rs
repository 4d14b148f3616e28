//! Which subvolumes a volume has, and where they lie.

use super::paths::{Paths, joined};
use crate::error::FsError;
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{InodeNumber, ItemType, Key, TreeId, UuidBytes};
use butterfs_store::{Engine, bad_item};
use butterfs_tree::{Cursor, NodeSource};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Greatest depth of nested subvolumes; more means a loop.
const DEPTH_MAX: usize = 4096;

/// Where a subvolume hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeParent {
    /// Subvolume that holds it.
    pub tree: TreeId,
    /// Directory, in that subvolume, that has its entry.
    pub directory: InodeNumber,
    /// Name of the entry.
    pub name: Vec<u8>,
}

/// What is known of a subvolume.
#[derive(Clone, Debug)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: TreeId,
    /// Where it hangs; `None` for the top level, and if it is being deleted.
    pub parent: Option<SubvolumeParent>,
    /// Path from the top level; `None` if no names lead to it.
    pub path: Option<Vec<u8>>,
    /// Its root item, with the root node as it is now.
    pub item: RootItem,
}

impl SubvolumeInfo {
    /// It was deleted, and its space is not yet free.
    #[must_use]
    pub const fn is_being_deleted(&self) -> bool {
        self.item.refs == 0
    }

    /// It is a snapshot of another.
    #[must_use]
    pub fn is_snapshot(&self) -> bool {
        self.item.parent_uuid != [0; 16]
    }

    /// It cannot be changed.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.item.flags.contains(RootFlags::READONLY)
    }
}

/// All subvolumes of a volume, the top level included.
#[derive(Clone, Debug, Default)]
pub struct Subvolumes(BTreeMap<TreeId, SubvolumeInfo>);

impl Subvolumes {
    /// Reads the tree of roots.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn load(engine: &Engine) -> Result<Self, FsError> {
        let mut all = BTreeMap::new();
        let mut parents = FxHashMap::default();
        let first = Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, 0);
        let mut cursor = Cursor::seek_in(engine, TreeId::ROOT, &first)?;
        while let Some((key, data)) = cursor.item() {
            let id = TreeId(key.objectid);
            if id > TreeId::LAST_SUBVOLUME {
                break;
            }
            if id.is_subvolume() && key.item_type == ItemType::ROOT_ITEM {
                let state = engine.tree_state(id)?;
                let mut item = state.item;
                item.logical = state.root.logical;
                item.generation = state.root.generation;
                item.level = state.root.level;
                let info = SubvolumeInfo {
                    id,
                    parent: None,
                    path: None,
                    item,
                };
                all.insert(id, info);
            } else if id.is_subvolume() && key.item_type == ItemType::ROOT_BACKREF {
                let reference =
                    RootRef::parse(data).map_err(|error| bad_item(TreeId::ROOT, key, &error))?;
                let parent = SubvolumeParent {
                    tree: TreeId(key.offset),
                    directory: reference.directory,
                    name: reference.name.to_vec(),
                };
                parents.insert(id, parent);
            }
            cursor.next()?;
        }
        for (id, info) in &mut all {
            info.parent = parents.remove(id);
        }
        let mut subvolumes = Self(all);
        subvolumes.find_paths(engine)?;
        Ok(subvolumes)
    }

    fn find_paths(&mut self, engine: &Engine) -> Result<(), FsError> {
        // Path of each within its parent. Children of one parent share what was
        // found of its directories.
        let mut finders: FxHashMap<TreeId, Paths<'_>> = FxHashMap::default();
        let mut within: FxHashMap<TreeId, (TreeId, Vec<u8>)> = FxHashMap::default();
        for (id, info) in &self.0 {
            let Some(parent) = &info.parent else { continue };
            if !self.0.contains_key(&parent.tree) {
                continue;
            }
            let root = engine.root(parent.tree)?;
            let finder = finders
                .entry(parent.tree)
                .or_insert_with(|| Paths::new(engine, parent.tree, root));
            let path = finder.below(parent.directory, &parent.name)?;
            within.insert(*id, (parent.tree, path));
        }
        for (id, info) in &mut self.0 {
            let mut parts = Vec::new();
            let mut at = *id;
            while let Some((parent, path)) = within.get(&at) {
                parts.push(path.as_slice());
                at = *parent;
                if parts.len() > DEPTH_MAX {
                    break;
                }
            }
            if at == TreeId::FS {
                let whole = parts.iter().rev();
                info.path = Some(whole.fold(Vec::new(), |path, part| joined(&path, part)));
            }
        }
        Ok(())
    }

    /// All, by ascending id.
    pub fn iter(&self) -> impl Iterator<Item = &SubvolumeInfo> {
        self.0.values()
    }

    /// How many, the top level included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none. No volume is like that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The subvolume of this id.
    #[must_use]
    pub fn get(&self, id: TreeId) -> Option<&SubvolumeInfo> {
        self.0.get(&id)
    }

    /// The subvolume of this UUID.
    #[must_use]
    pub fn by_uuid(&self, uuid: UuidBytes) -> Option<&SubvolumeInfo> {
        self.iter().find(|info| info.item.uuid == uuid)
    }

    /// The subvolume at this path from the top level.
    #[must_use]
    pub fn by_path(&self, path: &[u8]) -> Option<&SubvolumeInfo> {
        self.iter().find(|info| info.path.as_deref() == Some(path))
    }

    /// Those that lie directly in `parent`, by ascending id.
    pub fn children(&self, parent: TreeId) -> impl Iterator<Item = &SubvolumeInfo> {
        self.iter()
            .filter(move |info| info.parent.as_ref().is_some_and(|p| p.tree == parent))
    }

    /// All subvolumes to which names lead. Each one comes after those below it.
    #[must_use]
    pub fn children_first(&self) -> Vec<&SubvolumeInfo> {
        let mut below: BTreeMap<TreeId, Vec<TreeId>> = BTreeMap::new();
        for info in self.iter() {
            if let Some(parent) = &info.parent {
                below.entry(parent.tree).or_default().push(info.id);
            }
        }
        // Parents first and siblings in reverse, and all turned around at the
        // end. Each subvolume has one parent and is taken out once, so loops
        // end.
        let mut order = Vec::new();
        let mut waiting = vec![TreeId::FS];
        while let Some(id) = waiting.pop() {
            order.extend(self.get(id));
            waiting.extend(below.remove(&id).unwrap_or_default());
        }
        order.reverse();
        order
    }

    /// The snapshots of `of`, in the order of [`Subvolumes::children_first`].
    #[must_use]
    pub fn snapshots(&self, of: &SubvolumeInfo) -> Vec<&SubvolumeInfo> {
        let mut all = self.children_first();
        all.retain(|info| info.is_snapshot() && info.item.parent_uuid == of.item.uuid);
        all
    }

    /// The whole family of `of`: what it is a snapshot of, through all steps,
    /// and all snapshots of these, as far as the links exist. A received copy
    /// belongs to the family through the subvolume on which it was received.
    #[must_use]
    pub fn family(&self, of: &SubvolumeInfo) -> Vec<&SubvolumeInfo> {
        let mut groups = Groups::default();
        for info in self.iter().filter(|info| info.is_snapshot()) {
            groups.join(info.item.uuid, info.item.parent_uuid);
        }
        let wanted = groups.of(of.item.uuid);
        let mut family: Vec<_> = self
            .iter()
            .filter(|info| info.id == of.id || groups.of(info.item.uuid) == wanted)
            .filter(|info| !info.is_being_deleted())
            .collect();
        family.sort_by_key(|info| (info.item.otransid, info.id));
        family
    }
}

/// Groups of UUIDs. One UUID of each group stands for it.
#[derive(Default)]
struct Groups(FxHashMap<UuidBytes, UuidBytes>);

impl Groups {
    /// The UUID that stands for the group of `uuid`. Links lead only from one
    /// such UUID to another, so there are no loops. Paths that were walked are
    /// shortened.
    fn of(&mut self, uuid: UuidBytes) -> UuidBytes {
        let mut at = uuid;
        while let Some(next) = self.0.get(&at) {
            at = *next;
        }
        let mut walked = uuid;
        while let Some(next) = self.0.insert(walked, at).filter(|_| walked != at) {
            walked = next;
        }
        // The last step put the end before itself.
        self.0.remove(&at);
        at
    }

    fn join(&mut self, one: UuidBytes, other: UuidBytes) {
        let (one, other) = (self.of(one), self.of(other));
        if one != other {
            self.0.insert(one, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_join_in_any_order_and_long_chains_end() {
        let uuid = |at: u32| {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&at.to_le_bytes());
            bytes
        };
        let mut groups = Groups::default();
        for at in 0..100_000 {
            groups.join(uuid(at), uuid(at + 2));
        }
        // A loop. Only hostile volumes have one.
        groups.join(uuid(100_000), uuid(0));
        groups.join(uuid(0), uuid(0));
        assert_eq!(groups.of(uuid(0)), groups.of(uuid(77_776)));
        assert_eq!(groups.of(uuid(1)), groups.of(uuid(77_777)));
        assert_ne!(groups.of(uuid(0)), groups.of(uuid(1)));
        assert_eq!(groups.of(uuid(500_000)), uuid(500_000));
    }
}
