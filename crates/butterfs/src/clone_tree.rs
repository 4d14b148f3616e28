//! Copies of files and directories that share their data, within a volume.
//!
//! Kept: type, mode, owner, times, extended attributes, ACLs, hard links,
//! holes, device numbers, and how data are kept. Subvolumes below a directory
//! become directories.

use crate::{Error, Volume};
use butterfs_format::InodeId;
use butterfs_fs::attr::Attributes;
use butterfs_fs::dir::{ListedEntry, is_absent_subvolume};
use butterfs_fs::names::{S_IFMT, S_IFREG};
use butterfs_fs::{FsError, Inode};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClonedTree {
    /// Files, directories and all else with a name.
    pub files: u64,
    /// Bytes of files that are shared now.
    pub bytes: u64,
}

/// An original and its copy.
struct Cloned {
    inode: Arc<Inode>,
    old: Attributes,
    made: Arc<Inode>,
}

impl Volume {
    /// Copies `source` and everything below it to `name` in `parent`. The copy
    /// shares all data with `source`. `seen` is called after each file.
    ///
    /// # Errors
    /// The name exists; a directory would be copied into itself; no space; not
    /// writable; damage. What was copied before an error stays.
    pub fn clone_tree(
        &self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        seen: &mut dyn FnMut(&ClonedTree),
    ) -> Result<ClonedTree, Error> {
        self.clone_tree_where_possible((source, parent, name), seen, &mut Err)
    }

    /// As [`Volume::clone_tree`] of a source to a name in a parent. It calls
    /// `undone` with the error of each file or directory that cannot be copied,
    /// and goes on without it, and without what is below it, if that returns no
    /// error.
    ///
    /// # Errors
    /// Those of `undone`.
    pub fn clone_tree_where_possible<E: From<Error>>(
        &self,
        (source, parent, name): (InodeId, InodeId, &[u8]),
        seen: &mut dyn FnMut(&ClonedTree),
        undone: &mut dyn FnMut(Error) -> Result<(), E>,
    ) -> Result<ClonedTree, E> {
        let files = self.files();
        let mut done = ClonedTree::default();
        if let Err(error) = self.check_outside(source, parent) {
            undone(Error::at(name, error))?;
            return Ok(done);
        }
        let mut linked: HashMap<InodeId, InodeId> = HashMap::new();
        let mut directories: Vec<(Arc<Inode>, Arc<Inode>, Vec<u8>)> = Vec::new();
        let mut waiting = vec![(source, parent, name.to_vec(), name.to_vec())];
        while let Some((source, parent, name, path)) = waiting.pop() {
            let first = linked.get(&source).copied();
            let Cloned { inode, old, made } = match self.clone_one(source, parent, &name, first) {
                Ok(Some(cloned)) => cloned,
                Ok(None) => {
                    done.files += 1;
                    continue;
                }
                Err(error) => {
                    undone(Error::at(&path, error))?;
                    continue;
                }
            };
            done.files += 1;
            if old.is_directory() {
                let children = self.list(source).or_else(|error| {
                    undone(Error::at(&path, error))?;
                    Ok::<_, E>(Vec::new())
                })?;
                for child in children {
                    let path = [&path[..], b"/", &child.name].concat();
                    waiting.push((child.target.inode, made.id, child.name, path));
                }
                directories.push((inode, made, path));
                continue;
            }
            if old.nlink > 1 {
                linked.insert(source, made.id);
            }
            if old.mode & S_IFMT == S_IFREG {
                done.bytes += old.size;
            }
            seen(&done);
        }
        // Directories come last, because adding names to them changes their
        // times.
        for (source, made, path) in directories.iter().rev() {
            if let Err(error) = files.copy_metadata(source, made) {
                undone(Error::at(path, error))?;
            }
        }
        Ok(done)
    }

    /// Copies one file, or makes one directory, or gives the copy that was made
    /// `first` another name; `None` in that case.
    fn clone_one(
        &self,
        source: InodeId,
        parent: InodeId,
        name: &[u8],
        first: Option<InodeId>,
    ) -> Result<Option<Cloned>, FsError> {
        let files = self.files();
        let old = files.attributes(source)?;
        if let Some(first) = first {
            files.link(first, parent, name)?;
            return Ok(None);
        }
        let inode = files.inode(source)?;
        let made = files.clone_inode(&inode, parent, name)?;
        Ok(Some(Cloned { inode, old, made }))
    }

    /// Removes `name` from `parent`, with everything below it. Does nothing if
    /// there is no such name.
    ///
    /// # Errors
    /// It is or holds a subvolume, or the name is `.` or `..`, and nothing was
    /// removed; not writable; damage. What was removed before such an error is
    /// gone.
    pub fn remove_tree(&self, parent: InodeId, name: &[u8]) -> Result<(), Error> {
        self.remove_tree_where_possible(parent, name, &mut Err)
    }

    /// As [`Volume::remove_tree`]. It calls `undone` with the error of each file
    /// or directory that cannot be removed, and goes on with the others if that
    /// returns no error. What is or holds a subvolume stays whole.
    ///
    /// # Errors
    /// Those of `undone`.
    pub fn remove_tree_where_possible<E: From<Error>>(
        &self,
        parent: InodeId,
        name: &[u8],
        undone: &mut dyn FnMut(Error) -> Result<(), E>,
    ) -> Result<(), E> {
        if matches!(name, b"." | b"..") {
            let error = FsError::Invalid("a directory is not removed by the name `.` or `..`");
            return undone(Error::at(name, error));
        }
        let found = match self.files().lookup(parent, name) {
            Err(FsError::NotFound) => return Ok(()),
            Err(error) => return undone(Error::at(name, error)),
            Ok(found) => found.inode,
        };
        if let Some(path) = self.subvolume_below(parent, name, found) {
            return undone(Error::at(&path, FsError::HoldsSubvolume));
        }
        // Directories that keep something, and so stay.
        let mut kept: HashSet<InodeId> = HashSet::new();
        // A directory is removed after its content, so the loop meets it twice.
        let mut waiting = vec![(parent, name.to_vec(), found, name.to_vec(), false)];
        while let Some((parent, name, id, path, is_left)) = waiting.pop() {
            if is_left && kept.contains(&id) {
                kept.insert(parent);
                continue;
            }
            let removed = match is_left {
                true => self.files().rmdir(parent, &name).map(|()| None),
                false => self.remove_or_list(parent, &name, id),
            };
            match removed {
                Ok(None) => {}
                Ok(Some(children)) => {
                    waiting.push((parent, name, id, path.clone(), true));
                    for child in children {
                        let path = [&path[..], b"/", &child.name].concat();
                        waiting.push((id, child.name, child.target.inode, path, false));
                    }
                }
                Err(error) => {
                    kept.insert(parent);
                    undone(Error::at(&path, error))?;
                }
            }
        }
        Ok(())
    }

    /// Removes what is no directory, and lists a directory.
    fn remove_or_list(
        &self,
        parent: InodeId,
        name: &[u8],
        id: InodeId,
    ) -> Result<Option<Vec<ListedEntry>>, FsError> {
        // Where a directory could not be listed before, nobody knew of it.
        if id.tree != parent.tree && !is_absent_subvolume(id) {
            return Err(FsError::HoldsSubvolume);
        }
        match self.files().attributes(id)?.is_directory() {
            true => self.list(id).map(Some),
            false => self.files().unlink(parent, name).map(|()| None),
        }
    }

    /// The path of a subvolume at or below `id`, which has this name. The empty
    /// directory that a snapshot has in a subvolume's place is none. What cannot
    /// be read is passed over: who removes it meets the damage again.
    fn subvolume_below(&self, parent: InodeId, name: &[u8], id: InodeId) -> Option<Vec<u8>> {
        let mut waiting = vec![(parent.tree, id, name.to_vec())];
        while let Some((tree, id, path)) = waiting.pop() {
            if is_absent_subvolume(id) {
                continue;
            }
            if id.tree != tree {
                return Some(path);
            }
            let of = self.files().attributes(id);
            if of.is_ok_and(|of| of.is_directory()) {
                for child in self.list(id).unwrap_or_default() {
                    let path = [&path[..], b"/", &child.name].concat();
                    waiting.push((tree, child.target.inode, path));
                }
            }
        }
        None
    }

    /// Errors if `directory` is `source` or lies below it.
    fn check_outside(&self, source: InodeId, directory: InodeId) -> Result<(), FsError> {
        /// Greatest depth of directories; more means a loop.
        const DEPTH_MAX: usize = 100_000;
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == source {
                return Err(FsError::Invalid("a directory cannot be copied into itself"));
            }
            let above = self.files().parent(at)?;
            if above == at {
                return Ok(());
            }
            at = above;
        }
        Err(FsError::LinkLoop)
    }
}
