//! The map from logical to physical addresses: a plain immutable value.
//!
//! Invariants: every chunk passed its check; no two overlap.

use crate::chunk_check::{ChunkFault, check};
use crate::geometry::{self, Mapping, Row};
use crate::stripe_extents::StripeExtents;
use crate::{Profile, VolumeError};
use butterfs_device::DeviceRange;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::raid_stripe;
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Entry {
    chunk: Arc<Chunk>,
    profile: Profile,
}

/// Where a stripe of a chunk begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkStripe {
    /// Chunk.
    pub chunk: Logical,
    /// Device.
    pub device: DeviceId,
    /// Offset on it.
    pub offset: DeviceOffset,
}

/// All chunks of a volume. A clone shares them.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: BTreeMap<Logical, Entry>,
    /// Where the data of some chunks lie instead of on their stripes.
    stripe_extents: Option<Arc<StripeExtents>>,
}

impl ChunkMap {
    /// A map with `chunk` too.
    ///
    /// # Errors
    /// [`VolumeError::BadChunk`]
    pub fn with(&self, logical: Logical, chunk: Chunk) -> Result<Self, VolumeError> {
        let mut map = self.clone();
        map.insert(logical, chunk)?;
        Ok(map)
    }

    /// A map with the places that `extents` gives for data. They hold in chunks
    /// for which a RAID stripe tree is used ([`raid_stripe::is_in_tree`]).
    #[must_use]
    pub fn with_stripe_extents(&self, extents: StripeExtents) -> Self {
        Self {
            chunks: self.chunks.clone(),
            stripe_extents: Some(Arc::new(extents)),
        }
    }

    /// A map without the chunk at `logical`.
    #[must_use]
    pub fn without(&self, logical: Logical) -> Self {
        let mut map = self.clone();
        map.chunks.remove(&logical);
        map
    }

    /// Adds a chunk; the same one may be there already.
    ///
    /// # Errors
    /// [`VolumeError::BadChunk`]
    pub fn insert(&mut self, logical: Logical, chunk: Chunk) -> Result<(), VolumeError> {
        let profile = check(logical, &chunk)?;
        let end = logical.saturating_add(chunk.length);
        if let Some((start, before)) = self.chunks.range(..end).next_back() {
            if *start == logical && *before.chunk == chunk {
                return Ok(());
            }
            if start.saturating_add(before.chunk.length) > logical {
                return Err(VolumeError::BadChunk {
                    logical,
                    fault: ChunkFault::Overlaps(*start),
                });
            }
        }
        let chunk = Arc::new(chunk);
        self.chunks.insert(logical, Entry { chunk, profile });
        Ok(())
    }

    /// Number of chunks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.chunks.len()
    }

    /// True without any chunk.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Chunks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &Chunk)> {
        self.chunks
            .iter()
            .map(|(logical, entry)| (*logical, &*entry.chunk))
    }

    fn entry(&self, logical: Logical) -> Option<(Logical, &Entry)> {
        let (start, entry) = self.chunks.range(..=logical).next_back()?;
        let within = logical.get().checked_sub(start.get())?;
        (within < entry.chunk.length).then_some((*start, entry))
    }

    /// The chunk that covers `logical`, with its own address.
    #[must_use]
    pub fn find(&self, logical: Logical) -> Option<(Logical, &Chunk)> {
        let (start, entry) = self.entry(logical)?;
        Some((start, &entry.chunk))
    }

    /// Number of copies of the byte at `logical`, parity aside; 0 if there is
    /// no chunk.
    #[must_use]
    pub fn copies(&self, logical: Logical) -> usize {
        self.entry(logical)
            .map_or(0, |(_, entry)| entry.profile.copies())
    }

    /// Where the beginning of `logical..+length` can be read. The mapping
    /// reaches at most to the end of the chunk, of the stripe element, or of
    /// the item in the RAID stripe tree.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`]
    pub fn map(&self, logical: Logical, length: u64) -> Result<Mapping, VolumeError> {
        let unmapped = VolumeError::Unmapped { logical, length };
        let Some((start, entry)) = self.entry(logical) else {
            return Err(unmapped);
        };
        let within = logical.get().saturating_sub(start.get());
        let mapping = geometry::map(entry.profile, &entry.chunk, within, length);
        let (Some(extents), Some(mapping)) = (&self.stripe_extents, &mapping) else {
            return mapping.ok_or(unmapped);
        };
        if !raid_stripe::is_in_tree(entry.chunk.flags) {
            return Ok(mapping.clone());
        }
        let (left, copies) = extents
            .find(logical, mapping.copies.len())
            .ok_or(unmapped)?;
        Ok(Mapping {
            length: mapping.length.min(left),
            copies,
            ..*mapping
        })
    }

    /// The places of all copies to which the beginning of `logical..+length`
    /// must be written.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::Profile`] where a parity
    /// would have to be written too.
    pub fn map_write(&self, logical: Logical, length: u64) -> Result<Mapping, VolumeError> {
        if let Some((_, entry)) = self.entry(logical)
            && entry.profile.parities() > 0
        {
            return Err(VolumeError::Profile {
                profile: entry.profile.name().to_owned(),
            });
        }
        self.map(logical, length)
    }

    /// The profile of the chunk that covers `logical`.
    #[must_use]
    pub fn profile(&self, logical: Logical) -> Option<Profile> {
        self.entry(logical).map(|(_, entry)| entry.profile)
    }

    /// The row with parity that holds `logical`, and where it begins; `None`
    /// where there is no parity.
    pub(crate) fn row(&self, logical: Logical) -> Option<(Logical, Row)> {
        let (start, entry) = self.entry(logical)?;
        let within = logical.get().checked_sub(start.get())?;
        let row = geometry::row(entry.profile, &entry.chunk, within)?;
        Some((start.saturating_add(row.start), row))
    }

    /// The first chunk that loses content without the devices that are `lost`.
    /// As in the kernel, the number of lost stripes decides, whichever stripes
    /// they are.
    pub fn first_lost(&self, lost: impl Fn(DeviceId) -> bool) -> Option<(Logical, Profile)> {
        let mut all = self.chunks.iter();
        let found = all.find(|(_, entry)| {
            let stripes = entry.chunk.stripes.iter();
            let gone = stripes.filter(|stripe| lost(stripe.device)).count();
            gone > entry.profile.tolerated()
        });
        found.map(|(logical, entry)| (*logical, entry.profile))
    }

    /// The stripes of all chunks.
    pub fn stripes(&self) -> impl Iterator<Item = ChunkStripe> {
        self.chunks.iter().flat_map(|(chunk, entry)| {
            entry.chunk.stripes.iter().map(|stripe| ChunkStripe {
                chunk: *chunk,
                device: stripe.device,
                offset: stripe.offset,
            })
        })
    }

    /// The chunk that covers `logical`, and the bytes of each of its stripes.
    #[must_use]
    pub fn find_stripe_length(&self, logical: Logical) -> Option<(Logical, u64)> {
        let (start, entry) = self.entry(logical)?;
        Some((start, geometry::stripe_bytes(entry.profile, &entry.chunk)))
    }

    /// Checks the stripes of all chunks against the devices. Each stripe must
    /// lie within its device, and none may overlap another. The size of a
    /// device that `size_of` does not know is not checked.
    ///
    /// # Errors
    /// [`VolumeError::BadChunk`]
    pub fn check_devices(
        &self,
        size_of: impl Fn(DeviceId) -> Option<u64>,
    ) -> Result<(), VolumeError> {
        let mut stripes = Vec::new();
        for (logical, entry) in &self.chunks {
            let length = geometry::stripe_bytes(entry.profile, &entry.chunk);
            for stripe in &entry.chunk.stripes {
                let range = DeviceRange::new(stripe.offset, length);
                if let Some(size) = size_of(stripe.device)
                    && !range.fits(size)
                {
                    return Err(VolumeError::BadChunk {
                        logical: *logical,
                        fault: ChunkFault::BeyondDevice {
                            device: stripe.device,
                            offset: stripe.offset,
                            size,
                        },
                    });
                }
                stripes.push((stripe.device, stripe.offset, range, *logical));
            }
        }
        stripes.sort_unstable_by_key(|(device, offset, _, logical)| (*device, *offset, *logical));
        for pair in stripes.windows(2) {
            if let [(first, _, range, other), (second, offset, next, logical)] = pair
                && first == second
                && range.overlaps(*next)
            {
                return Err(VolumeError::BadChunk {
                    logical: *logical,
                    fault: ChunkFault::StripesOverlap {
                        device: *second,
                        offset: *offset,
                        other: *other,
                    },
                });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::item::chunk::{BlockGroupFlags, Stripe};

    const MIB: u64 = 1 << 20;
    const DATA: BlockGroupFlags = BlockGroupFlags::DATA;

    fn chunk(flags: BlockGroupFlags, offsets: &[u64]) -> Chunk {
        Chunk {
            length: MIB,
            owner: 2,
            stripe_length: 65536,
            flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 2,
            stripes: offsets
                .iter()
                .map(|offset| Stripe {
                    device: DeviceId(1),
                    offset: DeviceOffset(*offset),
                    device_uuid: [0; 16],
                })
                .collect(),
        }
    }

    fn fault(result: Result<impl Sized, VolumeError>) -> ChunkFault {
        match result.err() {
            Some(VolumeError::BadChunk { fault, .. }) => fault,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn maps_all_copies_and_cuts_at_the_end() {
        let mut map = ChunkMap::default();
        let dup = BlockGroupFlags::METADATA | BlockGroupFlags::DUP;
        map.insert(Logical(MIB), chunk(dup, &[4 * MIB, 8 * MIB]))
            .unwrap();
        let mapping = map.map(Logical(2 * MIB - 4096), 8192).unwrap();
        assert_eq!(mapping.length, 4096);
        let offsets: Vec<u64> = mapping.copies.iter().map(|p| p.offset.get()).collect();
        assert_eq!(offsets, [5 * MIB - 4096, 9 * MIB - 4096]);
        assert!(map.map(Logical(2 * MIB), 1).is_err());
        assert!(map.map(Logical(0), 1).is_err());
        assert_eq!(map.copies(Logical(MIB)), 2);
        assert_eq!(map.copies(Logical(0)), 0);
        assert!(map.without(Logical(MIB)).is_empty());
        assert_eq!(map.len(), 1);
    }

    #[test]
    fn parity_is_read_but_not_written() {
        let mut map = ChunkMap::default();
        let raid5 = chunk(DATA | BlockGroupFlags::RAID5, &[MIB, 4 * MIB, 8 * MIB]);
        map.insert(Logical(MIB), raid5).unwrap();
        assert!(map.map(Logical(MIB), 4096).is_ok());
        assert!(matches!(
            map.map_write(Logical(MIB), 4096),
            Err(VolumeError::Profile { .. })
        ));
    }

    #[test]
    fn each_fault_has_its_name() {
        use ChunkFault as F;
        let good = chunk(DATA, &[MIB]);
        let insert = |logical: u64, chunk: &Chunk| {
            ChunkMap::default()
                .with(Logical(logical), chunk.clone())
                .map(|_| ())
        };
        insert(MIB, &good).unwrap();
        let with = |change: &dyn Fn(&mut Chunk)| {
            let mut bad = good.clone();
            change(&mut bad);
            fault(insert(MIB, &bad))
        };
        assert_eq!(with(&|c| c.flags = BlockGroupFlags(0)), F::NoType);
        assert_eq!(
            with(&|c| c.flags = BlockGroupFlags::SYSTEM | DATA),
            F::MixedSystem
        );
        assert_eq!(
            with(&|c| c.flags = BlockGroupFlags(1 | 1 << 40)),
            F::UnknownFlags(1 | 1 << 40)
        );
        assert_eq!(
            with(&|c| c.flags = DATA | BlockGroupFlags::DUP | BlockGroupFlags::RAID1),
            F::SeveralProfiles
        );
        assert_eq!(
            with(&|c| c.flags = DATA | BlockGroupFlags::DUP),
            F::StripeCount {
                profile: Profile::Dup,
                found: 1
            }
        );
        assert_eq!(with(&|c| c.sector_size = 0), F::SectorSize(0));
        assert_eq!(with(&|c| c.sector_size = 4097), F::SectorSize(4097));
        assert_eq!(with(&|c| c.stripe_length = 4096), F::StripeLength(4096));
        assert_eq!(with(&|c| c.length = 0), F::Empty);
        assert_eq!(with(&|c| c.length = 4097), F::UnalignedLength(4097));
        assert_eq!(fault(insert(MIB + 1, &good)), F::UnalignedAddress);
        assert_eq!(fault(insert(u64::MAX - 4095, &good)), F::EndOverflows);
        assert_eq!(
            fault(insert(MIB, &chunk(DATA, &[MIB + 1]))),
            F::UnalignedStripe(DeviceOffset(MIB + 1))
        );
        let far = u64::MAX - 4095;
        assert_eq!(
            fault(insert(MIB, &chunk(DATA, &[far]))),
            F::StripeOverflows(DeviceOffset(far))
        );
        let mut raid10 = chunk(DATA | BlockGroupFlags::RAID10, &[MIB, 4 * MIB]);
        raid10.sub_stripes = 1;
        assert_eq!(fault(insert(MIB, &raid10)), F::SubStripes(1));
        let mut raid0 = chunk(DATA | BlockGroupFlags::RAID0, &[MIB, 4 * MIB]);
        raid0.length = 65536;
        assert_eq!(fault(insert(MIB, &raid0)), F::UnalignedLength(65536));
    }

    #[test]
    fn overlaps_from_both_sides() {
        let good = chunk(DATA, &[MIB]);
        let map = ChunkMap::default()
            .with(Logical(4 * MIB), good.clone())
            .unwrap();
        map.with(Logical(4 * MIB), good.clone()).unwrap();
        map.with(Logical(3 * MIB), good.clone()).unwrap();
        map.with(Logical(5 * MIB), good.clone()).unwrap();
        for start in [3 * MIB + 4096, 5 * MIB - 4096] {
            assert_eq!(
                fault(map.with(Logical(start), good.clone())),
                ChunkFault::Overlaps(Logical(4 * MIB))
            );
        }
        let other = chunk(DATA, &[2 * MIB]);
        assert_eq!(
            fault(map.with(Logical(4 * MIB), other)),
            ChunkFault::Overlaps(Logical(4 * MIB))
        );
    }

    #[test]
    fn losses_are_counted_chunk_by_chunk() {
        let on = |flags: BlockGroupFlags, devices: &[u64]| {
            let mut made = chunk(flags, &vec![MIB; devices.len()]);
            made.length = 64 * 65536;
            for (stripe, device) in made.stripes.iter_mut().zip(devices) {
                stripe.device = DeviceId(*device);
            }
            made
        };
        let map = ChunkMap::default()
            .with(Logical(MIB), on(DATA | BlockGroupFlags::RAID1, &[1, 2]))
            .and_then(|map| map.with(Logical(16 * MIB), on(DATA, &[3])))
            .unwrap();
        let first = |lost: &[u64]| map.first_lost(|id| lost.contains(&id.get()));
        assert_eq!(first(&[]), None);
        assert_eq!(first(&[1]), None);
        assert_eq!(first(&[2, 4]), None);
        assert_eq!(first(&[1, 2]), Some((Logical(MIB), Profile::Raid1)));
        assert_eq!(first(&[3]), Some((Logical(16 * MIB), Profile::Single)));
    }

    #[test]
    fn stripes_against_devices() {
        let map = ChunkMap::default()
            .with(Logical(4 * MIB), chunk(DATA, &[MIB]))
            .unwrap();
        map.check_devices(|_| Some(2 * MIB)).unwrap();
        map.check_devices(|_| None).unwrap();
        assert!(matches!(
            fault(map.check_devices(|_| Some(2 * MIB - 1))),
            ChunkFault::BeyondDevice { .. }
        ));
        let map = map
            .with(Logical(8 * MIB), chunk(DATA, &[2 * MIB - 4096]))
            .unwrap();
        assert_eq!(
            fault(map.check_devices(|_| None)),
            ChunkFault::StripesOverlap {
                device: DeviceId(1),
                offset: DeviceOffset(2 * MIB - 4096),
                other: Logical(4 * MIB),
            }
        );
        let dup = chunk(DATA | BlockGroupFlags::DUP, &[MIB, MIB]);
        let map = ChunkMap::default().with(Logical(MIB), dup).unwrap();
        assert!(map.check_devices(|_| None).is_err());
    }
}
