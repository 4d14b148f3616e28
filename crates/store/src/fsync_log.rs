//! The fsync log in memory.

use crate::changed_inodes::ChangedInodes;
use crate::space::ranges::RangeSet;
use butterfs_format::{Generation, InodeId, InodeNumber, Logical, NodeRef, TreeId};
use butterfs_tree::Node;
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// When a logged change is durable: with the commit of its generation, or with
/// the log batch that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogTicket {
    pub(crate) generation: Generation,
    pub(crate) batch: u64,
}

/// With more renamed inodes than this, nobody looks which they are.
pub(crate) const RENAMED_MAX: usize = 64;

/// The log of the running generation.
#[derive(Debug, Default)]
pub(crate) struct FsyncLog {
    /// Root of each subvolume's log tree. [`TreeId::LOG`] stands for the tree
    /// that holds the root items of these.
    pub(crate) roots: BTreeMap<TreeId, NodeRef>,
    /// How many nodes each of them has.
    pub(crate) nodes: FxHashMap<TreeId, u64>,
    /// Trees whose root items are out of date.
    pub(crate) moved: FxHashSet<TreeId>,
    /// Nodes changed since the last batch.
    pub(crate) dirty: FxHashMap<Logical, Arc<Node>>,
    /// The others.
    pub(crate) clean: FxHashMap<Logical, Arc<Node>>,
    /// Blocks that the durable log has and the next one does not.
    pub(crate) replaced: Vec<Logical>,
    /// Blocks that no log has.
    pub(crate) spare: Vec<Logical>,
    /// How many items name each data extent.
    pub(crate) named: FxHashMap<Logical, u32>,
    /// Data extents that only the durable log names.
    pub(crate) unnamed: FxHashSet<Logical>,
    /// The same, of the batch that is being written.
    pub(crate) unnamed_writing: FxHashSet<Logical>,
    /// Data extents without references that no item names any more. Their space
    /// is free after the next log.
    pub(crate) held: Vec<Range<u64>>,
    /// Data extents without references that items still name, with their ends.
    pub(crate) held_named: FxHashMap<Logical, u64>,
    /// Data whose checksums the log of a subvolume has.
    pub(crate) sums: FxHashMap<TreeId, RangeSet>,
    /// Inodes that changed.
    pub(crate) changed: ChangedInodes,
    /// Names that the log gives to inodes, ...
    pub(crate) names: FxHashMap<(InodeId, Vec<u8>), InodeNumber>,
    /// ... their indexes in their directories, ...
    pub(crate) indexes: FxHashMap<(InodeId, u64), InodeNumber>,
    /// ... and both by inode. Inodes that were logged without a name are here
    /// too.
    pub(crate) given: FxHashMap<InodeId, Vec<GivenName>>,
    /// Inodes in the log whose names changed since they were logged.
    pub(crate) stale: Mutex<FxHashSet<InodeId>>,
    /// Inodes of which the log knows nothing and that got another name or lost
    /// one, since the last commit or since the log said so. No more than
    /// [`RENAMED_MAX`] are counted.
    pub(crate) renamed: Mutex<FxHashSet<InodeId>>,
    /// Nodes that batches have written because the log has grown.
    pub(crate) overhead: usize,
    /// The same of one batch: a moving average, in parts of a node.
    pub(crate) recent_overhead: usize,
    /// Batches since the last commit.
    pub(crate) batches: usize,
    /// Number of the batch that is being gathered.
    pub(crate) batch: u64,
    /// A log cannot express something that happened, or an edit failed half
    /// way. The log must not be written.
    pub(crate) broken: bool,
}

/// A name that the log gives to an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GivenName {
    /// Directory.
    pub dir: InodeId,
    /// Index in it.
    pub index: u64,
    /// Name in it.
    pub name: Vec<u8>,
}

/// Space that a log had, free once the commit after it is durable.
#[derive(Debug, Default)]
pub(crate) struct LogSpace {
    pub(crate) blocks: Vec<Logical>,
    pub(crate) held: Vec<Range<u64>>,
}
