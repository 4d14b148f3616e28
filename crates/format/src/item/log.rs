//! Items that only fsync logs hold.

use crate::ParseError;
use crate::bytes::{Reader, Writer};
use crate::item::expect_end;

/// DIR_LOG_INDEX: the log knows all entries of a directory whose index lies
/// between the key's offset and `end`. DIR_LOG_ITEM said the same of hashes on
/// old kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirLogItem {
    /// Last index of the range, included.
    pub end: u64,
}

impl DirLogItem {
    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size.
    pub fn parse(data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("directory log item", data);
        let end = r.u64()?;
        expect_end("directory log item", &r)?;
        Ok(Self { end })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(8);
        w.u64(self.end);
        w.finish()
    }
}
