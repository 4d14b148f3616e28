//! Bringing inodes from their trees into the table.

use crate::Filesystem;
use crate::error::FsError;
use crate::inode::{Inode, check_alive, load_item};
use crate::mode::S_IFDIR;
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_store::Engine;
use std::sync::Arc;

impl Filesystem {
    /// The inode, loaded from its tree when it is not in use.
    ///
    /// # Errors
    /// [`FsError::NotFound`], damage, reading.
    pub fn inode(&self, id: InodeId) -> Result<Arc<Inode>, FsError> {
        if let Some(inode) = self.inodes.get(id) {
            return Ok(inode);
        }
        self.visit(id.tree);
        // It enters the table while nothing can change it.
        self.store.look(|engine| {
            if crate::dir::is_absent_subvolume(id) {
                let item = absent_subvolume(engine, id.tree)?;
                return Ok(self.inodes.insert(Inode::new(id, item)));
            }
            check_alive(engine, id.tree)?;
            let inode = Inode::new(id, load_item(engine, id)?);
            self.load_properties(engine, &inode)?;
            Ok(self.inodes.insert(inode))
        })
    }
}

/// The inode of the empty directory that stands for a subvolume which is
/// elsewhere. It looks like the root of the tree in which it is seen, and is
/// read-only.
fn absent_subvolume(engine: &Engine, tree: TreeId) -> Result<InodeItem, FsError> {
    let root = load_item(
        engine,
        InodeId {
            tree,
            number: InodeNumber::ROOT,
        },
    )?;
    Ok(InodeItem {
        size: 0,
        nbytes: 0,
        nlink: 1,
        mode: S_IFDIR | 0o555,
        flags: InodeFlags::default(),
        ..root
    })
}
