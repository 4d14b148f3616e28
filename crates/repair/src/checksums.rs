//! The checksum tree, made equal to the data that files have.
//!
//! Owns which data have checksums, and the comparison of data with them. A
//! checksum that is there stays, also if the data do not match it: then the
//! data are bad, not the checksum.

use crate::error::RepairError;
use crate::items::{self, Items};
use crate::ranges::Ranges;
use crate::step::{Step, StepKind};
use crate::walk::Found;
use crate::writer::Writer;
use butterfs_format::item::csum::{self, CsumItem};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::{Editor, TreeError, find};
use std::ops::Range;

/// Data as files refer to them.
#[derive(Debug, Default)]
struct Data {
    /// Data that must have checksums.
    summed: Ranges,
    /// Data that must have none.
    bare: Ranges,
    /// Inodes that are NODATASUM and have data with checksums: their trees,
    /// numbers and data.
    contradict: Vec<(TreeId, u64, Range<u64>)>,
}

/// The space whose checksums a reader of the file extent compares.
fn space_of(extent: &FileExtent<'_>) -> Option<Range<u64>> {
    let FileExtentBody::Regular(place) = extent.body else {
        return None;
    };
    if place.disk.get() == 0 {
        return None;
    }
    let (start, length) = match extent.compression {
        Some(_) => (place.disk.get(), place.disk_length),
        None => (place.disk.get().saturating_add(place.offset), place.length),
    };
    Some(start..start.saturating_add(length))
}

/// Reads what is covered by checksums. What is no checksum item is removed, and
/// of two that overlap, the second one gives up what the first has.
fn clean(writer: &mut Writer) -> Result<(Ranges, usize), RepairError> {
    let superblock = &writer.patient.superblock;
    let (kind, sector) = (superblock.checksum_type, superblock.sector_size);
    let mut covered = Ranges::default();
    let (mut have, mut want) = (Items::new(), Items::new());
    let mut end = 0_u64;
    items::each(writer, TreeId::CSUM, Key::MIN..=Key::MAX, |key, data| {
        let Ok(item) = CsumItem::parse(&key, data, kind, sector) else {
            have.insert(key, data.to_vec());
            return Ok(());
        };
        let (start, last) = (item.start.get(), item.end.get());
        if start < end {
            have.insert(key, data.to_vec());
            if last > end {
                let skip = end
                    .saturating_sub(start)
                    .checked_div(u64::from(sector))
                    .unwrap_or(0);
                let skip = usize::try_from(skip)
                    .unwrap_or(usize::MAX)
                    .saturating_mul(kind.size());
                let rest = data.get(skip..).unwrap_or_default();
                want.insert(csum::key(Logical(end)), rest.to_vec());
            }
        }
        covered.add(start..last);
        end = end.max(last);
        Ok(())
    })?;
    let changed = items::change(writer, TreeId::CSUM, &have, &want)?;
    Ok((covered, changed))
}

/// Sorts the data of all files by whether they have checksums.
fn data_of_files(writer: &Writer, covered: &Ranges) -> Result<Data, RepairError> {
    let mut data = Data::default();
    let trees = writer.roots.keys().filter(|tree| tree.is_subvolume());
    for tree in trees {
        let mut inode: Option<(u64, bool)> = None;
        // What cannot be read needs no checksums.
        let read = items::each(writer, *tree, Key::MIN..=Key::MAX, |key, bytes| {
            if key.item_type == ItemType::INODE_ITEM {
                let item = InodeItem::parse(bytes).ok();
                let bare = item.is_some_and(|item| item.flags.contains(InodeFlags::NODATASUM));
                inode = Some((key.objectid, bare));
            }
            if key.item_type != ItemType::EXTENT_DATA {
                return Ok(());
            }
            let Ok(extent) = FileExtent::parse(bytes) else {
                return Ok(());
            };
            if let FileExtentBody::Prealloc(place) = extent.body {
                let start = place.disk.get().saturating_add(place.offset);
                data.bare.add(start..start.saturating_add(place.length));
            }
            let Some(space) = space_of(&extent) else {
                return Ok(());
            };
            let is_bare = inode.is_some_and(|(number, bare)| number == key.objectid && bare);
            if !is_bare || extent.compression.is_some() {
                data.summed.add(space);
            } else {
                if covered.touches(space.clone()) && data.contradict.len() < 1 << 16 {
                    data.contradict.push((*tree, key.objectid, space.clone()));
                }
                data.bare.add(space);
            }
            Ok(())
        });
        if !matches!(
            read,
            Ok(()) | Err(RepairError::Tree(TreeError::Corrupt { .. }))
        ) {
            read?;
        }
    }
    Ok(data)
}

/// Reads a sector's checksum in the tree.
fn sum_at(writer: &Writer, at: u64) -> Result<Option<Vec<u8>>, RepairError> {
    let superblock = &writer.patient.superblock;
    let mut cursor = butterfs_tree::Cursor::seek_in(writer, TreeId::CSUM, &csum::key(Logical(at)))?;
    if cursor.key() != Some(csum::key(Logical(at))) {
        cursor.seek_back(&csum::key(Logical(at)))?;
    }
    let Some((key, data)) = cursor.item() else {
        return Ok(None);
    };
    let item = CsumItem::parse(&key, data, superblock.checksum_type, superblock.sector_size);
    Ok(item
        .ok()
        .and_then(|item| item.find(Logical(at)).map(<[u8]>::to_vec)))
}

/// Whether all data of a range match the checksums that they have.
fn matches(writer: &Writer, space: Range<u64>) -> Result<bool, RepairError> {
    let kind = writer.patient.superblock.checksum_type;
    let sector = u64::from(writer.patient.superblock.sector_size).max(1);
    let mut buffer = vec![0; usize::try_from(sector).unwrap_or(0)];
    let mut at = space.start;
    while at < space.end {
        let Some(wanted) = sum_at(writer, at)? else {
            return Ok(false);
        };
        if writer.patient.space.read(Logical(at), &mut buffer).is_err() {
            return Ok(false);
        }
        let found = kind.compute(&buffer);
        if found.get(..kind.size()) != Some(&wanted[..]) {
            return Ok(false);
        }
        at = at.saturating_add(sector);
    }
    Ok(true)
}

/// Takes the checksums of a range out.
fn uncover(writer: &mut Writer, space: Range<u64>) -> Result<(), RepairError> {
    let superblock = &writer.patient.superblock;
    let (kind, sector) = (superblock.checksum_type, superblock.sector_size);
    // An item covers less than this.
    let reach = u64::from(sector).saturating_mul(1 << 16);
    let first = csum::key(Logical(space.start.saturating_sub(reach)));
    let last = csum::key(Logical(space.end.saturating_sub(1)));
    let all = items::read(writer, TreeId::CSUM, first..=last)?;
    let (mut have, mut want) = (Items::new(), Items::new());
    for (key, data) in all {
        let Ok(item) = CsumItem::parse(&key, &data, kind, sector) else {
            continue;
        };
        let (start, end) = (item.start.get(), item.end.get());
        if end <= space.start || start >= space.end {
            continue;
        }
        let bytes = |length: u64| {
            let count = length.checked_div(u64::from(sector)).unwrap_or(0);
            usize::try_from(count)
                .unwrap_or(usize::MAX)
                .saturating_mul(kind.size())
        };
        let before = bytes(space.start.saturating_sub(start));
        let behind = bytes(space.end.min(end).saturating_sub(start));
        if before > 0 {
            want.insert(key, data.get(..before).unwrap_or_default().to_vec());
        }
        if let Some(rest) = data.get(behind..).filter(|rest| !rest.is_empty()) {
            want.insert(csum::key(Logical(space.end)), rest.to_vec());
        }
        have.insert(key, data);
    }
    items::change(writer, TreeId::CSUM, &have, &want)?;
    Ok(())
}

/// Computes the checksums of a range; gives the bytes that could not be read.
fn cover(writer: &mut Writer, space: Range<u64>) -> Result<u64, RepairError> {
    let superblock = &writer.patient.superblock;
    let (kind, sector) = (
        superblock.checksum_type,
        u64::from(superblock.sector_size).max(1),
    );
    let most = csum::entries_max(superblock.node_size, kind);
    let mut buffer = vec![0; usize::try_from(sector).unwrap_or(0)];
    let mut at = space.start;
    let mut start = at;
    let mut sums: Vec<u8> = Vec::new();
    let mut unreadable = 0_u64;
    while at < space.end {
        let read = writer.patient.space.read(Logical(at), &mut buffer);
        let next = at.saturating_add(sector);
        if read.is_ok() {
            let sum = kind.compute(&buffer);
            sums.extend_from_slice(sum.get(..kind.size()).unwrap_or_default());
        } else {
            unreadable = unreadable.saturating_add(sector);
        }
        let is_full = sums.len() >= most.saturating_mul(kind.size());
        if !sums.is_empty() && (is_full || read.is_err() || next >= space.end) {
            let key = csum::key(Logical(start));
            Editor::new(writer, TreeId::CSUM).replace(&key, &sums)?;
            sums.clear();
        }
        if sums.is_empty() {
            start = next;
        }
        at = next;
    }
    Ok(unreadable)
}

/// Mends the checksum tree.
///
/// # Errors
/// Reading or changing a tree.
pub(crate) fn mend(
    writer: &mut Writer,
    found: &Found,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let (covered, cleaned) = clean(writer)?;
    let mut data = data_of_files(writer, &covered)?;
    // A mark NODATASUM that the data contradict is wrong.
    for (tree, number, space) in std::mem::take(&mut data.contradict) {
        if !matches(writer, space.clone())? {
            continue;
        }
        let key = Key::new(number, ItemType::INODE_ITEM, 0);
        let known = find(writer, tree, &key)?;
        let item = known.and_then(|(leaf, slot)| InodeItem::parse(leaf.data(slot)).ok());
        if let Some(mut item) = item
            && item.flags.contains(InodeFlags::NODATASUM)
        {
            item.flags = item
                .flags
                .without(InodeFlags::NODATASUM | InodeFlags::NODATACOW);
            Editor::new(writer, tree).replace(&key, &item.encode())?;
            let text = format!(
                "NODATASUM of inode {number} in tree {tree}: its data have checksums and match them."
            );
            steps.push(Step::new(StepKind::Inodes, text));
        }
        data.bare.remove(space.clone());
        data.summed.add(space);
    }
    let mut owned = Ranges::default();
    for one in &found.data {
        owned.add(one.extent..one.extent.saturating_add(one.length));
    }
    let whole = 0..u64::MAX;
    let mut missing = Vec::new();
    for range in data.summed.within(whole.clone()) {
        missing.extend(covered.gaps(range));
    }
    let mut extra = Vec::new();
    for range in covered.within(whole.clone()) {
        extra.extend(owned.gaps(range.clone()));
        for bare in data.bare.within(range) {
            extra.extend(data.summed.gaps(bare));
        }
    }
    let bytes = |all: &[Range<u64>]| {
        all.iter().fold(0_u64, |sum, range| {
            sum.saturating_add(range.end.saturating_sub(range.start))
        })
    };
    if cleaned > 0 || !extra.is_empty() {
        let text = format!("{cleaned} items, and those of {} bytes.", bytes(&extra));
        steps.push(Step::new(StepKind::ChecksumsRemoved, text));
    }
    for range in extra {
        uncover(writer, range)?;
    }
    if !missing.is_empty() {
        let text = format!("{} bytes.", bytes(&missing));
        let mut unreadable = 0_u64;
        for range in missing {
            unreadable = unreadable.saturating_add(cover(writer, range)?);
        }
        let mut step = Step::new(StepKind::Checksums, text);
        if unreadable > 0 {
            step = step.losing(format!("{unreadable} bytes that no device gives"));
        }
        steps.push(step);
    }
    Ok(())
}

/// Gives data that no copy matches the checksums that they have now.
///
/// # Errors
/// Reading or changing a tree.
pub(crate) fn accept_data(writer: &mut Writer, steps: &mut Vec<Step>) -> Result<(), RepairError> {
    let superblock = &writer.patient.superblock;
    let (kind, sector) = (superblock.checksum_type, superblock.sector_size);
    let each = usize::try_from(sector).unwrap_or(0);
    let mut want = Items::new();
    let (mut have, mut accepted) = (Items::new(), 0_u64);
    items::each(writer, TreeId::CSUM, Key::MIN..=Key::MAX, |key, data| {
        if CsumItem::parse(&key, data, kind, sector).is_err() {
            return Ok(());
        }
        let mut new = data.to_vec();
        let mut at = Logical(key.offset);
        let mut buffer = vec![0; each];
        for sum in new.chunks_exact_mut(kind.size()) {
            let copies = writer.patient.space.ways(at).max(1);
            let mut first = None;
            let is_good = (0..copies).any(|copy| {
                let read = writer.patient.space.read_copy(at, copy, &mut buffer);
                let found = kind.compute(&buffer);
                if read.is_ok() && first.is_none() {
                    first = Some(found);
                }
                read.is_ok() && found.get(..kind.size()) == Some(&*sum)
            });
            if let (false, Some(first)) = (is_good, first)
                && let Some(first) = first.get(..kind.size())
            {
                sum.copy_from_slice(first);
                accepted = accepted.saturating_add(1);
            }
            at = at.saturating_add(u64::from(sector));
        }
        if new != data {
            have.insert(key, data.to_vec());
            want.insert(key, new);
        }
        Ok(())
    })?;
    items::change(writer, TreeId::CSUM, &have, &want)?;
    if accepted > 0 {
        let text = format!("{accepted} sectors that did not match theirs.");
        let lost = "what these sectors held before they were damaged";
        steps.push(Step::new(StepKind::Checksums, text).losing(lost));
    }
    Ok(())
}
