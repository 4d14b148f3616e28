//! The extents that the extent tree has in a range.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::extent::record::ExtentHead;
use butterfs_format::{ItemType, Key, TreeId};
use butterfs_tree::Cursor;
use std::ops::{ControlFlow, Range};

/// Gets an extent and its length, and says whether to go on.
type Visit<'v> = &'v mut dyn FnMut(&ExtentHead, u64) -> Result<ControlFlow<()>, StoreError>;

impl Engine {
    /// Extents that begin in `range`, each with its length, until `visit` has
    /// enough. Pending changes are left out.
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
                let head = ExtentHead::parse(key, data)
                    .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
                if visit(&head, length)?.is_break() {
                    break;
                }
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// The last extent that begins at `logical` or before it, with its length.
    /// Pending changes are left out.
    ///
    /// # Errors
    /// Damage, reading.
    pub(crate) fn extent_at_or_before(
        &self,
        logical: u64,
    ) -> Result<Option<(ExtentHead, u64)>, StoreError> {
        let last = Key::new(logical, ItemType::MAX, u64::MAX);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &last)?;
        while cursor.prev()? {
            let Some((key, data)) = cursor.item() else {
                break;
            };
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => self.node_size() as u64,
                _ => continue,
            };
            let head = ExtentHead::parse(key, data)
                .map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
            return Ok(Some((head, length)));
        }
        Ok(None)
    }

    /// Extents that reach into `range`, as by [`Engine::visit_extents`].
    ///
    /// # Errors
    /// As there.
    pub(crate) fn visit_extents_over(
        &self,
        range: &Range<u64>,
        visit: Visit<'_>,
    ) -> Result<(), StoreError> {
        if let Some(before) = range.start.checked_sub(1)
            && let Some((head, length)) = self.extent_at_or_before(before)?
            && head.key.objectid.saturating_add(length) > range.start
            && visit(&head, length)?.is_break()
        {
            return Ok(());
        }
        self.visit_extents(range, visit)
    }
}
