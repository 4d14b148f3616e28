//! Paths in a volume.
//!
//! Owns resolving a path, walking below it, and reading and writing whole
//! files. Paths are bytes, relative to the root of the opened subvolume.
//! Symbolic links are followed in the middle of a path and before a slash at
//! its end, but not at the end itself.

use crate::{Error, Volume, VolumePath, calls};
use butterfs_format::InodeId;
use butterfs_format::item::dir::FileType;
use butterfs_fs::attr::Attributes;
use butterfs_fs::dir::ListedEntry;
use butterfs_fs::names::{NewInode, S_IFDIR, S_IFREG};
use butterfs_fs::{Filesystem, FsError, Inode};
use std::sync::Arc;

/// Symbolic links followed in one path before it counts as a loop.
const LINKS_MAX: usize = 40;
/// Bytes of one write.
const STEP: usize = 1 << 20;

/// The inode at `path`.
pub(crate) fn resolve(files: &Filesystem, path: &[u8]) -> Result<InodeId, FsError> {
    let mut at = files.root();
    let mut rest: Vec<Vec<u8>> = components(path).rev().map(<[u8]>::to_vec).collect();
    let follow_last = path.ends_with(b"/") || path.ends_with(b"/.");
    let mut links = 0;
    while let Some(name) = rest.pop() {
        let target = files.lookup(at, &name)?;
        let is_last = rest.is_empty();
        if target.kind == FileType::Symlink && (!is_last || follow_last) {
            links += 1;
            if links > LINKS_MAX {
                return Err(FsError::LinkLoop);
            }
            let link = files.read_link(target.inode)?;
            if link.first() == Some(&b'/') {
                at = files.root();
            }
            rest.extend(components(&link).rev().map(<[u8]>::to_vec));
            continue;
        }
        if target.kind != FileType::Directory && !is_last {
            return Err(FsError::NotADirectory);
        }
        at = target.inode;
    }
    Ok(at)
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
}

/// A file or directory that [`Volume::walk`] found.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    /// Path below the start; empty for the start itself.
    pub path: Vec<u8>,
    /// Attributes.
    pub attributes: Attributes,
}

/// What a visitor wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Walk {
    /// Go on, into this directory too.
    Enter,
    /// Go on, but not into this directory.
    Skip,
    /// Stop.
    Stop,
}

impl Volume {
    /// The inode at `path`. A link at its end is not followed.
    ///
    /// # Errors
    /// As path_resolution(7).
    pub fn resolve(&self, path: impl VolumePath) -> Result<InodeId, Error> {
        let path = path.path_bytes();
        self.check_open()?;
        resolve(self.files(), path).map_err(|error| Error::at(path, error))
    }

    /// Attributes of the inode at `path`.
    ///
    /// # Errors
    /// As [`Volume::resolve`].
    pub fn attributes(&self, path: impl VolumePath) -> Result<Attributes, Error> {
        let path = path.path_bytes();
        let id = self.resolve(path)?;
        self.files()
            .attributes(id)
            .map_err(|error| Error::at(path, error))
    }

    /// Splits `path` into the directory that holds it and its last name.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; the root has no name.
    pub fn resolve_parent<'p>(&self, path: &'p [u8]) -> Result<(InodeId, &'p [u8]), Error> {
        let end = path
            .iter()
            .rposition(|byte| *byte != b'/')
            .map_or(0, |at| at + 1);
        let trimmed = &path[..end];
        let cut = trimmed.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = match cut {
            Some(at) => (&trimmed[..at], &trimmed[at + 1..]),
            None => (&b""[..], trimmed),
        };
        if name.is_empty() {
            return Err(Error::at(path, FsError::Exists));
        }
        let found = self.resolve([directory, b"/."].concat());
        Ok((found.map_err(|error| error.moved_to(path))?, name))
    }

    /// Entries of the directory `id`, without `.` and `..`, in their order.
    ///
    /// # Errors
    /// Not a directory, damage, reading.
    pub fn list(&self, id: InodeId) -> Result<Vec<ListedEntry>, FsError> {
        self.store().check_open()?;
        let mut entries = Vec::new();
        self.files().read_dir(id, 2, &mut |entry| {
            entries.push(entry);
            true
        })?;
        Ok(entries)
    }

    /// Visits `start` and everything below it, directories before their
    /// content.
    ///
    /// # Errors
    /// Damage, reading; errors of `visit`.
    pub fn walk<E: From<Error>>(
        &self,
        start: InodeId,
        visit: &mut dyn FnMut(&WalkEntry) -> Result<Walk, E>,
    ) -> Result<(), E> {
        self.walk_readable(start, visit, &mut |error| Err(error.into()))
    }

    /// As [`Volume::walk`], but calls `unreadable` with the error of each file
    /// or directory that cannot be read, and goes on if that returns no error.
    ///
    /// # Errors
    /// Those of `visit` and `unreadable`; the volume is closed.
    pub fn walk_readable<E: From<Error>>(
        &self,
        start: InodeId,
        visit: &mut dyn FnMut(&WalkEntry) -> Result<Walk, E>,
        unreadable: &mut dyn FnMut(Error) -> Result<(), E>,
    ) -> Result<(), E> {
        self.check_open()?;
        calls::walk(self, start, visit, unreadable)
    }

    /// The content of the file at `path`.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; damage, reading.
    pub fn read_file(&self, path: impl VolumePath) -> Result<Vec<u8>, Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let inode = self.files().inode(self.resolve(path)?).map_err(at)?;
        let mut content = Vec::new();
        let read = self.read_chunks(&inode, &mut |chunk| {
            content.extend_from_slice(chunk);
            Ok::<(), Error>(())
        });
        read.map_err(|error| match error {
            Error::Fs(error) => at(error),
            other => other,
        })?;
        Ok(content)
    }

    /// Gives the content of a file piece by piece.
    ///
    /// # Errors
    /// Damage, reading; errors of `take`.
    pub fn read_chunks<E: From<Error>>(
        &self,
        inode: &Inode,
        take: &mut dyn FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut buffer = vec![0; STEP];
        let mut offset = 0;
        loop {
            self.check_open()?;
            let count = self
                .files()
                .read(inode, offset, &mut buffer)
                .map_err(Error::from)?;
            if count == 0 {
                return Ok(());
            }
            take(&buffer[..count])?;
            offset += count as u64;
        }
    }

    /// Makes the file at `path`, or replaces its content.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; no space.
    pub fn write_file(&self, path: impl VolumePath, content: &[u8]) -> Result<(), Error> {
        let path = path.path_bytes();
        let at = |error| Error::at(path, error);
        let (parent, name) = self.resolve_parent(path)?;
        let files = self.files();
        let inode = match files.lookup(parent, name) {
            Ok(target) => {
                let inode = files.inode(target.inode).map_err(at)?;
                files.truncate(&inode, 0).map_err(at)?;
                inode
            }
            Err(FsError::NotFound) => {
                let new = NewInode::new(S_IFREG | 0o644, self.owner);
                files.create(parent, name, &new).map_err(at)?
            }
            Err(error) => return Err(at(error)),
        };
        self.write_at(&inode, 0, content).map_err(at)
    }

    /// Writes all of `content` at `offset`.
    ///
    /// # Errors
    /// No space, too big, not writable.
    pub fn write_at(&self, inode: &Arc<Inode>, offset: u64, content: &[u8]) -> Result<(), FsError> {
        self.store().check_open()?;
        let mut offset = offset;
        for piece in content.chunks(STEP) {
            let mut rest = piece;
            while !rest.is_empty() {
                let count = self.files().write(inode, offset, rest)?;
                offset += count as u64;
                rest = &rest[count..];
            }
        }
        Ok(())
    }

    /// Makes a directory at `path`.
    ///
    /// # Errors
    /// As [`Volume::resolve`]; exists already, no space.
    pub fn create_dir(&self, path: impl VolumePath) -> Result<InodeId, Error> {
        let path = path.path_bytes();
        let (parent, name) = self.resolve_parent(path)?;
        let new = NewInode::new(S_IFDIR | 0o755, self.owner);
        let made = self.files().create(parent, name, &new);
        Ok(made.map_err(|error| Error::at(path, error))?.id)
    }
}
