//! The free-space tree (space cache v2): free ranges of each block group, as
//! extents or as bitmaps.
//!
//! Owns its edits and reading. A range is free when no extent of the committed
//! extent tree covers it and no superblock copy lies there; pinned space counts
//! as free. Edits keep the form (extents or bitmaps) that a block group has.
//!
//! Source: the documentation's on-disk format page and dumps of kernel volumes.

use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use butterfs_format::node::ITEM_SIZE;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::{Cursor, Editor, NodeSink, NodeSource, find};
use std::ops::Range;

/// Bytes of one bitmap item.
const BITMAP_SIZE: u64 = 256;
/// Flag of a block group whose free space lies in bitmaps.
const USING_BITMAPS: u32 = 1;

/// A block group as the free-space tree sees it.
#[derive(Clone, Copy, Debug)]
pub struct GroupSpan {
    /// First byte.
    pub start: Logical,
    /// Bytes.
    pub length: u64,
    /// Bytes of a sector.
    pub sector_size: u64,
}

impl GroupSpan {
    fn end(&self) -> u64 {
        self.start.get() + self.length
    }

    fn info_key(&self) -> Key {
        Key::new(self.start.get(), ItemType::FREE_SPACE_INFO, self.length)
    }

    fn bitmap_span(&self) -> u64 {
        BITMAP_SIZE * 8 * self.sector_size
    }
}

/// A FREE_SPACE_INFO item: number of free extents, and flags.
#[derive(Clone, Copy, Debug)]
struct Info {
    extents: u32,
    flags: u32,
}

impl Info {
    fn parse(group: &GroupSpan, data: &[u8]) -> Result<Self, StoreError> {
        let bytes: [u8; 8] = data
            .try_into()
            .map_err(|_| corrupt_item(TreeId::FREE_SPACE, group.info_key(), ItemFault::Size))?;
        let (extents, flags) = bytes.split_at(4);
        Ok(Self {
            extents: u32::from_le_bytes(extents.try_into().expect("four bytes")),
            flags: u32::from_le_bytes(flags.try_into().expect("four bytes")),
        })
    }

    fn encode(self) -> [u8; 8] {
        let mut out = [0; 8];
        out[..4].copy_from_slice(&self.extents.to_le_bytes());
        out[4..].copy_from_slice(&self.flags.to_le_bytes());
        out
    }
}

fn read_info<S: NodeSource>(source: &S, group: &GroupSpan) -> Result<Info, StoreError> {
    let key = group.info_key();
    let Some((leaf, slot)) = find(source, TreeId::FREE_SPACE, &key)? else {
        return Err(corrupt_item(TreeId::FREE_SPACE, key, ItemFault::Missing));
    };
    Info::parse(group, leaf.data(slot))
}

/// Free ranges of `group`, ascending, not coalesced across bitmaps.
///
/// # Errors
/// Damage, reading.
pub fn read_free_ranges<S: NodeSource>(
    source: &S,
    group: &GroupSpan,
) -> Result<Vec<Range<u64>>, StoreError> {
    read_info(source, group)?;
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let first = Key::new(group.start.get(), ItemType::FREE_SPACE_EXTENT, 0);
    let mut cursor = Cursor::seek_in(source, TreeId::FREE_SPACE, &first)?;
    while let Some((key, data)) = cursor.item() {
        if key.objectid >= group.end() {
            break;
        }
        if key.item_type == ItemType::FREE_SPACE_INFO {
            cursor.next()?;
            continue;
        }
        let inside = key
            .objectid
            .checked_add(key.offset)
            .is_some_and(|end| end <= group.end());
        let after = ranges.last().is_none_or(|last| last.end <= key.objectid);
        let aligned = [key.objectid, key.offset]
            .iter()
            .all(|n| n.is_multiple_of(group.sector_size));
        if !inside || !after || !aligned || key.offset == 0 {
            return Err(corrupt_item(
                TreeId::FREE_SPACE,
                key,
                ItemFault::FreeOutsideGroup,
            ));
        }
        match key.item_type {
            ItemType::FREE_SPACE_EXTENT => {
                ranges.push(key.objectid..key.objectid + key.offset);
            }
            ItemType::FREE_SPACE_BITMAP => {
                let bits = key.offset / group.sector_size;
                if (data.len() as u64) * 8 < bits {
                    return Err(corrupt_item(TreeId::FREE_SPACE, key, ItemFault::CutShort));
                }
                for run in bit_runs(data, bits) {
                    let start = key.objectid + run.start * group.sector_size;
                    let end = key.objectid + run.end * group.sector_size;
                    ranges.push(start..end);
                }
            }
            _ => {
                return Err(corrupt_item(TreeId::FREE_SPACE, key, ItemFault::Misplaced));
            }
        }
        cursor.next()?;
    }
    Ok(ranges)
}

fn bit_runs(bitmap: &[u8], bits: u64) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for bit in 0..bits {
        if get_bit(bitmap, bit) {
            match runs.last_mut() {
                Some(run) if run.end == bit => run.end = bit + 1,
                _ => runs.push(bit..bit + 1),
            }
        }
    }
    runs
}

fn get_bit(bitmap: &[u8], bit: u64) -> bool {
    bitmap[(bit / 8) as usize] & (1 << (bit % 8)) != 0
}

/// Whether a change frees ranges or takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Ranges become free.
    Free,
    /// Ranges become used.
    Use,
}

/// Enters a new block group, which is free except for `excluded` (ascending).
///
/// # Errors
/// Editing.
pub fn add_group<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    free: &[Range<u64>],
) -> Result<(), StoreError> {
    let mut editor = Editor::new(sink, TreeId::FREE_SPACE);
    let info = Info {
        extents: free.len() as u32,
        flags: 0,
    };
    editor.insert(&group.info_key(), &info.encode())?;
    for range in free {
        editor.insert(&extent_key(range), &[])?;
    }
    Ok(())
}

/// All items of a block group, ascending, in the form that takes less space.
/// `free` ascends and is coalesced.
pub fn items_of_group(group: &GroupSpan, free: &[Range<u64>]) -> Vec<(Key, Vec<u8>)> {
    let bitmaps = group.length.div_ceil(group.bitmap_span());
    let bitmap_bytes = bitmaps * (BITMAP_SIZE + ITEM_SIZE as u64);
    let in_bitmaps = (free.len() * ITEM_SIZE) as u64 > bitmap_bytes;
    let info = Info {
        extents: free.len() as u32,
        flags: if in_bitmaps { USING_BITMAPS } else { 0 },
    };
    let mut items = vec![(group.info_key(), info.encode().to_vec())];
    if !in_bitmaps {
        items.extend(free.iter().map(|range| (extent_key(range), Vec::new())));
        return items;
    }
    let mut at = group.start.get();
    while at < group.end() {
        let end = group.end().min(at + group.bitmap_span());
        let bits = (end - at) / group.sector_size;
        let mut bitmap = vec![0; bits.div_ceil(8) as usize];
        let first = free.partition_point(|range| range.end <= at);
        for range in free[first..].iter().take_while(|range| range.start < end) {
            let start = (range.start.max(at) - at) / group.sector_size;
            for bit in start..(range.end.min(end) - at) / group.sector_size {
                bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
            }
        }
        items.push((Key::new(at, ItemType::FREE_SPACE_BITMAP, end - at), bitmap));
        at = end;
    }
    items
}

/// How many gaps between block groups are searched for leftovers.
const GAPS_MAX: usize = 1000;

/// Gaps between `groups` (ascending) that hold items. These items belong to no
/// block group. mkfs.btrfs 6.2 leaves such items, and newer versions of `btrfs
/// check` report them.
///
/// # Errors
/// Damage, reading.
pub fn find_orphans<S: NodeSource>(
    source: &S,
    groups: impl Iterator<Item = Range<u64>>,
) -> Result<Vec<Range<u64>>, StoreError> {
    let mut end = 0;
    let mut gaps = Vec::new();
    for group in groups.chain(std::iter::once(u64::MAX..u64::MAX)) {
        if end < group.start && gaps.len() < GAPS_MAX {
            gaps.push(end..group.start);
        }
        end = group.end;
    }
    let mut found = Vec::new();
    for gap in gaps {
        let first = Key::new(gap.start, ItemType::MIN, 0);
        let cursor = Cursor::seek_in(source, TreeId::FREE_SPACE, &first)?;
        if cursor.key().is_some_and(|key| key.objectid < gap.end) {
            found.push(gap);
        }
    }
    Ok(found)
}

/// Removes all items of a gap between block groups.
///
/// # Errors
/// Editing.
pub fn remove_orphans<S: NodeSink>(sink: &mut S, gap: &Range<u64>) -> Result<(), StoreError> {
    let first = Key::new(gap.start, ItemType::MIN, 0);
    let last = Key::new(gap.end - 1, ItemType::MAX, u64::MAX);
    Editor::new(sink, TreeId::FREE_SPACE).remove_range(first..=last)?;
    Ok(())
}

/// Removes all items of a block group.
///
/// # Errors
/// Editing.
pub fn remove_group<S: NodeSink>(sink: &mut S, group: &GroupSpan) -> Result<(), StoreError> {
    let last = Key::new(group.end() - 1, ItemType::MAX, u64::MAX);
    let first = Key::new(group.start.get(), ItemType::MIN, 0);
    Editor::new(sink, TreeId::FREE_SPACE).remove_range(first..=last)?;
    Ok(())
}

fn extent_key(range: &Range<u64>) -> Key {
    Key::new(
        range.start,
        ItemType::FREE_SPACE_EXTENT,
        range.end - range.start,
    )
}

/// Applies `ranges` (ascending, disjoint, inside `group`) as `change`.
///
/// # Errors
/// Damage (a range is not in the state that the change expects); editing
/// failed.
pub fn apply<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    change: Change,
    ranges: &[Range<u64>],
) -> Result<(), StoreError> {
    let mut info = read_info(sink, group)?;
    let before = info.extents;
    for range in ranges {
        let grown = if info.flags & USING_BITMAPS != 0 {
            apply_bitmap(sink, group, change, range)?
        } else {
            match change {
                Change::Free => free_extent(sink, group, range)?,
                Change::Use => use_extent(sink, group, range)?,
            }
        };
        info.extents = info.extents.checked_add_signed(grown).ok_or_else(|| {
            corrupt_item(
                TreeId::FREE_SPACE,
                group.info_key(),
                ItemFault::TooFewFreeExtents,
            )
        })?;
    }
    if info.extents != before {
        let data = info.encode();
        butterfs_tree::update(sink, TreeId::FREE_SPACE, &group.info_key(), |item| {
            item.copy_from_slice(&data);
        })?;
    }
    Ok(())
}

/// Makes all nodes writable that [`apply`] changes for `range`.
///
/// # Errors
/// Reading, no space.
pub fn touch<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    range: &Range<u64>,
) -> Result<(), StoreError> {
    let mut editor = Editor::new(sink, TreeId::FREE_SPACE);
    editor.touch(&group.info_key())?;
    for at in [range.start, range.end] {
        // What ends or begins there lies before such a key.
        editor.touch(&Key::new(at, ItemType::FREE_SPACE_BITMAP, u64::MAX))?;
    }
    Ok(())
}

/// The free extent that begins at or before `at`, inside `group`.
fn extent_before<S: NodeSource>(
    source: &S,
    group: &GroupSpan,
    at: u64,
) -> Result<Option<Range<u64>>, StoreError> {
    let mut cursor = Cursor::seek_in(
        source,
        TreeId::FREE_SPACE,
        &Key::new(at, ItemType::FREE_SPACE_EXTENT, u64::MAX),
    )?;
    if !cursor.prev()? {
        return Ok(None);
    }
    Ok(cursor
        .key()
        .filter(|key| {
            // What begins at the end belongs to the next block group.
            key.item_type == ItemType::FREE_SPACE_EXTENT
                && (group.start.get()..group.end()).contains(&key.objectid)
        })
        .map(|key| key.objectid..key.objectid.saturating_add(key.offset)))
}

fn use_extent<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    range: &Range<u64>,
) -> Result<i32, StoreError> {
    let Some(free) = extent_before(sink, group, range.start)?.filter(|free| free.end >= range.end)
    else {
        return Err(corrupt_item(
            TreeId::FREE_SPACE,
            extent_key(range),
            ItemFault::AllocatedNotFree,
        ));
    };
    let mut editor = Editor::new(sink, TreeId::FREE_SPACE);
    let left = [free.start..range.start, range.end..free.end];
    let mut left = left.iter().filter(|rest| !rest.is_empty());
    match left.next() {
        Some(rest) => rename_extent(&mut editor, &free, rest)?,
        None => _ = editor.remove(&extent_key(&free))?,
    }
    match left.next() {
        Some(rest) => {
            editor.insert(&extent_key(rest), &[])?;
            Ok(1)
        }
        None => Ok(if range == &free { -1 } else { 0 }),
    }
}

/// Writes down that a free extent is another one now, in the same place among
/// the others. The number of items stays the same. So nodes of this tree take no
/// space and free none, which would change the extent again: a commit could go
/// round in a circle.
fn rename_extent<S: NodeSink>(
    editor: &mut Editor<'_, S>,
    from: &Range<u64>,
    to: &Range<u64>,
) -> Result<(), StoreError> {
    match editor.rekey(&extent_key(from), &extent_key(to))? {
        true => Ok(()),
        false => Err(StoreError::Internal("a free extent was not found again")),
    }
}

fn free_extent<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    range: &Range<u64>,
) -> Result<i32, StoreError> {
    let left = extent_before(sink, group, range.start)?;
    let right = extent_before(sink, group, range.end)?;
    let mut merged = range.clone();
    let mut grown = 1;
    let mut gone = Vec::new();
    for free in [left, right].into_iter().flatten() {
        if free.end == range.start {
            merged.start = free.start;
        } else if free.start == range.end {
            merged.end = free.end;
        } else if free.start < range.end && free.end > range.start {
            return Err(corrupt_item(
                TreeId::FREE_SPACE,
                extent_key(range),
                ItemFault::FreedTwice,
            ));
        } else {
            continue;
        }
        if !gone.contains(&free) {
            gone.push(free);
            grown -= 1;
        }
    }
    let mut editor = Editor::new(sink, TreeId::FREE_SPACE);
    match &gone[..] {
        [] => editor.insert(&extent_key(&merged), &[])?,
        [first, others @ ..] => {
            for free in others {
                editor.remove(&extent_key(free))?;
            }
            rename_extent(&mut editor, first, &merged)?;
        }
    }
    Ok(grown)
}

/// The bitmap item that covers `at`.
fn bitmap_at<S: NodeSource>(
    source: &S,
    group: &GroupSpan,
    at: u64,
) -> Result<(Key, Vec<u8>), StoreError> {
    let place = Key::new(at, ItemType::FREE_SPACE_BITMAP, u64::MAX);
    let mut cursor = Cursor::seek_in(source, TreeId::FREE_SPACE, &place)?;
    cursor.prev()?;
    if let Some((key, data)) = cursor.item()
        && key.item_type == ItemType::FREE_SPACE_BITMAP
        && key.objectid >= group.start.get()
        && key.objectid <= at
        && at - key.objectid < key.offset
        && key.offset <= group.bitmap_span()
        && data.len() as u64 * 8 * group.sector_size >= key.offset
    {
        return Ok((key, data.to_vec()));
    }
    Err(corrupt_item(
        TreeId::FREE_SPACE,
        place,
        ItemFault::MissingBitmap,
    ))
}

fn apply_bitmap<S: NodeSink>(
    sink: &mut S,
    group: &GroupSpan,
    change: Change,
    range: &Range<u64>,
) -> Result<i32, StoreError> {
    let set = change == Change::Free;
    let is_free = |sink: &S, at: u64| -> Result<bool, StoreError> {
        let (key, bitmap) = bitmap_at(sink, group, at)?;
        Ok(get_bit(&bitmap, (at - key.objectid) / group.sector_size))
    };
    let left = range.start > group.start.get() && is_free(sink, range.start - group.sector_size)?;
    let right = range.end < group.end() && is_free(sink, range.end)?;
    let mut at = range.start;
    while at < range.end {
        let (key, mut bitmap) = bitmap_at(sink, group, at)?;
        let end = range.end.min(key.objectid + key.offset);
        for bit in (at - key.objectid) / group.sector_size..(end - key.objectid) / group.sector_size
        {
            if get_bit(&bitmap, bit) == set {
                return Err(corrupt_item(
                    TreeId::FREE_SPACE,
                    key,
                    ItemFault::FreeDisagrees,
                ));
            }
            bitmap[(bit / 8) as usize] ^= 1 << (bit % 8);
        }
        butterfs_tree::update(sink, TreeId::FREE_SPACE, &key, |item| {
            item.copy_from_slice(&bitmap);
        })?;
        at = end;
    }
    // A new run of free space adds an extent; joining two runs removes one.
    let neighbours = i32::from(left) + i32::from(right);
    Ok(if set { 1 - neighbours } else { neighbours - 1 })
}
