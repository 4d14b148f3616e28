//! The requests: names and attributes here, data in `serve_data`.

use super::answered::{Answered, errno};
use super::convert;
use super::guard::{asks_nothing, is_of_cached_writes};
use super::server::{Server, Transported};
use crate::attributes::{FACTS, LABEL, PLACE, SERVICE, STATS};
use crate::facts::Facts;
use butterfs::{
    AclPolicy, FsError, NewInode, OldName, Owner, Place, Privileges, RenameMode, SetAttributes,
    SetMode,
};
use butterfs_fuse::reply::{
    AttrReply, Created, DirectoryBuffer, DirectoryEntry, DirectoryPlusBuffer, Entry, FOREVER,
    IoctlResult, Opened, Push, StatFs, StatxReply, ValueBuffer,
};
use butterfs_fuse::request::{
    CopyFileRange, Fallocate, Forget, Fsync, FsyncDir, GetAttr, GetXattr, Ioctl, Link, ListXattr,
    Lookup, Lseek, Mkdir, Mknod, Read, ReadDir, ReadLink, RemoveXattr, Rename, RenameFlags, Rmdir,
    SetAttr, SetIdBits, SetXattr, StatxRequest, Symlink, Tmpfile, Unlink, Write, XattrFlags,
};
use butterfs_fuse::{Context, Errno, FileSystem, Negotiated, NodeId, Notifier};
use std::sync::atomic::Ordering;

type Answer<T> = Result<T, Errno>;

const S_ISGID: u32 = 0o2_000;
/// STATX_ATTR_*: compressed, immutable, append, nodump.
const STATX_ATTRIBUTES: &[(butterfs::InodeFlags, u64)] = &[
    (butterfs::InodeFlags::COMPRESS, 0x4),
    (butterfs::InodeFlags::IMMUTABLE, 0x10),
    (butterfs::InodeFlags::APPEND, 0x20),
    (butterfs::InodeFlags::NODUMP, 0x40),
];

const fn owner(context: &Context<'_>) -> Owner {
    Owner {
        uid: context.uid,
        gid: context.gid,
    }
}

impl Server {
    /// Notes that a directory was read, once per listing.
    fn listed(&self, request: &ReadDir) -> Answer<()> {
        if request.offset == 0 {
            let dir = self.inode(request.node)?;
            self.files()
                .accessed(&dir, self.mount.directory_access_times);
        }
        Ok(())
    }

    /// Errors for access control lists where the mount has none.
    fn check_attribute(&self, name: &[u8]) -> Answer<()> {
        if self.mount.acl == AclPolicy::Off && name.starts_with(b"system.posix_acl_") {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(())
    }

    fn make(&self, parent: NodeId, name: &[u8], new: &NewInode<'_>) -> Answer<Entry> {
        let parent = self.id(parent);
        self.check_add(parent)?;
        let inode = self.files().create(parent, name, new).answered()?;
        self.after_names(&[parent])?;
        self.entry(&inode)
    }
}

impl FileSystem for Server {
    fn init(&self, _: &Negotiated, notifier: &Notifier) -> Answer<()> {
        // A second agreement does not happen.
        let _ = self.notifier.set(notifier.clone());
        self.say_quota_state();
        Ok(())
    }

    fn panicked(&self) {
        self.volume.fail_after_panic();
    }

    fn admit(&self) -> Answer<()> {
        match self.shut.load(Ordering::Acquire) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    fn destroy(&self) {
        if let Some(autodefrag) = self.autodefrag.get() {
            autodefrag.stop();
        }
        self.nodes.forget_all(self.files());
        if let Err(error) = self.volume.close() {
            tracing::error!(%error, "the last changes are not on the device");
            let _ = self.unwritten.set(error.to_string());
        }
    }

    fn lookup(&self, _: &Context<'_>, request: Lookup<'_>) -> Answer<Entry> {
        let target = match self.files().lookup(self.id(request.parent), request.name) {
            Ok(target) => target,
            Err(FsError::NotFound) => return Ok(Entry::absent(FOREVER)),
            Err(error) => return Err(errno(&error)),
        };
        let inode = self.files().inode(target.inode).answered()?;
        self.entry(&inode)
    }

    fn forget(&self, request: Forget) {
        let forgotten = self
            .nodes
            .forget(self.files(), request.node, request.lookups);
        if let Err(error) = forgotten {
            tracing::error!(%error, "a file without names could not be deleted");
        }
    }

    fn getattr(&self, context: &Context<'_>, request: GetAttr) -> Answer<AttrReply> {
        let inode = self.inode(request.node)?;
        self.check_open(context, &inode)?;
        self.attr_reply(&inode)
    }

    fn statx(&self, _: &Context<'_>, request: StatxRequest) -> Answer<StatxReply> {
        let inode = self.inode(request.node)?;
        let attributes = self.files().attributes_of(&inode).answered()?;
        let set = STATX_ATTRIBUTES
            .iter()
            .filter(|(flag, _)| attributes.flags.contains(*flag));
        Ok(StatxReply {
            attr: convert::attr(&attributes, request.node, self.mount.owners),
            birth: Some(convert::timestamp(attributes.btime)),
            attributes: set.fold(0, |all, (_, bit)| all | bit),
            attributes_mask: STATX_ATTRIBUTES.iter().fold(0, |all, (_, bit)| all | bit),
            timeout: self.attributes_last(inode.id, &attributes),
        })
    }

    fn setattr(&self, context: &Context<'_>, request: SetAttr) -> Answer<AttrReply> {
        let inode = self.inode(request.node)?;
        match self.check_attributes(&inode, &request) {
            // The writes came before the subvolume became read-only. Whoever
            // asks for their durability gets it, without their times.
            Err(Errno::EROFS) if is_of_cached_writes(&request) => return self.attr_reply(&inode),
            checked => checked?,
        }
        let set = SetAttributes {
            mode: request.mode,
            uid: request.uid,
            gid: request.gid,
            size: request.size,
            atime: request.atime.map(convert::set_time),
            mtime: request.mtime.map(convert::set_time),
            ctime: request.ctime.map(convert::timespec),
            btime: None,
            privileges: match request.set_id {
                SetIdBits::Clear => self.dropped_by(context, &inode),
                SetIdBits::Keep if asks_nothing(&request) => {
                    self.dropped_by_empty(context, &inode)?
                }
                SetIdBits::Keep => Privileges::Keep,
            },
        };
        let done = if request.ctime.is_none() {
            self.files().change_attributes(&inode, &set).answered()
        } else {
            // The kernel reports the times of cached writes. The writes
            // themselves already counted as changes.
            self.files().set_attributes(&inode, &set).answered()
        };
        match request.size {
            Some(_) => self.or_drop_pages(request.node, done)?,
            None => done?,
        }
        self.attr_reply(&inode)
    }

    fn readlink(
        &self,
        _: &Context<'_>,
        request: ReadLink,
        target: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        let inode = self.inode(request.node)?;
        let link = self.files().read_link(inode.id).answered()?;
        self.files().accessed(&inode, self.mount.access_times);
        target.push(&link);
        Ok(())
    }

    fn symlink(&self, context: &Context<'_>, request: Symlink<'_>) -> Answer<Entry> {
        let new = NewInode::symlink(request.target, owner(context));
        self.make(request.parent, request.name, &new)
    }

    fn mknod(&self, context: &Context<'_>, request: Mknod<'_>) -> Answer<Entry> {
        let mut new = NewInode::new(request.mode, owner(context));
        new.umask = request.umask;
        if matches!(request.mode & libc::S_IFMT, libc::S_IFCHR | libc::S_IFBLK) {
            new.rdev = convert::rdev_to_disk(request.rdev);
        }
        self.make(request.parent, request.name, &new)
    }

    fn mkdir(&self, context: &Context<'_>, request: Mkdir<'_>) -> Answer<Entry> {
        let mode = libc::S_IFDIR | (request.mode & !libc::S_IFMT);
        let mut new = NewInode::new(mode, owner(context));
        new.umask = request.umask;
        self.make(request.parent, request.name, &new)
    }

    fn unlink(&self, _: &Context<'_>, request: Unlink<'_>) -> Answer<()> {
        let parent = self.id(request.parent);
        self.check_remove(parent, request.name)?;
        self.files().unlink(parent, request.name).answered()?;
        self.after_names(&[parent])
    }

    fn rmdir(&self, _: &Context<'_>, request: Rmdir<'_>) -> Answer<()> {
        let parent = self.id(request.parent);
        self.check_remove(parent, request.name)?;
        self.files().rmdir(parent, request.name).answered()?;
        self.after_names(&[parent])
    }

    fn rename(&self, context: &Context<'_>, request: Rename<'_>) -> Answer<()> {
        let known = RenameFlags::NOREPLACE | RenameFlags::EXCHANGE | RenameFlags::WHITEOUT;
        if !known.contains(request.flags) {
            return Err(Errno::EINVAL);
        }
        let mode = match (
            request.flags.contains(RenameFlags::NOREPLACE),
            request.flags.contains(RenameFlags::EXCHANGE),
        ) {
            (false, false) => RenameMode::Replace,
            (true, false) => RenameMode::NoReplace,
            (false, true) => RenameMode::Exchange,
            (true, true) => return Err(Errno::EINVAL),
        };
        let old_name = match request.flags.contains(RenameFlags::WHITEOUT) {
            true if mode == RenameMode::Exchange => return Err(Errno::EINVAL),
            true => OldName::Whiteout(owner(context)),
            false => OldName::Free,
        };
        let from = Place {
            dir: self.id(request.parent),
            name: request.name,
        };
        let to = Place {
            dir: self.id(request.new_parent),
            name: request.new_name,
        };
        self.check_remove(from.dir, from.name)?;
        self.check_add(to.dir)?;
        if self.files().lookup(to.dir, to.name).is_ok() {
            self.check_remove(to.dir, to.name)?;
        }
        if from.dir != to.dir {
            self.check_moved(from.dir, from.name)?;
            if mode == RenameMode::Exchange {
                self.check_moved(to.dir, to.name)?;
            }
        }
        self.files().rename(from, to, mode, old_name).answered()?;
        self.after_names(&[from.dir, to.dir])
    }

    fn link(&self, _: &Context<'_>, request: Link<'_>) -> Answer<Entry> {
        let inode = self.inode(request.node)?;
        let parent = self.id(request.new_parent);
        self.check_add(parent)?;
        self.check_change(&inode)?;
        self.files()
            .link(inode.id, parent, request.new_name)
            .answered()?;
        self.after_names(&[parent])?;
        self.entry(&inode)
    }

    fn tmpfile(&self, context: &Context<'_>, request: Tmpfile) -> Answer<Created> {
        let parent = self.id(request.parent);
        self.check_add(parent)?;
        let mut new = NewInode::new(request.mode, owner(context));
        new.umask = request.umask;
        let inode = self.files().create_unnamed(parent, &new).answered()?;
        Ok(Created {
            entry: self.entry(&inode)?,
            opened: Opened::default(),
        })
    }

    fn read(&self, _: &Context<'_>, request: Read, data: &mut [u8]) -> Answer<usize> {
        let inode = self.inode(request.node)?;
        let read = self.files().read(&inode, request.offset, data).answered()?;
        self.files().accessed(&inode, self.mount.access_times);
        Ok(read)
    }

    fn write(&self, context: &Context<'_>, request: Write<'_>) -> Answer<usize> {
        self.write_data(context, &request)
    }

    fn fsync(&self, _: &Context<'_>, request: Fsync) -> Answer<()> {
        let inode = self.inode(request.node)?;
        self.unless_read_only(|| self.files().fsync(&inode))
    }

    fn readdir(
        &self,
        _: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryBuffer<'_>,
    ) -> Answer<()> {
        let dir = self.id(request.node);
        let mut failed = None;
        let listed = self.files().read_dir(dir, request.offset, &mut |entry| {
            let node = match self.nodes.node_of(entry.target.inode) {
                Ok(node) => node,
                Err(error) => {
                    failed = Some(error);
                    return false;
                }
            };
            let pushed = listing.push(&DirectoryEntry {
                ino: node.0,
                next: entry.next,
                kind: convert::kind(entry.target.kind),
                name: &entry.name,
            });
            pushed == Push::Added
        });
        failed.map_or(listed, Err).answered()?;
        self.listed(&request)
    }

    fn readdirplus(
        &self,
        _: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryPlusBuffer<'_>,
    ) -> Answer<()> {
        let dir = self.id(request.node);
        let mut failed = None;
        let listed = self.files().read_dir(dir, request.offset, &mut |entry| {
            let pushed = self.push_plus(&entry, listing);
            match pushed {
                Ok(push) => push == Push::Added,
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        failed.map_or(listed.answered(), Err)?;
        self.listed(&request)
    }

    fn fsyncdir(&self, _: &Context<'_>, request: FsyncDir) -> Answer<()> {
        let dir = self.inode(request.node)?;
        self.unless_read_only(|| self.files().fsync_directory(&dir))
    }

    fn statfs(&self, _: &Context<'_>, _: NodeId) -> Answer<StatFs> {
        Ok(convert::statfs(&self.volume.usage(), self.sector))
    }

    fn syncfs(&self, _: &Context<'_>, _: NodeId) -> Answer<()> {
        self.unless_read_only(|| self.files().sync_all())
    }

    fn setxattr(&self, context: &Context<'_>, request: SetXattr<'_>) -> Answer<()> {
        if request.name == LABEL.as_bytes() {
            return self.set_label(context, request.value);
        }
        if request.name == STATS.as_bytes() {
            return self.reset_stats(context);
        }
        self.check_attribute(request.name)?;
        let inode = self.inode(request.node)?;
        self.check_change(&inode)?;
        let mode = if request.flags.contains(XattrFlags::CREATE) {
            SetMode::Create
        } else if request.flags.contains(XattrFlags::REPLACE) {
            SetMode::Replace
        } else {
            SetMode::Any
        };
        self.files()
            .set_xattr(&inode, request.name, request.value, mode)
            .answered()?;
        if request.set_id == SetIdBits::Clear {
            let mode = self.files().attributes_of(&inode).answered()?.mode;
            if mode & S_ISGID != 0 {
                let set = SetAttributes {
                    mode: Some(mode & !S_ISGID),
                    ..SetAttributes::default()
                };
                self.files().set_attributes(&inode, &set).answered()?;
            }
        }
        Ok(())
    }

    fn getxattr(
        &self,
        context: &Context<'_>,
        request: GetXattr<'_>,
        value: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        if request.name == FACTS.as_bytes() {
            let facts = Facts {
                options: Some(self.mount.options.clone()),
                transport: self.transport.get().map(Transported::facts),
                ..Facts::of(&self.volume)
            };
            value.push(&serde_json::to_vec(&facts).map_err(|_| Errno::EIO)?);
            return Ok(());
        }
        if let Some(which) = request.name.strip_prefix(PLACE.as_bytes()) {
            // The path may lead through directories that the caller may not
            // enter.
            self.check_privileged(context)?;
            value.push(&self.place_from_top(which)?);
            return Ok(());
        }
        if request.name == SERVICE.as_bytes() {
            value.push(self.service.get().ok_or(Errno(libc::ENODATA))?);
            return Ok(());
        }
        self.check_attribute(request.name)?;
        let id = self.id(request.node);
        value.push(&self.files().get_xattr(id, request.name).answered()?);
        Ok(())
    }

    fn listxattr(
        &self,
        _: &Context<'_>,
        request: ListXattr,
        names: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        for name in self.files().list_xattrs(self.id(request.node)).answered()? {
            names.push_name(&name);
        }
        Ok(())
    }

    fn removexattr(&self, _: &Context<'_>, request: RemoveXattr<'_>) -> Answer<()> {
        self.check_attribute(request.name)?;
        let inode = self.inode(request.node)?;
        self.check_change(&inode)?;
        self.files().remove_xattr(&inode, request.name).answered()
    }

    fn fallocate(&self, context: &Context<'_>, request: Fallocate) -> Answer<()> {
        self.allocate(context, &request)
    }

    fn lseek(&self, context: &Context<'_>, request: Lseek) -> Answer<u64> {
        self.seek(context, &request)
    }

    fn copy_file_range(&self, context: &Context<'_>, request: CopyFileRange) -> Answer<u64> {
        self.copy(context, &request)
    }

    fn ioctl(
        &self,
        context: &Context<'_>,
        request: Ioctl<'_>,
        output: &mut [u8],
    ) -> Answer<IoctlResult> {
        self.control(context, &request, output)
    }
}
