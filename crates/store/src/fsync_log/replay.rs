//! What the engine does for the replay of a log, and for whoever compares a log
//! with the last commit.

use crate::engine::Engine;
use crate::error::StoreError;
use butterfs_format::item::root::RootItem;
use butterfs_format::{Generation, ItemType, Key, NodeRef, TreeId};
use butterfs_tree::Cursor;

/// What a replay needs of the engine.
impl Engine {
    /// Root of the tree of logs that an earlier run left; `None` if there is
    /// none.
    #[must_use]
    pub fn waiting_log(&self) -> Option<NodeRef> {
        self.log.waits().then_some(NodeRef {
            logical: self.publisher.superblock().log_root,
            generation: Generation(self.publisher.superblock().generation.get() + 1),
            level: self.publisher.superblock().log_root_level,
        })
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
        if let Some(pending) = self.ledger.pending().get(extent.logical)
            && pending.new
        {
            return Ok(pending.length == extent.length);
        }
        let key = Key::new(extent.logical.get(), ItemType::EXTENT_ITEM, extent.length);
        Ok(butterfs_tree::find(self, TreeId::EXTENT, &key)?.is_some())
    }

    /// Root of `tree` in the last committed generation, if it was there.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn committed_root(&self, tree: TreeId) -> Result<Option<NodeRef>, StoreError> {
        let root = NodeRef {
            logical: self.publisher.superblock().root,
            generation: self.publisher.superblock().generation,
            level: self.publisher.superblock().root_level,
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
        self.publisher.note_superblock_change();
    }
}
