//! Why a volume was not repaired.

use butterfs_check::CheckError;
use butterfs_device::DeviceError;
use butterfs_tree::TreeError;
use butterfs_volume::VolumeError;
use thiserror::Error;

/// Why a repair ended without an outcome. The devices or the overlay may hold
/// nodes in space that nothing uses; the volume is as it was.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RepairError {
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The logical space failed.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A tree could not be read or changed.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The volume could not be checked.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// No superblock, no chunk tree or no tree of roots.
    #[error("the volume cannot be read: {0}; `butterfs rescue survey` says what is left of it")]
    Unreadable(&'static str),
    /// The volume is in a state that repair does not know.
    #[error("the volume cannot be repaired here: {0}")]
    Unsupported(String),
    /// No space for new nodes.
    #[error(
        "no free space is left for the nodes that the repair has to write, and the devices have no room \
         for another block group; make the device larger, then run `butterfs filesystem resize max`, \
         and repair again"
    )]
    NoSpace,
    /// More memory would be needed than allowed.
    #[error("the repair needs more than {0} bytes of memory; allow it more with --memory")]
    Memory(u64),
    /// The numbers of a commit did not come to rest.
    #[error("the repair did not end; report this as a fault of ButterFS")]
    Endless,
}

impl RepairError {
    /// Whether no space is left, also if a tree says so.
    pub(crate) fn is_no_space(&self) -> bool {
        match self {
            Self::NoSpace => true,
            Self::Tree(TreeError::Store(inner)) => {
                inner.downcast_ref::<Self>().is_some_and(Self::is_no_space)
            }
            _ => false,
        }
    }
}
