//! The end of a repair: all accounts are brought to what the trees hold now, and
//! the superblock names the new trees.
//!
//! Owns the bounded loop in which writing the accounts changes the accounts: new
//! nodes of the extent tree need extents, and take free space.

use crate::error::RepairError;
use crate::extents::{self, Extent, Merged, Unknown};
use crate::free_space;
use crate::items::{self, Items};
use crate::ranges::Ranges;
use crate::roots;
use crate::walk::{By, Found, FoundNode};
use crate::writer::{Born, Writer};
use butterfs_format::features::CompatRo;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::BackupRoot;
use butterfs_format::{Generation, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_tree::{Editor, NodeSource};
use std::collections::BTreeMap;

/// Rounds after which the loop must have ended. Real volumes need three or four.
const ROUNDS_MAX: usize = 64;

/// Whether superblocks have to be written in any case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Superblocks {
    /// They have.
    Wrong,
    /// They are right.
    Right,
}

/// What was corrected.
#[derive(Debug, Default)]
pub(crate) struct Settled {
    pub(crate) extents: Merged,
    pub(crate) free_space: usize,
    pub(crate) groups: usize,
    /// The superblock's sum before, if it was wrong.
    pub(crate) bytes_used_was: Option<u64>,
    pub(crate) is_valid_before: bool,
    /// A superblock was written.
    pub(crate) is_published: bool,
}

/// The tree that has the block group items.
fn group_tree(writer: &Writer) -> TreeId {
    match writer.patient.superblock.has_block_group_tree() {
        true => TreeId::BLOCK_GROUP,
        false => TreeId::EXTENT,
    }
}

/// Makes block group items equal to chunks and extents; gives how many changed.
fn groups(writer: &mut Writer, allocated: &Ranges) -> Result<usize, RepairError> {
    let tree = group_tree(writer);
    let mut have = Items::new();
    items::each(writer, tree, Key::MIN..=Key::MAX, |key, data| {
        // The tree for block groups holds nothing else.
        if key.item_type == ItemType::BLOCK_GROUP_ITEM || tree == TreeId::BLOCK_GROUP {
            have.insert(key, data.to_vec());
        }
        Ok(())
    })?;
    let want: Items = writer
        .groups()
        .iter()
        .map(|group| {
            let end = group.start.saturating_add(group.length);
            let item = BlockGroupItem {
                used: allocated.bytes_within(group.start..end),
                chunk_objectid: CHUNK_OBJECTID,
                flags: group.flags,
            };
            let key = Key::new(group.start, ItemType::BLOCK_GROUP_ITEM, group.length);
            (key, item.encode())
        })
        .collect();
    items::change(writer, tree, &have, &want)
}

/// Nodes of the tree below `at`; leaves are not read.
fn count_nodes(writer: &Writer, at: NodeRef) -> Result<u64, RepairError> {
    if at.level == 0 {
        return Ok(1);
    }
    let node = writer.node(at)?;
    if at.level == 1 {
        return Ok(u64::try_from(node.len()).unwrap_or(0).saturating_add(1));
    }
    let mut count = 1_u64;
    for slot in 0..node.len() {
        count = count.saturating_add(count_nodes(writer, node.child(slot))?);
    }
    Ok(count)
}

/// Makes root items name the trees as they are now; gives how many changed.
fn root_bytes(
    writer: &mut Writer,
    counted: &BTreeMap<TreeId, RootItem>,
    count: Count,
) -> Result<usize, RepairError> {
    let mut changed = 0_usize;
    let bytes = writer.patient.node_bytes();
    let trees: Vec<TreeId> = match count {
        Count::All => writer.roots.keys().copied().collect(),
        Count::Changed => writer.changed.iter().copied().collect(),
    };
    for tree in trees {
        let Some(root) = writer.roots.get(&tree).copied() else {
            continue;
        };
        let Some(key) = root.key else {
            continue;
        };
        let old = counted.get(&tree).cloned();
        let mut item = old.unwrap_or_else(|| new_root(writer.generation));
        item.logical = root.node.logical;
        item.generation = root.node.generation;
        item.generation_v2 = root.node.generation;
        item.level = root.node.level;
        // The number of a tree that is being deleted stays, and that of one that
        // cannot be read.
        if item.refs > 0
            && let Ok(count) = count_nodes(writer, root.node)
        {
            item.bytes_used = count.saturating_mul(bytes);
        }
        let data = item.encode();
        let have = butterfs_tree::see_item(writer, TreeId::ROOT, &key, |have| {
            // An old item has fewer fields.
            RootItem::parse(have).is_ok_and(|have| have.encode() == data)
        })?;
        if have != Some(true) {
            Editor::new(writer, TreeId::ROOT).replace(&key, &data)?;
            changed = changed.saturating_add(1);
        }
    }
    Ok(changed)
}

/// Whose nodes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Those of all trees: the check found a wrong number.
    All,
    /// Those of trees that changed.
    Changed,
}

fn new_root(generation: Generation) -> RootItem {
    RootItem {
        root_dir: InodeNumber(0),
        refs: 1,
        generation,
        generation_v2: generation,
        ..RootItem::default()
    }
}

/// The root items of trees, before their bytes change.
fn root_items(writer: &Writer) -> Result<BTreeMap<TreeId, RootItem>, RepairError> {
    let mut all = BTreeMap::new();
    items::each(writer, TreeId::ROOT, Key::MIN..=Key::MAX, |key, data| {
        let id = TreeId(key.objectid);
        let is_own = writer
            .roots
            .get(&id)
            .is_some_and(|root| root.key == Some(key));
        if key.item_type == ItemType::ROOT_ITEM
            && is_own
            && let Ok(item) = RootItem::parse(data)
        {
            all.insert(id, item);
        }
        Ok(())
    })?;
    Ok(all)
}

/// Records the nodes that were made and given up since `known`; gives how many.
fn own_nodes(
    writer: &mut Writer,
    known: &mut (BTreeMap<u64, Born>, BTreeMap<u64, u8>),
    allocated: &mut Ranges,
) -> Result<usize, RepairError> {
    let form = extents::form(writer);
    let node = writer.patient.node_bytes();
    let mut changed = 0_usize;
    let (born, gone) = (writer.born.clone(), writer.gone.clone());
    let new = born.iter().filter(|(at, one)| known.0.get(at) != Some(one));
    let new: Vec<(u64, Born)> = new.map(|(at, one)| (*at, *one)).collect();
    let unborn = known.0.iter().filter(|(at, one)| born.get(at) != Some(one));
    let unborn: Vec<(u64, u8)> = unborn.map(|(at, one)| (*at, one.level)).collect();
    let dead = gone.iter().filter(|(at, _)| !known.1.contains_key(at));
    let dead: Vec<(u64, u8)> = dead.map(|(at, level)| (*at, *level)).collect();
    *known = (born, gone);
    for (at, _) in unborn.into_iter().chain(dead) {
        let keys = Key::new(at, ItemType::MIN, 0)..=Key::new(at, ItemType::MAX, u64::MAX);
        let mut have = items::read(writer, TreeId::EXTENT, keys)?;
        have.retain(|key, _| key.item_type != ItemType::BLOCK_GROUP_ITEM);
        items::change(writer, TreeId::EXTENT, &have, &Items::new())?;
        allocated.remove(at..at.saturating_add(node));
        changed = changed.saturating_add(1);
    }
    for (at, one) in new {
        let first_key = writer
            .node(NodeRef {
                logical: Logical(at),
                generation: writer.generation,
                level: one.level,
            })
            .ok()
            .and_then(|node| node.first_key());
        let found = FoundNode {
            logical: at,
            generation: writer.generation.get(),
            level: one.level,
            is_parent: false,
            first_key: first_key.unwrap_or(Key::MIN),
        };
        let extent = Extent::of_node(&found, std::iter::once(By::Tree(one.tree.get())));
        let mut editor = Editor::new(writer, TreeId::EXTENT);
        for (key, data) in extent.items(form, None) {
            editor.replace(&key, &data)?;
        }
        allocated.add(at..at.saturating_add(node));
        changed = changed.saturating_add(1);
    }
    Ok(changed)
}

/// Brings all accounts to what `found` holds, and publishes the new state.
/// `found` is a walk of the trees as they are now. If nothing is to be changed,
/// nothing is written, unless the superblocks are wrong.
///
/// # Errors
/// [`RepairError::NoSpace`], [`RepairError::Endless`], reading, writing.
pub(crate) fn settle(
    writer: &mut Writer,
    found: &Found,
    unknown: Unknown,
    (superblocks, count): (Superblocks, Count),
) -> Result<Settled, RepairError> {
    let counted = root_items(writer)?;
    let mut known = (writer.born.clone(), writer.gone.clone());
    let mut extents = extents::merge(writer, found, unknown)?;
    let allocated = &mut extents.allocated;
    let compat = writer.patient.superblock.compat_ro;
    let has_free_space = compat.contains(CompatRo::FREE_SPACE_TREE);
    let mut settled = Settled {
        is_valid_before: !has_free_space || compat.contains(CompatRo::FREE_SPACE_TREE_VALID),
        ..Settled::default()
    };
    let mut is_first = true;
    let mut rounds = 0..ROUNDS_MAX;
    let bytes_used = loop {
        if rounds.next().is_none() {
            return Err(RepairError::Endless);
        }
        let mut changed = own_nodes(writer, &mut known, allocated)?;
        let in_groups = groups(writer, allocated)?;
        let in_free_space = match has_free_space {
            true => free_space::merge(writer, allocated)?,
            false => 0,
        };
        if is_first {
            settled.groups = in_groups;
            settled.free_space = in_free_space;
            is_first = false;
        }
        changed = changed
            .saturating_add(in_groups)
            .saturating_add(in_free_space);
        changed = changed.saturating_add(root_bytes(writer, &counted, count)?);
        let is_quiet = known == (writer.born.clone(), writer.gone.clone());
        if changed > 0 || !is_quiet {
            continue;
        }
        let bytes_used = bytes_in_groups(writer, allocated);
        settled.is_published = writer.is_changed()
            || writer.patient.superblock.bytes_used != bytes_used
            || !settled.is_valid_before
            || superblocks == Superblocks::Wrong;
        if settled.is_published && roots::keep_quotas(writer)? {
            continue;
        }
        // The root of the tree of roots has the superblock's generation.
        if settled.is_published && !writer.changed.contains(&TreeId::ROOT) {
            Editor::new(writer, TreeId::ROOT).touch(&Key::MIN)?;
            continue;
        }
        break bytes_used;
    };
    let before = writer.patient.superblock.bytes_used;
    if settled.is_published {
        settled.bytes_used_was = (before != bytes_used).then_some(before);
        superblock(writer, bytes_used);
        writer.write_waiting()?;
        writer.patient.publish()?;
    }
    settled.extents = extents;
    Ok(settled)
}

/// Bytes of all extents in block groups.
fn bytes_in_groups(writer: &Writer, allocated: &Ranges) -> u64 {
    let all = writer.groups().iter().map(|group| {
        let end = group.start.saturating_add(group.length);
        allocated.bytes_within(group.start..end)
    });
    all.fold(0, u64::saturating_add)
}

/// Makes the superblock name the new trees.
fn superblock(writer: &mut Writer, bytes_used: u64) {
    let generation = writer.generation;
    let root = |tree| writer.roots.get(&tree).map(|root| root.node);
    let none = NodeRef {
        logical: Logical(0),
        generation: Generation(0),
        level: 0,
    };
    let mut own = writer.patient.superblock.clone();
    // The root of the tree of roots has the superblock's generation.
    own.generation = generation;
    if !writer.keeps_log {
        own.log_root = Logical(0);
        own.log_root_level = 0;
    }
    own.bytes_used = bytes_used;
    if let Some(node) = root(TreeId::ROOT) {
        own.root = node.logical;
        own.root_level = node.level;
    }
    if let Some(node) = root(TreeId::CHUNK) {
        own.chunk_root = node.logical;
        own.chunk_root_generation = node.generation;
        own.chunk_root_level = node.level;
    }
    if own.compat_ro.contains(CompatRo::FREE_SPACE_TREE) {
        own.compat_ro |= CompatRo::FREE_SPACE_TREE_VALID;
    }
    if own.uuid_tree_generation.get() != 0 {
        own.uuid_tree_generation = generation;
    }
    if own.cache_generation == generation.get() {
        own.cache_generation = u64::MAX;
    }
    let backup = BackupRoot {
        tree_root: root(TreeId::ROOT).unwrap_or(none),
        chunk_root: root(TreeId::CHUNK).unwrap_or(none),
        extent_root: root(TreeId::EXTENT).unwrap_or(none),
        fs_root: root(TreeId::FS).unwrap_or(none),
        device_root: root(TreeId::DEVICE).unwrap_or(none),
        csum_root: root(TreeId::CSUM).unwrap_or(none),
        total_bytes: own.total_bytes,
        bytes_used,
        num_devices: own.num_devices,
    };
    let oldest = own.backup_roots.iter_mut();
    if let Some(oldest) = oldest.min_by_key(|one| one.tree_root.generation) {
        *oldest = backup;
    }
    writer.patient.superblock = own;
}
