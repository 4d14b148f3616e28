//! Names and their three sides: the hashed entry, the index entry, and the
//! inode's own record.

use super::run::is_inode;
use crate::hash::SumHash;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};
use butterfs_format::{InodeNumber, ItemType, Key, ParseError, TreeId};
use thiserror::Error;

/// The most bytes of a name.
const NAME_MAX: usize = 255;

/// What is wrong with an item that holds names.
#[derive(Debug, Error)]
pub(crate) enum NameFault {
    /// It ends early.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A directory entry has an impossible name or type, or has data.
    #[error("the entry {0:?} is impossible")]
    Entry(String),
    /// A name is stored with a wrong hash.
    #[error("the hash of {name:?} is {hash}")]
    Hash { name: String, hash: u64 },
    /// A directory entry points neither to an inode nor to a subvolume.
    #[error("the entry {name:?} points to {location}")]
    Target { name: String, location: Key },
    /// An index is so great that no directory has reached it.
    #[error("its index {0} is too great; programs that list the directory fail")]
    Index(u64),
    /// An index item holds more than one entry.
    #[error("it has several entries")]
    SeveralEntries,
    /// An item has a name twice.
    #[error("the name {0:?} is there twice")]
    Duplicate(String),
    /// A directory item has no entry.
    #[error("it has no entry")]
    NoEntry,
    /// An inode cannot have this name.
    #[error("the name {0:?} is impossible")]
    Name(String),
    /// An inode's record of names has no name.
    #[error("it has no name")]
    NoName,
    /// An extended attribute has a wrong form, or is there twice.
    #[error("the attribute {0:?} is impossible")]
    Attribute(String),
    /// An item for attributes has none.
    #[error("it has no attribute")]
    NoAttribute,
}

/// The first index that no directory reaches. A position in a listing has no
/// room for a greater one.
const INDEX_END: u64 = 1 << 62;

/// One side of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The directory entry by hash (DIR_ITEM).
    Hashed,
    /// The directory entry by index (DIR_INDEX).
    Indexed,
    /// The inode's own record (INODE_REF or INODE_EXTREF).
    Own,
}

/// A name as one side records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'n> {
    pub(crate) side: Side,
    pub(crate) directory: u64,
    pub(crate) name: &'n [u8],
    /// Index in the directory; 0 for hashed entries.
    pub(crate) index: u64,
    pub(crate) target: u64,
    /// The target is a subvolume.
    pub(crate) is_subvolume: bool,
    /// Type number; 0 for the inode's own record.
    pub(crate) kind: u8,
}

impl Name<'_> {
    /// What the name adds to the balance of its subvolume. The balance of all
    /// names and inodes is zero if the sides agree.
    pub(crate) fn weight(&self, hash: SumHash) -> u64 {
        let kind = u64::from(self.kind);
        let entry = || {
            let subvolume = u64::from(self.is_subvolume);
            hash.name(
                [11, self.directory, self.target, subvolume, kind],
                self.name,
            )
        };
        let own = || hash.name([12, self.directory, self.target, self.index], self.name);
        match self.side {
            Side::Hashed => entry(),
            Side::Indexed if self.is_subvolume => entry().wrapping_neg(),
            Side::Indexed => hash
                .words([13, self.target, kind])
                .wrapping_add(own())
                .wrapping_sub(entry()),
            Side::Own => own().wrapping_neg(),
        }
    }
}

/// Whether a name is possible.
pub(crate) fn is_valid(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= NAME_MAX;
    plain && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Returns the target of an entry: an inode of the same subvolume, or (true) a
/// subvolume.
fn target_of(location: Key) -> Option<(u64, bool)> {
    let number = location.objectid;
    match location.item_type {
        ItemType::INODE_ITEM if location.offset == 0 && is_inode(number) => Some((number, false)),
        ItemType::ROOT_ITEM if TreeId(number).is_subvolume() => Some((number, true)),
        _ => None,
    }
}

/// Parses the entries of a DIR_ITEM or DIR_INDEX and calls `each` for them.
///
/// # Errors
/// Says what is wrong with the first impossible entry.
pub(crate) fn entries(
    key: Key,
    data: &[u8],
    mut each: impl FnMut(Name<'_>),
) -> Result<(), NameFault> {
    let is_index = key.item_type == ItemType::DIR_INDEX;
    let mut seen: Vec<&[u8]> = Vec::new();
    for entry in DirEntries::new(data) {
        let DirEntry {
            location,
            name,
            data,
            kind,
            ..
        } = entry?;
        let text = || String::from_utf8_lossy(name).into_owned();
        if !is_valid(name) || !data.is_empty() || kind.number() == 8 {
            return Err(NameFault::Entry(text()));
        }
        if !is_index && name_hash(name) != key.offset {
            return Err(NameFault::Hash {
                name: text(),
                hash: name_hash(name),
            });
        }
        let Some((target, is_subvolume)) = target_of(location) else {
            return Err(NameFault::Target {
                name: text(),
                location,
            });
        };
        if is_index && !seen.is_empty() {
            return Err(NameFault::SeveralEntries);
        }
        if seen.contains(&name) {
            return Err(NameFault::Duplicate(text()));
        }
        seen.push(name);
        each(Name {
            side: if is_index {
                Side::Indexed
            } else {
                Side::Hashed
            },
            directory: key.objectid,
            name,
            index: if is_index { key.offset } else { 0 },
            target,
            is_subvolume,
            kind: kind.number(),
        });
    }
    if seen.is_empty() {
        return Err(NameFault::NoEntry);
    }
    // A listing goes on behind this index.
    if is_index && key.offset.saturating_add(1) >= INDEX_END {
        return Err(NameFault::Index(key.offset));
    }
    Ok(())
}

/// Parses the names of an INODE_REF or INODE_EXTREF and calls `each` for them.
///
/// # Errors
/// Says what is wrong with the first impossible name.
pub(crate) fn own_names(
    key: Key,
    data: &[u8],
    mut each: impl FnMut(Name<'_>),
) -> Result<(), NameFault> {
    let mut own = |directory: u64, index: u64, name: &[u8]| {
        let is_root = key.objectid == InodeNumber::ROOT.get();
        let fits = if is_root {
            directory == key.objectid && name == b".." && index == 0
        } else {
            directory != key.objectid && is_valid(name)
        };
        if !fits {
            return Err(NameFault::Name(String::from_utf8_lossy(name).into_owned()));
        }
        each(Name {
            side: Side::Own,
            directory,
            name,
            index,
            target: key.objectid,
            is_subvolume: false,
            kind: 0,
        });
        Ok(())
    };
    if data.is_empty() {
        return Err(NameFault::NoName);
    }
    if key.item_type == ItemType::INODE_REF {
        for entry in RefEntries::new(data) {
            let entry = entry?;
            own(key.offset, entry.index, entry.name)?;
        }
        return Ok(());
    }
    for entry in ExtrefEntries::new(data) {
        let entry = entry?;
        let hash = extref_hash(InodeNumber(entry.parent.get()), entry.name);
        if hash != key.offset {
            return Err(NameFault::Hash {
                name: String::from_utf8_lossy(entry.name).into_owned(),
                hash,
            });
        }
        own(entry.parent.get(), entry.index, entry.name)?;
    }
    Ok(())
}

/// Checks an XATTR_ITEM.
///
/// # Errors
/// Says what is wrong with the first impossible attribute.
pub(crate) fn attributes(key: Key, data: &[u8]) -> Result<(), NameFault> {
    let mut seen: Vec<&[u8]> = Vec::new();
    for entry in DirEntries::new(data) {
        let entry = entry?;
        let text = || String::from_utf8_lossy(entry.name).into_owned();
        if name_hash(entry.name) != key.offset {
            return Err(NameFault::Hash {
                name: text(),
                hash: name_hash(entry.name),
            });
        }
        if entry.kind.number() != 8 || entry.location != Key::MIN || seen.contains(&entry.name) {
            return Err(NameFault::Attribute(text()));
        }
        seen.push(entry.name);
    }
    if seen.is_empty() {
        return Err(NameFault::NoAttribute);
    }
    Ok(())
}
