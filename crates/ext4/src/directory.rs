//! Entries of directories.

use crate::bytes::{length, memory, u8, u16, u32};
use crate::checksum::crc32c;
use crate::error::{Error, Fault, Place};
use crate::inode::InodeFlags;
use crate::{FileSystem, Incompatible, Inode, InodeNumber, Kind, Mapping, Source, State};

/// What an entry says that its inode is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// It does not say; the inode does.
    Unknown,
    /// This.
    Known(Kind),
}

impl EntryKind {
    fn of_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Known(Kind::File),
            2 => Self::Known(Kind::Directory),
            3 => Self::Known(Kind::CharacterDevice),
            4 => Self::Known(Kind::BlockDevice),
            5 => Self::Known(Kind::Fifo),
            6 => Self::Known(Kind::Socket),
            7 => Self::Known(Kind::Link),
            _ => Self::Unknown,
        }
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// The name: 1 to 255 bytes without a slash or a zero byte, and neither
    /// `.` nor `..`.
    pub name: &'a [u8],
    /// The inode; never 0.
    pub inode: InodeNumber,
    /// What that is.
    pub kind: EntryKind,
}

/// Gets the entries of a directory.
type Visit<'v, E> = &'v mut dyn FnMut(DirectoryEntry<'_>) -> Result<(), E>;

/// Bytes before a name.
const HEAD: usize = 8;
/// Bytes of the checksum's entry at the end of a block, and its kind.
const TAIL: usize = 12;
const TAIL_KIND: u8 = 0xde;

impl<S: Source> FileSystem<S> {
    /// Visits the entries of a directory, but `.` and `..`, in the order in
    /// which they lie on the disk.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`], and what `visit` returns.
    pub fn entries<E: From<Error>>(&self, directory: &Inode, visit: Visit<'_, E>) -> Result<(), E> {
        let number = directory.number;
        if directory.kind()? != Kind::Directory {
            let place = Place::Inode(number);
            return Err(place
                .number("the mode of a directory", directory.mode)
                .into());
        }
        if let Some(data) = self.inline_data(directory)? {
            // The parent's inode number comes first, then the entries. Those in
            // the attribute are a list of their own.
            const PARENT: usize = 4;
            let (map, more) = data.split_at(data.len().min(crate::inode::MAP));
            let first = map.get(PARENT..).unwrap_or_default();
            self.list(first, number, 0, visit)?;
            return self.list(more, number, 0, visit);
        }
        let blocks = directory.size.div_ceil(self.superblock.block_size());
        let mut bytes = Vec::new();
        self.mappings(directory, &mut |mapping: Mapping| {
            if mapping.state == State::Unwritten {
                return Ok(());
            }
            let within = blocks.saturating_sub(mapping.file_block);
            for at in 0..mapping.blocks.min(within) {
                let block = mapping.block.saturating_add(at);
                let file_block = mapping.file_block.saturating_add(at);
                self.read_block(block, &mut bytes)?;
                self.verify_block(&bytes, directory, file_block)?;
                self.list(&bytes, number, file_block, visit)?;
            }
            Ok(())
        })
    }

    /// Verifies the checksum of a block: of one with entries, or of one of the
    /// hash tree.
    fn verify_block(&self, bytes: &[u8], directory: &Inode, file_block: u64) -> Result<(), Error> {
        if !self.superblock.has_checksums() {
            return Ok(());
        }
        let place = Place::Directory(directory.number, file_block);
        // One empty entry hides a block of the tree from old drivers.
        let is_hidden =
            u32(bytes, 0) == 0 && whole_length(u16(bytes, 4), bytes.len()) == bytes.len();
        let is_tree = directory.flags.has(InodeFlags::INDEX) && (file_block == 0 || is_hidden);
        let matches = if is_tree {
            matches_of_tree(bytes, directory.seed)
        } else {
            let (covered, tail) = bytes.split_at(bytes.len().saturating_sub(TAIL));
            usize::from(u16(tail, 4)) == TAIL
                && u8(tail, 7) == TAIL_KIND
                && crc32c(directory.seed, covered) == u32(tail, 8)
        };
        match matches {
            true => Ok(()),
            false => Err(place.has(Fault::Checksum).into()),
        }
    }

    /// Visits the entries of one list.
    fn list<E: From<Error>>(
        &self,
        bytes: &[u8],
        directory: InodeNumber,
        file_block: u64,
        visit: Visit<'_, E>,
    ) -> Result<(), E> {
        let place = Place::Directory(directory, file_block);
        let names_kinds = self.superblock.incompatible.has(Incompatible::FILETYPE);
        let mut left = bytes;
        while left.len() >= HEAD {
            let number = u32(left, 0);
            let whole = whole_length(u16(left, 4), bytes.len());
            let name_length = match names_kinds {
                true => usize::from(u8(left, 6)),
                false => usize::from(u16(left, 6)),
            };
            let needed = HEAD.saturating_add(name_length).next_multiple_of(4);
            // A length that is not a multiple of four is only found in lists
            // that end with the bytes.
            if whole < HEAD || whole > left.len() || (number != 0 && whole < needed) {
                let wrong = place.number("the length of an entry", length(whole));
                return Err(wrong.into());
            }
            let (entry, rest) = left.split_at(whole);
            left = rest;
            if number == 0 {
                continue;
            }
            let name = entry.get(HEAD..HEAD.saturating_add(name_length));
            let name = name.unwrap_or_default();
            if name == b"." || name == b".." {
                continue;
            }
            if name.is_empty() || name.len() > 255 || name.contains(&0) || name.contains(&b'/') {
                let wrong = place.number("the length of a name", length(name_length));
                return Err(wrong.into());
            }
            let kind = if names_kinds { u8(entry, 7) } else { 0 };
            visit(DirectoryEntry {
                name,
                inode: InodeNumber(number),
                kind: EntryKind::of_byte(kind),
            })?;
        }
        Ok(())
    }
}

/// The length of an entry. Blocks of 64 KiB do not fit into the field.
fn whole_length(field: u16, list: usize) -> usize {
    match field {
        0 | u16::MAX if list == 1 << 16 => 1 << 16,
        _ => usize::from(field),
    }
}

/// The checksum of a block of a hash tree: of what lies before its table, and
/// of the part of the table that is in use.
fn matches_of_tree(bytes: &[u8], seed: u32) -> bool {
    // The root has the entries `.` and `..` and 8 bytes of facts before its
    // table, other blocks one empty entry.
    let is_root = u16(bytes, 4) == 12;
    let table = if is_root { 32 } else { 8 };
    let (room, used) = (
        usize::from(u16(bytes, table)),
        usize::from(u16(bytes, table.saturating_add(2))),
    );
    let end = |entries: usize| memory(length(entries).saturating_mul(8)).saturating_add(table);
    let (Some(covered), Some(tail)) = (bytes.get(..end(used)), bytes.get(end(room)..)) else {
        return false;
    };
    let reserved = tail.get(..4).unwrap_or_default();
    let parts: [&[u8]; 3] = [covered, reserved, &[0; 4]];
    tail.len() >= 8 && parts.into_iter().fold(seed, crc32c) == u32(tail, 4)
}
