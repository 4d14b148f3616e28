//! Paths of inodes in one subvolume, found through the names that the inodes
//! themselves record.
//!
//! Owns a bounded memory of directories that were asked for before.

use crate::dir::{Link, links_at};
use crate::error::FsError;
use crate::inode_fault::InodeFault;
use butterfs_format::{InodeId, InodeNumber, NodeRef, TreeId};
use butterfs_store::Engine;
use butterfs_tree::Cursor;
use rustc_hash::FxHashMap;

/// Directories that are remembered. When there are more, the memory is emptied.
const KNOWN_MAX: usize = 1 << 16;
/// Greatest depth of directories; more means a loop.
const DEPTH_MAX: usize = 100_000;

/// Finds paths, from the root of a subvolume and without a leading slash.
#[derive(Debug)]
pub struct Paths<'e> {
    tree: TreeId,
    cursor: Cursor<'e, Engine>,
    known: FxHashMap<InodeNumber, Vec<u8>>,
}

impl<'e> Paths<'e> {
    /// Paths in the version of `tree` that is at `root`.
    #[must_use]
    pub fn new(engine: &'e Engine, tree: TreeId, root: NodeRef) -> Self {
        Self {
            tree,
            cursor: Cursor::at_root(engine, root),
            known: FxHashMap::default(),
        }
    }

    const fn id(&self, number: InodeNumber) -> InodeId {
        InodeId {
            tree: self.tree,
            number,
        }
    }

    /// The names of an inode.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn links(&mut self, number: InodeNumber) -> Result<Vec<Link>, FsError> {
        let id = self.id(number);
        links_at(&mut self.cursor, id)
    }

    /// Path of a directory; empty for the root.
    ///
    /// # Errors
    /// A directory has no name or lies below itself; damage, reading.
    pub fn directory(&mut self, number: InodeNumber) -> Result<Vec<u8>, FsError> {
        let mut below: Vec<(InodeNumber, Vec<u8>)> = Vec::new();
        let mut at = number;
        let mut path = loop {
            if at == InodeNumber::ROOT {
                break Vec::new();
            }
            if let Some(known) = self.known.get(&at) {
                break known.clone();
            }
            let link = self.links(at)?.into_iter().next();
            let Some(link) = link.filter(|_| below.len() < DEPTH_MAX) else {
                return Err(FsError::Damaged {
                    inode: self.id(at),
                    at: None,
                    fault: Box::new(InodeFault::NoWayUp),
                });
            };
            below.push((at, link.name));
            at = link.parent;
        };
        while let Some((directory, name)) = below.pop() {
            path = joined(&path, &name);
            if self.known.len() >= KNOWN_MAX {
                self.known.clear();
            }
            self.known.insert(directory, path.clone());
        }
        Ok(path)
    }

    /// Path of the name `name` in `parent`.
    ///
    /// # Errors
    /// As [`Paths::directory`].
    pub fn below(&mut self, parent: InodeNumber, name: &[u8]) -> Result<Vec<u8>, FsError> {
        Ok(joined(&self.directory(parent)?, name))
    }

    /// All paths of an inode, sorted. The root has the empty path.
    ///
    /// # Errors
    /// As [`Paths::directory`].
    pub fn of(&mut self, number: InodeNumber) -> Result<Vec<Vec<u8>>, FsError> {
        if number == InodeNumber::ROOT {
            return Ok(vec![Vec::new()]);
        }
        let links = self.links(number)?;
        let mut paths = links
            .iter()
            .map(|link| self.below(link.parent, &link.name))
            .collect::<Result<Vec<_>, _>>()?;
        paths.sort_unstable();
        Ok(paths)
    }
}

/// `name` below `directory`, which is empty for the root.
pub(crate) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}
