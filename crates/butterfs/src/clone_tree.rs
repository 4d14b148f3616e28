//! Copies of files and directories that share their data, within a volume.
//!
//! Kept: type, mode, owner, times, extended attributes, ACLs, hard links,
//! holes, device numbers, and how data are kept. Subvolumes below a directory
//! become directories.

use crate::{Error, Volume, removing};
use butterfs_format::InodeId;
use butterfs_fs::attr::Attributes;
use butterfs_fs::names::{S_IFMT, S_IFREG};
use butterfs_fs::{FsError, Inode};
use std::collections::HashMap;
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
        removing::remove_tree(self, (parent, name), undone)
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
