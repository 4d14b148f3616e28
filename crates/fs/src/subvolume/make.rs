//! New subvolumes and snapshots.

use super::place::{Place, add_refs};
use crate::change::{NODES_OF_NEW, NODES_PER_PATH};
use crate::dir::{self, Link, check_name};
use crate::error::FsError;
use crate::inode::{Inode, InodeState, item_key};
use crate::mode::S_IFDIR;
use crate::names::{
    Inheritance, NewInode, attribute_changes, check_directory, name_bytes, touch_directory,
};
use crate::{Filesystem, acl, xattr};
use butterfs_format::item::dir::FileType;
use butterfs_format::item::inode::{InodeItem, RefEntry};
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::{Generation, InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Access, Engine, Fits, TreeAccess, now};
use butterfs_tree::change_items;
use std::collections::BTreeSet;
use uuid::Uuid;

/// Offset in the location of an entry of a snapshot.
const ANY: u64 = u64::MAX;

impl Filesystem {
    /// Makes an empty subvolume named `name` in `parent`, and commits. `new`
    /// gives mode and owner of its root directory.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn create_subvolume(
        &self,
        parent: InodeId,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<TreeId, FsError> {
        self.create_subvolume_in_groups(parent, name, new, &BTreeSet::new())
    }

    /// [`Filesystem::create_subvolume`], within quota groups from the start.
    ///
    /// # Errors
    /// As there; quotas are off, a group does not exist.
    pub fn create_subvolume_in_groups(
        &self,
        parent: InodeId,
        name: &[u8],
        new: &NewInode<'_>,
        groups: &BTreeSet<GroupId>,
    ) -> Result<TreeId, FsError> {
        let directory = self.check_new_entry(parent, name)?;
        self.ensure_quota_of_names(parent.tree)?;
        let mut dir_state = directory.state.write();
        check_directory(&dir_state)?;
        let nodes = NODES_OF_NEW + 8 * NODES_PER_PATH;
        self.change_and_commit(&mut *dir_state, parent.tree, nodes, |engine, dir_state| {
            dir::check_free(engine, parent, name)?;
            let groups = &parents_of_new(engine, parent.tree, groups)?;
            // As in the kernel, neither the group nor the set-group bit of the
            // directory is inherited. The directory's default ACL limits the
            // mode and is not kept.
            let own = NewInode {
                inheritance: Inheritance::Nothing,
                ..new.clone()
            };
            let default = || xattr::get(engine, parent, xattr::ACL_DEFAULT);
            let mode = acl::for_new(new, self.options.acl, default)?.mode;
            // As in the kernel: from the subvolume in which it lies, not from
            // its directory.
            let root_of_parent = InodeId {
                tree: parent.tree,
                number: InodeNumber::ROOT,
            };
            let property = xattr::get(engine, root_of_parent, xattr::COMPRESSION)?;
            let tree = engine.next_tree()?;
            let generation = engine.generation();
            let uuid = Uuid::new_v4().into_bytes();
            let time = now();
            let item = RootItem {
                inode: InodeItem {
                    generation: Generation(1),
                    size: 3,
                    nbytes: engine.node_size() as u64,
                    nlink: 1,
                    mode: S_IFDIR | 0o755,
                    ..InodeItem::default()
                },
                root_dir: InodeNumber::ROOT,
                bytes_used: engine.node_size() as u64,
                refs: 1,
                uuid,
                ctransid: generation,
                otransid: generation,
                ctime: time,
                otime: time,
                ..RootItem::default()
            };
            engine.create_tree(tree, item)?;
            engine.inherit_quota_groups(tree, groups)?;
            let id = InodeId {
                tree,
                number: InodeNumber::ROOT,
            };
            let mut root = self.blank_item(engine, &dir_state.item, &own);
            root.flags = butterfs_format::item::inode::InodeFlags::default();
            root.mode = S_IFDIR | (root.mode & 0o7000) | (mode & 0o777);
            butterfs_tree::insert(engine, tree, &item_key(id), &root.encode())?;
            let up = RefEntry {
                index: 0,
                name: b"..",
            };
            let up_key = Key::new(id.number.get(), ItemType::INODE_REF, id.number.get());
            butterfs_tree::insert(engine, tree, &up_key, &up.encode())?;
            let acls = acl::NewAcls::default();
            let changes = attribute_changes(engine, id, &acls, property.as_deref());
            change_items(engine, id.tree, &changes.collect::<Vec<_>>())?;
            engine.add_uuid(&uuid, ItemType::UUID_SUBVOL, tree)?;
            hang(engine, (parent, dir_state), name, (tree, 0))?;
            Ok(tree)
        })
    }

    /// Makes a snapshot of the subvolume `source`, named `name` in `parent`,
    /// and commits: all that was written before is in it.
    ///
    /// # Errors
    /// As [`Filesystem::create`]; [`FsError::NotFound`] when there is no such
    /// subvolume.
    pub fn snapshot(
        &self,
        source: TreeId,
        parent: InodeId,
        name: &[u8],
        access: Access,
    ) -> Result<TreeId, FsError> {
        self.snapshot_in_groups(source, (parent, name), access, &BTreeSet::new())
    }

    /// [`Filesystem::snapshot`], within quota groups from the start.
    ///
    /// # Errors
    /// As there; quotas are off, a group does not exist or may not use as
    /// much.
    pub fn snapshot_in_groups(
        &self,
        source: TreeId,
        (parent, name): (InodeId, &[u8]),
        access: Access,
        groups: &BTreeSet<GroupId>,
    ) -> Result<TreeId, FsError> {
        if !source.is_subvolume() {
            return Err(FsError::NotFound);
        }
        let directory = self.check_new_entry(parent, name)?;
        self.ensure_quota_of_names(parent.tree)?;
        self.flush_tree(source)?;
        let mut dir_state = directory.state.write();
        check_directory(&dir_state)?;
        // A flush that decided to overwrite in place finishes first. A flush
        // that decides later sees that the snapshot shares the data.
        let in_place = self.in_place.of(source);
        let alone = in_place.write();
        let nodes = 16 * NODES_PER_PATH;
        let tree =
            self.change_and_commit(&mut *dir_state, parent.tree, nodes, |engine, dir_state| {
                dir::check_free(engine, parent, name)?;
                let groups = &parents_of_new(engine, parent.tree, groups)?;
                if engine
                    .quota_state()
                    .fits_snapshot(source, groups, engine.node_size())
                    == Fits::No
                {
                    return Err(FsError::QuotaExceeded);
                }
                if engine.tree_access(source)? == TreeAccess::Dead {
                    return Err(FsError::NotFound);
                }
                let tree = engine.next_tree()?;
                let old = engine.tree_state(source)?.item;
                let item = snapshot_item(engine, &old, access);
                let (uuid, received) = (item.uuid, item.received_uuid);
                super::properties::check_room(engine, &received)?;
                // The copy comes first, so that it has no entry of itself.
                engine.copy_tree(source, tree, item)?;
                engine.inherit_quota_groups(tree, groups)?;
                engine.add_uuid(&uuid, ItemType::UUID_SUBVOL, tree)?;
                engine.add_uuid(&received, ItemType::UUID_RECEIVED_SUBVOL, tree)?;
                hang(engine, (parent, dir_state), name, (tree, ANY))?;
                Ok(tree)
            })?;
        drop((alone, dir_state));
        // Files without a name that are open in the source do not belong to the
        // copy.
        if let Err(error) = self.delete_orphans(tree) {
            // The snapshot is made and durable. What is left over only takes
            // space.
            tracing::error!(%tree, %error, "files without names stay; run a check of the volume");
        }
        Ok(tree)
    }

    fn check_new_entry(
        &self,
        parent: InodeId,
        name: &[u8],
    ) -> Result<std::sync::Arc<Inode>, FsError> {
        check_name(name)?;
        dir::check_kept(parent)?;
        self.store.check_writable()?;
        self.check_changeable(parent.tree)?;
        // What follows is one commit, which waits for nothing.
        let is_short = || {
            let engine = self.store.read();
            engine.is_short_of_metadata()
        };
        while is_short() && self.clean_for_space()? {}
        self.inode(parent)
    }

    /// Brings all waiting data of a subvolume to the device and its tree.
    pub(crate) fn flush_tree(&self, tree: TreeId) -> Result<(), FsError> {
        let dirty = self.buffers.dirty().into_iter();
        self.flush_each(dirty.filter(|inode| inode.id.tree == tree))
    }
}

/// Groups of a new subvolume in `parent`. They must exist.
fn parents_of_new(
    engine: &Engine,
    parent: TreeId,
    named: &BTreeSet<GroupId>,
) -> Result<BTreeSet<GroupId>, FsError> {
    // As in the kernel, groups are ignored while quotas are off.
    if named.is_empty() || engine.quotas().is_none() {
        return Ok(engine.quota_state().default_parents(parent));
    }
    engine.quota_state().check_parents(named)?;
    Ok(named.clone())
}

/// The root item of a snapshot of what `old` describes.
fn snapshot_item(engine: &Engine, old: &RootItem, access: Access) -> RootItem {
    let received = match access {
        // What can be changed is no longer what was received.
        Access::ReadWrite => RootItem::default(),
        Access::ReadOnly => old.clone(),
    };
    let flags = match access {
        Access::ReadWrite => RootFlags::default(),
        Access::ReadOnly => RootFlags::READONLY,
    };
    RootItem {
        flags,
        refs: 1,
        drop_progress: None,
        drop_level: 0,
        uuid: Uuid::new_v4().into_bytes(),
        parent_uuid: old.uuid,
        received_uuid: received.received_uuid,
        stransid: received.stransid,
        rtransid: received.rtransid,
        stime: received.stime,
        rtime: received.rtime,
        otransid: engine.generation(),
        otime: now(),
        ..old.clone()
    }
}

/// Gives a subvolume its name.
pub(super) fn hang(
    engine: &mut Engine,
    (parent, state): (InodeId, &mut InodeState),
    name: &[u8],
    (tree, offset): (TreeId, u64),
) -> Result<(), FsError> {
    let link = Link {
        parent: parent.number,
        index: dir::next_index(engine, parent, state)?,
        name: name.to_vec(),
    };
    let location = Key::new(tree.get(), ItemType::ROOT_ITEM, offset);
    dir::add_entry(engine, parent, &link, location, FileType::Directory)?;
    let place = Place { dir: parent, link };
    add_refs(engine, tree, &place)?;
    touch_directory(engine, parent, state, name_bytes(name))
}
