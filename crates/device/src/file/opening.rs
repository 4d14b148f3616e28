//! Opening a file or block device, and keeping others out.

use crate::direct::FileKind;
use crate::holder::{self, DeviceNumber};
use crate::{Access, DeviceError, Holder, Operation, sys};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

/// Makes a file this long.
pub(super) fn set_length(file: &File, size: u64) -> io::Result<()> {
    match i64::try_from(size) {
        Ok(_) => file.set_len(size),
        Err(_) => Err(io::Error::from_raw_os_error(libc::EFBIG)),
    }
}

pub(super) fn open(path: &Path, access: Access, flags: i32) -> Result<File, DeviceError> {
    OpenOptions::new()
        .read(true)
        .write(access == Access::ReadWrite)
        // A FIFO must not block the open.
        .custom_flags(flags | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match access {
            Access::ReadWrite if is_write_protected(path, &error) => DeviceError::WriteProtected {
                device: path.display().to_string(),
            },
            _ => open_error(path, error),
        })
}

/// Whether a block device could not be opened for writing because the system
/// protects it, not because this user may not write to it.
pub(super) fn is_write_protected(path: &Path, error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EACCES | libc::EPERM | libc::EROFS)
    ) && File::open(path).is_ok_and(|file| sys::is_write_protected(file.as_fd()) == Ok(true))
}

pub(super) fn kind_of(path: &Path, meta: &Metadata) -> Result<FileKind, DeviceError> {
    let file_type = meta.file_type();
    if file_type.is_file() {
        return Ok(FileKind::RegularFile);
    }
    if file_type.is_block_device() {
        return Ok(FileKind::BlockDevice);
    }
    Err(not_a_device(
        path,
        if file_type.is_dir() {
            "a directory"
        } else if file_type.is_char_device() {
            "a character device"
        } else if file_type.is_fifo() {
            "a FIFO"
        } else {
            "a special file"
        },
    ))
}

pub(super) fn not_a_device(path: &Path, found: &'static str) -> DeviceError {
    DeviceError::NotADevice {
        device: path.display().to_string(),
        found,
    }
}

pub(super) fn busy(path: &Path, holder: Holder) -> DeviceError {
    DeviceError::Busy {
        device: path.display().to_string(),
        holder,
    }
}

pub(super) fn open_error(path: &Path, error: io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::ResourceBusy => {
            let known = std::fs::metadata(path)
                .ok()
                .and_then(|meta| holder::holder_of_block_device(DeviceNumber::new(meta.rdev())));
            busy(path, known.unwrap_or(Holder::Unknown))
        }
        io::ErrorKind::IsADirectory => not_a_device(path, "a directory"),
        _ => DeviceError::Io {
            device: path.display().to_string(),
            operation: Operation::Open,
            range: None,
            source: Arc::new(error),
        },
    }
}

/// Locks a regular file: exclusively for writing, shared for reading.
pub(super) fn lock(file: &File, path: &Path, access: Access) -> Result<(), DeviceError> {
    let operation = match access {
        Access::ReadOnly => FlockOperation::NonBlockingLockShared,
        Access::ReadWrite => FlockOperation::NonBlockingLockExclusive,
    };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => {
            let known = file
                .metadata()
                .ok()
                .and_then(|meta| holder::lock_holder(&meta));
            Err(busy(path, known.unwrap_or(Holder::Unknown)))
        }
        // Some network file systems have no locks; a read must still work.
        Err(Errno::OPNOTSUPP | Errno::NOLCK) if access == Access::ReadOnly => Ok(()),
        Err(errno) => Err(open_error(path, errno.into())),
    }
}

/// Locks the file behind a loop device, unless this process cannot open it by
/// the name that the loop device has for it.
pub(super) fn lock_backing(
    path: &Path,
    device: DeviceNumber,
    access: Access,
) -> Result<Option<File>, DeviceError> {
    let Some(file) = holder::backing_file(device).and_then(|path| File::open(path).ok()) else {
        return Ok(None);
    };
    lock(&file, path, access)?;
    Ok(Some(file))
}
