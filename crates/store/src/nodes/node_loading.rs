//! Nodes that are not in memory, read without the engine's lock.
//!
//! Owns the repeated tries of an operation. An operation that meets a node
//! which is not in memory gives up before its first edit. It lets go of the
//! engine, reads the node and begins again. So nobody waits for a device from
//! which somebody else reads.
//!
//! The operation keeps the node that it read ([`Tries`]) until it uses the node
//! under the lock, by the same reference by which it read it. Only then does
//! the node enter the cache. So a node that was freed meanwhile is never used.
//! Because an operation keeps its nodes, each try gets further, however small
//! the cache is.
//!
//! Nothing is healed or called damaged here, because the address may have been
//! freed and written anew. A node that cannot be read here is read again under
//! the lock.

use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::nodes::OnMissing;
use butterfs_format::{Logical, NodeRef};
use butterfs_tree::{Expected, Node, TreeError};
use rustc_hash::FxHashMap;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tries after which an operation reads under the lock, because other threads
/// change what it looks for faster than it reads.
const TRIES_MAX: usize = 256;

/// What an operation has read for itself.
#[derive(Debug, Default)]
pub struct Tries {
    /// What the last try missed.
    missing: Vec<NodeRef>,
    /// Nodes that it read, by their addresses.
    nodes: FxHashMap<Logical, Arc<Node>>,
    tries: usize,
    /// Read under the lock from now on.
    gave_up: bool,
}

/// A try that is under way on this thread.
#[derive(Clone, Copy, Debug)]
struct Try {
    /// The engine of this try. Calls to other engines do not count.
    engine: *const Engine,
    /// The number of the engine's edits when the try began. Those that others
    /// make beside it do not count.
    edits: u64,
}

/// What the try under way has read, and what it missed. Most tries miss nothing
/// and never come here.
#[derive(Debug, Default)]
struct Met {
    missing: Vec<NodeRef>,
    nodes: FxHashMap<Logical, Arc<Node>>,
}

thread_local! {
    static NOW: Cell<Option<Try>> = const { Cell::new(None) };
    /// The try under way has used [`MET`].
    static HAS_MET: Cell<bool> = const { Cell::new(false) };
    static MET: RefCell<Met> = RefCell::default();
}

/// Ends the try when it is dropped, by a panic too.
struct Running<'t> {
    tries: &'t mut Tries,
    outer: Option<Try>,
    outer_has_met: bool,
    outer_met: Option<Met>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        NOW.set(self.outer);
        let has_met = HAS_MET.replace(self.outer_has_met);
        if has_met || self.outer_met.is_some() {
            let met = MET.replace(self.outer_met.take().unwrap_or_default());
            self.tries.missing = met.missing;
            self.tries.nodes = met.nodes;
        }
    }
}

impl Tries {
    /// Begins a try on `engine`, which is locked. The try lasts until the
    /// returned value is dropped.
    fn begin(&mut self, engine: &Engine) -> Running<'_> {
        self.missing.clear();
        let own = (!self.gave_up).then(|| Try {
            engine: std::ptr::from_ref(engine),
            edits: engine.edits,
        });
        let outer_has_met = HAS_MET.get();
        let has_nodes = own.is_some() && !self.nodes.is_empty();
        let outer_met = (outer_has_met || has_nodes).then(|| {
            MET.replace(Met {
                missing: Vec::new(),
                nodes: std::mem::take(&mut self.nodes),
            })
        });
        HAS_MET.set(has_nodes);
        Running {
            outer: NOW.replace(own),
            outer_has_met,
            outer_met,
            tries: self,
        }
    }

    /// Whether the try that ended missed a node. If it did, and changed
    /// nothing, its result means nothing.
    #[must_use]
    pub const fn missed(&self) -> bool {
        !self.missing.is_empty()
    }
}

impl Engine {
    /// What to do about a node that is not in memory.
    pub(crate) fn on_missing(&self, reference: NodeRef) -> OnMissing {
        let own = NOW.get();
        let own = own.filter(|own| std::ptr::eq(own.engine, std::ptr::from_ref(self)));
        let Some(own) = own else {
            return OnMissing::Read;
        };
        HAS_MET.set(true);
        MET.with_borrow_mut(|met| {
            let read = met.nodes.get(&reference.logical);
            if let Some(node) = read.filter(|node| node.reference() == reference) {
                return OnMissing::Use(Arc::clone(node));
            }
            if own.edits != self.edits {
                // A change cannot be begun again.
                return OnMissing::Read;
            }
            met.missing.push(reference);
            OnMissing::GiveUp
        })
    }

    /// Runs a try that only reads this engine.
    pub(crate) fn try_look<R>(&self, tries: &mut Tries, look: impl FnOnce(&Self) -> R) -> R {
        let running = tries.begin(self);
        let result = look(self);
        drop(running);
        result
    }

    /// Runs a try of a change of this engine.
    pub(crate) fn try_change<R>(
        &mut self,
        tries: &mut Tries,
        change: impl FnOnce(&mut Self) -> R,
    ) -> R {
        let running = tries.begin(self);
        let result = change(self);
        drop(running);
        result
    }
}

impl Store {
    /// Looks at the engine in one consistent state; only changes that are made
    /// beside others ([`crate::nodes::leaf_update`]) may come in between. If a node is
    /// not in memory, it is read without the lock, and `look` is called again.
    /// So `look` must only read, or change something only at its end.
    ///
    /// # Errors
    /// Those of `look`.
    pub fn look<R, E>(&self, mut look: impl FnMut(&Engine) -> Result<R, E>) -> Result<R, E> {
        let mut tries = Tries::default();
        loop {
            let engine = self.read();
            let result = engine.try_look(&mut tries, &mut look);
            drop(engine);
            if !tries.missed() {
                return result;
            }
            self.load_missing(&mut tries);
        }
    }

    /// Reads what a try missed. If that fails, the next try reads under the
    /// lock, and learns whether it is an error.
    pub fn load_missing(&self, tries: &mut Tries) {
        tries.tries += 1;
        let loaded = tries.missing.drain(..).try_for_each(|reference| {
            let node = self.load_node(reference)?;
            tries.nodes.insert(reference.logical, node);
            Ok::<_, StoreError>(())
        });
        tries.gave_up = loaded.is_err() || tries.tries >= TRIES_MAX;
    }

    /// Reads one copy of a node without the lock. Nothing is healed.
    fn load_node(&self, reference: NodeRef) -> Result<Arc<Node>, StoreError> {
        self.reads_outside.fetch_add(1, Ordering::Relaxed);
        let mut buffer = vec![0; self.identity.node_size];
        self.space.read_first(reference.logical, &mut buffer)?;
        let expected = Expected::from(reference);
        let node = Node::verify(buffer.into(), &self.identity, expected);
        node.map(Arc::new).map_err(|fault| {
            StoreError::Tree(TreeError::Corrupt {
                logical: reference.logical,
                fault,
            })
        })
    }
}
