//! Files and directories on an open volume.
//!
//! Owns inodes, names, attributes, extended attributes, file data and the
//! write buffer. Stands on the store's trees and transactions.
//!
//! Lock order: inodes (ascending [`InodeId`] when several) -> the store's
//! commit lock -> the engine -> the inode table's shards. No lock but an
//! inode's own is held while data are read, written or compressed.

pub mod error;
pub mod file;
pub mod inode;
pub mod options;

pub use error::FsError;
pub use inode::{Inode, InodeState};
pub use options::Options;

use butterfs_format::{InodeId, InodeNumber, TreeId};
use butterfs_store::Store;
use inode::InodeTable;
use std::sync::Arc;

/// A volume's files.
#[derive(Debug)]
pub struct Filesystem {
    pub(crate) store: Arc<Store>,
    pub(crate) options: Options,
    pub(crate) inodes: InodeTable,
    pub(crate) buffers: file::buffer::Budget,
    /// Subvolume that the root of the view is.
    pub(crate) subvolume: TreeId,
}

impl Filesystem {
    /// The root directory of the mounted subvolume.
    #[must_use]
    pub const fn root(&self) -> InodeId {
        InodeId {
            tree: self.subvolume,
            number: InodeNumber::ROOT,
        }
    }

    /// The store below.
    #[must_use]
    pub const fn store(&self) -> &Arc<Store> {
        &self.store
    }
}
