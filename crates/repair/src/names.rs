//! The three sides of a name: the entry by hash (DIR_ITEM), the entry by index
//! (DIR_INDEX), and the inode's own record (INODE_REF or INODE_EXTREF).
//!
//! Owns the reading of each side, without what is impossible.

use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::inode::{ExtrefEntries, ExtrefEntry, RefEntries, RefEntry};
use butterfs_format::{Generation, InodeNumber, ItemType, Key, TreeId};

/// The first number after those of files.
const RESERVED: u64 = u64::MAX.wrapping_sub(254);
const NAME_MAX: usize = 255;
/// The first index that no directory reaches.
pub(crate) const INDEX_END: u64 = 1 << 62;

/// Type bits of a mode.
pub(crate) const KIND: u32 = 0o170_000;
pub(crate) const REGULAR: u32 = 0o100_000;
pub(crate) const DIRECTORY: u32 = 0o040_000;
pub(crate) const SYMLINK: u32 = 0o120_000;

/// Type bits and the type of directory entries.
const KINDS: [(u32, FileType); 7] = [
    (REGULAR, FileType::Regular),
    (DIRECTORY, FileType::Directory),
    (0o020_000, FileType::CharDevice),
    (0o060_000, FileType::BlockDevice),
    (0o010_000, FileType::Fifo),
    (0o140_000, FileType::Socket),
    (SYMLINK, FileType::Symlink),
];

/// The type that entries of an inode with this mode have.
pub(crate) fn type_of(mode: u32) -> Option<FileType> {
    let found = KINDS.iter().find(|(bits, _)| *bits == mode & KIND);
    found.map(|(_, kind)| *kind)
}

/// Type bits of a mode for this type.
pub(crate) fn bits_of(kind: FileType) -> u32 {
    let found = KINDS.iter().find(|(_, one)| *one == kind);
    found.map_or(REGULAR, |(bits, _)| *bits)
}

/// Whether an inode of a subvolume can have this number.
pub(crate) const fn is_inode(number: u64) -> bool {
    number >= InodeNumber::ROOT.get() && number < RESERVED
}

pub(crate) fn is_valid(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= NAME_MAX;
    plain && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// A directory entry that can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Inode or subvolume.
    pub(crate) location: Key,
    pub(crate) generation: Generation,
    pub(crate) kind: FileType,
    pub(crate) name: Vec<u8>,
}

impl Entry {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let entry = DirEntry {
            location: self.location,
            generation: self.generation,
            name: &self.name,
            data: &[],
            kind: self.kind,
        };
        entry.encode()
    }

    pub(crate) fn is_subvolume(&self) -> bool {
        self.location.item_type == ItemType::ROOT_ITEM
    }

    /// Whether both name the same.
    pub(crate) fn leads_to(&self, other: &Self) -> bool {
        let end = |key: Key| (key.objectid, key.item_type);
        self.name == other.name && end(self.location) == end(other.location)
    }
}

/// Entries of a DIR_ITEM or DIR_INDEX, without what is impossible.
pub(crate) fn entries(key: Key, data: &[u8]) -> Vec<Entry> {
    let mut all: Vec<Entry> = Vec::new();
    let is_index = key.item_type == ItemType::DIR_INDEX;
    for entry in DirEntries::new(data).flatten() {
        let location = entry.location;
        let target = match location.item_type {
            ItemType::INODE_ITEM => location.offset == 0 && is_inode(location.objectid),
            ItemType::ROOT_ITEM => TreeId(location.objectid).is_subvolume(),
            _ => false,
        };
        let placed = match is_index {
            true => all.is_empty() && key.offset.saturating_add(1) < INDEX_END,
            false => name_hash(entry.name) == key.offset,
        };
        let known = all.iter().any(|one| one.name == entry.name);
        if target && placed && !known && is_valid(entry.name) && entry.kind != FileType::Xattr {
            all.push(Entry {
                location,
                generation: entry.generation,
                kind: entry.kind,
                name: entry.name.to_vec(),
            });
        }
    }
    all
}

/// Bytes of a DIR_ITEM with these entries.
pub(crate) fn encode_entries(all: &[Entry]) -> Vec<u8> {
    all.iter().flat_map(Entry::encode).collect()
}

/// An inode's own record of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) parent: u64,
    pub(crate) index: u64,
    pub(crate) name: Vec<u8>,
}

/// Names of an INODE_REF or INODE_EXTREF, without what is impossible.
pub(crate) fn own_names(key: Key, data: &[u8]) -> Vec<Own> {
    let is_root = key.objectid == InodeNumber::ROOT.get();
    let fits = |own: &Own| match is_root {
        true => own.parent == key.objectid && own.name == b".." && own.index == 0,
        false => own.parent != key.objectid && is_inode(own.parent) && is_valid(&own.name),
    };
    let all: Vec<Own> = match key.item_type {
        ItemType::INODE_REF => RefEntries::new(data)
            .flatten()
            .map(|one| Own {
                parent: key.offset,
                index: one.index,
                name: one.name.to_vec(),
            })
            .collect(),
        _ => ExtrefEntries::new(data)
            .flatten()
            .filter(|one| extref_hash(one.parent, one.name) == key.offset)
            .map(|one| Own {
                parent: one.parent.get(),
                index: one.index,
                name: one.name.to_vec(),
            })
            .collect(),
    };
    all.into_iter().filter(fits).collect()
}

/// Bytes of an INODE_REF or INODE_EXTREF with these names.
pub(crate) fn encode_own(key: Key, all: &[Own]) -> Vec<u8> {
    let encode = |own: &Own| match key.item_type {
        ItemType::INODE_REF => RefEntry {
            index: own.index,
            name: &own.name,
        }
        .encode(),
        _ => ExtrefEntry {
            parent: InodeNumber(own.parent),
            index: own.index,
            name: &own.name,
        }
        .encode(),
    };
    all.iter().flat_map(encode).collect()
}
