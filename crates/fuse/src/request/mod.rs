//! What the kernel asks for, one plain structure per operation.
//!
//! Owns the typed requests handed to [`FileSystem`](crate::FileSystem). Names,
//! values and data are borrowed from the request buffer. Owns no parsing; that
//! is in `protocol`.

mod directories;
mod files;
mod names;
mod nodes;

pub use directories::{FsyncDir, OpenDir, ReadDir, ReleaseDir};
pub use files::{
    Bmap, CopyFileRange, Fallocate, Flush, Fsync, FsyncKind, Ioctl, IoctlFlags, Lseek, Open, Read,
    Release, SeekTarget, Write, WriteFlags,
};
pub use names::{
    Create, Forget, Link, Lookup, Mkdir, Mknod, Rename, Rmdir, Symlink, Tmpfile, Unlink,
};
pub use nodes::{
    AccessCheck, GetAttr, GetXattr, ListXattr, ReadLink, RemoveXattr, SetAttr, SetIdBits, SetXattr,
    StatxRequest, TimeChange,
};
pub use rustix::fs::{Access, FallocateFlags, OFlags, RenameFlags, StatxFlags, XattrFlags};
