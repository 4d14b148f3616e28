//! The count of quota groups that is under way.

use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, PoisonError, TryLockError};

/// A count of all groups.
#[derive(Debug, Default)]
pub(super) struct Rescan {
    pub(super) running: Mutex<()>,
    pub(super) nodes: AtomicU64,
}

impl Rescan {
    pub(super) fn is_running(&self) -> bool {
        matches!(self.running.try_lock(), Err(TryLockError::WouldBlock))
    }

    pub(super) fn wait(&self) {
        drop(self.running.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
