//! Who uses what a scrub finds damaged.

use crate::data::DataExtent;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::extent::pending::{Backref, ExtentKind};
use crate::extent::record::{ExtentHead, ExtentRecord};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeNumber, ItemType, Logical, TreeId};

/// A file that uses, or used, the data at an address. A snapshot that shares
/// the file is not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HolderAt {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// Offset of the address in the file. If the extent is compressed, the file
    /// offset of the extent plus that of the address in the extent.
    pub offset: u64,
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
                } => holders.push(HolderAt {
                    tree: root,
                    inode,
                    offset: offset.wrapping_add(within),
                }),
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
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = extent.body
                && place.disk.get() == start
            {
                holders.push(HolderAt {
                    tree: leaf.owner(),
                    inode: InodeNumber(key.objectid),
                    offset: key.offset.wrapping_sub(place.offset).wrapping_add(within),
                });
            }
        }
        Ok(())
    }
}
