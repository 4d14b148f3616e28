//! The model as a tree to walk.

use super::inode::Body;
use super::{Id, Oracle, ROOT};
use crate::tree_view::{Stat, TreeView};
use rustix::io::Errno;

/// Why the model has no answer: always a mistake of the caller.
pub type OracleError = Errno;

impl TreeView for Oracle {
    type Node = u64;
    type Error = OracleError;

    fn root(&self) -> Result<Id, Errno> {
        Ok(ROOT)
    }

    fn read_dir(&self, node: &Id) -> Result<Vec<(Vec<u8>, Id)>, Errno> {
        let entries = self.entries(*node)?;
        Ok(entries
            .iter()
            .map(|(name, id)| (name.clone(), *id))
            .collect())
    }

    fn stat(&self, node: &Id) -> Result<Stat, Errno> {
        let inode = self.inode(*node);
        Ok(Stat {
            inode: *node,
            kind: inode.body.kind(),
            mode: inode.mode,
            uid: inode.uid,
            gid: inode.gid,
            device: match inode.body {
                Body::CharDevice(major, minor) | Body::BlockDevice(major, minor) => (major, minor),
                _ => (0, 0),
            },
            links: inode.links,
            size: inode.size(),
            modified: inode.modified,
        })
    }

    fn read(&self, node: &Id, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        Ok(self.inode(*node).content()?.read(offset, buffer))
    }

    fn read_link(&self, node: &Id) -> Result<Vec<u8>, Errno> {
        match &self.inode(*node).body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::INVAL),
        }
    }

    fn xattrs(&self, node: &Id) -> Result<Vec<(Vec<u8>, Vec<u8>)>, Errno> {
        Ok(self.inode(*node).xattrs.clone().into_iter().collect())
    }
}
