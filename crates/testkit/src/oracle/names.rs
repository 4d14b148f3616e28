//! Making, removing and moving names.

use super::inode::{Body, Inode, SETGID};
use super::resolve::{Last, Place};
use super::{Id, Oracle, ROOT, acl};
use crate::op::{OpPath, RenameHow};
use rustix::io::Errno;

/// PATH_MAX with its final zero.
const TARGET_MAX: usize = 4095;
/// Bytes of an inline file extent before its data.
const EXTENT_HEADER: usize = 21;

impl Oracle {
    /// A new inode in `directory`, with what it inherits, without a name.
    fn new_inode(&mut self, directory: Id, body: Body, mode: u32) -> Id {
        let parent = self.inode(directory);
        let mut inode = Inode::new(body, mode);
        inode.tree = parent.tree;
        if parent.mode & SETGID != 0 {
            inode.gid = parent.gid;
            if inode.is_directory() {
                inode.mode |= SETGID;
            }
        }
        let default = parent.xattrs.get(acl::DEFAULT).cloned();
        if let Some(value) = default.filter(|_| !inode.is_symlink())
            && let Ok(parsed) = acl::parse(&value)
        {
            let inherited = parsed.inherit(inode.mode);
            inode.mode = inode.mode & !0o777 | inherited.mode;
            if let Some(access) = inherited.access {
                inode.xattrs.insert(acl::ACCESS.to_vec(), access.encode());
            }
            if inode.is_directory() {
                inode.xattrs.insert(acl::DEFAULT.to_vec(), value);
            }
        }
        let id = self.next;
        self.next += 1;
        self.inodes.insert(id, inode);
        id
    }

    pub(super) fn set_name(&mut self, place: &Place, id: Id) {
        if let Body::Directory { parent, .. } = &mut self.inode_mut(id).body {
            *parent = place.directory;
        }
        let directory = self.inode_mut(place.directory);
        directory.modified = None;
        if let Body::Directory { entries, .. } = &mut directory.body {
            entries.insert(place.name.clone(), id);
        }
    }

    pub(super) fn remove_name(&mut self, place: &Place) {
        let directory = self.inode_mut(place.directory);
        directory.modified = None;
        if let Body::Directory { entries, .. } = &mut directory.body {
            entries.remove(&place.name);
        }
    }

    fn release(&mut self, id: Id) {
        let inode = self.inode_mut(id);
        inode.links -= 1;
        if inode.links == 0 {
            self.inodes.remove(&id);
            self.subvolumes.remove(&id);
        }
    }

    pub(super) fn make(&mut self, path: &OpPath, body: Body, mode: u32) -> Result<(), Errno> {
        let place = self.free_place(path)?;
        self.check_access(place.directory)?;
        let id = self.new_inode(place.directory, body, mode);
        self.set_name(&place, id);
        Ok(())
    }

    pub(super) fn symlink(&mut self, path: &OpPath, target: &[u8]) -> Result<(), Errno> {
        match target.len() {
            0 => Err(Errno::NOENT),
            length if length > TARGET_MAX => Err(Errno::NAMETOOLONG),
            length if length > self.item_max - EXTENT_HEADER => {
                self.free_place(path)?;
                Err(Errno::NAMETOOLONG)
            }
            _ => self.make(path, Body::Symlink(target.to_vec()), 0o777),
        }
    }

    pub(super) fn link_tmpfile(
        &mut self,
        directory: &OpPath,
        path: &OpPath,
        mode: u32,
        (length, seed): (u64, u64),
    ) -> Result<(), Errno> {
        let directory = self.find(directory, Last::Follow)?;
        self.entries(directory)?;
        let place = self.free_place(path)?;
        if self.inode(directory).tree != self.inode(place.directory).tree {
            return Err(Errno::XDEV);
        }
        let id = self.new_inode(directory, Body::file(), mode);
        let data = crate::content::content(seed, length as usize);
        self.inode_mut(id).content_mut()?.write(0, &data);
        self.set_name(&place, id);
        Ok(())
    }

    pub(super) fn link(&mut self, from: &OpPath, to: &OpPath) -> Result<(), Errno> {
        let id = self.find(from, Last::Itself)?;
        let place = self.free_place(to)?;
        if self.inode(id).is_directory() {
            return Err(Errno::PERM);
        }
        if self.inode(id).tree != self.inode(place.directory).tree {
            return Err(Errno::XDEV);
        }
        self.inode_mut(id).links += 1;
        self.set_name(&place, id);
        Ok(())
    }

    pub(super) fn unlink(&mut self, path: &OpPath) -> Result<(), Errno> {
        let place = self.place(path)?;
        let id = self.child(place.directory, &place.name)?;
        if self.inode(id).is_directory() {
            return Err(Errno::ISDIR);
        }
        self.remove_name(&place);
        self.release(id);
        Ok(())
    }

    pub(super) fn rmdir(&mut self, path: &OpPath) -> Result<(), Errno> {
        let place = self.place(path)?;
        let id = self.child(place.directory, &place.name)?;
        if !self.entries(id)?.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.remove_name(&place);
        self.release(id);
        Ok(())
    }

    /// The child of `ancestor` on the way down to `below`; `None` if `below`
    /// does not lie there.
    fn step_towards(&self, ancestor: Id, below: Id) -> Option<Id> {
        let mut at = below;
        while at != ROOT {
            let Body::Directory { parent, .. } = self.inode(at).body else {
                return None;
            };
            if parent == ancestor {
                return Some(at);
            }
            at = parent;
        }
        None
    }

    pub(super) fn rename(
        &mut self,
        from: &OpPath,
        to: &OpPath,
        how: RenameHow,
    ) -> Result<(), Errno> {
        let source = self.place(from)?;
        let target = self.place(to)?;
        let moved = self.child(source.directory, &source.name)?;
        let replaced = match self.child(target.directory, &target.name) {
            Ok(_) if how == RenameHow::NoReplace => return Err(Errno::EXIST),
            Ok(id) => Some(id),
            Err(Errno::NOENT) if how != RenameHow::Exchange => None,
            Err(error) => return Err(error),
        };
        self.check_loops((&source, moved), (&target, replaced), how)?;
        let Some(replaced) = replaced else {
            self.check_crossing((&source, moved), (&target, None))?;
            self.finish_rename(&source, moved, &target, how);
            return Ok(());
        };
        if moved == replaced {
            return Ok(());
        }
        if how == RenameHow::Exchange {
            self.check_crossing((&source, moved), (&target, Some(replaced)))?;
            self.set_name(&target, moved);
            self.set_name(&source, replaced);
            return Ok(());
        }
        let is_directory = self.inode(replaced).is_directory();
        match (self.inode(moved).is_directory(), is_directory) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            _ => self.check_crossing((&source, moved), (&target, None))?,
        }
        match (self.inode(moved).is_directory(), is_directory) {
            (true, true) if self.is_subvolume(replaced) => return Err(Errno::NOTEMPTY),
            (true, true) if !self.entries(replaced)?.is_empty() => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        self.remove_name(&target);
        self.release(replaced);
        self.finish_rename(&source, moved, &target, how);
        Ok(())
    }

    /// No directory may come to lie below itself.
    fn check_loops(
        &self,
        (source, moved): (&Place, Id),
        (target, replaced): (&Place, Option<Id>),
        how: RenameHow,
    ) -> Result<(), Errno> {
        if self.step_towards(source.directory, target.directory) == Some(moved) {
            return Err(Errno::INVAL);
        }
        let above = self.step_towards(target.directory, source.directory);
        if above.is_some() && above == replaced {
            return Err(match how {
                RenameHow::Exchange => Errno::INVAL,
                _ => Errno::NOTEMPTY,
            });
        }
        Ok(())
    }

    /// Only whole subvolumes may move from one subvolume to another.
    fn check_crossing(
        &self,
        (source, moved): (&Place, Id),
        (target, back): (&Place, Option<Id>),
    ) -> Result<(), Errno> {
        let stays = self.inode(source.directory).tree == self.inode(target.directory).tree;
        if stays || (self.is_subvolume(moved) && back.is_none_or(|id| self.is_subvolume(id))) {
            return Ok(());
        }
        Err(Errno::XDEV)
    }

    fn finish_rename(&mut self, source: &Place, moved: Id, target: &Place, how: RenameHow) {
        self.remove_name(source);
        self.set_name(target, moved);
        if how == RenameHow::Whiteout {
            let id = self.new_inode(source.directory, Body::CharDevice(0, 0), 0);
            self.set_name(source, id);
        }
    }
}
