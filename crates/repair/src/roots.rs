//! The tree of roots: root items, references between subvolumes, UUIDs and
//! quota groups.

use crate::error::RepairError;
use crate::items::{self, Items};
use crate::names::{Entry, encode_entries, entries};
use crate::step::{Step, StepKind};
use crate::writer::Writer;
use butterfs_check::Report;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::FileType;
use butterfs_format::item::inode::{InodeItem, RefEntry};
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::uuid;
use butterfs_format::node::LEVEL_MAX;
use butterfs_format::{Generation, InodeNumber, ItemType, Key, TreeId, object};
use butterfs_tree::{Editor, NodeSource as _, find};
use std::collections::{BTreeMap, BTreeSet};

/// A link between two subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Link {
    directory: InodeNumber,
    index: u64,
    name: Vec<u8>,
}

impl Link {
    fn parse(data: &[u8]) -> Option<Self> {
        let link = RootRef::parse(data).ok()?;
        Some(Self {
            directory: link.directory,
            index: link.index,
            name: link.name.to_vec(),
        })
    }

    fn encode(&self) -> Vec<u8> {
        let link = RootRef {
            directory: self.directory,
            index: self.index,
            name: &self.name,
        };
        link.encode()
    }

    fn entry(&self, child: u64, generation: Generation) -> Entry {
        Entry {
            location: Key::new(child, ItemType::ROOT_ITEM, u64::MAX),
            generation,
            kind: FileType::Directory,
            name: self.name.clone(),
        }
    }
}

/// A root item without what no root item can have.
fn corrected(writer: &Writer, id: TreeId, old: &RootItem, is_named: bool) -> RootItem {
    let newest = writer.patient.superblock.generation;
    let most = newest.saturating_add(1);
    let mut item = old.clone();
    if item.last_snapshot > most {
        item.last_snapshot = newest;
    }
    // Fields behind a wrong second generation are still there.
    if item.generation_v2 > most {
        item.generation_v2 = item.generation;
    }
    if item.flags.0 & !RootFlags::known().0 != 0 {
        item.flags = RootFlags(item.flags.0 & RootFlags::known().0);
    }
    if id.is_subvolume() {
        if item.refs != 1 && (is_named || id == TreeId::FS || item.refs > 0) {
            item.refs = 1;
        }
        if item.root_dir != InodeNumber::ROOT {
            item.root_dir = InodeNumber::ROOT;
        }
    } else if id != TreeId::RELOC && item.refs != 1 {
        item.refs = 1;
    }
    if id == TreeId::DATA_RELOC && item.root_dir != InodeNumber::ROOT {
        item.root_dir = InodeNumber::ROOT;
    }
    let is_wrong = item.refs > 0
        || item.drop_level > LEVEL_MAX
        || item.drop_level > item.level
        || (item.drop_level == 0 && item.drop_progress.is_some());
    if is_wrong && id != TreeId::RELOC {
        item.drop_progress = None;
        item.drop_level = 0;
    }
    item
}

/// All links by (parent, child): those of the parents, and those of the
/// children.
type Links = (BTreeMap<(u64, u64), Link>, BTreeMap<(u64, u64), Link>);

fn links(all: &Items) -> Links {
    let mut links = Links::default();
    for (key, data) in all {
        let Some(link) = Link::parse(data) else {
            continue;
        };
        match key.item_type {
            ItemType::ROOT_REF => {
                links.0.insert((key.objectid, key.offset), link);
            }
            ItemType::ROOT_BACKREF => {
                links.1.insert((key.offset, key.objectid), link);
            }
            _ => {}
        }
    }
    links
}

/// The entry of a directory that leads to the subvolume `child`, if one does.
fn find_entry(writer: &Writer, child: u64) -> Result<Option<(u64, Link)>, RepairError> {
    let trees = writer.roots.keys().filter(|tree| tree.is_subvolume());
    for tree in trees {
        let mut found = None;
        // A damaged tree has other entries.
        let _ = items::each(writer, *tree, Key::MIN..=Key::MAX, |key, data| {
            if key.item_type == ItemType::DIR_INDEX && found.is_none() {
                let mut all = entries(key, data).into_iter();
                let entry =
                    all.find(|entry| entry.is_subvolume() && entry.location.objectid == child);
                found = entry.map(|entry| Link {
                    directory: InodeNumber(key.objectid),
                    index: key.offset,
                    name: entry.name,
                });
            }
            Ok(())
        });
        if let Some(link) = found {
            return Ok(Some((tree.get(), link)));
        }
    }
    Ok(None)
}

/// Puts the entries of a link into its directory, if they are missing there.
fn add_entries(
    writer: &mut Writer,
    (parent, child): (u64, u64),
    link: &Link,
) -> Result<usize, RepairError> {
    let tree = TreeId(parent);
    if writer.root(tree).is_err() {
        return Ok(0);
    }
    let generation = writer.generation;
    let wanted = link.entry(child, generation);
    let mut changed = 0_usize;
    let keys = [
        Key::new(
            link.directory.get(),
            ItemType::DIR_ITEM,
            name_hash(&link.name),
        ),
        Key::new(link.directory.get(), ItemType::DIR_INDEX, link.index),
    ];
    for key in keys {
        // A damaged tree is left as it is.
        let Ok(found) = find(writer, tree, &key) else {
            continue;
        };
        let data = found.map(|(leaf, slot)| leaf.data(slot).to_vec());
        let mut all = entries(key, &data.unwrap_or_default());
        let is_there = all.iter().any(|one| one.leads_to(&wanted));
        let is_taken = key.item_type == ItemType::DIR_INDEX && !all.is_empty();
        if is_there || is_taken || all.iter().any(|one| one.name == wanted.name) {
            continue;
        }
        all.push(wanted.clone());
        Editor::new(writer, tree).replace(&key, &encode_entries(&all))?;
        changed = changed.saturating_add(1);
    }
    Ok(changed)
}

/// Mends root items and the links between subvolumes.
///
/// # Errors
/// Reading or changing a tree.
pub(crate) fn mend(writer: &mut Writer, steps: &mut Vec<Step>) -> Result<(), RepairError> {
    let have = items::read(writer, TreeId::ROOT, Key::MIN..=Key::MAX)?;
    let mut want = have.clone();
    let (refs, backrefs) = links(&have);
    let named: BTreeSet<u64> = refs
        .keys()
        .chain(backrefs.keys())
        .map(|(_, child)| *child)
        .collect();
    let mut live = BTreeSet::new();
    for (key, data) in &have {
        let id = TreeId(key.objectid);
        let Ok(item) = RootItem::parse(data) else {
            continue;
        };
        if key.item_type != ItemType::ROOT_ITEM {
            continue;
        }
        let good = corrected(writer, id, &item, named.contains(&id.get()));
        let mut place = *key;
        let is_global = [
            TreeId::EXTENT,
            TreeId::CSUM,
            TreeId::FREE_SPACE,
            TreeId::DEVICE,
        ];
        if is_global.contains(&id) {
            place.offset = 0;
        }
        if good != item || place != *key {
            want.remove(key);
            want.insert(place, good.encode());
        }
        if let Some(root) = writer
            .roots
            .get_mut(&id)
            .filter(|root| root.key == Some(*key))
        {
            root.key = Some(place);
        }
        let orphan = Key::new(object::ORPHAN, ItemType::ORPHAN_ITEM, id.get());
        if id.is_subvolume() && good.refs == 0 {
            want.entry(orphan).or_default();
        } else if id.is_subvolume() {
            live.insert(id.get());
        }
    }
    own_directory(&mut want, &live);
    let fixed = items::change(writer, TreeId::ROOT, &have, &want)?;
    let mut linked = complete_links(writer, (refs, backrefs), &live)?;
    linked = linked.saturating_add(fixed);
    if linked > 0 {
        let text = format!("{linked} items.");
        steps.push(Step::new(StepKind::Roots, text));
    }
    Ok(())
}

/// The directory of the tree of roots, which names the default subvolume.
fn own_directory(want: &mut Items, live: &BTreeSet<u64>) {
    let directory = TreeId::ROOT_TREE_DIR.get();
    let inode = Key::new(directory, ItemType::INODE_ITEM, 0);
    if let Some(data) = want.get_mut(&inode)
        && let Ok(mut item) = InodeItem::parse(data)
        && item.mode & 0o170_000 != 0o040_000
    {
        item.mode = 0o040_755;
        *data = item.encode();
    }
    let dots = Key::new(directory, ItemType::INODE_REF, directory);
    if let Some(data) = want.get_mut(&dots) {
        *data = RefEntry {
            index: 0,
            name: b"..",
        }
        .encode();
    }
    let name = b"default";
    let key = Key::new(directory, ItemType::DIR_ITEM, name_hash(name));
    if let Some(data) = want.get_mut(&key) {
        let found = entries(key, data);
        let named = found
            .iter()
            .find(|entry| entry.name == name && entry.is_subvolume());
        let default = named.map(|entry| entry.location.objectid);
        if !default.is_some_and(|default| live.contains(&default)) {
            let entry = Entry {
                location: Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, u64::MAX),
                generation: Generation(0),
                kind: FileType::Directory,
                name: name.to_vec(),
            };
            *data = entry.encode();
        }
    }
}

/// Completes links of which one side is there.
fn complete_links(
    writer: &mut Writer,
    (mut refs, mut backrefs): Links,
    live: &BTreeSet<u64>,
) -> Result<usize, RepairError> {
    let mut changed = 0_usize;
    let known: BTreeSet<(u64, u64)> = refs.keys().chain(backrefs.keys()).copied().collect();
    for child in live.iter().filter(|child| **child != TreeId::FS.get()) {
        if !known.iter().any(|(_, known)| known == child)
            && let Some((parent, link)) = find_entry(writer, *child)?
        {
            refs.insert((parent, *child), link);
        }
    }
    let all: BTreeSet<(u64, u64)> = refs.keys().chain(backrefs.keys()).copied().collect();
    for (parent, child) in all {
        let ends = [
            Key::new(parent, ItemType::ROOT_REF, child),
            Key::new(child, ItemType::ROOT_BACKREF, parent),
        ];
        let is_dead = !live.contains(&child) || !live.contains(&parent);
        if is_dead {
            // A subvolume that is deleted has no parent any more.
            if !live.contains(&child) {
                for key in ends {
                    let removed = Editor::new(writer, TreeId::ROOT).remove(&key)?;
                    changed = changed.saturating_add(usize::from(removed));
                }
            }
            continue;
        }
        let (one, other) = (
            refs.remove(&(parent, child)),
            backrefs.remove(&(parent, child)),
        );
        let link = match (one, other) {
            (Some(one), Some(other)) if one == other => one,
            (Some(one), Some(other)) => match find_entry(writer, child)? {
                Some((_, link)) if link == one || link == other => link,
                _ => one,
            },
            (one, other) => match one.or(other) {
                Some(link) => link,
                None => continue,
            },
        };
        let data = link.encode();
        for key in ends {
            let have =
                butterfs_tree::see_item(writer, TreeId::ROOT, &key, |have| *have == data[..])?;
            if have != Some(true) {
                Editor::new(writer, TreeId::ROOT).replace(&key, &data)?;
                changed = changed.saturating_add(1);
            }
        }
        changed = changed.saturating_add(add_entries(writer, (parent, child), &link)?);
    }
    Ok(changed)
}

/// Makes the UUID tree equal to the root items.
///
/// # Errors
/// Reading or changing a tree.
pub(crate) fn uuids(writer: &mut Writer, steps: &mut Vec<Step>) -> Result<(), RepairError> {
    if writer.root(TreeId::UUID).is_err() {
        return Ok(());
    }
    let mut wanted: BTreeMap<Key, BTreeSet<TreeId>> = BTreeMap::new();
    items::each(writer, TreeId::ROOT, Key::MIN..=Key::MAX, |key, data| {
        let id = TreeId(key.objectid);
        if key.item_type == ItemType::ROOT_ITEM
            && id.is_subvolume()
            && let Ok(item) = RootItem::parse(data)
            && item.refs > 0
        {
            let both = [
                (item.uuid, ItemType::UUID_SUBVOL),
                (item.received_uuid, ItemType::UUID_RECEIVED_SUBVOL),
            ];
            for (uuid, kind) in both.into_iter().filter(|(uuid, _)| *uuid != [0; 16]) {
                wanted.entry(uuid::key(&uuid, kind)).or_default().insert(id);
            }
        }
        Ok(())
    })?;
    let have = items::read(writer, TreeId::UUID, Key::MIN..=Key::MAX)?;
    let mut want = Items::new();
    for (key, trees) in wanted {
        let same = have.get(&key).filter(|data| {
            let parsed = uuid::parse(data);
            parsed.is_ok_and(|all| {
                all.len() == trees.len() && all.iter().all(|one| trees.contains(one))
            })
        });
        let trees: Vec<TreeId> = trees.into_iter().collect();
        let data = same.cloned().unwrap_or_else(|| uuid::encode(&trees));
        want.insert(key, data);
    }
    let changed = items::change(writer, TreeId::UUID, &have, &want)?;
    if changed > 0 {
        steps.push(Step::new(StepKind::Uuids, format!("{changed} items.")));
    }
    Ok(())
}

/// Says that the quota numbers are those of the generation that is written, if
/// they were those of the one before. False if nothing was changed.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn keep_quotas(writer: &mut Writer) -> Result<bool, RepairError> {
    /// Where the generation lies in the status.
    const GENERATION: std::ops::Range<usize> = 8..16;
    if writer.root(TreeId::QUOTA).is_err() {
        return Ok(false);
    }
    let key = Key::new(0, ItemType::QGROUP_STATUS, 0);
    // A damaged tree is left alone.
    let Ok(Some((leaf, slot))) = find(writer, TreeId::QUOTA, &key) else {
        return Ok(false);
    };
    let mut data = leaf.data(slot).to_vec();
    let before = writer.patient.superblock.generation.get().to_le_bytes();
    match data.get_mut(GENERATION) {
        Some(field) if *field == before => {
            field.copy_from_slice(&writer.generation.get().to_le_bytes());
        }
        _ => return Ok(false),
    }
    Editor::new(writer, TreeId::QUOTA).replace(&key, &data)?;
    Ok(true)
}

/// Gives quota groups the numbers that the check counted, and adds those that
/// subvolumes lack.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn quotas(
    writer: &mut Writer,
    report: Option<&Report>,
    steps: &mut Vec<Step>,
) -> Result<(), RepairError> {
    let tree = TreeId::QUOTA;
    if writer.root(tree).is_err() {
        return Ok(());
    }
    let have = items::read(writer, tree, Key::MIN..=Key::MAX)?;
    let mut want = have.clone();
    for group in report.iter().flat_map(|report| &report.quota_groups) {
        let key = have
            .keys()
            .find(|key| key.item_type == ItemType::QGROUP_INFO && key.offset == group.group.0);
        let Some(data) = key.and_then(|key| want.get_mut(key)) else {
            continue;
        };
        let numbers = [
            group.referenced,
            group.referenced,
            group.exclusive,
            group.exclusive,
        ];
        for (number, at) in numbers.into_iter().zip([8_usize, 16, 24, 32]) {
            if let Some(field) = data.get_mut(at..at.saturating_add(8)) {
                field.copy_from_slice(&number.to_le_bytes());
            }
        }
    }
    let groups: BTreeSet<u64> = writer
        .roots
        .keys()
        .filter(|tree| tree.is_subvolume())
        .map(|tree| tree.get())
        .chain(
            have.keys()
                .filter(|key| key.item_type == ItemType::QGROUP_LIMIT)
                .map(|key| key.offset),
        )
        .collect();
    for group in groups {
        for kind in [ItemType::QGROUP_INFO, ItemType::QGROUP_LIMIT] {
            want.entry(Key::new(0, kind, group))
                .or_insert_with(|| vec![0; 40]);
        }
    }
    for key in have
        .keys()
        .filter(|key| key.item_type == ItemType::QGROUP_RELATION)
    {
        let back = Key::new(key.offset, key.item_type, key.objectid);
        want.entry(back).or_default();
    }
    let changed = items::change(writer, tree, &have, &want)?;
    if changed > 0 {
        steps.push(Step::new(StepKind::Quotas, format!("{changed} items.")));
    }
    Ok(())
}
