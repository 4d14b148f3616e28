//! From bytes to operations.
//!
//! Owns the form of every request's body. The function is one table by opcode.
//! It is longer than others on purpose: splitting it would hide that each
//! operation has exactly one form.

use super::Opcode;
use super::layout::{
    AccessIn, BatchForgetIn, BmapIn, CopyFileRangeIn, CreateIn, FallocateIn, FlushIn, ForgetIn,
    ForgetOne, FsyncIn, GetattrIn, GetxattrIn, InHeader, InterruptIn, IoctlIn, LinkIn, LseekIn,
    MkdirIn, MknodIn, OpenIn, ReadIn, ReleaseIn, Rename2In, RenameIn, SetattrIn, SetxattrIn,
    SetxattrInExt, StatxIn, WriteIn,
};
use super::message::Body;
use super::operation::{CopiedWidth, ForgetList, Operation};
use super::wire::{Malformed, Reader, Wire};
use crate::reply::Timestamp;
use crate::request::{
    Access, AccessCheck, Bmap, CopyFileRange, Create, Fallocate, FallocateFlags, Flush, Forget,
    Fsync, FsyncDir, FsyncKind, GetAttr, GetXattr, Ioctl, IoctlFlags, Link, ListXattr, Lookup,
    Lseek, Mkdir, Mknod, OFlags, Open, OpenDir, Read, ReadDir, ReadLink, Release, ReleaseDir,
    RemoveXattr, Rename, RenameFlags, Rmdir, SeekTarget, SetAttr, SetIdBits, SetXattr, StatxFlags,
    StatxRequest, Symlink, TimeChange, Tmpfile, Unlink, Write, WriteFlags, XattrFlags,
};
use crate::{FileHandle, NodeId, RequestId};

const GETATTR_FH: u32 = 1;
const FSYNC_DATA_ONLY: u32 = 1;
const OPEN_KILL_SUIDGID: u32 = 1;
const WRITE_CACHE: u32 = 1;
const WRITE_KILL_SUIDGID: u32 = 1 << 2;
const SETXATTR_ACL_KILL_SGID: u32 = 1;
const IOCTL_COMPAT: u32 = 1;
const IOCTL_32BIT: u32 = 1 << 3;
const IOCTL_DIR: u32 = 1 << 4;

/// What the agreement at INIT changes about requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetxattrShape {
    Short,
    Extended,
}

/// The shapes of requests that both sides agreed on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dialect {
    pub(crate) setxattr: SetxattrShape,
}

/// Understands one request.
pub(crate) fn parse<'a>(
    opcode: Opcode,
    header: &InHeader,
    body: Body<'a>,
    dialect: Dialect,
) -> Result<Operation<'a>, Malformed> {
    let node = NodeId(header.nodeid);
    Ok(match opcode {
        Opcode::Lookup => {
            let name = body.payload().name()?;
            Operation::Lookup(Lookup { parent: node, name })
        }
        Opcode::Forget => {
            let (fixed, _) = body.split::<ForgetIn>()?;
            Operation::Forget(Forget {
                node,
                lookups: fixed.nlookup,
            })
        }
        Opcode::BatchForget => parse_batch_forget(body)?,
        Opcode::Getattr => {
            let (fixed, _) = body.split::<GetattrIn>()?;
            let handle = (fixed.getattr_flags & GETATTR_FH != 0).then_some(FileHandle(fixed.fh));
            Operation::Getattr(GetAttr { node, handle })
        }
        Opcode::Setattr => Operation::Setattr(parse_setattr(node, body)?),
        Opcode::Statx => {
            let (fixed, _) = body.split::<StatxIn>()?;
            let handle = (fixed.getattr_flags & GETATTR_FH != 0).then_some(FileHandle(fixed.fh));
            let wanted = StatxFlags::from_bits_retain(fixed.sx_mask);
            Operation::Statx(StatxRequest {
                node,
                handle,
                wanted,
            })
        }
        Opcode::Readlink => Operation::Readlink(ReadLink { node }),
        Opcode::Symlink => {
            let mut payload = body.payload();
            let name = payload.name()?;
            let target = payload.c_string()?;
            Operation::Symlink(Symlink {
                parent: node,
                name,
                target,
            })
        }
        Opcode::Mknod => {
            let (fixed, mut payload) = body.split::<MknodIn>()?;
            Operation::Mknod(Mknod {
                parent: node,
                name: payload.name()?,
                mode: fixed.mode,
                rdev: fixed.rdev,
                umask: fixed.umask,
            })
        }
        Opcode::Mkdir => {
            let (fixed, mut payload) = body.split::<MkdirIn>()?;
            let name = payload.name()?;
            Operation::Mkdir(Mkdir {
                parent: node,
                name,
                mode: fixed.mode,
                umask: fixed.umask,
            })
        }
        Opcode::Unlink => {
            let name = body.payload().name()?;
            Operation::Unlink(Unlink { parent: node, name })
        }
        Opcode::Rmdir => Operation::Rmdir(Rmdir {
            parent: node,
            name: body.payload().name()?,
        }),
        Opcode::Rename => {
            let (fixed, payload) = body.split::<RenameIn>()?;
            let target = (NodeId(fixed.newdir), RenameFlags::empty());
            Operation::Rename(parse_rename(node, target, payload)?)
        }
        Opcode::Rename2 => {
            let (fixed, payload) = body.split::<Rename2In>()?;
            let flags = RenameFlags::from_bits_retain(fixed.flags);
            Operation::Rename(parse_rename(node, (NodeId(fixed.newdir), flags), payload)?)
        }
        Opcode::Link => {
            let (fixed, mut payload) = body.split::<LinkIn>()?;
            Operation::Link(Link {
                node: NodeId(fixed.oldnodeid),
                new_parent: node,
                new_name: payload.name()?,
            })
        }
        Opcode::Open => {
            let (fixed, _) = body.split::<OpenIn>()?;
            Operation::Open(Open {
                node,
                flags: open_flags(fixed.flags),
                set_id: set_id(fixed.open_flags & OPEN_KILL_SUIDGID),
            })
        }
        Opcode::Opendir => {
            let (fixed, _) = body.split::<OpenIn>()?;
            Operation::Opendir(OpenDir {
                node,
                flags: open_flags(fixed.flags),
            })
        }
        Opcode::Create => {
            let (fixed, mut payload) = body.split::<CreateIn>()?;
            Operation::Create(Create {
                parent: node,
                name: payload.name()?,
                mode: fixed.mode,
                flags: open_flags(fixed.flags),
                umask: fixed.umask,
                set_id: set_id(fixed.open_flags & OPEN_KILL_SUIDGID),
            })
        }
        Opcode::Tmpfile => {
            // The name that follows is a placeholder of the kernel's.
            let (fixed, _) = body.split::<CreateIn>()?;
            Operation::Tmpfile(Tmpfile {
                parent: node,
                mode: fixed.mode,
                flags: open_flags(fixed.flags),
                umask: fixed.umask,
            })
        }
        Opcode::Read => {
            let (fixed, _) = body.split::<ReadIn>()?;
            let request = Read {
                node,
                handle: FileHandle(fixed.fh),
                offset: fixed.offset,
                flags: open_flags(fixed.flags),
            };
            Operation::Read {
                request,
                size: fixed.size,
            }
        }
        Opcode::Write => {
            let (fixed, mut payload) = body.split::<WriteIn>()?;
            Operation::Write(Write {
                node,
                handle: FileHandle(fixed.fh),
                offset: fixed.offset,
                data: payload.take(fixed.size as usize)?,
                flags: open_flags(fixed.flags),
                write_flags: WriteFlags {
                    from_cache: fixed.write_flags & WRITE_CACHE != 0,
                    clear_set_id: fixed.write_flags & WRITE_KILL_SUIDGID != 0,
                },
            })
        }
        Opcode::Statfs => Operation::Statfs(node),
        Opcode::Release => {
            let (fixed, _) = body.split::<ReleaseIn>()?;
            let (handle, flags) = (FileHandle(fixed.fh), open_flags(fixed.flags));
            Operation::Release(Release {
                node,
                handle,
                flags,
            })
        }
        Opcode::Releasedir => {
            let (fixed, _) = body.split::<ReleaseIn>()?;
            let (handle, flags) = (FileHandle(fixed.fh), open_flags(fixed.flags));
            Operation::Releasedir(ReleaseDir {
                node,
                handle,
                flags,
            })
        }
        Opcode::Fsync => {
            let (fixed, _) = body.split::<FsyncIn>()?;
            let kind = fsync_kind(fixed.fsync_flags);
            Operation::Fsync(Fsync {
                node,
                handle: FileHandle(fixed.fh),
                kind,
            })
        }
        Opcode::Fsyncdir => {
            let (fixed, _) = body.split::<FsyncIn>()?;
            let kind = fsync_kind(fixed.fsync_flags);
            Operation::Fsyncdir(FsyncDir {
                node,
                handle: FileHandle(fixed.fh),
                kind,
            })
        }
        Opcode::Setxattr => Operation::Setxattr(parse_setxattr(node, body, dialect)?),
        Opcode::Getxattr => {
            let (fixed, mut payload) = body.split::<GetxattrIn>()?;
            let name = payload.c_string()?;
            Operation::Getxattr {
                request: GetXattr { node, name },
                size: fixed.size,
            }
        }
        Opcode::Listxattr => {
            let (fixed, _) = body.split::<GetxattrIn>()?;
            Operation::Listxattr {
                request: ListXattr { node },
                size: fixed.size,
            }
        }
        Opcode::Removexattr => {
            let name = body.payload().c_string()?;
            Operation::Removexattr(RemoveXattr { node, name })
        }
        Opcode::Flush => {
            let (fixed, _) = body.split::<FlushIn>()?;
            Operation::Flush(Flush {
                node,
                handle: FileHandle(fixed.fh),
            })
        }
        Opcode::Readdir => {
            let (request, size) = parse_readdir(node, body)?;
            Operation::Readdir { request, size }
        }
        Opcode::Readdirplus => {
            let (request, size) = parse_readdir(node, body)?;
            Operation::Readdirplus { request, size }
        }
        Opcode::Access => {
            let (fixed, _) = body.split::<AccessIn>()?;
            let wanted = Access::from_bits_retain(fixed.mask);
            Operation::Access(AccessCheck { node, wanted })
        }
        Opcode::Interrupt => {
            let (fixed, _) = body.split::<InterruptIn>()?;
            Operation::Interrupt(RequestId(fixed.unique))
        }
        Opcode::Bmap => {
            let (fixed, _) = body.split::<BmapIn>()?;
            Operation::Bmap(Bmap {
                node,
                block: fixed.block,
                block_size: fixed.blocksize,
            })
        }
        Opcode::Destroy => Operation::Destroy,
        Opcode::Ioctl => parse_ioctl(node, body)?,
        Opcode::Fallocate => {
            let (fixed, _) = body.split::<FallocateIn>()?;
            Operation::Fallocate(Fallocate {
                node,
                handle: FileHandle(fixed.fh),
                offset: fixed.offset,
                length: fixed.length,
                mode: FallocateFlags::from_bits_retain(fixed.mode),
            })
        }
        Opcode::Lseek => Operation::Lseek(parse_lseek(node, body)?),
        Opcode::CopyFileRange => {
            let mut request = parse_copy(node, body)?;
            request.length = request.length.min(u64::from(u32::MAX));
            Operation::CopyFileRange {
                request,
                width: CopiedWidth::Bits32,
            }
        }
        Opcode::CopyFileRange64 => {
            let request = parse_copy(node, body)?;
            Operation::CopyFileRange {
                request,
                width: CopiedWidth::Bits64,
            }
        }
        Opcode::Syncfs => Operation::Syncfs(node),
        Opcode::NotifyReply => Operation::NotifyReply,
        // INIT is answered before requests are served, so a second one is a
        // fault.
        Opcode::Init => return Err(Malformed("it is a second INIT")),
        // Locks stay in the kernel, and files here are always ready.
        Opcode::Getlk | Opcode::Setlk | Opcode::Setlkw | Opcode::Poll => Operation::Unsupported,
    })
}

fn open_flags(bits: u32) -> OFlags {
    OFlags::from_bits_retain(bits)
}

fn set_id(bit: u32) -> SetIdBits {
    if bit == 0 {
        SetIdBits::Keep
    } else {
        SetIdBits::Clear
    }
}

fn fsync_kind(flags: u32) -> FsyncKind {
    if flags & FSYNC_DATA_ONLY == 0 {
        FsyncKind::Full
    } else {
        FsyncKind::DataOnly
    }
}

fn parse_batch_forget(body: Body<'_>) -> Result<Operation<'_>, Malformed> {
    let (fixed, mut payload) = body.split::<BatchForgetIn>()?;
    let bytes = (fixed.count as usize)
        .checked_mul(ForgetOne::SIZE)
        .ok_or(Malformed("it forgets too many nodes"))?;
    Ok(Operation::BatchForget(ForgetList::new(
        payload.take(bytes)?,
    )))
}

fn parse_rename<'a>(
    parent: NodeId,
    (new_parent, flags): (NodeId, RenameFlags),
    mut payload: Reader<'a>,
) -> Result<Rename<'a>, Malformed> {
    let name = payload.name()?;
    let new_name = payload.name()?;
    Ok(Rename {
        parent,
        name,
        new_parent,
        new_name,
        flags,
    })
}

fn parse_setattr(node: NodeId, body: Body<'_>) -> Result<SetAttr, Malformed> {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const FH: u32 = 1 << 6;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const CTIME: u32 = 1 << 10;
    const KILL_SUIDGID: u32 = 1 << 11;

    let (fixed, _) = body.split::<SetattrIn>()?;
    let has = |bit: u32| fixed.valid & bit != 0;
    let time = |now: u32, at: u32, stamp: Timestamp| {
        if has(now) {
            Some(TimeChange::Now)
        } else {
            has(at).then_some(TimeChange::At(stamp))
        }
    };
    let atime = Timestamp {
        seconds: fixed.atime,
        nanoseconds: fixed.atimensec,
    };
    let mtime = Timestamp {
        seconds: fixed.mtime,
        nanoseconds: fixed.mtimensec,
    };
    let ctime = Timestamp {
        seconds: fixed.ctime,
        nanoseconds: fixed.ctimensec,
    };
    Ok(SetAttr {
        node,
        handle: has(FH).then_some(FileHandle(fixed.fh)),
        mode: has(MODE).then_some(fixed.mode),
        uid: has(UID).then_some(fixed.uid),
        gid: has(GID).then_some(fixed.gid),
        size: has(SIZE).then_some(fixed.size),
        atime: time(ATIME_NOW, ATIME, atime),
        mtime: time(MTIME_NOW, MTIME, mtime),
        ctime: has(CTIME).then_some(ctime),
        set_id: set_id(fixed.valid & KILL_SUIDGID),
    })
}

fn parse_setxattr(
    node: NodeId,
    body: Body<'_>,
    dialect: Dialect,
) -> Result<SetXattr<'_>, Malformed> {
    let (fixed, mut payload) = match dialect.setxattr {
        SetxattrShape::Extended => body.split::<SetxattrInExt>()?,
        SetxattrShape::Short => {
            let (short, payload) = body.split::<SetxattrIn>()?;
            let SetxattrIn { size, flags } = short;
            (
                SetxattrInExt {
                    size,
                    flags,
                    ..SetxattrInExt::default()
                },
                payload,
            )
        }
    };
    Ok(SetXattr {
        node,
        name: payload.c_string()?,
        value: payload.take(fixed.size as usize)?,
        flags: XattrFlags::from_bits_retain(fixed.flags),
        set_id: set_id(fixed.setxattr_flags & SETXATTR_ACL_KILL_SGID),
    })
}

fn parse_readdir(node: NodeId, body: Body<'_>) -> Result<(ReadDir, u32), Malformed> {
    let (fixed, _) = body.split::<ReadIn>()?;
    let request = ReadDir {
        node,
        handle: FileHandle(fixed.fh),
        offset: fixed.offset,
    };
    Ok((request, fixed.size))
}

fn parse_ioctl(node: NodeId, body: Body<'_>) -> Result<Operation<'_>, Malformed> {
    let (fixed, mut payload) = body.split::<IoctlIn>()?;
    let request = Ioctl {
        node,
        handle: FileHandle(fixed.fh),
        command: fixed.cmd,
        argument: fixed.arg,
        data: payload.take(fixed.in_size as usize)?,
        flags: IoctlFlags {
            directory: fixed.flags & IOCTL_DIR != 0,
            caller_is_32bit: fixed.flags & (IOCTL_COMPAT | IOCTL_32BIT) != 0,
        },
    };
    Ok(Operation::Ioctl {
        request,
        out_size: fixed.out_size,
    })
}

fn parse_lseek(node: NodeId, body: Body<'_>) -> Result<Lseek, Malformed> {
    let (fixed, _) = body.split::<LseekIn>()?;
    let target = match i32::try_from(fixed.whence) {
        Ok(libc::SEEK_DATA) => SeekTarget::Data,
        Ok(libc::SEEK_HOLE) => SeekTarget::Hole,
        _ => return Err(Malformed("it seeks neither data nor a hole")),
    };
    Ok(Lseek {
        node,
        handle: FileHandle(fixed.fh),
        offset: fixed.offset,
        target,
    })
}

fn parse_copy(node: NodeId, body: Body<'_>) -> Result<CopyFileRange, Malformed> {
    let (fixed, _) = body.split::<CopyFileRangeIn>()?;
    Ok(CopyFileRange {
        node_in: node,
        handle_in: FileHandle(fixed.fh_in),
        offset_in: fixed.off_in,
        node_out: NodeId(fixed.nodeid_out),
        handle_out: FileHandle(fixed.fh_out),
        offset_out: fixed.off_out,
        length: fixed.len,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENDED: Dialect = Dialect {
        setxattr: SetxattrShape::Extended,
    };
    const SHORT: Dialect = Dialect {
        setxattr: SetxattrShape::Short,
    };

    /// A body that every operation accepts: zeroes up to `head`, then names.
    fn body(opcode: Opcode) -> Vec<u8> {
        let (head, tail): (usize, &[u8]) = match opcode {
            Opcode::Lookup | Opcode::Unlink | Opcode::Rmdir | Opcode::Removexattr => (0, b"a\0"),
            Opcode::Symlink => (0, b"a\0b\0"),
            Opcode::Mknod | Opcode::Create => (16, b"a\0"),
            Opcode::Tmpfile => (16, b"/\0"),
            Opcode::Mkdir | Opcode::Link | Opcode::Getxattr => (8, b"a\0"),
            Opcode::Rename => (8, b"a\0b\0"),
            Opcode::Rename2 => (16, b"a\0b\0"),
            Opcode::Setxattr => (16, b"a\0"),
            Opcode::Forget | Opcode::Listxattr | Opcode::Access | Opcode::Interrupt => (8, b""),
            Opcode::BatchForget | Opcode::Open | Opcode::Opendir | Opcode::Syncfs => (8, b""),
            Opcode::Getattr | Opcode::Fsync | Opcode::Fsyncdir | Opcode::Bmap => (16, b""),
            Opcode::Setattr => (88, b""),
            Opcode::Statx | Opcode::Release | Opcode::Releasedir => (24, b""),
            Opcode::Flush | Opcode::Lseek => (24, b""),
            Opcode::Read | Opcode::Write | Opcode::Readdir | Opcode::Readdirplus => (40, b""),
            Opcode::Ioctl | Opcode::Fallocate => (32, b""),
            Opcode::CopyFileRange | Opcode::CopyFileRange64 => (56, b""),
            _ => (0, b""),
        };
        let mut bytes = vec![0; head];
        bytes.extend_from_slice(tail);
        if opcode == Opcode::Lseek {
            bytes[16..20].copy_from_slice(&3u32.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn every_operation_parses_and_every_truncation_is_an_error() {
        for opcode in Opcode::ALL {
            let header = InHeader {
                nodeid: 1,
                ..InHeader::default()
            };
            let whole = body(*opcode);
            let parsed = parse(*opcode, &header, Body::whole(&whole), EXTENDED);
            assert_eq!(
                parsed.is_err(),
                *opcode == Opcode::Init,
                "{opcode:?}: {parsed:?}"
            );
            // These read nothing, or not all of their body.
            let reads = match opcode {
                Opcode::Tmpfile => 16,
                Opcode::Syncfs => 0,
                _ => whole.len(),
            };
            for end in 0..reads {
                let parsed = parse(*opcode, &header, Body::whole(&whole[..end]), EXTENDED);
                assert!(parsed.is_err(), "{opcode:?} of {end} bytes: {parsed:?}");
            }
        }
    }

    #[test]
    fn inner_lengths_are_checked() {
        let header = InHeader::default();
        for (opcode, at) in [
            (Opcode::Write, 16),
            (Opcode::Setxattr, 0),
            (Opcode::Ioctl, 24),
            (Opcode::BatchForget, 0),
        ] {
            let mut bytes = body(opcode);
            bytes[at..at + 4].copy_from_slice(&u32::MAX.to_ne_bytes());
            assert!(
                parse(opcode, &header, Body::whole(&bytes), EXTENDED).is_err(),
                "{opcode:?}"
            );
        }
    }

    #[test]
    fn hostile_names_are_refused() {
        let header = InHeader::default();
        for name in [&b"\0"[..], b"a/b\0", b"a"] {
            assert!(parse(Opcode::Lookup, &header, Body::whole(name), SHORT).is_err());
        }
    }

    #[test]
    fn setxattr_has_two_shapes() {
        let mut bytes = vec![0; 8];
        bytes[..4].copy_from_slice(&2u32.to_ne_bytes());
        bytes.extend_from_slice(b"user.a\0xy");
        let parsed = parse(
            Opcode::Setxattr,
            &InHeader::default(),
            Body::whole(&bytes),
            SHORT,
        );
        let Ok(Operation::Setxattr(request)) = parsed else {
            panic!("{parsed:?}")
        };
        assert_eq!((request.name, request.value), (&b"user.a"[..], &b"xy"[..]));
    }

    #[test]
    fn setattr_takes_only_what_is_valid() {
        let mut bytes = vec![0; 88];
        bytes[..4].copy_from_slice(&(1u32 << 3 | 1 << 7 | 1 << 4).to_ne_bytes());
        bytes[16..24].copy_from_slice(&77u64.to_ne_bytes());
        let parsed = parse(
            Opcode::Setattr,
            &InHeader::default(),
            Body::whole(&bytes),
            SHORT,
        );
        let Ok(Operation::Setattr(request)) = parsed else {
            panic!("{parsed:?}")
        };
        assert_eq!(request.size, Some(77));
        assert_eq!(request.atime, Some(TimeChange::Now));
        assert_eq!(
            (request.mode, request.mtime, request.handle),
            (None, None, None)
        );
    }
}
