//! Locks of operations that use addresses of data.

use crossbeam_utils::sync::ShardedLock;
use parking_lot::RwLock;
use std::sync::atomic::AtomicU64;

/// The locks.
#[derive(Debug, Default)]
pub(crate) struct Addresses {
    /// Has parts, so that readers on several processors write no memory that
    /// they share.
    pub(crate) readers: ShardedLock<()>,
    /// May be held by a thread that holds it already.
    pub(crate) others: RwLock<()>,
    /// How often data got new addresses.
    pub(crate) moves: AtomicU64,
}
