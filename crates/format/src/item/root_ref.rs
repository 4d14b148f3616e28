//! Where a subvolume lies: ROOT_REF (under its parent) and ROOT_BACKREF (under
//! itself), which share one layout.

use super::inode::length;
use crate::bytes::{Reader, Writer};
use crate::{InodeNumber, ParseError};

/// A ROOT_REF or ROOT_BACKREF item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// Directory of the parent subvolume that has the entry.
    pub directory: InodeNumber,
    /// Index of the entry in that directory.
    pub index: u64,
    /// Name of the entry.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Bytes before the name.
    pub const HEADER: usize = 18;

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &'a [u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("subvolume reference", data);
        let directory = InodeNumber(r.u64()?);
        let index = r.u64()?;
        let name_length = r.u16()?;
        if name_length == 0 || name_length > 255 {
            return Err(ParseError::BadValue {
                what: "subvolume reference",
                field: "name length",
                value: u64::from(name_length),
            });
        }
        Ok(Self {
            directory,
            index,
            name: r.bytes(usize::from(name_length))?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::HEADER.saturating_add(self.name.len()));
        w.u64(self.directory.get())
            .u64(self.index)
            .u16(length(self.name))
            .bytes(self.name);
        w.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ROOT_BACKREF (256 ROOT_BACKREF 5) of a volume that the kernel made,
    /// after `btrfs subvolume create base`.
    const GOLDEN: &[u8] = b"\x00\x01\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x04\0base";

    #[test]
    fn golden_bytes_round_trip_and_hostile_ones_do_not_parse() {
        let reference = RootRef::parse(GOLDEN).unwrap();
        assert_eq!(
            reference,
            RootRef {
                directory: InodeNumber::ROOT,
                index: 2,
                name: b"base",
            }
        );
        assert_eq!(reference.encode(), GOLDEN);
        for end in 0..GOLDEN.len() {
            assert!(RootRef::parse(&GOLDEN[..end]).is_err());
        }
        let mut nameless = GOLDEN.to_vec();
        nameless[16] = 0;
        assert!(RootRef::parse(&nameless).is_err());
    }
}
