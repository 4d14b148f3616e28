//! EXTENT_CSUM: checksums of data sectors.
//!
//! An item is a row of checksums without a header; its key is
//! ([`object::EXTENT_CSUM`], EXTENT_CSUM, logical address of the first sector). Items may
//! begin and end anywhere, also inside an extent.

use crate::node::{HEADER_SIZE, ITEM_SIZE};
use crate::{ChecksumType, ItemType, Key, Logical, ParseError, object};

/// Key of the item that begins at `logical`.
#[must_use]
pub const fn key(logical: Logical) -> Key {
    Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, logical.0)
}

/// The sectors that one item covers, and their checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CsumItem<'a> {
    /// First sector.
    pub start: Logical,
    /// First byte after the last sector.
    pub end: Logical,
    sector_size: u32,
    checksum: ChecksumType,
    bytes: &'a [u8],
}

impl<'a> CsumItem<'a> {
    /// Reads the item of `key`. `sector_size` is the volume's.
    ///
    /// # Errors
    /// [`ParseError::BadValue`] for another object or type, an address between
    /// sectors or an item without an end in the address space;
    /// [`ParseError::TrailingBytes`] for a part of a checksum;
    /// [`ParseError::TooShort`] for none.
    pub fn parse(
        key: &Key,
        bytes: &'a [u8],
        checksum: ChecksumType,
        sector_size: u32,
    ) -> Result<Self, ParseError> {
        const WHAT: &str = "checksum item";
        let bad = |field, value| ParseError::BadValue {
            what: WHAT,
            field,
            value,
        };
        if key.objectid != object::EXTENT_CSUM {
            return Err(bad("object", key.objectid));
        }
        if key.item_type != ItemType::EXTENT_CSUM {
            return Err(bad("item type", u64::from(key.item_type.0)));
        }
        let sector = u64::from(sector_size);
        if key.offset.checked_rem(sector) != Some(0) {
            return Err(bad("address", key.offset));
        }
        let extra = bytes.len().checked_rem(checksum.size()).unwrap_or(0);
        if extra != 0 {
            return Err(ParseError::TrailingBytes { what: WHAT, extra });
        }
        if bytes.is_empty() {
            return Err(ParseError::TooShort {
                what: WHAT,
                need: checksum.size(),
                have: 0,
            });
        }
        let end = entries(bytes.len(), checksum)
            .checked_mul(sector)
            .and_then(|length| key.offset.checked_add(length))
            .ok_or_else(|| bad("address", key.offset))?;
        Ok(Self {
            start: Logical(key.offset),
            end: Logical(end),
            sector_size,
            checksum,
            bytes,
        })
    }

    /// Checksum of the sector that holds `logical`; `None` outside the item.
    #[must_use]
    pub fn find(&self, logical: Logical) -> Option<&'a [u8]> {
        let distance = logical.get().checked_sub(self.start.get())?;
        let index = distance.checked_div(u64::from(self.sector_size))?;
        let index = usize::try_from(index).ok()?;
        self.bytes.chunks_exact(self.checksum.size()).nth(index)
    }
}

/// Checksums in an item of `size` bytes.
#[must_use]
pub fn entries(size: usize, checksum: ChecksumType) -> u64 {
    let count = size.checked_div(checksum.size()).unwrap_or(0);
    u64::try_from(count).unwrap_or(u64::MAX)
}

/// The most checksums that an item may hold: as many as fit in the body of a
/// leaf beside two item descriptors and one more checksum, and at most 4096.
/// The kernel has the same limit with 4 KiB pages.
#[must_use]
pub fn entries_max(node_size: u32, checksum: ChecksumType) -> usize {
    let body = usize::try_from(node_size)
        .unwrap_or(usize::MAX)
        .saturating_sub(HEADER_SIZE)
        .saturating_sub(ITEM_SIZE.saturating_mul(2));
    body.checked_div(checksum.size())
        .unwrap_or(0)
        .saturating_sub(1)
        .min(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_sectors_and_refuses_what_cannot_be() {
        let bytes: Vec<u8> = (0..12).collect();
        let parse = |key: Key, bytes| CsumItem::parse(&key, bytes, ChecksumType::Crc32c, 4096);
        let item = parse(key(Logical(8192)), &bytes).unwrap();
        assert_eq!((item.start, item.end), (Logical(8192), Logical(20480)));
        assert_eq!(item.find(Logical(8191)), None);
        assert_eq!(item.find(Logical(12289)), Some(&bytes[4..8]));
        assert_eq!(item.find(Logical(20480)), None);
        assert!(parse(key(Logical(8193)), &bytes).is_err());
        assert!(parse(key(Logical(8192)), &bytes[..11]).is_err());
        assert!(parse(key(Logical(8192)), &[]).is_err());
        assert!(parse(key(Logical(u64::MAX - 4095)), &bytes).is_err());
        assert!(parse(Key::new(1, ItemType::EXTENT_CSUM, 0), &bytes).is_err());
        assert!(parse(Key::new(object::EXTENT_CSUM, ItemType::DIR_ITEM, 0), &bytes).is_err());
    }

    #[test]
    fn two_full_items_fit_no_leaf_but_one_does() {
        for node_size in [4096, 16384, 65536_u32] {
            for (checksum, ..) in ChecksumType::TABLE {
                let bytes = entries_max(node_size, checksum) * checksum.size();
                assert!(bytes > 0);
                assert!(bytes + ITEM_SIZE + HEADER_SIZE <= node_size as usize);
            }
        }
        assert_eq!(entries_max(16384, ChecksumType::Crc32c), 4057);
    }
}
