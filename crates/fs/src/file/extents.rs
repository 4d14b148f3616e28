//! File extents of an inode in its tree.
//!
//! Owns finding, cutting and adding them, and the changes of references and
//! `nbytes` that follow.

use crate::compression_feature::note_compression;
use crate::error::FsError;
use crate::inode::InodeState;
use crate::inode_fault::{ExtentFault, InodeFault};
use butterfs_format::compression::Algorithm;
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::{Generation, InodeId, ItemType, Key};
use butterfs_store::{DataExtent, DataOwner, Engine};
use butterfs_tree::{Cursor, Editor};
use std::ops::Range;

/// Greatest compressed extent, compressed or not.
pub(crate) const COMPRESSED_MAX: u64 = 128 << 10;

/// A file extent that owns its bytes.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// File offset.
    pub start: u64,
    /// Generation that made it.
    pub generation: Generation,
    /// Bytes of the whole extent when decompressed.
    pub ram_bytes: u64,
    /// Compression.
    pub compression: Option<Algorithm>,
    /// What it holds.
    pub body: Body,
}

/// What a file extent holds.
#[derive(Clone, Debug)]
pub(crate) enum Body {
    /// Data in the tree.
    Inline(Vec<u8>),
    /// Data elsewhere.
    Regular(ExtentPlace),
    /// Space that reads as zeros.
    Prealloc(ExtentPlace),
}

impl Found {
    pub fn new(id: InodeId, key: Key, data: &[u8], sector: u64) -> Result<Self, FsError> {
        let extent = FileExtent::parse(data)
            .map_err(|error| FsError::bad_item(id, "file extent", &error))?;
        if let Some(fault) = fault_of(key.offset, &extent, sector) {
            return Err(damaged(id, key.offset, fault));
        }
        let body = match extent.body {
            FileExtentBody::Inline(data) => Body::Inline(data.to_vec()),
            FileExtentBody::Regular(place) => Body::Regular(place),
            FileExtentBody::Prealloc(place) => Body::Prealloc(place),
        };
        Ok(Self {
            start: key.offset,
            generation: extent.generation,
            ram_bytes: extent.ram_bytes,
            compression: extent.compression,
            body,
        })
    }

    /// One past its last byte in the file; for an inline extent, one past the
    /// data.
    pub fn end(&self) -> u64 {
        match &self.body {
            Body::Inline(_) => self.start + self.ram_bytes,
            Body::Regular(place) | Body::Prealloc(place) => self.start + place.length,
        }
    }

    /// Its item.
    pub fn encode(&self) -> Vec<u8> {
        let body = match &self.body {
            Body::Inline(data) => FileExtentBody::Inline(data),
            Body::Regular(place) => FileExtentBody::Regular(*place),
            Body::Prealloc(place) => FileExtentBody::Prealloc(*place),
        };
        FileExtent {
            generation: self.generation,
            ram_bytes: self.ram_bytes,
            compression: self.compression,
            encryption: 0,
            other_encoding: 0,
            body,
        }
        .encode()
    }

    /// True for an explicit hole.
    pub fn is_hole(&self) -> bool {
        matches!(&self.body, Body::Regular(place) if place.disk.get() == 0)
    }
}

fn damaged(inode: InodeId, at: u64, fault: ExtentFault) -> FsError {
    FsError::Damaged {
        inode,
        at: Some(butterfs_format::FileOffset(at)),
        fault: Box::new(InodeFault::Extent(fault)),
    }
}

/// Why a file extent at `offset` cannot be valid; `None` if it can. A valid one
/// has an end that fits an offset, consists of whole sectors, and lies inside
/// its extent.
fn fault_of(offset: u64, extent: &FileExtent<'_>, sector: u64) -> Option<ExtentFault> {
    let packed = extent.compression.is_some();
    if packed && extent.ram_bytes > COMPRESSED_MAX {
        return Some(ExtentFault::PackedTooLarge);
    }
    let place = match &extent.body {
        FileExtentBody::Inline(data) => {
            if offset != 0 {
                return Some(ExtentFault::InlineNotFirst);
            }
            let length = data.len() as u64;
            return (!packed && length != extent.ram_bytes).then_some(ExtentFault::InlineLength);
        }
        FileExtentBody::Prealloc(_) if packed => return Some(ExtentFault::PackedPrealloc),
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => place,
    };
    if offset.checked_add(place.length).is_none() {
        return Some(ExtentFault::BeyondOffsets);
    }
    if [offset, place.length].iter().any(|n| n % sector != 0) {
        return Some(ExtentFault::PartOfSector);
    }
    let disk = place.disk.get();
    if disk == 0 {
        return None;
    }
    if [disk, place.disk_length, place.offset]
        .iter()
        .any(|n| n % sector != 0)
    {
        return Some(ExtentFault::PartOfExtentSector);
    }
    if disk.checked_add(place.disk_length).is_none() {
        return Some(ExtentFault::BeyondAddresses);
    }
    if packed {
        return (place.disk_length > COMPRESSED_MAX).then_some(ExtentFault::PackedSize);
    }
    // The parser checked that the sum does not overflow.
    (place.offset + place.length > place.disk_length).then_some(ExtentFault::BeyondExtent)
}

/// Key of the file extent at `offset`.
pub(crate) const fn key(id: InodeId, offset: u64) -> Key {
    Key::new(id.number.0, ItemType::EXTENT_DATA, offset)
}

/// File extents that overlap `range`, ascending, at most `limit` of them.
pub(crate) fn overlapping(
    engine: &Engine,
    id: InodeId,
    range: Range<u64>,
    limit: usize,
) -> Result<Vec<Found>, FsError> {
    let mut found = Vec::new();
    let mut end = 0;
    let mut cursor = Cursor::seek_in(engine, id.tree, &key(id, range.start))?;
    if cursor.key() != Some(key(id, range.start)) {
        cursor.prev()?;
    }
    while let Some((at, data)) = cursor.item() {
        if at >= key(id, range.end) || found.len() == limit {
            break;
        }
        if at.objectid == id.number.get() && at.item_type == ItemType::EXTENT_DATA {
            let extent = Found::new(id, at, data, engine.sector_size())?;
            if extent.start < end {
                return Err(damaged(id, at.offset, ExtentFault::Overlaps));
            }
            end = extent.end();
            if end > range.start {
                found.push(extent);
            }
        }
        cursor.next()?;
    }
    Ok(found)
}

/// [`overlapping`] for a file in use. The extents of an emptied file do not
/// count.
pub(crate) fn counting(
    engine: &Engine,
    id: InodeId,
    state: &InodeState,
    range: Range<u64>,
    limit: usize,
) -> Result<Vec<Found>, FsError> {
    if state.emptied {
        return Ok(Vec::new());
    }
    overlapping(engine, id, range, limit)
}

pub(crate) fn owner(id: InodeId, start: u64, place: &ExtentPlace) -> DataOwner {
    DataOwner {
        tree: id.tree,
        inode: id.number,
        offset: start.wrapping_sub(place.offset),
    }
}

pub(crate) const fn extent_of(place: &ExtentPlace) -> DataExtent {
    DataExtent {
        logical: place.disk,
        length: place.disk_length,
    }
}

/// Removes or cuts the file extents in `range` (whole sectors), at most `limit`
/// of them from the start. Gives where to continue; `None` when all is done.
pub(crate) fn drop_range(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    range: Range<u64>,
    limit: usize,
) -> Result<Option<u64>, FsError> {
    let all = overlapping(engine, id, range.clone(), limit)?;
    let more = (all.len() == limit)
        .then(|| all.last().map(Found::end))
        .flatten();
    for extent in &all {
        drop_part(engine, id, state, extent, &range)?;
    }
    Ok(more.filter(|at| *at < range.end))
}

/// Drops the part of `extent` that lies in `range`.
fn drop_part(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    extent: &Found,
    range: &Range<u64>,
) -> Result<(), FsError> {
    let at = key(id, extent.start);
    let place = match &extent.body {
        Body::Inline(_) => {
            engine.log().note_extents(id, 0..engine.sector_size());
            state.item.nbytes = state.item.nbytes.saturating_sub(extent.ram_bytes);
            Editor::new(engine, id.tree).remove(&at)?;
            return Ok(());
        }
        Body::Regular(place) | Body::Prealloc(place) => *place,
    };
    let real = place.disk.get() != 0;
    let (start, end) = (extent.start, extent.end());
    let cut = range.start.max(start)..range.end.min(end);
    engine.log().note_extents(id, cut.clone());
    if real {
        let bytes = cut.end - cut.start;
        state.item.nbytes = state.item.nbytes.saturating_sub(bytes);
    }
    let left = (cut.start > start).then(|| ExtentPlace {
        length: cut.start - start,
        ..place
    });
    let right = (cut.end < end).then(|| ExtentPlace {
        offset: place.offset + (cut.end - start),
        length: end - cut.end,
        ..place
    });
    let mut editor = Editor::new(engine, id.tree);
    match &left {
        Some(left) => editor.replace(&at, &encode(extent, *left))?,
        None => {
            editor.remove(&at)?;
        }
    }
    if let Some(right) = &right {
        editor.insert(&key(id, cut.end), &encode(extent, *right))?;
    }
    if real {
        let by = owner(id, start, &place);
        match (left, right) {
            (None, None) => engine.drop_data_ref(extent_of(&place), by),
            (Some(_), Some(_)) => engine.add_data_ref(extent_of(&place), by),
            _ => {}
        }
    }
    Ok(())
}

/// The item of `extent` for another part of it.
fn encode(extent: &Found, place: ExtentPlace) -> Vec<u8> {
    let body = match extent.body {
        Body::Prealloc(_) => FileExtentBody::Prealloc(place),
        _ => FileExtentBody::Regular(place),
    };
    FileExtent {
        generation: extent.generation,
        ram_bytes: extent.ram_bytes,
        compression: extent.compression,
        encryption: 0,
        other_encoding: 0,
        body,
    }
    .encode()
}

/// A file extent to add where none is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewExtent {
    /// File offset.
    pub start: u64,
    /// Bytes of the whole extent when decompressed.
    pub ram_bytes: u64,
    /// Compression.
    pub compression: Option<Algorithm>,
    /// Generation of the file extent of which this is a copy; `None` for what is
    /// new. As in the kernel, a copy is as old as what it was made from.
    pub copied: Option<Generation>,
    /// The part that the file has.
    pub place: ExtentPlace,
    /// Data or zeros.
    pub kind: NewKind,
}

/// What a new file extent reads as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NewKind {
    /// Data.
    Regular,
    /// Zeros.
    Prealloc,
}

/// Adds a file extent, without references.
pub(crate) fn insert(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    new: &NewExtent,
) -> Result<(), FsError> {
    let body = match new.kind {
        NewKind::Regular => FileExtentBody::Regular(new.place),
        NewKind::Prealloc => FileExtentBody::Prealloc(new.place),
    };
    let item = FileExtent {
        generation: new.copied.unwrap_or(engine.generation()),
        ram_bytes: new.ram_bytes,
        compression: new.compression,
        encryption: 0,
        other_encoding: 0,
        body,
    };
    butterfs_tree::insert(engine, id.tree, &key(id, new.start), &item.encode())?;
    note_compression(engine, new.compression);
    engine
        .log()
        .note_extents(id, new.start..new.start + new.place.length);
    if new.place.disk.get() != 0 {
        state.item.nbytes += new.place.length;
    }
    Ok(())
}

/// Adds a file extent of a freshly allocated data extent, and its reference.
pub(crate) fn insert_allocated(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    new: &NewExtent,
) -> Result<(), FsError> {
    insert(engine, id, state, new)?;
    engine.add_data_extent(extent_of(&new.place), owner(id, new.start, &new.place))?;
    Ok(())
}

/// Adds a file extent of a data extent that others refer to.
pub(crate) fn insert_shared(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    new: &NewExtent,
) -> Result<(), FsError> {
    insert(engine, id, state, new)?;
    if new.place.disk.get() != 0 {
        engine.add_data_ref(extent_of(&new.place), owner(id, new.start, &new.place));
    }
    Ok(())
}

/// Parts of `range` without a file extent.
pub(crate) fn gaps(
    engine: &Engine,
    id: InodeId,
    range: Range<u64>,
    sector: u64,
) -> Result<Vec<Range<u64>>, FsError> {
    let mut gaps = Vec::new();
    let mut at = range.start;
    for extent in overlapping(engine, id, range.clone(), usize::MAX)? {
        if extent.start > at {
            gaps.push(at..extent.start);
        }
        at = at.max(extent.end().next_multiple_of(sector));
    }
    if at < range.end {
        gaps.push(at..range.end);
    }
    Ok(gaps)
}

/// Fills the gaps in `range` with explicit holes, if the volume wants them.
///
/// If the volume does not want them, a range behind the file's end still counts
/// as changed. The last commit may have data there, and a replay of the fsync
/// log must not bring them back.
pub(crate) fn fill_holes(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    range: Range<u64>,
) -> Result<(), FsError> {
    let sector = engine.sector_size();
    let grown = range.start.max(state.disk_size.next_multiple_of(sector))..range.end;
    if !grown.is_empty() {
        engine.log().note_extents(id, grown);
    }
    if engine.superblock().has_no_holes() || range.is_empty() {
        return Ok(());
    }
    for gap in gaps(engine, id, range, sector)? {
        let length = gap.end - gap.start;
        let hole = NewExtent {
            start: gap.start,
            ram_bytes: length,
            compression: None,
            copied: None,
            place: ExtentPlace {
                disk: butterfs_format::Logical(0),
                disk_length: 0,
                offset: 0,
                length,
            },
            kind: NewKind::Regular,
        };
        insert(engine, id, state, &hole)?;
    }
    Ok(())
}

/// Turns the part `range` of a preallocated extent into data.
pub(crate) fn fill_prealloc(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
    range: Range<u64>,
) -> Result<(), FsError> {
    for mut extent in overlapping(engine, id, range.clone(), usize::MAX)? {
        let Body::Prealloc(place) = extent.body else {
            continue;
        };
        // As in the kernel, what stays preallocated beside it is new too.
        extent.generation = engine.generation();
        let part = range.start.max(extent.start)..range.end.min(extent.end());
        let new = NewExtent {
            start: part.start,
            ram_bytes: extent.ram_bytes,
            compression: None,
            copied: None,
            place: ExtentPlace {
                offset: place.offset + (part.start - extent.start),
                length: part.end - part.start,
                ..place
            },
            kind: NewKind::Regular,
        };
        // The reference is added first, so that the extent stays.
        engine.add_data_ref(extent_of(&place), owner(id, new.start, &new.place));
        drop_part(engine, id, state, &extent, &part)?;
        insert(engine, id, state, &new)?;
    }
    Ok(())
}

/// The last file extents that reach beyond `from`, ascending, at most `limit`.
pub(crate) fn last_from(
    engine: &Engine,
    id: InodeId,
    from: u64,
    limit: usize,
) -> Result<Vec<Found>, FsError> {
    let mut found = Vec::new();
    let mut cursor = Cursor::seek_in(engine, id.tree, &key(id, u64::MAX))?;
    while found.len() < limit && cursor.prev()? {
        let Some((at, data)) = cursor.item() else {
            break;
        };
        if at.objectid != id.number.get() || at.item_type != ItemType::EXTENT_DATA {
            break;
        }
        let extent = Found::new(id, at, data, engine.sector_size())?;
        if extent.end() <= from {
            break;
        }
        found.push(extent);
    }
    found.reverse();
    Ok(found)
}

/// Drops what the tree has of an emptied file, within a transaction.
pub(super) fn drop_emptied(
    engine: &mut Engine,
    id: InodeId,
    state: &mut InodeState,
) -> Result<(), FsError> {
    if state.emptied {
        drop_range(engine, id, state, 0..u64::MAX, usize::MAX)?;
        state.disk_size = 0;
        state.emptied = false;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::Logical;

    const SECTOR: u64 = 4096;

    fn extent(body: FileExtentBody<'_>) -> FileExtent<'_> {
        FileExtent {
            generation: Generation(7),
            ram_bytes: 4 * SECTOR,
            compression: None,
            encryption: 0,
            other_encoding: 0,
            body,
        }
    }

    fn place() -> ExtentPlace {
        ExtentPlace {
            disk: Logical(1 << 20),
            disk_length: 4 * SECTOR,
            offset: SECTOR,
            length: 2 * SECTOR,
        }
    }

    #[test]
    fn each_fault_is_seen() {
        let good = extent(FileExtentBody::Regular(place()));
        assert_eq!(fault_of(0, &good, SECTOR), None);
        let fault = |offset: u64, change: &dyn Fn(&mut FileExtent<'_>, &mut ExtentPlace)| {
            let mut place = place();
            let mut item = good;
            change(&mut item, &mut place);
            item.body = match item.body {
                FileExtentBody::Prealloc(_) => FileExtentBody::Prealloc(place),
                _ => FileExtentBody::Regular(place),
            };
            fault_of(offset, &item, SECTOR)
        };
        let packed = Some(Algorithm::Zstd);
        assert_eq!(
            fault(0, &|e, _| (e.compression, e.ram_bytes) = (packed, 1 << 20)),
            Some(ExtentFault::PackedTooLarge)
        );
        assert_eq!(
            fault(u64::MAX - 4095, &|_, _| ()),
            Some(ExtentFault::BeyondOffsets)
        );
        assert_eq!(fault(100, &|_, _| ()), Some(ExtentFault::PartOfSector));
        assert_eq!(
            fault(0, &|_, p| p.length = 100),
            Some(ExtentFault::PartOfSector)
        );
        assert_eq!(
            fault(0, &|_, p| p.disk = Logical(5)),
            Some(ExtentFault::PartOfExtentSector)
        );
        assert_eq!(
            fault(0, &|_, p| p.offset = 5),
            Some(ExtentFault::PartOfExtentSector)
        );
        assert_eq!(
            fault(0, &|_, p| p.disk = Logical(u64::MAX - 4095)),
            Some(ExtentFault::BeyondAddresses)
        );
        assert_eq!(
            fault(0, &|_, p| p.disk_length = SECTOR),
            Some(ExtentFault::BeyondExtent)
        );
        let large = 64 * SECTOR;
        assert_eq!(
            fault(0, &|e, p| (e.compression, p.disk_length) = (packed, large)),
            Some(ExtentFault::PackedSize)
        );
        let prealloc = |e: &mut FileExtent<'_>, p: &mut ExtentPlace| {
            e.compression = packed;
            e.body = FileExtentBody::Prealloc(*p);
        };
        assert_eq!(fault(0, &prealloc), Some(ExtentFault::PackedPrealloc));
        let inline = extent(FileExtentBody::Inline(b"abc"));
        assert_eq!(
            fault_of(0, &inline, SECTOR),
            Some(ExtentFault::InlineLength)
        );
        assert_eq!(
            fault_of(SECTOR, &inline, SECTOR),
            Some(ExtentFault::InlineNotFirst)
        );
    }
}
