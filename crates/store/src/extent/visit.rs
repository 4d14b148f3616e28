//! The extents that the extent tree has in a range.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::extent::record::ExtentRecord;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_tree::Cursor;
use std::ops::{ControlFlow, Range};

/// Takes an extent and its length, and says whether to go on.
type Visit<'v> = &'v mut dyn FnMut(&ExtentRecord, u64) -> Result<ControlFlow<()>, StoreError>;

impl Engine {
    /// Extents that begin in `range`, each with its length, until `visit` has
    /// enough; without what is pending.
    ///
    /// # Errors
    /// Damage, reading, those of `visit`.
    pub(crate) fn visit_extents(
        &self,
        range: &Range<u64>,
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        let first = Key::new(range.start, ItemType::MIN, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid >= range.end {
                break;
            }
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => Some(key.offset),
                ItemType::METADATA_ITEM => Some(self.node_size() as u64),
                _ => None,
            };
            if let Some(length) = length {
                let record = ExtentRecord::parse(key, data)
                    .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
                if visit(&record, length)?.is_break() {
                    break;
                }
            }
            cursor.next()?;
        }
        Ok(())
    }
}
