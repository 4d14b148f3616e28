//! The trees of the fsync log, and the editor of one subvolume's log.
//!
//! The log's trees lie outside of the extent tree. A replay brings their items
//! into the last committed generation.

use super::GivenName;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::block_group::Standing;
use crate::space::kind::SpaceKind;
use crate::space::ranges::RangeSet;
use butterfs_format::item::log::DirLogItem;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId, object};
use butterfs_tree::{Cursor, Editor, Node, NodeSink, NodeSource, TreeError};
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// Nodes that a log leaves to the transaction that is under way, in addition to
/// those of the commit.
const KEPT: u64 = 200;
/// The log's trees as a sink of edits; trees go by their subvolume.
struct LogSink<'e>(&'e mut Engine);

impl LogSink<'_> {
    fn new_node(&mut self, level: u8) -> Result<NodeRef, TreeError> {
        let engine = &mut *self.0;
        let logical = match engine.log.spare.pop() {
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
        let log = &self.0.log;
        let found = log.dirty.get(&reference.logical);
        found
            .or_else(|| log.clean.get(&reference.logical))
            .cloned()
            .ok_or(TreeError::Misuse("a node of the fsync log went away"))
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        let root = self.0.log.roots.get(&tree).copied();
        root.ok_or(TreeError::NoSuchTree(tree))
    }
}

impl NodeSink for LogSink<'_> {
    fn make_writable(&mut self, _: TreeId, node: NodeRef) -> Result<NodeRef, TreeError> {
        if self.0.log.dirty.contains_key(&node.logical) {
            return Ok(node);
        }
        self.node(node)?;
        let new = self.new_node(node.level)?;
        let log = &mut self.0.log;
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
        *self.0.log.nodes.entry(tree).or_default() += 1;
        let engine = &mut *self.0;
        let node = Node::empty(engine.node_size(), engine.nodes.stamp(), new, TreeId::LOG);
        engine.log.dirty.insert(new.logical, Arc::new(node));
        Ok(new)
    }

    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError> {
        let node = self.0.log.dirty.get_mut(&node.logical);
        node.map(Arc::make_mut)
            .ok_or(TreeError::Misuse("a node was edited that is not writable"))
    }

    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError> {
        if self.0.log.dirty.remove(&node.logical).is_none() {
            return Err(TreeError::Misuse("a node was dropped that is not writable"));
        }
        if let Some(nodes) = self.0.log.nodes.get_mut(&tree) {
            *nodes -= 1;
        }
        // Allocated in this batch: no log on the device has it.
        self.0.log.spare.push(node.logical);
        Ok(())
    }

    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError> {
        self.0.log.roots.insert(tree, root);
        self.0.log.moved.insert(tree);
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
        self.sink.0.log.broken |= result.is_err();
        Ok(result?)
    }

    /// Removes items.
    ///
    /// # Errors
    /// As [`LogEditor::replace`].
    pub fn remove_range(&mut self, keys: RangeInclusive<Key>) -> Result<(), StoreError> {
        let result = Editor::new(&mut self.sink, self.tree).remove_range(keys);
        self.sink.0.log.broken |= result.is_err();
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
        let log = &mut self.sink.0.log;
        log.unnamed.remove(&disk);
        *log.named.entry(disk).or_default() += 1;
    }

    /// Notes that one item less names the data extent at `disk`.
    pub fn unname_extent(&mut self, disk: Logical) {
        let log = &mut self.sink.0.log;
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
            let known = engine.log.sums.get(&self.tree);
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
                let sums = &mut self.sink.0.log.sums;
                sums.entry(self.tree).or_default().insert(part);
            }
        }
        Ok(())
    }

    /// Says that a directory has no entry at an index any more: a replay takes
    /// away the one that the last commit has there.
    ///
    /// # Errors
    /// As [`LogEditor::replace`].
    pub fn say_gone(&mut self, dir: InodeNumber, index: u64) -> Result<(), StoreError> {
        let key = Key::new(dir.get(), ItemType::DIR_LOG_INDEX, index);
        self.replace(&key, &DirLogItem { end: index }.encode())?;
        let id = InodeId {
            tree: self.tree,
            number: dir,
        };
        self.sink.0.log.gone.insert((id, index));
        Ok(())
    }

    /// Notes that the log does not have an inode any more.
    pub fn forget(&mut self, inode: InodeNumber) {
        let id = InodeId {
            tree: self.tree,
            number: inode,
        };
        let log = &mut self.sink.0.log;
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
        let log = &mut self.sink.0.log;
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
    /// The log of `tree`, to change.
    ///
    /// # Errors
    /// No space. The log is given up then, and a commit is needed.
    pub fn log_of(&mut self, tree: TreeId) -> Result<LogEditor<'_>, StoreError> {
        let mut sink = LogSink(self);
        if !sink.0.log.roots.contains_key(&tree) {
            let made = sink.create(tree, 0);
            sink.0.log.broken |= made.is_err();
            sink.set_root(tree, made?)?;
        }
        Ok(LogEditor { sink, tree })
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
            .space_map
            .take_where(SpaceKind::Metadata, size, size, |group| {
                group.standing == Standing::Committed
            })
            .ok_or(StoreError::NoSpace)?;
        // No commit compares it with the extents before it is written.
        self.verify_unused(&(at..at + size))?;
        Ok(Logical(at))
    }
}
