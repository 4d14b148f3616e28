//! Work on files that the server does for a process.
//!
//! Owns the checks that the kernel makes before it asks the server for such a
//! change, because nobody made them here: permissions, the sticky bit, owners,
//! set-id bits, attributes of the system. After them come those that the server
//! makes for every request ([`super::guard`]). Each call checks anew, so that a
//! right that is taken away meanwhile does not count. Each call tells the kernel
//! what it changed.
//!
//! Names are never `.` or `..`, and links are not followed, so a caller gets
//! nowhere but below the directories that it showed.
//!
//! Source: the kernel's fs/namei.c (`may_delete`, `may_create`, `may_linkat`,
//! `vfs_rename`), fs/attr.c (`setattr_prepare`), fs/xattr.c.

use super::informer::Informer;
use super::peer::Peer;
use super::protected::KEPT;
use super::server::Server;
use butterfs::access::{Capability, Credentials, Guarded, Wanted};
use butterfs::{
    Access, AccessTimes, Attributes, Calls, FsError, GivenOwner, Inode, InodeFlags, InodeId,
    ListedEntry, NewInode, OldName, Owner, Place, Privileges, RenameMode, SetAttributes, SetMode,
    SetTime, Target, TreeId,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fmt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

const S_IFMT: u32 = libc::S_IFMT;
const S_ISUID: u32 = libc::S_ISUID;
const S_ISGID: u32 = libc::S_ISGID;
const S_IXGRP: u32 = libc::S_IXGRP;
/// Calls between two looks at whether the caller is still there.
const LOOK: u32 = 16;
/// Names of a directory that a listing has at most. They are in memory at a time.
const LISTED_MAX: usize = 2_000_000;

/// File calls for one process.
pub struct Acting {
    server: Arc<Server>,
    peer: Peer,
    /// Its socket. It is there as long as somebody wants the work.
    socket: UnixStream,
    calls: AtomicU32,
    informer: OnceLock<Option<Informer>>,
}

impl fmt::Debug for Acting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acting")
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}

fn kept() -> FsError {
    FsError::NotPermitted("it is immutable or append-only")
}

const fn is_directory(mode: u32) -> bool {
    mode & S_IFMT == libc::S_IFDIR
}

/// Errors unless a name is one of an entry of a directory.
fn check_name(name: &[u8]) -> Result<(), FsError> {
    if name.is_empty() || matches!(name, b"." | b"..") || name.contains(&b'/') || name.contains(&0)
    {
        return Err(FsError::Invalid("this is no name of a directory's entry"));
    }
    Ok(())
}

impl Acting {
    pub(crate) fn new(server: Arc<Server>, peer: Peer, socket: UnixStream) -> Self {
        Self {
            server,
            peer,
            socket,
            calls: AtomicU32::new(0),
            informer: OnceLock::new(),
        }
    }

    /// Waits until the kernel knows of all changes.
    pub fn finish(&self) {
        if let Some(Some(informer)) = self.informer.get() {
            informer.finish();
        }
    }

    /// The user and group of the caller.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        self.peer.owner()
    }

    /// Errors if the caller is gone, or nobody may use the volume any more.
    fn go_on(&self) -> Result<(), FsError> {
        if self.server.shut.load(Ordering::Acquire) {
            return Err(FsError::Store(butterfs::StoreError::ShutDown));
        }
        if !self
            .calls
            .fetch_add(1, Ordering::Relaxed)
            .is_multiple_of(LOOK)
        {
            return Ok(());
        }
        let mut state = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let polled = poll(&mut state, Some(&Timespec::default()));
        let gone = PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR;
        match polled {
            Ok(_) if state[0].revents().intersects(gone) => Err(FsError::Interrupted),
            _ => Ok(()),
        }
    }

    fn files(&self) -> &Arc<butterfs::Filesystem> {
        self.server.files()
    }

    fn informer(&self) -> Option<&Informer> {
        let start = || {
            let notifier = self.server.notifier.get()?;
            Informer::start(notifier, &self.server.telling, self.peer.owner().uid)
        };
        self.informer.get_or_init(start).as_ref()
    }

    /// The attributes of an inode changed.
    fn changed(&self, id: InodeId) {
        if let Some(node) = self.server.nodes.knows(id)
            && let Some(informer) = self.informer()
        {
            informer.attributes(node);
        }
    }

    /// A name changed, and with it its directory.
    fn renamed(&self, dir: InodeId, name: &[u8]) {
        if let Some(parent) = self.server.nodes.knows(dir)
            && let Some(informer) = self.informer()
        {
            informer.attributes(parent);
            informer.name(parent, name);
        }
    }

    /// Makes changes of names durable where that is asked for.
    fn after_names(&self, dirs: &[InodeId]) -> Result<(), FsError> {
        let files = self.files();
        for dir in dirs {
            let dir = files.inode(*dir)?;
            let asks = InodeFlags::DIRSYNC | InodeFlags::SYNC;
            if self.server.mount.sync_names || Server::flags(&dir).intersects(asks) {
                files.fsync_directory(&dir)?;
            }
        }
        Ok(())
    }

    fn guarded(&self, of: &Attributes) -> Guarded {
        self.server.guarded_by(of)
    }

    /// Errors unless the caller may do with an inode what is wanted.
    fn permit(&self, id: InodeId, wanted: Wanted) -> Result<Attributes, FsError> {
        let of = self.files().attributes(id)?;
        let acl = || self.files().access_acl(id);
        match self.guarded(&of).permits(&self.peer, wanted, acl)? {
            true => Ok(of),
            false => Err(FsError::AccessDenied),
        }
    }

    fn check_tree(&self, tree: TreeId) -> Result<(), FsError> {
        match self.files().subvolume_access(tree)? {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(FsError::ReadOnlySubvolume),
        }
    }

    /// Errors where an inode must not change.
    fn check_change(&self, of: &Attributes) -> Result<(), FsError> {
        self.check_tree(of.id.tree)?;
        match of.flags.intersects(KEPT) {
            true => Err(kept()),
            false => Ok(()),
        }
    }

    /// Errors unless the caller may add names to a directory.
    fn check_add(&self, dir: InodeId) -> Result<Attributes, FsError> {
        let of = self.permit(dir, Wanted::CHANGE_NAMES)?;
        if !of.is_directory() {
            return Err(FsError::NotADirectory);
        }
        self.check_tree(dir.tree)?;
        match of.flags.contains(InodeFlags::IMMUTABLE) {
            true => Err(kept()),
            false => Ok(of),
        }
    }

    /// Errors unless the caller may remove a name, as `may_delete` decides.
    fn check_remove(&self, dir: InodeId, name: &[u8]) -> Result<Target, FsError> {
        check_name(name)?;
        let of = self.permit(dir, Wanted::CHANGE_NAMES)?;
        let target = self.files().lookup(dir, name)?;
        let victim = self.files().attributes(target.inode)?;
        if self.guarded(&of).sticks(&self.peer, self.guarded(&victim)) {
            return Err(FsError::NotPermitted("the directory is sticky"));
        }
        self.check_change(&of)?;
        match target.subvolume && !butterfs::is_absent_subvolume(target.inode) {
            true if victim.flags.intersects(KEPT) => Err(kept()),
            true => Err(FsError::HoldsSubvolume),
            false => self.check_change(&victim).map(|()| target),
        }
    }

    fn removed(&self, dir: InodeId, name: &[u8], victim: InodeId) -> Result<(), FsError> {
        self.changed(victim);
        self.renamed(dir, name);
        self.after_names(&[dir])
    }

    /// Errors unless the caller may give an inode such an owner.
    fn check_chown(&self, of: &Attributes, set: &SetAttributes) -> Result<(), FsError> {
        let owner = self.guarded(of).owner;
        if self.peer.has_over(Capability::ChangeOwner, owner) {
            return Ok(());
        }
        let is_owner = self.peer.user() == owner.uid;
        let keeps_user = set.uid.is_none_or(|uid| is_owner && uid == owner.uid);
        let may_give = |gid| is_owner && (gid == owner.gid || self.peer.is_member(gid));
        match keeps_user && set.gid.is_none_or(may_give) {
            true => Ok(()),
            false => Err(FsError::NotPermitted("only its owner or root may do this")),
        }
    }

    /// Whether a set-group bit stays that the caller gives, or that a file has
    /// which it changes.
    fn keeps_set_group(&self, owner: Owner) -> bool {
        self.peer.is_member(owner.gid) || self.peer.has_over(Capability::KeepSetId, owner)
    }

    /// `set` as the kernel would ask for it.
    fn asked(&self, of: &Attributes, set: &SetAttributes) -> SetAttributes {
        let mut set = set.clone();
        let owner = self.guarded(of).owner;
        let owns = set.uid.is_some() || set.gid.is_some();
        if let Some(mode) = &mut set.mode {
            let group = Owner {
                gid: set.gid.unwrap_or(owner.gid),
                ..owner
            };
            if !self.keeps_set_group(group) {
                *mode &= !S_ISGID;
            }
            // The owner came first, and the mode is what was asked for.
            set.privileges = Privileges::Keep;
        } else if owns && !matches!(of.mode & S_IFMT, libc::S_IFDIR | libc::S_IFLNK) {
            let stays = of.mode & S_ISGID == 0 || self.keeps_set_group(owner);
            set.privileges = match stays {
                true => Privileges::Drop,
                false => Privileges::DropAll,
            };
        }
        set
    }

    /// Errors unless the caller may set such times.
    fn check_times(&self, of: &Attributes, set: &SetAttributes) -> Result<(), FsError> {
        let is_now = |time: Option<SetTime>| time.is_none_or(|time| matches!(time, SetTime::Now));
        if self.guarded(of).is_owned_by(&self.peer) {
            return Ok(());
        }
        match is_now(set.atime) && is_now(set.mtime) {
            true => self.permit(of.id, Wanted::WRITE).map(drop),
            false => Err(FsError::NotPermitted("only its owner or root may do this")),
        }
    }

    /// What a new inode is at first. It belongs to the caller, and gets further
    /// bits only after that.
    fn new_of<'n>(&self, new: &NewInode<'n>) -> Result<NewInode<'n>, FsError> {
        let kind = new.mode & S_IFMT;
        if matches!(kind, libc::S_IFCHR | libc::S_IFBLK) && !self.peer.has(Capability::MakeDevices)
        {
            return Err(FsError::NotPermitted("only root may make devices"));
        }
        let mut new = new.clone();
        new.owner = self.peer.owner();
        new.mode = kind | (new.mode & 0o777);
        Ok(new)
    }

    /// Errors unless the caller may give a file another name, as `may_linkat`
    /// decides where hard links are protected.
    fn check_link(&self, of: &Attributes) -> Result<(), FsError> {
        // The caller itself made it, a moment ago.
        if of.nlink == 0 {
            return self.check_tree(of.id.tree);
        }
        self.check_change(of)?;
        if self.guarded(of).is_owned_by(&self.peer) {
            return Ok(());
        }
        let set_group = S_ISGID | S_IXGRP;
        let is_safe = of.mode & S_IFMT == libc::S_IFREG
            && of.mode & S_ISUID == 0
            && of.mode & set_group != set_group
            && self.permit(of.id, Wanted::READ).is_ok()
            && self.permit(of.id, Wanted::WRITE).is_ok();
        match is_safe {
            true => Ok(()),
            false => Err(FsError::NotPermitted("only its owner may link to it")),
        }
    }

    /// Errors unless the caller may set an attribute.
    fn check_attribute(&self, of: &Attributes, name: &[u8]) -> Result<(), FsError> {
        let is_acl = name.starts_with(b"system.posix_acl_");
        if is_acl && self.server.mount.acl == butterfs::AclPolicy::Off {
            return Err(FsError::NotSupported("this mount has no ACLs"));
        }
        let is_owner = self.guarded(of).is_owned_by(&self.peer);
        let kind = of.mode & S_IFMT;
        let may = if is_acl || name.starts_with(b"btrfs.") {
            is_owner
        } else if name.starts_with(b"user.") {
            if !matches!(kind, libc::S_IFREG | libc::S_IFDIR) {
                return Err(FsError::NotPermitted(
                    "only files and directories have these",
                ));
            }
            if is_directory(of.mode) && of.mode & libc::S_ISVTX != 0 && !is_owner {
                return Err(FsError::NotPermitted("the directory is sticky"));
            }
            self.permit(of.id, Wanted::WRITE)?;
            true
        } else if self.peer.has(Capability::Administer) {
            true
        } else {
            return Err(FsError::NotSupported("only root sets such attributes"));
        };
        match may {
            true => Ok(()),
            false => Err(FsError::NotPermitted("only its owner or root may do this")),
        }
    }
}

impl Calls for Acting {
    fn attributes(&self, id: InodeId) -> Result<Attributes, FsError> {
        self.go_on()?;
        let mut of = self.files().attributes(id)?;
        let shown = self.server.shown_owner(of.uid, of.gid);
        (of.uid, of.gid) = (shown.uid, shown.gid);
        Ok(of)
    }

    fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<Target, FsError> {
        self.go_on()?;
        check_name(name)?;
        self.permit(dir, Wanted::EXECUTE)?;
        self.files().lookup(dir, name)
    }

    fn list_to(&self, dir: InodeId, entries: &mut Vec<ListedEntry>) -> Result<(), FsError> {
        self.go_on()?;
        self.permit(dir, Wanted::SEE_NAMES)?;
        let mut room = LISTED_MAX;
        let listed = self.files().read_dir(dir, 2, &mut |entry| {
            entries.push(entry);
            room -= 1;
            room > 0
        });
        if room == 0 {
            return Err(FsError::NotSupported(
                "the directory has more names than a server keeps in memory for others",
            ));
        }
        let times = self.server.mount.directory_access_times;
        if times != AccessTimes::Never {
            self.files().accessed(&*self.files().inode(dir)?, times);
        }
        listed
    }

    fn read_link(&self, id: InodeId) -> Result<Vec<u8>, FsError> {
        self.go_on()?;
        self.files().read_link(id)
    }

    fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.go_on()?;
        let target = self.check_remove(dir, name)?;
        self.files().unlink_this(dir, name, target.inode)?;
        self.removed(dir, name, target.inode)
    }

    fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.go_on()?;
        let target = self.check_remove(dir, name)?;
        self.files().rmdir_this(dir, name, target.inode)?;
        self.removed(dir, name, target.inode)
    }

    fn rename(&self, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Result<(), FsError> {
        self.go_on()?;
        let moved = match self.check_remove(from.dir, from.name) {
            // A subvolume may move, unless it is read-only and its directory is
            // another one.
            Err(FsError::HoldsSubvolume) => {
                let target = self.files().lookup(from.dir, from.name)?;
                if from.dir != to.dir {
                    self.check_tree(target.inode.tree)?;
                }
                target
            }
            checked => checked?,
        };
        check_name(to.name)?;
        let replaced = match self.files().lookup(to.dir, to.name) {
            Ok(_) if mode == RenameMode::NoReplace => return Err(FsError::Exists),
            Ok(_) => Some(self.check_remove(to.dir, to.name)?),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        self.check_add(to.dir)?;
        let of = self.files().attributes(moved.inode)?;
        if of.is_directory() && from.dir != to.dir {
            // Its entry `..` changes.
            self.permit(moved.inode, Wanted::WRITE)?;
        }
        self.files().rename(from, to, mode, OldName::Free)?;
        for target in [Some(moved), replaced].into_iter().flatten() {
            self.changed(target.inode);
        }
        self.renamed(from.dir, from.name);
        self.renamed(to.dir, to.name);
        self.after_names(&[from.dir, to.dir])
    }

    fn set_attributes(&self, id: InodeId, set: &SetAttributes) -> Result<(), FsError> {
        self.go_on()?;
        let of = self.files().attributes(id)?;
        self.check_change(&of)?;
        if set.uid.is_some() || set.gid.is_some() {
            self.check_chown(&of, set)?;
        }
        if set.mode.is_some() && !self.guarded(&of).is_owned_by(&self.peer) {
            return Err(FsError::NotPermitted("only its owner or root may do this"));
        }
        if set.atime.is_some() || set.mtime.is_some() {
            self.check_times(&of, set)?;
        }
        let set = self.asked(&of, set);
        let inode = self.files().inode(id)?;
        self.files().change_attributes(&inode, &set)?;
        self.changed(id);
        Ok(())
    }

    fn create(&self, dir: InodeId, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Inode>, FsError> {
        self.go_on()?;
        check_name(name)?;
        self.check_add(dir)?;
        let made = self.files().create(dir, name, &self.new_of(new)?)?;
        self.renamed(dir, name);
        self.after_names(&[dir])?;
        Ok(made)
    }

    fn create_unnamed(&self, dir: InodeId, new: &NewInode<'_>) -> Result<Arc<Inode>, FsError> {
        self.go_on()?;
        self.check_add(dir)?;
        self.files().create_unnamed(dir, &self.new_of(new)?)
    }

    fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<(), FsError> {
        self.go_on()?;
        check_name(name)?;
        self.check_add(dir)?;
        self.check_link(&self.files().attributes(id)?)?;
        self.files().link(id, dir, name)?;
        self.changed(id);
        self.renamed(dir, name);
        self.after_names(&[dir])
    }

    fn set_xattr(&self, inode: &Inode, name: &[u8], value: &[u8]) -> Result<(), FsError> {
        self.go_on()?;
        let of = self.files().attributes_of(inode)?;
        self.check_change(&of)?;
        self.check_attribute(&of, name)?;
        self.files().set_xattr(inode, name, value, SetMode::Any)?;
        let owner = self.guarded(&of).owner;
        if name == b"system.posix_acl_access" && !self.keeps_set_group(owner) {
            let mode = self.files().attributes_of(inode)?.mode;
            if mode & S_ISGID != 0 {
                let set = SetAttributes {
                    mode: Some(mode & !S_ISGID),
                    ..SetAttributes::default()
                };
                self.files().set_attributes(inode, &set)?;
            }
        }
        self.changed(inode.id);
        Ok(())
    }

    fn owner_given(&self, wanted: Owner) -> GivenOwner {
        let all = self.peer.has(Capability::ChangeOwner);
        let own = self.peer.owner();
        GivenOwner {
            uid: (all || wanted.uid == own.uid).then_some(wanted.uid),
            gid: (all || self.peer.is_member(wanted.gid)).then_some(wanted.gid),
        }
    }
}
