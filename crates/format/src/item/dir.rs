//! Directory entries and extended attributes, which share one layout.

use super::inode::length;
use super::name;
use crate::bytes::{Reader, Writer};
use crate::{Generation, Key, ParseError};

/// Kind of what an entry points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory or subvolume.
    Directory,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Fifo.
    Fifo,
    /// Socket.
    Socket,
    /// Symbolic link.
    Symlink,
    /// Extended attribute.
    Xattr,
}

impl FileType {
    /// All kinds with their stored number.
    pub const TABLE: [(Self, u8); 8] = [
        (Self::Regular, 1),
        (Self::Directory, 2),
        (Self::CharDevice, 3),
        (Self::BlockDevice, 4),
        (Self::Fifo, 5),
        (Self::Socket, 6),
        (Self::Symlink, 7),
        (Self::Xattr, 8),
    ];

    /// Its stored number.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
            Self::Xattr => 8,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::TABLE
            .iter()
            .find(|(_, stored)| *stored == number)
            .map(|(kind, _)| *kind)
    }
}

/// One entry of a DIR_ITEM, DIR_INDEX or XATTR_ITEM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Key of what it points to; zero for attributes.
    pub location: Key,
    /// Generation that made it.
    pub generation: Generation,
    /// Name.
    pub name: &'a [u8],
    /// Value, for attributes.
    pub data: &'a [u8],
    /// Kind.
    pub kind: FileType,
}

impl DirEntry<'_> {
    /// Bytes before the name.
    pub const HEADER: usize = 30;

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let size = Self::HEADER
            .saturating_add(self.name.len())
            .saturating_add(self.data.len());
        let mut w = Writer::with_capacity(size);
        w.bytes(&self.location.to_bytes())
            .u64(self.generation.get())
            .u16(length(self.data))
            .u16(length(self.name))
            .u8(self.kind.number())
            .bytes(self.name)
            .bytes(self.data);
        w.finish()
    }
}

/// Entries of one item; several share a hash.
#[derive(Clone, Debug)]
pub struct DirEntries<'a>(Reader<'a>);

impl<'a> DirEntries<'a> {
    /// Entries in `data`.
    #[must_use]
    pub const fn new(data: &'a [u8]) -> Self {
        Self(Reader::new("directory entry", data))
    }

    fn entry(&mut self) -> Result<DirEntry<'a>, ParseError> {
        let location = Key::parse(&mut self.0)?;
        let generation = Generation(self.0.u64()?);
        let data_length = self.0.u16()?;
        let name_length = self.0.u16()?;
        let number = self.0.u8()?;
        let kind = FileType::from_number(number).ok_or(ParseError::BadValue {
            what: "directory entry",
            field: "type",
            value: u64::from(number),
        })?;
        if data_length != 0 && kind != FileType::Xattr {
            return Err(ParseError::BadValue {
                what: "directory entry",
                field: "data length",
                value: u64::from(data_length),
            });
        }
        Ok(DirEntry {
            location,
            generation,
            kind,
            name: name("directory entry", &mut self.0, name_length)?,
            data: self.0.bytes(usize::from(data_length))?,
        })
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = Result<DirEntry<'a>, ParseError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.remaining() == 0 {
            return None;
        }
        let entry = self.entry();
        if entry.is_err() {
            self.0 = Reader::new("directory entry", &[]);
        }
        Some(entry)
    }
}
