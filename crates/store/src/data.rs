//! References to data extents, for the file layer.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::extent::pending::{Backref, ExtentKind, Outcome};
use butterfs_format::{InodeNumber, Logical, TreeId};

/// A data extent as a file extent names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataExtent {
    /// First byte.
    pub logical: Logical,
    /// Bytes on disk.
    pub length: u64,
}

/// Who refers to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOwner {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// File offset of the file extent minus its offset into the extent.
    pub offset: u64,
}

impl DataOwner {
    const fn backref(self) -> Backref {
        Backref::Data {
            root: self.tree,
            inode: self.inode,
            offset: self.offset,
        }
    }
}

impl Engine {
    /// Refers to a newly allocated data extent for the first time.
    pub fn add_data_extent(&mut self, extent: DataExtent, owner: DataOwner) {
        self.pending.insert_new(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            owner.backref(),
        );
    }

    /// Adds a reference to a data extent that has one already.
    pub fn add_data_ref(&mut self, extent: DataExtent, owner: DataOwner) {
        self.pending.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            (owner.backref(), 1),
        );
    }

    /// Drops one reference to a data extent; its space is freed with the last.
    pub fn drop_data_ref(&mut self, extent: DataExtent, owner: DataOwner) {
        let outcome = self.pending.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            (owner.backref(), -1),
        );
        if outcome == Outcome::Vanished {
            self.give_back(extent.logical, extent.length);
        }
    }

    /// Number of references to a data extent, as of the coming commit.
    ///
    /// # Errors
    /// The extent is unknown; reading.
    pub fn data_ref_count(&self, extent: DataExtent) -> Result<u64, StoreError> {
        Ok(self
            .extent_state(extent.logical, extent.length, ExtentKind::Data)?
            .count)
    }
}
