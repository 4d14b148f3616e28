//! What the engine does for the replay of a log, and for whoever compares a log
//! with the last commit.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::item_fault::ItemFault;
use crate::space::block_group::Standing;
use crate::space::ranges::RangeSet;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::Cursor;
use std::ops::Range;

/// What a replay needs of the engine.
impl Engine {
    /// Root of the tree of logs that an earlier run left; `None` if there is
    /// none.
    #[must_use]
    pub fn waiting_log(&self) -> Option<NodeRef> {
        self.log.waits().then_some(NodeRef {
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

    /// Whether the last commit has the chunk that contains `logical`. A replay
    /// knows no other chunks.
    #[must_use]
    pub fn is_in_committed_group(&self, logical: Logical) -> bool {
        let group = self.allocation.groups.containing(logical);
        group.is_some_and(|group| group.standing == Standing::Committed)
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

    /// Notes that the log is replayed. The next commit takes it out of the
    /// superblock.
    pub fn finish_replay(&mut self) {
        self.log.stop_waiting();
        self.publication.superblock_changed = true;
    }
}
