//! What the items of an inode say of it.

use super::{Plan, each};
use crate::error::RepairError;
use crate::names::{Own, entries, is_inode, own_names};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{ItemType, Key};

/// What is known of an inode from its items.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) number: u64,
    pub(super) item: Option<InodeItem>,
    pub(super) names: u64,
    pub(super) first_name: Option<Own>,
    pub(super) has_entries: bool,
    pub(super) entry_bytes: u64,
    pub(super) bytes: u64,
    pub(super) has_extents: bool,
    pub(super) is_inline: bool,
    pub(super) ends_with_nul: bool,
    /// First offset behind its last file extent.
    pub(super) end: u64,
    /// Ranges without a file extent, before `end`.
    pub(super) holes: Vec<(u64, u64)>,
}

impl Seen {
    pub(super) fn of(number: u64) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    pub(super) fn add(&mut self, sector: u64, key: Key, data: &[u8]) {
        match key.item_type {
            ItemType::INODE_ITEM => self.item = InodeItem::parse(data).ok(),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                let names = own_names(key, data);
                let count = u64::try_from(names.len()).unwrap_or(0);
                self.names = self.names.saturating_add(count);
                self.first_name = self.first_name.take().or(names.into_iter().next());
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                self.has_entries = true;
                for entry in entries(key, data) {
                    let bytes = u64::try_from(entry.name.len()).unwrap_or(0);
                    self.entry_bytes = self.entry_bytes.saturating_add(bytes);
                }
            }
            ItemType::EXTENT_DATA => self.extent(sector, key, data),
            _ => {}
        }
    }

    pub(super) fn extent(&mut self, sector: u64, key: Key, data: &[u8]) {
        let Ok(extent) = FileExtent::parse(data) else {
            return;
        };
        self.has_extents = true;
        if key.offset > self.end && self.holes.len() < 1 << 16 {
            self.holes.push((self.end, key.offset));
        }
        let length = match extent.body {
            FileExtentBody::Inline(inline) => {
                let length = extent.ram_bytes.min(sector.saturating_mul(16));
                self.is_inline = true;
                self.ends_with_nul = extent.compression.is_none() && inline.last() == Some(&0);
                self.bytes = self.bytes.saturating_add(length);
                length.next_multiple_of(sector.max(1))
            }
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
                if place.disk.get() != 0 {
                    self.bytes = self.bytes.saturating_add(place.length);
                }
                place.length
            }
        };
        self.end = self.end.max(key.offset.saturating_add(length));
    }
}

/// Calls `see` with each inode of the tree.
pub(super) fn each_inode(
    plan: &mut Plan<'_>,
    mut see: impl FnMut(&mut Plan<'_>, &Seen) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let sector = u64::from(plan.writer.patient.superblock.sector_size);
    let mut seen: Option<Seen> = None;
    each(plan, |plan, key, data| {
        if !is_inode(key.objectid) {
            return Ok(());
        }
        let is_next = seen.as_ref().is_none_or(|one| one.number != key.objectid);
        if is_next && let Some(done) = seen.replace(Seen::of(key.objectid)) {
            see(plan, &done)?;
        }
        if let Some(seen) = &mut seen {
            seen.add(sector, key, data);
        }
        Ok(())
    })?;
    match seen {
        Some(done) => see(plan, &done),
        None => Ok(()),
    }
}
