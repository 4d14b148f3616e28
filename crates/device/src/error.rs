//! What can go wrong with a device.

use crate::{DeviceRange, Holder};
use std::fmt;
use std::io;
use std::sync::Arc;
use thiserror::Error;

/// What was being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Opening or creating.
    Open,
    /// Reading.
    Read,
    /// Writing.
    Write,
    /// Making writes durable.
    Flush,
    /// Giving up the content of a range.
    Discard,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        })
    }
}

/// Why an operation on a device failed. Cheap to clone, so that a volume that
/// was poisoned by a failure can report it again.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// The system refused or failed.
    #[error("cannot {operation} {device}{}: {source}; {}", place(.range), advice(*.operation, .source))]
    Io {
        /// The device.
        device: String,
        /// What was being done.
        operation: Operation,
        /// Where, for reads, writes and discards.
        range: Option<DeviceRange>,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// The range is not on the device.
    #[error(
        "cannot {operation} {range} of {device}, which has {size} bytes; check whether it was truncated or shrunk"
    )]
    OutOfRange {
        /// The device.
        device: String,
        /// What was being done.
        operation: Operation,
        /// Where.
        range: DeviceRange,
        /// Bytes that the device has.
        size: u64,
    },
    /// Somebody cut the file short while it was in use.
    #[error(
        "{device} was cut short while it was in use: it has {now} bytes left of {size}; unmount it, put back what is \
         missing (or make it at least {size} bytes long again), and run `butterfs check` and `butterfs scrub`"
    )]
    CutShort {
        /// The device.
        device: String,
        /// Bytes that it has.
        now: u64,
        /// Bytes that the volume has on it.
        size: u64,
    },
    /// The device was opened for reading only.
    #[error("cannot {operation} {device}, which is open read-only; open it read-write")]
    ReadOnly {
        /// The device.
        device: String,
        /// What was being done.
        operation: Operation,
    },
    /// The system keeps the block device from being written.
    #[error(
        "{device} is write-protected: open it read-only (-o ro), or end the protection (a switch on the \
         medium, `blockdev --setrw`, `losetup` without -r)"
    )]
    WriteProtected {
        /// The device.
        device: String,
    },
    /// The device was let go: its volume was closed.
    #[error("cannot {operation} {device}: its volume was closed; open it again")]
    Released {
        /// The device.
        device: String,
        /// What was being done.
        operation: Operation,
    },
    /// Something else is using the device.
    #[error("{device} is in use by {holder}; {}", .holder.advice())]
    Busy {
        /// The device.
        device: String,
        /// What uses it.
        holder: Holder,
    },
    /// The path is neither a regular file nor a block device.
    #[error(
        "{device} is {found}; give a regular file or a block device{}",
        beside(found)
    )]
    NotADevice {
        /// The path.
        device: String,
        /// What it is.
        found: &'static str,
    },
}

impl DeviceError {
    /// What the system said, for errors that came from it.
    #[must_use]
    pub fn io_source(&self) -> Option<&io::Error> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Advice for somebody who names something else than a device.
fn beside(found: &str) -> &'static str {
    match found {
        "a directory" => "; files of a mounted volume are for ls(1), cp(1) and any other program",
        _ => "",
    }
}

fn place(range: &Option<DeviceRange>) -> String {
    range.map_or_else(String::new, |range| format!(" ({range})"))
}

fn advice(operation: Operation, source: &io::Error) -> &'static str {
    match source.raw_os_error() {
        Some(libc::ELOOP) => return "its links lead in a circle; check the path",
        Some(libc::ENOTDIR | libc::ENAMETOOLONG) => return "check the path",
        Some(libc::EFBIG) => return "choose a smaller size",
        Some(libc::EMFILE) => return "raise the limit on open files (`ulimit -n`)",
        Some(libc::ENFILE) => return "close files: the machine has no more descriptors",
        Some(libc::ENOTCONN) => {
            return "the server of this mount has ended; take the mount away with `umount -l` or \
                    `fusermount3 -uz`, and mount again";
        }
        _ => {}
    }
    match (operation, source.kind()) {
        (_, io::ErrorKind::NotFound) => "check the path",
        (_, io::ErrorKind::PermissionDenied) => "check the permissions of the path",
        (_, io::ErrorKind::AlreadyExists) => "choose another path or remove it first",
        (_, io::ErrorKind::StorageFull) => {
            "free space on the file system that holds it (`butterfs filesystem trim` gives back what an \
             unmounted image does not use)"
        }
        (_, io::ErrorKind::ReadOnlyFilesystem) => "open it read-only",
        (Operation::Open, _) => "check that the device is present",
        _ => "check the device's health and the system log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::DeviceOffset;

    #[test]
    fn messages_say_what_where_and_what_next() {
        let error = DeviceError::Io {
            device: "/dev/sdx".into(),
            operation: Operation::Read,
            range: Some(DeviceRange::new(DeviceOffset(4096), 512)),
            source: Arc::new(io::Error::from_raw_os_error(libc::EIO)),
        };
        assert_eq!(
            error.to_string(),
            "cannot read /dev/sdx (512 bytes at offset 4096): Input/output error (os error 5); \
             check the device's health and the system log"
        );
        let error = DeviceError::Busy {
            device: "disk.img".into(),
            holder: Holder::Mount("/mnt".into()),
        };
        assert_eq!(
            error.to_string(),
            "disk.img is in use by the mount at /mnt; unmount it first"
        );
    }
}
