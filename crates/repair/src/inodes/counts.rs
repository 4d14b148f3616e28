//! Fourth pass: what inodes count, and inodes without a name.

use super::missing::new_inode;
use super::seen::{Seen, each_inode};
use super::sides::{add_hashed, add_own, hashed};
use super::{Plan, ROOT};
use crate::error::RepairError;
use crate::file_extents;
use crate::names::{DIRECTORY, Entry, KIND, Own, REGULAR, SYMLINK, type_of};
use crate::step::StepKind;
use butterfs_format::item::dir::FileType;
use butterfs_format::item::inode::{InodeItem, LINKS_MAX};
use butterfs_format::{ItemType, Key, object};

/// Fourth pass: makes what inodes count true, and gives inodes without a name
/// one.
pub(super) fn counts(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    let has_no_holes = plan.writer.patient.superblock.has_no_holes();
    let sector = u64::from(plan.writer.patient.superblock.sector_size);
    let mut nameless: Vec<(u64, InodeItem)> = Vec::new();
    each_inode(plan, |plan, seen| {
        let Some(old) = &seen.item else {
            return Ok(());
        };
        let key = Key::new(seen.number, ItemType::INODE_ITEM, 0);
        let orphan = Key::new(object::ORPHAN, ItemType::ORPHAN_ITEM, seen.number);
        let mut item = old.clone();
        let kind = item.mode & KIND;
        let links = match kind == DIRECTORY {
            true => seen.names.min(1),
            false => seen.names.min(u64::from(LINKS_MAX)),
        };
        if seen.names > 0 {
            item.nlink = u32::try_from(links).unwrap_or(LINKS_MAX);
        }
        if item.nlink > 0 {
            match kind {
                DIRECTORY => item.size = seen.entry_bytes,
                SYMLINK if seen.is_inline => {
                    let target = seen.bytes.saturating_sub(u64::from(seen.ends_with_nul));
                    if item.size != seen.bytes && item.size != target {
                        item.size = target;
                    }
                }
                SYMLINK => item.size = item.size.min(seen.bytes),
                _ => {}
            }
            if kind != DIRECTORY {
                item.nbytes = seen.bytes;
            }
        }
        let has_orphan = plan.get(&orphan)?.is_some();
        if seen.names == 0 {
            match (old.nlink == 0 || has_orphan, has_orphan) {
                (true, false) => plan.put(StepKind::Orphans, orphan, Vec::new()),
                (true, true) => item.nlink = 0,
                (false, _) if seen.number == ROOT => {}
                (false, _) => {
                    nameless.push((seen.number, item.clone()));
                    return Ok(());
                }
            }
        } else if old.nlink == 0 && has_orphan {
            plan.remove(StepKind::Orphans, orphan);
        }
        if item != *old {
            plan.put(StepKind::Inodes, key, item.encode());
        }
        if kind == REGULAR && !has_no_holes && item.size > 0 {
            let size = item.size.next_multiple_of(sector.max(1));
            let last = (seen.end < size).then_some((seen.end, size));
            let holes = seen.holes.iter().copied().chain(last);
            for (from, to) in holes.filter(|(from, _)| *from < size) {
                let at = Key::new(seen.number, ItemType::EXTENT_DATA, from);
                plan.put(
                    StepKind::FileExtents,
                    at,
                    file_extents::hole(plan.writer, to.min(size).saturating_sub(from)),
                );
            }
        }
        Ok(())
    })?;
    lost_and_found(plan, nameless)
}

/// Gives inodes names in lost+found.
fn lost_and_found(plan: &mut Plan<'_>, nameless: Vec<(u64, InodeItem)>) -> Result<(), RepairError> {
    if nameless.is_empty() {
        return Ok(());
    }
    let name = b"lost+found".to_vec();
    let (_, all) = hashed(plan, ROOT, &name)?;
    let there = all
        .iter()
        .find(|one| one.name == name && !one.is_subvolume());
    let directory = match there {
        Some(entry) => entry.location.objectid,
        None => {
            let number = plan.new_inode()?;
            let item = new_inode(plan, DIRECTORY, &Seen::of(number));
            let key = Key::new(number, ItemType::INODE_ITEM, 0);
            plan.put(StepKind::LostAndFound, key, item.encode());
            add_name(plan, ROOT, number, FileType::Directory, &name)?;
            number
        }
    };
    for (number, mut item) in nameless {
        let kind = type_of(item.mode).unwrap_or(FileType::Regular);
        let name = format!("inode-{number}").into_bytes();
        item.nlink = 1;
        let key = Key::new(number, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::LostAndFound, key, item.encode());
        add_name(plan, directory, number, kind, &name)?;
    }
    Ok(())
}

/// Adds a name on all three sides, and its bytes to the directory's size.
fn add_name(
    plan: &mut Plan<'_>,
    directory: u64,
    number: u64,
    kind: FileType,
    name: &[u8],
) -> Result<(), RepairError> {
    let index = plan.new_index(directory)?;
    let entry = Entry {
        location: Key::new(number, ItemType::INODE_ITEM, 0),
        generation: plan.writer.generation,
        kind,
        name: name.to_vec(),
    };
    add_hashed(plan, directory, &entry)?;
    let at = Key::new(directory, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, entry.encode());
    let own = Own {
        parent: directory,
        index,
        name: name.to_vec(),
    };
    add_own(plan, number, &own)?;
    if let Some(mut item) = plan.inode(directory)? {
        let bytes = u64::try_from(name.len()).unwrap_or(0);
        item.size = item.size.saturating_add(bytes.saturating_mul(2));
        let key = Key::new(directory, ItemType::INODE_ITEM, 0);
        plan.put(StepKind::Inodes, key, item.encode());
    }
    Ok(())
}
