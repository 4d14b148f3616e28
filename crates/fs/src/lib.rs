//! Files and directories on an open volume.
//!
//! Owns inodes, names, attributes, extended attributes, file data and the write
//! buffer. Uses the store's trees and transactions.
//!
//! Lock order: inodes (ascending [`InodeId`] when several are waited for) ->
//! addresses of data -> a subvolume's lock of writes in place -> cleaning -> the
//! store's commit lock -> the engine -> the inode table's shards. No lock but
//! inodes' own, and that of writes in place, is held while data are read,
//! written or compressed.

pub mod access;
mod acl;
pub mod attr;
mod change;
mod compression_feature;
pub mod dir;
pub mod error;
pub mod file;
pub mod inode;
mod inode_fault;
mod inode_loading;
mod inode_numbers;
mod inode_state;
pub mod listing;
pub mod log;
mod mode;
pub mod names;
mod new_inode;
pub mod options;
mod orphan;
mod read_dir;
pub mod receive;
pub mod rename;
pub mod send;
pub mod subvolume;
mod write_rules;
pub mod xattr;

pub use error::FsError;
pub use inode::{Inode, InodeState};
pub use inode_fault::{ExtentFault, InodeFault, LogFault, Unreadable, WrongSum};
pub use options::Options;

use butterfs_format::{ChecksumType, InodeId, InodeNumber, TreeId};
use butterfs_store::{Store, StoreError};
use inode::InodeTable;
use inode_numbers::InodeNumbers;
use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;
use std::sync::Arc;
use write_rules::WriteRules;

/// A volume's files.
pub struct Filesystem {
    pub(crate) store: Arc<Store>,
    pub(crate) options: Options,
    pub(crate) inodes: InodeTable,
    pub(crate) buffers: file::budget::Budget,
    pub(crate) unpacked: file::Unpacked,
    pub(crate) reading: file::reading::Reading,
    pub(crate) in_place: subvolume::in_place::InPlaceLocks,
    pub(crate) write_rules: WriteRules,
    /// Bytes of a sector.
    pub(crate) sector_size: u64,
    /// Checksum of data.
    pub(crate) checksum: ChecksumType,
    /// Subvolume whose root is the root of the view.
    pub(crate) subvolume: TreeId,
    /// Numbers for new inodes.
    pub(crate) next_inodes: InodeNumbers,
    /// Listings of directories that are under way.
    pub(crate) listings: listing::Listings,
    /// Renames of directories happen one at a time.
    pub(crate) renaming: Mutex<()>,
    /// Held for a step of freeing deleted subvolumes.
    pub(crate) cleaning: Mutex<()>,
    /// Subvolumes that are being deleted while some of their inodes may still
    /// be in use: nothing of them is freed yet.
    pub(crate) leaving: Mutex<FxHashSet<TreeId>>,
    /// Deleted subvolumes that cannot be read to their end, and why: they are
    /// left as they are until the volume is opened again.
    pub(crate) stuck: Mutex<FxHashMap<TreeId, StoreError>>,
    /// Subvolumes that were looked into. At the first look, files without names
    /// that a crash left in them are deleted.
    pub(crate) visited: RwLock<FxHashSet<TreeId>>,
}

impl fmt::Debug for Filesystem {
    /// Leaves out most of what is in memory.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filesystem")
            .field("subvolume", &self.subvolume)
            .finish_non_exhaustive()
    }
}

impl Filesystem {
    /// Gives up memory that only makes later work faster: half of the clean nodes,
    /// idle inodes, free memory of write buffers. For when the system is short of
    /// memory.
    pub fn shrink_memory(&self) {
        self.store.shrink_cache();
        self.inodes.shrink();
        self.buffers.clear_spare();
    }

    /// Lets what [`Filesystem::shrink_memory`] made smaller grow again, twofold at
    /// most. Says whether it has its full size.
    pub fn grow_memory(&self) -> bool {
        self.store.grow_cache()
    }

    /// The files of `store`, seen from the root of `subvolume`.
    #[must_use]
    pub fn new(store: Arc<Store>, subvolume: TreeId, options: Options) -> Self {
        let (sector_size, checksum, buffers) = {
            let engine = store.read();
            let buffers = file::budget::Budget::new(options.buffer_bytes, engine.acknowledged());
            let checksum = engine.superblock().checksum_type;
            (engine.sector_size(), checksum, buffers)
        };
        let idle_inodes = options.idle_inodes;
        Self {
            buffers,
            unpacked: file::Unpacked::default(),
            reading: file::reading::Reading::new(options.threads),
            in_place: subvolume::in_place::InPlaceLocks::default(),
            write_rules: WriteRules::default(),
            sector_size,
            checksum,
            store,
            options,
            inodes: InodeTable::new(idle_inodes),
            subvolume,
            next_inodes: InodeNumbers::new(),
            listings: listing::Listings::default(),
            renaming: Mutex::new(()),
            cleaning: Mutex::new(()),
            leaving: Mutex::new(FxHashSet::default()),
            stuck: Mutex::new(FxHashMap::default()),
            visited: RwLock::new(FxHashSet::default()),
        }
    }

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
