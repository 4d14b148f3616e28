//! Brings pending reference changes into the extent tree, sorted, and their
//! effects into block groups, free-space tree, checksum tree and pinned space.

use super::pending::{Backref, ExtentKind, PendingExtent};
use super::record::{ExtentRecord, FLAG_FULL_BACKREF, parse_keyed};
use crate::checksums;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::quota::Quotas;
use crate::space::free_space_tree::{self, Change};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{Generation, ItemType, Key, Logical, TreeId};
use butterfs_tree::Editor;
use std::collections::BTreeMap;
use std::ops::Range;

/// What applying a batch did to space; ranges ascend.
#[derive(Debug, Default)]
struct Effects {
    used: Vec<Range<u64>>,
    freed: Vec<Range<u64>>,
    freed_data: Vec<Range<u64>>,
}

fn push(ranges: &mut Vec<Range<u64>>, range: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => ranges.push(range),
    }
}

/// Constants of the batch.
struct Context {
    generation: Generation,
    skinny: bool,
    /// Simple quotas are on: extents of data say who allocated them.
    owned: bool,
    /// Greatest item with inline references.
    inline_max: usize,
}

impl Engine {
    /// Applies the pending changes of at most so many extents. Doing so changes
    /// nodes, so there may be new ones afterwards.
    pub(crate) fn apply_pending(&mut self, most: usize) -> Result<(), StoreError> {
        let batch = self.pending.take(most);
        let context = Context {
            generation: self.generation,
            skinny: self.superblock.has_skinny_metadata(),
            owned: self.quotas().is_some_and(Quotas::is_simple),
            inline_max: (self.node_size() - HEADER_SIZE) / 16 - ITEM_SIZE,
        };
        let mut effects = Effects::default();
        let mut editor = Editor::new(self, TreeId::EXTENT);
        for (logical, extent) in &batch {
            apply_extent(&mut editor, &context, *logical, extent, &mut effects)?;
        }
        self.account(&effects)
    }

    fn account(&mut self, effects: &Effects) -> Result<(), StoreError> {
        for range in &effects.used {
            self.for_each_group_part(range, |group, part| {
                let length = part.end - part.start;
                group.used += length;
                group.promised = group.promised.saturating_sub(length);
                group.dirty = true;
            })?;
        }
        for range in &effects.freed {
            self.for_each_group_part(range, |group, part| {
                let length = part.end - part.start;
                group.used = group.used.saturating_sub(length);
                group.pinned += length;
                group.dirty = true;
            })?;
            self.pinned.insert(range.clone());
        }
        self.account_free_space(Change::Use, &effects.used)?;
        self.account_free_space(Change::Free, &effects.freed)?;
        for range in &effects.freed_data {
            self.forget_checksums(range);
            checksums::remove_range(self, range)?;
        }
        Ok(())
    }

    fn account_free_space(
        &mut self,
        change: Change,
        ranges: &[Range<u64>],
    ) -> Result<(), StoreError> {
        if !self.free_space_tree {
            return Ok(());
        }
        let mut by_group: BTreeMap<Logical, Vec<Range<u64>>> = BTreeMap::new();
        for range in ranges {
            self.for_each_group_part(range, |group, part| {
                by_group.entry(group.start).or_default().push(part);
            })?;
        }
        for (start, parts) in by_group {
            let group = &self.groups[&start];
            if group.is_new() {
                return Err(StoreError::Internal(
                    "extents were applied to a block group before its items",
                ));
            }
            let span = group.span(self.sector_size());
            free_space_tree::apply(self, &span, change, &parts)?;
        }
        Ok(())
    }

    /// Calls `visit` for the part of `range` in each block group.
    pub(crate) fn for_each_group_part(
        &mut self,
        range: &Range<u64>,
        mut visit: impl FnMut(&mut crate::space::block_group::BlockGroup, Range<u64>),
    ) -> Result<(), StoreError> {
        let mut at = range.start;
        while at < range.end {
            let group = self
                .groups
                .range_mut(..=Logical(at))
                .next_back()
                .map(|(_, group)| group)
                .filter(|group| at < group.end());
            let Some(group) = group else {
                return Err(corrupt_item(
                    TreeId::EXTENT,
                    Key::new(at, ItemType::EXTENT_ITEM, range.end - at),
                    "lies in no block group",
                ));
            };
            let end = range.end.min(group.end());
            visit(group, at..end);
            at = end;
        }
        Ok(())
    }
}

fn apply_extent(
    editor: &mut Editor<'_, Engine>,
    context: &Context,
    logical: Logical,
    extent: &PendingExtent,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let Some(end) = logical.checked_add(extent.length) else {
        let key = Key::new(logical.get(), ItemType::EXTENT_ITEM, extent.length);
        return Err(corrupt_item(
            TreeId::EXTENT,
            key,
            "would end beyond all addresses",
        ));
    };
    let range = logical.get()..end.get();
    if extent.new {
        let mut record = ExtentRecord::new(
            logical,
            extent.length,
            extent.kind,
            context.generation,
            context.skinny,
        );
        if context.owned && extent.kind == ExtentKind::Data {
            record.owner = extent.owner.map(TreeId::get);
        }
        apply_changes(editor, context, &mut record, extent)?;
        editor.insert(&record.key, &record.encode())?;
        push(&mut effects.used, range);
        return Ok(());
    }
    let mut record = load(editor, logical, extent)?;
    let before = record.encode();
    apply_changes(editor, context, &mut record, extent)?;
    if record.refs == 0 {
        if !record.inline.is_empty() {
            return Err(corrupt_item(
                TreeId::EXTENT,
                record.key,
                "has references left although its count is zero",
            ));
        }
        editor.remove(&record.key)?;
        push(&mut effects.freed, range.clone());
        if extent.kind == ExtentKind::Data {
            push(&mut effects.freed_data, range);
        }
        return Ok(());
    }
    let after = record.encode();
    if after != before {
        editor.replace(&record.key, &after)?;
    }
    Ok(())
}

fn load(
    editor: &mut Editor<'_, Engine>,
    logical: Logical,
    extent: &PendingExtent,
) -> Result<ExtentRecord, StoreError> {
    let plain = Key::new(logical.get(), ItemType::EXTENT_ITEM, extent.length);
    let skinny = match extent.kind {
        ExtentKind::Node { level, .. } => Some(Key::new(
            logical.get(),
            ItemType::METADATA_ITEM,
            u64::from(level),
        )),
        ExtentKind::Data => None,
    };
    for key in skinny.into_iter().chain([plain]) {
        if let Some(data) = editor.get_mut(&key)? {
            return ExtentRecord::parse(key, data)
                .map_err(|error| bad_item(TreeId::EXTENT, key, &error));
        }
    }
    Err(corrupt_item(
        TreeId::EXTENT,
        plain,
        "is missing although something refers to the extent",
    ))
}

fn apply_changes(
    editor: &mut Editor<'_, Engine>,
    context: &Context,
    record: &mut ExtentRecord,
    extent: &PendingExtent,
) -> Result<(), StoreError> {
    if extent.set_full_backref {
        record.flags |= FLAG_FULL_BACKREF;
    }
    // Drops first, so that their room can be used.
    let (drops, adds): (Vec<_>, Vec<_>) = extent.changes.iter().copied().partition(|(_, n)| *n < 0);
    for (by, count) in drops.into_iter().chain(adds) {
        apply_change(editor, context, record, by, count)?;
        record.refs = record
            .refs
            .checked_add_signed(count)
            .ok_or_else(|| corrupt_item(TreeId::EXTENT, record.key, "counts too few references"))?;
    }
    Ok(())
}

fn changed_count(record: &ExtentRecord, old: u32, change: i64) -> Result<u32, StoreError> {
    i64::from(old)
        .checked_add(change)
        .and_then(|sum| u32::try_from(sum).ok())
        .ok_or_else(|| {
            corrupt_item(
                TreeId::EXTENT,
                record.key,
                "has a reference with an impossible count",
            )
        })
}

fn apply_change(
    editor: &mut Editor<'_, Engine>,
    context: &Context,
    record: &mut ExtentRecord,
    by: Backref,
    change: i64,
) -> Result<(), StoreError> {
    if let Some(at) = record.inline.iter().position(|(other, _)| *other == by) {
        let count = changed_count(record, record.inline[at].1, change)?;
        if count == 0 {
            record.inline.remove(at);
        } else {
            record.inline[at].1 = count;
        }
        return Ok(());
    }
    // References stay inline until the item is full, so a record with room
    // and no keyed ones needs no search.
    let (key, found) = find_keyed(editor, record, by)?;
    if let Some(old) = found {
        let count = changed_count(record, old, change)?;
        if count == 0 {
            editor.remove(&key)?;
        } else {
            editor.replace(&key, &by.keyed_data(count))?;
        }
        return Ok(());
    }
    let count = changed_count(record, 0, change)?;
    if record.size() + by.inline_size() <= context.inline_max {
        record.add_inline(by, count);
    } else {
        editor.insert(&key, &by.keyed_data(count))?;
    }
    Ok(())
}

/// The keyed item of a reference: where it is, with its count, or where it
/// belongs.
fn find_keyed(
    editor: &mut Editor<'_, Engine>,
    record: &ExtentRecord,
    by: Backref,
) -> Result<(Key, Option<u32>), StoreError> {
    let (item_type, mut offset) = by.place();
    // Hashes of data references may collide; the next free offset is used.
    for _ in 0..=u16::MAX {
        let key = Key::new(record.key.objectid, item_type, offset);
        if record.refs == 0 {
            return Ok((key, None));
        }
        let Some(data) = editor.get_mut(&key)? else {
            return Ok((key, None));
        };
        let parsed =
            parse_keyed(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
        if let Some((other, count)) = parsed
            && other == by
        {
            return Ok((key, Some(count)));
        }
        offset = offset.wrapping_add(1);
    }
    Err(corrupt_item(
        TreeId::EXTENT,
        record.key,
        "has too many colliding references",
    ))
}
