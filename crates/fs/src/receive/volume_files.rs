//! Commands about files of one subvolume, through the library.

use super::decode::decode;
use super::error::TargetError;
use crate::attr::{Privileges, SetAttributes, SetTime};
use crate::file::FallocateMode;
use crate::file::encoded::EncodedUnit;
use crate::file::read::with_scratch;
use crate::names::{
    NewInode, Owner, S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK,
};
use crate::rename::{OldName, Place, RenameMode};
use crate::xattr::SetMode;
use crate::{Filesystem, Inode};
use butterfs_format::send_stream::{
    CloneRange, Command, CommandKind, EncodedWrite, Encoding, PathTimes, SourceStamp, Special,
};
use butterfs_format::{InodeId, InodeNumber, TreeId};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Directories whose paths are remembered.
const DIRECTORIES_MAX: usize = 4096;
/// Compressed units that are written together.
const UNITS_MAX: usize = 32;
/// fallocate(2): the size stays; the range becomes a hole; becomes zeros.
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 16;

/// Files of the subvolume that is being received.
#[derive(Debug)]
pub(super) struct VolumeFiles {
    files: Arc<Filesystem>,
    tree: TreeId,
    directories: FxHashMap<Vec<u8>, InodeId>,
    /// The file that was used last.
    last: Option<(Vec<u8>, Arc<Inode>)>,
    /// The file that was cloned from last.
    cloned: Option<(TreeId, Vec<u8>, Arc<Inode>)>,
    sources: Vec<(SourceStamp, TreeId)>,
    /// Compressed units of one file that wait to be written together.
    waiting: Option<(Arc<Inode>, Vec<EncodedUnit>)>,
}

impl VolumeFiles {
    pub fn new(files: Arc<Filesystem>, tree: TreeId) -> Self {
        Self {
            files,
            tree,
            directories: FxHashMap::default(),
            last: None,
            cloned: None,
            sources: Vec::new(),
            waiting: None,
        }
    }

    pub const fn root(&self) -> InodeId {
        InodeId {
            tree: self.tree,
            number: InodeNumber::ROOT,
        }
    }

    pub fn source(&self, stamp: SourceStamp) -> Option<TreeId> {
        let found = self.sources.iter().find(|(known, _)| *known == stamp);
        found.map(|(_, tree)| *tree)
    }

    pub fn add_source(&mut self, stamp: SourceStamp, tree: TreeId) {
        self.sources.push((stamp, tree));
    }

    /// Names changed: what is known by its path is not any more.
    fn forget(&mut self) {
        self.directories.clear();
        self.last = None;
        self.cloned = None;
    }

    /// The directory at `path`; links are not followed.
    fn directory(&mut self, path: &[u8]) -> Result<InodeId, TargetError> {
        if path.is_empty() {
            return Ok(self.root());
        }
        if let Some(known) = self.directories.get(path) {
            return Ok(*known);
        }
        let mut at = self.root();
        for name in path.split(|byte| *byte == b'/') {
            at = self.step(at, name)?;
        }
        if self.directories.len() >= DIRECTORIES_MAX {
            self.directories.clear();
        }
        self.directories.insert(path.to_vec(), at);
        Ok(at)
    }

    /// An entry of a directory, which must not lead out of the subvolume.
    fn step(&self, directory: InodeId, name: &[u8]) -> Result<InodeId, TargetError> {
        let found = self.files.lookup(directory, name)?;
        if found.subvolume {
            return Err(TargetError::Other("another subvolume is in the way".into()));
        }
        Ok(found.inode)
    }

    fn place<'p>(&mut self, path: &'p [u8]) -> Result<Place<'p>, TargetError> {
        let cut = path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = match cut {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&path[..0], path),
        };
        Ok(Place {
            dir: self.directory(directory)?,
            name,
        })
    }

    fn id(&mut self, path: &[u8]) -> Result<InodeId, TargetError> {
        if path.is_empty() {
            return Ok(self.root());
        }
        let place = self.place(path)?;
        self.step(place.dir, place.name)
    }

    fn inode(&mut self, path: &[u8]) -> Result<Arc<Inode>, TargetError> {
        if let Some((known, inode)) = &self.last
            && known == path
        {
            return Ok(Arc::clone(inode));
        }
        let id = self.id(path)?;
        let inode = self.files.inode(id)?;
        self.last = Some((path.to_vec(), Arc::clone(&inode)));
        Ok(inode)
    }

    fn make(&mut self, path: &[u8], new: &NewInode<'_>) -> Result<(), TargetError> {
        let place = self.place(path)?;
        let made = self.files.create(place.dir, place.name, new)?;
        self.last = Some((path.to_vec(), made));
        Ok(())
    }

    /// Writes what waits; it still waits after an error. Nothing else may be
    /// done before.
    pub fn settle(&mut self) -> Result<(), TargetError> {
        let Some((inode, units)) = self.waiting.take() else {
            return Ok(());
        };
        let result = self.write_units(&inode, &units);
        if result.is_err() {
            self.waiting = Some((inode, units));
        }
        result
    }

    fn write_units(&self, inode: &Arc<Inode>, units: &[EncodedUnit]) -> Result<(), TargetError> {
        if self.files.write_encoded(inode, units)? {
            return Ok(());
        }
        let sector = usize::try_from(self.files.sector_size).unwrap_or(usize::MAX);
        for unit in units {
            let length = usize::try_from(unit.length).unwrap_or(usize::MAX);
            let mut whole = vec![0; length.next_multiple_of(sector)];
            with_scratch(|scratch| {
                scratch.decompress(unit.algorithm, &unit.data, &mut whole, sector)
            })
            .map_err(|error| TargetError::Other(error.to_string()))?;
            self.write(inode, unit.offset, &whole[..length])?;
        }
        Ok(())
    }

    fn encoded_write(&mut self, write: &EncodedWrite<'_>) -> Result<(), TargetError> {
        let inode = self.inode(write.path)?;
        let sector = self.files.sector_size;
        let lies = |encoding: &Encoding| {
            encoding.sector_size == 0 || encoding.sector_size as u64 == sector
        };
        let encoding = write.compression.filter(lies);
        let whole = write.skip == 0 && write.length == write.file_length.next_multiple_of(sector);
        let Some(encoding) = encoding.filter(|_| whole) else {
            self.settle()?;
            let data = with_scratch(|scratch| decode(write, scratch))?;
            return self.write(&inode, write.offset.get(), &data);
        };
        let unit = EncodedUnit {
            offset: write.offset.get(),
            length: write.file_length,
            algorithm: encoding.algorithm,
            data: write.data.to_vec(),
        };
        let follows = self.waiting.as_ref().is_some_and(|(waiting, units)| {
            let end = units
                .last()
                .map(|last| last.offset.saturating_add(last.length));
            waiting.id == inode.id
                && units.len() < UNITS_MAX
                && end.is_some_and(|end| end <= unit.offset && end.is_multiple_of(sector))
        });
        if !follows {
            self.settle()?;
        }
        let (_, units) = self.waiting.get_or_insert_with(|| (inode, Vec::new()));
        units.push(unit);
        Ok(())
    }

    pub fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        if command.kind() != CommandKind::EncodedWrite {
            self.settle()?;
        }
        let owner = Owner::default();
        match *command {
            Command::MakeFile { path, .. } => {
                self.make(path, &NewInode::new(S_IFREG | 0o600, owner))
            }
            Command::MakeDirectory { path, .. } => {
                self.make(path, &NewInode::new(S_IFDIR | 0o700, owner))
            }
            Command::MakeSpecial {
                path,
                kind,
                mode,
                rdev,
                ..
            } => self.make_special(path, kind, mode, rdev),
            Command::Symlink { path, target, .. } => {
                self.make(path, &NewInode::symlink(target, owner))
            }
            Command::Rename { path, to } => {
                let from = self.place(path)?;
                let to = self.place(to)?;
                self.files
                    .rename(from, to, RenameMode::Replace, OldName::Free)?;
                self.forget();
                Ok(())
            }
            Command::Link { path, existing } => {
                let id = self.id(existing)?;
                let place = self.place(path)?;
                Ok(self.files.link(id, place.dir, place.name)?)
            }
            Command::Unlink { path } => {
                let place = self.place(path)?;
                (self.last, self.cloned) = (None, None);
                Ok(self.files.unlink(place.dir, place.name)?)
            }
            Command::RemoveDirectory { path } => {
                let place = self.place(path)?;
                self.files.rmdir(place.dir, place.name)?;
                self.forget();
                Ok(())
            }
            Command::SetXattr { path, name, value } => {
                let inode = self.inode(path)?;
                Ok(self.files.set_xattr(&inode, name, value, SetMode::Any)?)
            }
            Command::RemoveXattr { path, name } => {
                let inode = self.inode(path)?;
                Ok(self.files.remove_xattr(&inode, name)?)
            }
            Command::Chmod { .. } | Command::Chown { .. } | Command::Times { .. } => {
                self.attributes(command)
            }
            Command::Write { path, offset, data } => {
                let inode = self.inode(path)?;
                self.write(&inode, offset.get(), data)
            }
            Command::Truncate { path, size } => {
                let inode = self.inode(path)?;
                Ok(self.files.truncate(&inode, size)?)
            }
            Command::Allocate {
                path,
                mode,
                offset,
                length,
            } => {
                let inode = self.inode(path)?;
                let mode = allocation(mode)?;
                Ok(self.files.fallocate(&inode, mode, offset.get(), length)?)
            }
            // Flags can forbid what follows, and no receiver sets them.
            Command::FileFlags { .. } => Ok(()),
            Command::EncodedWrite(write) => self.encoded_write(&write),
            Command::UpdateExtent { .. } => Err(TargetError::Other(
                "the stream was sent without data and cannot be received".into(),
            )),
            Command::EnableVerity { .. } => {
                Err(TargetError::Other("fs-verity cannot be received".into()))
            }
            Command::Clone(_)
            | Command::Subvolume { .. }
            | Command::Snapshot { .. }
            | Command::End => Err(TargetError::Other("it cannot come here".into())),
        }
    }

    fn make_special(
        &mut self,
        path: &[u8],
        kind: Special,
        mode: u64,
        rdev: u64,
    ) -> Result<(), TargetError> {
        let kind = match kind {
            Special::Fifo => S_IFIFO,
            Special::Socket => S_IFSOCK,
            Special::Node => match u32::try_from(mode).unwrap_or(0) & S_IFMT {
                kind @ (S_IFCHR | S_IFBLK) => kind,
                _ => return Err(TargetError::Other("it is no kind of device".into())),
            },
        };
        let mut new = NewInode::new(kind | 0o600, Owner::default());
        if kind == S_IFCHR || kind == S_IFBLK {
            new.rdev = stored_device(rdev);
        }
        self.make(path, &new)
    }

    fn attributes(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        let mut set = SetAttributes {
            privileges: Privileges::Keep,
            ..SetAttributes::default()
        };
        let path = match *command {
            Command::Chmod { path, mode } => {
                set.mode = Some(u32::try_from(mode & 0o7777).unwrap_or(0));
                path
            }
            Command::Chown { path, uid, gid } => {
                let narrow = |id: u64| {
                    u32::try_from(id)
                        .map_err(|_| TargetError::Other("no user has this number".into()))
                };
                (set.uid, set.gid) = (Some(narrow(uid)?), Some(narrow(gid)?));
                path
            }
            Command::Times { path, times } => {
                let PathTimes {
                    atime,
                    mtime,
                    otime,
                    ..
                } = times;
                set.atime = Some(SetTime::At(atime));
                set.mtime = Some(SetTime::At(mtime));
                set.btime = otime;
                path
            }
            _ => return Ok(()),
        };
        let inode = self.inode(path)?;
        Ok(self.files.set_attributes(&inode, &set)?)
    }

    fn write(&self, inode: &Arc<Inode>, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        let mut done = 0;
        while done < data.len() {
            let count = self
                .files
                .write(inode, offset + done as u64, &data[done..])?;
            if count == 0 {
                return Err(TargetError::Other("nothing more can be written".into()));
            }
            done += count;
        }
        Ok(())
    }

    /// Shares a range of a file of `tree`.
    pub fn clone_range(&mut self, clone: &CloneRange<'_>, tree: TreeId) -> Result<(), TargetError> {
        self.settle()?;
        let known = self
            .cloned
            .as_ref()
            .is_some_and(|(known, path, _)| *known == tree && path == clone.from_path);
        if !known {
            let source = if tree == self.tree {
                self.inode(clone.from_path)?
            } else {
                let mut at = InodeId {
                    tree,
                    number: InodeNumber::ROOT,
                };
                for name in clone.from_path.split(|byte| *byte == b'/') {
                    at = self.step(at, name)?;
                }
                self.files.inode(at)?
            };
            self.cloned = Some((tree, clone.from_path.to_vec(), source));
        }
        let target = self.inode(clone.path)?;
        let Some((_, _, source)) = &self.cloned else {
            return Ok(());
        };
        let mut done = 0;
        while done < clone.length {
            let count = self.files.copy_range(
                (source, clone.from_offset.get() + done),
                (&target, clone.offset.get() + done),
                clone.length - done,
            )?;
            if count == 0 {
                return Err(TargetError::Other(
                    "the file to clone from ends before the range does".into(),
                ));
            }
            done += count;
        }
        Ok(())
    }
}

fn allocation(mode: u32) -> Result<FallocateMode, TargetError> {
    Ok(match mode {
        0 => FallocateMode::Allocate,
        KEEP_SIZE => FallocateMode::AllocateKeepSize,
        mode if mode == KEEP_SIZE | PUNCH_HOLE => FallocateMode::PunchHole,
        ZERO_RANGE => FallocateMode::ZeroRange,
        mode if mode == KEEP_SIZE | ZERO_RANGE => FallocateMode::ZeroRangeKeepSize,
        _ => return Err(TargetError::Other(format!("mode {mode} is not supported"))),
    })
}

/// A device number as items have it: major and minor apart at bit 20.
const fn stored_device(rdev: u64) -> u64 {
    let major = ((rdev >> 8) & 0xfff) | ((rdev >> 32) & !0xfff);
    let minor = (rdev & 0xff) | ((rdev >> 12) & 0xfff00);
    (major << 20) | minor
}
