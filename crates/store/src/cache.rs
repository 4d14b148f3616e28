//! Clean nodes in memory, bounded.

use butterfs_format::Logical;
use butterfs_tree::Node;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Many, so that threads that work in different places seldom want the same
/// one.
const SHARDS: usize = 64;

/// Nodes as the device has them. A full cache drops nodes by second chance.
#[derive(Debug)]
pub struct NodeCache {
    shards: Vec<CachePadded<Mutex<Shard>>>,
}

#[derive(Debug)]
struct Shard {
    slots: Vec<Slot>,
    index: FxHashMap<Logical, usize>,
    hand: usize,
    capacity: usize,
}

#[derive(Debug)]
struct Slot {
    logical: Logical,
    node: Arc<Node>,
    used: bool,
}

impl NodeCache {
    /// A cache of at most `bytes` of nodes of `node_size`.
    pub fn new(bytes: usize, node_size: usize) -> Self {
        let capacity = (bytes / node_size / SHARDS).max(2);
        let shard = || {
            CachePadded::new(Mutex::new(Shard {
                slots: Vec::new(),
                index: FxHashMap::default(),
                hand: 0,
                capacity,
            }))
        };
        Self {
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    fn shard(&self, logical: Logical) -> &Mutex<Shard> {
        // Addresses are multiples of the sector size, so the bits above it are
        // mixed.
        let mixed = (logical.get() >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// The node at `logical`, if it is here.
    pub fn get(&self, logical: Logical) -> Option<Arc<Node>> {
        let mut shard = self.shard(logical).lock();
        let at = *shard.index.get(&logical)?;
        let slot = &mut shard.slots[at];
        slot.used = true;
        Some(slot.node.clone())
    }

    /// Keeps `node`.
    pub fn insert(&self, node: Arc<Node>) {
        let logical = node.logical();
        let mut shard = self.shard(logical).lock();
        let slot = Slot {
            logical,
            node,
            used: false,
        };
        if let Some(at) = shard.index.get(&logical).copied() {
            shard.slots[at] = slot;
            return;
        }
        if shard.slots.len() < shard.capacity {
            let at = shard.slots.len();
            shard.slots.push(slot);
            shard.index.insert(logical, at);
            return;
        }
        loop {
            let at = shard.hand;
            shard.hand = (at + 1) % shard.slots.len();
            if std::mem::take(&mut shard.slots[at].used) {
                continue;
            }
            let old = std::mem::replace(&mut shard.slots[at], slot);
            shard.index.remove(&old.logical);
            shard.index.insert(logical, at);
            return;
        }
    }
}
