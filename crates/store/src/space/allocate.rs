//! Giving out logical space.
//!
//! Invariant: only ranges that are in a loaded group's free set are given out.
//! Groups are loaded only at safe points, never in the middle of a tree's edit,
//! because loading reads the free-space tree.

use super::SpaceMap;
use super::block_group::BlockGroup;
use super::block_groups::BlockGroups;
use super::ranges::RangeSet;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::space::kind::SpaceKind;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use std::ops::Range;

const NO_GROUP: StoreError = StoreError::Internal("a block group went away");

/// Gets the key and data of an extent's item.
pub(super) type VisitExtent<'v> = dyn FnMut(Key, &[u8]) -> Result<(), StoreError> + 'v;

impl Engine {
    pub(crate) fn allocate_node(&mut self, tree: TreeId) -> Result<Logical, StoreError> {
        let kind = if tree == TreeId::CHUNK {
            SpaceKind::System
        } else {
            SpaceKind::Metadata
        };
        let size = self.node_size() as u64;
        if let Some(at) = self.space_map.take(kind, size, size) {
            return Ok(Logical(at));
        }
        let made = self.create_chunk(kind);
        let at = match made {
            Ok(()) => self.space_map.take(kind, size, size),
            Err(StoreError::NoSpace) if self.space_map.use_left_over(kind) => {
                self.space_map.take(kind, size, size)
            }
            // The space may have another profile than a conversion wants,
            // because a commit that has begun must find some.
            Err(StoreError::NoSpace) => self.space_map.take_where(kind, size, size, |_| true),
            Err(error) => return Err(error),
        };
        at.map(Logical).ok_or(StoreError::NoSpace)
    }

    /// Allocates at most `wanted` bytes of data space in one piece. Gives less
    /// if there is no such piece, but at least a sector. Call it at a safe
    /// point.
    ///
    /// The space is the caller's until it refers to it with
    /// [`Engine::add_data_extent`] or returns it with [`Engine::give_back`].
    ///
    /// # Errors
    /// [`StoreError::NoSpace`]
    pub fn allocate_data(&mut self, wanted: u64) -> Result<Range<u64>, StoreError> {
        crate::inject::point()?;
        loop {
            let range = self.take_data(wanted)?;
            let Err(error) = self.verify_unused(&range) else {
                return Ok(range);
            };
            self.give_back(Logical(range.start), range.end - range.start);
            if !matches!(error, StoreError::CorruptItem { .. }) {
                return Err(error);
            }
            let group = self.space_map.groups.containing(Logical(range.start));
            let start = group.ok_or(NO_GROUP)?.start;
            self.space_map.distrust(start, &error);
        }
    }

    /// Takes at most `wanted` bytes that are recorded as free.
    fn take_data(&mut self, wanted: u64) -> Result<Range<u64>, StoreError> {
        let sector = self.sector_size();
        loop {
            if let Some(at) = self.space_map.take(SpaceKind::Data, wanted, sector) {
                return Ok(at..at + wanted);
            }
            if self.load_next(SpaceKind::Data)? {
                continue;
            }
            self.leave_space_for_metadata()?;
            match self.create_chunk(SpaceKind::Data) {
                Ok(()) => {}
                Err(StoreError::NoSpace)
                    if self
                        .space_map
                        .groups
                        .roomiest(SpaceKind::Data)
                        .is_none_or(|(most, _)| most < sector)
                        && self.space_map.use_left_over(SpaceKind::Data) => {}
                Err(StoreError::NoSpace) => break,
                Err(error) => return Err(error),
            }
        }
        let best = self.space_map.groups.roomiest(SpaceKind::Data);
        let Some((greatest, start)) = best.filter(|(greatest, _)| *greatest >= sector) else {
            return Err(StoreError::NoSpace);
        };
        let taken = self.space_map.groups.change(start, |group| {
            let taken = group.free.as_mut()?.take_greatest(greatest.min(wanted))?;
            group.promised += taken.end - taken.start;
            group.leave_rows_of(&taken);
            Some(taken)
        });
        taken.flatten().ok_or(StoreError::NoSpace)
    }

    /// Returns allocated space that nothing refers to.
    pub fn give_back(&mut self, logical: Logical, length: u64) {
        let range = logical.get()..logical.get() + length;
        self.ledger.forget_checksums(&range);
        let result = self.space_map.for_each_group_part(&range, |group, part| {
            group.promised = group.promised.saturating_sub(part.end - part.start);
            group.release(part);
        });
        debug_assert!(result.is_ok(), "allocated space lies in block groups");
    }

    /// Loads groups of `kind` until `bytes` can be allocated from loaded ones.
    /// Makes a chunk if that is not enough. Call it at a safe point.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`], reading.
    pub(crate) fn ensure_loaded(&mut self, kind: SpaceKind, bytes: u64) -> Result<(), StoreError> {
        self.load_up_to(kind, bytes)?;
        while self.space_map.groups.loaded(kind) < bytes {
            self.create_chunk(kind)?;
        }
        Ok(())
    }

    /// Loads groups of `kind` until `bytes` can be allocated from loaded ones,
    /// or all with space are loaded. Call it at a safe point.
    ///
    /// # Errors
    /// Reading.
    pub(crate) fn load_up_to(&mut self, kind: SpaceKind, bytes: u64) -> Result<(), StoreError> {
        while self.space_map.groups.loaded(kind) < bytes && self.load_next(kind)? {}
        Ok(())
    }

    /// Loads the most promising group of `kind` that is not loaded. False if
    /// there is none with space.
    fn load_next(&mut self, kind: SpaceKind) -> Result<bool, StoreError> {
        let Some(start) = self.space_map.groups.roomiest_unloaded(kind) else {
            return Ok(false);
        };
        self.load_group(start)?;
        Ok(true)
    }

    /// Loads the group that begins at `start`, unless it is loaded or does not
    /// exist. Call it at a safe point.
    ///
    /// # Errors
    /// Reading.
    pub(crate) fn load_group_at(&mut self, start: Logical) -> Result<(), StoreError> {
        match self.space_map.groups.get(start) {
            Some(group) if group.free.is_none() => self.load_group(start),
            _ => Ok(()),
        }
    }

    fn load_group(&mut self, start: Logical) -> Result<(), StoreError> {
        let group = self.space_map.groups.get(start).ok_or(NO_GROUP)?;
        let recorded = match self.recorded_free(group) {
            Ok(recorded) => recorded,
            Err(error) => return self.distrust_damaged(start, error),
        };
        if let Err(error) = self.verify_free_space(start, &recorded) {
            return self.distrust_damaged(start, error);
        }
        let group = self.space_map.groups.get(start).ok_or(NO_GROUP)?;
        let free = self.free_now(group, recorded);
        let loaded = self
            .space_map
            .groups
            .change(start, |group| group.set_free(free));
        loaded.ok_or(NO_GROUP)
    }

    /// Lets go of a block group whose free space cannot be known. Other groups
    /// have space, too.
    fn distrust_damaged(&mut self, start: Logical, error: StoreError) -> Result<(), StoreError> {
        if !matches!(error, StoreError::CorruptItem { .. }) {
            return Err(error);
        }
        self.space_map.distrust(start, &error);
        Ok(())
    }

    /// What can be allocated from a group that is not loaded.
    pub(super) fn free_of(&self, group: &BlockGroup) -> Result<RangeSet, StoreError> {
        Ok(self.free_now(group, self.recorded_free(group)?))
    }

    /// What of recorded free space can be allocated now.
    pub(super) fn free_now(&self, group: &BlockGroup, recorded: Vec<Range<u64>>) -> RangeSet {
        let mut free = RangeSet::default();
        for range in recorded {
            free.insert(range);
        }
        let whole = group.start.get()..group.end();
        let held = self.space_map.view_pins.iter().map(|held| &held.freed);
        for pinned in [&self.space_map.pinned, &self.space_map.pinned_writing]
            .into_iter()
            .chain(held)
        {
            for range in pinned.overlapping(whole.clone()) {
                free.remove(range);
            }
        }
        for range in &group.excluded {
            free.remove(range.clone());
        }
        // What a replay took over before the group was loaded.
        for range in self.ledger.pending().new_in(whole) {
            free.remove(range);
        }
        free
    }

    /// Free ranges by the extent tree, for volumes without a free-space tree.
    /// `visit` sees the extents' items.
    pub(super) fn gaps_between_extents(
        &self,
        group: &BlockGroup,
        visit: &mut VisitExtent<'_>,
    ) -> Result<Vec<Range<u64>>, StoreError> {
        let mut gaps = Vec::new();
        let mut at = group.start.get();
        let first = Key::new(at, ItemType::MIN, 0);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &first)?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid >= group.end() {
                break;
            }
            let length = match key.item_type {
                ItemType::EXTENT_ITEM => key.offset,
                ItemType::METADATA_ITEM => self.node_size() as u64,
                _ => {
                    cursor.next()?;
                    continue;
                }
            };
            let end = key.objectid.saturating_add(length);
            if key.objectid < at || end > group.end() {
                return Err(bad_item(
                    TreeId::EXTENT,
                    key,
                    &butterfs_format::ParseError::BadValue {
                        what: "extent item",
                        field: "length",
                        value: length,
                    },
                ));
            }
            visit(key, data)?;
            if key.objectid > at {
                gaps.push(at..key.objectid);
            }
            at = end;
            cursor.next()?;
        }
        if at < group.end() {
            gaps.push(at..group.end());
        }
        Ok(gaps)
    }

    /// Bytes that can be allocated for `kind`, in groups and in new chunks.
    #[must_use]
    pub fn available(&self, kind: SpaceKind) -> u64 {
        let groups = self.space_map.groups.available(kind);
        groups.saturating_add(self.unallocated(kind))
    }

    /// Bytes used by extents (applied or promised) and pinned, for `kind`.
    #[must_use]
    pub fn used(&self, kind: SpaceKind) -> u64 {
        self.space_map.groups.used(kind)
    }
}

impl SpaceMap {
    /// Takes space, of the profile that a conversion makes if one is under way.
    pub(crate) fn take(&mut self, kind: SpaceKind, length: u64, align: u64) -> Option<u64> {
        let wanted = self.new_profiles[kind as usize];
        self.take_where(kind, length, align, |group| {
            wanted.is_none_or(|flags| group.flags == flags)
        })
    }

    /// Takes space from `suitable` groups: from the group that was allocated
    /// from last, or else from the one whose greatest free range is just large
    /// enough.
    pub(crate) fn take_where(
        &mut self,
        kind: SpaceKind,
        length: u64,
        align: u64,
        suitable: impl Fn(&BlockGroup) -> bool,
    ) -> Option<u64> {
        let current = &mut self.current[Self::slot(kind)];
        self.groups.take(kind, (length, align), current, suitable)
    }

    const fn slot(kind: SpaceKind) -> usize {
        match kind {
            SpaceKind::Data => 0,
            SpaceKind::Metadata => 1,
            SpaceKind::System => 2,
        }
    }
}

impl BlockGroups {
    /// Takes space from `suitable` groups: from the group that was allocated
    /// from last, or else from the one whose greatest free range is just large
    /// enough.
    pub(super) fn take(
        &mut self,
        kind: SpaceKind,
        (length, align): (u64, u64),
        current: &mut Option<Logical>,
        suitable: impl Fn(&BlockGroup) -> bool,
    ) -> Option<u64> {
        let take = |groups: &mut Self, start| {
            let take = |group: &mut BlockGroup| {
                let at = suitable(group).then(|| group.take(length, align))??;
                if kind == SpaceKind::Data {
                    group.leave_rows_of(&(at..at + length));
                }
                Some(at)
            };
            groups.change(start, take).flatten()
        };
        if let Some(start) = *current
            && let Some(at) = take(self, start)
        {
            return Some(at);
        }
        let mut place = self.next_fitting(kind, length, None);
        while let Some((_, start)) = place {
            if let Some(at) = take(self, start) {
                *current = Some(start);
                return Some(at);
            }
            // The group did not change. Its free space is aligned differently
            // and is not taken.
            place = self.next_fitting(kind, length, place);
        }
        None
    }
}

impl BlockGroup {
    pub(super) fn set_free(&mut self, free: RangeSet) {
        self.cursor = self.start.get();
        self.free = Some(free);
        self.leave_rows();
    }

    pub(crate) fn take(&mut self, length: u64, align: u64) -> Option<u64> {
        if self.read_only {
            return None;
        }
        let at = self.free.as_mut()?.take(self.cursor, length, align)?;
        self.cursor = at + length;
        self.promised += length;
        Some(at)
    }
}
