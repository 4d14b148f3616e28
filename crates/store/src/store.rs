//! An open volume, for all that works on it.

use crate::address_locks::Addresses;
use crate::commit::device_loss::DeviceLoss;
use crate::exclusive_kind::ExclusiveKind;
use crate::fsync_log::group::FsyncGroup;
use crate::open::options::{Barriers, Discard};
use crate::transaction::engine_lock::{EngineLock, LockWaits, Reading};
use butterfs_device::{Access, BlockDevice};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_tree::VolumeIdentity;
use butterfs_volume::LogicalSpace;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// An open volume.
///
/// Lock order: `addresses`, the lead of `fsyncs`, `writing_nodes`,
/// `committing`, the engine's lock.
#[derive(Debug)]
pub struct Store {
    pub(crate) engine: EngineLock,
    pub(crate) space: Arc<LogicalSpace>,
    /// As the engine has it.
    pub(crate) identity: VolumeIdentity,
    /// Nodes that were read without the lock of the engine.
    pub(crate) reads_outside: AtomicU64,
    /// Operations that use addresses of data.
    pub(crate) addresses: Addresses,
    pub(crate) fsyncs: FsyncGroup,
    /// Held while superblocks are written.
    pub(crate) committing: Mutex<()>,
    /// Held while nodes of generations are written. Taken before
    /// `committing`, so that no fsync waits for a thread that waits until nodes
    /// are written.
    pub(crate) writing_nodes: Mutex<()>,
    /// Commits that were asked for and are not done.
    pub(crate) commits_under_way: AtomicUsize,
    pub(crate) left_to_commit: usize,
    pub(crate) access: Access,
    pub(crate) poisoned: AtomicBool,
    /// Set with the engine locked.
    pub(crate) closed: AtomicBool,
    pub(crate) reason: Mutex<Option<String>>,
    pub(crate) device_loss: DeviceLoss,
    pub(crate) barriers: Barriers,
    pub(crate) discard: Discard,
    /// The operation on the whole volume that runs; only one may run at a time.
    pub(crate) exclusive: Mutex<Option<ExclusiveKind>>,
    /// Devices that the kernel's replacement was to bring into the volume.
    pub(crate) replacement_targets: Vec<Arc<dyn BlockDevice>>,
    /// The copies of the superblock that counted at opening, while a fsync log
    /// waits: the others may differ until the log is verified.
    pub(crate) unequal_copies: Mutex<Option<BTreeMap<DeviceId, DeviceOffset>>>,
    /// The volume is just being made: no superblock says yet that there is one.
    pub(crate) nascent: AtomicBool,
}

impl Store {
    /// The engine, to read.
    pub fn read(&self) -> Reading<'_> {
        self.engine.read()
    }

    /// Halves the cache of clean nodes, because memory is short.
    pub fn shrink_cache(&self) {
        self.read().nodes.shrink_cache();
    }

    /// Lets the cache of clean nodes grow to twice as many, at most to its full
    /// size. Says whether it has that.
    pub fn grow_cache(&self) -> bool {
        self.read().nodes.grow_cache()
    }

    /// What waiting for the engine has cost so far.
    pub fn lock_waits(&self) -> LockWaits {
        let (count, total) = self.engine.waits();
        let engine = self.engine.read();
        LockWaits {
            count,
            total,
            reads_under_lock: engine.nodes.reads_under_lock(),
            reads_outside: self.reads_outside.load(Ordering::Relaxed),
        }
    }

    /// Logical space, for data I/O.
    pub const fn space(&self) -> &Arc<LogicalSpace> {
        &self.space
    }

    /// Whether the volume may change.
    pub const fn access(&self) -> Access {
        self.access
    }
}
