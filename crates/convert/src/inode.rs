//! The items of one inode, but those of content and of directory entries.
//!
//! Pure, but for reading attributes.

use crate::error::ConvertError;
use crate::loader::Items;
use crate::names::{NameOf, number_of};
use crate::options::{Attributes, DataSums, Options};
use crate::source::Old;
use butterfs_ext4::{Inode, InodeFlags as OldFlags, InodeNumber as OldNumber, Kind, Time};
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::inode::{
    ExtrefEntry, InodeFlags, InodeItem, LINKS_MAX, RefEntry, Timespec,
};
use butterfs_format::packed::item_max;
use butterfs_format::{Generation, InodeNumber, ItemType, Key};
use std::collections::{BTreeMap, BTreeSet};

/// The generation of everything in the new volume.
pub(crate) const GENERATION: Generation = Generation(1);
const fn time(time: Time) -> Timespec {
    Timespec {
        seconds: time.seconds,
        nanoseconds: time.nanoseconds,
    }
}

/// The inode item, without what depends on names and content.
pub(crate) fn item(inode: &Inode, kind: Kind, options: &Options) -> InodeItem {
    const FLAGS: [(OldFlags, InodeFlags); 6] = [
        (OldFlags::SYNC, InodeFlags::SYNC),
        (OldFlags::IMMUTABLE, InodeFlags::IMMUTABLE),
        (OldFlags::APPEND, InodeFlags::APPEND),
        (OldFlags::NO_DUMP, InodeFlags::NODUMP),
        (OldFlags::NO_ATIME, InodeFlags::NOATIME),
        (OldFlags::DIR_SYNC, InodeFlags::DIRSYNC),
    ];
    let mut flags = InodeFlags::default();
    for (old, new) in FLAGS {
        if inode.flags.has(old) {
            flags |= new;
        }
    }
    if kind == Kind::File && options.data_sums == DataSums::LeftOut {
        flags |= InodeFlags::NODATASUM;
    }
    let rdev = match kind {
        Kind::CharacterDevice | Kind::BlockDevice => {
            let (major, minor) = inode.device();
            (u64::from(major) << 20) | u64::from(minor)
        }
        _ => 0,
    };
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        nlink: 1,
        uid: inode.user,
        gid: inode.group,
        mode: inode.mode.into(),
        rdev,
        flags,
        atime: time(inode.accessed),
        ctime: time(inode.changed),
        mtime: time(inode.modified),
        otime: inode.created.map(time).unwrap_or_default(),
        ..InodeItem::default()
    }
}

/// How many names an inode has. A directory has one; so do its entries say.
///
/// # Errors
/// None, or too many.
pub(crate) fn links(inode: &Inode, kind: Kind, names: &[NameOf]) -> Result<u32, ConvertError> {
    let wrong = |what| ConvertError::Contradiction {
        inode: inode.number,
        what,
    };
    if inode.number == OldNumber::ROOT {
        return match (kind, names) {
            (Kind::Directory, []) => Ok(1),
            _ => Err(wrong("it is the root directory, but has a name or is none")),
        };
    }
    match (kind, names) {
        (_, []) => Err(wrong("it is in use, but no directory names it")),
        (Kind::Directory, [_, _, ..]) => Err(wrong("it is a directory with several names")),
        _ => {
            let count = u32::try_from(names.len()).unwrap_or(u32::MAX);
            match count <= LINKS_MAX {
                true => Ok(count),
                false => Err(wrong("it has more names than Btrfs allows")),
            }
        }
    }
}

/// Adds the inode's own records of its names.
///
/// # Errors
/// Too many names with one hash.
pub(crate) fn references(
    inode: &Inode,
    names: &[NameOf],
    node_size: u32,
    items: &mut dyn Items,
) -> Result<(), ConvertError> {
    let object = number_of(inode.number);
    if inode.number == OldNumber::ROOT {
        let entry = RefEntry {
            index: 0,
            name: b"..",
        };
        return items.item(
            Key::new(object, ItemType::INODE_REF, object),
            entry.encode(),
        );
    }
    let mut by_parent: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut others: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    for NameOf {
        parent,
        index,
        name,
        ..
    } in names
    {
        let entry = RefEntry {
            index: *index,
            name,
        }
        .encode();
        let here = by_parent.entry(*parent).or_default();
        let length = here.len().saturating_add(entry.len());
        // As the kernel, which uses the other item only when this one is full:
        // btrfs check 6.2 in lowmem mode takes every INODE_EXTREF for a fault.
        if length <= item_max(node_size) {
            here.extend(entry);
            continue;
        }
        let parent = InodeNumber(*parent);
        let entry = ExtrefEntry {
            parent,
            index: *index,
            name,
        };
        let same = others.entry(extref_hash(parent, name)).or_default();
        same.extend(entry.encode());
        fits(same, inode.number, node_size)?;
    }
    for (parent, data) in by_parent {
        items.item(Key::new(object, ItemType::INODE_REF, parent), data)?;
    }
    for (hash, data) in others {
        items.item(Key::new(object, ItemType::INODE_EXTREF, hash), data)?;
    }
    Ok(())
}

/// Refuses entries with one hash that are larger than an item.
pub(crate) fn fits(same: &[u8], inode: OldNumber, node_size: u32) -> Result<(), ConvertError> {
    match same.len() <= item_max(node_size) {
        true => Ok(()),
        false => Err(ConvertError::TooLarge {
            inode,
            what: "too many of its names have the same hash, and Btrfs cannot hold them all; \
                   rename some"
                .to_owned(),
        }),
    }
}

/// Adds extended attributes. The names of those that Btrfs has no place for go
/// to `left_out`.
///
/// # Errors
/// Reading; an attribute that does not fit into a node.
pub(crate) fn attributes(
    old: &Old,
    inode: &Inode,
    options: &Options,
    items: &mut dyn Items,
    left_out: &mut BTreeSet<String>,
) -> Result<(), ConvertError> {
    const KNOWN: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];
    const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
    if options.attributes == Attributes::LeftOut {
        return Ok(());
    }
    let mut by_hash: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let mut seen: BTreeSet<Vec<u8>> = BTreeSet::new();
    for attribute in old.attributes(inode)? {
        let name = &attribute.name;
        let shown = String::from_utf8_lossy(name).into_owned();
        let is_known = KNOWN
            .iter()
            .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
        if !is_known && !ACLS.contains(&&name[..]) {
            left_out.insert(shown);
            continue;
        }
        if !seen.insert(name.clone()) {
            return Err(ConvertError::Contradiction {
                inode: inode.number,
                what: "it has an extended attribute twice",
            });
        }
        let entry = DirEntry {
            location: Key::MIN,
            generation: GENERATION,
            name,
            data: &attribute.value,
            kind: FileType::Xattr,
        };
        let same = by_hash.entry(name_hash(name)).or_default();
        same.extend(entry.encode());
        let is_long = attribute.value.len() > usize::from(u16::MAX) || name.len() > 255;
        if is_long || same.len() > item_max(options.node_size) {
            return Err(ConvertError::TooLarge {
                inode: inode.number,
                what: format!(
                    "its attribute {shown} has {} bytes, which do not fit into a node of {}; take \
                     larger nodes (-N), remove the attribute, or leave out all of them (-i)",
                    attribute.value.len(),
                    options.node_size
                ),
            });
        }
    }
    let object = number_of(inode.number);
    for (hash, data) in by_hash {
        items.item(Key::new(object, ItemType::XATTR_ITEM, hash), data)?;
    }
    Ok(())
}
