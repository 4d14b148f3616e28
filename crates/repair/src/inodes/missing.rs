//! Second pass: inodes without an item, or without a possible type.

use super::seen::{Seen, each_inode};
use super::{Plan, ROOT};
use crate::error::RepairError;
use crate::items;
use crate::names::{DIRECTORY, KIND, Own, REGULAR, SYMLINK, bits_of, encode_own, entries, type_of};
use crate::step::StepKind;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::FileType;
use butterfs_format::item::inode::{InodeItem, Timespec};
use butterfs_format::{ItemType, Key};

/// The type that a directory's entry says an inode has.
fn type_by_entry(plan: &Plan<'_>, seen: &Seen) -> Result<Option<FileType>, RepairError> {
    let Some(own) = &seen.first_name else {
        return Ok(None);
    };
    let index = Key::new(own.parent, ItemType::DIR_INDEX, own.index);
    let hashed = Key::new(own.parent, ItemType::DIR_ITEM, name_hash(&own.name));
    for key in [index, hashed] {
        let data = plan.get(&key)?.unwrap_or_default();
        let all = entries(key, &data);
        let found = all.iter().find(|entry| {
            entry.name == own.name
                && entry.location.objectid == seen.number
                && !entry.is_subvolume()
        });
        if let Some(entry) = found {
            return Ok(Some(entry.kind));
        }
    }
    Ok(None)
}

/// Type bits of an inode by what its items and its names say.
fn type_bits(plan: &Plan<'_>, seen: &Seen) -> Result<u32, RepairError> {
    let says_file = seen
        .item
        .as_ref()
        .is_some_and(|item| item.mode & KIND == REGULAR);
    if seen.number == ROOT || (seen.has_entries && !(seen.has_extents && says_file)) {
        return Ok(DIRECTORY);
    }
    let by_entry = type_by_entry(plan, seen)?.map(bits_of);
    Ok(match by_entry {
        Some(bits) if !seen.has_extents || bits == REGULAR || bits == SYMLINK => bits,
        _ => REGULAR,
    })
}

/// Second pass: gives inodes without an item, or without a possible type, one.
pub(super) fn missing_inodes(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    let mut has_root = false;
    let mut no_inode: Vec<Seen> = Vec::new();
    each_inode(plan, |plan, seen| {
        has_root |= seen.number == ROOT;
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        let Some(item) = &seen.item else {
            no_inode.push(seen.clone());
            return Ok(());
        };
        let kind = item.mode & KIND;
        let contradicts = (seen.has_entries && kind != DIRECTORY)
            || (seen.has_extents && kind != REGULAR && kind != SYMLINK)
            || (seen.number == ROOT && kind != DIRECTORY);
        if type_of(item.mode).is_none() || contradicts {
            let mut new = item.clone();
            new.mode = (item.mode & !KIND) | type_bits(plan, seen)?;
            if new != *item {
                plan.put(StepKind::Inodes, key, new.encode());
            }
            if seen.has_entries && seen.has_extents {
                remove_other_kind(plan, seen.number, new.mode & KIND)?;
            }
        }
        Ok(())
    })?;
    if !has_root {
        no_inode.push(Seen::of(ROOT));
    }
    for seen in no_inode {
        let is_empty = !seen.has_entries && !seen.has_extents && seen.names == 0;
        if is_empty && seen.number != ROOT {
            // Only attributes are left, and nothing has them.
            let keys = Key::new(seen.number, ItemType::MIN, 0)
                ..=Key::new(seen.number, ItemType::MAX, u64::MAX);
            for key in items::read(plan.writer, plan.tree, keys)?.into_keys() {
                plan.remove(StepKind::Items, key);
            }
            continue;
        }
        let bits = type_bits(plan, &seen)?;
        let item = new_inode(plan, bits, &seen);
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::Inodes, key, item.encode());
        let text = format!("owner, permissions and times of inode {}", seen.number);
        plan.lose(StepKind::Inodes, text);
    }
    let dots = Key::new(ROOT, ItemType::INODE_REF, ROOT);
    if plan.get(&dots)?.is_none() {
        let own = Own {
            parent: ROOT,
            index: 0,
            name: b"..".to_vec(),
        };
        plan.put(StepKind::Names, dots, encode_own(dots, &[own]));
    }
    Ok(())
}

/// Removes what an inode of the type `bits` cannot have, if it has both entries
/// and file extents.
fn remove_other_kind(plan: &mut Plan<'_>, number: u64, bits: u32) -> Result<(), RepairError> {
    let keys = Key::new(number, ItemType::MIN, 0)..=Key::new(number, ItemType::MAX, u64::MAX);
    for key in items::read(plan.writer, plan.tree, keys)?.into_keys() {
        let goes = match key.item_type {
            ItemType::EXTENT_DATA => bits == DIRECTORY,
            ItemType::DIR_ITEM | ItemType::DIR_INDEX => bits != DIRECTORY,
            _ => false,
        };
        if goes && key.item_type == ItemType::EXTENT_DATA {
            let text = format!("bytes of inode {number} from {} on", key.offset);
            plan.lose(StepKind::FileExtents, text);
        }
        if goes {
            plan.remove(StepKind::Items, key);
        }
    }
    Ok(())
}

/// An inode item for an inode of which only other items are left.
pub(super) fn new_inode(plan: &Plan<'_>, bits: u32, seen: &Seen) -> InodeItem {
    let generation = plan.writer.generation;
    let now = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(0));
    let time = Timespec {
        seconds,
        nanoseconds: 0,
    };
    let permissions = if bits == DIRECTORY { 0o700 } else { 0o600 };
    let is_file = bits == REGULAR || bits == SYMLINK;
    let size = match (bits == DIRECTORY, seen.is_inline) {
        (true, _) => seen.entry_bytes,
        (false, true) => seen.bytes,
        (false, false) => seen.end,
    };
    InodeItem {
        generation,
        transid: generation,
        size,
        nbytes: if is_file { seen.bytes } else { 0 },
        nlink: 1,
        mode: bits | permissions,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    }
}
