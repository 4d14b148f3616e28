//! Branches that a thread used last, kept for itself.
//!
//! Every search of a tree passes its root. If the root had one place for all
//! threads, each of them would count its use there, and processors would wait
//! for each other's counts. Here a search writes nothing that threads share.
//!
//! Only nodes that no longer change are kept. A committed node stays what its
//! reference says as long as the engine lives, because only a later generation
//! uses the address again.
//!
//! Bound: [`PLACES`] nodes for each thread.

use butterfs_format::NodeRef;
use butterfs_tree::{Node, TreeError};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Nodes that a thread keeps at most.
const PLACES: usize = 32;
/// The same of a process with less memory than [`LITTLE_MEMORY`]. A server has
/// some twenty threads, each of which may keep other nodes.
const FEW_PLACES: usize = 4;
const LITTLE_MEMORY: u64 = 512 << 20;

fn places() -> usize {
    match butterfs_device::memory_of_process() {
        Some(memory) if memory < LITTLE_MEMORY => FEW_PLACES,
        _ => PLACES,
    }
}

/// Tells the engines of a process apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineNumber(u64);

impl EngineNumber {
    pub(crate) fn next() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(LAST.fetch_add(1, Ordering::Relaxed))
    }
}

struct Kept {
    engine: EngineNumber,
    reference: NodeRef,
    node: Arc<Node>,
}

thread_local! {
    static BRANCHES: RefCell<[Option<Kept>; PLACES]> = const { RefCell::new([const { None }; PLACES]) };
}

/// Calls `look` with a committed node and returns its result. `find` gets the
/// node if it is not here.
pub(crate) fn see<R>(
    engine: EngineNumber,
    reference: NodeRef,
    find: impl FnOnce() -> Result<Arc<Node>, TreeError>,
    look: impl FnOnce(&Node) -> R,
) -> Result<R, TreeError> {
    // Nodes lie at multiples of at least 4 KiB, mostly 16 KiB, so the bits
    // above are mixed.
    let mixed = (reference.logical.get() >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let place = (mixed >> 59) as usize % places();
    BRANCHES.with_borrow_mut(|branches| {
        let kept = &mut branches[place];
        if let Some(kept) = kept
            && kept.engine == engine
            && kept.reference == reference
        {
            return Ok(look(&kept.node));
        }
        let node = find()?;
        let result = look(&node);
        *kept = Some(Kept {
            engine,
            reference,
            node,
        });
        Ok(result)
    })
}
