//! What can go wrong with a tree.

use butterfs_format::{Key, Logical, NodeRef, TreeId};
use std::sync::Arc;
use thiserror::Error;

/// What is wrong with a node; each check has its own kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NodeFault {
    /// Size is not the volume's node size.
    #[error("its size is wrong")]
    Size,
    /// Checksum field and content differ.
    #[error("its checksum does not match")]
    Checksum,
    /// Belongs to another volume.
    #[error("it belongs to another volume (fsid differs)")]
    Fsid,
    /// Says that it lies elsewhere.
    #[error("it says that it lies at another address")]
    Address,
    /// Not the generation that its parent names.
    #[error("its generation is not the one that its parent names")]
    Generation,
    /// Not the level that its parent names.
    #[error("its level is not the one that its parent names")]
    Level,
    /// More items than fit.
    #[error("it has more items than fit")]
    ItemCount,
    /// A branch without pointers, or an empty leaf that is no root.
    #[error("it is empty but not a root")]
    Empty,
    /// Keys do not ascend.
    #[error("its keys do not ascend")]
    KeyOrder,
    /// First key is not the one that its parent names.
    #[error("its first key is not the one that its parent names")]
    FirstKey,
    /// Last key reaches into its right neighbour.
    #[error("its last key reaches into its right neighbour")]
    LastKey,
    /// Item data lie outside, overlap or leave gaps.
    #[error("the data of an item lie outside of it or over one another")]
    ItemRange,
    /// A pointer to an impossible address.
    #[error("a pointer has an impossible address")]
    Pointer,
    /// It belongs to a tree that cannot have it here.
    #[error("the tree that it belongs to cannot have it here")]
    Owner,
    /// A pointer is newer than the node that holds it.
    #[error("a pointer is newer than the node that holds it")]
    PointerGeneration,
}

/// Why a tree operation failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A node is damaged.
    #[error("tree node at logical {logical} is damaged: {fault}")]
    Corrupt {
        /// Its address.
        logical: Logical,
        /// What is wrong.
        fault: NodeFault,
    },
    /// The tree is not there.
    #[error("tree {0} does not exist")]
    NoSuchTree(TreeId),
    /// An item of this key exists.
    #[error("item {0} exists already")]
    Exists(Key),
    /// No item of this key.
    #[error("item {0} does not exist")]
    NotFound(Key),
    /// Data of an item do not fit a leaf.
    #[error("item {key} of {size} bytes does not fit a tree node")]
    ItemTooLarge {
        /// Its key.
        key: Key,
        /// Its data's bytes.
        size: usize,
    },
    /// The tree would grow beyond its greatest level.
    #[error("tree {0} would grow beyond the greatest level")]
    TooHigh(TreeId),
    /// Calls came in the wrong order; a fault in ButterFS.
    #[error("internal error, please report it: {0}")]
    Misuse(&'static str),
    /// A node is not in memory, and the caller asked to be told so instead of
    /// waiting for it.
    #[error("the tree node at logical {} is not in memory", .0.logical)]
    Missing(NodeRef),
    /// An error of the source or sink.
    #[error(transparent)]
    Store(Arc<dyn std::error::Error + Send + Sync>),
}

impl TreeError {
    /// Wraps an error of the store.
    pub fn store(error: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self::Store(Arc::new(error))
    }
}
