//! What can go wrong with a volume as a whole.

use crate::VolumePath;
use crate::held::Held;
use butterfs_admin::mkfs::MkfsError;
use butterfs_check::CheckError;
use butterfs_device::DeviceError;
use butterfs_device::probe::Found;
use butterfs_fs::FsError;
use butterfs_fs::receive::{ReceiveError, TargetError};
use butterfs_fs::send::SendError;
use butterfs_store::StoreError;
use std::io;
use std::path::PathBuf;

/// Why a volume or a path could not be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The volume cannot be opened or committed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file operation failed.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A file operation failed at a path.
    #[error("{path}: {error}")]
    At {
        /// The path in the volume.
        path: String,
        /// What failed.
        error: FsError,
    },
    /// The overlay cannot be used.
    #[error(transparent)]
    Overlay(#[from] butterfs_repair::overlay::PatientError),
    /// An overlay was named beside devices, or another one over it.
    #[error(
        "{} is an overlay, which names its devices itself; name it alone, and no other overlay",
        .0.display()
    )]
    OverlayAmongDevices(PathBuf),
    /// The subvolume asked for does not exist.
    #[error("the volume has no subvolume {0}; `butterfs subvolume list` shows what it has")]
    NoSubvolume(String),
    /// The device holds something other than a volume, or lacks the part that
    /// was asked for.
    #[error("{device} {held}")]
    Holds {
        /// The device.
        device: String,
        /// What it holds.
        held: Held,
    },
    /// The device on which a volume should be made holds something.
    #[error("{device} holds {found}; say Content::Overwrite to make a volume there all the same")]
    InUse {
        /// The device.
        device: String,
        /// What it holds.
        found: Found,
    },
    /// A volume cannot be made.
    #[error(transparent)]
    Mkfs(Box<MkfsError>),
    /// A volume could not be checked at all.
    #[error(transparent)]
    Check(Box<CheckError>),
    /// A snapshot was not sent to its end.
    #[error(transparent)]
    Send(Box<SendError>),
    /// A stream was not received to its end.
    #[error(transparent)]
    Receive(Box<ReceiveError>),
    /// The thread that commits cannot be started.
    #[error("no thread could be started ({0}); raise the limit on processes")]
    Thread(#[source] io::Error),
}

impl Error {
    /// `error` at `path`.
    #[must_use]
    pub fn at(path: impl VolumePath, error: FsError) -> Self {
        Self::At {
            path: String::from_utf8_lossy(path.path_bytes()).into_owned(),
            error,
        }
    }

    /// The same error at another path: the one that the caller gave.
    pub(crate) fn moved_to(self, path: &[u8]) -> Self {
        match self {
            Self::At { error, .. } => Self::at(path, error),
            other => other,
        }
    }

    /// What failed, if it is a file operation or the volume below it.
    fn cause(&self) -> Option<FsError> {
        match self {
            Self::At { error, .. } | Self::Fs(error) => Some(error.clone()),
            Self::Store(error) => Some(error.clone().into()),
            Self::Send(error) => match &**error {
                SendError::Fs(error) => Some(error.clone()),
                _ => None,
            },
            Self::Receive(error) => match &**error {
                ReceiveError::Target {
                    error: TargetError::Fs(error),
                    ..
                } => Some(error.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    /// True if the volume refuses, and not one file of it: the next operation of
    /// the kind would fail, too.
    #[must_use]
    pub fn is_of_volume(&self) -> bool {
        match self {
            Self::At { error, .. } | Self::Fs(error) => error.is_of_volume(),
            Self::Store(error) => FsError::from(error.clone()).is_of_volume(),
            _ => true,
        }
    }

    /// The kind that `std::io` gives to the errno of a system call which fails
    /// for the same reason.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::NoSubvolume(_) => io::ErrorKind::NotFound,
            Self::Thread(error) => error.kind(),
            Self::Device(error) => device_kind(error),
            Self::InUse { .. } => io::ErrorKind::AlreadyExists,
            Self::Holds { .. } => io::ErrorKind::InvalidData,
            error => error.cause().map_or(io::ErrorKind::Other, |cause| {
                io::Error::from_raw_os_error(cause.errno()).kind()
            }),
        }
    }

    /// What to do about it, in half a sentence; `None` if the error itself says
    /// everything.
    #[must_use]
    pub fn next_step(&self) -> Option<&'static str> {
        if let Self::Device(error) = self {
            return Some(match device_kind(error) {
                io::ErrorKind::NotFound => "check the path, or make a volume with make_volume",
                io::ErrorKind::PermissionDenied => "check the permissions of the device",
                io::ErrorKind::ResourceBusy => "end the other use of the device first",
                _ => return None,
            });
        }
        Some(match self.cause()? {
            FsError::NotFound => "list the directory with Volume::read_dir to see what is there",
            FsError::Exists => "remove it first, or choose another name",
            FsError::NotEmpty => "remove what is in it first, or use Volume::remove_dir_all",
            FsError::IsADirectory => "use the calls for directories",
            FsError::NotADirectory => "use the calls for files, or a path through directories",
            FsError::ReadOnlySubvolume => {
                "change a writable snapshot of it, or make it writable with \
                 Volume::set_subvolume_access"
            }
            FsError::HoldsSubvolume => "remove it with Volume::delete_subvolume",
            FsError::CrossesSubvolumes => "copy it, or share its data with Volume::reflink",
            FsError::QuotaExceeded => "delete something in the quota group, or raise its limit",
            FsError::Busy(_) => "try again when the other use has ended",
            FsError::Damaged { .. } => "check the volume with butterfs::check",
            FsError::Store(StoreError::NoSpace) => {
                "delete files or snapshots, or enlarge the volume"
            }
            FsError::Store(StoreError::ReadOnly) => {
                "open the volume for writing, with OpenOptions::default"
            }
            _ => return None,
        })
    }
}

fn device_kind(error: &DeviceError) -> io::ErrorKind {
    match error {
        DeviceError::Busy { .. } => io::ErrorKind::ResourceBusy,
        DeviceError::NotADevice { .. } => io::ErrorKind::InvalidInput,
        DeviceError::ReadOnly { .. } => io::ErrorKind::ReadOnlyFilesystem,
        DeviceError::OutOfRange { .. } | DeviceError::CutShort { .. } => {
            io::ErrorKind::UnexpectedEof
        }
        error => error
            .io_source()
            .map_or(io::ErrorKind::Other, io::Error::kind),
    }
}

impl From<MkfsError> for Error {
    fn from(error: MkfsError) -> Self {
        Self::Mkfs(Box::new(error))
    }
}

impl From<CheckError> for Error {
    fn from(error: CheckError) -> Self {
        Self::Check(Box::new(error))
    }
}

impl From<SendError> for Error {
    fn from(error: SendError) -> Self {
        Self::Send(Box::new(error))
    }
}

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        Self::Receive(Box::new(error))
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        Self::new(error.kind(), error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Volume};

    #[test]
    fn a_device_that_is_not_there_or_busy_is_known_by_its_kind() {
        let folder = tempfile::tempdir().expect("a directory");
        let image = folder.path().join("disk.img");
        let missing = Volume::open(&image, OpenOptions::default()).expect_err("no file");
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
        assert!(missing.next_step().is_some());
        assert_eq!(io::Error::from(missing).kind(), io::ErrorKind::NotFound);
        crate::make_volume(&image, 256 << 20, &crate::MkfsOptions::default()).expect("a volume");
        let open = Volume::open(&image, OpenOptions::default()).expect("it opens");
        let busy = Volume::open(&image, OpenOptions::default()).expect_err("it is open");
        assert_eq!(busy.kind(), io::ErrorKind::ResourceBusy);
        open.close().expect("it closes");
    }
}
