//! A block group in memory: how much of it is used and what is free.

use super::free_space_tree::GroupSpan;
use super::ranges::RangeSet;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ItemType, Key, Logical};
use std::ops::Range;

/// Who knows of a block group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No tree has it yet, neither its chunk nor its items.
    New,
    /// The trees of the running generation.
    Entered,
    /// The last commit.
    Committed,
}

/// Space accounting of one chunk.
#[derive(Clone, Debug)]
pub struct BlockGroup {
    /// First byte.
    pub start: Logical,
    /// Bytes.
    pub length: u64,
    /// What may lie in it, and in which profile.
    pub flags: BlockGroupFlags,
    /// Bytes used by extents in the extent tree; the item's `used`.
    pub used: u64,
    /// Bytes allocated but not yet in the extent tree.
    pub promised: u64,
    /// Bytes freed from the extent tree and still pinned.
    pub pinned: u64,
    /// Bytes of superblock copies.
    pub excluded: Vec<Range<u64>>,
    /// What can be allocated; `None` until it is loaded.
    pub free: Option<RangeSet>,
    /// Where the next allocation is tried first.
    pub cursor: u64,
    /// `used` changed since its item was written.
    pub dirty: bool,
    /// Who knows of it.
    pub standing: Standing,
    /// Something was found wrong with it, or nothing may be written to it.
    pub read_only: bool,
    /// Bytes of the rows by which space is given out, where it has parity.
    pub row: Option<u64>,
    /// What is free in rows that are partly used. It is not in `free`.
    pub left_over: RangeSet,
}

/// Whether block groups of these flags have parity.
pub(super) fn has_parity(flags: BlockGroupFlags) -> bool {
    flags.intersects(BlockGroupFlags::RAID5 | BlockGroupFlags::RAID6)
}

impl BlockGroup {
    /// True when its items are not in the trees yet.
    pub fn is_new(&self) -> bool {
        self.standing == Standing::New
    }

    /// One past its last byte.
    pub const fn end(&self) -> u64 {
        self.start.get() + self.length
    }

    /// Bytes that can be allocated now.
    pub fn available(&self) -> u64 {
        if self.read_only {
            return 0;
        }
        match &self.free {
            Some(free) => free.total() + self.left_over.total(),
            None => {
                let excluded: u64 = self.excluded.iter().map(|r| r.end - r.start).sum();
                self.length
                    .saturating_sub(self.used + self.promised + self.pinned + excluded)
            }
        }
    }

    /// How the free-space tree sees it.
    pub const fn span(&self, sector_size: u64) -> GroupSpan {
        GroupSpan {
            start: self.start,
            length: self.length,
            sector_size,
        }
    }
}

impl BlockGroup {
    /// Key of its item.
    pub(crate) fn item_key(&self) -> Key {
        Key::new(self.start.get(), ItemType::BLOCK_GROUP_ITEM, self.length)
    }

    /// Its item.
    pub(crate) fn item(&self) -> BlockGroupItem {
        BlockGroupItem {
            used: self.used,
            chunk_objectid: CHUNK_OBJECTID,
            flags: self.flags,
        }
    }
}
