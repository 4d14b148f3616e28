//! Space that is freed and cannot be used again yet, and space that the replay
//! of a fsync log takes over.

use super::SpaceMap;
use super::block_group::Standing;
use super::ranges::RangeSet;
use crate::error::StoreError;
use crate::item_fault::ItemFault;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use std::ops::Range;

impl SpaceMap {
    /// Counts `range` as used by an extent that enters the extent tree.
    pub(crate) fn note_used(&mut self, range: &Range<u64>) -> Result<(), StoreError> {
        self.for_each_group_part(range, |group, part| {
            let length = part.end - part.start;
            group.used += length;
            group.promised = group.promised.saturating_sub(length);
            group.dirty = true;
        })
    }

    /// Counts `range` as freed. It is given out again when the commit is
    /// durable.
    pub(crate) fn note_freed(&mut self, range: Range<u64>) -> Result<(), StoreError> {
        self.for_each_group_part(&range, |group, part| {
            let length = part.end - part.start;
            group.used = group.used.saturating_sub(length);
            group.pinned += length;
            group.dirty = true;
        })?;
        self.pinned.insert(range);
        Ok(())
    }

    /// What the generation that is being published freed, but what a view keeps.
    pub(crate) fn freed_for_discard(&self) -> Vec<Range<u64>> {
        let freed = self.pinned_writing.iter();
        freed.filter(|range| !self.is_kept(range)).collect()
    }

    /// The running generation ends: what it freed is what the one that is being
    /// published freed. Its block groups are committed, and later nodes get
    /// other rows.
    pub(crate) fn end_generation(&mut self) {
        debug_assert!(self.pinned_writing.is_empty());
        self.leave_rows();
        for start in self.groups.uncommitted() {
            self.groups
                .change(start, |group| group.standing = Standing::Committed);
        }
        self.pinned_writing = std::mem::take(&mut self.pinned);
    }

    /// Whether the last commit has the chunk that contains `logical`. A replay
    /// knows no other chunks.
    #[must_use]
    pub fn is_in_committed_group(&self, logical: Logical) -> bool {
        let group = self.groups.containing(logical);
        group.is_some_and(|group| group.standing == Standing::Committed)
    }

    /// Keeps space that the log uses from being given out until the replay is
    /// committed. Must be called before
    /// [`Engine::load_for_replay`](crate::Engine::load_for_replay).
    ///
    /// # Errors
    /// The range lies in no block group.
    pub fn pin_for_replay(&mut self, range: &Range<u64>) -> Result<(), StoreError> {
        let mut new = RangeSet::default();
        new.insert(range.clone());
        for known in self.pinned.overlapping(range.clone()) {
            new.remove(known);
        }
        for part in new.iter() {
            self.for_each_group_part(&part, |group, part| {
                group.pinned += part.end - part.start;
                group.claim(&part);
            })?;
            self.pinned.insert(part);
        }
        Ok(())
    }

    /// Takes the space of a data extent that only the log names.
    ///
    /// # Errors
    /// The space is not the log's.
    pub fn adopt_for_replay(&mut self, extent: crate::DataExtent) -> Result<(), StoreError> {
        let start = extent.logical.get();
        let range = start..start + extent.length;
        if self.pinned.contains(&range) {
            self.pinned.remove(range.clone());
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
}
