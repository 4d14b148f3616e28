//! The lock of the engine, with a count of what waiting for it costs.
//!
//! A thread that gets the lock at once pays nothing for the counts.

use crate::engine::Engine;
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What threads have waited for the engine since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// How often a thread did not get the lock at once.
    pub count: u64,
    /// How long all of them waited together.
    pub total: Duration,
    /// Nodes that were read from the device under the lock.
    pub reads_under_lock: u64,
    /// Nodes that were read from the device while others used the engine.
    pub reads_outside: u64,
}

impl LockWaits {
    /// What came since `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            count: self.count - before.count,
            total: self.total.saturating_sub(before.total),
            reads_under_lock: self.reads_under_lock - before.reads_under_lock,
            reads_outside: self.reads_outside - before.reads_outside,
        }
    }
}

/// The engine behind its lock.
#[derive(Debug)]
pub(crate) struct EngineLock {
    engine: RwLock<Engine>,
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl EngineLock {
    pub(crate) const fn new(engine: Engine) -> Self {
        Self {
            engine: RwLock::new(engine),
            count: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Engine> {
        if let Some(engine) = self.engine.try_read() {
            return engine;
        }
        self.waiting(|| self.engine.read())
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Engine> {
        if let Some(engine) = self.engine.try_write() {
            return engine;
        }
        self.waiting(|| self.engine.write())
    }

    #[cold]
    fn waiting<G>(&self, lock: impl FnOnce() -> G) -> G {
        let start = Instant::now();
        let guard = lock();
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.nanoseconds.fetch_add(waited, Ordering::Relaxed);
        guard
    }

    /// How often threads waited, and how long.
    pub(crate) fn waits(&self) -> (u64, Duration) {
        let nanoseconds = self.nanoseconds.load(Ordering::Relaxed);
        (
            self.count.load(Ordering::Relaxed),
            Duration::from_nanos(nanoseconds),
        )
    }
}
