//! Reading a tree in key order.

use crate::error::TreeError;
use crate::node::Node;
use crate::{NodeSource, edit};
use butterfs_format::{Key, NodeRef, TreeId};
use std::sync::Arc;

/// A place in a tree, between or on items.
///
/// It holds the nodes on its path, so it shows the tree as it was when they
/// were read; items stay valid while it stands there.
#[derive(Debug)]
pub struct Cursor<'s, S: NodeSource> {
    source: &'s S,
    /// From the root down; the last one is a leaf. Empty before a seek.
    path: Vec<(Arc<Node>, usize)>,
    root: NodeRef,
}

impl<'s, S: NodeSource> Cursor<'s, S> {
    /// A cursor over the tree at `root`, not yet on an item.
    #[must_use]
    pub fn at_root(source: &'s S, root: NodeRef) -> Self {
        Self {
            source,
            path: Vec::new(),
            root,
        }
    }

    /// A cursor over `tree`, on the first item that is not before `key`.
    ///
    /// # Errors
    /// Reading nodes.
    pub fn seek_in(source: &'s S, tree: TreeId, key: &Key) -> Result<Self, TreeError> {
        let mut cursor = Self::at_root(source, source.root(tree)?);
        cursor.seek(key)?;
        Ok(cursor)
    }

    /// Goes to the first item that is not before `key` (or to the end).
    ///
    /// # Errors
    /// Reading nodes.
    pub fn seek(&mut self, key: &Key) -> Result<(), TreeError> {
        self.path.clear();
        let mut node = self.source.node(self.root)?;
        let mut bound = None;
        while !node.is_leaf() {
            let slot = node.child_slot(key);
            let child = edit::load_child(self.source, &node, slot, &mut bound)?;
            self.path.push((node, slot));
            node = child;
        }
        let slot = node.search(key).unwrap_or_else(|slot| slot);
        let past = slot >= node.len();
        self.path.push((node, slot));
        if past {
            self.next_leaf()?;
        }
        Ok(())
    }

    /// Goes to the last item that is not after `key`; false when there is none
    /// (then the cursor stands on the first item).
    ///
    /// # Errors
    /// Reading nodes.
    pub fn seek_back(&mut self, key: &Key) -> Result<bool, TreeError> {
        self.seek(key)?;
        if self.key() == Some(*key) {
            return Ok(true);
        }
        self.prev()
    }

    /// The item under the cursor; `None` at the end.
    #[must_use]
    pub fn item(&self) -> Option<(Key, &[u8])> {
        let (leaf, slot) = self.path.last()?;
        (*slot < leaf.len()).then(|| (leaf.key(*slot), leaf.data(*slot)))
    }

    /// Key of the item under the cursor; `None` at the end.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        let (leaf, slot) = self.path.last()?;
        (*slot < leaf.len()).then(|| leaf.key(*slot))
    }

    /// Data of the item under the cursor; empty at the end.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        self.item().map_or(&[], |(_, data)| data)
    }

    /// The leaf under the cursor and the slot in it.
    #[must_use]
    pub fn leaf(&self) -> Option<(&Arc<Node>, usize)> {
        self.path.last().map(|(leaf, slot)| (leaf, *slot))
    }

    /// Goes to the next item; false at the end.
    ///
    /// # Errors
    /// Reading nodes.
    #[allow(
        clippy::should_implement_trait,
        reason = "a cursor lends its items, which an iterator cannot"
    )]
    pub fn next(&mut self) -> Result<bool, TreeError> {
        let Some((leaf, slot)) = self.path.last_mut() else {
            return Ok(false);
        };
        if *slot < leaf.len() {
            *slot += 1;
        }
        if *slot < leaf.len() {
            return Ok(true);
        }
        self.next_leaf()
    }

    /// Goes to the previous item; false when there is none.
    ///
    /// # Errors
    /// Reading nodes.
    pub fn prev(&mut self) -> Result<bool, TreeError> {
        let Some((_, slot)) = self.path.last_mut() else {
            return Ok(false);
        };
        if *slot > 0 {
            *slot -= 1;
            return Ok(true);
        }
        let Some(turn) = self.path[..self.path.len() - 1]
            .iter()
            .rposition(|(_, slot)| *slot > 0)
        else {
            return Ok(false);
        };
        self.path.truncate(turn + 1);
        self.path[turn].1 -= 1;
        self.descend(Edge::Last)?;
        Ok(true)
    }

    fn next_leaf(&mut self) -> Result<bool, TreeError> {
        let Some(turn) = self.path[..self.path.len() - 1]
            .iter()
            .rposition(|(node, slot)| *slot + 1 < node.len())
        else {
            return Ok(false);
        };
        self.path.truncate(turn + 1);
        self.path[turn].1 += 1;
        self.descend(Edge::First)?;
        Ok(true)
    }

    fn descend(&mut self, edge: Edge) -> Result<(), TreeError> {
        let mut bound = None;
        for (node, slot) in &self.path {
            if slot + 1 < node.len() {
                bound = Some(node.key(slot + 1));
            }
        }
        loop {
            let (node, slot) = self.path.last().expect("a path has a root");
            if node.is_leaf() {
                return Ok(());
            }
            let child = edit::load_child(self.source, node, *slot, &mut bound)?;
            let slot = match edge {
                Edge::First => 0,
                Edge::Last => child.len() - 1,
            };
            self.path.push((child, slot));
        }
    }
}

#[derive(Clone, Copy)]
enum Edge {
    First,
    Last,
}

/// The leaf and slot of `key` in `tree`, if it is there.
///
/// # Errors
/// Reading nodes.
pub fn find<S: NodeSource>(
    source: &S,
    tree: TreeId,
    key: &Key,
) -> Result<Option<(Arc<Node>, usize)>, TreeError> {
    let (at, place) = descend(source, tree, key, |_| true)?.expect("nobody stopped it");
    let leaf = source.node(at)?;
    verify(&leaf, place.as_ref())?;
    Ok(leaf.search(key).ok().map(|slot| (leaf, slot)))
}

/// Calls `look` with the data of `key` in `tree` and returns its result; `None`
/// if the key is not there. Unlike [`find`], this leaves nobody holding the
/// leaf, so the leaf can change later without being copied.
///
/// # Errors
/// Reading nodes.
pub fn see_item<S: NodeSource, R>(
    source: &S,
    tree: TreeId,
    key: &Key,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<Option<R>, TreeError> {
    let item = |leaf: &Node, _| leaf.search(key).ok().map(|slot| look(leaf.data(slot)));
    let seen = see_leaf(source, tree, key, |_| true, item)?;
    Ok(seen.flatten())
}

/// Calls `look` with the leaf of `tree` in which `key` is or belongs, and with
/// the first key behind that leaf, and returns its result. `None` if `goes_on`
/// is false for a node on the way or for the leaf.
///
/// # Errors
/// Reading nodes.
pub fn see_leaf<S: NodeSource, R>(
    source: &S,
    tree: TreeId,
    key: &Key,
    goes_on: impl FnMut(NodeRef) -> bool,
    look: impl FnOnce(&Node, Option<Key>) -> R,
) -> Result<Option<R>, TreeError> {
    let Some((at, place)) = descend(source, tree, key, goes_on)? else {
        return Ok(None);
    };
    let bound = place.as_ref().and_then(|place| place.bound);
    source.see(at, |leaf| {
        verify(leaf, place.as_ref())?;
        Ok(Some(look(leaf, bound)))
    })?
}

/// Finds the leaf in which `key` is or belongs, without loading it, and what
/// the branch above says about it. `None` if `goes_on` is false for a node on
/// the way or for the leaf.
fn descend<S: NodeSource>(
    source: &S,
    tree: TreeId,
    key: &Key,
    mut goes_on: impl FnMut(NodeRef) -> bool,
) -> Result<Option<(NodeRef, Option<Place>)>, TreeError> {
    let mut at = source.root(tree)?;
    let mut place: Option<Place> = None;
    loop {
        if !goes_on(at) {
            return Ok(None);
        }
        if at.level == 0 {
            return Ok(Some((at, place)));
        }
        let below = source.see(at, |node| {
            verify(node, place.as_ref())?;
            let slot = node.child_slot(key);
            let bound = match slot + 1 < node.len() {
                true => Some(node.key(slot + 1)),
                false => place.as_ref().and_then(|place| place.bound),
            };
            let below = Place {
                first: node.key(slot),
                bound,
                owner: node.owner(),
            };
            Ok::<_, TreeError>((node.child(slot), below))
        });
        let (child, below) = below??;
        (at, place) = (child, Some(below));
    }
}

/// What the branch above a node says about it.
struct Place {
    /// Its first key.
    first: Key,
    /// The first key behind it.
    bound: Option<Key>,
    /// The tree that owns the branch.
    owner: TreeId,
}

/// Checks a node against the branch above it; a root has none.
fn verify(node: &Node, place: Option<&Place>) -> Result<(), TreeError> {
    let Some(place) = place else {
        return Ok(());
    };
    node.verify_place(&place.first, place.bound.as_ref())
        .and_then(|()| node.verify_owner_below(place.owner))
        .map_err(|fault| TreeError::Corrupt {
            logical: node.logical(),
            fault,
        })
}
