//! The extents that the extent tree has in a range.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::record::ExtentHead;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{ItemType, Key, Logical, TreeId};
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
        let mut end = 0;
        while let Some((key, data)) = cursor.item() {
            if key.objectid >= range.end {
                break;
            }
            if let Some((head, length)) = self.extent_of(key, data)? {
                if key.objectid < end {
                    let fault = ItemFault::OverlapsExtent;
                    return Err(corrupt_item(TreeId::EXTENT, key, fault));
                }
                end = key.objectid.saturating_add(length);
                if visit(&head, length)?.is_break() {
                    break;
                }
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// The extent that an item of the extent tree describes, with its length;
    /// `None` for an item of another kind. An extent consists of whole sectors
    /// within one chunk, and is either of data or a node.
    fn extent_of(&self, key: Key, data: &[u8]) -> Result<Option<(ExtentHead, u64)>, StoreError> {
        let node = self.node_size() as u64;
        let length = match key.item_type {
            ItemType::EXTENT_ITEM => key.offset,
            ItemType::METADATA_ITEM => node,
            _ => return Ok(None),
        };
        let bad = |fault| Err(corrupt_item(TreeId::EXTENT, key, fault));
        let head =
            ExtentHead::parse(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        let is_as_its_kind = match head.level() {
            None => key.item_type == ItemType::EXTENT_ITEM,
            Some(level) => level <= LEVEL_MAX && length == node,
        };
        if !is_as_its_kind {
            return bad(ItemFault::ExtentKind);
        }
        let (start, sector) = (key.objectid, self.sector_size());
        if length == 0 || !length.is_multiple_of(sector) || !start.is_multiple_of(sector) {
            return bad(ItemFault::PartOfSector);
        }
        let chunk = self.space_map.chunk_before(Logical(start));
        let is_within = chunk.is_some_and(|(first, chunk)| {
            let within = start.saturating_sub(first.get());
            chunk.length.checked_sub(within) >= Some(length)
        });
        match is_within {
            true => Ok(Some((head, length))),
            false => bad(ItemFault::BeyondChunk),
        }
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
            let found = self.extent_of(key, data)?;
            if found.is_some() {
                return Ok(found);
            }
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
        {
            let end = head.key.objectid.saturating_add(length);
            if visit(&head, length)?.is_break() {
                return Ok(());
            }
            return self.visit_extents(range, &mut |head, length| match head.key.objectid < end {
                true => {
                    let fault = ItemFault::OverlapsExtent;
                    Err(corrupt_item(TreeId::EXTENT, head.key, fault))
                }
                false => visit(head, length),
            });
        }
        self.visit_extents(range, visit)
    }
}
