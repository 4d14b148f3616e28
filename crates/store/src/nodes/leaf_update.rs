//! Changes of items that need no new node, made beside each other.
//!
//! Most changes of names and inodes touch leaves that changed already in the
//! running generation and have room. Such a change copies, splits and merges
//! nothing. It holds the engine only to read, and a lock of each leaf that it
//! changes. So several threads change one tree at the same time. Any other
//! change takes the engine for itself ([`crate::Transaction`]).
//!
//! Whoever plans such changes keeps others from changing the same items
//! meanwhile. The file layer does so by the locks of inodes.
//!
//! Invariants: a change is made as a whole or not at all. Before the first edit
//! all leaves that grow are locked and have room, and nothing after that can
//! fail. A reader that sees a new item finds all other new items of the change
//! in whatever it reads later. Data that are overwritten in place may follow a
//! moment later.

use super::NodeStore;
use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::nodes::node_loading::Tries;
use crate::space::reserve::Purpose;
use butterfs_format::{Key, Logical, TreeId};
use butterfs_tree::{Edit, ItemChange, TreeError, see_leaf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The leaf of a change.
#[derive(Clone, Copy, Debug)]
struct Place {
    leaf: Logical,
    /// The first key behind the leaf.
    bound: Option<Key>,
    /// The item keeps its size.
    in_place: bool,
}

impl Engine {
    /// The leaf of each of `changes`; `None` if one of them, or a node above
    /// it, must be copied before it changes.
    fn places_of(
        &self,
        tree: TreeId,
        changes: &[ItemChange],
    ) -> Result<Option<Vec<Place>>, TreeError> {
        let mut places: Vec<Place> = Vec::with_capacity(changes.len());
        let mut last = None;
        for change in changes {
            let near = last.filter(|(key, place): &(Key, Place)| {
                let behind = place.bound.is_none_or(|bound| change.key < bound);
                *key <= change.key && behind && change.edit != Edit::Put
            });
            if let Some((_, place)) = near {
                places.push(Place {
                    in_place: false,
                    ..place
                });
                continue;
            }
            let writable = |node| self.is_writable(node);
            let found = see_leaf(self, tree, &change.key, writable, |node, bound| Place {
                leaf: node.logical(),
                bound,
                in_place: change.is_in_place(node),
            })?;
            let Some(place) = found else {
                return Ok(None);
            };
            places.push(place);
            last = Some((change.key, place));
        }
        Ok(Some(places))
    }
}

impl NodeStore {
    /// Makes all of `changes`, or none of them.
    fn change_leaves(&self, changes: &[ItemChange], places: &[Place]) -> bool {
        let of = |leaf: Logical| {
            let all = changes.iter().zip(places);
            all.filter(move |(_, place)| !place.in_place && place.leaf == leaf)
        };
        let grows = places.iter().filter(|place| !place.in_place);
        let mut leaves: Vec<Logical> = grows.map(|place| place.leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        let locked: Option<Vec<_>> = leaves
            .iter()
            .map(|leaf| self.dirty.lock_leaf(*leaf))
            .collect();
        let Some(mut locked) = locked else {
            return false;
        };
        let mut nodes = leaves.iter().zip(&locked);
        if !nodes.all(|(leaf, node)| node.can_take(of(*leaf).map(|(change, _)| change))) {
            return false;
        }
        self.leaf_updates.fetch_add(1, Ordering::Relaxed);
        for (leaf, node) in leaves.iter().zip(&mut locked) {
            let node = Arc::make_mut(node);
            of(*leaf).for_each(|(change, _)| node.take(change));
        }
        drop(locked);
        // Nobody else changes the sizes of these items, so they need no look
        // before the first edit, and their leaves only a short lock. Many
        // directories may share such a leaf.
        for (change, place) in changes.iter().zip(places) {
            if place.in_place
                && let Some(mut node) = self.dirty.lock_leaf(place.leaf)
            {
                Arc::make_mut(&mut node).take(change);
            }
        }
        true
    }
}

impl Store {
    /// Makes the changes of items of `tree` that `plan` names, beside other
    /// changes. `plan` only reads. A transaction of `nodes` must have room, as
    /// if the changes needed one. `finish` gets the rest of the plan after the
    /// changes are made and before anything else can happen to them. `None` if
    /// the changes need a transaction; then nothing happened.
    ///
    /// # Errors
    /// Not writable; those of `plan`.
    pub fn update_leaves<P, R, E: From<StoreError>>(
        &self,
        tree: TreeId,
        (nodes, purpose): (usize, Purpose),
        plan: impl FnOnce(&Engine) -> Result<(Vec<ItemChange>, P), E>,
        finish: impl FnOnce(P) -> R,
    ) -> Result<Option<R>, E> {
        self.check_writable()?;
        let engine = self.read();
        self.check_writable()?;
        let is_full = || engine.room_for(nodes, purpose).is_err();
        if engine.log.waits() || self.is_commit_due(&engine) || is_full() {
            return Ok(None);
        }
        let mut tries = Tries::default();
        let planned = engine.try_look(&mut tries, |engine| {
            let (changes, rest) = plan(engine)?;
            let places = engine.places_of(tree, &changes).map_err(StoreError::from)?;
            Ok::<_, E>(places.map(|places| (changes, places, rest)))
        });
        if tries.missed() {
            return Ok(None);
        }
        let Some((changes, places, rest)) = planned? else {
            return Ok(None);
        };
        let _watch = self.fail_on_panic();
        let changed = engine.nodes.change_leaves(&changes, &places);
        Ok(changed.then(|| finish(rest)))
    }
}
