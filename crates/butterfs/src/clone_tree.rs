//! Copies of files and directories that share their data, within a volume.
//!
//! Kept: type, mode, owner, times, extended attributes, ACLs, hard links,
//! holes, device numbers, and how data are kept. Subvolumes below a directory
//! become directories.

use crate::{Error, Volume};
use butterfs_format::InodeId;
use butterfs_fs::dir::is_absent_subvolume;
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
        let files = self.files();
        self.check_outside(source, parent)
            .map_err(|error| Error::at(name, error))?;
        let mut done = ClonedTree::default();
        let mut linked: HashMap<InodeId, InodeId> = HashMap::new();
        let mut directories: Vec<(Arc<Inode>, Arc<Inode>, Vec<u8>)> = Vec::new();
        let mut waiting = vec![(source, parent, name.to_vec(), name.to_vec())];
        while let Some((source, parent, name, path)) = waiting.pop() {
            let at = |error| Error::at(&path, error);
            let old = files.attributes(source).map_err(at)?;
            done.files += 1;
            if let Some(first) = linked.get(&source) {
                files.link(*first, parent, &name).map_err(at)?;
                continue;
            }
            let inode = files.inode(source).map_err(at)?;
            let made = files.clone_inode(&inode, parent, &name).map_err(at)?;
            if old.is_directory() {
                for child in self.list(source).map_err(at)? {
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
            files
                .copy_metadata(source, made)
                .map_err(|error| Error::at(path, error))?;
        }
        Ok(done)
    }

    /// Removes `name` from `parent`, with everything below it. Does nothing if
    /// there is no such name.
    ///
    /// # Errors
    /// It is or holds a subvolume, or the name is `.` or `..`, and nothing was
    /// removed; not writable; damage. What was removed before such an error is
    /// gone.
    pub fn remove_tree(&self, parent: InodeId, name: &[u8]) -> Result<(), Error> {
        if matches!(name, b"." | b"..") {
            let error = FsError::Invalid("a directory is not removed by the name `.` or `..`");
            return Err(Error::at(name, error));
        }
        let files = self.files();
        let found = match files.lookup(parent, name) {
            Err(FsError::NotFound) => return Ok(()),
            found => found.map_err(|error| Error::at(name, error))?,
        };
        let found = found.inode;
        self.check_no_subvolume(parent, name, found)?;
        // A directory is removed after its content, so the loop meets it twice.
        let mut waiting = vec![(parent, name.to_vec(), found, name.to_vec(), false)];
        while let Some((parent, name, id, path, is_empty)) = waiting.pop() {
            let at = |error| Error::at(&path, error);
            if !files.attributes(id).map_err(at)?.is_directory() {
                files.unlink(parent, &name).map_err(at)?;
            } else if is_empty {
                files.rmdir(parent, &name).map_err(at)?;
            } else {
                waiting.push((parent, name, id, path.clone(), true));
                for child in self.list(id).map_err(at)? {
                    let path = [&path[..], b"/", &child.name].concat();
                    waiting.push((id, child.name, child.target.inode, path, false));
                }
            }
        }
        Ok(())
    }

    /// Errors if `id`, which has this name, is or holds a subvolume. The empty
    /// directory that a snapshot has in a subvolume's place is none.
    fn check_no_subvolume(&self, parent: InodeId, name: &[u8], id: InodeId) -> Result<(), Error> {
        let files = self.files();
        let mut waiting = vec![(parent.tree, id, name.to_vec())];
        while let Some((tree, id, path)) = waiting.pop() {
            if is_absent_subvolume(id) {
                continue;
            }
            if id.tree != tree {
                return Err(Error::at(&path, FsError::HoldsSubvolume));
            }
            let at = |error| Error::at(&path, error);
            if files.attributes(id).map_err(at)?.is_directory() {
                for child in self.list(id).map_err(at)? {
                    let path = [&path[..], b"/", &child.name].concat();
                    waiting.push((tree, child.target.inode, path));
                }
            }
        }
        Ok(())
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
