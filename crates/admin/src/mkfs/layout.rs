//! Where the first chunks of a volume lie.
//!
//! Pure: computes addresses from sizes and options. Logical space and the space
//! of each device are filled without gaps, from the end of the reserved first
//! bytes on. A chunk goes to the devices with the most room.

use super::MkfsError;
use super::options::{Layout, MkfsOptions};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::superblock::{RESERVED, SYSTEM_STRIPES_MAX};
use butterfs_format::{DeviceId, DeviceOffset, Logical, TreeId, UuidBytes};
use butterfs_volume::{Profile, stripe_length, superblock_ranges};
use std::ops::Range;

/// Bytes of a stripe element. The length of a chunk is a multiple of it.
pub(super) const STRIPE_LENGTH: u64 = 64 << 10;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// Bytes of the data chunk. The allocator adds greater ones when they are needed.
const DATA_BYTES: u64 = 8 * MIB;
/// The least bytes of a mixed block group. With less, the kernel has no room to
/// work.
const MIXED_BYTES_MIN: u64 = 11 * MIB;
/// The least bytes of metadata, for the trees.
const METADATA_BYTES_MIN: u64 = 16 * MIB;
/// The least nodes of metadata, for what the kernel reserves for one change. It
/// counts that in nodes: with 576 of them, Linux 6.18 has no space for a first
/// file; with 640, it has.
const METADATA_NODES_MIN: u64 = 640;
/// Bytes of metadata that the Btrfs tools choose if they fit.
const METADATA_BYTES_USUAL: u64 = 32 * MIB;
/// Volumes above this size may get a metadata chunk of up to a gibibyte.
const LARGE_VOLUME: u64 = 50 * GIB;

/// A device of the new volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewDevice {
    pub(super) id: DeviceId,
    pub(super) uuid: UuidBytes,
    /// Bytes of the device that the volume uses.
    pub(super) total: u64,
}

/// A chunk and its address.
#[derive(Clone, Debug)]
pub(super) struct PlannedChunk {
    pub(super) logical: Logical,
    pub(super) chunk: Chunk,
}

impl PlannedChunk {
    /// Returns its range in logical space.
    pub(super) fn range(&self) -> Range<u64> {
        self.logical.get()..self.logical.get() + self.chunk.length
    }

    /// Returns the logical ranges that lie on a superblock copy on a device.
    pub(super) fn superblocks(&self) -> Vec<Range<u64>> {
        superblock_ranges(self.logical, &self.chunk)
    }
}

/// The first chunks of a volume.
#[derive(Clone, Debug)]
pub(super) struct ChunkLayout {
    /// For the chunk tree.
    pub(super) system: PlannedChunk,
    /// For all other trees, and for data if block groups are mixed.
    pub(super) metadata: PlannedChunk,
    /// For data; `None` if block groups are mixed.
    pub(super) data: Option<PlannedChunk>,
}

impl ChunkLayout {
    /// All chunks by address.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &PlannedChunk> {
        [&self.system, &self.metadata].into_iter().chain(&self.data)
    }

    /// Bytes of a device that are in chunks.
    pub(super) fn device_bytes(&self, device: DeviceId) -> u64 {
        let of_chunk = |planned: &PlannedChunk| {
            let stripes = planned.chunk.stripes.iter();
            let own = stripes.filter(|stripe| stripe.device == device).count();
            stripe_length(&planned.chunk) * own as u64
        };
        self.chunks().map(of_chunk).sum()
    }
}

/// Bytes of the content of each chunk, that is, of one copy.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    system: u64,
    metadata: u64,
    data: u64,
}

/// Number of copies on the only device.
const fn copies(profile: Profile) -> u64 {
    profile.stripes_per_device() as u64
}

impl MkfsOptions {
    /// Returns the bytes of the smallest volume with these options on one device.
    ///
    /// # Errors
    /// An [`MkfsError`] if the options contradict each other or the profiles need
    /// more devices.
    pub fn bytes_min(&self) -> Result<u64, MkfsError> {
        let profiles = self.profiles(1)?;
        let sizes = self.sizes_min(profiles.metadata);
        Ok(RESERVED
            + (sizes.system + sizes.metadata) * copies(profiles.metadata)
            + sizes.data * copies(profiles.data))
    }

    fn sizes_min(&self, metadata: Profile) -> Sizes {
        let system = match metadata {
            Profile::Single => 4 * MIB,
            _ => 8 * MIB,
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

/// Plans the first chunks of a volume on `devices`.
pub(super) fn plan(options: &MkfsOptions, devices: &[NewDevice]) -> Result<ChunkLayout, MkfsError> {
    let profiles = options.profiles(devices.len())?;
    let least = options.sizes_min(profiles.metadata);
    let total: u64 = devices.iter().map(|device| device.total).sum();
    // All copies of metadata together get a tenth of the volume.
    let cap = if total > LARGE_VOLUME { GIB } else { 256 * MIB };
    let usual = METADATA_BYTES_USUAL.max(least.metadata);
    let mut sizes = least;
    if devices.len() == 1 {
        let copies = copies(profiles.metadata);
        let wanted = (total / 10 / copies).clamp(usual, cap);
        let spare = total.saturating_sub(options.bytes_min()?) / copies;
        sizes.metadata = whole_stripes(wanted.min(sizes.metadata + spare));
        return place(options, devices, sizes);
    }
    let copies = profiles.metadata.copies() as u64;
    sizes.metadata = whole_stripes((total / 10 / copies).clamp(usual, cap));
    place(options, devices, sizes).or_else(|_| place(options, devices, least))
}

const fn whole_stripes(length: u64) -> u64 {
    length - length % STRIPE_LENGTH
}

fn place(
    options: &MkfsOptions,
    devices: &[NewDevice],
    sizes: Sizes,
) -> Result<ChunkLayout, MkfsError> {
    let profiles = options.profiles(devices.len())?;
    let mut placer = Placer {
        at: RESERVED,
        rooms: devices
            .iter()
            .map(|device| Room {
                device: *device,
                at: RESERVED,
            })
            .collect(),
        sector_size: options.sector_size,
    };
    let held = match options.layout() {
        Layout::Separate => BlockGroupFlags::METADATA,
        Layout::Mixed => BlockGroupFlags::METADATA | BlockGroupFlags::DATA,
    };
    let mut chunk = |held, profile, length, what| {
        let placed = placer.chunk(held, profile, length);
        placed.ok_or(MkfsError::NoRoom { what })
    };
    Ok(ChunkLayout {
        system: chunk(
            BlockGroupFlags::SYSTEM,
            profiles.metadata,
            sizes.system,
            "the system chunk",
        )?,
        metadata: chunk(
            held,
            profiles.metadata,
            sizes.metadata,
            "the metadata chunk",
        )?,
        data: match options.layout() {
            Layout::Separate => Some(chunk(
                BlockGroupFlags::DATA,
                profiles.data,
                sizes.data,
                "the data chunk",
            )?),
            Layout::Mixed => None,
        },
    })
}

/// A device, and the offset up to which it is filled.
struct Room {
    device: NewDevice,
    at: u64,
}

impl Room {
    const fn left(&self) -> u64 {
        self.device.total.saturating_sub(self.at)
    }
}

/// Allocates space in logical space and on the devices, in order.
struct Placer {
    at: u64,
    rooms: Vec<Room>,
    sector_size: u32,
}

impl Placer {
    /// Places a chunk whose content has `length` bytes, or a little more if its
    /// rows must be whole. Returns `None` if the devices have too little room.
    fn chunk(
        &mut self,
        held: BlockGroupFlags,
        profile: Profile,
        length: u64,
    ) -> Option<PlannedChunk> {
        let each = profile.stripes_per_device();
        let mut order: Vec<usize> = (0..self.rooms.len()).collect();
        order.sort_by_key(|index| std::cmp::Reverse(self.rooms[*index].left()));
        let most = profile.devices_max().unwrap_or(order.len());
        let most = match held {
            BlockGroupFlags::SYSTEM => most.min(SYSTEM_STRIPES_MAX),
            _ => most,
        };
        let most = most.min(order.len());
        // Takes as many devices as have room. With fewer devices, stripes are
        // longer.
        let (devices, stripe) = (profile.devices_min()..=most)
            .rev()
            .filter(|count| profile.allows_stripes(count * each))
            .find_map(|count| {
                let data = profile.data_stripes(count * each) as u64;
                let stripe = length.div_ceil(data).next_multiple_of(STRIPE_LENGTH);
                let stripe = if data == 1 { length } else { stripe };
                let last = &self.rooms[*order.get(count - 1)?];
                (last.left() >= stripe * each as u64).then(|| (&order[..count], stripe))
            })?;
        let mut stripes = Vec::new();
        for index in devices {
            let room = &mut self.rooms[*index];
            for _ in 0..each {
                stripes.push(Stripe {
                    device: room.device.id,
                    offset: DeviceOffset(room.at),
                    device_uuid: room.device.uuid,
                });
                room.at += stripe;
            }
        }
        let planned = PlannedChunk {
            logical: Logical(self.at),
            chunk: Chunk {
                length: stripe * profile.data_stripes(stripes.len()) as u64,
                owner: TreeId::EXTENT.get(),
                stripe_length: STRIPE_LENGTH,
                flags: held | profile.flag(),
                io_align: STRIPE_LENGTH as u32,
                io_width: STRIPE_LENGTH as u32,
                sector_size: self.sector_size,
                sub_stripes: profile.sub_stripes(),
                stripes,
            },
        };
        self.at += planned.chunk.length;
        Some(planned)
    }
}
