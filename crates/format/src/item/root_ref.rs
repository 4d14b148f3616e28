//! ROOT_REF and ROOT_BACKREF: where a subvolume hangs in another.
//!
//! The same body lies under (parent tree, ROOT_REF, child tree) and (child
//! tree, ROOT_BACKREF, parent tree).

use crate::bytes::{Reader, Writer};
use crate::item::{expect_end, name};
use crate::{InodeNumber, ParseError};

/// The name of a subvolume in its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RootRef<'a> {
    /// Directory in the parent.
    pub directory: InodeNumber,
    /// Index of the entry there.
    pub index: u64,
    /// Name.
    pub name: &'a [u8],
}

impl<'a> RootRef<'a> {
    /// Bytes before the name.
    pub const HEADER: usize = 18;

    /// Reads an item.
    ///
    /// # Errors
    /// A wrong size; a name that is empty or longer than 255 bytes.
    pub fn parse(data: &'a [u8]) -> Result<Self, ParseError> {
        const WHAT: &str = "root reference";
        let mut r = Reader::new(WHAT, data);
        let directory = InodeNumber(r.u64()?);
        let index = r.u64()?;
        let length = r.u16()?;
        let name = name(WHAT, &mut r, length)?;
        expect_end(WHAT, &r)?;
        Ok(Self {
            directory,
            index,
            name,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(Self::HEADER.saturating_add(self.name.len()));
        w.u64(self.directory.get())
            .u64(self.index)
            .u16(super::inode::length(self.name))
            .bytes(self.name);
        w.finish()
    }
}
