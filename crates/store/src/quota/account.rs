//! How the numbers of quota groups follow a generation.
//!
//! Owns the rule: for every extent whose references changed, it compares the
//! set of subvolumes that reach the extent before and after. A group's numbers
//! change where the group's members enter or leave these sets. Extents without
//! changed references are reached as before, with two exceptions that are noted
//! when they happen:
//!
//! - What lies below a shared node that a deletion dropped: noted extent by
//!   extent.
//! - A snapshot: it now also reaches everything that its source reached and
//!   that has no changed reference. How much that is follows from the source's
//!   own numbers, so nothing has to be searched.

use super::reach::{LastCommit, Now, Reach, Unkept};
use super::reach_sets::{ReachSets, SetId};
use super::{TOUCHED_MAX, TOUCHED_NODES_MAX};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::quota::groups::Delta;
use crate::quota::groups::Quotas;
use crate::quota::groups::SnapshotOf;
use crate::quota::groups::Touched;
use crate::refs::pending::{Backref, ExtentKind, PendingExtent};
use crate::refs::share::{Keyed, data_children};
use butterfs_format::item::qgroup::GroupId;
use butterfs_format::{NodeRef, TreeId};
use butterfs_tree::NodeSource;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// The sets of subvolumes that reached something before and that reach it now.
type Move = (SetId, SetId);

/// Bytes that moved from set to set.
type Moves = FxHashMap<Move, u64>;

/// True when a subvolume may be concerned.
fn concerns_subvolumes(extent: &PendingExtent) -> bool {
    extent.changes.iter().any(|(by, _)| match by {
        Backref::Tree(tree) => tree.is_subvolume(),
        Backref::Data { root, .. } => root.is_subvolume(),
        Backref::SharedNode(_) | Backref::SharedData(_) => true,
    })
}

impl Engine {
    /// Brings the running generation into the groups' numbers.
    pub(super) fn follow(&self, quotas: &mut Quotas) -> Result<(), Unkept> {
        let mut sets = ReachSets::new();
        let mut moves = Moves::default();
        self.find_moves(quotas, &mut sets, &mut moves)?;
        let mut deltas = BTreeMap::new();
        for ((before, after), bytes) in &moves {
            let bytes = i128::from(*bytes);
            let before = Holders::new(quotas, sets.members(*before));
            let after = Holders::new(quotas, sets.members(*after));
            let groups: BTreeSet<GroupId> = before
                .groups
                .keys()
                .chain(after.groups.keys())
                .copied()
                .collect();
            for id in groups {
                let delta: &mut Delta = deltas.entry(id).or_default();
                delta.referenced += bytes * (after.has(id) - before.has(id));
                delta.exclusive += bytes * (after.alone(id) - before.alone(id));
            }
        }
        if let Some(snapshot) = quotas.running.snapshot {
            if quotas.is_scanned() {
                return Err(Unkept::Rule("a snapshot during a count"));
            }
            take_snapshot(quotas, snapshot, (&sets, &moves), &mut deltas)?;
        }
        if let Some(scan) = &mut quotas.scan {
            for (id, delta) in deltas {
                let sum = scan.deltas.entry(id).or_default();
                sum.referenced += delta.referenced;
                sum.exclusive += delta.exclusive;
            }
            return Ok(());
        }
        apply(quotas, &deltas, self.generation())
    }

    fn find_moves(
        &self,
        quotas: &Quotas,
        sets: &mut ReachSets,
        moves: &mut Moves,
    ) -> Result<(), Unkept> {
        let mut before = Reach::new(LastCommit::new(self));
        let mut after = Reach::new(Now(self));
        let mut add = |logical, length, kind, is_new| -> Result<(), Unkept> {
            let old = if is_new {
                SetId::EMPTY
            } else {
                before.of(sets, logical, length, kind)?
            };
            let new = after.of(sets, logical, length, kind)?;
            let bytes = moves.entry((old, new)).or_default();
            *bytes = bytes.saturating_add(length);
            Ok(())
        };
        for (logical, extent) in self.ledger.pending().iter() {
            if concerns_subvolumes(extent) {
                add(logical, extent.length, extent.kind, extent.new)?;
            }
        }
        let unchanged = |logical| {
            let pending = self.ledger.pending().get(logical);
            pending.is_none_or(|pending| !concerns_subvolumes(pending))
        };
        for (logical, touched) in &quotas.running.touched {
            if unchanged(*logical) {
                add(*logical, touched.length, touched.kind, false)?;
            }
        }
        for (logical, netted) in self.ledger.pending().netted() {
            if unchanged(logical) && !quotas.running.touched.contains_key(&logical) {
                add(logical, netted.length, netted.kind, false)?;
            }
        }
        if let Some(snapshot) = quotas.running.snapshot {
            // The one node of its source that the snapshot does not reach.
            let root = self.root(snapshot.source)?;
            if unchanged(root.logical) {
                let length = u64::try_from(self.node_size()).unwrap_or(u64::MAX);
                add(root.logical, length, ExtentKind::of_node(root), false)?;
            }
        }
        Ok(())
    }

    /// Notes that a deletion drops a node that others hold too. No reference to
    /// what lies below the node changes, but the set of subvolumes that reach
    /// it does. If that part cannot be read, the numbers cannot follow it; the
    /// deletion goes on.
    pub(crate) fn note_dropped_subtree(&mut self, node: NodeRef) {
        let Some(mut quotas) = self.quotas.take() else {
            return;
        };
        let is_followed = quotas.is_scanned() || !quotas.is_inconsistent();
        if is_followed
            && !quotas.is_simple()
            && let Err(error) = self.touch_below(&mut quotas, node)
        {
            tracing::error!(%error, "what a deleted subvolume shared cannot be counted");
            quotas.running.lost = Some("a deletion of what cannot be read");
            quotas.running.touched.clear();
        }
        self.quotas.set(Some(quotas));
    }

    fn touch_below(&self, quotas: &mut Quotas, top: NodeRef) -> Result<(), StoreError> {
        let node_length = u64::try_from(self.node_size()).unwrap_or(u64::MAX);
        let running = &mut quotas.running;
        let mut nodes = 0_usize;
        let mut waiting = vec![top];
        while let Some(reference) = waiting.pop() {
            if running.lost.is_some() {
                return Ok(());
            }
            let kind = ExtentKind::of_node(reference);
            let touched = Touched {
                length: node_length,
                kind,
            };
            if running.touched.insert(reference.logical, touched).is_some() {
                continue;
            }
            let node = self.node(reference)?;
            nodes = nodes.saturating_add(1);
            if nodes > TOUCHED_NODES_MAX {
                running.lost = Some("a deletion of a large shared subvolume");
                running.touched.clear();
                return Ok(());
            }
            if !node.is_leaf() {
                waiting.extend((0..node.len()).map(|slot| node.child(slot)));
                continue;
            }
            let by = Keyed::ByParent(node.logical());
            for (place, _) in data_children(&node, by)? {
                let touched = Touched {
                    length: place.disk_length,
                    kind: ExtentKind::Data,
                };
                running.touched.insert(place.disk, touched);
            }
            if running.touched.len() > TOUCHED_MAX {
                running.lost = Some("a deletion of a large shared subvolume");
                running.touched.clear();
            }
        }
        Ok(())
    }
}

/// For each group, how many subvolumes of a set it has.
struct Holders {
    groups: BTreeMap<GroupId, usize>,
    total: usize,
}

impl Holders {
    fn new(quotas: &Quotas, trees: &[TreeId]) -> Self {
        let mut groups = BTreeMap::new();
        for tree in trees {
            for id in quotas.with_ancestors(GroupId::of_tree(*tree)) {
                let count: &mut usize = groups.entry(id).or_default();
                *count = count.saturating_add(1);
            }
        }
        Self {
            groups,
            total: trees.len(),
        }
    }

    /// 1 if the group reaches it, otherwise 0.
    fn has(&self, id: GroupId) -> i128 {
        i128::from(self.groups.contains_key(&id))
    }

    /// 1 if nobody outside of the group reaches it, otherwise 0.
    fn alone(&self, id: GroupId) -> i128 {
        i128::from(self.groups.get(&id) == Some(&self.total))
    }
}

/// What the snapshot reaches apart from the extents with changed references.
fn take_snapshot(
    quotas: &Quotas,
    snapshot: SnapshotOf,
    (sets, moves): (&ReachSets, &Moves),
    deltas: &mut BTreeMap<GroupId, Delta>,
) -> Result<(), Unkept> {
    let (source, new) = (
        GroupId::of_tree(snapshot.source),
        GroupId::of_tree(snapshot.tree),
    );
    let info = quotas
        .group(source)
        .ok_or(Unkept::Rule("a subvolume has no group"))?
        .info;
    let mut rest = Delta {
        referenced: i128::from(info.referenced),
        exclusive: i128::from(info.exclusive),
    };
    for ((before, _), bytes) in moves {
        let members = sets.members(*before);
        if members.contains(&snapshot.source) {
            rest.referenced -= i128::from(*bytes);
        }
        if members == [snapshot.source] {
            rest.exclusive -= i128::from(*bytes);
        }
    }
    let of_source = quotas.with_ancestors(source);
    let of_new = quotas.with_ancestors(new);
    for id in of_source.difference(&of_new) {
        if *id != source && quotas.subvolumes_in(*id).len() != 1 {
            return Err(Unkept::Rule(
                "a snapshot is in other groups than its source",
            ));
        }
        deltas.entry(*id).or_default().exclusive -= rest.exclusive;
    }
    for id in of_new.difference(&of_source) {
        if *id != new && quotas.subvolumes_in(*id).len() != 1 {
            return Err(Unkept::Rule(
                "a snapshot is in other groups than its source",
            ));
        }
        deltas.entry(*id).or_default().referenced += rest.referenced;
    }
    Ok(())
}

fn apply(
    quotas: &mut Quotas,
    deltas: &BTreeMap<GroupId, Delta>,
    generation: butterfs_format::Generation,
) -> Result<(), Unkept> {
    let add = |number: u64, delta: i128| {
        let sum = i128::from(number).checked_add(delta);
        let sum = sum.and_then(|sum| u64::try_from(sum).ok());
        sum.ok_or(Unkept::Rule("a group would use less than nothing"))
    };
    for (id, delta) in deltas {
        let Some(group) = quotas.groups.get_mut(id) else {
            continue;
        };
        if delta.referenced == 0 && delta.exclusive == 0 {
            continue;
        }
        let info = &mut group.info;
        info.referenced = add(info.referenced, delta.referenced)?;
        info.exclusive = add(info.exclusive, delta.exclusive)?;
        info.referenced_compressed = info.referenced;
        info.exclusive_compressed = info.exclusive;
        info.generation = generation;
        quotas.changed.insert(*id);
    }
    Ok(())
}
