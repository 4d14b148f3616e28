//! Finds what differs between two trees, item by item.
//!
//! Owns the search for the items that only one of two trees has, or that both
//! have with different data, in key order. A node that both trees share is
//! skipped without being read, wherever it lies in them, so the cost grows with
//! what differs. Knows nothing of what the items mean.
//!
//! A shared node never holds the counterpart of an item outside of it: the
//! shared node is in the item's own tree too, and a tree has each key only
//! once.

use crate::NodeSource;
use crate::error::TreeError;
use crate::node::Node;
use crate::sweep::Sweep;
use butterfs_format::{Key, NodeRef};
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// Which of two trees reach a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Old,
    New,
    Both,
}

fn join(one: Reach, other: Reach) -> Reach {
    if one == other { one } else { Reach::Both }
}

/// An item of a tree. It keeps its leaf alive.
#[derive(Clone, Debug)]
pub struct ComparedItem {
    leaf: Arc<Node>,
    slot: usize,
}

impl ComparedItem {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> Key {
        self.leaf.key(self.slot)
    }

    /// Its data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.leaf.data(self.slot)
    }
}

/// An item that differs. At least one of `old` and `new` is there.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its key.
    pub key: Key,
    /// As the old tree has it.
    pub old: Option<ComparedItem>,
    /// As the new tree has it.
    pub new: Option<ComparedItem>,
}

/// Number of nodes that a comparison read, and of those that it skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompareCost {
    /// Read, since only one tree has them.
    pub read: u64,
    /// Skipped unread with all nodes below them, since both trees have them.
    pub shared: u64,
}

/// The leaves of one tree that hold its next items.
#[derive(Debug, Default)]
struct Side(VecDeque<(Arc<Node>, usize)>);

impl Side {
    fn key(&self) -> Option<Key> {
        self.0.front().map(|(leaf, slot)| leaf.key(*slot))
    }

    /// Adds the items of a leaf that are not before `first`.
    fn add(&mut self, leaf: Arc<Node>, first: &Key) {
        let slot = leaf.search(first).unwrap_or_else(|slot| slot);
        if slot < leaf.len() {
            self.0.push_back((leaf, slot));
        }
    }

    /// Takes the item at `key`, if it is the next one.
    fn take(&mut self, key: Key) -> Option<ComparedItem> {
        let (leaf, slot) = self.0.front_mut()?;
        if leaf.key(*slot) != key {
            return None;
        }
        let item = ComparedItem {
            leaf: Arc::clone(leaf),
            slot: *slot,
        };
        *slot = slot.saturating_add(1);
        if *slot >= leaf.len() {
            self.0.pop_front();
        }
        Some(item)
    }
}

/// A comparison of two trees, under way.
#[derive(Debug)]
pub struct Comparison<'s, S> {
    sweep: Sweep<'s, S, Reach>,
    keys: RangeInclusive<Key>,
    old: Side,
    new: Side,
    cost: CompareCost,
}

impl<'s, S: NodeSource> Comparison<'s, S> {
    /// Compares the trees at `old` and `new`; without an old one, everything
    /// is new.
    ///
    /// # Errors
    /// Reading the roots.
    pub fn new(source: &'s S, old: Option<NodeRef>, new: NodeRef) -> Result<Self, TreeError> {
        Self::within(source, old, new, Key::MIN..=Key::MAX)
    }

    /// Compares the items with these keys alone, and reads nothing else.
    ///
    /// # Errors
    /// Reading the roots.
    pub fn within(
        source: &'s S,
        old: Option<NodeRef>,
        new: NodeRef,
        keys: RangeInclusive<Key>,
    ) -> Result<Self, TreeError> {
        let mut sweep = Sweep::new(source);
        if let Some(old) = old {
            sweep.add_root(old, Reach::Old, &mut join)?;
        }
        sweep.add_root(new, Reach::New, &mut join)?;
        Ok(Self {
            sweep,
            keys,
            old: Side::default(),
            new: Side::default(),
            cost: CompareCost::default(),
        })
    }

    /// What it cost so far.
    #[must_use]
    pub const fn cost(&self) -> CompareCost {
        self.cost
    }

    /// The next item that differs; `None` at the end.
    ///
    /// # Errors
    /// Reading, damage.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator of results would let callers go on after an error"
    )]
    pub fn next(&mut self) -> Result<Option<Change>, TreeError> {
        loop {
            let item = match (self.old.key(), self.new.key()) {
                (Some(old), Some(new)) => Some(old.min(new)),
                (old, new) => old.or(new),
            };
            let node = self.sweep.next_key();
            match (item, node) {
                (None, None) => return Ok(None),
                (None, Some(_)) => self.advance()?,
                // A node that begins here or before may hold the other tree's
                // item.
                (Some(key), Some(node)) if node <= key => self.advance()?,
                (Some(key), _) if key > *self.keys.end() => return Ok(None),
                (Some(key), _) => {
                    let change = Change {
                        key,
                        old: self.old.take(key),
                        new: self.new.take(key),
                    };
                    let old = change.old.as_ref().map(ComparedItem::data);
                    if old != change.new.as_ref().map(ComparedItem::data) {
                        return Ok(Some(change));
                    }
                }
            }
        }
    }

    fn advance(&mut self) -> Result<(), TreeError> {
        let Some(stop) = self.sweep.next() else {
            return Ok(());
        };
        if stop.mark == Reach::Both {
            self.cost.shared = self.cost.shared.saturating_add(1);
            return Ok(());
        }
        self.cost.read = self.cost.read.saturating_add(1);
        let node = self.sweep.load(&stop)?;
        if !node.is_leaf() {
            let first = node.child_slot(self.keys.start());
            let end = match node.search(self.keys.end()) {
                Ok(slot) => slot.saturating_add(1),
                Err(slot) => slot,
            };
            return self.sweep.descend(&stop, &node, first..end, &mut join);
        }
        match stop.mark {
            Reach::Old => self.old.add(node, self.keys.start()),
            Reach::New => self.new.add(node, self.keys.start()),
            Reach::Both => {}
        }
        Ok(())
    }
}
