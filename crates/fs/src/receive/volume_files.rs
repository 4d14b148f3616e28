//! Carries out commands about files of one subvolume, through the library.

use super::decode::decode;
use super::error::TargetError;
use super::translate::{New, allocation, note_attributes, special};
use crate::attr::SetAttributes;
use crate::file::Flusher;
use crate::file::encoded::EncodedUnit;
use crate::file::read::with_scratch;
use crate::names::{NewInode, S_IFDIR, S_IFLNK, S_IFREG};
use crate::rename::{OldName, Place, RenameMode};
use crate::xattr::SetMode;
use crate::{Filesystem, Inode};
use butterfs_format::send_stream::{CloneRange, Command, EncodedWrite, Encoding, SourceStamp};
use butterfs_format::{InodeId, InodeNumber, TreeId};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Directories whose paths are remembered.
const DIRECTORIES_MAX: usize = 4096;
/// Compressed units that are written together.
const UNITS_MAX: usize = 32;

/// Files of the subvolume that is being received.
#[derive(Debug)]
pub(super) struct VolumeFiles {
    files: Arc<Filesystem>,
    tree: TreeId,
    directories: FxHashMap<Vec<u8>, InodeId>,
    /// The file that was used last.
    last: Option<Last>,
    /// The file that was cloned from last.
    cloned: Option<(TreeId, Vec<u8>, Arc<Inode>)>,
    sources: Vec<(SourceStamp, TreeId)>,
    /// Commands that wait for others with which they are done together.
    waiting: Option<Waiting>,
    flusher: Flusher,
}

#[derive(Debug)]
struct Last {
    path: Vec<u8>,
    inode: Arc<Inode>,
    /// Bytes that were written to it.
    written: u64,
}

/// Commands that are carried out together with the next one, or before it.
#[derive(Debug)]
enum Waiting {
    /// Senders make a new inode under a name that no file has, and then give it
    /// its own name at once. That becomes one change instead of two.
    New(New),
    /// Attributes of one inode.
    Attributes(Arc<Inode>, SetAttributes),
    /// Compressed units of one file.
    Units(Arc<Inode>, Vec<EncodedUnit>),
}

impl VolumeFiles {
    pub fn new(files: Arc<Filesystem>, tree: TreeId) -> Self {
        let flusher = Flusher::new(&files);
        Self {
            files,
            tree,
            directories: FxHashMap::default(),
            last: None,
            cloned: None,
            sources: Vec::new(),
            waiting: None,
            flusher,
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

    /// Names changed, so what was known by its path is no longer valid.
    fn forget(&mut self) {
        self.directories.clear();
        self.forget_files();
    }

    fn forget_files(&mut self) {
        self.leave_last();
        self.cloned = None;
    }

    /// Probably nothing more comes for the file that was used last. Its data
    /// can go to the device.
    fn leave_last(&mut self) {
        if let Some(last) = self.last.take()
            && last.written > 0
        {
            self.flusher.flush(last.inode, last.written);
        }
    }

    fn use_inode(&mut self, path: &[u8], inode: Arc<Inode>) {
        self.leave_last();
        self.last = Some(Last {
            path: path.to_vec(),
            inode,
            written: 0,
        });
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
        if let Some(last) = &self.last
            && last.path == path
        {
            return Ok(Arc::clone(&last.inode));
        }
        let id = self.id(path)?;
        let inode = self.files.inode(id)?;
        self.use_inode(path, Arc::clone(&inode));
        Ok(inode)
    }

    fn make(&mut self, path: &[u8], new: &NewInode<'_>) -> Result<(), TargetError> {
        let place = self.place(path)?;
        let made = self.files.create(place.dir, place.name, new)?;
        self.use_inode(path, made);
        Ok(())
    }

    fn make_later(&mut self, new: New) -> Result<(), TargetError> {
        self.waiting = Some(Waiting::New(new));
        Ok(())
    }

    /// Carries out what waits. After an error it still waits, and nothing else
    /// may be done before it.
    pub fn settle(&mut self) -> Result<(), TargetError> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        let result = match &waiting {
            Waiting::New(new) => self.make(&new.path, &new.inode()).map_err(|error| {
                let path = new.path.escape_ascii();
                TargetError::Other(format!("{path} cannot be made before: {error}"))
            }),
            Waiting::Attributes(inode, set) => {
                self.files.set_attributes(inode, set).map_err(Into::into)
            }
            Waiting::Units(inode, units) => self.write_units(inode, units),
        };
        if result.is_err() {
            self.waiting = Some(waiting);
        }
        result
    }

    /// Gives up what waits, because it failed.
    pub fn drop_waiting(&mut self) {
        self.waiting = None;
    }

    /// Makes the inode that waits, under the name that it is given. False if no
    /// inode waits, or if more is to be done.
    fn make_renamed(&mut self, path: &[u8], to: &[u8]) -> bool {
        match self.waiting.take() {
            Some(Waiting::New(new)) if new.path == path => {
                if self.make(to, &new.inode()).is_ok() {
                    return true;
                }
                self.waiting = Some(Waiting::New(new));
            }
            other => self.waiting = other,
        }
        false
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
        if !matches!(self.waiting, Some(Waiting::Units(..))) {
            self.settle()?;
        }
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
        if let Some(Waiting::Units(waiting, units)) = &mut self.waiting {
            let end = units
                .last()
                .map(|last| last.offset.saturating_add(last.length));
            let follows = waiting.id == inode.id
                && units.len() < UNITS_MAX
                && end.is_some_and(|end| end <= unit.offset && end.is_multiple_of(sector));
            if follows {
                units.push(unit);
                return Ok(());
            }
        }
        self.settle()?;
        self.waiting = Some(Waiting::Units(inode, vec![unit]));
        Ok(())
    }

    pub fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        match *command {
            Command::Rename { path, to } if self.make_renamed(path, to) => return Ok(()),
            Command::Chmod { path, .. }
            | Command::Chown { path, .. }
            | Command::Times { path, .. } => return self.attributes(path, command),
            Command::EncodedWrite(write) => return self.encoded_write(&write),
            _ => self.settle()?,
        }
        match *command {
            Command::MakeFile { path, .. } => self.make_later(New::of(path, S_IFREG | 0o600)),
            Command::MakeDirectory { path, .. } => self.make_later(New::of(path, S_IFDIR | 0o700)),
            Command::MakeSpecial {
                path,
                kind,
                mode,
                rdev,
                ..
            } => {
                let (mode, rdev) = special(kind, mode, rdev)?;
                self.make_later(New {
                    rdev,
                    ..New::of(path, mode)
                })
            }
            Command::Symlink { path, target, .. } => self.make_later(New {
                symlink: target.to_vec(),
                ..New::of(path, S_IFLNK | 0o777)
            }),
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
                self.forget_files();
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
            Command::Write { path, offset, data } => {
                let inode = self.inode(path)?;
                if let Some(last) = &mut self.last {
                    last.written += data.len() as u64;
                }
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
            // Flags could forbid later commands, and no receiver sets them.
            Command::FileFlags { .. } => Ok(()),
            Command::UpdateExtent { .. } => Err(TargetError::NO_DATA),
            Command::EnableVerity { .. } => Err(TargetError::VERITY),
            Command::Chmod { .. }
            | Command::Chown { .. }
            | Command::Times { .. }
            | Command::EncodedWrite(_)
            | Command::Clone(_)
            | Command::Subvolume { .. }
            | Command::Snapshot { .. }
            | Command::End => Err(TargetError::Other("it cannot come here".into())),
        }
    }

    /// Notes attributes to set: those of one inode are set together.
    fn attributes(&mut self, path: &[u8], command: &Command<'_>) -> Result<(), TargetError> {
        if !matches!(self.waiting, Some(Waiting::Attributes(..))) {
            self.settle()?;
        }
        let inode = self.inode(path)?;
        let mut set = match self.waiting.take() {
            Some(Waiting::Attributes(waiting, set)) if waiting.id == inode.id => set,
            other => {
                self.waiting = other;
                self.settle()?;
                SetAttributes::default()
            }
        };
        let result = note_attributes(&mut set, command);
        self.waiting = Some(Waiting::Attributes(inode, set));
        result
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
