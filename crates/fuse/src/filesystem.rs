//! The trait a file system implements.
//!
//! Owns the contract between transport and file system: one method per
//! operation, called from several threads at once. The answer of most defaults,
//! ENOSYS, makes the kernel do the operation itself or stop asking.

use crate::reply::{
    AttrReply, Created, DirectoryBuffer, DirectoryPlusBuffer, Entry, IoctlResult, Opened, StatFs,
    StatxReply, ValueBuffer,
};
use crate::request::{
    AccessCheck, Bmap, CopyFileRange, Create, Fallocate, Flush, Forget, Fsync, FsyncDir, GetAttr,
    GetXattr, Ioctl, Link, ListXattr, Lookup, Lseek, Mkdir, Mknod, Open, OpenDir, Read, ReadDir,
    ReadLink, Release, ReleaseDir, RemoveXattr, Rename, Rmdir, SetAttr, SetXattr, StatxRequest,
    Symlink, Tmpfile, Unlink, Write,
};
use crate::{Context, Errno, Negotiated, NodeId, Notifier, RequestId};

type Answer<T> = Result<T, Errno>;

/// A file system served to the kernel.
///
/// Every entry returned (lookup, mknod, mkdir, symlink, link, create, tmpfile,
/// readdirplus) gives the kernel one lookup of its node. The file system counts
/// these lookups until they are forgotten. A panic in a method answers EIO,
/// except in `init` and `destroy`, where it is logged. After a panic in any
/// method but `init`, [`FileSystem::panicked`] is called.
#[allow(unused_variables, reason = "defaults answer without looking")]
pub trait FileSystem: Send + Sync + 'static {
    /// Called once, before any other method, with what was agreed. An error
    /// fails the mount.
    fn init(&self, agreed: &Negotiated, notifier: &Notifier) -> Answer<()> {
        Ok(())
    }

    /// Asked before every request but forget, interrupt and destroy; an error
    /// is the request's answer.
    fn admit(&self) -> Answer<()> {
        Ok(())
    }

    /// Called exactly once, when no more requests are answered, also if the
    /// connection was aborted.
    fn destroy(&self) {}

    /// Called on the thread that caught a panic of another method, before the
    /// request is answered. What that method worked on may be half changed.
    fn panicked(&self) {}

    /// Finds a name.
    fn lookup(&self, context: &Context<'_>, request: Lookup<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// The kernel drops lookups of a node. Nobody waits for it.
    fn forget(&self, request: Forget) {}

    /// Attributes of a node.
    fn getattr(&self, context: &Context<'_>, request: GetAttr) -> Answer<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// Attributes beyond stat(2). ENOSYS: the kernel uses getattr from then on.
    fn statx(&self, context: &Context<'_>, request: StatxRequest) -> Answer<StatxReply> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes; answers the new ones.
    fn setattr(&self, context: &Context<'_>, request: SetAttr) -> Answer<AttrReply> {
        Err(Errno::ENOSYS)
    }

    /// The target of a symbolic link.
    fn readlink(
        &self,
        context: &Context<'_>,
        request: ReadLink,
        target: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Makes a symbolic link.
    fn symlink(&self, context: &Context<'_>, request: Symlink<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file that is neither directory nor symbolic link.
    fn mknod(&self, context: &Context<'_>, request: Mknod<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Makes a directory.
    fn mkdir(&self, context: &Context<'_>, request: Mkdir<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Removes a name that is not a directory's.
    fn unlink(&self, context: &Context<'_>, request: Unlink<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, context: &Context<'_>, request: Rmdir<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Moves a name. EINVAL for flags that are not supported.
    fn rename(&self, context: &Context<'_>, request: Rename<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Adds a name to a node; answers with the node itself.
    fn link(&self, context: &Context<'_>, request: Link<'_>) -> Answer<Entry> {
        Err(Errno::ENOSYS)
    }

    /// Opens a file. Not called where opens are stateless.
    fn open(&self, context: &Context<'_>, request: Open) -> Answer<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file. ENOSYS: the kernel uses mknod and open from
    /// then on, which is faster where opens are stateless.
    fn create(&self, context: &Context<'_>, request: Create<'_>) -> Answer<Created> {
        Err(Errno::ENOSYS)
    }

    /// Makes and opens a file without a name.
    fn tmpfile(&self, context: &Context<'_>, request: Tmpfile) -> Answer<Created> {
        Err(Errno::ENOSYS)
    }

    /// Reads into `data`, which has the length asked for and begins at a page;
    /// answers the bytes filled. Fewer than asked for mean the end of the file.
    fn read(&self, context: &Context<'_>, request: Read, data: &mut [u8]) -> Answer<usize> {
        Err(Errno::ENOSYS)
    }

    /// Writes data; answers the bytes taken.
    fn write(&self, context: &Context<'_>, request: Write<'_>) -> Answer<usize> {
        Err(Errno::ENOSYS)
    }

    /// close(2). ENOSYS: the kernel stops asking and reports success.
    fn flush(&self, context: &Context<'_>, request: Flush) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The last use of a handle ended. The caller of close(2) may be gone; an
    /// error is not reported to anyone.
    fn release(&self, context: &Context<'_>, request: Release) -> Answer<()> {
        Ok(())
    }

    /// Makes a file durable. ENOSYS: the kernel reports success without asking.
    fn fsync(&self, context: &Context<'_>, request: Fsync) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory. Not called where opens are stateless.
    fn opendir(&self, context: &Context<'_>, request: OpenDir) -> Answer<Opened> {
        Err(Errno::ENOSYS)
    }

    /// Lists a directory, `.` and `..` included; an empty listing ends it.
    fn readdir(
        &self,
        context: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Lists a directory with attributes. An error after an entry was added is
    /// ignored, because those entries' lookups count.
    fn readdirplus(
        &self,
        context: &Context<'_>,
        request: ReadDir,
        listing: &mut DirectoryPlusBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The last use of a directory's handle ended.
    fn releasedir(&self, context: &Context<'_>, request: ReleaseDir) -> Answer<()> {
        Ok(())
    }

    /// Makes a directory durable. ENOSYS as in fsync.
    fn fsyncdir(&self, context: &Context<'_>, request: FsyncDir) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Statistics of the file system.
    fn statfs(&self, context: &Context<'_>, node: NodeId) -> Answer<StatFs> {
        Err(Errno::ENOSYS)
    }

    /// Makes the whole file system durable. Plain mounts never ask; block
    /// mounts do.
    fn syncfs(&self, context: &Context<'_>, node: NodeId) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Sets an extended attribute.
    fn setxattr(&self, context: &Context<'_>, request: SetXattr<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The value of an extended attribute.
    fn getxattr(
        &self,
        context: &Context<'_>,
        request: GetXattr<'_>,
        value: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The names of all extended attributes, each by `push_name`.
    fn listxattr(
        &self,
        context: &Context<'_>,
        request: ListXattr,
        names: &mut ValueBuffer<'_>,
    ) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, context: &Context<'_>, request: RemoveXattr<'_>) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Whether the caller may access a node in this way. ENOSYS: the kernel
    /// allows every access from then on.
    fn access(&self, context: &Context<'_>, request: AccessCheck) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// Allocates, zeroes, punches or moves ranges. EOPNOTSUPP for modes that
    /// are not supported; ENOSYS stops all of them.
    fn fallocate(&self, context: &Context<'_>, request: Fallocate) -> Answer<()> {
        Err(Errno::ENOSYS)
    }

    /// The offset of the next data or hole; ENXIO beyond the end.
    fn lseek(&self, context: &Context<'_>, request: Lseek) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// Copies or shares a range; answers the bytes copied. ENOSYS, EOPNOTSUPP
    /// and EXDEV make the kernel copy by reading and writing.
    fn copy_file_range(&self, context: &Context<'_>, request: CopyFileRange) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// An ioctl. `output` has the length the command's number tells; what is
    /// not filled reaches the caller as zeroes.
    fn ioctl(
        &self,
        context: &Context<'_>,
        request: Ioctl<'_>,
        output: &mut [u8],
    ) -> Answer<IoctlResult> {
        Err(Errno::ENOTTY)
    }

    /// Maps a block of a file to the device's.
    fn bmap(&self, context: &Context<'_>, request: Bmap) -> Answer<u64> {
        Err(Errno::ENOSYS)
    }

    /// The caller of that request got a signal. ENOSYS: the kernel does not
    /// report signals any more. EAGAIN: it reports this one again.
    fn interrupt(&self, request: RequestId) -> Answer<()> {
        Err(Errno::ENOSYS)
    }
}
