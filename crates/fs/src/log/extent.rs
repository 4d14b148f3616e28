//! Replaying one file extent, with its checksums.
//!
//! Data of the log that match no checksum are entered all the same, as by the
//! kernel: reading them is an error then, which whoever mounts is told.

use super::items::Log;
use super::verify::lies;
use crate::compression_feature::note_compression;
use crate::error::FsError;
use crate::file::extents::{self, Body, Found, NewExtent, NewKind};
use crate::inode::InodeState;
use crate::inode_fault::LogFault;
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, ItemType, Key, Logical, object};
use butterfs_store::{Engine, SectorChecksums};
use std::collections::BTreeSet;
use std::ops::Range;

/// Bytes of data that are compared with their checksums at once.
const READ: u64 = 1 << 20;

/// What the replay of a file extent did.
pub(super) struct Entered {
    /// The range of the file that changed.
    pub(super) range: Range<u64>,
    /// Parts of it that cannot be read, because no copy of the data matches its
    /// checksum.
    pub(super) unreadable: Vec<Range<u64>>,
}

/// Adds the extent of the log to a file. Gives `None` if the file has the extent
/// already.
pub(super) fn replay(
    engine: &mut Engine,
    log: &Log<'_>,
    id: InodeId,
    state: &mut InodeState,
    (key, data): (Key, &[u8]),
) -> Result<Option<Entered>, FsError> {
    let sector = engine.sector_size();
    let extent = Found::new(id, key, data, sector)?;
    let range = extent.start..extent.end().next_multiple_of(sector);
    let same = butterfs_tree::find(engine, id.tree, &key)?
        .is_some_and(|(leaf, slot)| leaf.data(slot) == data);
    if same {
        return Ok(None);
    }
    let entered = |range, unreadable| Ok(Some(Entered { range, unreadable }));
    extents::drop_range(engine, id, state, range.clone(), usize::MAX)?;
    let (place, kind) = match &extent.body {
        Body::Inline(_) => {
            butterfs_tree::insert(engine, id.tree, &key, data)?;
            note_compression(engine, extent.compression);
            state.item.nbytes += extent.ram_bytes;
            return entered(range, Vec::new());
        }
        Body::Regular(place) => (*place, NewKind::Regular),
        Body::Prealloc(place) => (*place, NewKind::Prealloc),
    };
    if place.disk.get() == 0 {
        // If the tree has no explicit holes, dropping what was there is enough.
        if !engine.superblock().has_no_holes() {
            butterfs_tree::insert(engine, id.tree, &key, data)?;
        }
        return entered(range, Vec::new());
    }
    let new = NewExtent {
        start: extent.start,
        ram_bytes: extent.ram_bytes,
        compression: extent.compression,
        copied: Some(extent.generation),
        place,
        kind,
    };
    let is_committed = engine.has_data_extent(extents::extent_of(&place))?;
    if is_committed {
        extents::insert_shared(engine, id, state, &new)?;
    } else {
        engine
            .space_map_mut()
            .adopt_for_replay(extents::extent_of(&place))?;
        extents::insert_allocated(engine, id, state, &new)?;
    }
    // As it was logged, with its own generation.
    butterfs_tree::replace(engine, id.tree, &key, data)?;
    let mut unreadable = Vec::new();
    if kind == NewKind::Regular && !state.item.flags.contains(InodeFlags::NODATASUM) {
        checksums(engine, log, id, (&extent, &place))?;
        // What the last commit has was not written by the log.
        if !is_committed {
            unreadable = mismatches(engine, (&extent, &place))?;
        }
    }
    entered(range, unreadable)
}

/// The space whose data a file extent needs.
const fn needed(extent: &Found, place: &ExtentPlace) -> Range<u64> {
    let start = place.disk.get();
    match extent.compression {
        Some(_) => start..start + place.disk_length,
        None => start + place.offset..start + place.offset + place.length,
    }
}

/// Parts of the file of which no copy matches the checksum. Nothing is healed:
/// the replay may still be refused, and writes nothing then.
fn mismatches(
    engine: &Engine,
    (extent, place): (&Found, &ExtentPlace),
) -> Result<Vec<Range<u64>>, FsError> {
    let sector = engine.sector_size();
    let space = needed(extent, place);
    let mut bad: Vec<Range<u64>> = Vec::new();
    let mut at = space.start;
    let mut buffer = Vec::new();
    while at < space.end {
        let piece = at..space.end.min(at + READ);
        let sums = engine.data_checksums(piece.clone())?;
        for index in unmatched(engine, &piece, &sums, &mut buffer) {
            let from = piece.start + index as u64 * sector;
            match bad.last_mut() {
                Some(last) if last.end == from => last.end = from + sector,
                _ => bad.push(from..from + sector),
            }
        }
        at = piece.end;
    }
    if extent.compression.is_some() {
        // None of it unpacks without the rest.
        let whole = extent.start..extent.end();
        return Ok(bad.first().map(|_| whole).into_iter().collect());
    }
    let in_file = |at: u64| extent.start + (at - space.start);
    let parts = bad.into_iter();
    Ok(parts
        .map(|range| in_file(range.start)..in_file(range.end))
        .collect())
}

/// Sectors of `piece`, by their number, that match their checksums in no copy.
fn unmatched(
    engine: &Engine,
    piece: &Range<u64>,
    sums: &SectorChecksums,
    buffer: &mut Vec<u8>,
) -> Vec<usize> {
    let checksum = engine.superblock().checksum_type;
    let sector = engine.sector_size() as usize;
    let (start, length) = (piece.start, (piece.end - piece.start) as usize);
    let mut left: Vec<usize> = (0..length / sector).collect();
    let ways = engine.space().ways(Logical(start));
    for way in 0..ways.max(1) {
        if left.is_empty() {
            break;
        }
        buffer.resize(length, 0);
        let read = engine.space().read_copy(Logical(start), way, buffer);
        left.retain(|index| {
            let bytes = &mut buffer[index * sector..(index + 1) * sector];
            // A piece that cannot be read as a whole may have good sectors.
            let at = Logical(start + (index * sector) as u64);
            let is_read = read.is_ok() || engine.space().read_copy(at, way, bytes).is_ok();
            let sum = sums.get(*index);
            let matches = sum.is_none_or(|sum| checksum.compute(bytes)[..sum.len()] == *sum);
            !(is_read && matches)
        });
    }
    left
}

/// Takes over the checksums of the log for sectors that have none.
fn checksums(
    engine: &mut Engine,
    log: &Log<'_>,
    id: InodeId,
    (extent, place): (&Found, &ExtentPlace),
) -> Result<(), FsError> {
    let wanted = needed(extent, place);
    let sector = engine.sector_size();
    let size = engine.superblock().checksum_type.size();
    let known = engine.data_checksums(wanted.clone())?;
    // An item that begins before the range may reach into it: a leaf's worth
    // of checksums at most.
    let reach = (engine.node_size() / size) as u64 * sector;
    let first = Key::new(
        object::EXTENT_CSUM,
        ItemType::EXTENT_CSUM,
        wanted.start.saturating_sub(reach),
    );
    let sectors = ((wanted.end - wanted.start) / sector) as usize;
    let mut missing: BTreeSet<usize> = (0..sectors)
        .filter(|index| known.get(*index).is_none())
        .collect();
    for (key, sums) in log.from(first) {
        let inside = key.objectid == object::EXTENT_CSUM
            && key.item_type == ItemType::EXTENT_CSUM
            && key.offset < wanted.end;
        if !inside {
            break;
        }
        for (at, sum) in (key.offset..)
            .step_by(sector as usize)
            .zip(sums.chunks_exact(size))
        {
            if !wanted.contains(&at) {
                continue;
            }
            let index = ((at - wanted.start) / sector) as usize;
            if missing.remove(&index) {
                engine.ledger_mut().add_checksums(at, sum.to_vec());
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(lies(id, LogFault::NoChecksums))
}
