//! Block group items: how much of a chunk is used.

use super::chunk::BlockGroupFlags;
use super::expect_end;
use crate::ParseError;
use crate::bytes::{Reader, Writer};

/// Object that owns all chunks.
pub const CHUNK_OBJECTID: u64 = 256;

/// A block group item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockGroupItem {
    /// Bytes used by extents.
    pub used: u64,
    /// Always [`CHUNK_OBJECTID`].
    pub chunk_objectid: u64,
    /// As in the chunk.
    pub flags: BlockGroupFlags,
}

impl BlockGroupItem {
    /// Reads an item.
    ///
    /// # Errors
    /// [`ParseError`]
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("block group item", data);
        let item = Self {
            used: r.u64()?,
            chunk_objectid: r.u64()?,
            flags: BlockGroupFlags(r.u64()?),
        };
        expect_end("block group item", &r)?;
        Ok(item)
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(24);
        w.u64(self.used).u64(self.chunk_objectid).u64(self.flags.0);
        w.finish()
    }
}
