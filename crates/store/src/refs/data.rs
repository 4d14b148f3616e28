//! References to data extents, for the file layer.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::refs::lost_refs::DataOwner;
use crate::refs::pending::{Backref, ExtentKind, Outcome};
use crate::refs::record::{ExtentRecord, parse_keyed};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::{InodeNumber, ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;

/// A data extent as a file extent names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataExtent {
    /// First byte.
    pub logical: Logical,
    /// Bytes on disk.
    pub length: u64,
}

/// A file extent that refers to a data extent, or did. The tree names a
/// subvolume; the snapshots that share the node refer to the data as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHolder {
    /// Inode, in a subvolume that is not known here.
    pub inode: InodeNumber,
    /// File offset of the file extent minus its offset into the extent; it may
    /// wrap below zero.
    pub offset: u64,
}

impl Engine {
    /// Refers to a newly allocated data extent for the first time.
    ///
    /// # Errors
    /// The volume calls space free that is used.
    pub fn add_data_extent(
        &mut self,
        extent: DataExtent,
        owner: DataOwner,
    ) -> Result<(), StoreError> {
        self.note_edit();
        self.quotas.note_growth(owner.tree, extent.length);
        self.ledger.pending.insert_new(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            owner.backref(),
        )
    }

    /// Adds a reference to a data extent that has one already.
    pub fn add_data_ref(&mut self, extent: DataExtent, owner: DataOwner) {
        self.note_edit();
        self.ledger.pending.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            (owner.backref(), 1),
        );
    }

    /// The owners of references to a data extent, from at most `limit`
    /// references; pending ones do not count.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn data_holders(
        &self,
        extent: DataExtent,
        limit: usize,
    ) -> Result<Vec<DataHolder>, StoreError> {
        let key = Key::new(extent.logical.get(), ItemType::EXTENT_ITEM, extent.length);
        let mut cursor = Cursor::seek_in(self, TreeId::EXTENT, &key)?;
        let mut refs = Vec::new();
        while let Some((at, data)) = cursor.item() {
            if at.objectid != extent.logical.get()
                || at.item_type > ItemType::SHARED_DATA_REF
                || refs.len() >= limit
            {
                break;
            }
            let bad = |error| bad_item(TreeId::EXTENT, at, &error);
            if at == key {
                refs.extend(ExtentRecord::parse(at, data).map_err(bad)?.inline);
            } else {
                refs.extend(parse_keyed(at, data).map_err(bad)?);
            }
            cursor.next()?;
        }
        refs.truncate(limit);
        let mut holders = Vec::new();
        for (by, _) in refs {
            match by {
                Backref::Data { inode, offset, .. } => holders.push(DataHolder { inode, offset }),
                Backref::SharedData(leaf) => self.holders_in(leaf, extent.logical, &mut holders)?,
                Backref::Tree(_) | Backref::SharedNode(_) => {}
            }
        }
        Ok(holders)
    }

    pub(crate) fn holders_in(
        &self,
        leaf: Logical,
        extent: Logical,
        holders: &mut Vec<DataHolder>,
    ) -> Result<(), StoreError> {
        let node = self.leaf_at(leaf)?;
        for slot in 0..node.len() {
            let key = node.key(slot);
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let found = FileExtent::parse(node.data(slot))
                .map_err(|error| bad_item(node.owner(), key, &error))?;
            if let FileExtentBody::Regular(place) = found.body
                && place.disk == extent
            {
                holders.push(DataHolder {
                    inode: InodeNumber(key.objectid),
                    offset: key.offset.wrapping_sub(place.offset),
                });
            }
        }
        Ok(())
    }

    /// Drops one reference to a data extent; its space is freed with the last.
    pub fn drop_data_ref(&mut self, extent: DataExtent, owner: DataOwner) {
        self.note_edit();
        let outcome = self.ledger.pending.change(
            extent.logical,
            extent.length,
            ExtentKind::Data,
            (owner.backref(), -1),
        );
        if outcome == Outcome::Vanished {
            self.ledger.forget_lost(extent.logical);
            self.release_data(extent.logical, extent.length);
            return;
        }
        self.ledger.note_lost(extent.logical, owner.backref());
    }

    /// True when nobody but `owner` refers to a data extent, and the extent is
    /// not being relocated. That must hold for the coming commit and for the
    /// state after a crash now (the last commit with the fsync log). Parts of
    /// an extent in one file have one owner. A snapshot that shares the leaf is
    /// not seen here.
    ///
    /// # Errors
    /// The extent is unknown; reading.
    pub fn is_referred_only_by(
        &self,
        extent: DataExtent,
        owner: DataOwner,
    ) -> Result<bool, StoreError> {
        let by = owner.backref();
        // Relocation copies it: the copy would lack what is written to it now.
        if self.space_map.is_being_relocated(extent.logical) {
            return Ok(false);
        }
        if self.ledger.had_others(extent.logical, owner) {
            return Ok(false);
        }
        let (mut total, mut own) = (0, 0);
        let pending = self.ledger.pending.get(extent.logical);
        if pending.is_none_or(|pending| !pending.new) {
            let record = ExtentRecord::load(self, extent.logical, extent.length, ExtentKind::Data)?;
            total = i64::try_from(record.refs).unwrap_or(i64::MAX);
            own = record.count_of(self, by)?;
        }
        if let Some(pending) = pending {
            total = total.saturating_add(pending.net());
            own += pending.changes.get(by);
        }
        Ok(total == own)
    }
}
