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
        loop {
            let absence = match self.inodes.look(id) {
                Ok(inode) => return Ok(inode),
                Err(absence) => absence,
            };
            self.visit(id.tree);
            // It enters the table while nothing can change it but a change
            // beside readers (`store/nodes/leaf_update`), for which it must be there.
            let inserted = self.store.look(|engine| {
                if crate::dir::is_absent_subvolume(id) {
                    let inode = Inode::new(id, absent_subvolume(engine, id.tree)?);
                    return Ok::<_, FsError>(self.inodes.insert_read(inode, absence));
                }
                check_alive(engine, id.tree)?;
                let inode = Inode::new(id, load_item(engine, id)?);
                self.load_properties(engine, &inode)?;
                Ok(self.inodes.insert_read(inode, absence))
            })?;
            if let Some(inode) = inserted {
                return Ok(inode);
            }
        }
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
