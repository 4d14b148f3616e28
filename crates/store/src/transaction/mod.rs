//! Changes of a volume: whole, or the volume fails.
//!
//! Owns who may change the engine. Other crates can do so only by a
//! [`Transaction`], this crate by a [`Change`]. If a panic leaves the engine
//! half changed, both fail the volume before they unlock the engine, so that no
//! commit can publish it.
//!
//! Invariants: a transaction that edited something is finished, or the volume
//! is failed. A failed volume gives out no engine to change.

pub mod engine_lock;

use crate::engine::Engine;
use crate::error::StoreError;
use crate::nodes::node_loading::Tries;
use crate::space::reserve::{Crowding, Purpose};
use crate::{Access, Store};
use butterfs_format::Logical;
use crossbeam_utils::sync::ShardedLockWriteGuard;
use std::fmt::Display;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;

/// The engine, to change. A panic while it is held fails the volume.
#[derive(Debug)]
pub(crate) struct Change<'s> {
    engine: ShardedLockWriteGuard<'s, Engine>,
    store: &'s Store,
    /// A panic was already under way. The changes that its clean-up makes here
    /// are complete.
    was_panicking: bool,
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        // The lock is released after this. So nobody sees the half-made change
        // of a volume that is not failed yet.
        if std::thread::panicking() && !self.was_panicking {
            self.store.fail_after_panic();
        }
    }
}

impl Deref for Change<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Change<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

/// Fails the volume when a panic passes it. It is for work that is not under
/// the engine's lock and must not be left half done without notice.
#[derive(Debug)]
#[must_use = "it watches until it is dropped"]
pub struct FailOnPanic<'s>(&'s Store);

impl Drop for FailOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail_after_panic();
        }
    }
}

/// A change of trees that has room for its nodes. It must be finished. When it
/// is dropped unfinished after its first edit, by an error or a panic, it fails
/// the volume: nothing of it, and nothing after it, reaches a superblock. Before
/// the first edit it may be dropped; then nothing happened.
#[derive(Debug)]
#[must_use = "a transaction must be finished"]
pub struct Transaction<'s> {
    engine: Change<'s>,
    /// Edits of the engine before this one.
    edits: u64,
    finished: bool,
}

impl<'s> Transaction<'s> {
    fn new(engine: Change<'s>) -> Self {
        Self {
            edits: engine.edits,
            engine,
            finished: false,
        }
    }

    /// Runs `change`. If that meets a node which is not in memory before its
    /// first edit, it ends, and `tries` notes the node. The caller drops this
    /// transaction and begins again with the node.
    pub fn attempt<R>(&mut self, tries: &mut Tries, change: impl FnOnce(&mut Engine) -> R) -> R {
        self.engine.try_change(tries, change)
    }

    /// True when it changed something.
    #[must_use]
    pub fn has_edited(&self) -> bool {
        self.engine.edits != self.edits
    }

    /// Ends a change that is whole. The next commit publishes it.
    pub fn finish(mut self) {
        self.finished = true;
    }

    /// Finishes a change whose result is good. An error after the first edit
    /// fails the volume; an error before it changes nothing.
    ///
    /// # Errors
    /// The one given.
    pub fn end<R, E: Display>(mut self, result: Result<R, E>) -> Result<R, E> {
        if let Err(error) = &result
            && self.has_edited()
        {
            let reason = format!("a change could not be completed: {error}");
            self.engine.store.fail_for(reason);
        }
        self.finished = true;
        result
    }
}

impl Drop for Transaction<'_> {
    fn drop(&mut self) {
        if !self.finished && self.has_edited() {
            let reason = "a change ended before it was complete".to_owned();
            self.engine.store.fail_for(reason);
        }
    }
}

impl Deref for Transaction<'_> {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut Engine {
        &mut self.engine
    }
}

impl Store {
    /// While the returned value lives, a panic fails the volume.
    pub const fn fail_on_panic(&self) -> FailOnPanic<'_> {
        FailOnPanic(self)
    }

    /// The engine, to change by this crate's own rules.
    pub(crate) fn change(&self) -> Change<'_> {
        Change {
            engine: self.engine.write(),
            store: self,
            was_panicking: std::thread::panicking(),
        }
    }

    /// [`Store::change`] for a volume that can be written. If the volume failed
    /// while the caller waited for the engine, the caller gets an error.
    ///
    /// # Errors
    /// As [`Store::check_writable`].
    pub(crate) fn change_writable(&self) -> Result<Change<'_>, StoreError> {
        self.check_writable()?;
        let engine = self.change();
        self.check_writable()?;
        Ok(engine)
    }

    /// Returns allocated space that nothing refers to. This needs no room for
    /// nodes, so it works on a full volume too. A failed volume keeps the space.
    pub fn give_back(&self, pieces: impl IntoIterator<Item = (Logical, u64)>) {
        if let Ok(mut engine) = self.change_writable() {
            for (logical, length) in pieces {
                engine.give_back(logical, length);
            }
        }
    }

    /// Begins a change that touches at most `nodes` nodes. Commits first if
    /// that is needed to free the room or the memory.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] before anything changed; not writable.
    pub fn begin(&self, nodes: usize, purpose: Purpose) -> Result<Transaction<'_>, StoreError> {
        for attempt in 0..2 {
            let engine = self.change_writable()?;
            if engine.log.waits() {
                return Err(StoreError::LogWaits);
            }
            if !self.is_commit_due(&engine) {
                match self.reserve(engine, nodes, purpose) {
                    Ok(engine) => return Ok(Transaction::new(engine)),
                    Err(StoreError::NoSpace) if attempt == 0 => {}
                    Err(error) => return Err(error),
                }
            } else {
                drop(engine);
            }
            self.commit()?;
        }
        let engine = self.change_writable()?;
        Ok(Transaction::new(self.reserve(engine, nodes, purpose)?))
    }

    /// Whether the generation is to be committed before it changes any more.
    pub(crate) fn is_commit_due(&self, engine: &Engine) -> bool {
        match engine.crowding() {
            Crowding::Roomy => false,
            Crowding::Crowded => self.commits_under_way.load(Ordering::SeqCst) == 0,
            Crowding::Full => true,
        }
    }

    /// Reserves room. If the free-space tree is not in memory, it is read
    /// without the lock of the engine.
    fn reserve<'s>(
        &'s self,
        mut engine: Change<'s>,
        nodes: usize,
        purpose: Purpose,
    ) -> Result<Change<'s>, StoreError> {
        let mut tries = Tries::default();
        loop {
            let reserved = engine.try_change(&mut tries, |engine| engine.reserve(nodes, purpose));
            if !tries.missed() {
                return reserved.map(|()| engine);
            }
            drop(engine);
            self.load_missing(&mut tries);
            engine = self.change_writable()?;
        }
    }

    /// Begins the replay of the fsync log, which is one change.
    ///
    /// # Errors
    /// Not writable.
    pub fn begin_replay(&self) -> Result<Transaction<'_>, StoreError> {
        Ok(Transaction::new(self.change_writable()?))
    }

    /// A transaction within a commit. The commit has the locks.
    pub(crate) fn begin_in_commit(
        &self,
        nodes: usize,
        purpose: Purpose,
    ) -> Result<Transaction<'_>, StoreError> {
        let mut engine = self.change_writable()?;
        if engine.log.waits() {
            return Err(StoreError::LogWaits);
        }
        if engine.crowding() != Crowding::Roomy || engine.reserve(nodes, purpose).is_err() {
            drop(engine);
            self.commit_alone()?;
            engine = self.change_writable()?;
            engine.reserve(nodes, purpose)?;
        }
        Ok(Transaction::new(engine))
    }

    /// Errors unless changes are possible.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`], [`StoreError::Poisoned`],
    /// [`StoreError::Closed`]
    pub fn check_writable(&self) -> Result<(), StoreError> {
        self.check_open()?;
        if self.access == Access::ReadOnly {
            return Err(StoreError::ReadOnly);
        }
        if self.poisoned.load(Ordering::Acquire) {
            let reason = self.reason.lock().clone().unwrap_or_default();
            return Err(StoreError::Poisoned(reason));
        }
        Ok(())
    }

    /// Errors when the volume was closed.
    ///
    /// # Errors
    /// [`StoreError::Closed`]
    pub fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(StoreError::Closed);
        }
        Ok(())
    }

    /// Ends all changes, and makes the last commit durable in all copies of the
    /// superblock. False if something waits for a commit; then nothing is ended.
    ///
    /// # Errors
    /// [`StoreError::Closed`] when it was closed before; the copies could not be
    /// made durable.
    pub fn close_if_clean(&self) -> Result<bool, StoreError> {
        // A commit that is under way is not durable yet.
        let _no_commit = self.lock_commits();
        {
            let engine = self.change();
            self.check_open()?;
            if self.access == Access::ReadWrite && !engine.is_clean() {
                return Ok(false);
            }
            self.closed.store(true, Ordering::SeqCst);
        }
        // The mirrors were written after the last flush.
        if self.access == Access::ReadWrite && self.poison().is_none() {
            self.flush()?;
        }
        Ok(true)
    }

    /// Ends all changes. What waits for a commit is lost.
    pub fn abandon(&self) {
        let _engine = self.change();
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Why nothing can be written any more; `None` if it can.
    pub fn poison(&self) -> Option<String> {
        self.reason.lock().clone()
    }

    /// Fails the volume: it is read-only from now on, and what was not
    /// committed never will be.
    pub fn fail(&self, error: &StoreError) {
        self.fail_for(error.to_string());
    }

    /// [`Store::fail`] because something panicked while it worked on the volume.
    pub fn fail_after_panic(&self) {
        self.fail_for("ButterFS met a fault of its own (a panic)".to_owned());
    }

    fn fail_for(&self, why: String) {
        let mut reason = self.reason.lock();
        if reason.is_none() && self.access == Access::ReadWrite {
            tracing::error!(reason = %why, "the volume is read-only from now on");
            *reason = Some(why);
        }
        self.poisoned.store(true, Ordering::Release);
    }
}
