//! Operations on an open volume, by the library.
//!
//! Owns what the kernel does before it asks a file system: resolving paths, and
//! the checks of the VFS for a caller with all rights.

use butterfs::{
    Access, Attributes, Error, FallocateMode, Filesystem, FsError, Inode, InodeId, NewInode,
    OldName, Owner, Place, Privileges, RenameMode, SetAttributes, SetMode, SetTime, Timespec,
    Volume,
};
use butterfs_testkit::Op;
use butterfs_testkit::content::content;
use butterfs_testkit::op::{EndOfFile, NodeKind, OpPath, RenameHow, Span, XattrHow};
use rustix::io::Errno;
use std::sync::Arc;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFIFO: u32 = 0o010_000;
const SECTOR: u64 = 4096;

#[path = "subvolumes.rs"]
mod subvolumes;

/// Does `op` on the root of `volume`. [`Op::Remount`] does nothing here.
///
/// # Errors
/// What the system call would say.
pub fn apply_to_library(op: &Op, volume: &Volume) -> Result<(), Errno> {
    let caller = Caller {
        volume,
        files: volume.files(),
    };
    caller.apply(op).map_err(|Said(errno)| errno)
}

/// The answer of a system call that failed.
struct Said(Errno);

impl From<FsError> for Said {
    fn from(error: FsError) -> Self {
        let errno = Errno::from_raw_os_error(error.errno());
        if matches!(errno, Errno::IO | Errno::ROFS) {
            eprintln!("{error}");
        }
        Self(errno)
    }
}

impl From<Error> for Said {
    fn from(error: Error) -> Self {
        match error {
            Error::Fs(error) | Error::At { error, .. } => error.into(),
            Error::Store(error) => FsError::Store(error).into(),
            other => panic!("no error of a file operation: {other}"),
        }
    }
}

/// What the VFS says by itself.
const fn refuse<T>(errno: Errno) -> Answer<T> {
    Err(Said(errno))
}

type Answer<T> = Result<T, Said>;

struct Caller<'v> {
    volume: &'v Volume,
    files: &'v Filesystem,
}

impl Caller<'_> {
    fn apply(&self, op: &Op) -> Answer<()> {
        match op {
            Op::Create { path, mode } => self.make(path, S_IFREG | mode, 0),
            Op::Mkdir { path, mode } => self.make(path, S_IFDIR | mode & 0o1777, 0),
            Op::Symlink { path, target } => {
                if target.0.is_empty() {
                    return refuse(Errno::NOENT);
                }
                let (parent, name) = self.free_place(path)?;
                let new = NewInode::symlink(&target.0, Owner::default());
                Ok(self.files.create(parent, name, &new).map(drop)?)
            }
            Op::Mknod { path, kind, mode } => {
                let device = |major: u32, minor: u32| u64::from(major) << 20 | u64::from(minor);
                let (bits, rdev) = match *kind {
                    NodeKind::Regular => (S_IFREG, 0),
                    NodeKind::Fifo => (S_IFIFO, 0),
                    NodeKind::Socket => (0o140_000, 0),
                    NodeKind::CharDevice(major, minor) => (0o020_000, device(major, minor)),
                    NodeKind::BlockDevice(major, minor) => (0o060_000, device(major, minor)),
                };
                self.make(path, bits | mode, rdev)
            }
            Op::Link { from, to } => {
                let id = self.volume.resolve(&from.0)?;
                let (parent, name) = self.free_place(to)?;
                if self.attributes(id)?.is_directory() {
                    return refuse(Errno::PERM);
                }
                Ok(self.files.link(id, parent, name)?)
            }
            Op::Unlink { path } => {
                let (parent, name) = self.place(path)?;
                Ok(self.files.unlink(parent, name)?)
            }
            Op::Rmdir { path } => {
                let (parent, name) = self.place(path)?;
                Ok(self.files.rmdir(parent, name)?)
            }
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::LinkTmpfile { .. } => self.link_tmpfile(op),
            Op::SetXattr { .. } | Op::RemoveXattr { .. } => self.change_xattr(op),
            Op::Chmod { .. } | Op::Chown { .. } | Op::SetModified { .. } => {
                self.change_attributes(op)
            }
            Op::Fsync { path } => {
                let id = self.follow(path)?;
                let attributes = self.files.attributes(id)?;
                match attributes.mode & S_IFMT {
                    S_IFREG => Ok(self.files.fsync(&*self.files.inode(id)?)?),
                    S_IFDIR => Ok(self.volume.sync()?),
                    S_IFIFO => refuse(Errno::INVAL),
                    _ => refuse(Errno::NXIO),
                }
            }
            Op::Sync => {
                self.files.clean_all()?;
                Ok(self.volume.sync()?)
            }
            Op::Remount => Ok(()),
            Op::Subvolume { .. }
            | Op::Snapshot { .. }
            | Op::DeleteSubvolume { .. }
            | Op::SendReceive { .. } => subvolumes::apply(self, op),
            Op::Write { .. }
            | Op::Append { .. }
            | Op::Truncate { .. }
            | Op::PunchHole { .. }
            | Op::Allocate { .. }
            | Op::ZeroRange { .. }
            | Op::Clone { .. }
            | Op::Copy { .. } => self.change_content(op),
        }
    }

    fn follow(&self, path: &OpPath) -> Answer<InodeId> {
        Ok(self.volume.resolve([&path.0[..], b"/"].concat())?)
    }

    fn attributes(&self, id: InodeId) -> Answer<Attributes> {
        Ok(self.files.attributes(id)?)
    }

    /// A name and the directory that it is or would be in.
    fn place<'p>(&self, path: &'p OpPath) -> Answer<(InodeId, &'p [u8])> {
        let (parent, name) = self.volume.resolve_parent(&path.0)?;
        if !self.attributes(parent)?.is_directory() {
            return refuse(Errno::NOTDIR);
        }
        Ok((parent, name))
    }

    fn free_place<'p>(&self, path: &'p OpPath) -> Answer<(InodeId, &'p [u8])> {
        let (parent, name) = self.place(path)?;
        match self.files.lookup(parent, name) {
            Ok(_) => refuse(Errno::EXIST),
            Err(FsError::NotFound) => Ok((parent, name)),
            Err(error) => Err(error.into()),
        }
    }

    fn make(&self, path: &OpPath, mode: u32, rdev: u64) -> Answer<()> {
        let (parent, name) = self.free_place(path)?;
        let mut new = NewInode::new(mode, Owner::default());
        new.rdev = rdev;
        Ok(self.files.create(parent, name, &new).map(drop)?)
    }

    /// The child of `above` on the way down to `below`; `None` if `below` does
    /// not lie there.
    fn step_towards(&self, above: InodeId, below: InodeId) -> Answer<Option<InodeId>> {
        let mut at = below;
        while at != self.files.root() {
            let parent = self.files.parent(at)?;
            if parent == above {
                return Ok(Some(at));
            }
            at = parent;
        }
        Ok(None)
    }

    fn rename(&self, from: &OpPath, to: &OpPath, how: RenameHow) -> Answer<()> {
        let (from_dir, from_name) = self.place(from)?;
        let (to_dir, to_name) = self.place(to)?;
        let moved = self.files.lookup(from_dir, from_name)?.inode;
        let replaced = match self.files.lookup(to_dir, to_name) {
            Ok(target) => Some(target.inode),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let (mode, old_name) = match how {
            RenameHow::Replace => (RenameMode::Replace, OldName::Free),
            RenameHow::NoReplace => (RenameMode::NoReplace, OldName::Free),
            RenameHow::Exchange => (RenameMode::Exchange, OldName::Free),
            RenameHow::Whiteout => (RenameMode::Replace, OldName::Whiteout(Owner::default())),
        };
        match (how, replaced) {
            (RenameHow::NoReplace, Some(_)) => return refuse(Errno::EXIST),
            (RenameHow::Exchange, None) => return refuse(Errno::NOENT),
            _ => {}
        }
        if self.step_towards(from_dir, to_dir)? == Some(moved) {
            return refuse(Errno::INVAL);
        }
        let above = self.step_towards(to_dir, from_dir)?;
        if above.is_some() && above == replaced {
            return refuse(match how {
                RenameHow::Exchange => Errno::INVAL,
                _ => Errno::NOTEMPTY,
            });
        }
        if let Some(replaced) = replaced.filter(|id| *id != moved && how != RenameHow::Exchange) {
            let kinds = [moved, replaced].map(|id| Ok(self.attributes(id)?.is_directory()));
            match kinds {
                [Ok(true), Ok(false)] => return refuse(Errno::NOTDIR),
                [Ok(false), Ok(true)] => return refuse(Errno::ISDIR),
                [Err(said), _] | [_, Err(said)] => return Err(said),
                _ => {}
            }
        }
        let place = |dir, name| Place { dir, name };
        let (from, to) = (place(from_dir, from_name), place(to_dir, to_name));
        Ok(self.files.rename(from, to, mode, old_name)?)
    }

    fn link_tmpfile(&self, op: &Op) -> Answer<()> {
        let Op::LinkTmpfile {
            directory,
            path,
            mode,
            length,
            seed,
        } = op
        else {
            return refuse(Errno::INVAL);
        };
        let directory = self.follow(directory)?;
        if !self.attributes(directory)?.is_directory() {
            return refuse(Errno::NOTDIR);
        }
        let new = NewInode::new(S_IFREG | mode, Owner::default());
        let inode = self.files.create_unnamed(directory, &new)?;
        self.files.pin(&inode);
        let data = content(*seed, *length as usize);
        let written = self.volume.write_at(&inode, 0, &data);
        let linked = written.map_err(Said::from).and_then(|()| {
            let (parent, name) = self.free_place(path)?;
            Ok(self.files.link(inode.id, parent, name)?)
        });
        self.files.unpin(&inode, 1)?;
        linked
    }

    fn change_xattr(&self, op: &Op) -> Answer<()> {
        let (Op::SetXattr { path, name, .. } | Op::RemoveXattr { path, name }) = op else {
            return refuse(Errno::INVAL);
        };
        let name = &name.0[..];
        if name.is_empty() || name.len() > 255 {
            return refuse(Errno::RANGE);
        }
        let is_acl = name.starts_with(b"system.posix_acl_");
        if let Op::SetXattr { value, .. } = op
            && value.0.len() > 64 << 10
        {
            return refuse(Errno::TOOBIG);
        }
        let id = self.volume.resolve(&path.0)?;
        let kind = self.attributes(id)?.mode & S_IFMT;
        if is_acl && kind == S_IFLNK {
            return refuse(Errno::OPNOTSUPP);
        }
        if name.starts_with(b"user.") && kind != S_IFREG && kind != S_IFDIR {
            return refuse(Errno::PERM);
        }
        let inode = self.files.inode(id)?;
        match op {
            Op::SetXattr { value, how, .. } => {
                let mode = match how {
                    XattrHow::Any => SetMode::Any,
                    XattrHow::Create => SetMode::Create,
                    XattrHow::Replace => SetMode::Replace,
                };
                Ok(self.files.set_xattr(&inode, name, &value.0, mode)?)
            }
            _ => Ok(self.files.remove_xattr(&inode, name)?),
        }
    }

    fn change_attributes(&self, op: &Op) -> Answer<()> {
        let (path, set) = match op {
            Op::Chmod { path, mode } => {
                let set = SetAttributes {
                    mode: Some(*mode),
                    ..SetAttributes::default()
                };
                return Ok(self
                    .files
                    .set_attributes(&*self.files.inode(self.follow(path)?)?, &set)?);
            }
            Op::Chown { path, uid, gid } => {
                let set = SetAttributes {
                    uid: *uid,
                    gid: *gid,
                    privileges: Privileges::Drop,
                    ..SetAttributes::default()
                };
                (path, set)
            }
            Op::SetModified { path, time } => {
                let at = |seconds, nanoseconds| {
                    Some(SetTime::At(Timespec {
                        seconds,
                        nanoseconds,
                    }))
                };
                let set = SetAttributes {
                    atime: at(1, 2),
                    mtime: at(time.seconds, time.nanoseconds),
                    ..SetAttributes::default()
                };
                (path, set)
            }
            _ => return refuse(Errno::INVAL),
        };
        let inode = self.files.inode(self.volume.resolve(&path.0)?)?;
        Ok(self.files.set_attributes(&inode, &set)?)
    }

    /// What open(2) for writing gives.
    fn writable(&self, path: &OpPath) -> Answer<Arc<Inode>> {
        let id = self.follow(path)?;
        match self.attributes(id)?.mode & S_IFMT {
            S_IFREG if self.files.subvolume_access(id.tree)? == Access::ReadOnly => {
                refuse(Errno::ROFS)
            }
            S_IFREG => Ok(self.files.inode(id)?),
            S_IFDIR => refuse(Errno::ISDIR),
            _ => refuse(Errno::NXIO),
        }
    }

    /// What open(2) for reading returns. Only files have content.
    fn readable(&self, path: &OpPath) -> Answer<(Arc<Inode>, Result<(), Errno>)> {
        let id = self.follow(path)?;
        let content = match self.attributes(id)?.mode & S_IFMT {
            S_IFREG => Ok(()),
            S_IFDIR => Err(Errno::ISDIR),
            S_IFIFO => Err(Errno::INVAL),
            _ => return refuse(Errno::NXIO),
        };
        Ok((self.files.inode(id)?, content))
    }

    fn change_content(&self, op: &Op) -> Answer<()> {
        match op {
            Op::Write { path, span, seed } => {
                let data = content(*seed, span.length as usize);
                let inode = self.writable(path)?;
                Ok(self.volume.write_at(&inode, span.offset, &data)?)
            }
            Op::Append { path, length, seed } => {
                let data = content(*seed, *length as usize);
                let inode = self.writable(path)?;
                let mut rest = &data[..];
                while !rest.is_empty() {
                    let (_, count) = self.files.append(&inode, rest)?;
                    rest = &rest[count..];
                }
                Ok(())
            }
            Op::Truncate { path, size } => {
                Ok(self.files.truncate(&*self.writable(path)?, *size)?)
            }
            Op::PunchHole { path, span } => self.allocate(path, FallocateMode::PunchHole, *span),
            Op::Allocate { path, span, end } => {
                let mode = match end {
                    EndOfFile::Extend => FallocateMode::Allocate,
                    EndOfFile::Keep => FallocateMode::AllocateKeepSize,
                };
                self.allocate(path, mode, *span)
            }
            Op::ZeroRange { path, span, end } => {
                let mode = match end {
                    EndOfFile::Extend => FallocateMode::ZeroRange,
                    EndOfFile::Keep => FallocateMode::ZeroRangeKeepSize,
                };
                self.allocate(path, mode, *span)
            }
            Op::Clone {
                from,
                span,
                to,
                to_offset,
            } => self.clone_range(from, *span, (to, *to_offset)),
            Op::Copy {
                from,
                span,
                to,
                to_offset,
            } => {
                let (source, target) = self.ends(from, to)?;
                let size = self.files.attributes_of(&source)?.size;
                let length = span.length.min(size.saturating_sub(span.offset));
                self.copy(&source, Span { length, ..*span }, &target, *to_offset)
            }
            _ => refuse(Errno::INVAL),
        }
    }

    fn allocate(&self, path: &OpPath, mode: FallocateMode, span: Span) -> Answer<()> {
        let inode = self.writable(path)?;
        Ok(self
            .files
            .fallocate(&inode, mode, span.offset, span.length)?)
    }

    fn ends(&self, from: &OpPath, to: &OpPath) -> Answer<(Arc<Inode>, Arc<Inode>)> {
        let (source, content) = self.readable(from)?;
        let target = self.writable(to)?;
        if let Err(errno) = content {
            return refuse(errno);
        }
        Ok((source, target))
    }

    fn copy(
        &self,
        source: &Arc<Inode>,
        span: Span,
        target: &Arc<Inode>,
        to_offset: u64,
    ) -> Answer<()> {
        let mut done = 0;
        while done < span.length {
            let from = (source, span.offset + done);
            let to = (target, to_offset + done);
            let count = self.files.copy_range(from, to, span.length - done)?;
            assert!(count > 0, "the whole range lies in the source");
            done += count;
        }
        Ok(())
    }

    /// FICLONERANGE with the means of the library. The VFS sets its rules.
    fn clone_range(
        &self,
        from: &OpPath,
        span: Span,
        (to, to_offset): (&OpPath, u64),
    ) -> Answer<()> {
        let (source, target) = self.ends(from, to)?;
        let size = self.files.attributes_of(&source)?.size;
        let target_size = self.files.attributes_of(&target)?.size;
        let end = span.offset + span.length;
        let aligned = (span.offset | to_offset).is_multiple_of(SECTOR);
        let makes_end = end == size && to_offset + span.length >= target_size;
        if !aligned
            || span.offset >= size
            || end > size
            || !(span.length.is_multiple_of(SECTOR) || makes_end)
        {
            return refuse(Errno::INVAL);
        }
        let whole = span.length.next_multiple_of(SECTOR);
        let apart = span.offset.abs_diff(to_offset);
        if source.id == target.id && apart < whole {
            return refuse(Errno::INVAL);
        }
        self.copy(&source, span, &target, to_offset)
    }
}
