//! References to data extents, for the file layer.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::extent::pending::{Backref, ExtentKind, Outcome};
use crate::extent::record::ExtentRecord;
use butterfs_format::{InodeNumber, Logical, TreeId};
use rustc_hash::FxHashMap;

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

/// Owners that gave up references to data extents.
pub(crate) type LostRefs = FxHashMap<Logical, Vec<DataOwner>>;

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
            self.lost.remove(&extent.logical);
            self.release_data(extent.logical, extent.length);
            return;
        }
        let owners = self.lost.entry(extent.logical).or_default();
        if !owners.contains(&owner) {
            owners.push(owner);
        }
    }

    /// True when nobody but `owner` refers to a data extent, as of the coming
    /// commit, nor would after a crash now: in the last commit or the fsync
    /// log. Parts of an extent in one file have one owner; a snapshot that
    /// shares the leaf is not seen here.
    ///
    /// # Errors
    /// The extent is unknown; reading.
    pub fn is_referred_only_by(
        &self,
        extent: DataExtent,
        owner: DataOwner,
    ) -> Result<bool, StoreError> {
        let by = owner.backref();
        for lost in [&self.lost, &self.lost_writing] {
            let owners = lost.get(&extent.logical);
            if owners.is_some_and(|owners| owners.iter().any(|other| *other != owner)) {
                return Ok(false);
            }
        }
        let (mut total, mut own) = (0_i64, 0_i64);
        let pending = self.pending.get(extent.logical);
        if pending.is_none_or(|pending| !pending.new) {
            let record = ExtentRecord::load(self, extent.logical, extent.length, ExtentKind::Data)?;
            for (other, count) in record.all_refs(self)? {
                total += i64::from(count);
                own += if other == by { i64::from(count) } else { 0 };
            }
        }
        for (other, count) in pending.into_iter().flat_map(|pending| &pending.changes) {
            total += count;
            own += if *other == by { *count } else { 0 };
        }
        Ok(total == own)
    }
}
