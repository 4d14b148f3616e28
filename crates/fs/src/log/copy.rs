//! Items of one inode on their way from a tree to the log.

use crate::error::FsError;
use crate::file::extents;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeId, ItemType, Key, Logical};
use butterfs_store::{Engine, LogEditor};
use butterfs_tree::Cursor;
use std::ops::Range;

/// Items as a tree has them.
pub(super) type Items = Vec<(Key, Vec<u8>)>;

/// The items of a tree from `first` to `last`.
pub(super) fn items(engine: &Engine, id: InodeId, first: Key, last: Key) -> Result<Items, FsError> {
    let mut all = Vec::new();
    let mut cursor = Cursor::seek_in(engine, id.tree, &first)?;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| *key <= last) {
        all.push((key, data.to_vec()));
        cursor.next()?;
    }
    Ok(all)
}

/// Replaces what the log has of an inode's items of one kind with `now`.
pub(super) fn write_items(
    log: &mut LogEditor<'_>,
    id: InodeId,
    kind: ItemType,
    now: &Items,
) -> Result<(), FsError> {
    let object = id.number.get();
    let (first, last) = (Key::new(object, kind, 0), Key::new(object, kind, u64::MAX));
    let old = log.items(first..=last)?;
    if old.iter().any(|(key, _)| now.iter().all(|(k, _)| k != key)) {
        log.remove_range(first..=last)?;
    }
    for (key, data) in now {
        log.replace(key, data)?;
    }
    Ok(())
}

/// Removes the file extents in `range` from the log.
pub(super) fn forget_extents(
    log: &mut LogEditor<'_>,
    id: InodeId,
    range: &Range<u64>,
) -> Result<(), FsError> {
    let first = extents::key(id, range.start);
    let last = extents::key(id, range.end - 1);
    let old = log.items(first..=last)?;
    if old.is_empty() {
        return Ok(());
    }
    for (_, data) in &old {
        if let Ok(extent) = FileExtent::parse(data)
            && let Some(disk) = disk_of(&extent.body)
        {
            log.unname_extent(disk);
        }
    }
    Ok(log.remove_range(first..=last)?)
}

pub(super) fn disk_of(body: &FileExtentBody<'_>) -> Option<Logical> {
    match body {
        FileExtentBody::Inline(_) => None,
        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
            (place.disk.get() != 0).then_some(place.disk)
        }
    }
}
