//! File extents that contradict themselves. The extent that they name knows its
//! own length.

use crate::error::RepairError;
use crate::inodes::Plan;
use crate::writer::Writer;
use butterfs_format::compression::UNIT;
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::{Cursor, find};

/// What becomes of a file extent.
pub(crate) enum Mended {
    /// It is possible. It ends at this offset of the file.
    Good(u64),
    /// It was corrected. It ends at this offset.
    Changed(Vec<u8>, u64),
    /// It cannot be corrected.
    Gone,
}

/// A hole of `length` bytes.
pub(crate) fn hole(writer: &Writer, length: u64) -> Vec<u8> {
    let extent = FileExtent {
        generation: writer.generation,
        ram_bytes: length,
        compression: None,
        encryption: 0,
        other_encoding: 0,
        body: FileExtentBody::Regular(ExtentPlace {
            disk: Logical(0),
            disk_length: 0,
            offset: 0,
            length,
        }),
    };
    extent.encode()
}

/// Reads a file extent whose numbers contradict each other.
fn parse_loosely(data: &[u8]) -> Option<FileExtent<'_>> {
    if let Ok(extent) = FileExtent::parse(data) {
        return Some(extent);
    }
    if data.len() != FileExtent::REGULAR_SIZE {
        return None;
    }
    let number = |at: usize| -> Option<u64> {
        let field = data.get(at..at.checked_add(8)?)?;
        Some(u64::from_le_bytes(field.try_into().ok()?))
    };
    let place = ExtentPlace {
        disk: Logical(number(21)?),
        disk_length: number(29)?,
        offset: number(37)?,
        length: number(45)?,
    };
    let compression = match data.get(16)? {
        0 => None,
        other => Some(butterfs_format::compression::Algorithm::from_number(
            *other,
        )?),
    };
    Some(FileExtent {
        generation: butterfs_format::Generation(number(0)?),
        ram_bytes: number(8)?,
        compression,
        encryption: 0,
        other_encoding: 0,
        body: match data.get(20)? {
            1 => FileExtentBody::Regular(place),
            2 => FileExtentBody::Prealloc(place),
            _ => return None,
        },
    })
}

/// Bytes of the data extent at `logical` by the extent tree.
fn recorded_length(writer: &Writer, logical: Logical) -> Option<u64> {
    let begin = Key::new(logical.get(), ItemType::EXTENT_ITEM, 0);
    let cursor = Cursor::seek_in(writer, TreeId::EXTENT, &begin).ok()?;
    let key = cursor.key()?;
    let is_it = key.objectid == logical.get() && key.item_type == ItemType::EXTENT_ITEM;
    is_it.then_some(key.offset)
}

fn is_possible(plan: &Plan<'_>, key: Key, extent: &FileExtent<'_>) -> bool {
    let superblock = &plan.writer.patient.superblock;
    let sector = u64::from(superblock.sector_size);
    if !key.offset.is_multiple_of(sector)
        || extent.generation > superblock.generation.saturating_add(1)
    {
        return false;
    }
    let place = match &extent.body {
        FileExtentBody::Inline(data) => {
            let stored = u64::try_from(data.len()).unwrap_or(u64::MAX);
            return key.offset == 0
                && extent.ram_bytes > 0
                && extent.ram_bytes <= sector
                && stored > 0
                && stored < sector;
        }
        FileExtentBody::Prealloc(place) => {
            if place.disk.get() == 0 || extent.compression.is_some() {
                return false;
            }
            place
        }
        FileExtentBody::Regular(place) => place,
    };
    let numbers = [
        place.disk.get(),
        place.disk_length,
        place.offset,
        place.length,
        extent.ram_bytes,
    ];
    let end = place.offset.checked_add(place.length);
    let fits = |most: u64| end.is_some_and(|end| end <= most);
    if place.length == 0
        || key.offset.checked_add(place.length).is_none()
        || !numbers.iter().all(|number| number.is_multiple_of(sector))
        || !fits(extent.ram_bytes)
    {
        return false;
    }
    if place.disk.get() == 0 {
        return extent.compression.is_none();
    }
    let is_mapped = plan
        .writer
        .patient
        .space
        .map()
        .find(place.disk)
        .is_some_and(|(at, chunk)| {
            let end = at.get().saturating_add(chunk.length);
            place.disk.get().saturating_add(place.disk_length) <= end
        });
    let unit = u64::try_from(UNIT).unwrap_or(u64::MAX);
    is_mapped
        && match extent.compression {
            // Data that do not become smaller are not kept compressed.
            Some(_) => {
                place.disk_length > 0
                    && place.disk_length < extent.ram_bytes
                    && extent.ram_bytes <= unit
            }
            None => fits(place.disk_length),
        }
}

/// Checks a file extent, and corrects it as far as the truth is elsewhere.
///
/// # Errors
/// Reading the tree.
pub(crate) fn mend(plan: &Plan<'_>, key: Key, data: &[u8]) -> Result<Mended, RepairError> {
    let sector = u64::from(plan.writer.patient.superblock.sector_size).max(1);
    let end = |extent: &FileExtent<'_>| {
        let length = match extent.body {
            FileExtentBody::Inline(_) => extent.ram_bytes.next_multiple_of(sector),
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => place.length,
        };
        key.offset.saturating_add(length)
    };
    let parsed = FileExtent::parse(data).ok();
    if let Some(extent) = &parsed
        && is_possible(plan, key, extent)
    {
        return Ok(Mended::Good(end(extent)));
    }
    let Some(mut extent) = parse_loosely(data) else {
        return Ok(Mended::Gone);
    };
    let newest = plan.writer.patient.superblock.generation;
    if extent.generation > newest.saturating_add(1) {
        extent.generation = newest;
    }
    if let FileExtentBody::Regular(place) = &extent.body
        && place.disk_length >= extent.ram_bytes
    {
        extent.compression = None;
    }
    let is_compressed = extent.compression.is_some();
    match &mut extent.body {
        FileExtentBody::Inline(inline) => {
            // A file that has as many bytes as are stored is not compressed.
            let stored = u64::try_from(inline.len()).unwrap_or(u64::MAX);
            let inode = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
            let found = find(plan.writer, plan.tree, &inode)?;
            let item = found.and_then(|(leaf, slot)| InodeItem::parse(leaf.data(slot)).ok());
            if item.is_some_and(|item| item.size == stored) {
                extent.compression = None;
                extent.ram_bytes = stored;
            }
        }
        FileExtentBody::Regular(place) if place.disk.get() == 0 => {
            let rest = place.length.checked_rem(sector).unwrap_or(0);
            place.length = place.length.saturating_sub(rest);
            place.disk_length = 0;
            place.offset = 0;
            extent.ram_bytes = place.length;
        }
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
            if let Some(length) = recorded_length(plan.writer, place.disk) {
                place.disk_length = length;
                if !is_compressed {
                    extent.ram_bytes = length;
                    let left = length.saturating_sub(place.offset);
                    place.length = place.length.min(left);
                }
            } else if !is_compressed {
                // One of the two lengths may be right; the file's part is no
                // longer than either.
                let least = place.offset.saturating_add(place.length);
                let lengths = [extent.ram_bytes, place.disk_length, least];
                let is_good = |length: &u64| *length >= least && length.is_multiple_of(sector);
                if let Some(length) = lengths.into_iter().find(is_good) {
                    place.disk_length = length;
                    extent.ram_bytes = length;
                }
            }
        }
    }
    if is_possible(plan, key, &extent) {
        return Ok(Mended::Changed(extent.encode(), end(&extent)));
    }
    Ok(Mended::Gone)
}
