//! The rounds of a commit. A commit records what it changed, and recording it
//! changes more: a new node needs an extent item, which may need a new node.
//!
//! Invariant: the rounds come to an end, after very few. The first one brings in
//! the bulk. From the second one on,
//!
//! - whatever a record will touch is copied first, until nothing is left to
//!   copy, and a node is copied once in a generation. So recording frees no node
//!   of the last commit, and no chain of copies takes a round for each link;
//! - nodes are split in the middle and never merged ([`Packing::Lasting`]). So
//!   nodes do not come and go in turn;
//! - new nodes lie side by side in one free range. So their records go to one
//!   place of the extent tree, and change the key of one free extent. A leaf
//!   there is split once, and then has room for many.
//!
//! docs/commit.md has the whole argument.

use crate::commit::rounds::CommitRounds;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::space::free_space_tree;
use butterfs_format::item::inode::Timespec;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::{Editor, Packing};

/// Two or three rounds are usual. Nothing is known that takes more than this.
const ROUNDS_EXPECTED: usize = 16;
/// A guard against a fault of ButterFS. Each round after the second needs a split
/// or an emptied node in the round before, and these run out.
const ROUNDS_MAX: usize = 1000;

impl Engine {
    /// How many rounds commits took, since the volume was opened.
    #[must_use]
    pub const fn commit_rounds(&self) -> CommitRounds {
        self.rounds.counts
    }

    /// Records all that changed, and what that changes itself.
    pub(crate) fn record_all(&mut self, now: Timespec) -> Result<(), StoreError> {
        let recorded = self.run_rounds(now);
        self.rounds.packing = Packing::Dense;
        if let Some(place) = self.rounds.place_before.take() {
            self.space_map.leave_gap(place);
        }
        recorded
    }

    fn run_rounds(&mut self, now: Timespec) -> Result<(), StoreError> {
        let mut gap = None;
        for round in 1..=ROUNDS_MAX {
            debug_assert!(round <= ROUNDS_EXPECTED, "{round} rounds");
            self.rounds.counts.note(round);
            self.enter_new_groups()?;
            if round == 2 {
                gap = self.begin_lasting();
            }
            if round > 1 {
                self.copy_what_records_touch(gap)?;
            }
            self.apply_pending(usize::MAX)?;
            self.write_group_items()?;
            self.write_root_items(now)?;
            let groups = self.space_map.groups();
            if self.ledger.pending().is_empty()
                && groups.first_new().is_none()
                && !groups.has_dirty()
            {
                return Ok(());
            }
        }
        Err(StoreError::Internal(
            "a commit did not reach its fixed point",
        ))
    }

    /// From now on, nodes neither come and go in turn nor lie far from each
    /// other. Gives the address of the next node.
    fn begin_lasting(&mut self) -> Option<Logical> {
        self.rounds.packing = Packing::Lasting;
        let (first, place) = self.space_map.aim_at_gap(self.node_size() as u64)?;
        self.rounds.place_before = Some(place);
        Some(first)
    }

    /// Makes the nodes writable that the records of pending changes go to. Copies
    /// make pending changes themselves, and their records go to nodes that become
    /// writable too. `gap` is where the next node will be.
    fn copy_what_records_touch(&mut self, gap: Option<Logical>) -> Result<(), StoreError> {
        self.ledger.pending_mut().note_arrivals();
        let waiting = self.ledger.pending().iter().map(|(logical, _)| logical);
        let mut places: Vec<Logical> = waiting.chain(gap).collect();
        while !places.is_empty() {
            self.touch_places(&places)?;
            self.touch_root_items()?;
            places = self.ledger.pending_mut().take_arrivals();
        }
        self.ledger.pending_mut().ignore_arrivals();
        Ok(())
    }

    /// Makes the nodes writable that records of these extents, or their free
    /// space, go to.
    fn touch_places(&mut self, places: &[Logical]) -> Result<(), StoreError> {
        let node_size = self.node_size() as u64;
        let mut editor = Editor::new(self, TreeId::EXTENT);
        for logical in places {
            editor.touch(&Key::new(logical.get(), ItemType::METADATA_ITEM, u64::MAX))?;
        }
        let (tree, sector_size) = (self.publisher.group_tree(), self.sector_size());
        let mut last = None;
        for logical in places {
            let group = self.space_map.groups().containing(*logical);
            let Some(group) = group.filter(|group| !group.is_new()) else {
                continue;
            };
            let (span, item) = (group.span(sector_size), group.item_key());
            if self.space_map.has_free_space_tree() {
                let extent = self.ledger.pending().get(*logical);
                let length = extent.map_or(node_size, |extent| extent.length);
                let range = logical.get()..logical.get().saturating_add(length);
                free_space_tree::touch(self, &span, &range)?;
            }
            if last != Some(item) {
                Editor::new(self, tree).touch(&item)?;
                last = Some(item);
            }
        }
        Ok(())
    }

    fn touch_root_items(&mut self) -> Result<(), StoreError> {
        let trees = self.nodes.trees_mut();
        let changed = trees.filter(|(_, state)| state.changed);
        let keys: Vec<Key> = changed.filter_map(|(_, state)| state.item_key).collect();
        let mut editor = Editor::new(self, TreeId::ROOT);
        for key in keys {
            editor.touch(&key)?;
        }
        Ok(())
    }
}
