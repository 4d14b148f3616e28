//! Visits the nodes of many trees at once, each shared node once.
//!
//! Owns the order: nodes come by their first key, higher levels first. All
//! parents of a node begin at or before it. So when the sweep comes to a node,
//! it has found every tree that reaches the node, and the node's mark (who
//! reaches it) is complete. The caller decides what to do with a node: skip it,
//! or go below it.
//!
//! Memory: the sweep holds the children of the branches above its current
//! place. That grows with the number of trees that differ there, not with their
//! size.
//!
//! Invariants: no node comes twice. Every node that is loaded has the first key
//! and the bound that its parents name, so a wrong pointer is an error and
//! cannot make the sweep go in circles.

use crate::NodeSource;
use crate::error::{NodeFault, TreeError};
use crate::node::Node;
use butterfs_format::{Generation, Key, Logical, NodeRef};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Place of a node in the order of a sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    first: Key,
    level: Reverse<u8>,
    logical: Logical,
}

/// What is known of a node that the sweep has not come to.
#[derive(Clone, Copy, Debug)]
struct Waiting<M> {
    generation: Generation,
    /// First key of what comes after it, if a parent names one.
    bound: Option<Key>,
    /// A pointer leads to it (it is not only a root).
    is_child: bool,
    mark: M,
}

/// A node that a sweep came to.
#[derive(Clone, Copy, Debug)]
pub struct Stop<M> {
    /// The node.
    pub node: NodeRef,
    /// Its first key.
    pub first: Key,
    /// Who reaches it.
    pub mark: M,
    bound: Option<Key>,
    is_child: bool,
}

/// A sweep over trees.
#[derive(Debug)]
pub struct Sweep<'s, S, M> {
    source: &'s S,
    waiting: BTreeMap<Place, Waiting<M>>,
}

impl<'s, S: NodeSource, M: Copy> Sweep<'s, S, M> {
    /// A sweep over no trees yet.
    #[must_use]
    pub const fn new(source: &'s S) -> Self {
        Self {
            source,
            waiting: BTreeMap::new(),
        }
    }

    /// Adds a tree. `join` makes one mark of two if another tree has the same
    /// root.
    ///
    /// # Errors
    /// Reading the root.
    pub fn add_root(
        &mut self,
        root: NodeRef,
        mark: M,
        join: &mut dyn FnMut(M, M) -> M,
    ) -> Result<(), TreeError> {
        let node = self.source.node(root)?;
        let waiting = Waiting {
            generation: root.generation,
            bound: None,
            is_child: false,
            mark,
        };
        self.add(root, node.first_key().unwrap_or(Key::MIN), waiting, join)
    }

    fn add(
        &mut self,
        node: NodeRef,
        first: Key,
        new: Waiting<M>,
        join: &mut dyn FnMut(M, M) -> M,
    ) -> Result<(), TreeError> {
        let place = Place {
            first,
            level: Reverse(node.level),
            logical: node.logical,
        };
        let Some(known) = self.waiting.get_mut(&place) else {
            self.waiting.insert(place, new);
            return Ok(());
        };
        if known.generation != new.generation {
            return Err(TreeError::Corrupt {
                logical: node.logical,
                fault: NodeFault::Generation,
            });
        }
        known.is_child |= new.is_child;
        known.bound = match (known.bound, new.bound) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        known.mark = join(known.mark, new.mark);
        Ok(())
    }

    /// Where the next node begins.
    #[must_use]
    pub fn next_key(&self) -> Option<Key> {
        self.waiting.first_key_value().map(|(place, _)| place.first)
    }

    /// Number of nodes that the sweep knows and has not come to.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The next node; it is not read yet.
    #[allow(
        clippy::should_implement_trait,
        reason = "what follows depends on whether the caller goes below it"
    )]
    pub fn next(&mut self) -> Option<Stop<M>> {
        let (place, waiting) = self.waiting.pop_first()?;
        Some(Stop {
            node: NodeRef {
                logical: place.logical,
                generation: waiting.generation,
                level: place.level.0,
            },
            first: place.first,
            mark: waiting.mark,
            bound: waiting.bound,
            is_child: waiting.is_child,
        })
    }

    /// Reads a node that the sweep came to.
    ///
    /// # Errors
    /// Reading, damage.
    pub fn load(&self, stop: &Stop<M>) -> Result<Arc<Node>, TreeError> {
        let node = self.source.node(stop.node)?;
        if stop.is_child {
            node.verify_place(&stop.first, stop.bound.as_ref())
                .map_err(|fault| TreeError::Corrupt {
                    logical: stop.node.logical,
                    fault,
                })?;
        }
        Ok(node)
    }

    /// Adds the children of a branch that lie in `slots`, with the mark of
    /// the branch.
    ///
    /// # Errors
    /// Two pointers to one node that do not agree.
    pub fn descend(
        &mut self,
        stop: &Stop<M>,
        node: &Node,
        slots: Range<usize>,
        join: &mut dyn FnMut(M, M) -> M,
    ) -> Result<(), TreeError> {
        for slot in slots.start..slots.end.min(node.len()) {
            let next = slot.saturating_add(1);
            let bound = if next < node.len() {
                Some(node.key(next))
            } else {
                stop.bound
            };
            let waiting = Waiting {
                generation: node.child(slot).generation,
                bound,
                is_child: true,
                mark: stop.mark,
            };
            self.add(node.child(slot), node.key(slot), waiting, join)?;
        }
        Ok(())
    }
}
