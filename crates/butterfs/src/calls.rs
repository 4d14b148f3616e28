//! File calls on a volume, one system call's work each.
//!
//! Owns the interface through which work on many files goes ([`Calls`]), and
//! the walk over trees. A [`Volume`] carries out each
//! call without asking who wants it. The server of a mount carries it out for a
//! caller: it checks the caller's rights first, and tells the kernel of each
//! change.

use crate::paths::{Walk, WalkEntry};
use crate::{Error, Volume};
use butterfs_format::{InodeId, InodeNumber};
use butterfs_fs::attr::{Attributes, SetAttributes};
use butterfs_fs::dir::{ListedEntry, Target};
use butterfs_fs::names::{NewInode, Owner};
use butterfs_fs::rename::{OldName, Place, RenameMode};
use butterfs_fs::xattr::SetMode;
use butterfs_fs::{FsError, Inode, InodeFault};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// File calls on a volume. Errors are those of the system calls. An inode that a
/// caller names was looked up or listed before, by calls of the same object.
pub trait Calls: fmt::Debug {
    /// Attributes, as lstat(2).
    ///
    /// # Errors
    /// As stat(2).
    fn attributes(&self, id: InodeId) -> Result<Attributes, FsError>;

    /// What a name of a directory points to.
    ///
    /// # Errors
    /// As stat(2).
    fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<Target, FsError>;

    /// Adds the entries of a directory, without `.` and `..`, to `entries`.
    ///
    /// # Errors
    /// As readdir(3). What was read before is added.
    fn list_to(&self, dir: InodeId, entries: &mut Vec<ListedEntry>) -> Result<(), FsError>;

    /// The entries of a directory, without `.` and `..`.
    ///
    /// # Errors
    /// As readdir(3).
    fn list(&self, dir: InodeId) -> Result<Vec<ListedEntry>, FsError> {
        let mut entries = Vec::new();
        self.list_to(dir, &mut entries)?;
        Ok(entries)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// As readlink(2).
    fn read_link(&self, id: InodeId) -> Result<Vec<u8>, FsError>;

    /// Removes a name of what is no directory.
    ///
    /// # Errors
    /// As unlink(2).
    fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As rmdir(2).
    fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError>;

    /// Moves a name.
    ///
    /// # Errors
    /// As rename(2).
    fn rename(&self, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Result<(), FsError>;

    /// Sets attributes.
    ///
    /// # Errors
    /// As chmod(2), chown(2), utimensat(2).
    fn set_attributes(&self, id: InodeId, set: &SetAttributes) -> Result<(), FsError>;

    /// Makes an inode with a name.
    ///
    /// # Errors
    /// As mkdir(2).
    fn create(&self, dir: InodeId, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Inode>, FsError>;

    /// Makes an inode without a name, for a directory in which it gets one.
    ///
    /// # Errors
    /// As open(2) with O_TMPFILE, and mknod(2).
    fn create_unnamed(&self, dir: InodeId, new: &NewInode<'_>) -> Result<Arc<Inode>, FsError>;

    /// Gives an inode a name.
    ///
    /// # Errors
    /// As link(2).
    fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<(), FsError>;

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// As setxattr(2). [`FsError::NotSupported`] too for attributes of the
    /// system that only root can set.
    fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), FsError>;

    /// The part of an owner that a file of its maker can get.
    fn owner_given(&self, wanted: Owner) -> GivenOwner;
}

/// What chown(2) can do for somebody with a file of its own; `None` leaves what
/// the file has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GivenOwner {
    /// User.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
}

impl Calls for Volume {
    fn attributes(&self, id: InodeId) -> Result<Attributes, FsError> {
        self.files().attributes(id)
    }

    fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<Target, FsError> {
        self.files().lookup(dir, name)
    }

    fn list_to(&self, dir: InodeId, entries: &mut Vec<ListedEntry>) -> Result<(), FsError> {
        self.store().check_open()?;
        self.files().read_dir(dir, 2, &mut |entry| {
            entries.push(entry);
            true
        })
    }

    fn read_link(&self, id: InodeId) -> Result<Vec<u8>, FsError> {
        self.files().read_link(id)
    }

    fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.files().unlink(dir, name)
    }

    fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.files().rmdir(dir, name)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Result<(), FsError> {
        self.files().rename(from, to, mode, OldName::Free)
    }

    fn set_attributes(&self, id: InodeId, set: &SetAttributes) -> Result<(), FsError> {
        let inode = self.files().inode(id)?;
        self.files().set_attributes(&inode, set)
    }

    fn create(&self, dir: InodeId, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Inode>, FsError> {
        self.files().create(dir, name, new)
    }

    fn create_unnamed(&self, dir: InodeId, new: &NewInode<'_>) -> Result<Arc<Inode>, FsError> {
        self.files().create_unnamed(dir, new)
    }

    fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.files().link(id, dir, name)
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), FsError> {
        self.files().set_xattr(inode, name, value, SetMode::Any)
    }

    fn owner_given(&self, wanted: Owner) -> GivenOwner {
        GivenOwner {
            uid: Some(wanted.uid),
            gid: Some(wanted.gid),
        }
    }
}

/// Visits `start` and everything below it, directories before their content.
/// Calls `unreadable` with the error of each file or directory that cannot be
/// read, and goes on if that returns no error.
///
/// # Errors
/// Those of `visit` and `unreadable`.
pub fn walk<E: From<Error>>(
    calls: &dyn Calls,
    start: InodeId,
    visit: &mut dyn FnMut(&WalkEntry) -> Result<Walk, E>,
    unreadable: &mut dyn FnMut(Error) -> Result<(), E>,
) -> Result<(), E> {
    // A directory has one name. A directory that is met twice would be walked
    // again and again, without end.
    let mut entered = BTreeSet::new();
    let mut waiting = vec![(Vec::new(), start)];
    while let Some((path, id)) = waiting.pop() {
        let attributes = match calls.attributes(id) {
            Ok(attributes) => attributes,
            Err(error) => {
                unreadable(Error::at(&path, error))?;
                continue;
            }
        };
        let enter = attributes.is_directory();
        let entry = WalkEntry { path, attributes };
        match visit(&entry)? {
            Walk::Stop => return Ok(()),
            Walk::Skip => continue,
            Walk::Enter if !enter => continue,
            Walk::Enter => {}
        }
        // A snapshot does not contain the subvolumes below its source. All
        // empty directories in their places share one inode number.
        let many_names = id.number == InodeNumber::EMPTY_SUBVOLUME;
        if !entered.insert(id) && !many_names {
            let error = FsError::Damaged {
                inode: id,
                at: None,
                fault: Box::new(InodeFault::SecondName),
            };
            unreadable(Error::at(&entry.path, error))?;
            continue;
        }
        let mut children = Vec::new();
        if let Err(error) = calls.list_to(id, &mut children) {
            unreadable(Error::at(&entry.path, error))?;
        }
        for child in children.into_iter().rev() {
            let mut path = entry.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(&child.name);
            waiting.push((path, child.target.inode));
        }
    }
    Ok(())
}
