//! Where the first chunks of a volume lie.
//!
//! Pure: from a size and options to addresses. Logical and physical space are
//! both filled from the end of the reserved first bytes on, without gaps.

use super::MkfsError;
use super::options::{Layout, MkfsOptions, ProfileChoice};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::superblock::{COPIES, COPY_SPAN, RESERVED};
use butterfs_format::{DeviceId, DeviceOffset, Logical, TreeId, UuidBytes};
use std::ops::Range;

/// Bytes of a stripe element; all chunks are multiples of it.
pub(super) const STRIPE_LENGTH: u64 = 64 << 10;
/// The only device.
pub(super) const DEVICE: DeviceId = DeviceId(1);

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Data: the allocator adds greater ones when they are needed.
const DATA_BYTES: u64 = 8 * MIB;
/// Mixed block groups with less leave the kernel no room to work in.
const MIXED_BYTES_MIN: u64 = 11 * MIB;
/// Room for the trees.
const METADATA_BYTES_MIN: u64 = 16 * MIB;
/// Room for what the kernel promises to one change, which it counts in nodes:
/// with 576 of them Linux 6.18 has no space for a first file, with 640 it has.
const METADATA_NODES_MIN: u64 = 640;
/// What the Btrfs tools choose when it fits.
const METADATA_BYTES_USUAL: u64 = 32 * MIB;
/// Volumes above this size get metadata chunks of a gibibyte.
const LARGE_VOLUME: u64 = 50 * GIB;

/// A chunk and its address.
#[derive(Clone, Debug)]
pub(super) struct PlannedChunk {
    pub(super) logical: Logical,
    pub(super) chunk: Chunk,
}

impl PlannedChunk {
    /// Its logical space.
    pub(super) fn range(&self) -> Range<u64> {
        self.logical.get()..self.logical.get() + self.chunk.length
    }

    /// Logical ranges that would cover a superblock copy on the device.
    pub(super) fn superblocks(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for stripe in &self.chunk.stripes {
            let begin = stripe.offset.get();
            for copy in COPIES {
                let start = copy.get().max(begin);
                let end = (copy.get() + COPY_SPAN).min(begin + self.chunk.length);
                if start < end {
                    let logical = self.logical.get();
                    ranges.push(logical + (start - begin)..logical + (end - begin));
                }
            }
        }
        ranges
    }
}

/// The first chunks of a volume.
#[derive(Clone, Debug)]
pub(super) struct ChunkLayout {
    /// Of the chunk tree.
    pub(super) system: PlannedChunk,
    /// Of all other trees (and of data, when mixed).
    pub(super) metadata: PlannedChunk,
    /// Of data, unless mixed.
    pub(super) data: Option<PlannedChunk>,
}

impl ChunkLayout {
    /// All chunks by address.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &PlannedChunk> {
        [&self.system, &self.metadata].into_iter().chain(&self.data)
    }

    /// Bytes of the device in chunks.
    pub(super) fn device_bytes(&self) -> u64 {
        self.chunks()
            .map(|planned| planned.chunk.length * planned.chunk.stripes.len() as u64)
            .sum()
    }
}

/// Bytes of one copy of each chunk.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    system: u64,
    metadata: u64,
    data: u64,
}

impl MkfsOptions {
    /// Bytes that the smallest volume of these options has.
    ///
    /// # Errors
    /// Options that contradict each other.
    pub fn bytes_min(&self) -> Result<u64, MkfsError> {
        let profiles = self.profiles()?;
        let sizes = self.sizes_min(profiles.metadata);
        Ok(RESERVED
            + (sizes.system + sizes.metadata) * profiles.metadata.copies()
            + sizes.data * profiles.data.copies())
    }

    fn sizes_min(&self, metadata: ProfileChoice) -> Sizes {
        let system = match metadata {
            ProfileChoice::Single => 4 * MIB,
            ProfileChoice::Dup => 8 * MIB,
        };
        match self.layout() {
            Layout::Separate => Sizes {
                system,
                metadata: METADATA_BYTES_MIN.max(METADATA_NODES_MIN * u64::from(self.node_size)),
                data: DATA_BYTES,
            },
            Layout::Mixed => Sizes {
                system,
                metadata: MIXED_BYTES_MIN,
                data: 0,
            },
        }
    }
}

/// Plans the first chunks of a volume of `total` bytes.
pub(super) fn plan(
    options: &MkfsOptions,
    total: u64,
    device_uuid: UuidBytes,
) -> Result<ChunkLayout, MkfsError> {
    let profiles = options.profiles()?;
    let minimum = options.bytes_min()?;
    let mut sizes = options.sizes_min(profiles.metadata);
    let copies = profiles.metadata.copies();
    // A tenth of the volume, all copies together.
    let cap = if total > LARGE_VOLUME { GIB } else { 256 * MIB };
    let usual = METADATA_BYTES_USUAL.max(sizes.metadata);
    let wanted = (total / 10 / copies).clamp(usual, cap);
    let spare = total.saturating_sub(minimum) / copies;
    sizes.metadata = wanted.min(sizes.metadata + spare);
    sizes.metadata -= sizes.metadata % STRIPE_LENGTH;

    let mut place = Placer {
        at: RESERVED,
        device_at: RESERVED,
        device_uuid,
        sector_size: options.sector_size,
    };
    let held = match options.layout() {
        Layout::Separate => BlockGroupFlags::METADATA,
        Layout::Mixed => BlockGroupFlags::METADATA | BlockGroupFlags::DATA,
    };
    Ok(ChunkLayout {
        system: place.chunk(BlockGroupFlags::SYSTEM, profiles.metadata, sizes.system),
        metadata: place.chunk(held, profiles.metadata, sizes.metadata),
        data: (options.layout() == Layout::Separate)
            .then(|| place.chunk(BlockGroupFlags::DATA, profiles.data, sizes.data)),
    })
}

/// Hands out both address spaces in order.
struct Placer {
    at: u64,
    device_at: u64,
    device_uuid: UuidBytes,
    sector_size: u32,
}

impl Placer {
    fn chunk(
        &mut self,
        held: BlockGroupFlags,
        profile: ProfileChoice,
        length: u64,
    ) -> PlannedChunk {
        let stripes = (0..profile.copies()).map(|copy| Stripe {
            device: DEVICE,
            offset: DeviceOffset(self.device_at + copy * length),
            device_uuid: self.device_uuid,
        });
        let planned = PlannedChunk {
            logical: Logical(self.at),
            chunk: Chunk {
                length,
                owner: TreeId::EXTENT.get(),
                stripe_length: STRIPE_LENGTH,
                flags: held | profile.flags(),
                io_align: STRIPE_LENGTH as u32,
                io_width: STRIPE_LENGTH as u32,
                sector_size: self.sector_size,
                sub_stripes: 1,
                stripes: stripes.collect(),
            },
        };
        self.at += length;
        self.device_at += length * profile.copies();
        planned
    }
}
