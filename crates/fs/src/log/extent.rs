//! Replaying one file extent, with its checksums.

use super::items::Log;
use super::verify::lies;
use crate::error::FsError;
use crate::file::extents::{self, Body, Found, NewExtent, NewKind};
use crate::inode::InodeState;
use crate::inode_fault::LogFault;
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::item::inode::InodeFlags;
use butterfs_format::{InodeId, ItemType, Key, object};
use butterfs_store::Engine;
use std::collections::BTreeSet;
use std::ops::Range;

/// Adds the extent of the log to a file. Gives the range that changed, or
/// `None` if the file has the extent already.
pub(super) fn replay(
    engine: &mut Engine,
    log: &Log<'_>,
    id: InodeId,
    state: &mut InodeState,
    (key, data): (Key, &[u8]),
) -> Result<Option<Range<u64>>, FsError> {
    let sector = engine.sector_size();
    let extent = Found::new(id, key, data, sector)?;
    let range = extent.start..extent.end().next_multiple_of(sector);
    let same = butterfs_tree::find(engine, id.tree, &key)?
        .is_some_and(|(leaf, slot)| leaf.data(slot) == data);
    if same {
        return Ok(None);
    }
    extents::drop_range(engine, id, state, range.clone(), usize::MAX)?;
    let (place, kind) = match &extent.body {
        Body::Inline(_) => {
            butterfs_tree::insert(engine, id.tree, &key, data)?;
            state.item.nbytes += extent.ram_bytes;
            return Ok(Some(range));
        }
        Body::Regular(place) => (*place, NewKind::Regular),
        Body::Prealloc(place) => (*place, NewKind::Prealloc),
    };
    if place.disk.get() == 0 {
        // If the tree has no explicit holes, dropping what was there is enough.
        if !engine.superblock().has_no_holes() {
            butterfs_tree::insert(engine, id.tree, &key, data)?;
        }
        return Ok(Some(range));
    }
    let new = NewExtent {
        start: extent.start,
        ram_bytes: extent.ram_bytes,
        compression: extent.compression,
        place,
        kind,
    };
    if engine.has_data_extent(extents::extent_of(&place))? {
        extents::insert_shared(engine, id, state, &new)?;
    } else {
        engine.adopt_for_replay(extents::extent_of(&place))?;
        extents::insert_allocated(engine, id, state, &new)?;
    }
    // As it was logged, with its own generation.
    butterfs_tree::replace(engine, id.tree, &key, data)?;
    if kind == NewKind::Regular && !state.item.flags.contains(InodeFlags::NODATASUM) {
        checksums(engine, log, id, (&extent, &place))?;
    }
    Ok(Some(range))
}

/// Takes over the checksums of the log for sectors that have none.
fn checksums(
    engine: &mut Engine,
    log: &Log<'_>,
    id: InodeId,
    (extent, place): (&Found, &ExtentPlace),
) -> Result<(), FsError> {
    let start = place.disk.get();
    let wanted = match extent.compression {
        Some(_) => start..start + place.disk_length,
        None => start + place.offset..start + place.offset + place.length,
    };
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
                engine.add_checksums(at, sum.to_vec());
            }
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(lies(id, LogFault::NoChecksums))
}
