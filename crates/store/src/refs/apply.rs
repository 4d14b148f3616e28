//! Brings pending reference changes into the extent tree, in the order of
//! addresses. Brings their effects into block groups, the free-space tree, the
//! checksum tree and pinned space.

use super::pending::{Backref, ExtentKind, PendingExtent};
use super::record::{
    ExtentRecord, FLAG_FULL_BACKREF, Reach, displaced_behind, find_keyed, verify_none_keyed,
};
use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use crate::quota::groups::Quotas;
use crate::refs::checksums;
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

const NO_GROUP: StoreError = StoreError::Internal("a block group went away");

/// Constants of the batch.
struct Context {
    generation: Generation,
    skinny: bool,
    /// Simple quotas are on: each data extent names the tree that allocated it.
    owned: bool,
    /// Greatest item with inline references.
    inline_max: usize,
}

impl Engine {
    /// Applies the pending changes of extents, ascending by address, up to about
    /// `most` references. Doing so changes nodes, so there may be new pending
    /// changes afterwards. Those that come at addresses further on are applied
    /// too. A node that comes and goes before its turn never gets a record.
    pub(crate) fn apply_pending(&mut self, most: usize) -> Result<(), StoreError> {
        let context = Context {
            generation: self.generation,
            skinny: self.publisher.superblock().has_skinny_metadata(),
            owned: self.quotas().is_some_and(Quotas::is_simple),
            inline_max: (self.node_size() - HEADER_SIZE) / 16 - ITEM_SIZE,
        };
        let mut effects = Effects::default();
        let mut editor = Editor::new(self, TreeId::EXTENT);
        let (mut at, mut applied) = (Logical(0), 0);
        while applied < most
            && let Some((logical, extent)) = editor.sink().take_pending(at)
        {
            apply_extent(&mut editor, &context, logical, &extent, &mut effects)?;
            // Some change nothing but a flag.
            applied += extent.changes.len().max(1);
            at = Logical(logical.get() + 1);
        }
        self.account(&effects)
    }

    /// Takes the first pending changes at `from` or behind it. Those of extents in
    /// new block groups wait for the groups' items.
    fn take_pending(&mut self, mut from: Logical) -> Option<(Logical, PendingExtent)> {
        loop {
            let logical = self.ledger.pending.next(from)?;
            let group = match self.space_map.groups().first_new() {
                Some(_) => self.space_map.groups().containing(logical),
                None => None,
            };
            match group.filter(|group| group.is_new()) {
                Some(group) => from = Logical(group.end()),
                None => return Some((logical, self.ledger.pending.take(logical)?)),
            }
        }
    }

    fn account(&mut self, effects: &Effects) -> Result<(), StoreError> {
        for range in &effects.used {
            self.space_map.note_used(range)?;
        }
        for range in &effects.freed {
            self.space_map.note_freed(range.clone())?;
        }
        self.account_free_space(Change::Use, &effects.used)?;
        self.account_free_space(Change::Free, &effects.freed)?;
        for range in &effects.freed_data {
            self.ledger.forget_checksums(range);
            checksums::remove_range(self, range)?;
        }
        Ok(())
    }

    fn account_free_space(
        &mut self,
        change: Change,
        ranges: &[Range<u64>],
    ) -> Result<(), StoreError> {
        if !self.space_map.has_free_space_tree() {
            return Ok(());
        }
        let mut by_group: BTreeMap<Logical, Vec<Range<u64>>> = BTreeMap::new();
        for range in ranges {
            self.space_map.for_each_group_part(range, |group, part| {
                by_group.entry(group.start).or_default().push(part);
            })?;
        }
        for (start, parts) in by_group {
            let group = self.space_map.groups().get(start).ok_or(NO_GROUP)?;
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
            ItemFault::BeyondAddresses,
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
        // Nodes are written after this.
        editor.source().verify_unused(&range)?;
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
                ItemFault::RefsLeft,
            ));
        }
        editor.remove(&record.key)?;
        verify_none_keyed(editor.source(), record.key)?;
        push(&mut effects.freed, range.clone());
        if extent.kind == ExtentKind::Data {
            push(&mut effects.freed_data, range);
        }
        return Ok(());
    }
    // A count alone that is too great costs only the node's space.
    if extent.is_last && !record.inline.is_empty() {
        let fault = ItemFault::SharedAfterSnapshot;
        return Err(corrupt_item(TreeId::EXTENT, record.key, fault));
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
            return ExtentRecord::parse_counted(key, data);
        }
    }
    Err(corrupt_item(
        TreeId::EXTENT,
        plain,
        ItemFault::MissingExtent,
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
    let (mut drops, mut adds): (Vec<_>, Vec<_>) = extent.changes.iter().partition(|(_, n)| *n < 0);
    for changes in [&mut drops, &mut adds] {
        // In the order of their items.
        changes.sort_by_cached_key(|(by, _)| by.place());
    }
    // Drops come first, so that their room can be used.
    for (by, count) in drops {
        drop_references(editor, record, by, count.unsigned_abs())?;
    }
    for (by, count) in adds {
        add_references(editor, context, record, by, count.unsigned_abs())?;
    }
    Ok(())
}

fn impossible_count(record: &ExtentRecord) -> StoreError {
    corrupt_item(TreeId::EXTENT, record.key, ItemFault::RefCount)
}

/// Drops `left` references of one kind. They may be counted in several places.
fn drop_references(
    editor: &mut Editor<'_, Engine>,
    record: &mut ExtentRecord,
    by: Backref,
    mut left: u64,
) -> Result<(), StoreError> {
    let too_few = || corrupt_item(TreeId::EXTENT, record.key, ItemFault::TooFewRefs);
    let refs = record.refs.checked_sub(left).ok_or_else(too_few)?;
    if let Some(at) = record.inline.iter().position(|(other, _)| *other == by) {
        let (rest, taken) = without(record.inline[at].1, left);
        left -= taken;
        if rest == 0 {
            record.inline.remove(at);
        } else {
            record.inline[at].1 = rest;
        }
    }
    while left > 0 {
        let place = find_keyed(editor.source(), record.key.objectid, by, Reach::Far)?;
        let (key, count) = place.found.ok_or_else(|| impossible_count(record))?;
        let (rest, taken) = without(count, left);
        if taken == 0 {
            return Err(impossible_count(record));
        }
        left -= taken;
        if rest == 0 {
            editor.remove(&key)?;
            close_gap(editor, key)?;
        } else {
            editor.replace(&key, &by.keyed_data(rest))?;
        }
    }
    record.refs = refs;
    Ok(())
}

/// Moves items that collisions put behind `gap` into it, so that no chain has a
/// hole. The kernel leaves holes and copes with them. But it may then make a
/// second item in such a hole for a reference that has one behind it, and it
/// cannot drop both at once.
fn close_gap(editor: &mut Editor<'_, Engine>, mut gap: Key) -> Result<(), StoreError> {
    while let Some((key, data)) = displaced_behind(editor.source(), gap)? {
        editor.remove(&key)?;
        editor.insert(&gap, &data)?;
        gap = key;
    }
    Ok(())
}

/// Takes up to `most` from a count. Gives what is left of it, and how much was
/// taken.
fn without(count: u32, most: u64) -> (u32, u64) {
    let taken = count.min(u32::try_from(most).unwrap_or(u32::MAX));
    (count - taken, u64::from(taken))
}

/// Adds `more` references of one kind.
fn add_references(
    editor: &mut Editor<'_, Engine>,
    context: &Context,
    record: &mut ExtentRecord,
    by: Backref,
    more: u64,
) -> Result<(), StoreError> {
    let impossible = impossible_count(record);
    let grown = |count: u32| u32::try_from(u64::from(count).checked_add(more)?).ok();
    let refs = record.refs.checked_add(more);
    let (Some(refs), Some(count)) = (refs, grown(0)) else {
        return Err(impossible);
    };
    let object = record.key.objectid;
    if let Some((_, old)) = record.inline.iter_mut().find(|(other, _)| *other == by) {
        *old = grown(*old).ok_or(impossible)?;
        record.refs = refs;
        return Ok(());
    }
    let place = match record.has_keyed() {
        true => Some(find_keyed(editor.source(), object, by, Reach::Near)?),
        false => None,
    };
    record.refs = refs;
    if let Some((key, old)) = place.and_then(|place| place.found) {
        let count = grown(old).ok_or(impossible)?;
        return Ok(editor.replace(&key, &by.keyed_data(count))?);
    }
    if record.size() + by.inline_size() <= context.inline_max {
        record.add_inline(by, count);
        return Ok(());
    }
    let (item_type, first) = by.place();
    let key = place.map_or(Key::new(object, item_type, first), |place| place.free);
    Ok(editor.insert(&key, &by.keyed_data(count))?)
}
