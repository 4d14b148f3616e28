//! A volume that the library has open, as our own workloads see it: ButterFS
//! without FUSE and without a kernel.

use super::files::{Caching, Files, OpenFile};
use butterfs::{
    FallocateMode, FsError, Inode, NewInode, OldName, OpenOptions, Owner, Place, RenameMode, Volume,
};
use std::path::Path;
use std::sync::Arc;

/// The files of a volume; the volume is closed when the last clone of this is
/// dropped. An error of that is only logged: call [`Library::close`] to get it.
#[derive(Clone, Debug)]
pub struct Library {
    volume: Arc<Volume>,
    /// Beginning of every path: "" or one that ends with a slash.
    below: String,
}

impl Library {
    /// Opens the volume in an image or a device.
    ///
    /// # Errors
    /// As [`Volume::open`], in words.
    pub fn open(image: &Path, options: OpenOptions) -> Result<Self, String> {
        let volume = Volume::open(image, options);
        let volume = volume.map_err(|error| format!("open {}: {error}", image.display()))?;
        Ok(Self {
            volume: Arc::new(volume),
            below: String::new(),
        })
    }

    /// The files below one of its directories.
    #[must_use]
    pub fn below(&self, directory: &str) -> Self {
        Self {
            volume: Arc::clone(&self.volume),
            below: format!("{}{directory}/", self.below),
        }
    }

    fn absolute(&self, path: &str) -> Vec<u8> {
        let path = format!("/{}{path}", self.below);
        path.trim_end_matches('/').as_bytes().to_vec()
    }

    /// Makes everything durable and stops what runs in the background.
    ///
    /// # Errors
    /// As [`Volume::close`], in words.
    pub fn close(&self) -> Result<(), String> {
        let closed = self.volume.close();
        closed.map_err(|error| format!("close the volume: {error}"))
    }

    fn inode(&self, path: &str) -> Result<Arc<Inode>, String> {
        let id = told(self.volume.resolve(&self.absolute(path)), "open", path)?;
        told(self.volume.files().inode(id), "open", path)
    }

    fn parent<T>(
        &self,
        path: &str,
        what: &str,
        act: impl FnOnce(Place<'_>) -> Result<T, FsError>,
    ) -> Result<T, String> {
        let absolute = self.absolute(path);
        let (dir, name) = told(self.volume.resolve_parent(&absolute), what, path)?;
        told(act(Place { dir, name }), what, path)
    }

    fn opened(&self, path: &str, inode: Arc<Inode>) -> Box<dyn OpenFile> {
        Box::new(LibraryFile {
            volume: Arc::clone(&self.volume),
            inode,
            path: path.to_owned(),
        })
    }
}

fn told<T, E: std::fmt::Display>(
    result: Result<T, E>,
    what: &str,
    path: &str,
) -> Result<T, String> {
    result.map_err(|error| format!("{what} {path}: {error}"))
}

fn check_caching(path: &str, caching: Caching) -> Result<(), String> {
    match caching {
        Caching::Cached => Ok(()),
        Caching::Direct => Err(format!(
            "open {path}: the library has no O_DIRECT; use direct=no"
        )),
    }
}

impl Files for Library {
    fn create(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String> {
        check_caching(path, caching)?;
        let files = self.volume.files();
        let inode = self.parent(path, "create", |place| {
            let new = NewInode::new(0o100_644, Owner::default());
            match files.create(place.dir, place.name, &new) {
                Err(FsError::Exists) => Ok(None),
                made => made.map(Some),
            }
        })?;
        if let Some(inode) = inode {
            return Ok(self.opened(path, inode));
        }
        let inode = self.inode(path)?;
        told(files.truncate(&inode, 0), "empty", path)?;
        Ok(self.opened(path, inode))
    }

    fn open(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String> {
        check_caching(path, caching)?;
        Ok(self.opened(path, self.inode(path)?))
    }

    fn mkdir(&self, path: &str) -> Result<(), String> {
        told(
            self.volume.create_dir(&self.absolute(path)),
            "make directory",
            path,
        )
        .map(|_| ())
    }

    fn unlink(&self, path: &str) -> Result<(), String> {
        let files = self.volume.files();
        self.parent(path, "remove", |place| files.unlink(place.dir, place.name))
    }

    fn rmdir(&self, path: &str) -> Result<(), String> {
        let files = self.volume.files();
        self.parent(path, "remove directory", |place| {
            files.rmdir(place.dir, place.name)
        })
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        let absolute = self.absolute(to);
        let (dir, name) = told(self.volume.resolve_parent(&absolute), "rename to", to)?;
        let to = Place { dir, name };
        let files = self.volume.files();
        self.parent(from, "rename", |from| {
            files.rename(from, to, RenameMode::Replace, OldName::Free)
        })
    }

    fn stat(&self, path: &str) -> Result<u64, String> {
        let found = told(self.volume.attributes(&self.absolute(path)), "stat", path)?;
        Ok(found.size)
    }

    fn list(&self, path: &str) -> Result<Vec<String>, String> {
        let id = told(self.volume.resolve(&self.absolute(path)), "list", path)?;
        let entries = told(self.volume.list(id), "list", path)?;
        let names = entries
            .iter()
            .map(|entry| String::from_utf8_lossy(&entry.name).into_owned());
        Ok(names.collect())
    }

    fn sync(&self) -> Result<(), String> {
        let synced = self.volume.sync();
        synced.map_err(|error| format!("sync the volume: {error}"))
    }
}

struct LibraryFile {
    volume: Arc<Volume>,
    inode: Arc<Inode>,
    path: String,
}

impl OpenFile for LibraryFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let result = self.volume.write_at(&self.inode, offset, bytes);
        result.map_err(|error| format!("write {} at {offset}: {error}", self.path))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, String> {
        let mut done = 0;
        while done < buffer.len() {
            let at = offset + done as u64;
            let read = self
                .volume
                .files()
                .read(&self.inode, at, &mut buffer[done..]);
            match read.map_err(|error| format!("read {} at {at}: {error}", self.path))? {
                0 => break,
                read => done += read,
            }
        }
        Ok(done)
    }

    fn fsync(&self) -> Result<(), String> {
        told(self.volume.files().fsync(&self.inode), "fsync", &self.path)
    }

    fn preallocate(&self, length: u64) -> Result<(), String> {
        let files = self.volume.files();
        let result = files.fallocate(&self.inode, FallocateMode::Allocate, 0, length);
        told(result, "preallocate", &self.path)
    }
}
