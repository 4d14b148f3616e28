//! From a running generation to a published one.
//!
//! Owns the freezing of a generation and the superblock's content. `record_all`
//! brings everything into the trees. Order on the device is kept by
//! [`crate::Store::commit`].

use crate::commit::DeviceItems;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::nodes::trees::TreeState;
use crate::space::free_space_tree;
use butterfs_format::features::Incompat;
use butterfs_format::item::inode::Timespec;
use butterfs_format::superblock::{BackupRoot, Superblock};
use butterfs_format::{Generation, Logical, TreeId};
use butterfs_tree::{Editor, Node};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Larger nodes are a feature: old kernels have pages of this size, and none of
/// their nodes is larger than a page.
const PAGE: u32 = 4096;

/// A generation that is complete in memory. It is durable once its nodes and
/// then its superblock are written and flushed.
#[must_use = "a prepared generation must be published"]
#[derive(Debug)]
pub struct PreparedCommit {
    /// Its sealed nodes that the device does not have yet, ascending by
    /// address.
    pub(crate) nodes: Vec<Arc<Node>>,
    /// What all superblock copies will say.
    pub(crate) superblock: Superblock,
    /// What each device's copies say of it.
    pub(crate) devices: DeviceItems,
    /// Its number.
    pub(crate) generation: Generation,
}

impl Engine {
    /// True when there is nothing to commit.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.nodes.is_clean()
            && self.space_map.is_recorded()
            && self.ledger.pending().is_empty()
            && !self.publisher.superblock_changed
            && self.publisher.has_written_stats(&self.space)
    }

    /// A number that every edit of a tree changes.
    #[must_use]
    pub fn edits(&self) -> u64 {
        let beside = self.nodes.leaf_updates();
        self.edits.wrapping_add(beside)
    }

    /// Completes the running generation and begins the next.
    pub(crate) fn prepare_commit(&mut self, now: Timespec) -> Result<PreparedCommit, StoreError> {
        if self.space_map.remakes_free_space() {
            return Err(StoreError::Internal(
                "a commit came before the free-space tree was made anew",
            ));
        }
        self.remove_orphan_free_space()?;
        if self.publisher.superblock_changed || self.is_clean() {
            // The superblock's generation is that of the root tree's node, so
            // this node must be written too.
            self.change_root_item(TreeId::EXTENT, |_| {})?;
        }
        self.commit_quotas()?;
        self.write_device_stats()?;
        self.remove_empty_groups()?;
        self.apply_checksums()?;
        self.record_all(now)?;
        if self.nodes.root_of(TreeId::ROOT).generation != self.generation {
            // Nobody could open a volume whose superblock names such a root.
            let reason = "a superblock would name a root tree of another generation";
            return Err(StoreError::Internal(reason));
        }
        self.update_superblock()?;
        self.log.end();
        self.space_map
            .verify_given_out(self.nodes.dirty_addresses(), self.node_size() as u64)?;
        Ok(self.freeze())
    }

    /// Takes leftovers without block groups out of the free-space tree, once.
    pub(crate) fn remove_orphan_free_space(&mut self) -> Result<(), StoreError> {
        for gap in self.space_map.take_orphan_free_space() {
            free_space_tree::remove_orphans(self, &gap)?;
        }
        Ok(())
    }

    /// Brings the root items of changed trees up to date.
    pub(crate) fn write_root_items(&mut self, now: Timespec) -> Result<(), StoreError> {
        let generation = self.generation;
        let changed: Vec<(TreeId, TreeState)> = self
            .nodes
            .trees_mut()
            .filter(|(_, state)| state.changed)
            .map(|(tree, state)| {
                state.changed = false;
                let only_moved = std::mem::take(&mut state.only_moved);
                if tree.is_subvolume() {
                    state.item.vouch_for_flags();
                    if state.root.generation == generation && !only_moved {
                        state.item.ctransid = generation;
                        state.item.ctime = now;
                    }
                }
                state.item.logical = state.root.logical;
                state.item.level = state.root.level;
                state.item.generation = state.root.generation;
                (*tree, state.clone())
            })
            .collect();
        let mut editor = Editor::new(self, TreeId::ROOT);
        for (_, state) in changed {
            if let Some(key) = state.item_key {
                editor.replace(&key, &state.item.encode())?;
            }
        }
        // The edits changed the root tree itself. It has no root item.
        if let Some(state) = self.nodes.tree_mut(TreeId::ROOT) {
            state.changed = false;
        }
        Ok(())
    }

    /// Brings the items of changed block groups up to date.
    pub(crate) fn write_group_items(&mut self) -> Result<(), StoreError> {
        let tree = self.publisher.group_tree();
        let items = self.space_map.take_changed_items();
        let mut editor = Editor::new(self, tree);
        for (key, item) in items {
            editor.replace(&key, &item.encode())?;
        }
        Ok(())
    }

    fn update_superblock(&mut self) -> Result<(), StoreError> {
        let root = self.nodes.root_of(TreeId::ROOT);
        let chunk = self.nodes.root_of(TreeId::CHUNK);
        self.space_map.groups().verify()?;
        let used = self.space_map.groups().applied();
        let generation = self.generation;
        let backup = BackupRoot {
            tree_root: root,
            chunk_root: chunk,
            extent_root: self.nodes.root_of(TreeId::EXTENT),
            fs_root: self.nodes.root_of(TreeId::FS),
            device_root: self.nodes.root_of(TreeId::DEVICE),
            csum_root: self.nodes.root_of(TreeId::CSUM),
            total_bytes: self.publisher.superblock.total_bytes,
            bytes_used: used,
            num_devices: self.publisher.superblock.num_devices,
        };
        let system: Vec<_> = self.space_map.system_chunks();
        let superblock = &mut self.publisher.superblock;
        if superblock.node_size > PAGE {
            // As the kernel does when it mounts such a volume.
            superblock.incompat |= Incompat::BIG_METADATA;
        }
        if superblock.uuid_tree_generation == superblock.generation {
            superblock.uuid_tree_generation = generation;
        }
        superblock.generation = generation;
        superblock.root = root.logical;
        superblock.root_level = root.level;
        superblock.chunk_root = chunk.logical;
        superblock.chunk_root_level = chunk.level;
        superblock.chunk_root_generation = chunk.generation;
        superblock.bytes_used = used;
        superblock.sys_chunks = system;
        superblock.log_root = Logical(0);
        superblock.log_root_level = 0;
        superblock.backup_roots[self.publisher.backup_slot] = backup;
        self.publisher.backup_slot =
            (self.publisher.backup_slot + 1) % superblock.backup_roots.len();
        self.publisher.superblock_changed = false;
        Ok(())
    }

    fn freeze(&mut self) -> PreparedCommit {
        let nodes = self.nodes.end_generation();
        self.follow_quotas();
        self.space_map.end_generation();
        self.ledger.end_generation();
        let generation = self.generation;
        self.generation = Generation(generation.get() + 1);
        PreparedCommit {
            nodes,
            superblock: self.publisher.superblock.clone(),
            devices: Arc::clone(&self.publisher.devices),
            generation,
        }
    }

    /// Notes that the prepared generation is durable. Its nodes are clean, and
    /// what it freed can be used again.
    pub(crate) fn published(&mut self) {
        self.nodes.published();
        self.acknowledged.commits.fetch_add(1, Ordering::SeqCst);
        self.ledger.published();
        self.free_log_space();
        self.space_map.unpin_published();
    }
}
