//! Which inodes differ between two snapshots, and how.

use super::error::SendError;
use super::snapshot::{Nodes, Snapshot};
use crate::FsError;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeNumber, ItemType};
use butterfs_tree::{Change, Comparison};
use std::ops::Range;

/// An inode of which an item differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChangedInode {
    pub number: InodeNumber,
    /// Its own item: the inode is new or gone, or an attribute changed.
    pub item: bool,
    /// Its names.
    pub names: bool,
    /// Its extended attributes.
    pub xattrs: bool,
    /// Ranges of the file whose file extents differ, ascending, apart.
    pub ranges: Vec<Range<u64>>,
}

impl ChangedInode {
    pub const fn new(number: InodeNumber) -> Self {
        Self {
            number,
            item: false,
            names: false,
            xattrs: false,
            ranges: Vec::new(),
        }
    }

    fn add(&mut self, change: &Change) -> Result<(), butterfs_format::ParseError> {
        match change.key.item_type {
            ItemType::INODE_ITEM => self.item = true,
            ItemType::INODE_REF | ItemType::INODE_EXTREF => self.names = true,
            ItemType::XATTR_ITEM => self.xattrs = true,
            ItemType::EXTENT_DATA => {
                for item in [&change.old, &change.new].into_iter().flatten() {
                    let extent = FileExtent::parse(item.data())?;
                    let length = match extent.body {
                        FileExtentBody::Inline(_) => extent.ram_bytes,
                        FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
                            place.length
                        }
                    };
                    let start = change.key.offset;
                    self.add_range(start..start.saturating_add(length));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Adds a range. Ranges come with ascending starts, because these are keys.
    fn add_range(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => self.ranges.push(range),
        }
    }
}

/// The inodes that differ, ascending.
#[derive(Debug)]
pub(super) struct InodeChanges<'s> {
    comparison: Comparison<'s, Nodes<'s>>,
    ahead: Option<Change>,
    new: &'s Snapshot<'s>,
}

impl<'s> InodeChanges<'s> {
    pub fn new(
        nodes: &'s Nodes<'s>,
        old: Option<&Snapshot<'s>>,
        new: &'s Snapshot<'s>,
    ) -> Result<Self, SendError> {
        Ok(Self {
            comparison: Comparison::new(nodes, old.map(|old| old.root), new.root)?,
            ahead: None,
            new,
        })
    }

    pub fn next(&mut self) -> Result<Option<ChangedInode>, SendError> {
        let mut changed: Option<ChangedInode> = None;
        loop {
            let change = match self.ahead.take() {
                Some(change) => Some(change),
                None => self.comparison.next()?,
            };
            let Some(change) = change else {
                return Ok(changed);
            };
            let number = InodeNumber(change.key.objectid);
            if !is_file(number) {
                continue;
            }
            if changed.as_ref().is_some_and(|c| c.number != number) {
                self.ahead = Some(change);
                return Ok(changed);
            }
            let bad = |error| SendError::Fs(FsError::bad_item(self.new.id(number), "item", &error));
            changed
                .get_or_insert_with(|| ChangedInode::new(number))
                .add(&change)
                .map_err(bad)?;
        }
    }
}

/// True for inode numbers of files. Other numbers belong to items such as marks
/// of orphans.
const fn is_file(number: InodeNumber) -> bool {
    number.0 >= InodeNumber::ROOT.0 && number.0 <= butterfs_format::TreeId::LAST_SUBVOLUME.0
}
