//! Descriptors of groups.

use crate::bytes::{joined, memory, u16, u32};
use crate::checksum::{crc16, crc32c};
use crate::error::{Error, Fault, Place};
use crate::{Block, Incompatible, ReadOnlyCompatible, Superblock};

const INODES_NOT_USED: u16 = 1;
const BLOCKS_NOT_USED: u16 = 2;
/// Where the checksum of a descriptor lies in it.
const CHECKSUM: usize = 0x1e;

/// Where a group's metadata lie.
///
/// Invariant: all of it lies within the file system.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    pub(crate) block_bitmap: Block,
    pub(crate) inode_bitmap: Block,
    pub(crate) inode_table: Block,
    /// Inodes at the end of the table that were never used.
    pub(crate) inodes_never_used: u32,
    /// Nothing of the inode table is in use, and its bitmap was never written.
    pub(crate) has_no_inodes: bool,
    /// The bitmap of blocks was never written: only metadata are in use.
    pub(crate) has_no_block_bitmap: bool,
    pub(crate) block_bitmap_checksum: u32,
    pub(crate) inode_bitmap_checksum: u32,
}

impl Group {
    /// Parses and verifies the descriptor of group `number`.
    pub(crate) fn parse(bytes: &[u8], number: u32, superblock: &Superblock) -> Result<Self, Error> {
        verify_checksum(bytes, number, superblock)?;
        let is_wide = superblock.incompatible.has(Incompatible::BITS_64);
        let wide = |low, high| match is_wide {
            true => joined(u32(bytes, low), u32(bytes, high)),
            false => u32(bytes, low).into(),
        };
        let halves = |low, high| {
            let high = if is_wide { u16(bytes, high) } else { 0 };
            u32::from(u16(bytes, low)) | (u32::from(high) << 16)
        };
        let flags = match has_flags(superblock) {
            true => u16(bytes, 0x12),
            false => 0,
        };
        let group = Self {
            block_bitmap: wide(0, 0x20),
            inode_bitmap: wide(0x4, 0x24),
            inode_table: wide(0x8, 0x28),
            inodes_never_used: match has_flags(superblock) {
                true => halves(0x1c, 0x32).min(superblock.group_inodes),
                false => 0,
            },
            has_no_inodes: flags & INODES_NOT_USED != 0,
            has_no_block_bitmap: flags & BLOCKS_NOT_USED != 0,
            block_bitmap_checksum: halves(0x18, 0x38),
            inode_bitmap_checksum: halves(0x1a, 0x3a),
        };
        let table = group.table_blocks(superblock);
        for (start, length) in [
            (group.block_bitmap, 1),
            (group.inode_bitmap, 1),
            (group.inode_table, table),
        ] {
            let end = start.checked_add(length);
            if start < superblock.first_block.into()
                || end.is_none_or(|end| end > superblock.blocks)
            {
                return Err(Place::Group(number).has(Fault::Outside(start)).into());
            }
        }
        Ok(group)
    }

    /// Blocks of an inode table.
    pub(crate) fn table_blocks(&self, superblock: &Superblock) -> u64 {
        let bytes = u64::from(superblock.group_inodes).saturating_mul(superblock.inode_size.into());
        bytes.div_ceil(superblock.block_size())
    }
}

fn has_flags(superblock: &Superblock) -> bool {
    let old = ReadOnlyCompatible::GDT_CSUM;
    superblock.has_checksums() || superblock.read_only_compatible.has(old)
}

fn verify_checksum(bytes: &[u8], number: u32, superblock: &Superblock) -> Result<(), Error> {
    if !has_flags(superblock) {
        return Ok(());
    }
    let before = bytes.get(..CHECKSUM).unwrap_or_default();
    let size = memory(superblock.descriptor_size.into());
    let behind = bytes
        .get(CHECKSUM.saturating_add(2)..size)
        .unwrap_or_default();
    let number_bytes = number.to_le_bytes();
    let expected = if superblock.has_checksums() {
        let parts: [&[u8]; 4] = [&number_bytes, before, &[0; 2], behind];
        let sum = parts.into_iter().fold(superblock.checksum_seed, crc32c);
        let [low, high, ..] = sum.to_le_bytes();
        u16::from_le_bytes([low, high])
    } else {
        let behind = match superblock.incompatible.has(Incompatible::BITS_64) {
            true => behind,
            false => &[],
        };
        let parts: [&[u8]; 4] = [&superblock.uuid, &number_bytes, before, behind];
        parts.into_iter().fold(u16::MAX, crc16)
    };
    match expected == u16(bytes, CHECKSUM) {
        true => Ok(()),
        false => Err(Place::Group(number).has(Fault::Checksum).into()),
    }
}
