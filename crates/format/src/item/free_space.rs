//! Items of the free-space tree.
//!
//! Owns FREE_SPACE_INFO, the bits of FREE_SPACE_BITMAP and the sizes at which a
//! block group turns from extents to bitmaps and back. FREE_SPACE_EXTENT items
//! are keys without a body: (first byte, FREE_SPACE_EXTENT, bytes).

use crate::bytes::{Reader, Writer};
use crate::item::expect_end;
use crate::node::ITEM_SIZE;
use crate::{ItemType, Key, ParseError, bit_flags};
use std::ops::Range;

/// Bytes of a full bitmap.
pub const BITMAP_SIZE: usize = 256;

bit_flags!(
    /// How a block group's free space is kept.
    FreeSpaceFlags: u32 {
        /// In bitmaps, not in extents.
        USING_BITMAPS = 1 << 0, "USING_BITMAPS";
    }
);

/// FREE_SPACE_INFO: key (first byte of the block group, type, its length).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceInfo {
    /// Free ranges, also when they lie in bitmaps.
    pub extents: u32,
    /// How they are kept.
    pub flags: FreeSpaceFlags,
}

impl FreeSpaceInfo {
    /// Bytes of an item.
    pub const SIZE: usize = 8;

    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size; [`ParseError::BadValue`] for unknown flags.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "free-space info";
        let mut r = Reader::new(WHAT, data);
        let extents = r.u32()?;
        let flags = FreeSpaceFlags(r.u32()?);
        expect_end(WHAT, &r)?;
        if !flags.without(FreeSpaceFlags::USING_BITMAPS).is_empty() {
            return Err(ParseError::BadValue {
                what: WHAT,
                field: "flags",
                value: u64::from(flags.0),
            });
        }
        Ok(Self { extents, flags })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::SIZE);
        w.u32(self.extents).u32(self.flags.0);
        w.finish()
    }
}

/// Bytes of logical space that a full bitmap covers.
#[must_use]
pub fn bitmap_span(sector_size: u32) -> u64 {
    u64::from(sector_size).saturating_mul(BITS)
}

/// Bits of a full bitmap: 256 bytes.
const BITS: u64 = 2048;

/// A FREE_SPACE_BITMAP: one bit for each sector, the lowest bit of the first
/// byte first; a set bit is a free sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreeSpaceBitmap<'a> {
    start: u64,
    bits: u64,
    sector_size: u64,
    bytes: &'a [u8],
}

impl<'a> FreeSpaceBitmap<'a> {
    /// Reads the item of `key`. `sector_size` is the volume's.
    ///
    /// # Errors
    /// [`ParseError::BadValue`] for another type, or a length that is zero, not
    /// of whole sectors, longer than [`bitmap_span`] or past the end of the
    /// address space; a size that does not fit the length.
    pub fn parse(key: &Key, bytes: &'a [u8], sector_size: u32) -> Result<Self, ParseError> {
        const WHAT: &str = "free-space bitmap";
        let bad = |field, value| ParseError::BadValue {
            what: WHAT,
            field,
            value,
        };
        if key.item_type != ItemType::FREE_SPACE_BITMAP {
            return Err(bad("item type", u64::from(key.item_type.0)));
        }
        let length = key.offset;
        let sector = u64::from(sector_size);
        let whole = length.checked_rem(sector) == Some(0);
        if !whole || length == 0 || length > bitmap_span(sector_size) {
            return Err(bad("length", length));
        }
        if key.objectid.checked_add(length).is_none() {
            return Err(bad("address", key.objectid));
        }
        let bits = length.checked_div(sector).unwrap_or(0);
        let need = usize::try_from(bits.div_ceil(8)).unwrap_or(usize::MAX);
        match bytes.len() {
            have if have < need => Err(ParseError::TooShort {
                what: WHAT,
                need,
                have,
            }),
            have if have > need => Err(ParseError::TrailingBytes {
                what: WHAT,
                extra: have.saturating_sub(need),
            }),
            _ => Ok(Self {
                start: key.objectid,
                bits,
                sector_size: sector,
                bytes,
            }),
        }
    }

    fn is_free(&self, bit: u64) -> bool {
        let index = usize::try_from(bit >> 3).unwrap_or(usize::MAX);
        let byte = self.bytes.get(index).copied().unwrap_or(0);
        bit < self.bits && (byte >> (bit & 7)) & 1 == 1
    }

    /// Free ranges of logical space, ascending and apart.
    #[must_use]
    pub fn free_ranges(&self) -> Vec<Range<u64>> {
        let address = |bit: u64| {
            self.start
                .saturating_add(bit.saturating_mul(self.sector_size))
        };
        let mut ranges = Vec::new();
        let mut begin = None;
        for bit in 0..=self.bits {
            match (self.is_free(bit), begin) {
                (true, None) => begin = Some(bit),
                (false, Some(first)) => {
                    ranges.push(address(first)..address(bit));
                    begin = None;
                }
                _ => {}
            }
        }
        ranges
    }
}

/// Free ranges at which a block group changes its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapThresholds {
    /// With more extents than this it turns to bitmaps.
    pub to_bitmaps_above: u32,
    /// With fewer than this it turns back to extents.
    pub to_extents_below: u32,
}

impl BitmapThresholds {
    /// Thresholds of a block group of `length` bytes. It turns to bitmaps when
    /// extents would take more room in the tree, and back when it has 100
    /// extents fewer than that.
    #[must_use]
    pub fn new(length: u64, sector_size: u32) -> Self {
        let bitmaps = match bitmap_span(sector_size) {
            0 => 0,
            span => length.div_ceil(span),
        };
        let each = u64::try_from(ITEM_SIZE.saturating_add(BITMAP_SIZE)).unwrap_or(u64::MAX);
        let item = u64::try_from(ITEM_SIZE).unwrap_or(u64::MAX);
        let high = bitmaps.saturating_mul(each).checked_div(item).unwrap_or(0);
        let high = u32::try_from(high).unwrap_or(u32::MAX);
        Self {
            to_bitmaps_above: high,
            to_extents_below: high.saturating_sub(100),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_ranges() {
        let key = Key::new(1 << 20, ItemType::FREE_SPACE_BITMAP, 12 * 4096);
        let bytes = [0b1000_0110, 0b1111_1001];
        let bitmap = FreeSpaceBitmap::parse(&key, &bytes, 4096).unwrap();
        let at = |sector: u64| (1 << 20) + sector * 4096;
        // The four bits after the end count for nothing.
        assert_eq!(
            bitmap.free_ranges(),
            [at(1)..at(3), at(7)..at(9), at(11)..at(12)]
        );
    }

    #[test]
    fn impossible_bitmaps_are_refused() {
        let parse = |start, length, size: usize| {
            let key = Key::new(start, ItemType::FREE_SPACE_BITMAP, length);
            FreeSpaceBitmap::parse(&key, &vec![255; size], 4096).is_ok()
        };
        assert!(parse(0, 2048 * 4096, 256));
        assert!(!parse(0, 2049 * 4096, 257));
        assert!(!parse(0, 0, 0));
        assert!(!parse(0, 4095, 1));
        assert!(!parse(0, 8 * 4096, 2));
        assert!(!parse(0, 9 * 4096, 1));
        assert!(!parse(u64::MAX - 4095, 8 * 4096, 1));
        let key = Key::new(0, ItemType::FREE_SPACE_EXTENT, 4096);
        assert!(FreeSpaceBitmap::parse(&key, &[1], 4096).is_err());
        assert!(FreeSpaceInfo::parse(&[0, 0, 0, 0, 2, 0, 0, 0]).is_err());
        assert!(FreeSpaceInfo::parse(&[0; 7]).is_err());
        assert!(FreeSpaceInfo::parse(&[0; 9]).is_err());
    }

    #[test]
    fn a_group_of_one_gibibyte_turns_after_1438_extents() {
        let thresholds = BitmapThresholds::new(1 << 30, 4096);
        assert_eq!(thresholds.to_bitmaps_above, 1438);
        assert_eq!(thresholds.to_extents_below, 1338);
    }
}
