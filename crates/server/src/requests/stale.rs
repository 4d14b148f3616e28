//! Pages that the kernel could not write back.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files with pages in the kernel whose write-back was refused. A thread is
/// about to make the kernel drop them.
#[derive(Debug, Default)]
pub(super) struct Stale(Mutex<BTreeSet<u64>>);

impl Stale {
    pub(super) fn nodes(&self) -> MutexGuard<'_, BTreeSet<u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
