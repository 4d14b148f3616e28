//! Who may do what by ioctls. The kernel leaves this to a FUSE server.
//!
//! Owns the questions that requests ask; `butterfs::access` decides. The
//! errors are those of the kernel's Btrfs.

use super::answered::Answered;
use super::caller::Caller;
use super::server::Server;
use butterfs::access::{Guarded, Wanted};
use butterfs::{Attributes, InodeFlags, InodeId, Owner};
use butterfs_fuse::{Context, Errno};

impl Server {
    pub(super) fn check_privileged(&self, context: &Context<'_>) -> Result<(), Errno> {
        if Caller::of(context).is_privileged() {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Errors unless the caller owns what it asks about, or runs the server.
    pub(super) fn check_owner(&self, context: &Context<'_>, id: InodeId) -> Result<(), Errno> {
        let caller = Caller::of(context);
        if caller.is_master() || self.guarded(id)?.is_owned_by(&caller) {
            Ok(())
        } else {
            Err(Errno::EPERM)
        }
    }

    /// Errors unless the caller may do what is `wanted` with an inode.
    pub(super) fn check_access(
        &self,
        caller: &Caller<'_>,
        id: InodeId,
        wanted: Wanted,
    ) -> Result<(), Errno> {
        let acl = || self.files().access_acl(id).answered();
        if self.guarded(id)?.permits(caller, wanted, acl)? {
            Ok(())
        } else {
            Err(Errno::EACCES)
        }
    }

    /// Errors unless the caller may change a file's data, by its permissions or
    /// because it administers the volume.
    pub(super) fn check_writer(&self, context: &Context<'_>, id: InodeId) -> Result<(), Errno> {
        let caller = Caller::of(context);
        match self.check_access(&caller, id, Wanted::WRITE) {
            Err(Errno::EACCES) if caller.is_privileged() => Ok(()),
            Err(Errno::EACCES) => Err(Errno::EPERM),
            checked => checked,
        }
    }

    /// Errors unless the caller may make a directory of this name, as mkdir
    /// decides.
    pub(super) fn check_new_directory(
        &self,
        context: &Context<'_>,
        dir: InodeId,
        name: &[u8],
    ) -> Result<(), Errno> {
        let caller = Caller::of(context);
        self.check_access(&caller, dir, Wanted::EXECUTE)?;
        if self.files().lookup(dir, name).is_ok() {
            return Err(Errno::EEXIST);
        }
        self.check_add(dir)?;
        self.check_access(&caller, dir, Wanted::CHANGE_NAMES)
    }

    /// Errors unless the caller may remove the subvolume `victim`, whose name
    /// is in `parent`.
    pub(super) fn check_removable(
        &self,
        caller: &Caller<'_>,
        parent: InodeId,
        victim: InodeId,
    ) -> Result<(), Errno> {
        if !caller.is_privileged() {
            if !self.mount.user_subvol_rm_allowed {
                return Err(Errno::EPERM);
            }
            self.check_access(caller, victim, Wanted::CHANGE_NAMES)?;
        }
        self.check_tree(parent.tree)?;
        self.check_access(caller, parent, Wanted::CHANGE_NAMES)?;
        let held = |id| -> Result<InodeFlags, Errno> {
            Ok(Self::flags(&*self.files().inode(id).answered()?))
        };
        let kept = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        if held(parent)?.intersects(kept)
            || held(victim)?.intersects(kept)
            || self.guarded(parent)?.sticks(caller, self.guarded(victim)?)
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    pub(super) fn guarded(&self, id: InodeId) -> Result<Guarded, Errno> {
        Ok(self.guarded_by(&self.files().attributes(id).answered()?))
    }

    /// What decides the rights to an inode, with the owners that the mount
    /// shows.
    pub(super) fn guarded_by(&self, attributes: &Attributes) -> Guarded {
        Guarded {
            mode: attributes.mode,
            owner: self.shown_owner(attributes.uid, attributes.gid),
        }
    }

    pub(super) fn shown_owner(&self, uid: u32, gid: u32) -> Owner {
        let shown = self.mount.owners;
        Owner {
            uid: shown.uid.unwrap_or(uid),
            gid: shown.gid.unwrap_or(gid),
        }
    }
}
