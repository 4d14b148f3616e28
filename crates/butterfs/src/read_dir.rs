//! Entries of directories, one after another.

use crate::{Error, Volume, VolumePath};
use butterfs_format::InodeId;
use butterfs_format::item::dir::FileType;
use butterfs_fs::attr::Attributes;
use butterfs_fs::dir::ListedEntry;
use butterfs_fs::listing::ListingEnd;
use butterfs_fs::{Filesystem, FsError};
use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::Arc;

/// Entries that are read ahead.
const AHEAD: usize = 256;
/// Position behind "." and "..".
const FIRST: u64 = 2;

/// One name of a directory.
#[derive(Clone, Debug)]
pub struct DirEntry {
    files: Arc<Filesystem>,
    directory: Arc<[u8]>,
    entry: ListedEntry,
}

impl DirEntry {
    /// Its name.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        OsStr::from_bytes(&self.entry.name)
    }

    /// Its path: the path of the directory as it was given, and the name.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        let directory = OsString::from_vec(self.directory.to_vec());
        PathBuf::from(directory).join(self.file_name())
    }

    /// Its kind; a subvolume is a directory.
    #[must_use]
    pub const fn file_type(&self) -> FileType {
        self.entry.target.kind
    }

    /// Whether it is the root of a subvolume.
    #[must_use]
    pub const fn is_subvolume(&self) -> bool {
        self.entry.target.subvolume
    }

    /// Its inode.
    #[must_use]
    pub const fn inode(&self) -> InodeId {
        self.entry.target.inode
    }

    /// Its attributes; for a symbolic link, those of the link itself.
    ///
    /// # Errors
    /// It was removed meanwhile; damage, reading.
    pub fn attributes(&self) -> Result<Attributes, Error> {
        let at = |error| Error::at(self.path(), error);
        let open = self.files.store().check_open();
        open.map_err(|error| at(error.into()))?;
        self.files.attributes(self.inode()).map_err(at)
    }
}

/// The entries of a directory, without `.` and `..`, in their order. Entries
/// that exist the whole time come once. Entries that are made after the
/// beginning do not come. After an error it ends.
#[derive(Debug)]
pub struct ReadDir {
    files: Arc<Filesystem>,
    directory: InodeId,
    path: Arc<[u8]>,
    end: ListingEnd,
    waiting: VecDeque<ListedEntry>,
    /// Where to go on; `None` at the end.
    next: Option<u64>,
}

impl ReadDir {
    fn fill(&mut self, from: u64) -> Result<(), Error> {
        let at = |error| Error::at(&self.path[..], error);
        let open = self.files.store().check_open();
        open.map_err(|error| at(error.into()))?;
        let waiting = &mut self.waiting;
        let visit = &mut |entry| {
            waiting.push_back(entry);
            waiting.len() < AHEAD
        };
        let read = self
            .files
            .read_dir_to(self.directory, from, self.end, visit);
        read.map_err(at)?;
        let is_full = self.waiting.len() == AHEAD;
        self.next = self
            .waiting
            .back()
            .filter(|_| is_full)
            .map(|last| last.next);
        Ok(())
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.waiting.is_empty()
            && let Some(from) = self.next.take()
            && let Err(error) = self.fill(from)
        {
            return Some(Err(error));
        }
        let entry = self.waiting.pop_front()?;
        Some(Ok(DirEntry {
            files: Arc::clone(&self.files),
            directory: Arc::clone(&self.path),
            entry,
        }))
    }
}

impl Volume {
    /// The entries of the directory at `path`. A symbolic link at its end is
    /// followed. Memory holds a few hundred of them, whatever the directory's
    /// size.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; not a directory.
    pub fn read_dir(&self, path: impl VolumePath) -> Result<ReadDir, Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let directory = self.resolve_followed(path)?;
        if !self
            .files()
            .attributes(directory)
            .map_err(at)?
            .is_directory()
        {
            return Err(at(FsError::NotADirectory));
        }
        let mut entries = ReadDir {
            files: Arc::clone(self.files()),
            directory,
            path: path.into(),
            end: self.files().listing_end(directory).map_err(at)?,
            waiting: VecDeque::new(),
            next: None,
        };
        entries.fill(FIRST)?;
        Ok(entries)
    }
}
