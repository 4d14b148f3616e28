//! What a file operation can answer.

use crate::inode_fault::InodeFault;
use butterfs_format::{FileOffset, InodeId, ParseError};
use butterfs_store::{QuotaError, StoreError};
use thiserror::Error;

/// Why a file operation failed. Each kind maps to one errno.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotADirectory,
    /// EISDIR
    #[error("is a directory")]
    IsADirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// EINVAL
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// ENAMETOOLONG
    #[error("the name is longer than 255 bytes")]
    NameTooLong,
    /// ENAMETOOLONG
    #[error("the target of the symbolic link is longer than this volume can hold")]
    TargetTooLong,
    /// ELOOP
    #[error("too many symbolic links in this path")]
    LinkLoop,
    /// EROFS
    #[error("the subvolume is read-only; `butterfs property set SUBVOLUME ro false` changes that")]
    ReadOnlySubvolume,
    /// EMLINK
    #[error("the file has as many links as it can have; copy it instead")]
    TooManyLinks,
    /// EBUSY
    #[error(
        "this is a subvolume, which is not removed with a directory; `butterfs subvolume delete` \
         deletes it"
    )]
    HoldsSubvolume,
    /// ENOSPC, as in the kernel: an extended attribute is larger than an item.
    #[error(
        "the attribute is too large: a volume with nodes of this size holds {most} bytes of its name and value, less what others with the same hash have"
    )]
    AttributeTooLarge {
        /// Bytes of name and value that an attribute may have.
        most: usize,
    },
    /// EXDEV
    #[error("the two lie in different subvolumes; copy instead")]
    CrossesSubvolumes,
    /// EPERM
    #[error("operation not permitted: {0}")]
    NotPermitted(&'static str),
    /// EACCES
    #[error("permission denied")]
    AccessDenied,
    /// EFBIG
    #[error("beyond the largest size of a file, 2^63 - 1 bytes")]
    TooBig,
    /// ENODATA
    #[error("no such attribute")]
    NoAttribute,
    /// ERANGE
    #[error("the result does not fit")]
    DoesNotFit,
    /// EOVERFLOW
    #[error("too many names in this directory have the hash of this one; choose another name")]
    HashOverflow,
    /// EOVERFLOW
    #[error("too many subvolumes were received from one; delete some, or make this one writable")]
    TooManyReceived,
    /// ENXIO
    #[error("nothing at or beyond this offset")]
    NoMoreData,
    /// EOPNOTSUPP
    #[error("not supported: {0}")]
    NotSupported(&'static str),
    /// EDQUOT
    #[error(
        "a limit of a quota group would be exceeded; `butterfs qgroup show -re` shows the limits"
    )]
    QuotaExceeded,
    /// EBUSY
    #[error("busy: {0}")]
    Busy(&'static str),
    /// EIO: an inode's data or items are damaged.
    #[error("inode {} of subvolume {}{}: {fault}", .inode.number, .inode.tree, .at.map(|at| format!(" at offset {at}")).unwrap_or_default())]
    Damaged {
        /// Inode.
        inode: InodeId,
        /// Offset in the file, for data.
        at: Option<FileOffset>,
        /// What is wrong.
        fault: Box<InodeFault>,
    },
    /// Data that could not be brought to the device wait in memory for the next
    /// try. Everything else is on the device. The errno is that of the cause.
    #[error("{bytes} bytes of {files} files could not be written; the first is inode {} of subvolume {}: {cause}", .inode.number, .inode.tree)]
    NotFlushed {
        /// The first file.
        inode: InodeId,
        /// How many files there are.
        files: usize,
        /// Bytes of them that wait.
        bytes: u64,
        /// What the first one met.
        cause: Box<FsError>,
    },
    /// The fsync log waits, and damage, in it or in what it changes, keeps it
    /// from being replayed. The errno is that of the damage.
    #[error(
        "the fsync log cannot be replayed: {0}; -o ro,rescue=nologreplay reads the volume as of \
         its last commit, and `butterfs rescue zero-log` gives up what only the log has"
    )]
    NotReplayed(Box<FsError>),
    /// EINTR: the process that asked is gone, or wants no more of it.
    #[error("interrupted")]
    Interrupted,
    /// An error of the store (ENOSPC, EROFS, EIO).
    #[error(transparent)]
    Store(StoreError),
}

impl<E: Into<StoreError>> From<E> for FsError {
    fn from(error: E) -> Self {
        Self::Store(error.into())
    }
}

impl FsError {
    /// True if the only problem is a node that is not in memory. The operation
    /// is begun again with this node.
    pub(crate) const fn is_missing_node(&self) -> bool {
        matches!(self, Self::Store(error) if error.is_missing_node())
    }

    /// True if something on the devices is damaged.
    pub(crate) const fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Store(error) => error.is_damage(),
            _ => false,
        }
    }

    /// A damaged item of an inode.
    #[must_use]
    pub fn bad_item(inode: InodeId, item: &'static str, error: &ParseError) -> Self {
        Self::Damaged {
            inode,
            at: None,
            fault: Box::new(InodeFault::Item {
                item,
                error: error.clone(),
            }),
        }
    }

    /// True if the volume refuses, and not this one file: the next operation of
    /// the kind would fail, too. A damaged item or sector is no such error.
    #[must_use]
    pub const fn is_of_volume(&self) -> bool {
        match self {
            Self::QuotaExceeded | Self::NotFlushed { .. } | Self::Interrupted => true,
            Self::Store(error) => matches!(
                error,
                StoreError::NoSpace
                    | StoreError::ReadOnly
                    | StoreError::LogWaits
                    | StoreError::Closed
                    | StoreError::ChangedAtClose
                    | StoreError::Poisoned(_)
                    | StoreError::ShutDown
                    | StoreError::Internal(_)
            ),
            _ => false,
        }
    }

    /// Its errno on Linux.
    #[must_use]
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound => 2,
            Self::Interrupted => 4,
            Self::Exists => 17,
            Self::NotADirectory => 20,
            Self::IsADirectory => 21,
            Self::NotEmpty => 39,
            Self::Invalid(_) => 22,
            Self::NameTooLong | Self::TargetTooLong => 36,
            Self::LinkLoop => 40,
            Self::TooManyLinks => 31,
            Self::ReadOnlySubvolume => 30,
            Self::HoldsSubvolume => 16,
            Self::CrossesSubvolumes => 18,
            Self::NotPermitted(_) => 1,
            Self::AccessDenied => 13,
            Self::AttributeTooLarge { .. } => 28,
            Self::TooBig => 27,
            Self::NoAttribute => 61,
            Self::DoesNotFit => 34,
            Self::HashOverflow | Self::TooManyReceived => 75,
            Self::NoMoreData => 6,
            Self::NotSupported(_) => 95,
            Self::Busy(_) => 16,
            Self::QuotaExceeded => 122,
            Self::Damaged { .. } => 5,
            Self::NotFlushed { cause, .. } | Self::NotReplayed(cause) => cause.errno(),
            Self::Store(error) => match error {
                StoreError::NoSpace => 28,
                StoreError::BadLabel => 22,
                StoreError::Quota(error) => quota_errno(error),
                StoreError::ReadOnly | StoreError::Poisoned(_) | StoreError::LogWaits => 30,
                _ => 5,
            },
        }
    }
}

/// As in the kernel's calls for quota groups.
const fn quota_errno(error: &QuotaError) -> i32 {
    match error {
        QuotaError::Off => 107,
        QuotaError::Exists(_) | QuotaError::Related { .. } => 17,
        QuotaError::NoGroup(_) | QuotaError::NotRelated { .. } => 2,
        QuotaError::HasMembers(_) | QuotaError::OfSubvolume(_) | QuotaError::InUse(_) => 16,
        QuotaError::Counting => 115,
        QuotaError::WrongLevels { .. } | QuotaError::OtherMode | QuotaError::NeverScanned => 22,
    }
}
