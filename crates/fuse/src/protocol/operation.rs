//! A parsed request.
//!
//! Owns the sum of all operations; the structures are in `request`.

use super::wire::Reader;
use crate::request::{
    AccessCheck, Bmap, CopyFileRange, Create, Fallocate, Flush, Forget, Fsync, FsyncDir, GetAttr,
    GetXattr, Ioctl, Link, ListXattr, Lookup, Lseek, Mkdir, Mknod, Open, OpenDir, Read, ReadDir,
    ReadLink, Release, ReleaseDir, RemoveXattr, Rename, Rmdir, SetAttr, SetXattr, StatxRequest,
    Symlink, Tmpfile, Unlink, Write,
};
use crate::{NodeId, RequestId};

/// How many bytes the copied length takes in the reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopiedWidth {
    Bits32,
    Bits64,
}

/// One request. Sizes beside a request bound its reply.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Operation<'a> {
    Lookup(Lookup<'a>),
    Forget(Forget),
    BatchForget(ForgetList<'a>),
    Getattr(GetAttr),
    Setattr(SetAttr),
    Statx(StatxRequest),
    Readlink(ReadLink),
    Symlink(Symlink<'a>),
    Mknod(Mknod<'a>),
    Mkdir(Mkdir<'a>),
    Unlink(Unlink<'a>),
    Rmdir(Rmdir<'a>),
    Rename(Rename<'a>),
    Link(Link<'a>),
    Open(Open),
    Read {
        request: Read,
        size: u32,
    },
    Write(Write<'a>),
    Statfs(NodeId),
    Release(Release),
    Fsync(Fsync),
    Setxattr(SetXattr<'a>),
    Getxattr {
        request: GetXattr<'a>,
        size: u32,
    },
    Listxattr {
        request: ListXattr,
        size: u32,
    },
    Removexattr(RemoveXattr<'a>),
    Flush(Flush),
    Opendir(OpenDir),
    Readdir {
        request: ReadDir,
        size: u32,
    },
    Readdirplus {
        request: ReadDir,
        size: u32,
    },
    Releasedir(ReleaseDir),
    Fsyncdir(FsyncDir),
    Access(AccessCheck),
    Create(Create<'a>),
    Tmpfile(Tmpfile),
    Interrupt(RequestId),
    Bmap(Bmap),
    Destroy,
    Ioctl {
        request: Ioctl<'a>,
        out_size: u32,
    },
    Fallocate(Fallocate),
    Lseek(Lseek),
    CopyFileRange {
        request: CopyFileRange,
        width: CopiedWidth,
    },
    Syncfs(NodeId),
    /// An answer to a notification; needs none itself.
    NotifyReply,
    /// Known, and answered ENOSYS: the kernel then does it itself or not at all.
    Unsupported,
}

/// The nodes of a batch of forgets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ForgetList<'a>(&'a [u8]);

impl<'a> ForgetList<'a> {
    /// `bytes` are whole `forget_one` structures.
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = Forget> + 'a {
        let mut reader = Reader::new(self.0);
        std::iter::from_fn(move || {
            let one: super::layout::ForgetOne = reader.load().ok()?;
            Some(Forget {
                node: NodeId(one.nodeid),
                lookups: one.nlookup,
            })
        })
    }
}
