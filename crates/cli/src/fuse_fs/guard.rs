//! What must not change although permissions allow it.
//!
//! Owns the checks of read-only subvolumes and of immutable and append-only
//! files, which the kernel leaves to a FUSE server.

use super::{Answered, Server};
use butterfs::{Access, FsError, Inode, InodeFlags, InodeId, TreeId};
use butterfs_fuse::Errno;

impl Server {
    /// Errors where the subvolume is read-only.
    pub(super) fn check_tree(&self, tree: TreeId) -> Result<(), Errno> {
        match self.files().subvolume_access(tree).answered()? {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Errno::EROFS),
        }
    }

    pub(super) fn flags(inode: &Inode) -> InodeFlags {
        inode.state.read().item.flags
    }

    /// Errors where data at `offset` must not change.
    pub(super) fn check_write(&self, inode: &Inode, offset: u64) -> Result<(), Errno> {
        self.check_tree(inode.id.tree)?;
        let state = inode.state.read();
        let flags = state.item.flags;
        let appends = offset >= state.item.size;
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !appends)
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Errors where attributes or size must not change.
    pub(super) fn check_change(&self, inode: &Inode) -> Result<(), Errno> {
        self.check_tree(inode.id.tree)?;
        if Self::flags(inode).intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Brings a change of names in `dirs` to the device, where the mount or a
    /// directory asks for that (`dirsync`, `chattr +D`, `+S`).
    pub(super) fn after_names(&self, dirs: &[InodeId]) -> Result<(), Errno> {
        let asks = |dir: &InodeId| -> Result<bool, Errno> {
            let dir = self.files().inode(*dir).answered()?;
            Ok(Self::flags(&dir).intersects(InodeFlags::DIRSYNC | InodeFlags::SYNC))
        };
        let mut wanted = self.mount.sync_names;
        for dir in dirs {
            wanted |= asks(dir)?;
        }
        if wanted {
            self.files().fsync_directory().answered()?;
        }
        Ok(())
    }

    /// Errors where a directory must not get names.
    pub(super) fn check_add(&self, dir: InodeId) -> Result<(), Errno> {
        self.check_tree(dir.tree)?;
        let dir = self.files().inode(dir).answered()?;
        if Self::flags(&dir).contains(InodeFlags::IMMUTABLE) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Errors where a directory must not lose this name.
    pub(super) fn check_remove(&self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let held = self.files().inode(dir).answered()?;
        self.check_change(&held)?;
        match self.files().lookup(dir, name) {
            // Whether it can go is the library's to say.
            Ok(target) if target.subvolume => Ok(()),
            Ok(target) => {
                let victim = self.files().inode(target.inode).answered()?;
                self.check_change(&victim)
            }
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(super::errno(&error)),
        }
    }
}
