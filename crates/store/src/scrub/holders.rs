//! Who uses what a scrub finds damaged.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::refs::data::DataExtent;
use crate::refs::pending::{Backref, ExtentKind};
use crate::refs::record::{ExtentHead, ExtentRecord};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeNumber, ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;

/// The greatest data extent that programs make, in bytes.
const EXTENT_MAX: u64 = 128 << 20;

/// A file that uses, or used, the data at an address. A snapshot that shares
/// the file is not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderAt {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// Offset of the address in the file, or where the file extent begins if it
    /// is compressed: all of it unpacks together.
    pub offset: u64,
    /// If it is compressed, the bytes of the file that cannot be read without
    /// the address.
    pub unpacked: Option<u64>,
}

impl HolderAt {
    /// What a file extent of the data extent at `start` has at `within` bytes
    /// into that; `None` if it has none of it.
    fn of(
        tree: TreeId,
        key: Key,
        extent: &FileExtent<'_>,
        (start, within): (u64, u64),
    ) -> Option<Self> {
        let (FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)) = extent.body else {
            return None;
        };
        let is_compressed = extent.compression.is_some();
        let inside = within.checked_sub(place.offset);
        let inside = inside.filter(|inside| *inside < place.length);
        let offset = match (is_compressed, inside) {
            (true, _) => key.offset,
            (false, Some(inside)) => key.offset.checked_add(inside)?,
            (false, None) => return None,
        };
        (place.disk.get() == start).then_some(Self {
            tree,
            inode: InodeNumber(key.objectid),
            offset,
            unpacked: is_compressed.then_some(place.length),
        })
    }
}

impl Engine {
    /// The data extent that contains `logical`. Pending changes are left out.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn data_extent_at(&self, logical: Logical) -> Result<Option<DataExtent>, StoreError> {
        let found = self.data_head_at(logical)?;
        Ok(found.map(|(head, length)| DataExtent {
            logical: Logical(head.key.objectid),
            length,
        }))
    }

    fn data_head_at(&self, logical: Logical) -> Result<Option<(ExtentHead, u64)>, StoreError> {
        let found = self.extent_at_or_before(logical.get())?;
        Ok(found.filter(|(head, length)| {
            let within = logical.get().saturating_sub(head.key.objectid);
            within < *length && head.level().is_none()
        }))
    }

    /// Files that use what lies at `logical`, about `limit` of them, as far as
    /// references name them.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn holders_at(&self, logical: Logical, limit: usize) -> Result<Vec<HolderAt>, StoreError> {
        let Some((head, length)) = self.data_head_at(logical)? else {
            return Ok(Vec::new());
        };
        let start = head.key.objectid;
        let record = ExtentRecord::load(self, Logical(start), length, ExtentKind::Data)?;
        let within = logical.get().saturating_sub(start);
        let mut holders = Vec::new();
        for (by, _) in record.all_refs(self)? {
            if holders.len() >= limit {
                break;
            }
            match by {
                Backref::Data {
                    root,
                    inode,
                    offset,
                } => {
                    let by = (root, inode, offset);
                    let is_there = match self.holders_by_key(by, (start, within), &mut holders) {
                        Err(error) if error.is_missing_node() => return Err(error),
                        // Damage of the tree leaves what the reference says.
                        found => found.unwrap_or(false),
                    };
                    if !is_there {
                        holders.push(HolderAt {
                            tree: root,
                            inode,
                            offset: offset.wrapping_add(within),
                            unpacked: None,
                        });
                    }
                }
                Backref::SharedData(leaf) => {
                    self.holders_in_leaf(leaf, (start, within), &mut holders)?;
                }
                Backref::Tree(_) | Backref::SharedNode(_) => {}
            }
        }
        Ok(holders)
    }

    fn holders_in_leaf(
        &self,
        leaf: Logical,
        (start, within): (u64, u64),
        holders: &mut Vec<HolderAt>,
    ) -> Result<(), StoreError> {
        let leaf = self.leaf_at(leaf)?;
        for slot in 0..leaf.len() {
            let key = leaf.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let extent = FileExtent::parse(leaf.data(slot))
                .map_err(|error| bad_item(leaf.owner(), key, &error))?;
            holders.extend(HolderAt::of(leaf.owner(), key, &extent, (start, within)));
        }
        Ok(())
    }

    /// Adds the file extents that a reference by key counts, as far as they have
    /// the address. Gives whether the data extent has any there.
    fn holders_by_key(
        &self,
        (tree, inode, offset): (TreeId, InodeNumber, u64),
        (start, within): (u64, u64),
        holders: &mut Vec<HolderAt>,
    ) -> Result<bool, StoreError> {
        // The reference names where the data extent would begin in the file,
        // which may be before the file.
        let first = match i64::try_from(offset) {
            Ok(_) => offset,
            Err(_) => 0,
        };
        let first = Key::new(inode.get(), ItemType::EXTENT_DATA, first);
        let mut is_there = false;
        let mut cursor = Cursor::seek_in(self, tree, &first)?;
        while let Some((key, data)) = cursor.item() {
            let behind = key.offset.wrapping_sub(offset);
            if key.objectid != inode.get()
                || key.item_type != ItemType::EXTENT_DATA
                || behind > EXTENT_MAX
            {
                break;
            }
            let extent = FileExtent::parse(data).map_err(|error| bad_item(tree, key, &error))?;
            is_there |= matches!(
                extent.body,
                FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place)
                    if place.disk.get() == start
            );
            holders.extend(HolderAt::of(tree, key, &extent, (start, within)));
            cursor.next()?;
        }
        Ok(is_there)
    }
}
