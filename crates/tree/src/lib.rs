//! The copy-on-write B-tree of Btrfs.
//!
//! Owns verified nodes, search, cursors and edits (insert, replace, remove,
//! split, merge). Knows nothing of devices, allocation or references: it asks
//! for nodes through [`NodeSource`] and makes them writable through
//! [`NodeSink`], which the store implements.
//!
//! Invariants of every tree it leaves behind: keys ascend strictly, a
//! pointer's key equals the first key of the node it points to, levels fall by
//! one, no node but an empty root leaf is empty.

mod compare;
mod cursor;
mod edit;
mod error;
mod item_change;
mod node;
mod raw;
mod sweep;
mod verify;

pub use compare::{Change, CompareCost, ComparedItem, Comparison};
pub use cursor::{Cursor, find, see_item, see_leaf};
pub use edit::{Editor, insert, remove, replace, update};
pub use error::{NodeFault, TreeError};
pub use item_change::{Edit, ItemChange, change_items};
pub use node::{Node, NodeStamp};
pub use sweep::{Stop, Sweep};
pub use verify::{Expected, Headers, Seeds, VolumeIdentity};

use butterfs_format::{NodeRef, TreeId};
use std::sync::Arc;

/// Gives nodes by reference.
pub trait NodeSource {
    /// The verified node that `reference` points to.
    ///
    /// # Errors
    /// Whatever reading or verifying it met.
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError>;

    /// Calls `look` with the node that `reference` points to and returns its
    /// result. A source that many threads share can do so without counting a
    /// reference to the node. `look` must not call this source.
    ///
    /// # Errors
    /// As [`NodeSource::node`].
    fn see<R>(&self, reference: NodeRef, look: impl FnOnce(&Node) -> R) -> Result<R, TreeError>
    where
        Self: Sized,
    {
        self.node(reference).map(|node| look(&node))
    }

    /// Root of `tree`.
    ///
    /// # Errors
    /// [`TreeError::NoSuchTree`]
    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError>;
}

/// How an editor fills the nodes of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Ascending keys fill leaves to the end, and nodes that hold little are
    /// merged.
    #[default]
    Dense,
    /// Full nodes are split in the middle, and nodes are not merged. Only an
    /// empty node is given up. So a change of items seldom makes or frees a node,
    /// and never both in turn.
    Lasting,
}

/// Makes nodes writable, creates nodes and frees them.
pub trait NodeSink: NodeSource {
    /// How nodes are to be filled now.
    fn packing(&self) -> Packing {
        Packing::Dense
    }

    /// Copies `node` of `tree` unless it is writable already, and returns where
    /// the writable one is. The caller replaces the pointer to it.
    ///
    /// # Errors
    /// No space, or what reading references met.
    fn make_writable(&mut self, tree: TreeId, node: NodeRef) -> Result<NodeRef, TreeError>;

    /// A new empty writable node.
    ///
    /// # Errors
    /// No space.
    fn create(&mut self, tree: TreeId, level: u8) -> Result<NodeRef, TreeError>;

    /// The bytes of a writable node.
    ///
    /// # Errors
    /// [`TreeError::Misuse`] when it was not made writable.
    fn edit(&mut self, node: NodeRef) -> Result<&mut Node, TreeError>;

    /// Drops a writable node that nothing points to any more.
    ///
    /// # Errors
    /// [`TreeError::Misuse`] when it was not made writable.
    fn release(&mut self, tree: TreeId, node: NodeRef) -> Result<(), TreeError>;

    /// Sets the root of `tree`.
    ///
    /// # Errors
    /// [`TreeError::NoSuchTree`]
    fn set_root(&mut self, tree: TreeId, root: NodeRef) -> Result<(), TreeError>;
}
