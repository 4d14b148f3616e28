//! Directory listings in the kernel's format.
//!
//! Owns layout, padding and the end of the buffer. The file system decides
//! order and positions.

use super::Entry;
use crate::protocol::layout::{Dirent, EntryOut};
use crate::protocol::wire::{Wire, Writer};

/// The type of a directory's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the types of inode(7)")]
pub enum FileType {
    Unknown,
    Fifo,
    CharacterDevice,
    Directory,
    BlockDevice,
    Regular,
    Symlink,
    Socket,
}

impl FileType {
    /// The type in `st_mode`.
    #[must_use]
    pub const fn from_mode(mode: u32) -> Self {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFCHR => Self::CharacterDevice,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFBLK => Self::BlockDevice,
            libc::S_IFREG => Self::Regular,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFSOCK => Self::Socket,
            _ => Self::Unknown,
        }
    }

    /// The number in `d_type`.
    const fn number(self) -> u32 {
        match self {
            Self::Unknown => 0,
            Self::Fifo => 1,
            Self::CharacterDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::Regular => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }
}

/// One name of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The inode number programs see.
    pub ino: u64,
    /// The position after this entry, where a listing continues. Not zero, and
    /// below 2^63.
    pub next: u64,
    /// Its type.
    pub kind: FileType,
    /// Its name.
    pub name: &'a [u8],
}

/// Whether an entry went into a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Push {
    /// It did.
    Added,
    /// There is no room; the kernel asks again from the last entry's `next`.
    Full,
}

/// A listing without attributes.
#[derive(Debug)]
pub struct DirectoryBuffer<'a> {
    writer: Writer<'a>,
    size: usize,
}

/// A listing with attributes. Every entry that was added counts as a lookup
/// of its node, except `.` and `..`.
#[derive(Debug)]
pub struct DirectoryPlusBuffer<'a>(DirectoryBuffer<'a>);

fn padding(len: usize) -> usize {
    len.next_multiple_of(8) - len
}

impl<'a> DirectoryBuffer<'a> {
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        let size = room.len();
        Self {
            writer: Writer::new(room),
            size,
        }
    }

    /// Adds an entry if there is room.
    pub fn push(&mut self, entry: &DirectoryEntry<'_>) -> Push {
        self.push_after(None, entry)
    }

    fn push_after(&mut self, node: Option<&EntryOut>, entry: &DirectoryEntry<'_>) -> Push {
        let head = Dirent::SIZE + node.map_or(0, |_| EntryOut::SIZE);
        let len = head + entry.name.len();
        let Ok(namelen) = u32::try_from(entry.name.len()) else {
            return Push::Full;
        };
        if self.size - self.writer.len() < len + padding(len) {
            return Push::Full;
        }
        if let Some(node) = node {
            self.writer.store(node);
        }
        self.writer.store(&Dirent {
            ino: entry.ino,
            off: entry.next,
            namelen,
            kind: entry.kind.number(),
        });
        self.writer.bytes(entry.name);
        self.writer.bytes(&[0; 8][..padding(len)]);
        Push::Added
    }

    pub(crate) fn len(&self) -> usize {
        self.writer.len()
    }
}

impl<'a> DirectoryPlusBuffer<'a> {
    pub(crate) fn new(room: &'a mut [u8]) -> Self {
        Self(DirectoryBuffer::new(room))
    }

    /// Adds an entry and its node if there is room. A node of zero adds only
    /// the name, without a lookup; `.` and `..` need that.
    pub fn push(&mut self, entry: &DirectoryEntry<'_>, node: &Entry) -> Push {
        self.0.push_after(Some(&node.wire()), entry)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_stop_at_the_end() {
        let mut room = [0xff; 24 + 8 + 24 + 8 + 7];
        let entry = DirectoryEntry {
            ino: 7,
            next: 1,
            kind: FileType::Regular,
            name: b"abc",
        };
        let mut listing = DirectoryBuffer::new(&mut room);
        assert_eq!(listing.push(&entry), Push::Added);
        assert_eq!(
            listing.push(&DirectoryEntry {
                name: b"12345678",
                ..entry
            }),
            Push::Added
        );
        assert_eq!(
            listing.push(&DirectoryEntry { name: b"", ..entry }),
            Push::Full
        );
        assert_eq!(listing.len(), 64);
        assert_eq!(&room[24..32], b"abc\0\0\0\0\0");
        assert_eq!(&room[20..24], &8u32.to_ne_bytes());
    }

    #[test]
    fn plus_entries_carry_the_node() {
        let mut room = [0; 160];
        let entry = DirectoryEntry {
            ino: 7,
            next: 1,
            kind: FileType::Directory,
            name: b"abc",
        };
        let mut listing = DirectoryPlusBuffer::new(&mut room);
        let node = Entry {
            node: crate::NodeId(9),
            ..Entry::absent(super::super::FOREVER)
        };
        assert_eq!(listing.push(&entry, &node), Push::Added);
        assert_eq!(listing.push(&entry, &node), Push::Full);
        assert_eq!(listing.len(), 160);
        assert_eq!(&room[..8], &9u64.to_ne_bytes());
        assert_eq!(&room[152..155], b"abc");
    }
}
