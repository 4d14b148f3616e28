//! Why sending ends early.

use crate::FsError;
use butterfs_format::send_stream::StreamFault;
use butterfs_format::{InodeNumber, TreeId};
use butterfs_store::StoreError;
use butterfs_tree::TreeError;
use thiserror::Error;

/// Why a send did not complete.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SendError {
    /// What is sent, its parent and the clone sources must not change
    /// meanwhile.
    #[error("subvolume {0} is not read-only: only read-only snapshots can be sent or sent from")]
    NotReadOnly(TreeId),
    /// The subvolume is being deleted.
    #[error("subvolume {0} is being deleted")]
    Deleted(TreeId),
    /// A directory or name is not what another item says.
    #[error("inode {inode} of subvolume {tree}: {reason}; run a check of the volume")]
    Damaged {
        /// Subvolume.
        tree: TreeId,
        /// Inode.
        inode: InodeNumber,
        /// What is wrong.
        reason: &'static str,
    },
    /// Reading the volume.
    #[error(transparent)]
    Fs(FsError),
    /// A command that streams cannot say.
    #[error(transparent)]
    Stream(#[from] StreamFault),
    /// Writing the stream.
    #[error("writing the stream: {0}")]
    Write(std::io::Error),
}

impl From<StoreError> for SendError {
    fn from(error: StoreError) -> Self {
        Self::Fs(FsError::Store(error))
    }
}

impl From<TreeError> for SendError {
    fn from(error: TreeError) -> Self {
        Self::Fs(error.into())
    }
}

impl SendError {
    pub(super) const fn fs(error: FsError) -> Self {
        Self::Fs(error)
    }
}
