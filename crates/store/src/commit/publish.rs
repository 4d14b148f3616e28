//! Commits and fsyncs, as the devices see them.

use crate::Store;
use crate::commit::DeviceItems;
use crate::commit::devices::{Copies, Durable, write_superblocks};
use crate::commit::prepare::PreparedCommit;
use crate::error::StoreError;
use crate::fsync_log::LogTicket;
use crate::fsync_log::PreparedLog;
use crate::fsync_log::batch::Batch;
use crate::fsync_log::group::Arrival;
use crate::transaction::FailOnPanic;
use crate::{Barriers, Discard, now};
use butterfs_format::Generation;
use butterfs_format::superblock::Superblock;
use butterfs_tree::Node;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What a commit does between its last flush and its superblocks. It gets these
/// superblocks.
type Between<'a> = &'a mut dyn FnMut(&Superblock, &DeviceItems);

/// What follows after the log was made durable up to a ticket.
enum Next {
    Nothing,
    Commit,
}

/// The locks of a commit. Fields are dropped in their order, so that a panic
/// fails the volume before another commit can begin.
pub(crate) struct CommitLocks<'s> {
    _watch: FailOnPanic<'s>,
    _locks: [MutexGuard<'s, ()>; 2],
}

impl Store {
    /// Takes a waiting fsync log out of the superblock and changes nothing
    /// else. False if there is no log.
    ///
    /// # Errors
    /// Not writable; writing.
    pub fn zero_log(&self) -> Result<bool, StoreError> {
        let _one_at_a_time = self.committing.lock();
        let mut engine = self.change_writable()?;
        if !engine.log.waits() {
            return Ok(false);
        }
        engine.log.stop_waiting();
        for superblock in [0, 1] {
            let target = match superblock {
                0 => &mut engine.publisher.superblock,
                _ => &mut engine.publisher.durable,
            };
            target.log_root = butterfs_format::Logical(0);
            target.log_root_level = 0;
        }
        let (superblock, items) = (
            engine.publisher.durable.clone(),
            Arc::clone(&engine.publisher.durable_devices),
        );
        drop(engine);
        for copies in [Copies::Primary, Copies::Mirrors] {
            self.write_copies(&superblock, &items, copies)?;
            self.flush()?;
        }
        Ok(true)
    }

    /// Makes everything that changed durable. Gives the generation that is
    /// durable then.
    ///
    /// # Errors
    /// Any error poisons the volume: it stays at the last durable generation.
    pub fn commit(&self) -> Result<Generation, StoreError> {
        butterfs_device::about_to_wait();
        self.commits_under_way.fetch_add(1, Ordering::SeqCst);
        let result = self.write_back().and_then(|()| {
            let _one_at_a_time = self.lock_commits();
            self.commit_alone()
        });
        self.commits_under_way.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// What a commit needs in addition to the engine.
    pub(crate) fn lock_commits(&self) -> CommitLocks<'_> {
        let locks = [self.writing_nodes.lock(), self.committing.lock()];
        CommitLocks {
            _watch: self.fail_on_panic(),
            _locks: locks,
        }
    }

    /// [`Store::commit`] with its locks held.
    pub(crate) fn commit_alone(&self) -> Result<Generation, StoreError> {
        loop {
            let generation = self.commit_once(&mut |_, _| {})?;
            if !self.device_loss.owes_another(&self.space) {
                self.fsyncs.generation_is_durable(generation);
                return Ok(generation);
            }
        }
    }

    /// One commit. `between` runs when all nodes are durable, before the first
    /// superblock names them.
    pub(crate) fn commit_once(&self, between: Between<'_>) -> Result<Generation, StoreError> {
        let prepared = {
            let mut engine = self.change_writable()?;
            if engine.log.waits() {
                return Err(StoreError::LogWaits);
            }
            if self.device_loss.is_recent(&self.space) {
                engine.publisher.superblock_changed = true;
                engine.space_map.forget_unallocated();
            }
            if engine.is_clean() {
                return Ok(engine.superblock().generation);
            }
            // A change without a transaction (superblock, error counters) then
            // finds loaded space too.
            engine
                .load_for_commit()
                .and_then(|()| engine.prepare_commit(now()))
                .inspect_err(|error| self.fail(error))
        };
        let result = prepared.and_then(|prepared| self.publish_with(&prepared, between));
        if let Err(error) = &result {
            self.fail(error);
        }
        result
    }

    pub(crate) fn publish(&self, prepared: &PreparedCommit) -> Result<Generation, StoreError> {
        self.publish_with(prepared, &mut |_, _| {})
    }

    /// Writes copies of a superblock to each device.
    fn write_copies(
        &self,
        superblock: &Superblock,
        items: &DeviceItems,
        copies: Copies,
    ) -> Result<(), StoreError> {
        match self.nascent.load(Ordering::Acquire) {
            true => Ok(()),
            false => {
                let how = (copies, Durable::AfterFlush);
                write_superblocks(&self.space, superblock, items, how)
            }
        }
    }

    /// Writes the first copy of a superblock to each device, and makes it
    /// durable. What was written before it is durable already.
    fn write_primary(
        &self,
        superblock: &Superblock,
        items: &DeviceItems,
    ) -> Result<(), StoreError> {
        let is_nascent = self.nascent.load(Ordering::Acquire);
        if self.barriers == Barriers::On && self.space.has_one_device() && !is_nascent {
            // One write instead of a write and a flush.
            let how = (Copies::Primary, Durable::AtOnce);
            return write_superblocks(&self.space, superblock, items, how);
        }
        self.write_copies(superblock, items, Copies::Primary)?;
        self.flush()
    }

    fn write_nodes(&self, nodes: &[Arc<Node>]) -> Result<(), StoreError> {
        self.settle_copies()?;
        let blocks: Vec<_> = nodes
            .iter()
            .map(|node| (node.logical(), node.bytes()))
            .collect();
        Ok(self.space.write_many(&blocks)?)
    }

    fn publish_with(
        &self,
        prepared: &PreparedCommit,
        between: Between<'_>,
    ) -> Result<Generation, StoreError> {
        self.write_nodes(&prepared.nodes)?;
        self.write_superblock(&prepared.superblock, &prepared.devices, between)?;
        if self.discard == Discard::On {
            // This comes before the space can be given out again.
            let freed = self.engine.read().space_map.freed_for_discard();
            for range in freed {
                let length = range.end - range.start;
                // A discard is only advice: the space is free either way.
                let _ = self
                    .space
                    .discard(butterfs_format::Logical(range.start), length);
            }
        }
        let mut engine = self.change();
        engine.publisher.durable = prepared.superblock.clone();
        engine.publisher.durable_devices = Arc::clone(&prepared.devices);
        engine.published();
        drop(engine);
        Ok(prepared.generation)
    }

    /// Makes everything written so far durable and then the superblock of a
    /// new generation.
    ///
    /// A torn write of the primary copy leaves only the mirrors. So the mirrors
    /// must have all that was promised before that write, the fsync log too.
    /// They have the last commit since it was made, or since the volume was
    /// opened ([`crate::commit::equal_copies`]).
    fn write_superblock(
        &self,
        superblock: &Superblock,
        items: &DeviceItems,
        between: Between<'_>,
    ) -> Result<(), StoreError> {
        let (durable, before) = {
            let engine = self.engine.read();
            (
                engine.publisher.durable.clone(),
                Arc::clone(&engine.publisher.durable_devices),
            )
        };
        if durable.log_root.get() != 0 {
            self.write_copies(&durable, &before, Copies::Mirrors)?;
        }
        self.flush()?;
        between(superblock, items);
        self.write_primary(superblock, items)?;
        // Durable with the next flush. That flush comes before the next
        // superblock.
        self.write_copies(superblock, items, Copies::Mirrors)
    }

    /// Notes that an fsync is about to log its file. Others that write the log
    /// may wait for it a moment.
    pub fn arrive_at_log(&self) -> Arrival<'_> {
        self.fsyncs.arrive()
    }

    /// Makes durable what was logged up to `ticket`, together with all that
    /// other callers logged meanwhile. Waits for a commit that is under way.
    ///
    /// # Errors
    /// Any error poisons the volume: the device stays as it was.
    pub fn sync_log(&self, ticket: LogTicket) -> Result<(), StoreError> {
        let next = match self.fsyncs.lead_or_follow(ticket) {
            None => Next::Nothing,
            Some(_leader) => self.sync_log_or_commit(ticket)?,
        };
        match next {
            Next::Commit => self.commit().map(|_| ()),
            Next::Nothing => Ok(()),
        }
    }

    fn sync_log_or_commit(&self, ticket: LogTicket) -> Result<Next, StoreError> {
        let _one_at_a_time = self.committing.lock();
        let _watch = self.fail_on_panic();
        // Another caller may have written it meanwhile. Then it is durable, or
        // the volume has failed.
        self.check_writable()?;
        let (has_outgrown_commit, is_nearly_written) = {
            let engine = self.read();
            if engine.is_durable(ticket) {
                return Ok(Next::Nothing);
            }
            let has_outgrown_commit = engine.has_log_outgrown_commit();
            let is_nearly_written = || engine.is_nearly_written(self.left_to_commit);
            (
                has_outgrown_commit,
                has_outgrown_commit && is_nearly_written(),
            )
        };
        if self.device_loss.is_recent(&self.space) {
            return Ok(Next::Commit);
        }
        // If another thread writes nodes, a commit comes anyway.
        if is_nearly_written && let Some(_nodes) = self.writing_nodes.try_lock() {
            // It is dropped before the lock is.
            let _watch = self.fail_on_panic();
            return self.commit_alone().map(|_| Next::Nothing);
        }
        let prepared = {
            let mut engine = self.change_writable()?;
            engine.prepare_log()
        };
        let result = match prepared {
            Ok(Batch::Durable) => Ok(()),
            Ok(Batch::Ready(prepared)) => self.publish_log(*prepared),
            Ok(Batch::Commit) => return Ok(Next::Commit),
            Err(error) => Err(error),
        };
        if let Err(error) = &result {
            self.fail(error);
        }
        result?;
        // A commit with much to write does that while other fsyncs go on.
        let is_due = has_outgrown_commit
            && !is_nearly_written
            && self.commits_under_way.load(Ordering::SeqCst) == 0;
        match is_due || self.device_loss.is_recent(&self.space) {
            true => Ok(Next::Commit),
            false => Ok(Next::Nothing),
        }
    }

    fn publish_log(&self, prepared: PreparedLog) -> Result<(), StoreError> {
        self.write_nodes(&prepared.nodes)?;
        self.flush()?;
        if self.device_loss.is_recent(&self.space) {
            // The device that fell out lacks these blocks. In their place it
            // may have blocks of an older log, which look valid because their
            // generation is the same. So no superblock names these blocks, and
            // a commit follows.
            self.change().log.unpublished(prepared);
            return Ok(());
        }
        // The new superblock differs from the durable one only in its first
        // sector, which a device writes as a whole or not at all.
        let (superblock, items) = (&prepared.superblock, &prepared.devices);
        self.write_primary(superblock, items)?;
        let mut engine = self.change();
        if self.device_loss.is_recent(&self.space) {
            // The device that fell out may still name the previous log, and
            // after a crash it may speak for the volume.
            engine.publisher.durable = prepared.superblock.clone();
            engine.log.unpublished(prepared);
        } else {
            let batch = engine.log_published(prepared);
            self.fsyncs.batch_is_durable(batch);
        }
        Ok(())
    }

    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        match self.barriers {
            Barriers::On => Ok(self.space.flush()?),
            Barriers::UnsafeOff => Ok(()),
        }
    }
}
