//! Writing changed nodes out before their commit.
//!
//! While a commit writes, nobody else can write the superblock, and an fsync
//! waits. So the bulk of the work is done before the commit begins. Pending
//! changes enter their trees in pieces, and changed nodes are written in
//! batches, while operations and fsyncs go on. The commit itself has only to
//! write what changed meanwhile.
//!
//! Owns which nodes of the running generation the device has already.
//!
//! On a volume with several devices, the commit writes all nodes. A node that
//! the writeback wrote may be written again at its address in the same
//! generation. If a device falls out in between, it keeps the older node, and
//! nothing tells the two apart.
//!
//! Invariants: a node counts as written only while it has not changed since.
//! While an address is being written here, it is not given out again, and no
//! commit writes to it. No commit follows a step that failed.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::{Purpose, Store};
use butterfs_format::Logical;
use butterfs_tree::Node;
use std::sync::Arc;

/// Nodes written at a time.
const BATCH: usize = 256;
/// About this many references have their pending changes applied at a time.
const PIECE: usize = 4096;
/// If other threads change nodes faster than they are written, the commit
/// begins after this many rounds. That is rare, because these threads are
/// stopped at twice the size of a generation.
const ROUNDS_MAX: usize = 8;

impl Engine {
    /// Whether the commit has only little left to do.
    pub(crate) fn is_nearly_written(&self, left_to_commit: usize) -> bool {
        !self.ledger.has_more_than(PIECE) && self.nodes.unwritten().nth(left_to_commit).is_none()
    }

    /// Brings a piece of what is pending into its trees; true when more is
    /// there.
    fn apply_for_writeback(&mut self) -> Result<bool, StoreError> {
        // Quotas are counted from what is pending at the commit.
        if self.quotas.get().is_some() || self.reserve(0, Purpose::Shrink).is_err() {
            return Ok(false);
        }
        self.enter_new_groups()?;
        let more = self.ledger.has_more_than(PIECE);
        self.apply_pending(if more { PIECE } else { usize::MAX })?;
        if !more {
            // All data extents are in the extent tree. So no extent whose
            // checksums go into their tree can vanish unnoticed.
            self.apply_checksums_for_writeback()?;
        }
        Ok(more)
    }

    /// The nodes at these addresses, as they are now, sealed.
    fn begin_batch(&mut self, addresses: &[Logical]) -> Result<Vec<Arc<Node>>, StoreError> {
        let changed = addresses.iter().copied();
        let length = self.node_size() as u64;
        let changed = changed.filter(|at| self.nodes.is_dirty(*at));
        self.space_map.verify_given_out(changed, length)?;
        for logical in addresses {
            // The others were compared when they entered the extent tree.
            if self
                .ledger
                .pending()
                .get(*logical)
                .is_some_and(|node| node.new)
            {
                self.verify_unused(&(logical.get()..logical.get() + length))?;
            }
        }
        Ok(self.nodes.begin_batch(addresses))
    }

    fn end_batch(&mut self) {
        let length = self.node_size() as u64;
        for logical in self.nodes.end_batch() {
            self.give_back(logical, length);
        }
    }
}

impl Store {
    /// Does most of the next commit's work, while everything else goes on.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub(crate) fn write_back(&self) -> Result<(), StoreError> {
        self.check_writable()?;
        let mut wrote = false;
        for _ in 0..ROUNDS_MAX {
            {
                let engine = self.engine.read();
                if engine.log.waits() || engine.is_nearly_written(self.left_to_commit) {
                    break;
                }
            }
            while self.writeback_step(|| self.change_writable()?.apply_for_writeback())? {}
            if self.space.has_several() {
                break;
            }
            let mut addresses: Vec<Logical> = self.engine.read().nodes.unwritten().collect();
            addresses.sort_unstable();
            for addresses in addresses.chunks(BATCH) {
                self.writeback_step(|| self.write_batch(addresses))?;
            }
            wrote = true;
        }
        if wrote {
            // The commit's own flush then finds little to do.
            self.writeback_step(|| self.flush())?;
        }
        Ok(())
    }

    /// Runs a step between two commits. If it fails, no commit follows: such a
    /// commit might publish a half-applied state, or count a lost write as
    /// done.
    fn writeback_step<R>(
        &self,
        step: impl FnOnce() -> Result<R, StoreError>,
    ) -> Result<R, StoreError> {
        let _no_commit = self.writing_nodes.lock();
        let _watch = self.fail_on_panic();
        self.check_writable()?;
        step().inspect_err(|error| self.fail(error))
    }

    fn write_batch(&self, addresses: &[Logical]) -> Result<(), StoreError> {
        let batch = self.change().begin_batch(addresses)?;
        let blocks: Vec<_> = batch
            .iter()
            .map(|node| (node.logical(), node.bytes()))
            .collect();
        self.settle_copies()?;
        self.space.write_many(&blocks)?;
        self.change().end_batch();
        Ok(())
    }
}
