//! File extents: where a range of a file lies.

use crate::bytes::{Reader, Writer};
use crate::compression::Algorithm;
use crate::{Generation, Logical, ParseError};

/// Part of a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentPlace {
    /// First byte of the extent; 0 for a hole.
    pub disk: Logical,
    /// Bytes of the extent on disk.
    pub disk_length: u64,
    /// Where the part begins in the extent's uncompressed bytes.
    pub offset: u64,
    /// Bytes of the part.
    pub length: u64,
}

/// What a file extent holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileExtentBody<'a> {
    /// The (perhaps compressed) data themselves.
    Inline(&'a [u8]),
    /// Data elsewhere, or a hole.
    Regular(ExtentPlace),
    /// Space that reads as zeros.
    Prealloc(ExtentPlace),
}

/// A file extent item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent<'a> {
    /// Generation that made the extent.
    pub generation: Generation,
    /// Bytes of the whole extent when decompressed.
    pub ram_bytes: u64,
    /// Compression, if any.
    pub compression: Option<Algorithm>,
    /// Encryption; always 0.
    pub encryption: u8,
    /// Other encoding; always 0.
    pub other_encoding: u16,
    /// What it holds.
    pub body: FileExtentBody<'a>,
}

impl<'a> FileExtent<'a> {
    /// Bytes before inline data.
    pub const INLINE_HEADER: usize = 21;
    /// Bytes of an item that is not inline.
    pub const REGULAR_SIZE: usize = 53;

    /// An inline extent without compression.
    #[must_use]
    pub fn inline(generation: Generation, data: &'a [u8]) -> Self {
        Self {
            generation,
            ram_bytes: u64::try_from(data.len()).unwrap_or(u64::MAX),
            compression: None,
            encryption: 0,
            other_encoding: 0,
            body: FileExtentBody::Inline(data),
        }
    }

    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "file extent";
        let bad = |field, value| ParseError::BadValue {
            what: WHAT,
            field,
            value,
        };
        let mut r = Reader::new(WHAT, data);
        let generation = Generation(r.u64()?);
        let ram_bytes = r.u64()?;
        let number = r.u8()?;
        let compression = match number {
            0 => None,
            _ => Some(
                Algorithm::from_number(number)
                    .ok_or_else(|| bad("compression", u64::from(number)))?,
            ),
        };
        let encryption = r.u8()?;
        let other_encoding = r.u16()?;
        if encryption != 0 {
            return Err(bad("encryption", u64::from(encryption)));
        }
        if other_encoding != 0 {
            return Err(bad("other encoding", u64::from(other_encoding)));
        }
        let kind = r.u8()?;
        let body = match kind {
            0 => {
                let inline = r.rest();
                let length = u64::try_from(inline.len()).unwrap_or(u64::MAX);
                if compression.is_none() && length != ram_bytes {
                    return Err(bad("inline length", length));
                }
                FileExtentBody::Inline(inline)
            }
            1 | 2 => {
                let place = ExtentPlace {
                    disk: Logical(r.u64()?),
                    disk_length: r.u64()?,
                    offset: r.u64()?,
                    length: r.u64()?,
                };
                if r.remaining() != 0 {
                    return Err(ParseError::TrailingBytes {
                        what: WHAT,
                        extra: r.remaining(),
                    });
                }
                let end = place.offset.checked_add(place.length);
                let whole = end.is_some_and(|end| end <= ram_bytes);
                if place.length == 0 || (place.disk.get() != 0 && !whole) {
                    return Err(bad("length", place.length));
                }
                if place.disk.checked_add(place.disk_length).is_none() {
                    return Err(bad("disk length", place.disk_length));
                }
                if kind == 1 {
                    FileExtentBody::Regular(place)
                } else {
                    FileExtentBody::Prealloc(place)
                }
            }
            other => return Err(bad("type", u64::from(other))),
        };
        Ok(Self {
            generation,
            ram_bytes,
            compression,
            encryption,
            other_encoding,
            body,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::REGULAR_SIZE);
        w.u64(self.generation.get())
            .u64(self.ram_bytes)
            .u8(self.compression.map_or(0, Algorithm::number))
            .u8(self.encryption)
            .u16(self.other_encoding);
        let place = match &self.body {
            FileExtentBody::Inline(data) => {
                w.u8(0).bytes(data);
                return w.finish();
            }
            FileExtentBody::Regular(place) => {
                w.u8(1);
                place
            }
            FileExtentBody::Prealloc(place) => {
                w.u8(2);
                place
            }
        };
        w.u64(place.disk.get())
            .u64(place.disk_length)
            .u64(place.offset)
            .u64(place.length);
        w.finish()
    }
}
