//! Making the free-space tree anew from the extent tree (`clear_cache`).
//!
//! Until that is done, nothing of the old tree is believed: free space is what
//! lies between the extents. The new tree describes the extent tree before any
//! pending change is applied. The commit applies pending changes, also those of
//! the new tree's own nodes, to both trees. The extent tree says which nodes
//! belong to the old tree, so the old tree need not be readable.
//!
//! Invariant: no commit comes between opening the volume and this.

use super::Remake;
use super::block_group::{BlockGroup, Standing};
use super::free_space_tree;
use super::ranges::RangeSet;
use crate::engine::Engine;
use crate::error::{StoreError, bad_item, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::pending::Backref;
use crate::refs::record::ExtentRecord;
use crate::space::kind::SpaceKind;
use crate::{Access, Purpose};
use butterfs_format::features::CompatRo;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{ItemType, Key, NodeRef, TreeId};
use butterfs_tree::{Editor, TreeError};

/// What the last commit's extent tree says about free space.
#[derive(Default)]
struct Gathered {
    /// Items of the new tree, ascending.
    items: Vec<(Key, Vec<u8>)>,
    /// Nodes of the old one.
    nodes: Vec<NodeRef>,
    /// Block groups.
    groups: usize,
    /// Free ranges.
    ranges: usize,
}

impl Engine {
    /// What `clear_cache` asks for when a volume is opened. If a fsync log
    /// waits, its replay makes the tree anew, in the same change.
    pub(crate) fn begin_remake(&mut self, access: Access) -> Result<(), StoreError> {
        if access == Access::ReadOnly {
            tracing::warn!("clear_cache: nothing is done, since nothing is written");
            return Ok(());
        }
        if !self.space_map.remakes_free_space() {
            self.clear_old_cache();
            return Ok(());
        }
        if self.log.waits() {
            return Ok(());
        }
        self.remake_free_space()
    }

    /// Makes the free-space tree anew if that was asked for and not done yet.
    /// An error before the first edit changes nothing. After an error behind
    /// the first edit, the change must not be published.
    ///
    /// # Errors
    /// Damage of the extent tree, no space, reading.
    pub fn remake_free_space(&mut self) -> Result<(), StoreError> {
        if !self.space_map.remakes_free_space() {
            return Ok(());
        }
        let gathered = self.gather_free_space()?;
        self.reserve(self.nodes_to_remake(&gathered), Purpose::Shrink)?;
        match self.tree_state(TreeId::FREE_SPACE) {
            Ok(_) => self.restart_tree(TreeId::FREE_SPACE)?,
            Err(StoreError::Tree(TreeError::NoSuchTree(_))) => {
                let item = RootItem {
                    refs: 1,
                    bytes_used: u64::try_from(self.node_size()).unwrap_or(u64::MAX),
                    ..RootItem::default()
                };
                self.create_tree(TreeId::FREE_SPACE, item)?;
            }
            Err(error) => return Err(error),
        }
        let mut editor = Editor::new(self, TreeId::FREE_SPACE);
        for (key, data) in &gathered.items {
            editor.insert(key, data)?;
        }
        for node in &gathered.nodes {
            self.drop_node_ref(*node, Backref::Tree(TreeId::FREE_SPACE));
        }
        self.space_map.orphan_free_space.clear();
        self.space_map.free_space_tree = true;
        self.space_map.remake = Remake::No;
        let had = self
            .publisher
            .superblock()
            .compat_ro
            .contains(CompatRo::FREE_SPACE_TREE);
        if !self.publisher.superblock().has_valid_free_space_tree() {
            self.publisher.superblock_mut().compat_ro |= CompatRo::FREE_SPACE_TREE_VALID;
        }
        let (groups, ranges) = (gathered.groups, gathered.ranges);
        if had {
            tracing::warn!(
                groups,
                ranges,
                "the free-space tree is made anew from the extent tree"
            );
        }
        Ok(())
    }

    /// `clear_cache` on a volume that has no free-space tree: the next commit
    /// disables a cache of the old kind.
    fn clear_old_cache(&mut self) {
        let superblock = self.publisher.superblock();
        if superblock.cache_generation == superblock.generation.get() {
            self.publisher.note_superblock_change();
            tracing::warn!("clear_cache: the old space cache (v1) is put out of use");
        } else {
            tracing::warn!("clear_cache: the volume keeps no free space that could be wrong");
        }
    }

    fn gather_free_space(&self) -> Result<Gathered, StoreError> {
        let sector = self.sector_size();
        let mut gathered = Gathered::default();
        let committed = |group: &&BlockGroup| group.standing == Standing::Committed;
        for group in self.space_map.groups.values().filter(committed) {
            let mut nodes = Vec::new();
            let mut used = 0_u64;
            let has_nodes = group
                .flags
                .intersects(BlockGroupFlags::METADATA | BlockGroupFlags::SYSTEM);
            let gaps = self.gaps_between_extents(group, &mut |key, data| {
                let length = match key.item_type {
                    ItemType::METADATA_ITEM => self.node_size() as u64,
                    _ => key.offset,
                };
                if !key.objectid.is_multiple_of(sector) || !length.is_multiple_of(sector) {
                    return Err(corrupt_item(TreeId::EXTENT, key, ItemFault::PartOfSector));
                }
                used += length;
                if has_nodes {
                    nodes.extend(node_of_old_tree(key, data)?);
                }
                Ok(())
            })?;
            // Otherwise an extent is missing, and its space would count as
            // free.
            if used != group.used {
                let key = Key::new(group.start.get(), ItemType::BLOCK_GROUP_ITEM, group.length);
                let fault = ItemFault::UsedDisagrees {
                    says: group.used,
                    found: used,
                };
                return Err(corrupt_item(TreeId::EXTENT, key, fault));
            }
            for node in &nodes {
                self.verify_is_of_old_tree(*node)?;
            }
            let mut free = RangeSet::default();
            for gap in gaps {
                free.insert(gap);
            }
            for range in &group.excluded {
                free.remove(range.clone());
            }
            let free: Vec<_> = free.iter().collect();
            gathered.groups += 1;
            gathered.ranges += free.len();
            gathered.nodes.extend(nodes);
            let items = free_space_tree::items_of_group(&group.span(sector), &free);
            gathered.items.extend(items);
        }
        Ok(gathered)
    }

    /// Errors if the extent tree counts a node of another tree as one of the
    /// old free-space tree. A node that cannot be read may be the reason for
    /// `clear_cache`, so it is no error.
    fn verify_is_of_old_tree(&self, node: NodeRef) -> Result<(), StoreError> {
        match self.node_at(node.logical, Some(node.level)) {
            Ok(found) if found.owner() != TreeId::FREE_SPACE => {
                let key = Key::new(
                    node.logical.get(),
                    ItemType::METADATA_ITEM,
                    u64::from(node.level),
                );
                let owner = found.owner();
                let fault = ItemFault::ForeignNode { owner };
                Err(corrupt_item(TreeId::EXTENT, key, fault))
            }
            _ => Ok(()),
        }
    }

    /// Nodes that change at most: those of the new tree, and those of the
    /// extent tree that list the nodes of both trees.
    fn nodes_to_remake(&self, gathered: &Gathered) -> usize {
        /// A split leaves nodes half full.
        const HALF: usize = 2;
        let size = |data: &Vec<u8>| ITEM_SIZE + data.len();
        let bytes: usize = gathered.items.iter().map(|(_, data)| size(data)).sum();
        let new = HALF * bytes / (self.node_size() - HEADER_SIZE) + 2;
        let new = new + new / 16;
        let known = self.used(SpaceKind::Metadata) / self.node_size() as u64;
        let known = usize::try_from(known).unwrap_or(usize::MAX);
        new + HALF * (new + gathered.nodes.len()).min(known) + 16
    }
}

/// The node that an extent item describes, when the free-space tree refers to
/// it.
fn node_of_old_tree(key: Key, data: &[u8]) -> Result<Option<NodeRef>, StoreError> {
    let record =
        ExtentRecord::parse(key, data).map_err(|error| bad_item(TreeId::EXTENT, key, &error))?;
    let by = Backref::Tree(TreeId::FREE_SPACE);
    let is_of_tree = record.inline.iter().any(|(other, _)| *other == by);
    Ok(record.node().filter(|_| is_of_tree))
}
