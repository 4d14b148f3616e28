//! Regular files and block devices.
//!
//! Owns exclusive use: one writer, or readers, per file; a device that the
//! kernel has mounted is refused.

use crate::{Access, BlockDevice, DeviceError, Operation};
use butterfs_format::DeviceOffset;
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file or block device.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    path: PathBuf,
    size: u64,
    access: Access,
    /// A block device, not a regular file.
    block: bool,
}

impl FileDevice {
    /// Opens a file or block device.
    ///
    /// # Errors
    /// [`DeviceError::Busy`] when somebody else writes to it (or reads it, for
    /// writing) or the kernel has mounted it.
    pub fn open(path: &Path, access: Access) -> Result<Self, DeviceError> {
        let error = |source: io::Error| DeviceError::Io {
            device: path.display().to_string(),
            operation: Operation::Open,
            offset: DeviceOffset(0),
            source,
        };
        let metadata = std::fs::metadata(path).map_err(error)?;
        let kind = {
            use std::os::unix::fs::FileTypeExt;
            let file_type = metadata.file_type();
            if file_type.is_block_device() {
                FileType::BlockDevice
            } else if file_type.is_file() {
                FileType::RegularFile
            } else {
                return Err(error(io::Error::other(
                    "neither a regular file nor a block device",
                )));
            }
        };
        let block = kind == FileType::BlockDevice;
        if access == Access::ReadWrite {
            check_not_mounted(path, &metadata, block)?;
        }
        let mut flags = OFlags::CLOEXEC;
        flags |= match access {
            Access::ReadOnly => OFlags::RDONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        if block && access == Access::ReadWrite {
            // On a block device this asks for exclusive use.
            flags |= OFlags::EXCL;
        }
        let fd: OwnedFd = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| {
            if errno == rustix::io::Errno::BUSY {
                return busy(path, "the kernel or another program holds it");
            }
            error(errno.into())
        })?;
        let lock = match access {
            Access::ReadOnly => FlockOperation::NonBlockingLockShared,
            Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
        };
        rustix::fs::flock(&fd, lock).map_err(|_| busy(path, "another ButterFS has it open"))?;
        let file = File::from(fd);
        let size = {
            use std::io::{Seek, SeekFrom};
            let mut seekable = &file;
            seekable.seek(SeekFrom::End(0)).map_err(error)?
        };
        Ok(Self {
            file,
            path: path.to_owned(),
            size,
            access,
            block,
        })
    }

    /// Makes a file of `size` bytes (or grows or cuts an existing one).
    ///
    /// # Errors
    /// As [`FileDevice::open`].
    pub fn create(path: &Path, size: u64) -> Result<Self, DeviceError> {
        let error = |source: io::Error| DeviceError::Io {
            device: path.display().to_string(),
            operation: Operation::Open,
            offset: DeviceOffset(0),
            source,
        };
        drop(
            File::options()
                .create(true)
                .truncate(false)
                .write(true)
                .open(path)
                .map_err(error)?,
        );
        let mut device = Self::open(path, Access::ReadWrite)?;
        if !device.block {
            device.file.set_len(size).map_err(error)?;
            device.size = size;
        }
        Ok(device)
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True for a block device.
    #[must_use]
    pub const fn is_block_device(&self) -> bool {
        self.block
    }

    fn error(&self, operation: Operation, offset: DeviceOffset, source: io::Error) -> DeviceError {
        DeviceError::Io {
            device: self.identity(),
            operation,
            offset,
            source,
        }
    }

    fn check(
        &self,
        operation: Operation,
        offset: DeviceOffset,
        length: u64,
    ) -> Result<(), DeviceError> {
        if operation != Operation::Read && self.access == Access::ReadOnly {
            return Err(DeviceError::ReadOnly {
                device: self.identity(),
            });
        }
        let inside = offset
            .checked_add(length)
            .is_some_and(|end| end.get() <= self.size);
        if inside {
            return Ok(());
        }
        Err(DeviceError::OutOfRange {
            device: self.identity(),
            operation,
            offset,
            length,
            size: self.size,
        })
    }
}

fn busy(path: &Path, holder: &str) -> DeviceError {
    DeviceError::Busy {
        device: path.display().to_string(),
        holder: holder.to_owned(),
    }
}

/// Errors when the kernel has mounted this file or device, directly or by a
/// loop device.
fn check_not_mounted(
    path: &Path,
    metadata: &std::fs::Metadata,
    block: bool,
) -> Result<(), DeviceError> {
    use std::os::unix::fs::MetadataExt;
    let Ok(mounts) = std::fs::read_to_string("/proc/self/mountinfo") else {
        return Ok(());
    };
    let sources: Vec<(u64, &str)> = mounts
        .lines()
        .filter_map(|line| {
            let (before, after) = line.split_once(" - ")?;
            let point = before.split(' ').nth(4)?;
            let source = after.split(' ').nth(1)?;
            let device = std::fs::metadata(source).ok()?;
            (source.starts_with("/dev/")).then_some((device.rdev(), point))
        })
        .collect();
    let mut devices = Vec::new();
    if block {
        devices.push(metadata.rdev());
    } else if let Ok(entries) = std::fs::read_dir("/sys/block") {
        let own = (metadata.dev(), metadata.ino());
        for entry in entries.flatten() {
            let Ok(backing) = std::fs::read_to_string(entry.path().join("loop/backing_file"))
            else {
                continue;
            };
            let same = std::fs::metadata(backing.trim_end())
                .is_ok_and(|other| (other.dev(), other.ino()) == own);
            let node = Path::new("/dev").join(entry.file_name());
            if let (true, Ok(node)) = (same, std::fs::metadata(node)) {
                devices.push(node.rdev());
            }
        }
    }
    match sources.iter().find(|(rdev, _)| devices.contains(rdev)) {
        Some((_, point)) => Err(busy(path, &format!("it is mounted on {point}"))),
        None => Ok(()),
    }
}

impl BlockDevice for FileDevice {
    fn size(&self) -> u64 {
        self.size
    }

    fn identity(&self) -> String {
        self.path.display().to_string()
    }

    fn access(&self) -> Access {
        self.access
    }

    fn read_at(&self, offset: DeviceOffset, buffer: &mut [u8]) -> Result<(), DeviceError> {
        self.check(Operation::Read, offset, buffer.len() as u64)?;
        self.file
            .read_exact_at(buffer, offset.get())
            .map_err(|source| self.error(Operation::Read, offset, source))
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.check(Operation::Write, offset, data.len() as u64)?;
        self.file
            .write_all_at(data, offset.get())
            .map_err(|source| self.error(Operation::Write, offset, source))
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        self.check(Operation::Write, offset, total as u64)?;
        let written = rustix::io::pwritev(&self.file, parts, offset.get())
            .map_err(|errno| self.error(Operation::Write, offset, errno.into()))?;
        let mut at = offset;
        let mut skip = written;
        for part in parts {
            if skip < part.len() {
                self.write_at(at.saturating_add(skip as u64), &part[skip..])?;
            }
            skip = skip.saturating_sub(part.len());
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        if self.access == Access::ReadOnly {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|source| self.error(Operation::Flush, DeviceOffset(0), source))
    }

    fn discard(&self, offset: DeviceOffset, length: u64) -> Result<(), DeviceError> {
        use rustix::fs::{FallocateFlags, fallocate};
        self.check(Operation::Discard, offset, length)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, offset.get(), length)
            .map_err(|errno| self.error(Operation::Discard, offset, errno.into()))
    }
}
