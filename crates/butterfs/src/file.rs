//! Open files of a volume, as `std::fs::File`.

use crate::{Error, Volume, VolumePath};
use butterfs_fs::attr::Attributes;
use butterfs_fs::names::{NewInode, S_IFDIR, S_IFMT, S_IFREG};
use butterfs_fs::{Filesystem, FsError, Inode};
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::Arc;

/// How to open a file, like [`std::fs::OpenOptions`]. The open file allows only
/// what was asked for.
#[derive(Clone, Copy, Debug)]
pub struct FileOptions {
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl FileOptions {
    /// Neither reading nor writing. A file that is made gets the permissions
    /// 0644.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// Whether it can be read.
    #[must_use]
    pub const fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// Whether it can be written.
    #[must_use]
    pub const fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Whether each write goes to the end of the file, even if others write
    /// too.
    #[must_use]
    pub const fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// Whether the file is emptied. It must be writable for that.
    #[must_use]
    pub const fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// Whether the file is made if it does not exist. It must be writable for
    /// that.
    #[must_use]
    pub const fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Whether it must be new.
    #[must_use]
    pub const fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permissions of a file that is made.
    #[must_use]
    pub const fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o7777;
        self
    }

    const fn is_writable(self) -> bool {
        self.write || self.append
    }

    /// Opens the file at `path` in `volume`. A symbolic link at its end is
    /// followed, unless the file must be new.
    ///
    /// # Errors
    /// As open(2): no such file, a directory, no space; options that contradict
    /// each other.
    pub fn open(self, volume: &Volume, path: impl VolumePath) -> Result<File, Error> {
        let path = path.path_bytes();
        self.verify().map_err(|error| Error::at(path, error))?;
        volume.check_open()?;
        let inode = self.find_or_make(volume, path)?;
        let files = Arc::clone(volume.files());
        files.pin(&inode);
        // From here on it is unpinned when it is dropped.
        let file = File {
            files,
            inode,
            path: path.to_vec(),
            options: self,
            position: 0,
        };
        let kind = file.attributes()?.mode & S_IFMT;
        if kind != S_IFREG {
            let reason = match kind {
                S_IFDIR => FsError::IsADirectory,
                _ => FsError::Invalid("only regular files can be opened"),
            };
            return Err(Error::at(path, reason));
        }
        if self.is_writable() {
            let at = |error| Error::at(path, error);
            let writable = file.files.store().check_writable();
            writable.map_err(|error| at(error.into()))?;
        }
        if self.truncate {
            file.set_len(0)?;
        }
        Ok(file)
    }

    const fn verify(self) -> Result<(), FsError> {
        if !self.read && !self.is_writable() {
            return Err(FsError::Invalid(
                "the file would be neither read nor written",
            ));
        }
        if (self.create || self.create_new || self.truncate) && !self.is_writable() {
            return Err(FsError::Invalid(
                "a file is made or emptied only for writing",
            ));
        }
        if self.truncate && self.append {
            return Err(FsError::Invalid("a file is emptied or appended to"));
        }
        Ok(())
    }

    fn find_or_make(self, volume: &Volume, path: &[u8]) -> Result<Arc<Inode>, Error> {
        let at = |error| Error::at(path, error);
        let files = volume.files();
        loop {
            if !self.create_new {
                match volume.resolve_followed(path) {
                    Ok(id) => return files.inode(id).map_err(at),
                    Err(Error::At {
                        error: FsError::NotFound,
                        ..
                    }) if self.create => {}
                    Err(error) => return Err(error),
                }
            }
            let (parent, name) = volume.resolve_parent(path)?;
            let new = NewInode::new(S_IFREG | self.mode, volume.owner);
            match files.create(parent, name, &new) {
                // Another thread made it meanwhile, or the name is a link to
                // nothing.
                Err(FsError::Exists) if !self.create_new => {
                    if files.lookup(parent, name).map_err(at)?.kind
                        == butterfs_format::item::dir::FileType::Symlink
                    {
                        return Err(at(FsError::NotFound));
                    }
                }
                made => return made.map_err(at),
            }
        }
    }
}

/// An open file. It stays readable and writable when its name is removed. Its
/// space is given back when the last `File` of it is dropped.
///
/// Written data wait in memory, within the volume's bound, until
/// [`File::sync_all`], [`Volume::sync`], [`Volume::close`] or the automatic
/// commit. Dropping a `File` writes nothing and loses nothing. After
/// [`Volume::close`] every call is an error.
pub struct File {
    files: Arc<Filesystem>,
    inode: Arc<Inode>,
    path: Vec<u8>,
    options: FileOptions,
    position: u64,
}

impl File {
    /// The inode.
    #[must_use]
    pub const fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    fn at(&self, error: FsError) -> Error {
        Error::at(&self.path, error)
    }

    fn check_open(&self) -> Result<(), Error> {
        let open = self.files.store().check_open();
        open.map_err(|error| self.at(error.into()))
    }

    /// Attributes.
    ///
    /// # Errors
    /// Damage, reading; the volume was closed.
    pub fn attributes(&self) -> Result<Attributes, Error> {
        self.check_open()?;
        let attributes = self.files.attributes_of(&self.inode);
        attributes.map_err(|error| self.at(error))
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// As [`File::attributes`].
    pub fn size(&self) -> Result<u64, Error> {
        Ok(self.attributes()?.size)
    }

    /// Cuts the file at `size`, or extends it by a hole.
    ///
    /// # Errors
    /// It was not opened for writing; no space; too big.
    pub fn set_len(&self, size: u64) -> Result<(), Error> {
        self.check_allowed(self.options.is_writable(), "writing")?;
        let cut = self.files.truncate(&self.inode, size);
        cut.map_err(|error| self.at(error))
    }

    fn check_allowed(&self, allowed: bool, what: &'static str) -> Result<(), Error> {
        self.check_open()?;
        if allowed {
            return Ok(());
        }
        Err(self.at(FsError::NotPermitted(match what {
            "writing" => "the file was not opened for writing",
            _ => "the file was not opened for reading",
        })))
    }

    /// Reads from `offset` on. Returns how many bytes were read: 0 at the end
    /// of the file.
    ///
    /// # Errors
    /// It was not opened for reading; damage, reading.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<usize, Error> {
        self.check_allowed(self.options.read, "reading")?;
        let read = self.files.read(&self.inode, offset, buffer);
        read.map_err(|error| self.at(error))
    }

    /// Writes at `offset`, or at the end if the file was opened for appending.
    /// Returns how many bytes were taken.
    ///
    /// # Errors
    /// It was not opened for writing; no space; too big.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Error> {
        Ok(self.put(data, offset)?.1)
    }

    /// Writes. Returns where the write began, and how many bytes were taken.
    fn put(&self, data: &[u8], offset: u64) -> Result<(u64, usize), Error> {
        self.check_allowed(self.options.is_writable(), "writing")?;
        let written = match self.options.append {
            true => self.files.append(&self.inode, data),
            false => {
                let written = self.files.write(&self.inode, offset, data);
                written.map(|count| (offset, count))
            }
        };
        written.map_err(|error| self.at(error))
    }

    /// Makes the file durable, as fsync(2): its data, its attributes and its
    /// name. Waits for the device.
    ///
    /// # Errors
    /// Errors of writing. Data of the file that could not be written wait in
    /// memory, and another call tries again. After a device lost a flush, the
    /// volume is read-only.
    pub fn sync_all(&self) -> Result<(), Error> {
        self.check_open()?;
        let synced = self.files.fsync(&self.inode);
        synced.map_err(|error| self.at(error))
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &String::from_utf8_lossy(&self.path))
            .field("inode", &self.inode.id)
            .field("options", &self.options)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if let Err(error) = self.files.unpin(&self.inode, 1) {
            // Nobody can be told. The next opening for writing deletes it.
            tracing::debug!(%error, "a file without names stays for now");
        }
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.read_at(buffer, self.position)?;
        self.position += count as u64;
        Ok(count)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let (at, count) = self.put(data, self.position)?;
        self.position = at + count as u64;
        Ok(count)
    }

    /// Does nothing, because a `File` holds nothing back. [`File::sync_all`]
    /// makes what was written durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (base, distance) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(distance) => (self.position, distance),
            SeekFrom::End(distance) => (self.size()?, distance),
        };
        let Some(position) = base.checked_add_signed(distance) else {
            let error = FsError::Invalid("the position would be before the file's beginning");
            return Err(self.at(error).into());
        };
        self.position = position;
        Ok(position)
    }
}
