//! Names on their three sides: hashed entry, index entry, and the inode's own
//! record of it.

use crate::hash::SumHash;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};
use butterfs_format::{InodeNumber, ItemType, Key, ParseError};
use thiserror::Error;

/// Bytes of a name at most.
const NAME_MAX: usize = 255;

/// What is wrong with an item that holds names.
#[derive(Debug, Error)]
pub(crate) enum NameFault {
    /// It ends early, or says so much.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// A directory entry of an impossible name or type, or with data.
    #[error("the entry {0:?} cannot be")]
    Entry(String),
    /// A name under the hash of another one.
    #[error("the hash of {name:?} is {hash}")]
    Hash { name: String, hash: u64 },
    /// A directory entry that points to what is no inode and no subvolume.
    #[error("the entry {name:?} points to {location}")]
    Target { name: String, location: Key },
    /// An index entry for more than one name.
    #[error("it has several entries")]
    SeveralEntries,
    /// A name twice.
    #[error("the name {0:?} is there twice")]
    Duplicate(String),
    /// A directory item without an entry.
    #[error("it has no entry")]
    NoEntry,
    /// A name that an inode cannot have.
    #[error("the name {0:?} cannot be")]
    Name(String),
    /// An inode's record of names without one.
    #[error("it has no name")]
    NoName,
    /// An extended attribute of a wrong form, or twice.
    #[error("the attribute {0:?} cannot be")]
    Attribute(String),
    /// An item for attributes without one.
    #[error("it has no attribute")]
    NoAttribute,
}

/// One side of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Directory entry by hash.
    Hashed,
    /// Directory entry by index.
    Indexed,
    /// The inode's own record.
    Own,
}

/// A name as one side has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<'n> {
    pub(crate) side: Side,
    pub(crate) directory: u64,
    pub(crate) name: &'n [u8],
    /// Place in the directory's order; 0 in hashed entries.
    pub(crate) index: u64,
    pub(crate) target: u64,
    /// The target is a subvolume.
    pub(crate) is_subvolume: bool,
    /// Type number; 0 in the inode's own record.
    pub(crate) kind: u8,
}

impl Name<'_> {
    /// What it adds to its subvolume's balance: all names together are zero
    /// when the sides agree.
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

/// Whether a name can be.
pub(crate) fn is_valid(name: &[u8]) -> bool {
    let plain = !name.is_empty() && name.len() <= NAME_MAX;
    plain && name != b"." && name != b".." && !name.contains(&b'/') && !name.contains(&0)
}

/// Target of an entry: an inode of the same subvolume, or a subvolume.
fn target_of(location: Key) -> Option<(u64, bool)> {
    match location.item_type {
        ItemType::INODE_ITEM if location.offset == 0 => Some((location.objectid, false)),
        ItemType::ROOT_ITEM => Some((location.objectid, true)),
        _ => None,
    }
}

/// Reads the entries of a DIR_ITEM or DIR_INDEX.
///
/// # Errors
/// What is wrong with one of them.
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
    Ok(())
}

/// Reads the names of an INODE_REF or INODE_EXTREF.
///
/// # Errors
/// What is wrong with one of them.
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
/// What is wrong with it.
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
