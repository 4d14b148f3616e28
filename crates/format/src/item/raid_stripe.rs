//! Items of the RAID stripe tree.
//!
//! With this tree, the stripes of a data chunk do not say where its data lie.
//! Each written range has an item of its own that names the place of each copy.
//! The format uses the tree for data chunks of some profiles ([`is_in_tree`]);
//! all other chunks are mapped as usual.

use crate::bytes::{Reader, Writer};
use crate::item::chunk::BlockGroupFlags;
use crate::item::expect_end;
use crate::{DeviceId, DeviceOffset, ItemType, Key, Logical, ParseError, Physical};

/// Bytes that the place of one copy takes in an item.
const STRIDE: usize = 16;
/// Bytes before the places in items of Linux 6.7 to 6.10: an encoding that only
/// repeats what the chunk says.
const ENCODING: usize = 8;

/// Where a range of logical space lies: (logical, RAID_STRIPE, length).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaidStripe {
    /// One place for each copy.
    pub copies: Vec<Physical>,
}

/// True when the RAID stripe tree says where the data of a chunk with `flags`
/// lie.
#[must_use]
pub fn is_in_tree(flags: BlockGroupFlags) -> bool {
    const PROFILES: [BlockGroupFlags; 6] = [
        BlockGroupFlags::DUP,
        BlockGroupFlags::RAID0,
        BlockGroupFlags::RAID1,
        BlockGroupFlags::RAID1C3,
        BlockGroupFlags::RAID1C4,
        BlockGroupFlags::RAID10,
    ];
    let is_data_alone = flags.contains(BlockGroupFlags::DATA)
        && !flags.intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM);
    is_data_alone && PROFILES.contains(&flags.profile())
}

impl RaidStripe {
    /// The key of a range.
    #[must_use]
    pub const fn key(logical: Logical, length: u64) -> Key {
        Key::new(logical.0, ItemType::RAID_STRIPE, length)
    }

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError::TrailingBytes`] or [`ParseError::TooShort`] when the item
    /// does not consist of whole places.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "RAID stripe item";
        let mut r = Reader::new(WHAT, data);
        if data.len() % STRIDE == ENCODING {
            r.bytes(ENCODING)?;
        }
        let mut copies = Vec::with_capacity(r.remaining() / STRIDE);
        while r.remaining() >= STRIDE {
            copies.push(Physical {
                device: DeviceId(r.u64()?),
                offset: DeviceOffset(r.u64()?),
            });
        }
        expect_end(WHAT, &r)?;
        Ok(Self { copies })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(self.copies.len().saturating_mul(STRIDE));
        for copy in &self.copies {
            w.u64(copy.device.get()).u64(copy.offset.get());
        }
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        let place = |device, offset| Physical {
            device: DeviceId(device),
            offset: DeviceOffset(offset),
        };
        let item = RaidStripe {
            copies: vec![place(1, 1 << 20), place(2, 5 << 20)],
        };
        let bytes = item.encode();
        assert_eq!(RaidStripe::parse(&bytes).unwrap(), item);
        let mut older = vec![3, 0, 0, 0, 0, 0, 0, 0];
        older.extend(&bytes);
        assert_eq!(RaidStripe::parse(&older).unwrap(), item);
        assert!(RaidStripe::parse(&bytes[1..]).is_err());
    }

    #[test]
    fn striped_and_mirrored_data_are_in_the_tree() {
        let data = BlockGroupFlags::DATA;
        for profile in [
            BlockGroupFlags::DUP,
            BlockGroupFlags::RAID0,
            BlockGroupFlags::RAID1,
            BlockGroupFlags::RAID1C3,
            BlockGroupFlags::RAID1C4,
            BlockGroupFlags::RAID10,
        ] {
            assert!(is_in_tree(data | profile));
            assert!(!is_in_tree(BlockGroupFlags::METADATA | profile));
            assert!(!is_in_tree(data | BlockGroupFlags::METADATA | profile));
        }
        for flags in [
            data,
            data | BlockGroupFlags::RAID5,
            data | BlockGroupFlags::RAID6,
        ] {
            assert!(!is_in_tree(flags));
        }
    }
}
