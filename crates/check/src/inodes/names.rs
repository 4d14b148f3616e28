//! Names on their three sides: hashed entry, index entry, and the inode's own
//! record of it.

use crate::hash::SumHash;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntries, DirEntry};
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};
use butterfs_format::{InodeNumber, ItemType, Key};

/// Bytes of a name at most.
const NAME_MAX: usize = 255;

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
pub(crate) fn entries(key: Key, data: &[u8], mut each: impl FnMut(Name<'_>)) -> Result<(), String> {
    let is_index = key.item_type == ItemType::DIR_INDEX;
    let mut seen: Vec<&[u8]> = Vec::new();
    for entry in DirEntries::new(data) {
        let DirEntry {
            location,
            name,
            data,
            kind,
            ..
        } = entry.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(name);
        if !is_valid(name) || !data.is_empty() || kind.number() == 8 {
            return Err(format!("the entry {text:?} cannot be"));
        }
        if !is_index && name_hash(name) != key.offset {
            return Err(format!("the hash of {text:?} is {}", name_hash(name)));
        }
        let Some((target, is_subvolume)) = target_of(location) else {
            return Err(format!("the entry {text:?} points to {location}"));
        };
        if is_index && !seen.is_empty() {
            return Err("it has several entries".to_owned());
        }
        if seen.contains(&name) {
            return Err(format!("the name {text:?} is there twice"));
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
        return Err("it has no entry".to_owned());
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
) -> Result<(), String> {
    let mut own = |directory: u64, index: u64, name: &[u8]| {
        let text = String::from_utf8_lossy(name);
        let is_root = key.objectid == InodeNumber::ROOT.get();
        let fits = if is_root {
            directory == key.objectid && name == b".." && index == 0
        } else {
            directory != key.objectid && is_valid(name)
        };
        if !fits {
            return Err(format!("the name {text:?} cannot be"));
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
        return Err("it has no name".to_owned());
    }
    if key.item_type == ItemType::INODE_REF {
        for entry in RefEntries::new(data) {
            let entry = entry.map_err(|error| error.to_string())?;
            own(key.offset, entry.index, entry.name)?;
        }
        return Ok(());
    }
    for entry in ExtrefEntries::new(data) {
        let entry = entry.map_err(|error| error.to_string())?;
        let hash = extref_hash(InodeNumber(entry.parent.get()), entry.name);
        if hash != key.offset {
            let text = String::from_utf8_lossy(entry.name);
            return Err(format!("the hash of {text:?} is {hash}"));
        }
        own(entry.parent.get(), entry.index, entry.name)?;
    }
    Ok(())
}

/// Checks an XATTR_ITEM.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn attributes(key: Key, data: &[u8]) -> Result<(), String> {
    let mut seen: Vec<&[u8]> = Vec::new();
    for entry in DirEntries::new(data) {
        let entry = entry.map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(entry.name);
        if name_hash(entry.name) != key.offset {
            return Err(format!("the hash of {text:?} is {}", name_hash(entry.name)));
        }
        if entry.kind.number() != 8 || entry.location != Key::MIN || seen.contains(&entry.name) {
            return Err(format!("the attribute {text:?} cannot be"));
        }
        seen.push(entry.name);
    }
    if seen.is_empty() {
        return Err("it has no attribute".to_owned());
    }
    Ok(())
}
