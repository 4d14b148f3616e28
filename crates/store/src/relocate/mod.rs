//! Relocation: everything in a block group moves elsewhere, and afterwards the
//! group's space belongs to no chunk.
//!
//! A node or a data extent gets another address. Each pointer to it changes at
//! the same time, in all trees and snapshots. So what was shared stays shared.
//!
//! - A data extent is copied first, without the engine. Then the leaves with
//!   file extents of it are found by its references and moved, with the new
//!   address in them. Extents with very many references move in several
//!   commits; in between, some file extents name the old copy and some the new
//!   one, both whole.
//! - A node moves with all nodes above it, up to the roots (`graph`).
//!
//! Each step is one change and a commit of its own. Nothing comes between the
//! change and the commit, so the fsync log never sees half a step, and after a
//! crash the volume is as some step left it. Nothing records how far a
//! relocation came: what is left in the group says it.
//!
//! While a group is relocated, it is read-only: nothing is allocated from it,
//! and nothing in it is overwritten in place. Before new addresses are named,
//! relocation waits until no operation uses old ones (`addresses`). Data that a
//! send reads do not move at all.
//!
//! Bounds: [`terms::NODES_MAX`] nodes (more only where one node has more above
//! it) and [`terms::BATCH_BYTES`] of data in one step.

mod data;
mod graph;
mod moves;
mod terms;

use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use crate::refs::pending::{Backref, ExtentKind};
use crate::refs::record::ExtentRecord;
use crate::space::kind::SpaceKind;
use crate::{Purpose, Store};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use graph::Graph;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use terms::{NODES_BESIDE, NODES_LEAST, NODES_MAX, RefsNow, WRITERS_WAIT, range_of};

/// How far the relocation of a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    /// Bytes of data that moved.
    pub data_bytes: u64,
    /// Nodes that moved, with the nodes above them.
    pub nodes: u64,
    /// Bytes that are left in the group.
    pub left: u64,
}

/// How a relocation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelocateEnd {
    /// The group is gone.
    Removed,
    /// The caller asked to end the relocation. What has moved stays moved.
    Stopped,
}

impl Engine {
    /// References to an extent, changes of the running generation included.
    fn refs_now(
        &self,
        logical: Logical,
        length: u64,
        kind: ExtentKind,
    ) -> Result<RefsNow, StoreError> {
        let pending = self.ledger.pending().get(logical);
        let mut sums: BTreeMap<Backref, i64> = BTreeMap::new();
        let mut now = RefsNow {
            by: Vec::new(),
            full_backref: pending.is_some_and(|pending| pending.set_full_backref),
            owner: None,
        };
        if let Some(pending) = pending.filter(|pending| pending.new) {
            now.owner = pending.owner;
        } else {
            let record = ExtentRecord::load(self, logical, length, kind)?;
            now.full_backref |= record.is_full_backref();
            now.owner = record.owner.map(TreeId);
            let all = match record.has_keyed() {
                true => record.all_refs(self)?,
                false => record.inline,
            };
            for (by, count) in all {
                *sums.entry(by).or_default() += i64::from(count);
            }
        }
        for (by, count) in pending.iter().flat_map(|pending| pending.changes.iter()) {
            *sums.entry(by).or_default() += count;
        }
        now.by = sums.into_iter().filter(|(_, count)| *count > 0).collect();
        Ok(now)
    }

    /// Nodes in a group, with their levels: the first `most`.
    fn nodes_in(
        &self,
        group: (Logical, u64),
        most: usize,
    ) -> Result<Vec<(Logical, u8)>, StoreError> {
        let mut nodes = Vec::new();
        self.visit_extents(&range_of(group), &mut |head, _| {
            let pending = self.ledger.pending().get(Logical(head.key.objectid));
            let net = pending.map_or(0, |pending| pending.net());
            // The coming commit frees others.
            let stays = head.refs.checked_add_signed(net) != Some(0);
            if let (true, Some(level)) = (stays, head.level()) {
                nodes.push((Logical(head.key.objectid), level));
            }
            Ok(match nodes.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            })
        })?;
        Ok(nodes)
    }

    /// If the group is the last of its kind, makes another one for what leaves
    /// it. New chunks have the profile of the newest group, so the profile
    /// stays.
    fn keep_profile(&mut self, start: Logical) -> Result<(), StoreError> {
        let Some(flags) = self.space_map.groups().get(start).map(|group| group.flags) else {
            return Ok(());
        };
        let kinds = [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System];
        for kind in kinds.into_iter().filter(|kind| flags.contains(kind.flag())) {
            if self.space_map.groups().count(kind) < 2 {
                self.create_chunk(kind)?;
            }
        }
        Ok(())
    }

    /// Gives new chunks of `kind` another profile than the newest group has, or
    /// ends that.
    pub fn set_profile_of_new_chunks(&mut self, kind: SpaceKind, profile: Option<BlockGroupFlags>) {
        let mixed = self.flags_for(kind) & BlockGroupFlags::TYPE;
        let flags = profile.map(|profile| mixed | profile);
        self.space_map.set_flags_of_new_chunks(kind, flags);
    }
}

/// A group that nothing is allocated from until this is dropped.
struct ReadOnlyGroup<'s> {
    store: &'s Store,
    start: Logical,
}

impl Drop for ReadOnlyGroup<'_> {
    fn drop(&mut self) {
        let mut engine = self.store.change();
        if engine.may_be_written(self.start) {
            engine.space_map.reopen_group(self.start);
        }
    }
}

impl Store {
    /// Moves all that lies in the block group at `start` elsewhere, and removes
    /// it. `progress` is called after each step, and may end it there.
    ///
    /// Nodes of a deleted subvolume that is freed in part cannot move.
    /// Relocation waits until the whole subvolume is freed, which another
    /// thread must be doing.
    ///
    /// # Errors
    /// [`StoreError::NoSpace`] if the content has no place elsewhere; data of
    /// which no copy is left; damage; reading or writing failed. What moved
    /// before stays moved.
    pub fn relocate_group(
        &self,
        start: Logical,
        progress: &mut dyn FnMut(&Relocated) -> ControlFlow<()>,
    ) -> Result<RelocateEnd, StoreError> {
        // Its nodes have parents that belong to no tree any more.
        self.drop_cancelled_balance()?;
        let Some(_guard) = self.close_group(start)? else {
            return Ok(RelocateEnd::Removed);
        };
        let mut relocated = Relocated::default();
        let mut nodes_max = NODES_MAX;
        let mut half_freed = None;
        loop {
            let Some((length, left)) = self.left_in(start) else {
                return Ok(RelocateEnd::Removed);
            };
            relocated.left = left;
            if progress(&relocated).is_break() {
                return Ok(RelocateEnd::Stopped);
            }
            if left == 0 {
                break;
            }
            match self.relocate_some((start, length), nodes_max, &mut relocated) {
                Ok(()) => half_freed = None,
                Err(StoreError::NoSpace) if nodes_max > NODES_LEAST => nodes_max /= 4,
                // A snapshot is being sent, which may take as long as its
                // receiver wants. Whoever watches may end the wait.
                Err(StoreError::GroupInUse(_)) if self.keeps_trees() => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                // The cleaner is freeing the rest of it.
                Err(StoreError::HalfFreed(_))
                    if half_freed.get_or_insert_with(Instant::now).elapsed() < WRITERS_WAIT =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Err(error) => return Err(error),
            }
        }
        self.remove_emptied(start)
    }

    /// Moves some data of a group or, if it has none, some nodes.
    fn relocate_some(
        &self,
        group: (Logical, u64),
        nodes_max: usize,
        relocated: &mut Relocated,
    ) -> Result<(), StoreError> {
        let bytes = self.relocate_data(group, nodes_max)?;
        relocated.data_bytes += bytes;
        if bytes > 0 {
            return Ok(());
        }
        let nodes = self.relocate_nodes(group, nodes_max)?;
        relocated.nodes += nodes as u64;
        if nodes > 0 {
            return Ok(());
        }
        // Other operations may have freed the last of it.
        self.commit()?;
        if self.left_in(group.0).is_none_or(|(_, left)| left == 0) {
            return Ok(());
        }
        let key = Key::new(group.0.get(), ItemType::BLOCK_GROUP_ITEM, group.1);
        let fault = ItemFault::UsedByNobody;
        Err(corrupt_item(self.read().publisher.group_tree(), key, fault))
    }

    /// Bytes of a group, and how many of them extents use.
    fn left_in(&self, start: Logical) -> Option<(u64, u64)> {
        let engine = self.read();
        let group = engine.space_map.groups().get(start)?;
        Some((group.length, group.used + group.promised))
    }

    /// Stops allocation from a group, and commits so that everything allocated
    /// from it is in the trees. `None` if there is no such group.
    fn close_group(&self, start: Logical) -> Result<Option<ReadOnlyGroup<'_>>, StoreError> {
        {
            let is_empty = self.left_in(start).is_some_and(|(_, left)| left == 0);
            let purpose = match is_empty {
                true => Purpose::Shrink,
                false => Purpose::Grow,
            };
            let mut transaction = self.begin(NODES_BESIDE, purpose)?;
            let engine: &mut Engine = &mut transaction;
            if engine.space_map.groups().get(start).is_none() {
                return Ok(None);
            }
            engine.keep_profile(start)?;
            engine.space_map.close_group(start);
            transaction.finish();
        }
        let guard = ReadOnlyGroup { store: self, start };
        // When this returns, every write in place that was decided before has
        // ended.
        if self.wait_for_holders(WRITERS_WAIT).is_none() {
            return Err(StoreError::GroupInUse(start));
        }
        let begun = Instant::now();
        loop {
            self.commit()?;
            let engine = self.read();
            let Some(group) = engine.space_map.groups().get(start) else {
                return Ok(None);
            };
            if group.promised == 0 {
                break;
            }
            if begun.elapsed() > WRITERS_WAIT {
                return Err(StoreError::GroupInUse(start));
            }
            drop(engine);
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(Some(guard))
    }

    /// Moves some nodes of a group. Gives the number of nodes that moved, with
    /// the nodes above them.
    fn relocate_nodes(&self, group: (Logical, u64), most: usize) -> Result<usize, StoreError> {
        // The nodes above are brought into memory without the lock of the
        // engine.
        self.look(|engine| {
            let mut graph = Graph::default();
            for (logical, level) in engine.nodes_in(group, most)? {
                if graph.len() >= most {
                    break;
                }
                graph.add(engine, logical, level)?;
            }
            Ok::<_, StoreError>(())
        })?;
        self.commit_with(most + NODES_BESIDE, |engine| {
            let mut graph = Graph::default();
            for (logical, level) in engine.nodes_in(group, most)? {
                if graph.len() >= most {
                    break;
                }
                graph.add(engine, logical, level)?;
            }
            graph.move_all(engine, &mut moves::Moves::default())
        })
    }

    /// Removes a group that holds nothing, with its chunk.
    fn remove_emptied(&self, start: Logical) -> Result<RelocateEnd, StoreError> {
        let begun = Instant::now();
        loop {
            let gone = self.commit_for((NODES_BESIDE, Purpose::Shrink), |engine| {
                let Some(group) = engine.space_map.groups().get(start) else {
                    return Ok::<_, StoreError>(true);
                };
                // Freed in the previous generation at the latest.
                if group.used + group.promised + group.pinned > 0 {
                    return Ok(false);
                }
                engine.remove_group(start)?;
                Ok(true)
            })?;
            if gone {
                return Ok(RelocateEnd::Removed);
            }
            if begun.elapsed() > WRITERS_WAIT {
                return Err(StoreError::GroupInUse(start));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
