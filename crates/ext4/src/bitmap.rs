//! Bitmaps of groups: which inodes and which clusters are in use.

use crate::bytes::memory;
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place};
use crate::group::Group;
use crate::{Block, FileSystem, Incompatible, Source};
use std::ops::Range;

/// A bitmap; bits beyond its end count as set.
pub(crate) struct Bitmap(Vec<u8>);

impl Bitmap {
    pub(crate) fn is_set(&self, bit: u32) -> bool {
        let byte = self.0.get(memory((bit / 8).into()));
        byte.is_none_or(|byte| byte >> (bit % 8) & 1 == 1)
    }
}

impl<S: Source> FileSystem<S> {
    pub(crate) fn read_bitmap(
        &self,
        block: Block,
        bits: u32,
        checksum: u32,
        place: Place,
    ) -> Result<Bitmap, Error> {
        let mut bytes = Vec::new();
        self.read_block(block, &mut bytes)?;
        bytes.truncate(memory(bits.div_ceil(8).into()));
        if self.superblock.has_checksums() {
            let sum = crc32c(self.superblock.checksum_seed, &bytes);
            let is_wide = self.superblock.incompatible.has(Incompatible::BITS_64);
            let mask = if is_wide { u32::MAX } else { 0xffff };
            if sum & mask != checksum & mask {
                return Err(place.has(Fault::Checksum).into());
            }
        }
        Ok(Bitmap(bytes))
    }

    /// The ranges of blocks of a group that are in use, ascending, metadata of
    /// the file system among them. They are whole clusters.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for the bitmap; [`Error::Io`].
    pub fn used_blocks_of(&self, group: u32) -> Result<Vec<Range<Block>>, Error> {
        let Some(facts) = self.groups.get(memory(group.into())) else {
            return Ok(Vec::new());
        };
        let start = self.superblock.first_block_of(group);
        let end = start.saturating_add(self.superblock.blocks_of(group).into());
        let mut used = Vec::new();
        if facts.has_no_block_bitmap {
            self.metadata_within(group, start..end, &mut used);
            return Ok(used);
        }
        let bitmap = self.block_bitmap(group, facts)?;
        let cluster = 1_u64 << self.superblock.cluster_log;
        let clusters = u64::from(self.superblock.blocks_of(group)).div_ceil(cluster);
        for bit in 0..u32::try_from(clusters).unwrap_or(u32::MAX) {
            if bitmap.is_set(bit) {
                let from = start.saturating_add(u64::from(bit).saturating_mul(cluster));
                push(&mut used, from..from.saturating_add(cluster).min(end));
            }
        }
        Ok(used)
    }

    fn block_bitmap(&self, group: u32, facts: &Group) -> Result<Bitmap, Error> {
        let bits = self.superblock.group_blocks >> self.superblock.cluster_log;
        let checksum = facts.block_bitmap_checksum;
        self.read_bitmap(
            facts.block_bitmap,
            bits,
            checksum,
            Place::BlockBitmap(group),
        )
    }

    /// What is in use in a group whose bitmap was never written.
    fn metadata_within(&self, group: u32, blocks: Range<Block>, used: &mut Vec<Range<Block>>) {
        let cluster = 1_u64 << self.superblock.cluster_log;
        let whole = |range: Range<Block>| {
            let down = |block: Block| {
                let into = block.saturating_sub(blocks.start);
                blocks.start.saturating_add(
                    into.checked_div(cluster)
                        .unwrap_or(0)
                        .saturating_mul(cluster),
                )
            };
            let end = range.end.saturating_sub(1);
            down(range.start)..down(end).saturating_add(cluster).min(blocks.end)
        };
        let base = u64::from(self.superblock.base_blocks(group));
        if base > 0 {
            push(used, whole(blocks.start..blocks.start.saturating_add(base)));
        }
        let first = self
            .metadata
            .partition_point(|range| range.start < blocks.start.saturating_sub(TABLE_MAX));
        let near = self.metadata.get(first..).unwrap_or_default().iter();
        for range in near.take_while(|range| range.start < blocks.end) {
            let within = range.start.max(blocks.start)..range.end.min(blocks.end);
            if !within.is_empty() {
                push(used, whole(within));
            }
        }
    }
}

/// No inode table has more blocks.
const TABLE_MAX: u64 = 1 << 19;

/// Adds a range that does not begin before the last one.
fn push(ranges: &mut Vec<Range<Block>>, range: Range<Block>) {
    match ranges.last_mut() {
        Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    }
}
