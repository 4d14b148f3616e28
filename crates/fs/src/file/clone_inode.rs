//! Copies of files that share their data, and of other inodes that have names.

use super::clone::CloneSpan;
use crate::Filesystem;
use crate::attr::{SetAttributes, SetTime};
use crate::change::NODES_PER_PATH;
use crate::error::FsError;
use crate::inode::{Inode, store_item};
use crate::names::{NewInode, Owner, S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use crate::xattr::SetMode;
use butterfs_format::InodeId;
use butterfs_format::item::inode::InodeFlags;
use butterfs_store::Purpose;
use std::sync::Arc;

/// How the data of a file are kept. Copies that share them must keep them in
/// the same way.
const KINDS: InodeFlags = InodeFlags::NODATASUM
    .union(InodeFlags::NODATACOW)
    .union(InodeFlags::COMPRESS)
    .union(InodeFlags::NOCOMPRESS);

impl Filesystem {
    /// Makes `name` in `parent` a copy of `source` that shares all data with
    /// it. Owner, mode, times, extended attributes, ACLs and the way in which
    /// data are kept are the same. A directory becomes an empty one. It gets
    /// its metadata from [`Filesystem::copy_metadata`] when its content is
    /// there.
    ///
    /// # Errors
    /// As [`Filesystem::create`] and [`Filesystem::clone_range`]; the name is
    /// free again after an error.
    pub fn clone_inode(
        &self,
        source: &Arc<Inode>,
        parent: InodeId,
        name: &[u8],
    ) -> Result<Arc<Inode>, FsError> {
        let old = self.attributes_of(source)?;
        let owner = Owner {
            uid: old.uid,
            gid: old.gid,
        };
        let mut new = NewInode::new(old.mode, owner);
        let link;
        match old.mode & S_IFMT {
            S_IFLNK => {
                link = self.read_link(source.id)?;
                new = NewInode::symlink(&link, owner);
            }
            S_IFDIR => return self.create(parent, name, &new),
            _ => new.rdev = old.rdev,
        }
        let made = self.create(parent, name, &new)?;
        let filled = (|| {
            if old.mode & S_IFMT == S_IFREG {
                self.keep_data_as(&made, old.flags)?;
                self.clone_range(source, &made, CloneSpan::default())?;
            }
            self.copy_metadata(source, &made)?;
            if old.mode & S_IFMT == S_IFREG {
                // Properties change it.
                self.keep_data_as(&made, old.flags)?;
            }
            Ok(())
        })();
        match filled {
            Ok(()) => Ok(made),
            Err(error) => {
                // What made it fail is what counts.
                let _ = self.unlink(parent, name);
                Err(error)
            }
        }
    }

    /// Gives `target` the owner, mode, times, extended attributes and ACLs of
    /// `source`, and no others.
    ///
    /// # Errors
    /// As [`Filesystem::set_attributes`] and [`Filesystem::set_xattr`].
    pub fn copy_metadata(&self, source: &Arc<Inode>, target: &Arc<Inode>) -> Result<(), FsError> {
        let old = self.attributes_of(source)?;
        let mut set = SetAttributes {
            uid: Some(old.uid),
            gid: Some(old.gid),
            ..SetAttributes::default()
        };
        if old.mode & S_IFMT != S_IFLNK {
            set.mode = Some(old.mode);
        }
        self.set_attributes(target, &set)?;
        let names = self.list_xattrs(source.id)?;
        for inherited in self.list_xattrs(target.id)? {
            if !names.contains(&inherited) {
                self.remove_xattr(target, &inherited)?;
            }
        }
        for name in &names {
            let value = self.get_xattr(source.id, name)?;
            self.set_xattr(target, name, &value, SetMode::Any)?;
        }
        let times = SetAttributes {
            atime: Some(SetTime::At(old.atime)),
            mtime: Some(SetTime::At(old.mtime)),
            ..SetAttributes::default()
        };
        self.set_attributes(target, &times)
    }

    /// Sets how the data of an empty file are kept, as `flags` say.
    fn keep_data_as(&self, inode: &Inode, flags: InodeFlags) -> Result<(), FsError> {
        let mut state = inode.state.write();
        let wanted = (state.item.flags - KINDS) | (flags & KINDS);
        if state.item.flags == wanted {
            return Ok(());
        }
        let room = (4 * NODES_PER_PATH, Purpose::Grow);
        self.change(&mut *state, inode.id.tree, room, |engine, state| {
            state.item.flags = wanted;
            store_item(engine, inode.id, state)
        })
    }
}
