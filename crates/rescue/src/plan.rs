//! The leaves of a tree in key order, as far as they are left.
//!
//! Pointers are followed from the root. Where a node cannot be read, its range
//! of keys is filled from what the scan found: nodes of the tree, the newest
//! first, each for the keys that no newer one has. A branch found so is
//! followed too. In a branch, the keys between two children belong to the first
//! of them, so the pieces have no gaps there. A leaf alone speaks only for the
//! keys from its first item to its last.
//!
//! Invariants: pieces ascend and do not overlap; every key is in a piece. A
//! node is reached at most once, because its first key is that of the pointer,
//! and pointers of a tree ascend.

use crate::live::Live;
use crate::nodes::Nodes;
use butterfs_format::{Generation, Key, NodeRef, TreeId};
use butterfs_tree::Node;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How a leaf was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// By pointers from the root, or the extent tree has it: it belongs to the
    /// tree.
    Pointed,
    /// By the scan: it may be older than the tree.
    Found,
}

/// A range of keys, and the leaf that has its items.
#[derive(Clone, Copy, Debug)]
pub struct LeafPiece {
    /// First key.
    pub from: Key,
    /// The key behind the last one.
    pub to: Key,
    /// The leaf; `None` if none is left.
    pub leaf: Option<NodeRef>,
    /// How it was reached.
    pub origin: Origin,
}

/// The leaves of a tree.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Ascending.
    pub pieces: Vec<LeafPiece>,
    /// Nodes that pointers name and that cannot be read.
    pub lost: u64,
    /// Those of them that are leaves.
    leaves_lost: u64,
    /// Nodes that were read.
    pub nodes: u64,
}

/// A tree to put together.
#[derive(Clone, Debug)]
pub(crate) struct PlanRequest {
    /// Its root; `None` if it is not known.
    pub(crate) root: Option<NodeRef>,
    /// Trees whose nodes it may have, and up to which generation: itself, then
    /// what it is a snapshot of.
    pub(crate) owners: Vec<(TreeId, Generation)>,
    /// The keys that are of interest.
    pub(crate) from: Key,
    /// The key behind the last of them.
    pub(crate) to: Key,
}

impl PlanRequest {
    /// All of a tree.
    pub(crate) fn whole(tree: TreeId, root: Option<NodeRef>, newest: Generation) -> Self {
        Self {
            root,
            owners: vec![(tree, newest)],
            from: Key::MIN,
            to: Key::MAX,
        }
    }
}

/// A range for which there is no leaf yet.
#[derive(Clone, Copy, Debug)]
struct Open {
    to: Key,
    /// No newer node belongs there.
    newest: Generation,
}

struct Walk<'n> {
    nodes: &'n Nodes,
    origin: Origin,
    pieces: Vec<LeafPiece>,
    lost: Vec<(Key, Open)>,
    /// Where leaves that pointers name cannot be read.
    leaves_lost: Vec<Key>,
    read: u64,
}

/// Where a node lies in its tree.
#[derive(Clone, Copy)]
struct Slot {
    /// The first key by the branch above; `None` for a root.
    first: Option<Key>,
    /// The first key behind it by the branches above, if they know one.
    bound: Option<Key>,
    /// The keys that it is asked for.
    from: Key,
    to: Key,
    /// Whether nothing is known of what lies behind its last key.
    is_end_open: bool,
}

impl Walk<'_> {
    fn descend(&mut self, reference: NodeRef, slot: Slot) {
        let node = self.nodes.read(reference).filter(|node| match slot.first {
            Some(first) => node.verify_place(&first, slot.bound.as_ref()).is_ok(),
            None => true,
        });
        let Some(node) = node else {
            let open = Open {
                to: slot.to,
                newest: reference.generation,
            };
            self.lost.push((slot.from, open));
            if reference.level == 0 {
                self.leaves_lost.push(slot.from);
            }
            return;
        };
        self.read = self.read.saturating_add(1);
        if node.is_leaf() {
            self.leaf(reference, &node, slot);
        } else {
            self.branch(&node, slot);
        }
    }

    fn leaf(&mut self, reference: NodeRef, node: &Node, slot: Slot) {
        let mut to = slot.to;
        if slot.is_end_open {
            let behind = node.last_key().and_then(Key::successor);
            to = to.min(behind.unwrap_or(slot.from));
        }
        if slot.from < to {
            self.pieces.push(LeafPiece {
                from: slot.from,
                to,
                leaf: Some(reference),
                origin: self.origin,
            });
        }
    }

    fn branch(&mut self, node: &Node, slot: Slot) {
        let count = node.len();
        for at in 0..count {
            let key = node.key(at);
            let is_last = at.saturating_add(1) == count;
            let next = (!is_last).then(|| node.key(at.saturating_add(1)));
            let from = if at == 0 {
                slot.from
            } else {
                key.max(slot.from)
            };
            let to = next.map_or(slot.to, |next| next.min(slot.to));
            if from >= to {
                continue;
            }
            let below = Slot {
                first: Some(key),
                bound: next.or(slot.bound),
                from,
                to,
                is_end_open: slot.is_end_open && is_last,
            };
            self.descend(node.child(at), below);
        }
    }
}

/// The leaves of a tree.
///
/// Nodes that are `live` come before others where pointers are lost.
pub(crate) fn plan(nodes: &Nodes, request: &PlanRequest, live: &Live<'_>) -> Plan {
    let mut walk = Walk {
        nodes,
        origin: Origin::Pointed,
        pieces: Vec::new(),
        lost: Vec::new(),
        leaves_lost: Vec::new(),
        read: 0,
    };
    let all = Slot {
        first: None,
        bound: None,
        from: request.from,
        to: request.to,
        is_end_open: false,
    };
    let newest = request.owners.first().map(|(_, newest)| *newest);
    match request.root {
        Some(root) => walk.descend(root, all),
        None => {
            let open = Open {
                to: request.to,
                newest: newest.unwrap_or(Generation(u64::MAX)),
            };
            walk.lost.push((request.from, open));
        }
    }
    let lost = std::mem::take(&mut walk.lost);
    let count = u64::try_from(lost.len()).unwrap_or(u64::MAX);
    let mut open: BTreeMap<Key, Open> = lost.into_iter().collect();
    if !open.is_empty() && live.is_known() {
        let owners = &request.owners;
        fill(&mut walk, &mut open, owners, &|node| live.has(node, owners));
    }
    walk.origin = Origin::Found;
    if !open.is_empty() {
        fill(&mut walk, &mut open, &request.owners, &|_| true);
    }
    let mut leaves_lost = walk.leaves_lost;
    leaves_lost.sort_unstable();
    leaves_lost.dedup();
    leaves_lost.retain(|key| {
        let before = open.range(..=*key).next_back();
        before.is_some_and(|(_, range)| range.to > *key)
    });
    let mut pieces = walk.pieces;
    pieces.extend(open.into_iter().map(|(from, open)| LeafPiece {
        from,
        to: open.to,
        leaf: None,
        origin: Origin::Found,
    }));
    pieces.sort_unstable_by_key(|piece| piece.from);
    Plan {
        pieces,
        lost: count,
        leaves_lost: u64::try_from(leaves_lost.len()).unwrap_or(u64::MAX),
        nodes: walk.read,
    }
}

/// Fills open ranges from the nodes that the scan found and that are accepted.
fn fill(
    walk: &mut Walk<'_>,
    open: &mut BTreeMap<Key, Open>,
    owners: &[(TreeId, Generation)],
    accepts: &dyn Fn(NodeRef) -> bool,
) {
    let index = Arc::clone(&walk.nodes.index);
    for (owner, newest) in owners {
        let first = open.keys().next().copied().unwrap_or(Key::MIN);
        let last = open.values().map(|range| range.to).max();
        for record in index.overlapping(*owner, first, last.unwrap_or(Key::MAX)) {
            if open.is_empty() {
                return;
            }
            if record.generation > *newest || record.first > record.last {
                continue;
            }
            let hits = open.range(..=record.last).rev();
            let hits = hits.take_while(|(_, range)| range.to > record.first);
            let fitting = hits.filter(|(_, range)| record.generation <= range.newest);
            let hits: Vec<(Key, Open)> = fitting.map(|(from, range)| (*from, *range)).collect();
            if hits.is_empty() || !accepts(record.reference()) {
                continue;
            }
            for (from, range) in hits {
                let start = walk.pieces.len();
                let slot = Slot {
                    first: None,
                    bound: None,
                    from: from.max(record.first),
                    to: range.to,
                    is_end_open: true,
                };
                walk.descend(record.reference(), slot);
                // Nodes below it that are lost leave their ranges open.
                walk.lost.clear();
                let pieces = walk.pieces.get(start..).unwrap_or_default();
                for piece in pieces {
                    cover(open, piece.from, piece.to);
                }
            }
        }
    }
}

/// Takes a range out of the one open range that has all of it.
fn cover(open: &mut BTreeMap<Key, Open>, from: Key, to: Key) {
    let Some((start, range)) = open.range(..=from).next_back().map(|(s, r)| (*s, *r)) else {
        return;
    };
    open.remove(&start);
    if start < from {
        let before = Open { to: from, ..range };
        open.insert(start, before);
    }
    if to < range.to {
        open.insert(to, range);
    }
}

impl Plan {
    /// Whether all leaves were reached by pointers.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.lost == 0
    }

    /// Leaves that pointers name, and in whose place nothing is left. Where
    /// branches are lost too, nobody knows how many leaves there were; it was
    /// at least one where nothing is left of the tree.
    #[must_use]
    pub fn lost_leaves(&self) -> u64 {
        let has_some = self.pieces.iter().any(|piece| piece.leaf.is_some());
        self.leaves_lost.max(u64::from(!has_some))
    }

    /// Calls `visit` with the items in key order, and with each gap.
    pub(crate) fn each<E>(
        &self,
        nodes: &Nodes,
        mut visit: impl FnMut(Seen<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for piece in &self.pieces {
            let leaf = piece.leaf.and_then(|leaf| nodes.read(leaf));
            let Some(leaf) = leaf else {
                visit(Seen::Gap {
                    from: piece.from,
                    to: piece.to,
                })?;
                continue;
            };
            if piece.origin == Origin::Found {
                visit(Seen::Gap {
                    from: piece.from,
                    to: piece.to,
                })?;
            }
            let start = match leaf.search(&piece.from) {
                Ok(slot) | Err(slot) => slot,
            };
            for slot in start..leaf.len() {
                let key = leaf.key(slot);
                if key >= piece.to {
                    break;
                }
                visit(Seen::Item {
                    key,
                    data: leaf.data(slot),
                    origin: piece.origin,
                })?;
            }
        }
        Ok(())
    }
}

/// What is met on the way through a tree.
pub(crate) enum Seen<'a> {
    /// An item.
    Item {
        key: Key,
        data: &'a [u8],
        origin: Origin,
    },
    /// Keys whose items are lost. If the scan found some that may be older than
    /// the tree, they follow.
    Gap { from: Key, to: Key },
}

impl Plan {
    /// Calls `visit` with the items of `from..to` in key order, and with each
    /// gap in there.
    pub(crate) fn each_in(
        &self,
        nodes: &Nodes,
        (from, to): (Key, Key),
        mut visit: impl FnMut(Seen<'_>),
    ) {
        let start = self.pieces.partition_point(|piece| piece.to <= from);
        for piece in self.pieces.get(start..).unwrap_or_default() {
            if piece.from >= to {
                return;
            }
            let low = piece.from.max(from);
            let high = piece.to.min(to);
            let Some(leaf) = piece.leaf.and_then(|leaf| nodes.read(leaf)) else {
                visit(Seen::Gap {
                    from: low,
                    to: high,
                });
                continue;
            };
            let first = match leaf.search(&low) {
                Ok(slot) | Err(slot) => slot,
            };
            for slot in first..leaf.len() {
                let key = leaf.key(slot);
                if key >= high {
                    break;
                }
                visit(Seen::Item {
                    key,
                    data: leaf.data(slot),
                    origin: piece.origin,
                });
            }
        }
    }

    /// The last item before `key` of which `accepts` is true, at most `far`
    /// items away. Gaps on the way are passed over.
    pub(crate) fn last_before(
        &self,
        nodes: &Nodes,
        key: &Key,
        far: usize,
        accepts: impl Fn(&Key) -> bool,
    ) -> Option<(Key, Vec<u8>, Origin)> {
        let behind = self.pieces.partition_point(|piece| piece.from < *key);
        let mut left = far;
        for piece in self.pieces.get(..behind)?.iter().rev() {
            let Some(leaf) = piece.leaf.and_then(|leaf| nodes.read(leaf)) else {
                continue;
            };
            let bound = piece.to.min(*key);
            let end = match leaf.search(&bound) {
                Ok(slot) | Err(slot) => slot,
            };
            for slot in (0..end).rev() {
                let found = leaf.key(slot);
                if found < piece.from {
                    break;
                }
                if accepts(&found) {
                    return Some((found, leaf.data(slot).to_vec(), piece.origin));
                }
                left = left.checked_sub(1)?;
            }
        }
        None
    }
}

impl Plan {
    /// Whether the keys right before `key` are lost.
    pub(crate) fn piece_before_is_lost(&self, key: &Key) -> bool {
        let behind = self.pieces.partition_point(|piece| piece.from < *key);
        let at = behind.checked_sub(1).and_then(|at| self.pieces.get(at));
        at.is_some_and(|piece| piece.leaf.is_none())
    }
}
