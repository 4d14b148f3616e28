//! The lock of the engine. It counts what waiting for it costs.
//!
//! A thread that gets the lock at once pays nothing for the counts. The lock
//! has parts, and a reader takes only the part of its own thread. So readers on
//! several processors write no memory that they share. A thread that changes
//! the engine takes all parts.

use crate::engine::Engine;
use crossbeam_utils::CachePadded;
use crossbeam_utils::sync::{ShardedLock, ShardedLockReadGuard, ShardedLockWriteGuard};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often a thread looks whether the lock is free before it sleeps. Most
/// changes take a few microseconds, and a thread that slept comes back later.
const ROUNDS: usize = 100;
/// Pauses of a processor between two looks: a fifth of a microsecond.
const PAUSES: usize = 16;

/// How often a thread that wants to change the engine lets others run first
/// while some sleep.
const YIELDS: usize = 4;

/// What threads have waited for the engine since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockWaits {
    /// How often a thread did not get the lock at once.
    pub count: u64,
    /// How long all of them waited together.
    pub total: Duration,
    /// Nodes that were read from the device while the thread held the lock.
    pub reads_under_lock: u64,
    /// Nodes that were read from the device without the lock, while others used
    /// the engine.
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

/// The engine, to read.
pub type Reading<'s> = ShardedLockReadGuard<'s, Engine>;

/// The engine behind its lock. A panic does not close it: [`crate::Store`] fails
/// the volume then.
#[derive(Debug)]
pub(crate) struct EngineLock {
    engine: ShardedLock<Engine>,
    /// Threads that look again and again whether they can change the engine.
    changers: CachePadded<AtomicUsize>,
    /// Threads that sleep until they get the lock.
    asleep: AtomicUsize,
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl EngineLock {
    pub(crate) fn new(engine: Engine) -> Self {
        Self {
            engine: ShardedLock::new(engine),
            changers: CachePadded::default(),
            asleep: AtomicUsize::new(0),
            count: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
        }
    }

    fn try_read(&self) -> Option<Reading<'_>> {
        match self.engine.try_read() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn try_write(&self) -> Option<ShardedLockWriteGuard<'_, Engine>> {
        match self.engine.try_write() {
            Ok(engine) => Some(engine),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(crate) fn read(&self) -> Reading<'_> {
        let read = || self.engine.read().unwrap_or_else(PoisonError::into_inner);
        // Readers come and go so fast that a thread which wants to change the
        // engine would hardly meet a moment without one.
        let attempt = || match self.changers.load(Ordering::Relaxed) {
            0 => self.try_read(),
            _ => None,
        };
        match attempt() {
            Some(engine) => engine,
            None => self.waiting(attempt, read),
        }
    }

    pub(crate) fn write(&self) -> ShardedLockWriteGuard<'_, Engine> {
        // The lock itself prefers threads that arrive to threads that sleep.
        for _ in 0..YIELDS {
            if self.asleep.load(Ordering::Relaxed) == 0 {
                break;
            }
            std::thread::yield_now();
        }
        let write = || self.engine.write().unwrap_or_else(PoisonError::into_inner);
        match self.try_write() {
            Some(engine) => engine,
            None => {
                self.changers.fetch_add(1, Ordering::Relaxed);
                let sleep = || {
                    self.changers.fetch_sub(1, Ordering::Relaxed);
                    let engine = write();
                    self.changers.fetch_add(1, Ordering::Relaxed);
                    engine
                };
                let engine = self.waiting(|| self.try_write(), sleep);
                self.changers.fetch_sub(1, Ordering::Relaxed);
                engine
            }
        }
    }

    #[cold]
    fn waiting<G>(&self, mut attempt: impl FnMut() -> Option<G>, lock: impl FnOnce() -> G) -> G {
        let start = Instant::now();
        let soon = (0..ROUNDS).find_map(|_| {
            (0..PAUSES).for_each(|_| std::hint::spin_loop());
            attempt()
        });
        let guard = soon.unwrap_or_else(|| {
            self.asleep.fetch_add(1, Ordering::Relaxed);
            let guard = lock();
            self.asleep.fetch_sub(1, Ordering::Relaxed);
            guard
        });
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
