//! First pass: items that no program can read.

use super::{INODE_CACHE, Plan, ROOT, each};
use crate::error::RepairError;
use crate::file_extents::{self, Mended};
use crate::names::{KIND, SYMLINK, encode_entries, encode_own, entries, is_inode, own_names};
use crate::step::StepKind;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::{DirEntries, DirEntry, FileType};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeFlags, InodeItem};
use butterfs_format::{ItemType, Key, object};

/// First pass: removes or corrects items that no program can read.
pub(super) fn impossible_items(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    // The file extent before: its key, and where it ends.
    let mut before: Option<(Key, u64)> = None;
    each(plan, |plan, key, data| {
        let is_orphan = key.objectid == object::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM;
        if is_orphan || INODE_CACHE.contains(&key.objectid) {
            return Ok(());
        }
        if !is_inode(key.objectid) {
            plan.remove(StepKind::Items, key);
            return Ok(());
        }
        match key.item_type {
            ItemType::INODE_ITEM => inode_item(plan, key, data),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                let good = own_names(key, data);
                let is_root_elsewhere = key.objectid == ROOT && key.offset != ROOT;
                match good.is_empty() || is_root_elsewhere {
                    true => plan.remove(StepKind::Items, key),
                    false if encode_own(key, &good) != data => {
                        plan.put(StepKind::Items, key, encode_own(key, &good));
                    }
                    false => {}
                }
            }
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => {
                let mut good = entries(key, data);
                // No directory holds the root of its own tree.
                good.retain(|one| one.is_subvolume() || one.location.objectid != ROOT);
                match good.is_empty() {
                    true => plan.remove(StepKind::Items, key),
                    false if encode_entries(&good) != data => {
                        plan.put(StepKind::Items, key, encode_entries(&good));
                    }
                    false => {}
                }
            }
            ItemType::XATTR_ITEM => attributes(plan, key, data),
            ItemType::EXTENT_DATA => {
                let end = match file_extents::mend(plan, key, data)? {
                    Mended::Good(end) => end,
                    Mended::Changed(new, end) => {
                        plan.put(StepKind::FileExtents, key, new);
                        end
                    }
                    Mended::Gone => {
                        plan.remove(StepKind::FileExtents, key);
                        let text =
                            format!("bytes of inode {} from {} on", key.objectid, key.offset);
                        plan.lose(StepKind::FileExtents, text);
                        return Ok(());
                    }
                };
                let overlapped = before
                    .filter(|(other, end)| other.objectid == key.objectid && *end > key.offset);
                if let Some((other, _)) = overlapped {
                    overlap(plan, other, key.offset)?;
                }
                before = Some((key, end));
            }
            ItemType::VERITY_DESC | ItemType::VERITY_MERKLE => {}
            _ => plan.remove(StepKind::Items, key),
        }
        Ok(())
    })
}

/// Ends the file extent at `key` where the next one begins.
fn overlap(plan: &mut Plan<'_>, key: Key, next: u64) -> Result<(), RepairError> {
    let Some(data) = plan.get(&key)? else {
        return Ok(());
    };
    let Ok(mut extent) = FileExtent::parse(&data) else {
        return Ok(());
    };
    let length = next.saturating_sub(key.offset);
    if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = &mut extent.body
        && length > 0
    {
        place.length = place.length.min(length);
        plan.put(StepKind::FileExtents, key, extent.encode());
    } else {
        plan.remove(StepKind::FileExtents, key);
    }
    Ok(())
}

fn inode_item(plan: &mut Plan<'_>, key: Key, data: &[u8]) {
    let parsed = InodeItem::parse(data).ok().filter(|_| key.offset == 0);
    let Some(old) = parsed else {
        return plan.remove(StepKind::Items, key);
    };
    let mut item = old.clone();
    let newest = plan.writer.patient.superblock.generation;
    let most = newest.saturating_add(1);
    if item.generation > most {
        item.generation = newest;
    }
    if item.transid > most {
        item.transid = newest;
    }
    item.mode &= KIND | 0o7777;
    item.flags = InodeFlags(item.flags.0 & InodeFlags::known().0);
    if item.mode & KIND == SYMLINK {
        item.flags = item
            .flags
            .without(InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    }
    if item != old {
        plan.put(StepKind::Inodes, key, item.encode());
    }
}

/// Prefixes of the names that attributes can have.
const PREFIXES: [&[u8]; 5] = [b"user.", b"trusted.", b"security.", b"system.", b"btrfs."];

/// Moves attributes to the key of their name's hash, and removes what is none.
fn attributes(plan: &mut Plan<'_>, key: Key, data: &[u8]) {
    let mut good: Vec<Vec<u8>> = Vec::new();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut moved: Vec<(Key, Vec<u8>)> = Vec::new();
    let mut is_whole = true;
    for entry in DirEntries::new(data) {
        let Ok(entry) = entry else {
            is_whole = false;
            break;
        };
        let possible = entry.kind == FileType::Xattr
            && entry.location == Key::MIN
            && !names.contains(&entry.name.to_vec())
            && PREFIXES.iter().any(|prefix| entry.name.starts_with(prefix));
        let hash = name_hash(entry.name);
        let own = DirEntry { ..entry }.encode();
        if possible && hash == key.offset {
            names.push(entry.name.to_vec());
            good.push(own);
        } else if possible {
            moved.push((Key::new(key.objectid, key.item_type, hash), own));
            is_whole = false;
        } else {
            is_whole = false;
        }
    }
    if is_whole && !good.is_empty() {
        return;
    }
    match good.is_empty() {
        true => plan.remove(StepKind::Items, key),
        false => plan.put(StepKind::Items, key, good.concat()),
    }
    for (to, own) in moved {
        if matches!(plan.get(&to), Ok(None)) {
            plan.put(StepKind::Items, to, own);
        }
    }
}
