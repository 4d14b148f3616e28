//! What can go wrong with a volume.

use crate::exclusive_kind::ExclusiveKind;
use crate::item_fault::ItemFault;
use crate::membership_fault::MembershipFault;
use crate::open::member_fault::MemberFault;
use crate::open::older_copy::OlderCopy;
use crate::open::space_fault::SpaceFault;
use crate::quota::fault::QuotaError;
use crate::tune_fault::TuneFault;
use butterfs_device::DeviceError;
use butterfs_format::{Key, Logical, ParseError, TreeId};
use butterfs_tree::TreeError;
use butterfs_volume::VolumeError;
use std::sync::Arc;
use thiserror::Error;

/// Why an operation on a volume failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A device did not read, write or flush.
    #[error(transparent)]
    Device(Arc<DeviceError>),
    /// Logical space did not map, read or write.
    #[error(transparent)]
    Volume(Arc<VolumeError>),
    /// A tree is damaged or was misused.
    #[error(transparent)]
    Tree(TreeError),
    /// No usable superblock.
    #[error("{device} holds no Btrfs volume that can be opened: {reason}")]
    NoSuperblock {
        /// Where it was looked for.
        device: String,
        /// What each copy lacked.
        reason: String,
    },
    /// Only an older copy of the superblock is whole.
    #[error(transparent)]
    OlderCopy(#[from] OlderCopy),
    /// The devices that were given are not those of one volume.
    #[error(transparent)]
    Members(#[from] MemberFault),
    /// An item has impossible content.
    #[error("item {key} of tree {tree} {fault}; run a check of the volume")]
    CorruptItem {
        /// Tree.
        tree: TreeId,
        /// Item.
        key: Key,
        /// What is wrong.
        fault: ItemFault,
    },
    /// The descriptions of where space lies disagree with each other.
    #[error(
        "the volume is inconsistent and is not opened: {0}; nothing was changed: keep a copy of \
         the device and run a check of the volume"
    )]
    Inconsistent(#[from] SpaceFault),
    /// Damage of something that reading files does not need. `rescue=` passes over
    /// it.
    #[error("{0}; `-o ro,rescue=all` reads what is left")]
    PassableDamage(Box<Self>),
    /// The volume uses a feature that ButterFS does not know.
    #[error("this volume cannot be opened{}: {what}", if *.read_only_possible { " for writing, only for reading (-o ro)" } else { "" })]
    Unsupported {
        /// The feature.
        what: String,
        /// Reading is possible.
        read_only_possible: bool,
    },
    /// Somebody keeps writing to a block group that is being relocated.
    #[error("the block group at logical {0} is in use; try again later")]
    GroupInUse(Logical),
    /// The nodes to move belong to a deleted subvolume that is freed in part.
    #[error(
        "the deleted subvolume {0} is freed only in part; let it be freed first (`butterfs \
         subvolume sync`)"
    )]
    HalfFreed(TreeId),
    /// Something else of its kind is under way.
    #[error("{0} is under way on this volume; wait for it, or cancel it")]
    Exclusive(ExclusiveKind),
    /// A device that cannot be added, removed or replaced as asked.
    #[error(transparent)]
    Membership(#[from] MembershipFault),
    /// A size that a device cannot get.
    #[error("device {device} cannot get {wanted} bytes: {reason}")]
    BadSize {
        /// Device.
        device: butterfs_format::DeviceId,
        /// What was asked for.
        wanted: u64,
        /// Why.
        reason: String,
    },
    /// A label that the superblock cannot hold.
    #[error("a label has at most 255 bytes and no NUL")]
    BadLabel,
    /// No space left.
    #[error(
        "no space left on the volume; `butterfs filesystem usage --explain` says what frees some"
    )]
    NoSpace,
    /// A fsync log was not replayed.
    #[error(
        "the volume has a fsync log that was not replayed; open it for writing, or look at it \
         with -o ro,norecovery"
    )]
    LogWaits,
    /// The fsync log is damaged, or there is no space for what it has.
    #[error("the fsync log could not be replayed")]
    LogNotReplayed,
    /// The volume is open for reading only.
    #[error("the volume is open for reading only; open or mount it for writing")]
    ReadOnly,
    /// The volume was closed: nothing more is written.
    #[error("the volume is closed; open it again")]
    Closed,
    /// Others went on changing the volume while it was being closed.
    #[error(
        "the volume was changed while it was being closed, and the last changes are lost; end what \
         writes to it before you close it"
    )]
    ChangedAtClose,
    /// A commit failed; nothing more is written.
    #[error(
        "the volume became read-only after an error: {0}; unmount it, then run `butterfs check` on it"
    )]
    Poisoned(String),
    /// Somebody asked that nothing more is written.
    #[error("the volume was shut down on request; unmount it and mount it again")]
    ShutDown,
    /// The quota groups are not in the state that a change of them needs.
    #[error(transparent)]
    Quota(#[from] QuotaError),
    /// A volume cannot be tuned as was asked.
    #[error(transparent)]
    Tune(#[from] TuneFault),
    /// A fault of ButterFS.
    #[error("internal error, please report it: {0}")]
    Internal(&'static str),
}

impl StoreError {
    /// True if the only problem is a node that is not in memory. The operation
    /// is begun again with this node.
    #[must_use]
    pub const fn is_missing_node(&self) -> bool {
        matches!(self, Self::Tree(TreeError::Missing(_)))
    }

    /// True if bytes of the volume are not what they should be. An older state
    /// of the volume may help then.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        if self.is_missing_node() {
            return false;
        }
        matches!(
            self,
            Self::Tree(_)
                | Self::Volume(_)
                | Self::CorruptItem { .. }
                | Self::Inconsistent(_)
                | Self::PassableDamage(_)
                | Self::OlderCopy(OlderCopy::Overwritten { .. } | OlderCopy::OlderPrimary { .. })
        )
    }
}

impl From<TreeError> for StoreError {
    fn from(error: TreeError) -> Self {
        // Errors of the store pass through the tree and come back here.
        if let TreeError::Store(inner) = &error
            && let Some(store) = inner.downcast_ref::<Self>()
        {
            return store.clone();
        }
        Self::Tree(error)
    }
}

impl From<StoreError> for TreeError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Tree(error) => error,
            other => Self::store(other),
        }
    }
}

impl From<DeviceError> for StoreError {
    fn from(error: DeviceError) -> Self {
        match error {
            DeviceError::Released { .. } => Self::Closed,
            error => Self::Device(Arc::new(error)),
        }
    }
}

impl From<VolumeError> for StoreError {
    fn from(error: VolumeError) -> Self {
        match &error {
            VolumeError::Device(device) if matches!(**device, DeviceError::Released { .. }) => {
                Self::Closed
            }
            _ => Self::Volume(Arc::new(error)),
        }
    }
}

/// A [`StoreError::CorruptItem`].
pub const fn corrupt_item(tree: TreeId, key: Key, fault: ItemFault) -> StoreError {
    StoreError::CorruptItem { tree, key, fault }
}

/// A [`StoreError::CorruptItem`] from a parser's error.
pub fn bad_item(tree: TreeId, key: Key, error: &ParseError) -> StoreError {
    corrupt_item(tree, key, ItemFault::Parse(Box::new(error.clone())))
}
