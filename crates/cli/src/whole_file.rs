//! Files that get their names when they are whole.
//!
//! Owns the temporary name beside the real one, which goes away with a failure:
//! a file under its real name is whole, or what it was before.

use crate::fail::{Context, Done, Failure};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of the longest name.
const NAME_MAX: usize = 255;

/// A name beside `path` that nothing has: its own, with more behind it.
pub fn name_beside(path: &Path) -> PathBuf {
    name_beside_by(0, path)
}

/// [`name_beside`] of one of several threads that make files in a directory:
/// long names that differ at their end only would be the same ones else.
pub fn name_beside_by(thread: usize, path: &Path) -> PathBuf {
    let process = std::process::id();
    let tail = match thread {
        0 => format!(".{process}.partial"),
        thread => format!(".{process}-{thread}.partial"),
    };
    let name = path.file_name().unwrap_or_default().as_bytes();
    let kept = &name[..name.len().min(NAME_MAX - tail.len())];
    path.with_file_name(OsString::from_vec([kept, tail.as_bytes()].concat()))
}

/// A file that is being written.
#[derive(Debug)]
pub struct WholeFile {
    file: File,
    target: PathBuf,
    /// Where it is until it is whole; `None` where it is written in its place.
    temporary: Option<PathBuf>,
}

impl WholeFile {
    /// Begins the file at `path`. What is no regular file, or is not one's own
    /// to replace, is written in its place.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        let begun = Self::begin(path).context(path.display())?;
        Ok(begun)
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let old = match std::fs::metadata(path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if old.as_ref().is_some_and(|old| !is_replaceable(path, old)) || path.is_symlink() {
            return Self::in_place(path);
        }
        let temporary = name_beside(path);
        let made = File::options()
            .write(true)
            .create_new(true)
            .open(&temporary);
        match (made, old) {
            (Ok(file), old) => {
                let begun = Self {
                    file,
                    target: path.to_owned(),
                    temporary: Some(temporary),
                };
                if let Some(old) = old {
                    begun.file.set_permissions(old.permissions())?;
                }
                Ok(begun)
            }
            // The directory takes no new names, but the file can be written.
            (Err(_), Some(_)) => Self::in_place(path),
            (Err(error), None) => Err(error),
        }
    }

    fn in_place(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::create(path)?,
            target: path.to_owned(),
            temporary: None,
        })
    }

    /// All of it was written: makes it durable and gives it its name.
    pub fn finish(mut self) -> Done {
        let target = self.target.clone();
        match &self.temporary {
            Some(temporary) => {
                self.file.sync_all().context(target.display())?;
                std::fs::rename(temporary, &target).context(target.display())?;
                self.temporary = None;
            }
            // A pipe or a device may know no such request.
            None => match self.file.sync_all() {
                Err(error) if error.kind() != io::ErrorKind::InvalidInput => {
                    return Err(error).context(target.display());
                }
                _ => {}
            },
        }
        Ok(())
    }
}

/// A regular file of one's own with one name, and not by way of a descriptor.
fn is_replaceable(path: &Path, old: &Metadata) -> bool {
    let own = old.uid() == rustix::process::geteuid().as_raw();
    // /dev/shm is a directory as any other.
    let in_dev = path.starts_with("/dev") && !path.starts_with("/dev/shm");
    let by_descriptor = in_dev || path.starts_with("/proc");
    old.is_file() && old.nlink() == 1 && own && !by_descriptor
}

impl Write for WholeFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl AsFd for WholeFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for WholeFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            let _ = std::fs::remove_file(temporary);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_belongs_to_a_whole_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a".repeat(NAME_MAX));
        let names = || std::fs::read_dir(directory.path()).unwrap().count();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"one").unwrap();
        assert!(!path.exists());
        drop(file);
        assert_eq!(names(), 0);
        for content in ["one", "two"] {
            let mut file = WholeFile::create(&path).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            file.finish().unwrap();
            assert_eq!(std::fs::read_to_string(&path).unwrap(), content);
        }
        let mut cut = WholeFile::create(&path).unwrap();
        cut.write_all(b"three").unwrap();
        drop(cut);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        // Another name sees what is written too: it is the same file.
        let other = directory.path().join("other");
        std::fs::hard_link(&path, &other).unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"four").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "four");
        assert_eq!(names(), 2);
    }
}
