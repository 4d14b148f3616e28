//! Files that get their names only when they are complete.
//!
//! A file under its real name is complete, or is what it was before. Until it
//! is complete it has no name at all, so nothing is left of it however the
//! process ends. If the file system has no files without names, or /proc is not
//! there to name one, the file has a temporary name beside the real one. A
//! failure removes that name.

use crate::fail::{Context, Done, Failure, fail};
use butterfs::{Access, DeviceError, FileDevice};
use butterfs_device::probe::{self, Found};
use rustix::fs::{AtFlags, CWD, linkat};
use std::ffi::OsString;
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Bytes of the longest name.
const NAME_MAX: usize = 255;

/// A name beside `path` that nothing has: the file's own name, with more behind
/// it.
pub fn name_beside(path: &Path) -> PathBuf {
    name_beside_by(0, path)
}

/// [`name_beside`] for one of several threads that make files in a directory.
/// Long names that differ only at their ends would otherwise become equal.
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
    place: Place,
}

/// Where a file is until it is whole.
#[derive(Debug)]
enum Place {
    /// Under no name.
    Nowhere,
    /// Under a temporary name.
    Beside(PathBuf),
    /// Under its real name.
    There,
}

impl WholeFile {
    /// Begins the file at `path`. What is not a regular file, or may not be
    /// replaced by this user, is written in place. A volume is not replaced.
    pub fn create(path: &Path) -> Result<Self, Failure> {
        check_is_no_volume(path)?;
        Self::replace(path)
    }

    /// As [`WholeFile::create`], for callers that may replace a volume.
    pub fn replace(path: &Path) -> Result<Self, Failure> {
        let begun = Self::begin(path).context(path.display())?;
        Ok(begun)
    }

    /// As [`WholeFile::create`], but only the user may open a new file.
    pub fn create_private(path: &Path) -> Result<Self, Failure> {
        let is_new = !path.exists();
        let begun = Self::create(path)?;
        if is_new {
            let private = Permissions::from_mode(0o600);
            begun
                .file
                .set_permissions(private)
                .context(path.display())?;
        }
        Ok(begun)
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let old = match std::fs::metadata(path) {
            Ok(old) => Some(old),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        if old.as_ref().is_some_and(|old| !is_replaceable(path, old)) {
            return Self::in_place(path);
        }
        if path.is_symlink() {
            // The link stays, and what it leads to is replaced.
            return match old {
                Some(_) => Self::begin(&path.canonicalize()?),
                None => Self::in_place(path),
            };
        }
        match (Self::out_of_place(path), old) {
            (Ok(begun), Some(old)) => {
                begun.file.set_permissions(old.permissions())?;
                Ok(begun)
            }
            (Ok(begun), None) => Ok(begun),
            // The directory accepts no new names, but the file can be written.
            (Err(_), Some(_)) => Self::in_place(path),
            (Err(error), None) => Err(error),
        }
    }

    fn out_of_place(path: &Path) -> io::Result<Self> {
        let (file, place) = match unnamed(path) {
            Some(file) => (file, Place::Nowhere),
            None => {
                let temporary = name_beside(path);
                let file = File::options()
                    .write(true)
                    .create_new(true)
                    .open(&temporary)?;
                (file, Place::Beside(temporary))
            }
        };
        Ok(Self {
            file,
            target: path.to_owned(),
            place,
        })
    }

    fn in_place(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: File::create(path)?,
            target: path.to_owned(),
            place: Place::There,
        })
    }

    /// The file, which is open for writing.
    pub const fn file(&self) -> &File {
        &self.file
    }

    /// All of it was written: makes it durable and gives it its name.
    pub fn finish(mut self) -> Done {
        let target = self.target.clone();
        self.settle().context(target.display())
    }

    fn settle(&mut self) -> io::Result<()> {
        match self.file.sync_all() {
            // A pipe or a device may not know such a request.
            Err(error)
                if matches!(self.place, Place::There)
                    && error.kind() == io::ErrorKind::InvalidInput => {}
            synced => synced?,
        }
        if matches!(self.place, Place::Nowhere) {
            // A link does not replace a file; a rename does.
            let temporary = name_beside(&self.target);
            match name(&self.file, &temporary) {
                // Left by a killed process that had the same number.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    std::fs::remove_file(&temporary)?;
                    name(&self.file, &temporary)?;
                }
                named => named?,
            }
            self.place = Place::Beside(temporary);
        }
        if let Place::Beside(temporary) = &self.place {
            std::fs::rename(temporary, &self.target)?;
            self.place = Place::There;
        }
        Ok(())
    }
}

/// Errors if the file or device at `path` holds a Btrfs volume.
pub fn check_is_no_volume(path: &Path) -> Done {
    match holds_volume(path)? {
        true => fail(format!(
            "{0} holds a Btrfs volume, which would be replaced; write {0}:/ to copy into the \
             volume, or remove the file first if nobody needs it",
            path.display()
        )),
        false => Ok(()),
    }
}

/// Errors if the file or device at `path` holds a Btrfs volume that somebody
/// uses.
pub fn check_is_unused(path: &Path) -> Done {
    if holds_volume(path)? {
        FileDevice::open(path, Access::ReadWrite)?;
    }
    Ok(())
}

/// Whether the file or device at `path` holds a Btrfs volume.
///
/// # Errors
/// Somebody has locked it, as every user of a volume for writing does.
fn holds_volume(path: &Path) -> Result<bool, Failure> {
    let is_data = |there: Metadata| there.is_file() || there.file_type().is_block_device();
    if !std::fs::metadata(path).is_ok_and(is_data) {
        return Ok(false);
    }
    let found = match FileDevice::open(path, Access::ReadOnly) {
        Err(error @ DeviceError::Busy { .. }) => return Err(error.into()),
        // Whoever writes meets all other errors.
        device => device.and_then(|device| probe::contents(&device)),
    };
    Ok(found.is_ok_and(|found| found.contains(&Found::FileSystem("btrfs"))))
}

/// A file without a name in the directory of `path`, if one is possible and can
/// get a name later.
fn unnamed(path: &Path) -> Option<File> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_TMPFILE)
        .open(directory)
        .ok()?;
    by_descriptor(&file).exists().then_some(file)
}

fn by_descriptor(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Gives a file that has no name this one.
fn name(file: &File, path: &Path) -> io::Result<()> {
    let source = by_descriptor(file);
    Ok(linkat(CWD, &source, CWD, path, AtFlags::SYMLINK_FOLLOW)?)
}

/// A regular file of this user with one name, not reached through a descriptor.
fn is_replaceable(path: &Path, old: &Metadata) -> bool {
    let own = old.uid() == rustix::process::geteuid().as_raw();
    // /dev/shm is a directory like any other.
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
        if let Place::Beside(temporary) = &self.place {
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
        if matches!(file.place, Place::Nowhere) {
            // Nothing is left to clean up if the process is killed now.
            assert_eq!(names(), 0);
        }
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
        // Another name sees what is written too, because it is the same file.
        let other = directory.path().join("other");
        std::fs::hard_link(&path, &other).unwrap();
        let mut file = WholeFile::create(&path).unwrap();
        file.write_all(b"four").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "four");
        assert_eq!(names(), 2);
    }

    #[test]
    fn a_link_stays_and_its_file_is_replaced_when_the_new_one_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&path, "old").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let mut cut = WholeFile::create(&link).unwrap();
        cut.write_all(b"cut").unwrap();
        drop(cut);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "old");
        let mut file = WholeFile::create(&link).unwrap();
        file.write_all(b"new").unwrap();
        file.finish().unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_new_private_file_is_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for mode in [0o600, 0o640] {
            let mut file = WholeFile::create_private(&path).unwrap();
            file.write_all(b"private").unwrap();
            file.finish().unwrap();
            let found = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(found & 0o777, mode);
            // One that is there keeps its mode.
            std::fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        }
    }

    #[test]
    fn a_file_system_without_files_that_have_no_name_is_enough() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let temporary = name_beside(&path);
        let begin = || WholeFile {
            file: File::create(&temporary).unwrap(),
            target: path.clone(),
            place: Place::Beside(temporary.clone()),
        };
        drop(begin());
        assert!(!temporary.exists() && !path.exists());
        let mut file = begin();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert!(!temporary.exists());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
    }

    #[test]
    fn what_a_killed_process_of_this_number_left_is_in_no_way() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut file = WholeFile::create(&path).unwrap();
        std::fs::write(name_beside(&path), "left").unwrap();
        file.write_all(b"whole").unwrap();
        file.finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "whole");
        assert!(!name_beside(&path).exists());
    }
}
