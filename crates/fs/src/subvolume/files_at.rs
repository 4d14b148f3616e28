//! Files that use the data at an address, in all subvolumes.
//!
//! References name only one of the subvolumes that share a leaf. The others
//! have the same file extent under the same inode number, so each of them is
//! asked for it.

use super::list::Subvolumes;
use crate::error::FsError;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{FileOffset, InodeId, InodeNumber, ItemType, Key, Logical, TreeId};
use butterfs_store::Engine;
use butterfs_tree::{Cursor, NodeSource};
use std::collections::BTreeSet;

/// Bytes of a compressed extent when unpacked, at most.
const UNPACKED_MAX: u64 = 128 << 10;
/// References that are followed. Above this number nothing is found.
const REFERENCES_MAX: usize = 65_536;

/// A file that uses the data at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FileAt {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// Offset in the file of the address. If the address itself has no offset
    /// in the file, the first byte of the extent that the file has.
    pub offset: FileOffset,
}

/// Which parts of an extent count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentPart {
    /// The data at the address; of compressed extents, all data.
    Address,
    /// All data of the extent that contains the address.
    Extent,
}

/// All files that use the data at `logical`, ascending; `None` if there are no
/// data there. Pending changes are left out.
///
/// # Errors
/// Damage, reading.
pub fn files_at(
    engine: &Engine,
    logical: Logical,
    part: ExtentPart,
) -> Result<Option<Vec<FileAt>>, FsError> {
    let Some(extent) = engine.data_extent_at(logical)? else {
        return Ok(None);
    };
    let within = logical.get().saturating_sub(extent.logical.get());
    let holders = engine.holders_at(logical, REFERENCES_MAX)?;
    // Where the extent would begin in the file. It may wrap below zero.
    let begins: BTreeSet<(InodeNumber, u64)> = holders
        .iter()
        .map(|holder| (holder.inode, holder.offset.wrapping_sub(within)))
        .collect();
    let mut found = BTreeSet::new();
    for subvolume in Subvolumes::load(engine)?.iter() {
        if subvolume.is_being_deleted() {
            continue;
        }
        for (inode, begin) in &begins {
            let id = InodeId {
                tree: subvolume.id,
                number: *inode,
            };
            let wanted = Wanted {
                start: extent.logical,
                within: (part == ExtentPart::Address).then_some(within),
                begin: *begin,
                length: extent.length.max(UNPACKED_MAX),
            };
            wanted.find(engine, id, &mut found)?;
        }
    }
    Ok(Some(found.into_iter().collect()))
}

/// What is looked for in one file.
struct Wanted {
    start: Logical,
    /// Offset in the extent; `None` for any.
    within: Option<u64>,
    begin: u64,
    length: u64,
}

impl Wanted {
    fn find(
        &self,
        engine: &Engine,
        inode: InodeId,
        found: &mut BTreeSet<FileAt>,
    ) -> Result<(), FsError> {
        let end = self.begin.wrapping_add(self.length);
        // If an extent begins before the file, the rest of it can be in the
        // file.
        let first = if self.begin > end { 0 } else { self.begin };
        let number = inode.number.get();
        let mut cursor = Cursor::at_root(engine, engine.root(inode.tree)?);
        cursor.seek(&Key::new(number, ItemType::EXTENT_DATA, first))?;
        while let Some((key, data)) = cursor.item() {
            let is_extent = key.objectid == number && key.item_type == ItemType::EXTENT_DATA;
            if !is_extent || key.offset >= end {
                break;
            }
            let extent = FileExtent::parse(data)
                .map_err(|error| FsError::bad_item(inode, "file extent", &error))?;
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = extent.body
                && place.disk == self.start
                && key.offset.wrapping_sub(place.offset) == self.begin
            {
                let ahead = match self.within.filter(|_| extent.compression.is_none()) {
                    Some(within) => within
                        .checked_sub(place.offset)
                        .filter(|ahead| *ahead < place.length),
                    None => Some(0),
                };
                found.extend(ahead.map(|ahead| FileAt {
                    tree: inode.tree,
                    inode: inode.number,
                    offset: FileOffset(key.offset.saturating_add(ahead)),
                }));
            }
            cursor.next()?;
        }
        Ok(())
    }
}
