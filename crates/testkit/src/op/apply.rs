//! Operations on a mounted directory, by system calls.

use super::{EndOfFile, NodeKind, Op, OpPath, RenameHow, Span, XattrHow};
use crate::content::content;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps,
    Uid, XattrFlags, chmodat, chownat, copy_file_range, fallocate, fstat, fsync, ftruncate, linkat,
    lremovexattr, lsetxattr, makedev, mkdirat, mknodat, openat, renameat_with, symlinkat, syncfs,
    unlinkat, utimensat,
};
use rustix::io::{Errno, pwrite};
use std::ffi::OsStr;
use std::fs::File;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Allows every permission bit that an operation asks for. This holds for the
/// whole process, and is never undone.
pub fn clear_umask() {
    rustix::process::umask(Mode::empty());
}

/// Does `op` on the tree whose root is mounted at `root`. All operations are
/// possible only if the process has an empty umask ([`clear_umask`]) and root's
/// rights. [`Op::Remount`] does nothing here.
///
/// # Errors
/// What the system call says.
pub fn apply_to_path(op: &Op, root: &Path) -> Result<(), Errno> {
    let at = |path: &OpPath| root.join(OsStr::from_bytes(&path.0));
    match op {
        Op::Create { path, mode } => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            openat(CWD, at(path), flags, Mode::from_raw_mode(*mode)).map(drop)
        }
        Op::Mkdir { path, mode } => mkdirat(CWD, at(path), Mode::from_raw_mode(*mode)),
        Op::Symlink { path, target } => symlinkat(OsStr::from_bytes(&target.0), CWD, at(path)),
        Op::Link { from, to } => linkat(CWD, at(from), CWD, at(to), AtFlags::empty()),
        Op::Unlink { path } => unlinkat(CWD, at(path), AtFlags::empty()),
        Op::Rmdir { path } => unlinkat(CWD, at(path), AtFlags::REMOVEDIR),
        Op::Rename { from, to, how } => {
            let flags = match how {
                RenameHow::Replace => RenameFlags::empty(),
                RenameHow::NoReplace => RenameFlags::NOREPLACE,
                RenameHow::Exchange => RenameFlags::EXCHANGE,
                RenameHow::Whiteout => RenameFlags::WHITEOUT,
            };
            renameat_with(CWD, at(from), CWD, at(to), flags)
        }
        Op::Chmod { path, mode } => {
            chmodat(CWD, at(path), Mode::from_raw_mode(*mode), AtFlags::empty())
        }
        Op::Chown { path, uid, gid } => chownat(
            CWD,
            at(path),
            uid.map(Uid::from_raw),
            gid.map(Gid::from_raw),
            AtFlags::SYMLINK_NOFOLLOW,
        ),
        Op::SetModified { path, time } => {
            let times = Timestamps {
                last_access: Timespec {
                    tv_sec: 1,
                    tv_nsec: 2,
                },
                last_modification: Timespec {
                    tv_sec: time.seconds,
                    tv_nsec: i64::from(time.nanoseconds),
                },
            };
            utimensat(CWD, at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
        }
        Op::Mknod { path, kind, mode } => {
            let (file_type, device) = match *kind {
                NodeKind::Regular => (FileType::RegularFile, 0),
                NodeKind::Fifo => (FileType::Fifo, 0),
                NodeKind::Socket => (FileType::Socket, 0),
                NodeKind::CharDevice(major, minor) => {
                    (FileType::CharacterDevice, makedev(major, minor))
                }
                NodeKind::BlockDevice(major, minor) => {
                    (FileType::BlockDevice, makedev(major, minor))
                }
            };
            mknodat(CWD, at(path), file_type, Mode::from_raw_mode(*mode), device)
        }
        Op::SetXattr { .. } | Op::RemoveXattr { .. } => change_xattr(op, at),
        Op::LinkTmpfile { .. } => link_tmpfile(op, at),
        Op::Fsync { path } => fsync(open(at(path), OFlags::RDONLY)?),
        Op::Sync => syncfs(open(root.to_owned(), OFlags::RDONLY)?),
        Op::Remount => Ok(()),
        Op::Subvolume { .. }
        | Op::Snapshot { .. }
        | Op::DeleteSubvolume { .. }
        | Op::SendReceive { .. } => super::subvolumes::apply(op, at),
        Op::Write { .. }
        | Op::Append { .. }
        | Op::Truncate { .. }
        | Op::PunchHole { .. }
        | Op::Allocate { .. }
        | Op::ZeroRange { .. }
        | Op::Clone { .. }
        | Op::Copy { .. } => change_content(op, at),
    }
}

fn change_content(op: &Op, at: impl Fn(&OpPath) -> PathBuf) -> Result<(), Errno> {
    match op {
        Op::Write { path, span, seed } => {
            let file = open(at(path), OFlags::WRONLY)?;
            write_all(&file, &content(*seed, span.length as usize), span.offset)
        }
        Op::Append { path, length, seed } => {
            let file = open(at(path), OFlags::WRONLY | OFlags::APPEND)?;
            // With O_APPEND the offset does not count.
            write_all(&file, &content(*seed, *length as usize), 0)
        }
        Op::Truncate { path, size } => ftruncate(open(at(path), OFlags::WRONLY)?, *size),
        Op::PunchHole { path, span } => {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let file = open(at(path), OFlags::WRONLY)?;
            fallocate(file, flags, span.offset, span.length)
        }
        Op::Allocate { path, span, end } => {
            let file = open(at(path), OFlags::WRONLY)?;
            fallocate(file, end.flag(), span.offset, span.length)
        }
        Op::ZeroRange { path, span, end } => {
            let file = open(at(path), OFlags::WRONLY)?;
            let flags = FallocateFlags::ZERO_RANGE | end.flag();
            fallocate(file, flags, span.offset, span.length)
        }
        Op::Clone {
            from,
            span,
            to,
            to_offset,
        } => {
            let source = File::from(open(at(from), OFlags::RDONLY)?);
            let target = File::from(open(at(to), OFlags::WRONLY)?);
            let length = NonZeroU64::new(span.length).ok_or(Errno::INVAL)?;
            reflink_copy::ReflinkBlockBuilder::new(&source, &target, length)
                .from_offset(span.offset)
                .to_offset(*to_offset)
                .reflink_block()
                .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
        Op::Copy {
            from,
            span,
            to,
            to_offset,
        } => {
            let source = open(at(from), OFlags::RDONLY)?;
            let target = open(at(to), OFlags::WRONLY)?;
            copy(&source, *span, &target, *to_offset)
        }
        _ => Err(Errno::INVAL),
    }
}

fn change_xattr(op: &Op, at: impl Fn(&OpPath) -> PathBuf) -> Result<(), Errno> {
    match op {
        Op::SetXattr {
            path,
            name,
            value,
            how,
        } => {
            let flags = match how {
                XattrHow::Any => XattrFlags::empty(),
                XattrHow::Create => XattrFlags::CREATE,
                XattrHow::Replace => XattrFlags::REPLACE,
            };
            lsetxattr(at(path), OsStr::from_bytes(&name.0), &value.0, flags)
        }
        Op::RemoveXattr { path, name } => lremovexattr(at(path), OsStr::from_bytes(&name.0)),
        _ => Err(Errno::INVAL),
    }
}

fn link_tmpfile(op: &Op, at: impl Fn(&OpPath) -> PathBuf) -> Result<(), Errno> {
    let Op::LinkTmpfile {
        directory,
        path,
        mode,
        length,
        seed,
    } = op
    else {
        return Err(Errno::INVAL);
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(CWD, at(directory), flags, Mode::from_raw_mode(*mode))?;
    write_all(&file, &content(*seed, *length as usize), 0)?;
    linkat(&file, "", CWD, at(path), AtFlags::EMPTY_PATH)
}

impl EndOfFile {
    const fn flag(self) -> FallocateFlags {
        match self {
            Self::Extend => FallocateFlags::empty(),
            Self::Keep => FallocateFlags::KEEP_SIZE,
        }
    }
}

/// Opens what is there. A pipe or device answers at once. Programs that other
/// tests start meanwhile do not inherit the descriptor, because it would keep
/// the mount busy.
fn open(path: PathBuf, flags: OFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty())
}

fn write_all(file: &OwnedFd, mut data: &[u8], mut offset: u64) -> Result<(), Errno> {
    while !data.is_empty() {
        let count = pwrite(file, data, offset)?;
        data = &data[count..];
        offset += count as u64;
    }
    Ok(())
}

fn copy(source: &OwnedFd, span: Span, target: &OwnedFd, to_offset: u64) -> Result<(), Errno> {
    let size = fstat(source)?.st_size as u64;
    let mut left = span.length.min(size.saturating_sub(span.offset));
    let (mut from, mut to) = (span.offset, to_offset);
    loop {
        let length = usize::try_from(left).unwrap_or(usize::MAX);
        let count = copy_file_range(source, Some(&mut from), target, Some(&mut to), length)?;
        left -= count as u64;
        if count == 0 || left == 0 {
            return Ok(());
        }
    }
}
