//! Operations on files for our own workloads: on a directory of the operating
//! system, or on a volume that the library has open.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Whether reads and writes go past the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caching {
    /// Through it.
    Cached,
    /// Past it (O_DIRECT): offsets, lengths and memory are multiples of 4096.
    Direct,
}

/// A tree of files. Paths are relative, with slashes. Errors say what was
/// done to which path.
pub trait Files: Send + Sync {
    /// Makes a file, or empties the one that is there.
    ///
    /// # Errors
    /// What the file system refused.
    fn create(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String>;

    /// Opens a file that is there, to read and write.
    ///
    /// # Errors
    /// What the file system refused.
    fn open(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String>;

    /// Makes a directory.
    ///
    /// # Errors
    /// What the file system refused.
    fn mkdir(&self, path: &str) -> Result<(), String>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the file system refused.
    fn unlink(&self, path: &str) -> Result<(), String>;

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the file system refused.
    fn rmdir(&self, path: &str) -> Result<(), String>;

    /// Renames a file or a directory; a file at the new path is replaced.
    ///
    /// # Errors
    /// What the file system refused.
    fn rename(&self, from: &str, to: &str) -> Result<(), String>;

    /// Bytes of a file.
    ///
    /// # Errors
    /// What the file system refused.
    fn stat(&self, path: &str) -> Result<u64, String>;

    /// Names in a directory, in no order.
    ///
    /// # Errors
    /// What the file system refused.
    fn list(&self, path: &str) -> Result<Vec<String>, String>;

    /// Makes all of the file system durable.
    ///
    /// # Errors
    /// What the file system refused.
    fn sync(&self) -> Result<(), String>;
}

/// A file that is open.
pub trait OpenFile: Send + Sync {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// What the file system refused.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), String>;

    /// Reads until the buffer is full or the file ends; gives the bytes read.
    ///
    /// # Errors
    /// What the file system refused.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, String>;

    /// Makes the file durable.
    ///
    /// # Errors
    /// What the file system refused.
    fn fsync(&self) -> Result<(), String>;

    /// Allots space for bytes from 0 on, where the file system can.
    ///
    /// # Errors
    /// What the file system refused.
    fn preallocate(&self, length: u64) -> Result<(), String>;
}

/// A directory of the operating system.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The files below a directory.
    pub fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    fn open_with(
        &self,
        path: &str,
        caching: Caching,
        options: &mut fs::OpenOptions,
    ) -> Result<Box<dyn OpenFile>, String> {
        let path = self.0.join(path);
        if caching == Caching::Direct {
            let direct = rustix::fs::OFlags::DIRECT.bits();
            options.custom_flags(direct.cast_signed());
        }
        let file = options.read(true).write(true).open(&path);
        match file {
            Ok(file) => Ok(Box::new(DirectoryFile { file, path })),
            Err(error) => Err(format!("open {}: {error}", path.display())),
        }
    }
}

fn told<T>(result: std::io::Result<T>, what: &str, path: &Path) -> Result<T, String> {
    result.map_err(|error| format!("{what} {}: {error}", path.display()))
}

impl Files for Directory {
    fn create(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String> {
        self.open_with(
            path,
            caching,
            fs::OpenOptions::new().create(true).truncate(true),
        )
    }

    fn open(&self, path: &str, caching: Caching) -> Result<Box<dyn OpenFile>, String> {
        self.open_with(path, caching, &mut fs::OpenOptions::new())
    }

    fn mkdir(&self, path: &str) -> Result<(), String> {
        let path = self.0.join(path);
        told(fs::create_dir(&path), "make directory", &path)
    }

    fn unlink(&self, path: &str) -> Result<(), String> {
        let path = self.0.join(path);
        told(fs::remove_file(&path), "remove", &path)
    }

    fn rmdir(&self, path: &str) -> Result<(), String> {
        let path = self.0.join(path);
        told(fs::remove_dir(&path), "remove directory", &path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), String> {
        let from = self.0.join(from);
        told(fs::rename(&from, self.0.join(to)), "rename", &from)
    }

    fn stat(&self, path: &str) -> Result<u64, String> {
        let path = self.0.join(path);
        told(fs::symlink_metadata(&path), "stat", &path).map(|found| found.len())
    }

    fn list(&self, path: &str) -> Result<Vec<String>, String> {
        let path = self.0.join(path);
        let mut names = Vec::new();
        for entry in told(fs::read_dir(&path), "list", &path)? {
            let entry = told(entry, "list", &path)?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(names)
    }

    fn sync(&self) -> Result<(), String> {
        // Only this file system: sync(2) would wait for every other one.
        let directory = told(fs::File::open(&self.0), "open", &self.0)?;
        told(
            rustix::fs::syncfs(&directory).map_err(Into::into),
            "sync the file system of",
            &self.0,
        )
    }
}

struct DirectoryFile {
    file: fs::File,
    path: PathBuf,
}

impl OpenFile for DirectoryFile {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let result = self.file.write_all_at(bytes, offset);
        result.map_err(|error| format!("write {} at {offset}: {error}", self.path.display()))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, String> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    let path = self.path.display();
                    return Err(format!("read {path} at {offset}: {error}"));
                }
            }
        }
        Ok(done)
    }

    fn fsync(&self) -> Result<(), String> {
        told(self.file.sync_all(), "fsync", &self.path)
    }

    fn preallocate(&self, length: u64) -> Result<(), String> {
        let flags = rustix::fs::FallocateFlags::empty();
        let result = rustix::fs::fallocate(&self.file, flags, 0, length);
        told(result.map_err(Into::into), "preallocate", &self.path)
    }
}

/// Memory as O_DIRECT wants it.
pub(crate) struct Aligned {
    memory: Vec<u8>,
    first: usize,
    length: usize,
}

impl Aligned {
    /// Zeroed memory that begins at a multiple of 4096.
    pub(crate) fn new(length: usize) -> Self {
        let memory = vec![0; length + 4096];
        let first = memory.as_ptr().align_offset(4096);
        assert!(first < 4096, "bytes can always be aligned");
        Self {
            memory,
            first,
            length,
        }
    }

    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.first..self.first + self.length]
    }
}

/// The beginning and the end of a text file of a program, for messages.
pub(super) fn gist_of(path: &Path) -> String {
    let mut text = Vec::new();
    if let Ok(file) = fs::File::open(path) {
        // What is longer than 16 MiB tells nothing more.
        let _ = file.take(16 << 20).read_to_end(&mut text);
    }
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    if lines.len() > 14 {
        lines.splice(3..lines.len() - 10, ["..."]);
    }
    lines.join("\n")
}
