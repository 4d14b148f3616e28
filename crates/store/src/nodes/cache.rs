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

/// Nodes that a shard keeps however short memory is.
const SHARD_MIN: usize = 2;

/// Nodes as the device has them. A full cache drops nodes by second chance.
#[derive(Debug)]
pub struct NodeCache {
    shards: Vec<CachePadded<Mutex<Shard>>>,
    /// Most nodes of a shard when memory is not short.
    full: usize,
}

#[derive(Debug)]
struct Shard {
    slots: Vec<Slot>,
    index: FxHashMap<Logical, usize>,
    hand: usize,
    capacity: usize,
}

impl Shard {
    /// Where the hand stops: at a node that was not used since it last passed.
    fn least_used(&mut self) -> usize {
        loop {
            self.hand %= self.slots.len();
            let at = self.hand;
            self.hand += 1;
            if !std::mem::take(&mut self.slots[at].used) {
                return at;
            }
        }
    }

    fn shrink_to(&mut self, capacity: usize) {
        self.capacity = capacity;
        while self.slots.len() > capacity {
            let at = self.least_used();
            let old = self.slots.swap_remove(at);
            self.index.remove(&old.logical);
            if let Some(moved) = self.slots.get(at) {
                self.index.insert(moved.logical, at);
            }
        }
        self.slots.shrink_to_fit();
        self.index.shrink_to_fit();
    }
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
        let capacity = (bytes / node_size / SHARDS).max(SHARD_MIN);
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
            full: capacity,
        }
    }

    /// Keeps half as many nodes as there are now, until memory is less short.
    pub fn shrink(&self) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            let half = shard.slots.len() / 2;
            shard.shrink_to(half.clamp(SHARD_MIN, self.full));
        }
    }

    /// Lets the cache grow to twice as many nodes, at most to its full size. Says
    /// whether it has that.
    pub fn grow(&self) -> bool {
        let mut is_full = true;
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.capacity = (shard.capacity * 2).min(self.full);
            is_full &= shard.capacity == self.full;
        }
        is_full
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
        let at = shard.least_used();
        let old = std::mem::replace(&mut shard.slots[at], slot);
        shard.index.remove(&old.logical);
        shard.index.insert(logical, at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::{Generation, NodeRef, TreeId};
    use butterfs_tree::NodeStamp;

    const NODE: usize = 4096;

    fn node(number: u64) -> Arc<Node> {
        let stamp = NodeStamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
        };
        let reference = NodeRef {
            logical: Logical(number * NODE as u64),
            generation: Generation(1),
            level: 0,
        };
        Arc::new(Node::empty(NODE, &stamp, reference, TreeId::FS))
    }

    fn held(cache: &NodeCache, numbers: std::ops::Range<u64>) -> usize {
        let found = numbers.filter(|number| cache.get(Logical(number * NODE as u64)).is_some());
        found.count()
    }

    #[test]
    fn a_cache_shrinks_and_grows_again() {
        let cache = NodeCache::new(64 * 16 * NODE, NODE);
        for number in 0..10_000 {
            cache.insert(node(number));
        }
        let full = held(&cache, 0..10_000);
        assert!(full > 900 && full <= 1024, "{full}");
        cache.shrink();
        let half = held(&cache, 0..10_000);
        assert!(
            half <= full / 2 + 64 && half >= full / 3,
            "{half} of {full}"
        );
        for _ in 0..5 {
            cache.shrink();
        }
        assert_eq!(held(&cache, 0..10_000), 128);
        // What is left can be found, and nothing else enters beside it.
        for number in 0..10_000 {
            cache.insert(node(number));
        }
        assert_eq!(held(&cache, 0..10_000), 128);
        let steps = (0..10).take_while(|_| !cache.grow()).count();
        assert_eq!(steps, 2);
        for number in 0..10_000 {
            cache.insert(node(number));
        }
        assert_eq!(held(&cache, 0..10_000), full);
    }
}
