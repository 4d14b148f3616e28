//! The map from logical to physical addresses: a plain immutable value.

use crate::error::VolumeError;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::{DeviceOffset, Logical, Physical};
use std::collections::BTreeMap;

/// Where part of a logical range lies.
#[derive(Clone, Debug)]
pub struct Mapping {
    /// Bytes of the range that this covers.
    pub length: u64,
    /// One place for each copy.
    pub copies: Vec<Physical>,
}

/// All chunks of a volume.
#[derive(Clone, Debug, Default)]
pub struct ChunkMap {
    chunks: BTreeMap<Logical, Chunk>,
}

/// Alignment of chunks and stripes.
const STRIPE: u64 = 64 << 10;

impl ChunkMap {
    /// A map with `chunk` too.
    ///
    /// # Errors
    /// [`VolumeError::BadChunk`], [`VolumeError::Profile`]
    pub fn with(&self, logical: Logical, chunk: Chunk) -> Result<Self, VolumeError> {
        let mut map = self.clone();
        map.insert(logical, chunk)?;
        Ok(map)
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
    /// [`VolumeError::BadChunk`], [`VolumeError::Profile`]
    pub fn insert(&mut self, logical: Logical, chunk: Chunk) -> Result<(), VolumeError> {
        check(logical, &chunk)?;
        if self.chunks.get(&logical) == Some(&chunk) {
            return Ok(());
        }
        let end = Logical(logical.get() + chunk.length);
        let overlaps = self
            .chunks
            .range(..end)
            .next_back()
            .is_some_and(|(start, other)| start.get() + other.length > logical.get());
        if overlaps {
            return Err(VolumeError::BadChunk {
                logical,
                reason: "it overlaps another",
            });
        }
        self.chunks.insert(logical, chunk);
        Ok(())
    }

    /// Chunks, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Logical, &Chunk)> {
        self.chunks.iter().map(|(logical, chunk)| (*logical, chunk))
    }

    /// The chunk that covers `logical`.
    #[must_use]
    pub fn find(&self, logical: Logical) -> Option<(Logical, &Chunk)> {
        let (start, chunk) = self.chunks.range(..=logical).next_back()?;
        (logical.get() - start.get() < chunk.length).then_some((*start, chunk))
    }

    /// Where the beginning of `logical..+length` lies.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`]
    pub fn map(&self, logical: Logical, length: u64) -> Result<Mapping, VolumeError> {
        let (start, chunk) = self
            .find(logical)
            .ok_or(VolumeError::Unmapped { logical, length })?;
        let within = logical.get() - start.get();
        Ok(Mapping {
            length: length.min(chunk.length - within),
            copies: chunk
                .stripes
                .iter()
                .map(|stripe| Physical {
                    device: stripe.device,
                    offset: DeviceOffset(stripe.offset.get() + within),
                })
                .collect(),
        })
    }
}

/// Errors unless a chunk from disk is possible and of a supported profile.
fn check(logical: Logical, chunk: &Chunk) -> Result<(), VolumeError> {
    let bad = |reason| Err(VolumeError::BadChunk { logical, reason });
    let profile = chunk.flags.profile();
    let copies = if profile.is_empty() {
        1
    } else if profile == BlockGroupFlags::DUP || profile == BlockGroupFlags::RAID1 {
        2
    } else if profile == BlockGroupFlags::RAID1C3 {
        3
    } else if profile == BlockGroupFlags::RAID1C4 {
        4
    } else {
        return Err(VolumeError::Profile {
            profile: chunk.flags.profile_name().to_owned(),
        });
    };
    if chunk.stripes.len() != copies {
        return bad("its number of stripes does not fit its profile");
    }
    if (chunk.flags & BlockGroupFlags::TYPE).is_empty() {
        return bad("it holds neither data nor metadata nor system");
    }
    let sector = u64::from(chunk.sector_size);
    if !sector.is_power_of_two() || !(512..=STRIPE).contains(&sector) {
        return bad("its sector size is impossible");
    }
    if chunk.length == 0
        || !chunk.length.is_multiple_of(sector)
        || !logical.get().is_multiple_of(sector)
    {
        return bad("its address or length is not a multiple of the sector size");
    }
    if chunk.stripe_length != STRIPE {
        return bad("its stripe length is not 64 KiB");
    }
    if logical.checked_add(chunk.length).is_none() {
        return bad("it ends beyond all addresses");
    }
    for stripe in &chunk.stripes {
        let aligned = stripe.offset.get().is_multiple_of(sector);
        if !aligned || stripe.offset.checked_add(chunk.length).is_none() {
            return bad("a stripe has an impossible place");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::DeviceId;
    use butterfs_format::item::chunk::Stripe;

    fn chunk(flags: BlockGroupFlags, offsets: &[u64]) -> Chunk {
        Chunk {
            length: 1 << 20,
            owner: 2,
            stripe_length: STRIPE,
            flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: 4096,
            sub_stripes: 1,
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

    #[test]
    fn maps_all_copies_and_cuts_at_the_end() {
        let mut map = ChunkMap::default();
        let dup = BlockGroupFlags::METADATA | BlockGroupFlags::DUP;
        map.insert(Logical(1 << 20), chunk(dup, &[4 << 20, 8 << 20]))
            .unwrap();
        let mapping = map.map(Logical((2 << 20) - 4096), 8192).unwrap();
        assert_eq!(mapping.length, 4096);
        let offsets: Vec<u64> = mapping.copies.iter().map(|p| p.offset.get()).collect();
        assert_eq!(offsets, [(5 << 20) - 4096, (9 << 20) - 4096]);
        assert!(map.map(Logical(2 << 20), 1).is_err());
        assert!(map.map(Logical(0), 1).is_err());
    }

    #[test]
    fn impossible_chunks_are_refused() {
        let mut map = ChunkMap::default();
        let good = chunk(BlockGroupFlags::DATA, &[1 << 20]);
        map.insert(Logical(1 << 20), good.clone()).unwrap();
        map.insert(Logical(1 << 20), good.clone()).unwrap();
        assert!(map.insert(Logical((1 << 20) + 4096), good.clone()).is_err());
        let wrong = [
            chunk(BlockGroupFlags::DATA, &[1 << 20, 2 << 20]),
            chunk(BlockGroupFlags::DUP, &[1 << 20, 2 << 20]),
            chunk(BlockGroupFlags::DATA | BlockGroupFlags::RAID0, &[1 << 20]),
            Chunk {
                length: 0,
                ..good.clone()
            },
            Chunk {
                length: 4097,
                ..good.clone()
            },
            Chunk {
                stripe_length: 4096,
                ..good.clone()
            },
            Chunk {
                sector_size: 0,
                ..good.clone()
            },
            chunk(BlockGroupFlags::DATA, &[u64::MAX - 4095]),
        ];
        for chunk in wrong {
            assert!(map.insert(Logical(1 << 30), chunk).is_err());
        }
        assert!(map.insert(Logical(u64::MAX - 4095), good).is_err());
    }
}
