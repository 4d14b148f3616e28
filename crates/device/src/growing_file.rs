//! A regular file that grows with what is written to it.

use crate::{Access, BlockDevice, DeviceError, DeviceRange, Holder, Operation};
use butterfs_format::DeviceOffset;
use rustix::fs::FlockOperation;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A file without a fixed size. What was never written reads as zeros. A lock
/// keeps others from it while it is open for writing.
#[derive(Debug)]
pub struct GrowingFile {
    file: File,
    path: PathBuf,
    access: Access,
}

impl GrowingFile {
    /// Makes a new file, readable by its owner alone, and makes its name
    /// durable.
    ///
    /// # Errors
    /// [`DeviceError::Io`], also if something is there already.
    pub fn create(path: &Path) -> Result<Self, DeviceError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = Self::adopt(&options, path, Access::ReadWrite)?;
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let synced = File::open(parent).and_then(|parent| parent.sync_all());
        synced.map_err(|error| failed(path, Operation::Flush, None, error))?;
        Ok(file)
    }

    /// Opens a file that is there.
    ///
    /// # Errors
    /// [`DeviceError::Busy`], [`DeviceError::Io`]
    pub fn open(path: &Path, access: Access) -> Result<Self, DeviceError> {
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        Self::adopt(&options, path, access)
    }

    fn adopt(options: &OpenOptions, path: &Path, access: Access) -> Result<Self, DeviceError> {
        let fail = |error| failed(path, Operation::Open, None, error);
        let file = options.open(path).map_err(fail)?;
        let kind = file.metadata().map_err(fail)?;
        if !kind.is_file() {
            return Err(DeviceError::NotADevice {
                device: path.display().to_string(),
                found: "no regular file",
            });
        }
        let lock = match access {
            Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
            Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        };
        if rustix::fs::flock(&file, lock).is_err() {
            return Err(DeviceError::Busy {
                device: path.display().to_string(),
                holder: Holder::of(path).unwrap_or(Holder::Unknown),
            });
        }
        Ok(Self {
            file,
            path: path.to_owned(),
            access,
        })
    }

    fn fail(&self, operation: Operation, range: DeviceRange, error: io::Error) -> DeviceError {
        failed(&self.path, operation, Some(range), error)
    }
}

fn failed(
    path: &Path,
    operation: Operation,
    range: Option<DeviceRange>,
    error: io::Error,
) -> DeviceError {
    DeviceError::Io {
        device: path.display().to_string(),
        operation,
        range,
        source: Arc::new(error),
    }
}

impl BlockDevice for GrowingFile {
    fn size(&self) -> u64 {
        i64::MAX.unsigned_abs()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, buf.len());
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = DeviceRange::of_buffer(offset, done).end();
            match self.file.read_at(rest, at.get()) {
                Ok(0) => {
                    rest.fill(0);
                    break;
                }
                Ok(count) => done = done.saturating_add(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.fail(Operation::Read, range, error)),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        if self.access == Access::ReadOnly {
            return Err(DeviceError::ReadOnly {
                device: self.identity(),
                operation: Operation::Write,
            });
        }
        let written = self.file.write_all_at(data, offset.get());
        written.map_err(|error| self.fail(Operation::Write, range, error))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let synced = self.file.sync_data();
        synced.map_err(|error| failed(&self.path, Operation::Flush, None, error))
    }

    fn identity(&self) -> String {
        self.path.display().to_string()
    }

    fn access(&self) -> Access {
        self.access
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_and_is_held_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let file = GrowingFile::create(&path).unwrap();
        file.write_at(DeviceOffset(100_000), b"end").unwrap();
        let mut read = [1; 8];
        file.read_at(DeviceOffset(99_998), &mut read).unwrap();
        assert_eq!(&read, b"\0\0end\0\0\0");
        assert!(GrowingFile::open(&path, Access::ReadWrite).is_err());
        assert!(GrowingFile::create(&path).is_err());
        drop(file);
        let file = GrowingFile::open(&path, Access::ReadOnly).unwrap();
        assert!(file.write_at(DeviceOffset(0), b"x").is_err());
    }
}
