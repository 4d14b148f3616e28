//! What differs between two trees.
//!
//! Owns the walk over two trees at once. A node that both share is skipped
//! without being read, so the cost grows with what changed, not with what is
//! there. Knows nothing of what items mean.
//!
//! Invariant: each step moves at least one of the two sides forward in key
//! order, so the walk ends; a side holds one path from its root.

use crate::error::TreeError;
use crate::node::Node;
use crate::{NodeSource, edit};
use butterfs_format::{Key, NodeRef};
use std::cmp::Ordering;
use std::sync::Arc;

/// An item that one of the trees has.
#[derive(Clone, Debug)]
pub struct ComparedItem {
    leaf: Arc<Node>,
    slot: usize,
}

impl ComparedItem {
    /// Its data.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.leaf.data(self.slot)
    }
}

/// An item that is not the same in both trees. At least one side has it; when
/// both do, their data differ.
#[derive(Clone, Debug)]
pub struct Change {
    /// Its key.
    pub key: Key,
    /// As the old tree has it.
    pub old: Option<ComparedItem>,
    /// As the new tree has it.
    pub new: Option<ComparedItem>,
}

/// One of the two trees, at a place between or on items or pointers.
#[derive(Debug)]
struct Side<'s, S: NodeSource> {
    source: &'s S,
    /// From the root down. The last node may be a branch: then the place is
    /// the child in that slot, which was not read yet. Empty at the end.
    path: Vec<(Arc<Node>, usize)>,
}

impl<'s, S: NodeSource> Side<'s, S> {
    fn new(source: &'s S, root: Option<NodeRef>) -> Result<Self, TreeError> {
        let mut path = Vec::new();
        if let Some(root) = root {
            let node = source.node(root)?;
            if !node.is_empty() {
                path.push((node, 0));
            }
        }
        Ok(Self { source, path })
    }

    /// Level of the node in which the place is, and its key.
    fn place(&self) -> Option<(u8, Key)> {
        let (node, slot) = self.path.last()?;
        Some((node.level(), node.key(*slot)))
    }

    /// The child at the place, in a branch.
    fn child(&self) -> Option<NodeRef> {
        let (node, slot) = self.path.last()?;
        (!node.is_leaf()).then(|| node.child(*slot))
    }

    fn item(&self) -> Option<ComparedItem> {
        let (leaf, slot) = self.path.last()?;
        leaf.is_leaf().then(|| ComparedItem {
            leaf: Arc::clone(leaf),
            slot: *slot,
        })
    }

    /// Past the item or the whole child at the place.
    fn advance(&mut self) {
        while let Some((node, slot)) = self.path.last_mut() {
            *slot += 1;
            if *slot < node.len() {
                return;
            }
            self.path.pop();
        }
    }

    /// Into the child at the place.
    fn descend(&mut self) -> Result<(), TreeError> {
        let mut bound = self.path.iter().rev().find_map(|(node, slot)| {
            let next = slot + 1;
            (next < node.len()).then(|| node.key(next))
        });
        let Some((node, slot)) = self.path.last() else {
            return Ok(());
        };
        let child = edit::load_child(self.source, node, *slot, &mut bound)?;
        if child.is_empty() {
            self.advance();
        } else {
            self.path.push((child, 0));
        }
        Ok(())
    }
}

/// The items in which two trees of one volume differ, in key order.
#[derive(Debug)]
pub struct Comparison<'s, S: NodeSource> {
    old: Side<'s, S>,
    new: Side<'s, S>,
}

/// What to do at the two places.
enum Step {
    /// Both stand on one node, which they share.
    SkipBoth,
    Descend(Which),
    DescendBoth,
    /// Both stand on items of one key.
    Compare,
    Emit(Which),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Which {
    Old,
    New,
}

impl<'s, S: NodeSource> Comparison<'s, S> {
    /// Compares the trees at `old` and `new`; without an old one, everything
    /// is new.
    ///
    /// # Errors
    /// Reading the roots.
    pub fn new(source: &'s S, old: Option<NodeRef>, new: NodeRef) -> Result<Self, TreeError> {
        let same = old == Some(new);
        Ok(Self {
            old: Side::new(source, old.filter(|_| !same))?,
            new: Side::new(source, Some(new).filter(|_| !same))?,
        })
    }

    /// The next item that differs; `None` at the end.
    ///
    /// # Errors
    /// Reading nodes.
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail, and stays usable like a cursor"
    )]
    pub fn next(&mut self) -> Result<Option<Change>, TreeError> {
        while let Some(step) = self.step() {
            match step {
                Step::SkipBoth => {
                    self.old.advance();
                    self.new.advance();
                }
                Step::Descend(Which::Old) => self.old.descend()?,
                Step::Descend(Which::New) => self.new.descend()?,
                Step::DescendBoth => {
                    self.old.descend()?;
                    self.new.descend()?;
                }
                Step::Compare => {
                    let change = self.change(Some(Which::Old), Some(Which::New));
                    self.old.advance();
                    self.new.advance();
                    let differs = change.as_ref().is_some_and(|change| {
                        change.old.as_ref().map(ComparedItem::data)
                            != change.new.as_ref().map(ComparedItem::data)
                    });
                    if differs {
                        return Ok(change);
                    }
                }
                Step::Emit(Which::Old) => {
                    let change = self.change(Some(Which::Old), None);
                    self.old.advance();
                    return Ok(change);
                }
                Step::Emit(Which::New) => {
                    let change = self.change(None, Some(Which::New));
                    self.new.advance();
                    return Ok(change);
                }
            }
        }
        Ok(None)
    }

    /// The change at the place of one side or of both.
    fn change(&self, old: Option<Which>, new: Option<Which>) -> Option<Change> {
        let old = old.and_then(|_| self.old.item().zip(self.old.place()));
        let new = new.and_then(|_| self.new.item().zip(self.new.place()));
        let (_, (_, key)) = old.as_ref().or(new.as_ref())?;
        Some(Change {
            key: *key,
            old: old.as_ref().map(|(item, _)| item.clone()),
            new: new.map(|(item, _)| item),
        })
    }

    fn step(&self) -> Option<Step> {
        let alone = |level: u8, which| match level {
            0 => Step::Emit(which),
            _ => Step::Descend(which),
        };
        let ((old_level, old_key), (new_level, new_key)) =
            match (self.old.place(), self.new.place()) {
                (None, None) => return None,
                (Some((level, _)), None) => return Some(alone(level, Which::Old)),
                (None, Some((level, _))) => return Some(alone(level, Which::New)),
                (Some(old), Some(new)) => (old, new),
            };
        // A pointer's key is the first one below it: everything at or below a
        // place is not before its key. So the one that is behind goes on, and
        // between equals the higher one goes down to where the other is.
        Some(match old_key.cmp(&new_key) {
            Ordering::Less => alone(old_level, Which::Old),
            Ordering::Greater => alone(new_level, Which::New),
            Ordering::Equal => match old_level.cmp(&new_level) {
                Ordering::Greater => Step::Descend(Which::Old),
                Ordering::Less => Step::Descend(Which::New),
                Ordering::Equal if old_level == 0 => Step::Compare,
                Ordering::Equal if self.old.child() == self.new.child() => Step::SkipBoth,
                Ordering::Equal => Step::DescendBoth,
            },
        })
    }
}
