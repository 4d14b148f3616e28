//! Making and removing names: create, link, unlink, rmdir, symlink.
//!
//! Owns the rules of new inodes (owner, mode, inherited flags, properties and
//! ACLs) and link counts.

pub use crate::mode::{
    S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFLNK, S_IFMT, S_IFREG, S_IFSOCK, S_ISGID, S_ISUID,
};
pub use crate::new_inode::{Inheritance, NewInode, Owner};

use crate::acl::{self, NewAcls};
use crate::change::{Locked, NODES_OF_NEW, NODES_PER_PATH};
use crate::dir::{self, Link, Target, check_name};
use crate::error::FsError;
use crate::inode::{Inode, InodeState, item_change, store_item};
use crate::inode_fault::InodeFault;
use crate::mode::kind_of;
use crate::options::DataCow;
use crate::{Filesystem, orphan, xattr};
use butterfs_format::item::dir::FileType;
use butterfs_format::item::file_extent::FileExtent;
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{InodeId, InodeNumber, ItemType, Key};
use butterfs_store::{Engine, Purpose, now};
use butterfs_tree::{Edit, ItemChange, change_items};
use parking_lot::RwLockWriteGuard;
use std::sync::Arc;

pub use butterfs_format::item::inode::LINKS_MAX;

/// Longest target of a symbolic link, in bytes.
pub const SYMLINK_MAX: usize = 4095;

pub(crate) const fn location(inode: InodeNumber) -> Key {
    Key::new(inode.0, ItemType::INODE_ITEM, 0)
}

/// Locks several inodes, always in the same order.
pub(crate) fn lock_all<'i>(inodes: &[&'i Arc<Inode>]) -> Locked<'i> {
    let mut sorted = inodes.to_vec();
    sorted.sort_by_key(|inode| inode.id);
    sorted.dedup_by_key(|inode| inode.id);
    sorted
        .into_iter()
        .map(|inode| (inode.id, inode.state.write()))
        .collect()
}

/// The state of `id` among locked ones.
pub(crate) fn state_of<'a>(
    locked: &'a mut [(InodeId, RwLockWriteGuard<'_, InodeState>)],
    id: InodeId,
) -> &'a mut InodeState {
    locked
        .iter_mut()
        .find(|(other, _)| *other == id)
        .map(|(_, state)| &mut **state)
        .expect("locked before")
}

/// Errors unless the inode is a directory whose names may change.
pub(crate) fn check_directory(state: &InodeState) -> Result<(), FsError> {
    // The kernel refuses names in a directory that was removed while somebody
    // has it open. Requests for subvolumes do not pass that check.
    if state.deleted || state.item.nlink == 0 {
        return Err(FsError::NotFound);
    }
    if state.item.mode & S_IFMT != S_IFDIR {
        return Err(FsError::NotADirectory);
    }
    state.check_unprotected()
}

/// Notes in a directory that its names changed; `bytes` is twice their length.
/// Gives the change of its item.
fn touched(engine: &Engine, dir: InodeId, state: &mut InodeState, bytes: i64) -> ItemChange {
    let time = now();
    state.item.size = state.item.size.saturating_add_signed(bytes);
    state.disk_size = state.item.size;
    state.item.mtime = time;
    state.item.ctime = time;
    state.item.sequence = state.item.sequence.wrapping_add(1);
    item_change(engine, Edit::Put, dir, state)
}

/// Notes in a directory and in its item that its names changed; `bytes` is twice
/// their length.
pub(crate) fn touch_directory(
    engine: &mut Engine,
    dir: InodeId,
    state: &mut InodeState,
    bytes: i64,
) -> Result<(), FsError> {
    let change = touched(engine, dir, state, bytes);
    Ok(change_items(engine, dir.tree, &[change])?)
}

pub(crate) const fn name_bytes(name: &[u8]) -> i64 {
    2 * name.len() as i64
}

impl Filesystem {
    pub(crate) fn blank_item(
        &self,
        engine: &Engine,
        parent: &InodeItem,
        new: &NewInode<'_>,
    ) -> InodeItem {
        let time = now();
        let directory = new.mode & S_IFMT == S_IFDIR;
        // The kernel refuses a volume with other bits.
        let mut mode = new.mode & (S_IFMT | 0o7777);
        let mut gid = new.owner.gid;
        let handed_down = if new.inherits() {
            parent.flags
        } else {
            InodeFlags::default()
        };
        if parent.mode & S_ISGID != 0 && new.inherits() {
            gid = parent.gid;
            if directory {
                mode |= S_ISGID;
            }
        }
        InodeItem {
            generation: engine.generation(),
            transid: engine.generation(),
            size: 0,
            nbytes: 0,
            block_group: 0,
            nlink: 1,
            uid: new.owner.uid,
            gid,
            mode,
            rdev: new.rdev,
            flags: self.inherited_flags(handed_down, new.mode),
            sequence: 0,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            ..InodeItem::default()
        }
    }

    fn inherited_flags(&self, parent: InodeFlags, mode: u32) -> InodeFlags {
        let regular = mode & S_IFMT == S_IFREG;
        let directory = mode & S_IFMT == S_IFDIR;
        let mut flags = InodeFlags::default();
        if !regular && !directory {
            return flags;
        }
        if parent.contains(InodeFlags::NOCOMPRESS) {
            flags |= InodeFlags::NOCOMPRESS;
        } else if parent.contains(InodeFlags::COMPRESS) {
            flags |= InodeFlags::COMPRESS;
        }
        if parent.contains(InodeFlags::NODATACOW) {
            flags |= InodeFlags::NODATACOW;
            if regular {
                flags |= InodeFlags::NODATASUM;
            }
        }
        if regular {
            match self.options.data_cow {
                DataCow::On => {}
                DataCow::NoSum => flags |= InodeFlags::NODATASUM,
                DataCow::Off => flags |= InodeFlags::NODATACOW | InodeFlags::NODATASUM,
            }
        }
        flags
    }

    /// Makes an inode named `name` in `parent`.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::NotADirectory`],
    /// [`FsError::NameTooLong`], no space, damage.
    pub fn create(
        &self,
        parent: InodeId,
        name: &[u8],
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        check_name(name)?;
        self.make(parent, Some(name), new)
    }

    /// Makes an inode without a name (O_TMPFILE). It is deleted with its last
    /// user unless it is linked. The caller holds a pin on it.
    ///
    /// # Errors
    /// As [`Filesystem::create`].
    pub fn create_unnamed(
        &self,
        parent: InodeId,
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        self.make(parent, None, new)
    }

    fn make(
        &self,
        parent: InodeId,
        name: Option<&[u8]>,
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        dir::check_kept(parent)?;
        let kind = kind_of(new.mode)?;
        if kind == FileType::Symlink {
            self.check_symlink(new.symlink)?;
        }
        self.ensure_quota_of_names(parent.tree)?;
        let directory = self.inode(parent)?;
        let mut dir_state = directory.state.write();
        check_directory(&dir_state)?;
        let room = (NODES_OF_NEW, Purpose::Grow);
        let plan = |engine: &Engine, dir_state: &mut InodeState| {
            if let Some(name) = name {
                dir::check_free(engine, parent, name)?;
            }
            self.plan_new(engine, (parent, dir_state), name, new)
        };
        let enter = |inode| self.enter_new(inode);
        self.change_items(&mut *dir_state, parent.tree, room, plan, enter)
    }

    /// Enters an inode of [`Filesystem::plan_new`] into the table, after its
    /// items are in the tree.
    fn enter_new(&self, inode: Inode) -> Arc<Inode> {
        self.next_inodes.used(inode.id);
        self.inodes.insert(inode)
    }

    /// Adds an inode and its name, which is free. The transaction has room for
    /// [`NODES_OF_NEW`].
    pub(crate) fn add_new(
        &self,
        engine: &mut Engine,
        (parent, dir_state): (InodeId, &mut InodeState),
        name: Option<&[u8]>,
        new: &NewInode<'_>,
    ) -> Result<Arc<Inode>, FsError> {
        let (changes, inode) = self.plan_new(engine, (parent, dir_state), name, new)?;
        change_items(engine, parent.tree, &changes)?;
        Ok(self.enter_new(inode))
    }

    /// An inode to add, with the changes that add it and its name, which is
    /// free.
    fn plan_new(
        &self,
        engine: &Engine,
        (parent, dir_state): (InodeId, &mut InodeState),
        name: Option<&[u8]>,
        new: &NewInode<'_>,
    ) -> Result<(Vec<ItemChange>, Inode), FsError> {
        let kind = kind_of(new.mode)?;
        let default = || xattr::get(engine, parent, xattr::ACL_DEFAULT);
        let acls = acl::for_new(new, self.options.acl, default)?;
        let id = InodeId {
            tree: parent.tree,
            number: self.next_inodes.next(engine, parent.tree)?,
        };
        let mut item = self.blank_item(engine, &dir_state.item, new);
        // Only an algorithm is passed on as a property. Flags pass on that
        // compression is forbidden, or explicitly "none".
        let property = match kind {
            FileType::Regular | FileType::Directory
                if new.inherits() && !item.flags.intersects(xattr::UNPACKED) =>
            {
                xattr::get(engine, parent, xattr::COMPRESSION)?
                    .and_then(|value| xattr::compression_property(&value).flatten())
            }
            _ => None,
        };
        item.mode = (item.mode & !0o777) | (acls.mode & 0o777);
        if name.is_none() {
            item.nlink = 0;
        }
        let mut inode = Inode::new(id, item);
        let state = inode.state.get_mut();
        let target =
            (kind == FileType::Symlink).then(|| symlink_change(engine, id, state, new.symlink));
        let mut changes = Vec::with_capacity(6);
        changes.push(item_change(engine, Edit::Insert, id, state));
        let link = match name {
            Some(name) => Some(Link {
                parent: parent.number,
                index: dir::next_index(engine, parent, dir_state)?,
                name: name.to_vec(),
            }),
            None => None,
        };
        let own = link.as_ref();
        changes.extend(own.map(|link| dir::first_link_change(engine, id, link)));
        let algorithm = property.map(|algorithm| algorithm.name().as_bytes());
        changes.extend(attribute_changes(engine, id, &acls, algorithm));
        changes.extend(target);
        match link {
            Some(link) => {
                let location = location(id.number);
                changes.extend(dir::entry_changes(engine, parent, &link, location, kind));
                let bytes = name_bytes(&link.name);
                changes.push(touched(engine, parent, dir_state, bytes));
            }
            None => changes.push(orphan::change(id)),
        }
        if property.is_some() {
            state.compression = Some(property);
        }
        if kind == FileType::Directory {
            state.next_index = Some(dir::FIRST_INDEX);
        }
        Ok((changes, inode))
    }

    fn check_symlink(&self, target: &[u8]) -> Result<(), FsError> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.len() > SYMLINK_MAX {
            return Err(FsError::TargetTooLong);
        }
        if target.contains(&0) {
            return Err(FsError::Invalid("the target of a symbolic link has a NUL"));
        }
        let node_size = self.store.read().node_size();
        if target.len() + FileExtent::INLINE_HEADER > butterfs_tree::Node::item_data_max(node_size)
        {
            return Err(FsError::TargetTooLong);
        }
        Ok(())
    }

    /// Target of a symbolic link.
    ///
    /// # Errors
    /// [`FsError::Invalid`] if it is no symbolic link; damage, reading.
    pub fn read_link(&self, id: InodeId) -> Result<Vec<u8>, FsError> {
        let inode = self.inode(id)?;
        let size = {
            let state = inode.state.read();
            if state.item.mode & S_IFMT != S_IFLNK {
                return Err(FsError::Invalid("not a symbolic link"));
            }
            usize::try_from(state.item.size).unwrap_or(usize::MAX)
        };
        let mut target = vec![0; size.min(SYMLINK_MAX + 1)];
        let read = self.read(&inode, 0, &mut target)?;
        target.truncate(read);
        Ok(target)
    }

    /// Gives `inode` another name.
    ///
    /// # Errors
    /// [`FsError::Exists`], [`FsError::TooManyLinks`],
    /// [`FsError::CrossesSubvolumes`], [`FsError::NotPermitted`] for
    /// directories, no space, damage.
    pub fn link(&self, id: InodeId, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        check_name(name)?;
        dir::check_kept(parent)?;
        if id.tree != parent.tree {
            return Err(FsError::CrossesSubvolumes);
        }
        self.ensure_quota_of_names(parent.tree)?;
        let (inode, directory) = (self.inode(id)?, self.inode(parent)?);
        if id == parent {
            return Err(FsError::NotPermitted("directories have one name"));
        }
        let mut locked = lock_all(&[&inode, &directory]);
        check_directory(state_of(&mut locked, parent))?;
        let item = &state_of(&mut locked, id).item;
        let kind = kind_of(item.mode)?;
        if kind == FileType::Directory {
            return Err(FsError::NotPermitted("directories have one name"));
        }
        if item.nlink >= LINKS_MAX {
            return Err(FsError::TooManyLinks);
        }
        let unnamed = item.nlink == 0;
        if state_of(&mut locked, id).deleted {
            return Err(FsError::NotFound);
        }
        let room = (6 * NODES_PER_PATH, Purpose::Grow);
        self.change(&mut locked, parent.tree, room, |engine, locked| {
            dir::check_free(engine, parent, name)?;
            dir::check_link_room(engine, id, parent.number, name, None)?;
            let dir_state = state_of(locked, parent);
            let link = Link {
                parent: parent.number,
                index: dir::next_index(engine, parent, dir_state)?,
                name: name.to_vec(),
            };
            dir::add_link(engine, id, &link)?;
            dir::add_entry(engine, parent, &link, location(id.number), kind)?;
            touch_directory(engine, parent, dir_state, name_bytes(name))?;
            let state = state_of(locked, id);
            state.item.nlink += 1;
            state.item.ctime = now();
            state.item.sequence = state.item.sequence.wrapping_add(1);
            store_item(engine, id, state)?;
            if unnamed {
                orphan::remove(engine, id)?;
            }
            Ok(())
        })
    }

    /// Removes the name of something that is no directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::IsADirectory`], damage.
    pub fn unlink(&self, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.remove_name(parent, name, (Removal::File, None))
    }

    /// As [`Filesystem::unlink`], if the name still stands for `inode`.
    ///
    /// # Errors
    /// As there; [`FsError::NotFound`] if it stands for another one.
    pub fn unlink_this(&self, parent: InodeId, name: &[u8], inode: InodeId) -> Result<(), FsError> {
        self.remove_name(parent, name, (Removal::File, Some(inode)))
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// [`FsError::NotFound`], [`FsError::NotADirectory`],
    /// [`FsError::NotEmpty`], damage.
    pub fn rmdir(&self, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        match name {
            b"." => return Err(FsError::Invalid("a directory cannot remove itself")),
            b".." => return Err(FsError::NotEmpty),
            _ => {}
        }
        self.remove_name(parent, name, (Removal::Directory, None))
    }

    /// As [`Filesystem::rmdir`], if the name still stands for `inode`.
    ///
    /// # Errors
    /// As there; [`FsError::NotFound`] if it stands for another one.
    pub fn rmdir_this(&self, parent: InodeId, name: &[u8], inode: InodeId) -> Result<(), FsError> {
        self.remove_name(parent, name, (Removal::Directory, Some(inode)))
    }

    fn remove_name(
        &self,
        parent: InodeId,
        name: &[u8],
        (what, victim): (Removal, Option<InodeId>),
    ) -> Result<(), FsError> {
        loop {
            let target = self.lookup(parent, name)?;
            if victim.is_some_and(|victim| victim != target.inode) {
                return Err(FsError::NotFound);
            }
            self.check_removal(target, what)?;
            if target.subvolume && !dir::is_absent_subvolume(target.inode) {
                return self
                    .remove_subvolume((parent, name), target, what)
                    .map(drop);
            }
            if dir::is_absent_subvolume(target.inode) {
                return self.remove_absent(parent, name);
            }
            let (inode, directory) = (self.inode(target.inode)?, self.inode(parent)?);
            let mut locked = lock_all(&[&inode, &directory]);
            check_directory(state_of(&mut locked, parent))?;
            let room = (6 * NODES_PER_PATH + orphan::NODES, Purpose::Shrink);
            let done = self.change(&mut locked, parent.tree, room, |engine, locked| {
                if dir::lookup(engine, parent, name)? != Some(target) {
                    return Ok(None);
                }
                if what == Removal::Directory && dir::has_entries(engine, target.inode)? {
                    return Err(FsError::NotEmpty);
                }
                let link = dir::find_link(engine, target.inode, parent.number, name)?
                    .ok_or_else(|| missing_link(target.inode))?;
                let plan = orphan::plan_last(engine, &inode, state_of(locked, target.inode))?;
                dir::remove_entry(engine, parent, &link)?;
                let dir_state = state_of(locked, parent);
                touch_directory(engine, parent, dir_state, -name_bytes(name))?;
                let state = state_of(locked, target.inode);
                orphan::drop_link(engine, &inode, state, (&link, plan)).map(Some)
            })?;
            drop(locked);
            match done {
                Some(orphan::Fate::Gone) => {
                    self.inodes.remove(target.inode);
                    return Ok(());
                }
                Some(orphan::Fate::Waits) => {
                    self.delete_or_leave(&inode);
                    return Ok(());
                }
                Some(orphan::Fate::Lives) => return Ok(()),
                // Somebody changed the name meanwhile.
                None => {}
            }
        }
    }

    fn remove_absent(&self, parent: InodeId, name: &[u8]) -> Result<(), FsError> {
        let directory = self.inode(parent)?;
        let mut state = directory.state.write();
        check_directory(&state)?;
        let room = (4 * NODES_PER_PATH, Purpose::Shrink);
        self.change(&mut *state, parent.tree, room, |engine, state| {
            let target = dir::lookup(engine, parent, name)?;
            if !target.is_some_and(|target| dir::is_absent_subvolume(target.inode)) {
                return Err(FsError::NotFound);
            }
            dir::remove_absent_subvolume(engine, parent, name)?;
            touch_directory(engine, parent, state, -name_bytes(name))
        })
    }

    fn check_removal(&self, target: Target, what: Removal) -> Result<(), FsError> {
        if target.subvolume {
            return Err(match what {
                Removal::File => FsError::IsADirectory,
                Removal::Directory | Removal::Subvolume => return Ok(()),
            });
        }
        match (what, target.kind) {
            (Removal::File, FileType::Directory) => Err(FsError::IsADirectory),
            (Removal::Directory, kind) if kind != FileType::Directory => {
                Err(FsError::NotADirectory)
            }
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removal {
    File,
    Directory,
    Subvolume,
}

pub(crate) fn missing_link(inode: InodeId) -> FsError {
    FsError::Damaged {
        inode,
        at: None,
        fault: Box::new(InodeFault::NoOwnName),
    }
}

/// Gives a symbolic link its target, and the change that keeps it.
fn symlink_change(
    engine: &Engine,
    id: InodeId,
    state: &mut InodeState,
    target: &[u8],
) -> ItemChange {
    state.item.size = target.len() as u64;
    state.item.nbytes = target.len() as u64;
    state.disk_size = state.item.size;
    let extent = FileExtent::inline(engine.generation(), target);
    let key = Key::new(id.number.get(), ItemType::EXTENT_DATA, 0);
    ItemChange::new(Edit::Insert, key, extent.encode())
}

/// The changes that give a new inode its attributes.
pub(crate) fn attribute_changes(
    engine: &Engine,
    id: InodeId,
    acls: &NewAcls,
    property: Option<&[u8]>,
) -> impl Iterator<Item = ItemChange> {
    let all = [
        (xattr::ACL_ACCESS, acls.access.as_deref()),
        (xattr::ACL_DEFAULT, acls.default.as_deref()),
        (xattr::COMPRESSION, property),
    ];
    let all = all.map(|(name, value)| value.map(|value| xattr::change(engine, id, name, value)));
    all.into_iter().flatten()
}
