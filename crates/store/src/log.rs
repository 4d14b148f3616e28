//! The fsync log of the running generation: trees of items outside of the
//! extent tree. A replay brings these items into the last committed generation.
//!
//! Owns the log's trees and blocks, what files changed since the last commit,
//! and the data extents that the log on the device names. The file layer knows
//! what the items mean.
//!
//! Invariants: a block or data extent that the durable log names is given out
//! again only when a newer log without it, or a commit, is durable. Nothing of
//! a log lies in a block group that the last commit does not have.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::fsync_log::GivenName;
use crate::fsync_log::LogSpace;
use crate::fsync_log::LogTicket;
use crate::fsync_log::RENAMED_MAX;
use crate::item_fault::ItemFault;
use crate::publication::DeviceItems;
use crate::space::block_group::Standing;
use crate::space::kind::SpaceKind;
use crate::space::ranges::RangeSet;
use butterfs_format::item::inode::InodeItem;
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::Superblock;
use butterfs_format::{
    Generation, InodeId, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId, object,
};
use butterfs_tree::{Cursor, Editor, Node, NodeSink, NodeSource, TreeError};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Nodes that a log leaves to the transaction that is under way, in addition to
/// those of the commit.
const KEPT: u64 = 200;
/// Nodes that every batch writes: the root of all logs, and a leaf.
const BATCH_NODES: usize = 2;
/// What a commit costs in addition to the nodes that changed already, counted
/// in writes of nodes: nodes of the other trees, and the work until they are
/// complete.
const COMMIT_NODES: usize = 80;
/// How many times a commit's cost a log may write because it has grown.
const LASTING: usize = 8;
/// The moving average of a batch's cost counts in parts of a node.
const OVERHEAD_UNIT: usize = 1024;
/// About so many batches are in that average.
const RECENT: usize = 16;
/// Extents whose changes go to one leaf at the commit, about.
const EXTENTS_PER_LEAF: usize = 32;

/// A batch of the log that is complete in memory.
#[must_use = "a prepared batch must be published"]
#[derive(Debug)]
pub(crate) struct PreparedLog {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) superblock: Superblock,
    pub(crate) devices: DeviceItems,
    replaced: Vec<Logical>,
    held: Vec<Range<u64>>,
    /// Batches before this one are durable then.
    batch: u64,
}

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

/// The log's trees as a sink of edits; trees go by their subvolume.
struct LogSink<'e>(&'e mut Engine);

impl LogSink<'_> {
    fn new_node(&mut self, level: u8) -> Result<NodeRef, TreeError> {
        let engine = &mut *self.0;
        let logical = match engine.publication.log.spare.pop() {
            Some(block) => block,
            None => engine.allocate_block_for_log()?,
        };
        Ok(NodeRef {
            logical,
            generation: engine.generation,
            level,
        })
    }
}

impl NodeSource for LogSink<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        let log = &self.0.publication.log;
        let found = log.dirty.get(&reference.logical);
        found
            .or_else(|| log.clean.get(&reference.logical))
            .cloned()
            .ok_or(TreeError::Misuse("a node of the fsync log went away"))
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let root = self.0.publication.log.roots.get(&tree).copied();
        root.ok_or(TreeError::NoSuchTree(tree))
    }
}

impl NodeSink for LogSink<'_> {
    fn make_writable(&mut self, _: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        if self.0.publication.log.dirty.contains_key(&node.logical) {
            return Ok(node);
        }
        self.node(node)?;
        let new = self.new_node(node.level)?;
        let log = &mut self.0.publication.log;
        let Some(mut copy) = log.clean.remove(&node.logical) else {
            return Err(TreeError::Misuse("a node of the fsync log went away"));
        };
        // The device has the old one, and nobody reads it again. So it is copied
        // only while it is being written.
        Arc::make_mut(&mut copy).move_to(new.logical, new.generation, TreeId::LOG);
        log.replaced.push(node.logical);
        log.dirty.insert(new.logical, copy);
        Ok(new)
    }

    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError> {
        let new = self.new_node(level)?;
        *self.0.publication.log.nodes.entry(tree).or_default() += 1;
        let engine = &mut *self.0;
        let node = Node::empty(engine.identity.node_size, &engine.stamp, new, TreeId::LOG);
        engine
            .publication
            .log
            .dirty
            .insert(new.logical, Arc::new(node));
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        let node = self.0.publication.log.dirty.get_mut(&node.logical);
        node.map(Arc::make_mut)
            .ok_or(TreeError::Misuse("a node was edited that is not writable"))
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        if self.0.publication.log.dirty.remove(&node.logical).is_none() {
            return Err(TreeError::Misuse("a node was dropped that is not writable"));
        }
        if let Some(nodes) = self.0.publication.log.nodes.get_mut(&tree) {
            *nodes -= 1;
        }
        // Allocated in this batch: no log on the device has it.
        self.0.publication.log.spare.push(node.logical);
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.0.publication.log.roots.insert(tree, root);
        self.0.publication.log.moved.insert(tree);
        Ok(())
    }
}

/// Changes the log of one subvolume.
pub struct LogEditor<'e> {
    sink: LogSink<'e>,
    tree: TreeId,
}

impl LogEditor<'_> {
    /// Sets an item.
    ///
    /// # Errors
    /// No space. The log is given up then, and a commit is needed.
    pub fn replace(&mut self, key: &Key, data: &[u8]) -> Result<(), StoreError> {
        let result = Editor::new(&mut self.sink, self.tree).replace(key, data);
        self.sink.0.publication.log.broken |= result.is_err();
        Ok(result?)
    }

    /// Removes items.
    ///
    /// # Errors
    /// As [`LogEditor::replace`].
    pub fn remove_range(&mut self, keys: RangeInclusive<Key>) -> Result<(), StoreError> {
        let result = Editor::new(&mut self.sink, self.tree).remove_range(keys);
        self.sink.0.publication.log.broken |= result.is_err();
        result?;
        Ok(())
    }

    /// Keys and data of the items in `keys`.
    ///
    /// # Errors
    /// A fault of the log.
    pub fn items(&self, keys: RangeInclusive<Key>) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        let mut items = Vec::new();
        let mut cursor = Cursor::seek_in(&self.sink, self.tree, keys.start())?;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| key <= keys.end()) {
            items.push((key, data.to_vec()));
            cursor.next()?;
        }
        Ok(items)
    }

    /// The items in `keys` from the last one before `from` to the last one
    /// before `to`.
    ///
    /// # Errors
    /// A fault of the log.
    pub fn nearby(
        &self,
        keys: RangeInclusive<Key>,
        from: &Key,
        to: &Key,
    ) -> Result<Vec<(Key, Vec<u8>)>, StoreError> {
        let mut items = Vec::new();
        let mut cursor = Cursor::seek_in(&self.sink, self.tree, from)?;
        cursor.prev()?;
        while let Some((key, data)) = cursor.item().filter(|(key, _)| key < to) {
            if keys.contains(&key) {
                items.push((key, data.to_vec()));
            }
            cursor.next()?;
        }
        Ok(items)
    }

    /// Notes that one more item names the data extent at `disk`.
    pub fn name_extent(&mut self, disk: Logical) {
        let log = &mut self.sink.0.publication.log;
        log.unnamed.remove(&disk);
        *log.named.entry(disk).or_default() += 1;
    }

    /// Notes that one item less names the data extent at `disk`.
    pub fn unname_extent(&mut self, disk: Logical) {
        let log = &mut self.sink.0.publication.log;
        if let Some(count) = log.named.get_mut(&disk) {
            *count -= 1;
            if *count == 0 {
                log.named.remove(&disk);
                log.unnamed.insert(disk);
                if let Some(end) = log.held_named.remove(&disk) {
                    log.held.push(disk.get()..end);
                }
            }
        }
    }

    /// Logs those checksums in `range` that neither a commit nor the log has
    /// yet.
    ///
    /// # Errors
    /// As [`LogEditor::replace`].
    pub fn log_checksums(&mut self, range: Range<u64>) -> Result<(), StoreError> {
        let engine = &mut *self.sink.0;
        let sector = engine.sector_size();
        let room = Node::item_data_max(engine.node_size()) / 2;
        for (start, sums) in engine.waiting_checksums(range) {
            let engine = &*self.sink.0;
            let size = engine.sum_size();
            let end = start + (sums.len() / size) as u64 * sector;
            let mut missing = RangeSet::default();
            missing.insert(start..end);
            let known = engine.publication.log.sums.get(&self.tree);
            for known in known.into_iter().flat_map(|k| k.overlapping(start..end)) {
                missing.remove(known);
            }
            let missing: Vec<Range<u64>> = missing.iter().collect();
            for part in missing {
                let first = ((part.start - start) / sector) as usize * size;
                let last = ((part.end - start) / sector) as usize * size;
                let step = room / size * size;
                let mut at = part.start;
                for piece in sums[first..last].chunks(step) {
                    let key = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, at);
                    self.replace(&key, piece)?;
                    at += (piece.len() / size) as u64 * sector;
                }
                let sums = &mut self.sink.0.publication.log.sums;
                sums.entry(self.tree).or_default().insert(part);
            }
        }
        Ok(())
    }

    /// Notes that the log does not have an inode any more.
    pub fn forget(&mut self, inode: InodeNumber) {
        let id = InodeId {
            tree: self.tree,
            number: inode,
        };
        let log = &mut self.sink.0.publication.log;
        for old in log.given.remove(&id).unwrap_or_default() {
            log.indexes.remove(&(old.dir, old.index));
            log.names.remove(&(old.dir, old.name));
        }
    }

    /// Gives names to an inode in place of those that it has in the log. False
    /// if the log gives one of them, or its index, to another inode.
    pub fn give_names(&mut self, inode: InodeNumber, names: Vec<GivenName>) -> bool {
        let id = InodeId {
            tree: self.tree,
            number: inode,
        };
        self.forget(inode);
        let log = &mut self.sink.0.publication.log;
        let free = names.iter().all(|new| {
            !log.indexes.contains_key(&(new.dir, new.index))
                && !log.names.contains_key(&(new.dir, new.name.clone()))
        });
        if !free {
            return false;
        }
        for new in &names {
            log.indexes.insert((new.dir, new.index), inode);
            log.names.insert((new.dir, new.name.clone()), inode);
        }
        log.given.insert(id, names);
        true
    }
}

impl Engine {
    /// Notes that an inode's item changed.
    pub fn note_inode(&self, id: InodeId) {
        self.publication.log.changed.note(id, None);
    }

    /// Notes that an inode's file extents changed in `range`.
    pub fn note_extents(&self, id: InodeId, range: Range<u64>) {
        self.publication.log.changed.note(id, Some(range));
    }

    /// Notes that a new inode gets its first name.
    pub fn note_first_name(&self, id: InodeId) {
        self.publication.log.changed.note_names(id);
    }

    /// Notes that an inode's names changed.
    pub fn note_names(&self, id: InodeId) {
        self.publication.log.changed.note_names(id);
        if self.publication.log.given.contains_key(&id) {
            self.publication.log.stale.lock().insert(id);
            return;
        }
        let mut renamed = self.publication.log.renamed.lock();
        if renamed.len() <= RENAMED_MAX {
            renamed.insert(id);
        }
    }

    /// Inodes whose names changed and of which the log says nothing; `None` if
    /// there are many.
    #[must_use]
    pub fn renamed(&self) -> Option<Vec<InodeId>> {
        let renamed = self.publication.log.renamed.lock();
        (renamed.len() <= RENAMED_MAX).then(|| renamed.iter().copied().collect())
    }

    /// Notes that the log says what happened to the names of all inodes.
    pub fn note_names_said(&mut self) {
        self.publication.log.renamed.get_mut().clear();
    }

    /// Inodes whose names changed since they were logged. The caller brings the
    /// log up to date.
    #[must_use]
    pub fn take_stale_names(&mut self) -> Vec<InodeId> {
        let mut stale: Vec<InodeId> = self.publication.log.stale.get_mut().drain().collect();
        stale.sort_unstable();
        stale
    }

    /// Whether an inode's names changed since the last commit.
    #[must_use]
    pub fn names_changed(&self, id: InodeId) -> bool {
        self.publication.log.changed.has_new_names(id)
    }

    /// Names that the log gives to an inode.
    #[must_use]
    pub fn names_in_log(&self, id: InodeId) -> &[GivenName] {
        self.publication
            .log
            .given
            .get(&id)
            .map_or(&[], |given| given)
    }

    /// Whether the log gives a name in `dir` to some inode.
    #[must_use]
    pub fn is_name_in_log(&self, dir: InodeId, name: Vec<u8>) -> bool {
        self.publication.log.names.contains_key(&(dir, name))
    }

    /// Whether the log has an inode.
    #[must_use]
    pub fn is_in_log(&self, id: InodeId) -> bool {
        self.publication.log.given.contains_key(&id)
    }

    /// What changed of an inode since it was logged or committed, as ranges of
    /// file extents; `None` if nothing did.
    #[must_use]
    pub fn changed_since_log(&self, id: InodeId) -> Option<Vec<Range<u64>>> {
        self.publication.log.changed.since_log(id)
    }

    /// Notes that the log has all of an inode.
    pub fn note_logged(&mut self, id: InodeId) {
        self.publication.log.changed.note_logged(id);
    }

    /// Whether changes can be logged. If not, a commit is needed.
    /// A log of more bytes than a generation may hold changed nodes is not.
    #[must_use]
    pub fn can_log(&self) -> bool {
        let nodes = self.publication.log.dirty.len() + self.publication.log.clean.len();
        !self.publication.log.broken && nodes * self.node_size() < self.generation_bytes
    }

    /// Whether the last commit has the chunk that contains `logical`. A replay
    /// knows no other chunks.
    #[must_use]
    pub fn is_in_committed_group(&self, logical: Logical) -> bool {
        let group = self.allocation.groups.containing(logical);
        group.is_some_and(|group| group.standing == Standing::Committed)
    }

    /// Whether a commit is the cheaper way to go on. The more a log holds, the
    /// more nodes each batch writes, and a commit empties it. A commit comes
    /// when two things are true: the nodes that were written because the log has
    /// grown cost more than the commit, and a batch costs more now than it did
    /// on average, the commit included. While the cost of a batch stays the
    /// same, a commit would save little; it comes when the first of the two is
    /// true [`LASTING`] times over.
    pub(crate) fn has_log_outgrown_commit(&self) -> bool {
        // Nobody knows what counting quotas costs.
        if self.quotas().is_some() {
            return false;
        }
        let sums = self.pending.checksums.bytes() / self.node_size();
        let commit = self.forest.dirty.len()
            + self.pending.refs.len() / EXTENTS_PER_LEAF
            + sums
            + COMMIT_NODES;
        let log = &self.publication.log;
        let is_growing =
            log.recent_overhead * log.batches > (log.overhead + commit) * OVERHEAD_UNIT;
        log.overhead > commit && (is_growing || log.overhead > LASTING * commit)
    }

    /// The log of `tree`, to change.
    ///
    /// # Errors
    /// No space. The log is given up then, and a commit is needed.
    pub fn log_of(&mut self, tree: TreeId) -> Result<LogEditor<'_>, StoreError> {
        let mut sink = LogSink(self);
        if !sink.0.publication.log.roots.contains_key(&tree) {
            let made = sink.create(tree, 0);
            sink.0.publication.log.broken |= made.is_err();
            sink.set_root(tree, made?)?;
        }
        Ok(LogEditor { sink, tree })
    }

    /// Gives up the log, because it cannot express what happened or does not
    /// agree with the files. Until the next commit, each fsync needs a commit.
    pub fn give_up_log(&mut self) {
        self.publication.log.broken = true;
    }

    /// The ticket of all that was logged so far.
    #[must_use]
    pub fn log_ticket(&self) -> LogTicket {
        LogTicket {
            generation: self.generation,
            batch: self.publication.log.batch,
        }
    }

    /// Whether the change that a ticket stands for was published. The caller
    /// holds the commit lock.
    pub(crate) const fn is_durable(&self, ticket: LogTicket) -> bool {
        self.generation.get() > ticket.generation.get() || self.publication.log.batch > ticket.batch
    }

    /// The ticket of an inode of which nothing is left to be logged; `None` if
    /// something is.
    #[must_use]
    pub fn ticket_of_logged(&self, id: InodeId) -> Option<LogTicket> {
        let is_logged = !self.publication.log_waits && self.changed_since_log(id).is_none();
        is_logged.then(|| self.log_ticket())
    }

    /// Root of `tree` in the last committed generation, if it was there.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn committed_root(&self, tree: TreeId) -> Result<Option<NodeRef>, StoreError> {
        let root = NodeRef {
            logical: self.publication.superblock.root,
            generation: self.publication.superblock.generation,
            level: self.publication.superblock.root_level,
        };
        let mut cursor = Cursor::at_root(self, root);
        let last = Key::new(tree.get(), ItemType::ROOT_ITEM, u64::MAX);
        if !cursor.seek_back(&last)? {
            return Ok(None);
        }
        let Some((_, data)) = cursor
            .item()
            .filter(|(key, _)| key.objectid == tree.get() && key.item_type == ItemType::ROOT_ITEM)
        else {
            return Ok(None);
        };
        let item =
            RootItem::parse(data).map_err(|error| crate::bad_item(TreeId::ROOT, last, &error))?;
        Ok((item.refs > 0).then_some(item.root()))
    }

    fn allocate_block_for_log(&mut self) -> Result<Logical, StoreError> {
        // Never takes space that the commit needs, because a commit is the way
        // out when the log fails.
        let size = self.node_size() as u64;
        let kept = (self.commit_nodes_max() + KEPT) * size;
        if self.available(SpaceKind::Metadata) < kept {
            return Err(StoreError::NoSpace);
        }
        // A replay would not know a chunk that the last commit does not have.
        let at = self
            .take_where(SpaceKind::Metadata, size, size, |group| {
                group.standing == Standing::Committed
            })
            .ok_or(StoreError::NoSpace)?;
        // No commit compares it with the extents before it is written.
        self.verify_unused(&(at..at + size))?;
        Ok(Logical(at))
    }

    /// Takes back the space of a data extent that lost its last reference
    /// before a commit. That happens at once unless the log on the device names
    /// the extent.
    pub(crate) fn release_data(&mut self, logical: Logical, length: u64) {
        let range = logical.get()..logical.get() + length;
        let log = &self.publication.log;
        if log.named.contains_key(&logical) {
            self.forget_checksums(&range);
            self.publication.log.held_named.insert(logical, range.end);
        } else if log.unnamed.contains(&logical) || log.unnamed_writing.contains(&logical) {
            self.forget_checksums(&range);
            self.publication.log.held.push(range);
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
                self.forget_checksums(&range);
                self.publication.log.held.push(range);
            }
        }
    }

    /// Completes a batch of the log.
    pub(crate) fn prepare_log(&mut self) -> Result<Batch, StoreError> {
        // Blocks of a log would share rows with nodes of the next commit.
        if self.publication.log.broken || self.has_rows() {
            return Ok(Batch::Commit);
        }
        let mut moved: Vec<TreeId> = self.publication.log.moved.drain().collect();
        moved.retain(|tree| *tree != TreeId::LOG);
        if moved.is_empty() && self.publication.log.dirty.is_empty() {
            return Ok(Batch::Durable);
        }
        moved.sort_unstable();
        for tree in moved {
            let root = self.publication.log.roots[&tree];
            let key = Key::new(TreeId::LOG.get(), ItemType::ROOT_ITEM, tree.get());
            let nodes = self.publication.log.nodes[&tree];
            let item = log_root_item(root, self.node_size() as u64, nodes);
            let logged = self.log_of(TreeId::LOG);
            match logged.and_then(|mut log| log.replace(&key, &item.encode())) {
                Ok(()) => {}
                Err(StoreError::NoSpace) => return Ok(Batch::Commit),
                Err(error) => return Err(error),
            }
        }
        let checksum = self.identity.checksum;
        let root = self.publication.log.roots[&TreeId::LOG];
        let log = &mut self.publication.log;
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
        let mut superblock = self.publication.durable.clone();
        superblock.log_root = root.logical;
        superblock.log_root_level = root.level;
        Ok(Batch::Ready(Box::new(PreparedLog {
            nodes,
            superblock,
            devices: Arc::clone(&self.publication.durable_devices),
            replaced,
            held,
            batch,
        })))
    }

    /// Notes that the batch is durable, so what only the previous log had is
    /// free. Returns a batch number; all batches before it are durable.
    pub(crate) fn log_published(&mut self, prepared: PreparedLog) -> u64 {
        self.publication.durable = prepared.superblock;
        self.publication.log.unnamed_writing.clear();
        self.publication.log.spare.extend(prepared.replaced);
        // They are taken from the end. Blocks side by side go out together.
        let spare = &mut self.publication.log.spare;
        spare.sort_unstable_by(|one, other| other.cmp(one));
        for range in prepared.held {
            self.give_back_logged(range);
        }
        prepared.batch
    }

    /// Notes that not all devices have the batch. The next commit makes its
    /// content durable, and callers who wait for the batch are told only then.
    /// Until then nothing of this log or of the previous one becomes free.
    pub(crate) fn log_unpublished(&mut self, prepared: PreparedLog) {
        self.publication.log.broken = true;
        self.publication.log.batch = self.publication.log.batch.saturating_sub(1);
        self.publication.log.replaced.extend(prepared.replaced);
        self.publication.log.held.extend(prepared.held);
    }

    fn forget_logged_checksums(&mut self, range: &Range<u64>) -> Result<(), StoreError> {
        let mut trees = Vec::new();
        for (tree, sums) in &mut self.publication.log.sums {
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

    /// Ends the generation's log, because its commit replaces it. Gives the
    /// space that is free when the commit is durable.
    pub(crate) fn end_log(&mut self) -> LogSpace {
        let batch = self.publication.log.batch;
        let log = std::mem::take(&mut self.publication.log);
        self.publication.log.batch = batch + 1;
        let mut blocks = log.replaced;
        blocks.extend(log.spare);
        blocks.extend(log.dirty.into_keys());
        blocks.extend(log.clean.into_keys());
        let mut held = log.held;
        let named = log.held_named.into_iter();
        held.extend(named.map(|(start, end)| start.get()..end));
        LogSpace { blocks, held }
    }

    /// Frees the space of a log whose commit is durable.
    pub(crate) fn free_log_space(&mut self, space: LogSpace) {
        let size = self.node_size() as u64;
        for block in space.blocks {
            self.give_back(block, size);
        }
        for range in space.held {
            self.give_back(Logical(range.start), range.end - range.start);
        }
    }
}

/// What a replay needs of the engine.
impl Engine {
    /// Root of the tree of logs that an earlier run left; `None` if there is
    /// none.
    #[must_use]
    pub fn waiting_log(&self) -> Option<NodeRef> {
        self.publication.log_waits.then_some(NodeRef {
            logical: self.publication.superblock.log_root,
            generation: Generation(self.publication.superblock.generation.get() + 1),
            level: self.publication.superblock.log_root_level,
        })
    }

    /// Keeps space that the log uses from being given out until the replay is
    /// committed. Must be called before [`Engine::load_for_replay`].
    ///
    /// # Errors
    /// The range lies in no block group.
    pub fn pin_for_replay(&mut self, range: &Range<u64>) -> Result<(), StoreError> {
        let mut new = RangeSet::default();
        new.insert(range.clone());
        for known in self.allocation.pinned.overlapping(range.clone()) {
            new.remove(known);
        }
        for part in new.iter() {
            self.for_each_group_part(&part, |group, part| {
                group.pinned += part.end - part.start;
                group.claim(&part);
            })?;
            self.allocation.pinned.insert(part);
        }
        Ok(())
    }

    /// Makes metadata space ready for the replay of a log of `nodes` nodes,
    /// which is one transaction.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], reading.
    pub fn load_for_replay(&mut self, nodes: usize) -> Result<(), StoreError> {
        // An item of the log changes its own leaf, and perhaps those of names
        // and checksums. Few leaves are far from each other at a time.
        self.reserve(64 + 3 * nodes, crate::Purpose::Shrink)
    }

    /// Whether the extent tree has a data extent, as of the coming commit.
    ///
    /// # Errors
    /// Reading.
    pub fn has_data_extent(&self, extent: crate::DataExtent) -> Result<bool, StoreError> {
        if let Some(pending) = self.pending.refs.get(extent.logical)
            && pending.new
        {
            return Ok(pending.length == extent.length);
        }
        let key = Key::new(extent.logical.get(), ItemType::EXTENT_ITEM, extent.length);
        Ok(butterfs_tree::find(self, TreeId::EXTENT, &key)?.is_some())
    }

    /// Takes the space of a data extent that only the log names.
    ///
    /// # Errors
    /// The space is not the log's.
    pub fn adopt_for_replay(&mut self, extent: crate::DataExtent) -> Result<(), StoreError> {
        let start = extent.logical.get();
        let range = start..start + extent.length;
        if self.allocation.pinned.contains(&range) {
            self.allocation.pinned.remove(range.clone());
            return self.for_each_group_part(&range, |group, part| {
                let length = part.end - part.start;
                group.pinned = group.pinned.saturating_sub(length);
                group.promised += length;
            });
        }
        // It was adopted before and dropped again.
        let mut free = true;
        self.for_each_group_part(&range, |group, part| {
            free &= group.is_free(&part);
        })?;
        if !free {
            return Err(StoreError::CorruptItem {
                tree: TreeId::LOG,
                key: Key::new(start, ItemType::EXTENT_ITEM, extent.length),
                fault: ItemFault::LogOverlaps,
            });
        }
        self.for_each_group_part(&range, |group, part| {
            group.promised += part.end - part.start;
            group.claim(&part);
        })
    }

    /// Notes that the log is replayed. The next commit takes it out of the
    /// superblock.
    pub fn finish_replay(&mut self) {
        self.publication.log_waits = false;
        self.publication.superblock_changed = true;
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
