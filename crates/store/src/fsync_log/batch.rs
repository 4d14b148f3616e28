//! Batches of the fsync log: what of the log goes to the device together, and
//! what becomes free when it is there.

use super::{LogTicket, OVERHEAD_UNIT, PreparedLog};
use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, InodeId, ItemType, Key, Logical, NodeRef, TreeId, object};
use std::ops::Range;
use std::sync::Arc;

/// Nodes that every batch writes: the root of all logs, and a leaf.
const BATCH_NODES: usize = 2;
/// What a commit costs in addition to the nodes that changed already, counted
/// in writes of nodes: nodes of the other trees, and the work until they are
/// complete.
const COMMIT_NODES: usize = 80;
/// About so many batches are in that average.
const RECENT: usize = 16;
/// Extents whose changes go to one leaf at the commit, about.
const EXTENTS_PER_LEAF: usize = 32;

/// What is to be done with a batch of the log.
#[derive(Debug)]
pub(crate) enum Batch {
    /// The device has all of it.
    Durable,
    /// It must be written.
    Ready(Box<PreparedLog>),
    /// The log cannot express it, so a commit is needed.
    Commit,
}

impl Engine {
    /// Whether changes can be logged. If not, a commit is needed.
    /// A log of more bytes than a generation may hold changed nodes is not.
    #[must_use]
    pub fn can_log(&self) -> bool {
        let nodes = self.log.nodes_in_memory();
        !self.log.is_given_up() && nodes * self.node_size() < self.generation_bytes
    }

    /// Whether a commit is the cheaper way to go on.
    pub(crate) fn has_log_outgrown_commit(&self) -> bool {
        // Nobody knows what counting quotas costs.
        if self.quotas().is_some() {
            return false;
        }
        let sums = self.ledger.checksum_bytes() / self.node_size();
        let commit = self.nodes.dirty_len()
            + self.ledger.pending().len() / EXTENTS_PER_LEAF
            + sums
            + COMMIT_NODES;
        self.log.has_outgrown(commit)
    }

    /// The ticket of all that was logged so far.
    #[must_use]
    pub fn log_ticket(&self) -> LogTicket {
        LogTicket {
            generation: self.generation,
            batch: self.log.batch,
        }
    }

    /// Whether the change that a ticket stands for was published. The caller
    /// holds the commit lock.
    pub(crate) const fn is_durable(&self, ticket: LogTicket) -> bool {
        self.generation.get() > ticket.generation.get() || self.log.batch > ticket.batch
    }

    /// The ticket of an inode of which nothing is left to be logged; `None` if
    /// something is.
    #[must_use]
    pub fn ticket_of_logged(&self, id: InodeId) -> Option<LogTicket> {
        let is_logged = !self.log.waits() && self.log.changes_of(id).is_none();
        is_logged.then(|| self.log_ticket())
    }

    /// Takes back the space of a data extent that lost its last reference
    /// before a commit. That happens at once unless the log on the device names
    /// the extent.
    pub(crate) fn release_data(&mut self, logical: Logical, length: u64) {
        let range = logical.get()..logical.get() + length;
        let log = &self.log;
        if log.named.contains_key(&logical) {
            self.ledger.forget_checksums(&range);
            self.log.held_named.insert(logical, range.end);
        } else if log.unnamed.contains(&logical) || log.unnamed_writing.contains(&logical) {
            self.ledger.forget_checksums(&range);
            self.log.held.push(range);
        } else {
            self.give_back_logged(range);
        }
    }

    /// Returns space that no log names. Drops the checksums that logs may still
    /// have for it, because other data may come there next.
    fn give_back_logged(&mut self, range: Range<u64>) {
        match self.forget_logged_checksums(&range) {
            Ok(()) => self.give_back(Logical(range.start), range.end - range.start),
            // The log is given up, and the commit frees it.
            Err(_) => {
                self.ledger.forget_checksums(&range);
                self.log.held.push(range);
            }
        }
    }

    /// Completes a batch of the log.
    pub(crate) fn prepare_log(&mut self) -> Result<Batch, StoreError> {
        // Blocks of a log would share rows with nodes of the next commit.
        if self.log.broken || self.space_map.has_rows() {
            return Ok(Batch::Commit);
        }
        let mut moved: Vec<TreeId> = self.log.moved.drain().collect();
        moved.retain(|tree| *tree != TreeId::LOG);
        if moved.is_empty() && self.log.dirty.is_empty() {
            return Ok(Batch::Durable);
        }
        moved.sort_unstable();
        for tree in moved {
            let root = self.log.roots[&tree];
            let key = Key::new(TreeId::LOG.get(), ItemType::ROOT_ITEM, tree.get());
            let nodes = self.log.nodes[&tree];
            let item = log_root_item(root, self.node_size() as u64, nodes);
            let logged = self.log_of(TreeId::LOG);
            match logged.and_then(|mut log| log.replace(&key, &item.encode())) {
                Ok(()) => {}
                Err(StoreError::NoSpace) => return Ok(Batch::Commit),
                Err(error) => return Err(error),
            }
        }
        let checksum = self.nodes.identity().checksum;
        let root = self.log.roots[&TreeId::LOG];
        let log = &mut self.log;
        let mut nodes = Vec::with_capacity(log.dirty.len());
        for (logical, mut node) in log.dirty.drain() {
            checksum.seal_block(Arc::make_mut(&mut node).bytes_mut());
            nodes.push(Arc::clone(&node));
            log.clean.insert(logical, node);
        }
        log.moved.clear();
        let overhead = nodes.len().saturating_sub(BATCH_NODES);
        log.overhead += overhead;
        log.batches += 1;
        log.recent_overhead += overhead * OVERHEAD_UNIT / RECENT;
        log.recent_overhead -= log.recent_overhead / RECENT;
        nodes.sort_unstable_by_key(|node| node.logical());
        log.unnamed_writing = std::mem::take(&mut log.unnamed);
        let held = std::mem::take(&mut log.held);
        log.batch += 1;
        let batch = log.batch;
        let replaced = std::mem::take(&mut log.replaced);
        let mut superblock = self.publisher.durable().clone();
        superblock.log_root = root.logical;
        superblock.log_root_level = root.level;
        Ok(Batch::Ready(Box::new(PreparedLog {
            nodes,
            superblock,
            devices: Arc::clone(self.publisher.durable_devices()),
            replaced,
            held,
            batch,
        })))
    }

    /// Notes that the batch is durable, so what only the previous log had is
    /// free. Returns a batch number; all batches before it are durable.
    pub(crate) fn log_published(&mut self, prepared: PreparedLog) -> u64 {
        self.publisher.log_is_durable(prepared.superblock);
        self.log.unnamed_writing.clear();
        self.log.spare.extend(prepared.replaced);
        // They are taken from the end. Blocks side by side go out together.
        let spare = &mut self.log.spare;
        spare.sort_unstable_by(|one, other| other.cmp(one));
        for range in prepared.held {
            self.give_back_logged(range);
        }
        prepared.batch
    }

    fn forget_logged_checksums(&mut self, range: &Range<u64>) -> Result<(), StoreError> {
        let mut trees = Vec::new();
        for (tree, sums) in &mut self.log.sums {
            if sums.overlapping(range.clone()).next().is_some() {
                sums.remove(range.clone());
                trees.push(*tree);
            }
        }
        let first = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, range.start);
        let last = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, range.end - 1);
        for tree in trees {
            self.log_of(tree)?.remove_range(first..=last)?;
        }
        Ok(())
    }

    /// Frees the space of a log whose commit is durable.
    pub(crate) fn free_log_space(&mut self) {
        let space = self.log.take_ended();
        let size = self.node_size() as u64;
        for block in space.blocks {
            self.give_back(block, size);
        }
        for range in space.held {
            self.give_back(Logical(range.start), range.end - range.start);
        }
    }
}

/// Root item of a subvolume's log tree. As in the kernel, it has no references,
/// and its bytes do not count the first node.
fn log_root_item(root: NodeRef, node_size: u64, nodes: u64) -> RootItem {
    RootItem {
        inode: InodeItem {
            generation: Generation(1),
            size: 3,
            nlink: 1,
            nbytes: node_size,
            mode: 0o040_755,
            ..InodeItem::default()
        },
        generation: root.generation,
        logical: root.logical,
        level: root.level,
        bytes_used: nodes.saturating_sub(1) * node_size,
        ..RootItem::default()
    }
}
