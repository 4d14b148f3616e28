//! The free-space tree, made equal to what the extents leave free.

use crate::error::RepairError;
use crate::items::{self, Items};
use crate::ranges::Ranges;
use crate::writer::{Group, Writer};
use butterfs_format::item::free_space::{
    BitmapThresholds, FreeSpaceFlags, FreeSpaceInfo, bitmap_span,
};
use butterfs_format::{ItemType, Key, TreeId};
use std::ops::Range;

/// The items of a block group with the free space `free`.
fn wanted(group: Group, free: &[Range<u64>], in_bitmaps: bool, sector: u32) -> Items {
    let mut want = Items::new();
    let count = u32::try_from(free.len()).unwrap_or(u32::MAX);
    let info = FreeSpaceInfo {
        extents: count,
        flags: match in_bitmaps {
            true => FreeSpaceFlags::USING_BITMAPS,
            false => FreeSpaceFlags::default(),
        },
    };
    let key = Key::new(group.start, ItemType::FREE_SPACE_INFO, group.length);
    want.insert(key, info.encode());
    if !in_bitmaps {
        for range in free {
            let length = range.end.saturating_sub(range.start);
            let key = Key::new(range.start, ItemType::FREE_SPACE_EXTENT, length);
            want.insert(key, Vec::new());
        }
        return want;
    }
    let end = group.start.saturating_add(group.length);
    let span = bitmap_span(sector).max(1);
    let mut at = group.start;
    let mut rest = free;
    while at < end {
        let next = at.saturating_add(span).min(end);
        let length = next.saturating_sub(at);
        let sectors = length.checked_div(u64::from(sector)).unwrap_or(0);
        let size = usize::try_from(sectors.div_ceil(8)).unwrap_or(0);
        let mut bits = vec![0_u8; size];
        while rest.first().is_some_and(|range| range.end <= at) {
            rest = rest.get(1..).unwrap_or_default();
        }
        for range in rest.iter().take_while(|range| range.start < next) {
            let from = range.start.max(at).saturating_sub(at);
            let to = range.end.min(next).saturating_sub(at);
            let bit = |at: u64| at.checked_div(u64::from(sector)).unwrap_or(0);
            for number in bit(from)..bit(to) {
                let index = usize::try_from(number >> 3).unwrap_or(usize::MAX);
                if let Some(byte) = bits.get_mut(index) {
                    *byte |= 1_u8 << (number & 7);
                }
            }
        }
        want.insert(Key::new(at, ItemType::FREE_SPACE_BITMAP, length), bits);
        at = next;
    }
    want
}

/// Whether the items say that the block group uses bitmaps.
fn uses_bitmaps(have: &Items, group: Group) -> bool {
    let key = Key::new(group.start, ItemType::FREE_SPACE_INFO, group.length);
    let info = have.get(&key).map(|data| FreeSpaceInfo::parse(data));
    matches!(info, Some(Ok(info)) if info.flags.contains(FreeSpaceFlags::USING_BITMAPS))
}

/// Makes the tree equal to the space that `allocated` leaves; gives how many
/// items changed.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn merge(writer: &mut Writer, allocated: &Ranges) -> Result<usize, RepairError> {
    let tree = TreeId::FREE_SPACE;
    let sector = writer.patient.superblock.sector_size;
    let mut changed = 0_usize;
    let mut from = 0_u64;
    let key = |at: u64| Key::new(at, ItemType::MIN, 0);
    for group in writer.groups().to_vec() {
        // Between two block groups is nothing.
        if from < group.start {
            let until = Key::new(group.start.saturating_sub(1), ItemType::MAX, u64::MAX);
            let have = items::read(writer, tree, key(from)..=until)?;
            changed = changed.saturating_add(items::change(writer, tree, &have, &Items::new())?);
        }
        let end = group.start.saturating_add(group.length);
        let until = Key::new(end.saturating_sub(1), ItemType::MAX, u64::MAX);
        let have = items::read(writer, tree, key(group.start)..=until)?;
        let free = allocated.gaps(group.start..end);
        let count = u32::try_from(free.len()).unwrap_or(u32::MAX);
        let limits = BitmapThresholds::new(group.length, sector);
        let in_bitmaps = match uses_bitmaps(&have, group) {
            true => count >= limits.to_extents_below,
            false => count > limits.to_bitmaps_above,
        };
        let want = wanted(group, &free, in_bitmaps, sector);
        changed = changed.saturating_add(items::change(writer, tree, &have, &want)?);
        from = end;
    }
    let have = items::read(writer, tree, key(from)..=Key::MAX)?;
    Ok(changed.saturating_add(items::change(writer, tree, &have, &Items::new())?))
}
