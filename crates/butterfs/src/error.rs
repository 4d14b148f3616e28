//! What can go wrong with a volume as a whole.

use crate::held::Held;
use butterfs_device::DeviceError;
use butterfs_fs::FsError;
use butterfs_store::StoreError;

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
    /// The subvolume asked for does not exist.
    #[error("the volume has no subvolume {0}; `butterfs ls` shows what it has")]
    NoSubvolume(String),
    /// The device holds no volume but something else, or has no such part.
    #[error("{device} {held}")]
    Holds {
        /// The device.
        device: String,
        /// What it holds.
        held: Held,
    },
    /// The thread that commits cannot be started.
    #[error("no thread could be started ({0}); raise the limit on processes")]
    Thread(#[source] std::io::Error),
}

impl Error {
    /// `error` at `path`.
    #[must_use]
    pub fn at(path: &[u8], error: FsError) -> Self {
        Self::At {
            path: String::from_utf8_lossy(path).into_owned(),
            error,
        }
    }
}
