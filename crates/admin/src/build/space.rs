//! Where everything in an image lies.
//!
//! Owns the chunks: one for the chunk tree, then those for data, then those for
//! all other trees, without gaps in logical and physical space. Nothing is
//! allocated where a superblock copy lies on the device.

use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::superblock::{COPIES, COPY_SPAN, RESERVED};
use butterfs_format::{DeviceId, DeviceOffset, Logical, TreeId, UuidBytes};
use std::ops::Range;

/// Bytes of a stripe element. The length of a chunk is a multiple of it.
pub(super) const STRIPE_LENGTH: u64 = 64 << 10;
/// The only device.
pub(super) const DEVICE: DeviceId = DeviceId(1);
/// Bytes of the chunk that holds the chunk tree.
const SYSTEM_BYTES: u64 = 1 << 20;
/// Bytes of the greatest chunk.
const CHUNK_MAX: u64 = 1 << 30;

/// Copies of metadata.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Copies {
    /// One.
    Single,
    /// Two on one device, which is the default of `mkfs`.
    #[default]
    Dup,
}

impl Copies {
    const fn count(self) -> u64 {
        match self {
            Self::Single => 1,
            Self::Dup => 2,
        }
    }

    fn flags(self) -> BlockGroupFlags {
        match self {
            Self::Single => BlockGroupFlags(0),
            Self::Dup => BlockGroupFlags::DUP,
        }
    }
}

/// A chunk and its used part.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) logical: u64,
    pub(super) physical: u64,
    pub(super) length: u64,
    pub(super) flags: BlockGroupFlags,
    copies: u64,
    /// Address up to which space is allocated.
    at: u64,
}

impl Placed {
    pub(super) const fn range(&self) -> Range<u64> {
        self.logical..self.logical + self.length
    }

    /// Offsets on the device at which the copies begin.
    fn starts(&self) -> impl Iterator<Item = u64> {
        let (physical, length) = (self.physical, self.length);
        (0..self.copies).map(move |copy| physical + copy * length)
    }

    /// Allocates the next `length` bytes that contain no superblock copy in any
    /// copy of the chunk; `None` if the chunk has no room.
    fn allocate(&mut self, length: u64) -> Option<u64> {
        loop {
            let start = self.at;
            if start + length > self.logical + self.length {
                return None;
            }
            let inside = start - self.logical;
            let hit = self.starts().find_map(|begin| {
                let here = begin + inside..begin + inside + length;
                let copies = COPIES.iter().map(|copy| copy.get()..copy.get() + COPY_SPAN);
                let mut hits = copies.filter(|copy| copy.start < here.end && here.start < copy.end);
                hits.next().map(|copy| copy.end - begin)
            });
            match hit {
                Some(after) => self.at = self.logical + after,
                None => {
                    self.at = start + length;
                    return Some(start);
                }
            }
        }
    }

    /// Offsets on the device of all copies of an address.
    pub(super) fn places(&self, logical: u64) -> impl Iterator<Item = u64> {
        let inside = logical - self.logical;
        self.starts().map(move |begin| begin + inside)
    }

    /// Returns the chunk's item for the chunk tree.
    pub(super) fn chunk(&self, device_uuid: UuidBytes, sector_size: u32) -> Chunk {
        Chunk {
            length: self.length,
            owner: TreeId::EXTENT.get(),
            stripe_length: STRIPE_LENGTH,
            flags: self.flags,
            io_align: STRIPE_LENGTH as u32,
            io_width: STRIPE_LENGTH as u32,
            sector_size,
            sub_stripes: 1,
            stripes: self
                .starts()
                .map(|begin| Stripe {
                    device: DEVICE,
                    offset: DeviceOffset(begin),
                    device_uuid,
                })
                .collect(),
        }
    }
}

/// The chunks of an image.
#[derive(Clone, Debug)]
pub(super) struct Space {
    copies: Copies,
    pub(super) chunks: Vec<Placed>,
}

impl Space {
    pub(super) fn new(copies: Copies) -> Self {
        let mut space = Self {
            copies,
            chunks: Vec::new(),
        };
        space.open(
            BlockGroupFlags::SYSTEM | copies.flags(),
            SYSTEM_BYTES,
            copies.count(),
        );
        space
    }

    /// Where the next chunk begins: its address and its offset on the device.
    fn end(&self) -> (u64, u64) {
        self.chunks.last().map_or((RESERVED, RESERVED), |last| {
            (
                last.logical + last.length,
                last.physical + last.length * last.copies,
            )
        })
    }

    /// Offset on the device at which the last chunk ends.
    pub(super) fn device_end(&self) -> u64 {
        self.end().1
    }

    /// Bytes of the device that are in chunks.
    pub(super) fn device_bytes(&self) -> u64 {
        self.device_end() - RESERVED
    }

    fn open(&mut self, flags: BlockGroupFlags, length: u64, copies: u64) {
        let (logical, physical) = self.end();
        self.chunks.push(Placed {
            logical,
            physical,
            length,
            flags,
            copies,
            at: logical,
        });
    }

    /// Allocates space for data in one chunk.
    pub(super) fn allocate_data(&mut self, length: u64) -> DataPlace {
        loop {
            let number = self.chunks.len() - 1;
            if let Some(last) = self.chunks.last_mut()
                && last.flags == BlockGroupFlags::DATA
                && let Some(logical) = last.allocate(length)
            {
                let physical = last.physical + (logical - last.logical);
                return DataPlace {
                    logical,
                    physical,
                    chunk: number,
                };
            }
            self.close();
            self.open(BlockGroupFlags::DATA, CHUNK_MAX, 1);
        }
    }

    /// Cuts the last chunk to its used part, if it is for data.
    pub(super) fn close(&mut self) {
        if let Some(last) = self.chunks.last_mut()
            && last.flags == BlockGroupFlags::DATA
        {
            let used = last.at - last.logical;
            last.length = used.next_multiple_of(STRIPE_LENGTH);
        }
    }

    /// Adds chunks for `bytes` of nodes of all trees except the chunk tree.
    pub(super) fn add_metadata(&mut self, bytes: u64) {
        let mut left = bytes.next_multiple_of(STRIPE_LENGTH);
        while left > 0 {
            let length = left.min(CHUNK_MAX);
            let flags = BlockGroupFlags::METADATA | self.copies.flags();
            self.open(flags, length, self.copies.count());
            left -= length;
        }
    }

    /// Allocates space for a node in a chunk of this kind; `None` if there is no
    /// room left.
    pub(super) fn allocate_node(&mut self, kind: BlockGroupFlags, size: u64) -> Option<Logical> {
        let mut chunks = self
            .chunks
            .iter_mut()
            .filter(|one| one.flags.contains(kind));
        chunks.find_map(|chunk| chunk.allocate(size)).map(Logical)
    }

    /// Returns the chunk that holds an address.
    pub(super) fn chunk_of(&self, logical: Logical) -> &Placed {
        let after = self
            .chunks
            .partition_point(|one| one.logical <= logical.get());
        &self.chunks[after - 1]
    }
}

/// Where data lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataPlace {
    pub(super) logical: u64,
    pub(super) physical: u64,
    /// Index of the chunk. An extent must not reach from one chunk into the next.
    pub(super) chunk: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_lies_on_a_superblock() {
        let mut space = Space::new(Copies::Dup);
        let mut last = 0;
        for _ in 0..1200 {
            let place = space.allocate_data(100 << 10);
            for copy in COPIES {
                let copy = copy.get()..copy.get() + COPY_SPAN;
                let here = place.physical..place.physical + (100 << 10);
                assert!(here.end <= copy.start || copy.end <= here.start);
            }
            assert!(place.physical >= last);
            last = place.physical + (100 << 10);
        }
        // The chunk has no gaps, except at the superblock copy at 64 MiB.
        space.close();
        let data = &space.chunks[1];
        assert!(data.length >= 1200 * (100 << 10));
        assert!(data.length < 1200 * (100 << 10) + (512 << 10));
        space.add_metadata(1 << 20);
        let node = space
            .allocate_node(BlockGroupFlags::METADATA, 16384)
            .unwrap();
        assert_eq!(space.chunk_of(node).places(node.get()).count(), 2);
    }

    #[test]
    fn data_are_in_several_chunks() {
        let mut space = Space::new(Copies::Single);
        let places: Vec<DataPlace> = (0..3).map(|_| space.allocate_data(600 << 20)).collect();
        assert_eq!(
            places.iter().map(|p| p.chunk).collect::<Vec<_>>(),
            [1, 2, 3]
        );
        space.close();
        let ends: Vec<u64> = space.chunks.iter().map(|one| one.range().end).collect();
        let starts: Vec<u64> = space.chunks.iter().map(|one| one.logical).collect();
        assert_eq!(starts[1..], ends[..3]);
    }
}
