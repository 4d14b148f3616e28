//! What must not change although permissions allow it.
//!
//! Owns the checks of read-only subvolumes and of immutable and append-only
//! files. The kernel leaves these checks to a FUSE server.
//!
//! When a file or its subvolume becomes protected, the kernel may have dirty
//! pages of a shared mapping. The kernel first writes them back to this server.
//! Pages that become dirty later are refused, and the kernel drops them, so
//! that all readers see what the file really has.

use super::answered::{Answered, errno};
use super::intent::{self, Intent};
use super::protected::{ASKED, KEPT};
use super::server::Server;
use super::stale::Noted;
use super::telling::{NAME_PATIENCE, Told};
use crate::mounts::Mount;
use butterfs::{Access, Attributes, FsError, Inode, InodeFlags, InodeId, TreeId, WriteCache};
use butterfs_fuse::reply::FOREVER;
use butterfs_fuse::request::{SetAttr, TimeChange, Write};
use butterfs_fuse::{Context, Errno, InvalidRange, NodeId};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

/// How long a caller waits until the kernel has written back its pages. It may
/// ask again.
const WRITE_BACK_PATIENCE: Duration = Duration::from_secs(10);

/// Which part of a write from the kernel's page cache is written.
pub(super) enum FromCache {
    /// All of it.
    All,
    /// What is behind this offset. The rest is already there.
    After(u64),
}

impl Server {
    /// Errors where the subvolume is read-only.
    pub(super) fn check_tree(&self, tree: TreeId) -> Result<(), Errno> {
        match self.files().subvolume_access(tree).answered()? {
            Access::ReadWrite => Ok(()),
            Access::ReadOnly => Err(Errno::EROFS),
        }
    }

    pub(super) fn flags(inode: &Inode) -> InodeFlags {
        inode.state.read_beside().item.flags
    }

    /// Errors if data at `offset` must not change.
    pub(super) fn check_write(&self, inode: &Inode, offset: u64) -> Result<(), Errno> {
        self.check_tree(inode.id.tree)?;
        let state = inode.state.read_beside();
        let flags = state.item.flags;
        let appends = offset >= state.item.size;
        if flags.contains(InodeFlags::IMMUTABLE) || (flags.contains(InodeFlags::APPEND) && !appends)
        {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Errors if pages from the kernel's cache must not be written. The page in
    /// which an append-only file ended is sent as a whole, and what the file
    /// had of it must be unchanged.
    pub(super) fn check_cached_write(
        &self,
        inode: &Inode,
        request: &Write<'_>,
    ) -> Result<FromCache, Errno> {
        match self.check_write(inode, request.offset) {
            Err(Errno::EPERM) if !Self::flags(inode).contains(InodeFlags::IMMUTABLE) => {}
            checked => return checked.map(|()| FromCache::All),
        }
        let end = request.offset + request.data.len() as u64;
        let size = inode
            .state
            .read_beside()
            .item
            .size
            .clamp(request.offset, end);
        let length = usize::try_from(size - request.offset).map_err(|_| Errno::EPERM)?;
        let mut had = vec![0; length];
        let read = self.files().read(inode, request.offset, &mut had);
        if read.answered()? != length || request.data[..length] != had[..] {
            return Err(Errno::EPERM);
        }
        Ok(FromCache::After(size))
    }

    /// Makes the kernel drop its pages of a file after it refused some of them,
    /// so that nobody reads what the file does not have. A thread of its own
    /// does this, because the kernel waits for the answer to the refused write.
    pub(super) fn drop_pages(&self, node: NodeId) {
        let Some(notifier) = self.notifier.get().cloned() else {
            return;
        };
        let Noted::StartThread { is_new } = self.stale.note(node.0) else {
            return;
        };
        let stale = Arc::clone(&self.stale);
        let drop_them = move || {
            while let Some(node) = stale.next() {
                let _ = notifier.invalidate_inode(NodeId(node), InvalidRange::Everything);
            }
        };
        let thread = std::thread::Builder::new().name("butterfs-stale".into());
        if let Err(error) = thread.spawn(drop_them) {
            self.stale.has_no_thread();
            if is_new {
                tracing::warn!(%error, "readers may see data that were refused");
            }
        }
    }

    /// Makes the kernel write back its dirty pages of a file. Call it without
    /// locks, because the writes arrive as other requests.
    ///
    /// # Errors
    /// EAGAIN when it takes too long.
    pub(super) fn write_back(&self, context: &Context<'_>, node: NodeId) -> Result<(), Errno> {
        self.write_back_all(context, vec![node], InvalidRange::Everything)
    }

    /// [`Server::write_back`] of the pages in a range of bytes.
    pub(super) fn write_back_range(
        &self,
        context: &Context<'_>,
        node: NodeId,
        range: &Range<u64>,
    ) -> Result<(), Errno> {
        let bytes = InvalidRange::Bytes {
            offset: range.start,
            length: range.end - range.start,
        };
        butterfs_device::about_to_wait();
        self.write_back_all(context, vec![node], bytes)
    }

    /// Makes the kernel write back its dirty pages of all files, and waits
    /// until none has come for a while.
    ///
    /// syncfs begins that, but does not wait for a FUSE server: with Linux
    /// 6.18.44 it returns while the server is stopped. The kernel would wait if
    /// it were told to drop the pages. But then a page could be read again
    /// before a write that is just on its way to this server, and whoever
    /// stores to that page by a mapping would bring the old bytes back.
    ///
    /// # Errors
    /// As [`Server::write_back`].
    pub(super) fn write_back_mounts(&self, context: &Context<'_>) -> Result<(), Errno> {
        let Some(device) = self.device_number.get().cloned() else {
            return Ok(());
        };
        let pages = Arc::clone(&self.pages);
        let told = self.tell(context, WRITE_BACK_PATIENCE, move |_| {
            begin_write_back(&device);
            pages.wait_until_quiet();
        });
        match told {
            Told::Done => Ok(()),
            Told::Later => Err(Errno::EAGAIN),
        }
    }

    /// Makes the kernel ask for the attributes of a subvolume's files before it
    /// opens one, if it has a cache of writes: perhaps no writes may get into it
    /// any more.
    pub(super) fn forget_attributes(&self, context: &Context<'_>, tree: TreeId) {
        if self.mount.write_cache == WriteCache::Server {
            return;
        }
        let nodes = self.nodes.known_in(tree);
        self.tell(context, NAME_PATIENCE, move |notifier| {
            for node in nodes {
                let _ = notifier.invalidate_inode(node, InvalidRange::AttributesOnly);
            }
        });
    }

    fn write_back_all(
        &self,
        context: &Context<'_>,
        nodes: Vec<NodeId>,
        range: InvalidRange,
    ) -> Result<(), Errno> {
        let told = self.tell(context, WRITE_BACK_PATIENCE, move |notifier| {
            for node in nodes {
                // A kernel that does not know the node has no pages of it.
                let _ = notifier.invalidate_inode(node, range);
            }
        });
        match told {
            Told::Done => Ok(()),
            Told::Later => Err(Errno::EAGAIN),
        }
    }

    /// Errors in a read-only subvolume if the kernel has a cache of writes. It
    /// would take writes into it, and show them and the size that they make,
    /// although they are refused later.
    fn check_cached_tree(&self, tree: TreeId) -> Result<(), Errno> {
        match self.mount.write_cache {
            WriteCache::Kernel => self.check_tree(tree),
            WriteCache::Server => Ok(()),
        }
    }

    /// How long the kernel may keep attributes. Zero if the server must know how
    /// the file is opened: then the kernel asks for them before it opens it.
    pub(super) fn attributes_last(&self, id: InodeId, attributes: &Attributes) -> Duration {
        let is_file = attributes.mode & libc::S_IFMT == libc::S_IFREG;
        let is_asked = attributes.flags.intersects(ASKED)
            || (is_file && self.check_cached_tree(id.tree).is_err());
        match is_asked {
            true => Duration::ZERO,
            false => FOREVER,
        }
    }

    /// Errors where the caller is about to open a protected file for writing.
    pub(super) fn check_open(&self, context: &Context<'_>, inode: &Inode) -> Result<(), Errno> {
        let (flags, mode) = {
            let state = inode.state.read_beside();
            (state.item.flags, state.item.mode)
        };
        let in_tree = self.check_cached_tree(inode.id.tree);
        let is_asked = flags.intersects(ASKED) || in_tree.is_err();
        if !is_asked || mode & libc::S_IFMT != libc::S_IFREG {
            return Ok(());
        }
        match intent::of(context.pid) {
            Intent::Other => Ok(()),
            Intent::Write if flags.intersects(KEPT) => Err(Errno::EPERM),
            Intent::Append if flags.contains(InodeFlags::IMMUTABLE) => Err(Errno::EPERM),
            _ if flags.contains(InodeFlags::READONLY) => Err(Errno::EACCES),
            Intent::Append | Intent::Write => in_tree,
        }
    }

    /// Errors if attributes must not change as asked. The times of append-only
    /// files may be set to now.
    pub(super) fn check_attributes(&self, inode: &Inode, request: &SetAttr) -> Result<(), Errno> {
        let others = changes_more_than_times(request);
        if is_of_cached_writes(request) {
            return self.check_tree(inode.id.tree);
        }
        let now = |time| matches!(time, Some(TimeChange::Now));
        let all_now = now(request.atime) && (now(request.mtime) || request.ctime.is_some());
        if !others && all_now {
            // This offset is beyond the end of any file.
            return self.check_write(inode, u64::MAX);
        }
        if asks_nothing(request) {
            return self.check_tree(inode.id.tree);
        }
        self.check_change(inode)
    }

    /// Errors where attributes or size must not change.
    pub(super) fn check_change(&self, inode: &Inode) -> Result<(), Errno> {
        self.check_tree(inode.id.tree)?;
        if Self::flags(inode).intersects(KEPT) {
            return Err(Errno::EPERM);
        }
        Ok(())
    }

    /// Makes a change of names in `dirs` durable, if the mount or a directory
    /// asks for that (`dirsync`, `chattr +D`, `+S`).
    pub(super) fn after_names(&self, dirs: &[InodeId]) -> Result<(), Errno> {
        let dirs: Result<Vec<_>, _> = dirs.iter().map(|dir| self.files().inode(*dir)).collect();
        let dirs = dirs.answered()?;
        let asks =
            |dir: &Arc<Inode>| Self::flags(dir).intersects(InodeFlags::DIRSYNC | InodeFlags::SYNC);
        if self.mount.sync_names || dirs.iter().any(asks) {
            for dir in &dirs {
                self.files().fsync_directory(dir).answered()?;
            }
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

    /// Errors if a name stands for a read-only subvolume, which must not get into
    /// another directory. Within its directory it may be renamed.
    pub(super) fn check_moved(&self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        match self.files().lookup(dir, name) {
            Ok(target) if target.subvolume => self.check_tree(target.inode.tree),
            _ => Ok(()),
        }
    }

    /// Errors where a directory must not lose this name.
    pub(super) fn check_remove(&self, dir: InodeId, name: &[u8]) -> Result<(), Errno> {
        let held = self.files().inode(dir).answered()?;
        self.check_change(&held)?;
        match self.files().lookup(dir, name) {
            // A read-only one may lose its name. The library decides whether it
            // can be removed.
            Ok(target) if target.subvolume => {
                let victim = self.files().inode(target.inode).answered()?;
                match Self::flags(&victim).intersects(KEPT) {
                    true => Err(Errno::EPERM),
                    false => Ok(()),
                }
            }
            Ok(target) => {
                let victim = self.files().inode(target.inode).answered()?;
                self.check_change(&victim)
            }
            Err(FsError::NotFound) => Ok(()),
            Err(error) => Err(errno(&error)),
        }
    }
}

fn changes_more_than_times(request: &SetAttr) -> bool {
    request.mode.is_some()
        || request.uid.is_some()
        || request.gid.is_some()
        || request.size.is_some()
}

/// Whether nothing is to change but set-id bits: of a chown(2) that names
/// neither owner nor group, and before a file is written to by somebody who may
/// not keep them. A kernel with a write-back cache adds the time of change.
pub(super) fn asks_nothing(request: &SetAttr) -> bool {
    !changes_more_than_times(request) && request.atime.is_none() && request.mtime.is_none()
}

/// Whether a kernel with a write-back cache reports the times of its cached
/// writes.
pub(super) fn is_of_cached_writes(request: &SetAttr) -> bool {
    !changes_more_than_times(request) && request.ctime.is_some() && request.atime.is_none()
}

/// Begins to bring all dirty pages of the mounted file system with this
/// `major:minor` to its server, if this process reaches a mount of it.
fn begin_write_back(device: &str) {
    let number = |numbers: u64| {
        let (major, minor) = (rustix::fs::major(numbers), rustix::fs::minor(numbers));
        format!("{major}:{minor}")
    };
    let mounts = Mount::seen_by("self").into_iter();
    let mut ours = mounts.filter(|mount| mount.device == device);
    let _ = ours.any(|mount| {
        let Ok(root) = std::fs::File::open(&mount.point) else {
            return false;
        };
        // Something else may be mounted over it.
        let is_it = root
            .metadata()
            .is_ok_and(|facts| number(facts.dev()) == device);
        is_it && rustix::fs::syncfs(&root).is_ok()
    });
}
