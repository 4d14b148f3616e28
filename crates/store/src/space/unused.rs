//! Whether space is unused, by the extent tree.
//!
//! Counts (a block group's `used`, the superblock's sum) and the free-space tree
//! only repeat what the extent tree says. If one of them is wrong, whoever
//! believes it overwrites, discards or removes what is in use. So before that,
//! the extent tree is asked.
//!
//! Owns these questions, and what follows if the answers contradict each other:
//! a count is corrected if two of three agree against it. Otherwise nothing is
//! written to the block group any more.

use super::block_group::{BlockGroup, Standing};
use super::free_space_tree;
use super::ranges::RangeSet;
use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use std::ops::{ControlFlow, Range};

const NO_GROUP: StoreError = StoreError::Internal("a block group went away");

impl Engine {
    /// The length of an extent by the key of its item; `None` for other items.
    fn extent_length(&self, key: Key) -> Option<u64> {
        match key.item_type {
            ItemType::EXTENT_ITEM => Some(key.offset),
            ItemType::METADATA_ITEM => Some(self.node_size() as u64),
            _ => None,
        }
    }

    /// Where the first extent begins that lies in `range` or reaches into it.
    /// Pending changes are left out.
    ///
    /// # Errors
    /// Damage, reading.
    pub(crate) fn first_extent_over(&self, range: &Range<u64>) -> Result<Option<u64>, StoreError> {
        let first = Key::new(range.start, ItemType::MIN, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &first)?;
        let mut moved = false;
        while let Some(key) = cursor.key().filter(|key| key.objectid < range.end) {
            if self.extent_length(key).is_some() {
                return Ok(Some(key.objectid));
            }
            cursor.next()?;
            moved = true;
        }
        if moved {
            cursor.seek(&first)?;
        }
        if cursor.prev()?
            && let Some(mut key) = cursor.key()
        {
            if self.extent_length(key).is_none() {
                // An extent may have very many references behind it.
                cursor.seek(&Key::new(key.objectid, ItemType::MIN, 0))?;
                key = cursor.key().unwrap_or(key);
                // The item of a block group lies between.
                if self.extent_length(key).is_none() && cursor.prev()? {
                    key = cursor.key().unwrap_or(key);
                }
            }
            let reaches = |length: u64| key.objectid.saturating_add(length) > range.start;
            if key.objectid < range.start && self.extent_length(key).is_some_and(reaches) {
                return Ok(Some(key.objectid));
            }
        }
        Ok(None)
    }

    /// Errors if an extent lies in `range`, which is about to be written to or
    /// discarded.
    ///
    /// # Errors
    /// [`ItemFault::FreeButUsed`]; damage, reading.
    pub(crate) fn verify_unused(&self, range: &Range<u64>) -> Result<(), StoreError> {
        let Some(at) = self.first_extent_over(range)? else {
            return Ok(());
        };
        let key = Key::new(at, ItemType::FREE_SPACE_EXTENT, range.end - range.start);
        let fault = ItemFault::FreeButUsed;
        Err(corrupt_item(TreeId::FREE_SPACE, key, fault))
    }

    /// Bytes of extents in a block group. Pending changes are left out.
    pub(crate) fn count_used(&self, group: &Range<u64>) -> Result<u64, StoreError> {
        let mut used = 0_u64;
        self.visit_extents(group, &mut |_, length| {
            used = used.saturating_add(length);
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(used)
    }

    /// Bytes of a block group that are free by the tree that records free
    /// space, and bytes that must be free by its count.
    fn free_bytes(&self, group: &BlockGroup, free: &[Range<u64>]) -> (u64, u64) {
        let mut set = RangeSet::default();
        for range in free {
            set.insert(range.clone());
        }
        for range in &group.excluded {
            set.remove(range.clone());
        }
        let excluded: u64 = group.excluded.iter().map(|r| r.end - r.start).sum();
        let counted = group.length.saturating_sub(group.used + excluded);
        (set.total(), counted)
    }

    /// Compares a block group's count with its free space. If they differ, the
    /// extent tree decides which of them is wrong. A wrong count is corrected,
    /// durably with the next commit.
    ///
    /// # Errors
    /// Free space is wrong, or cannot be read; reading.
    pub(crate) fn verify_free_space(
        &mut self,
        start: Logical,
        free: &[Range<u64>],
    ) -> Result<(), StoreError> {
        let group = self.space_map.groups.get(start).ok_or(NO_GROUP)?;
        let (found, counted) = self.free_bytes(group, free);
        if found == counted {
            return Ok(());
        }
        let used = self.count_used(&(start.get()..group.end()))?;
        let says = group.used;
        let gaps = self.gaps_between_extents(group, &mut |_, _| Ok(()))?;
        let key = Key::new(start.get(), ItemType::BLOCK_GROUP_ITEM, group.length);
        if self.free_bytes(group, &gaps).0 != found || !self.space_map.free_space_tree {
            let fault = ItemFault::UsedDisagrees { says, found: used };
            return Err(corrupt_item(self.publisher.group_tree(), key, fault));
        }
        self.correct_used(start, used);
        Ok(())
    }

    /// Gives a block group the count that its extents have.
    pub(crate) fn correct_used(&mut self, start: Logical, used: u64) {
        let was = self.space_map.groups.change(start, |group| {
            let was = group.used;
            group.used = used;
            group.dirty = true;
            was
        });
        self.publisher.note_superblock_change();
        tracing::warn!(
            group = %start,
            was,
            used,
            "the count of used bytes of a block group was wrong; it is corrected from the extent \
             tree"
        );
    }

    /// What of a block group is free by the tree that records it, if its count
    /// agrees; nothing otherwise.
    ///
    /// # Errors
    /// Reading.
    pub(crate) fn agreed_free_space(&self, group: &BlockGroup) -> Result<RangeSet, StoreError> {
        let recorded = match self.recorded_free(group) {
            Ok(recorded) => recorded,
            Err(StoreError::CorruptItem { .. }) => return Ok(RangeSet::default()),
            Err(error) => return Err(error),
        };
        let (found, counted) = self.free_bytes(group, &recorded);
        Ok(match found == counted {
            true => self.free_now(group, recorded),
            false => RangeSet::default(),
        })
    }

    /// Compares the superblock's sum of used bytes with the block groups. If
    /// they differ, the extents of all groups are counted, and what is wrong is
    /// corrected, durably with the next commit.
    ///
    /// # Errors
    /// Damage of the extent tree, reading.
    pub(crate) fn verify_used(&mut self) -> Result<(), StoreError> {
        let says = self.publisher.superblock().bytes_used;
        let sum = self.space_map.groups.applied();
        if says == sum {
            return Ok(());
        }
        tracing::warn!(
            superblock = says,
            groups = sum,
            "the superblock and the block groups disagree about used bytes; all extents are counted"
        );
        let committed = |group: &&BlockGroup| group.standing == Standing::Committed;
        let groups: Vec<_> = self.space_map.groups.values().filter(committed).collect();
        let mut wrong = Vec::new();
        for group in groups {
            let used = self.count_used(&(group.start.get()..group.end()))?;
            if used > group.length {
                let key = Key::new(group.start.get(), ItemType::BLOCK_GROUP_ITEM, group.length);
                let fault = ItemFault::UsedDisagrees {
                    says: group.used,
                    found: used,
                };
                return Err(corrupt_item(self.publisher.group_tree(), key, fault));
            }
            if used != group.used {
                wrong.push((group.start, used));
            }
        }
        for (start, used) in wrong {
            self.correct_used(start, used);
        }
        self.publisher.note_superblock_change();
        Ok(())
    }

    /// The free space of a block group as it is recorded.
    pub(super) fn recorded_free(&self, group: &BlockGroup) -> Result<Vec<Range<u64>>, StoreError> {
        if self.space_map.free_space_tree {
            free_space_tree::read_free_ranges(self, &group.span(self.sector_size()))
        } else {
            self.gaps_between_extents(group, &mut |_, _| Ok(()))
        }
    }
}
