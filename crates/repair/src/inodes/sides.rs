//! Third pass: the three sides of each name.

use super::{Plan, ROOT, each};
use crate::error::RepairError;
use crate::items;
use crate::names::{
    DIRECTORY, Entry, INDEX_END, KIND, Own, encode_entries, encode_own, entries, is_inode,
    own_names, type_of,
};
use crate::step::StepKind;
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::{Generation, InodeNumber, ItemType, Key, TreeId};
use butterfs_tree::find;

/// Third pass: makes the three sides of each name agree.
pub(super) fn sides_of_names(plan: &mut Plan<'_>) -> Result<(), RepairError> {
    each(plan, |plan, key, data| {
        if !is_inode(key.objectid) {
            return Ok(());
        }
        match key.item_type {
            ItemType::INODE_REF | ItemType::INODE_EXTREF if key.objectid != ROOT => {
                for own in own_names(key, data) {
                    from_own(plan, key, &own)?;
                }
            }
            ItemType::DIR_INDEX => {
                for entry in entries(key, data) {
                    from_index(plan, key, &entry)?;
                }
            }
            ItemType::DIR_ITEM => {
                for entry in entries(key, data) {
                    from_hash(plan, key, &entry)?;
                }
            }
            _ => {}
        }
        Ok(())
    })
}

/// The entries of a directory by the hash of `name`.
pub(super) fn hashed(
    plan: &Plan<'_>,
    directory: u64,
    name: &[u8],
) -> Result<(Key, Vec<Entry>), RepairError> {
    let key = Key::new(directory, ItemType::DIR_ITEM, name_hash(name));
    let data = plan.get(&key)?.unwrap_or_default();
    Ok((key, entries(key, &data)))
}

fn indexed(plan: &Plan<'_>, directory: u64, index: u64) -> Result<Option<Entry>, RepairError> {
    let key = Key::new(directory, ItemType::DIR_INDEX, index);
    let data = plan.get(&key)?.unwrap_or_default();
    Ok(entries(key, &data).into_iter().next())
}

/// Removes a name from an inode's own record.
fn drop_own(plan: &mut Plan<'_>, key: Key, own: &Own) -> Result<(), RepairError> {
    let data = plan.get(&key)?.unwrap_or_default();
    let mut all = own_names(key, &data);
    all.retain(|one| one != own);
    match all.is_empty() {
        true => plan.remove(StepKind::Names, key),
        false => plan.put(StepKind::Names, key, encode_own(key, &all)),
    }
    Ok(())
}

/// Adds an entry by hash.
pub(super) fn add_hashed(
    plan: &mut Plan<'_>,
    directory: u64,
    entry: &Entry,
) -> Result<(), RepairError> {
    let (key, mut all) = hashed(plan, directory, &entry.name)?;
    all.retain(|one| one.name != entry.name);
    all.push(entry.clone());
    plan.put(StepKind::Names, key, encode_entries(&all));
    Ok(())
}

/// Adds a name to an inode's own record.
pub(super) fn add_own(plan: &mut Plan<'_>, inode: u64, own: &Own) -> Result<(), RepairError> {
    let most = butterfs_tree::Node::item_data_max(plan.writer.patient.identity.node_size);
    let plain = Key::new(inode, ItemType::INODE_REF, own.parent);
    let hash = extref_hash(InodeNumber(own.parent), &own.name);
    let extended = Key::new(inode, ItemType::INODE_EXTREF, hash);
    for key in [plain, extended] {
        let data = plan.get(&key)?.unwrap_or_default();
        let mut all = own_names(key, &data);
        all.retain(|one| (one.parent, &one.name) != (own.parent, &own.name));
        all.push(own.clone());
        let data = encode_own(key, &all);
        if data.len() < most {
            plan.put(StepKind::Names, key, data);
            return Ok(());
        }
    }
    Ok(())
}

/// An inode's own record names an entry of a directory.
fn from_own(plan: &mut Plan<'_>, key: Key, own: &Own) -> Result<(), RepairError> {
    let number = key.objectid;
    let parent = plan.inode(own.parent)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    let item = plan.inode(number)?;
    let kind = item.as_ref().and_then(|item| type_of(item.mode));
    let (true, Some(kind)) = (is_directory, kind) else {
        return drop_own(plan, key, own);
    };
    let generation = item.map_or(Generation(0), |item| item.transid);
    let wanted = Entry {
        location: Key::new(number, ItemType::INODE_ITEM, 0),
        generation,
        kind,
        name: own.name.clone(),
    };
    let (_, by_hash) = hashed(plan, own.parent, &own.name)?;
    let same_name = by_hash.iter().find(|one| one.name == own.name);
    if let Some(other) = same_name.filter(|one| !one.leads_to(&wanted)) {
        // The name leads elsewhere. If that inode has the name too, it keeps it.
        if other.is_subvolume() || has_own(plan, other.location.objectid, own.parent, &own.name)? {
            return drop_own(plan, key, own);
        }
    }
    let fits =
        |one: Option<&Entry>| one.is_some_and(|one| one.leads_to(&wanted) && one.kind == kind);
    if !fits(same_name) {
        add_hashed(plan, own.parent, &wanted)?;
    }
    let by_index = indexed(plan, own.parent, own.index)?;
    if fits(by_index.as_ref()) {
        return Ok(());
    }
    let is_taken = by_index.is_some_and(|one| one.name != own.name);
    let index = match is_taken || own.index < 2 || own.index.saturating_add(1) >= INDEX_END {
        false => own.index,
        true => {
            let index = plan.new_index(own.parent)?;
            drop_own(plan, key, own)?;
            let moved = Own {
                index,
                ..own.clone()
            };
            add_own(plan, number, &moved)?;
            index
        }
    };
    let at = Key::new(own.parent, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, wanted.encode());
    Ok(())
}

/// Whether an inode's own record has a name in a directory.
fn has_own(plan: &Plan<'_>, inode: u64, parent: u64, name: &[u8]) -> Result<bool, RepairError> {
    Ok(own_of(plan, inode, parent, name)?.is_some())
}

fn own_of(
    plan: &Plan<'_>,
    inode: u64,
    parent: u64,
    name: &[u8],
) -> Result<Option<Own>, RepairError> {
    let plain = Key::new(inode, ItemType::INODE_REF, parent);
    let hash = extref_hash(InodeNumber(parent), name);
    let extended = Key::new(inode, ItemType::INODE_EXTREF, hash);
    for key in [plain, extended] {
        let data = plan.get(&key)?.unwrap_or_default();
        let mut all = own_names(key, &data).into_iter();
        if let Some(own) = all.find(|own| own.parent == parent && own.name == name) {
            return Ok(Some(own));
        }
    }
    Ok(None)
}

/// Takes a name out of a directory's entries.
fn drop_entry(
    plan: &mut Plan<'_>,
    directory: u64,
    index: Option<u64>,
    entry: &Entry,
) -> Result<(), RepairError> {
    if let Some(index) = index {
        plan.remove(
            StepKind::Names,
            Key::new(directory, ItemType::DIR_INDEX, index),
        );
    }
    let (key, mut all) = hashed(plan, directory, &entry.name)?;
    let before = all.len();
    all.retain(|one| !one.leads_to(entry));
    if all.len() == before {
        return Ok(());
    }
    match all.is_empty() {
        true => plan.remove(StepKind::Names, key),
        false => plan.put(StepKind::Names, key, encode_entries(&all)),
    }
    Ok(())
}

/// A directory's index has an entry.
fn from_index(plan: &mut Plan<'_>, key: Key, entry: &Entry) -> Result<(), RepairError> {
    // It was dropped or replaced meanwhile.
    if indexed(plan, key.objectid, key.offset)?.as_ref() != Some(entry) {
        return Ok(());
    }
    let (_, by_hash) = hashed(plan, key.objectid, &entry.name)?;
    let same = by_hash.iter().find(|one| one.name == entry.name);
    if entry.is_subvolume() {
        if same.is_none() {
            add_hashed(plan, key.objectid, entry)?;
        }
        return Ok(());
    }
    let number = entry.location.objectid;
    let parent = plan.inode(key.objectid)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    if !is_directory || !plan.has_items(number)? {
        let text = format!(
            "the name {:?}, whose inode is gone",
            String::from_utf8_lossy(&entry.name)
        );
        plan.lose(StepKind::Names, text);
        return drop_entry(plan, key.objectid, Some(key.offset), entry);
    }
    if let Some(other) = same.filter(|one| !one.leads_to(entry)) {
        let (inode, parent) = (other.location.objectid, key.objectid);
        if other.is_subvolume() || has_own(plan, inode, parent, &entry.name)? {
            plan.remove(StepKind::Names, key);
            return Ok(());
        }
    }
    match own_of(plan, number, key.objectid, &entry.name)? {
        // Another index has the name.
        Some(own) if own.index != key.offset => plan.remove(StepKind::Names, key),
        Some(_) => {}
        None => {
            let own = Own {
                parent: key.objectid,
                index: key.offset,
                name: entry.name.clone(),
            };
            add_own(plan, number, &own)?;
            if !same.is_some_and(|one| one.leads_to(entry)) {
                add_hashed(plan, key.objectid, entry)?;
            }
        }
    }
    Ok(())
}

/// A directory has an entry by hash.
fn from_hash(plan: &mut Plan<'_>, key: Key, entry: &Entry) -> Result<(), RepairError> {
    let (_, now) = hashed(plan, key.objectid, &entry.name)?;
    if !now.iter().any(|one| one.leads_to(entry)) {
        return Ok(());
    }
    let number = entry.location.objectid;
    if entry.is_subvolume() {
        return subvolume_index(plan, key.objectid, entry);
    }
    if own_of(plan, number, key.objectid, &entry.name)?.is_some() {
        return Ok(());
    }
    let parent = plan.inode(key.objectid)?;
    let is_directory = parent.is_some_and(|item| item.mode & KIND == DIRECTORY);
    if !is_directory || !plan.has_items(number)? {
        return drop_entry(plan, key.objectid, None, entry);
    }
    let own = Own {
        parent: key.objectid,
        index: index_of(plan, key.objectid, entry)?,
        name: entry.name.clone(),
    };
    add_own(plan, number, &own)
}

/// The index of an entry in its directory; a new one if it has none.
fn index_of(plan: &mut Plan<'_>, directory: u64, entry: &Entry) -> Result<u64, RepairError> {
    let keys = Key::new(directory, ItemType::DIR_INDEX, 0)
        ..=Key::new(directory, ItemType::DIR_INDEX, u64::MAX);
    let mut index = None;
    items::each(plan.writer, plan.tree, keys, |key, data| {
        if entries(key, data).iter().any(|one| one.leads_to(entry)) {
            index = Some(key.offset);
        }
        Ok(())
    })?;
    if let Some(index) = index {
        return Ok(index);
    }
    let index = plan.new_index(directory)?;
    let at = Key::new(directory, ItemType::DIR_INDEX, index);
    plan.put(StepKind::Names, at, entry.encode());
    Ok(index)
}

/// Gives the entry of a subvolume its index, if that is lost. The reference to
/// the subvolume knows it; in a snapshot, the entry has no reference.
fn subvolume_index(plan: &mut Plan<'_>, directory: u64, entry: &Entry) -> Result<(), RepairError> {
    use butterfs_format::item::root_ref::RootRef;
    let child = entry.location.objectid;
    let key = Key::new(plan.tree.get(), ItemType::ROOT_REF, child);
    let found = find(plan.writer, TreeId::ROOT, &key)?;
    let link = found.and_then(|(leaf, slot)| {
        let link = RootRef::parse(leaf.data(slot)).ok()?;
        (link.name == entry.name && link.directory.get() == directory).then_some(link.index)
    });
    let Some(index) = link else {
        return index_of(plan, directory, entry).map(drop);
    };
    if indexed(plan, directory, index)?.is_none() {
        let at = Key::new(directory, ItemType::DIR_INDEX, index);
        plan.put(StepKind::Names, at, entry.encode());
    }
    Ok(())
}
