//! Trees and their nodes in memory.
//!
//! Owns the roots of the trees that were looked up, the nodes that changed, and
//! the cache of those that did not.
//!
//! Invariants: a node in `dirty` has the running generation and nobody on disk
//! refers to it; a node in `writing` belongs to the generation that is being
//! published; everything else is immutable.

use crate::branch_cache::EngineNumber;
use crate::cache::NodeCache;
use crate::changed_nodes::ChangedNodes;
use crate::trees::Trees;
use crate::written_nodes::WrittenNodes;
use butterfs_format::Logical;
use butterfs_tree::Node;
use butterfs_volume::ReadAs;
use rustc_hash::FxHashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// The trees of a volume and their nodes in memory.
#[derive(Debug)]
pub(crate) struct Forest {
    /// Number of this engine. No other engine of the process has it.
    pub(crate) number: EngineNumber,
    /// The trees that were looked up, with their roots.
    pub(crate) trees: Trees,
    /// Nodes that changed in the running generation.
    pub(crate) dirty: ChangedNodes,
    /// Nodes of the generation that is being published.
    pub(crate) writing: ChangedNodes,
    /// Nodes as the devices have them.
    pub(crate) cache: NodeCache,
    /// Nodes of the running generation that a snapshot shares: copied before
    /// they change.
    pub(crate) frozen: FxHashSet<Logical>,
    /// Nodes of the running generation that the device has already.
    pub(crate) written: WrittenNodes,
    /// Identity of the next subvolume, once it was looked for.
    pub(crate) next_tree: Option<u64>,
    /// Whether nodes may be overwritten while they are read, as those of a view
    /// may.
    pub(crate) read_as: ReadAs,
    /// Nodes that were read from the device.
    pub(crate) reads_under_lock: AtomicU64,
}

impl Forest {
    /// No trees yet, and room for `cache_bytes` of nodes of `node_size`.
    pub(crate) fn new(cache_bytes: usize, node_size: usize) -> Self {
        Self {
            number: EngineNumber::next(),
            trees: Trees::default(),
            dirty: ChangedNodes::default(),
            writing: ChangedNodes::default(),
            cache: NodeCache::new(cache_bytes, node_size),
            frozen: FxHashSet::default(),
            written: WrittenNodes::default(),
            next_tree: None,
            read_as: ReadAs::Current,
            reads_under_lock: AtomicU64::new(0),
        }
    }

    /// The node at `logical`, if it is in memory.
    pub(crate) fn in_memory(&self, logical: Logical) -> Option<Arc<Node>> {
        let changed = self.dirty.get(logical);
        let changed = changed.or_else(|| self.writing.get(logical));
        changed.or_else(|| self.cache.get(logical))
    }

    /// Whether the node at `logical` changed and is not durable.
    pub(crate) fn has_changed(&self, logical: Logical) -> bool {
        self.dirty.contains(logical) || self.writing.contains(logical)
    }
}

/// What happens when a node is not in memory.
pub(crate) enum OnMissing {
    /// The operation has it already.
    Use(Arc<Node>),
    /// The try ends.
    GiveUp,
    /// It is read now.
    Read,
}
