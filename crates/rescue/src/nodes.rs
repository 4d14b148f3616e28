//! Reading nodes, by the chunk map or where the scan found them.

use crate::index::Index;
use crate::memory_of;
use butterfs_device::BlockDevice;
use butterfs_format::{Generation, Logical, NodeRef};
use butterfs_tree::{Expected, Node, VolumeIdentity};
use butterfs_volume::LogicalSpace;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Bytes of nodes that are kept in memory.
const CACHE_BYTES: usize = 32 << 20;

/// Gives the nodes of a volume.
#[derive(Debug)]
pub(crate) struct Nodes {
    pub(crate) devices: Vec<Arc<dyn BlockDevice>>,
    pub(crate) identity: VolumeIdentity,
    pub(crate) space: Arc<LogicalSpace>,
    pub(crate) index: Arc<Index>,
    cache: Mutex<FxHashMap<(Logical, Generation), Arc<Node>>>,
}

impl Nodes {
    pub(crate) fn new(
        devices: Vec<Arc<dyn BlockDevice>>,
        identity: VolumeIdentity,
        space: Arc<LogicalSpace>,
        index: Arc<Index>,
    ) -> Self {
        Self {
            devices,
            identity,
            space,
            index,
            cache: Mutex::default(),
        }
    }

    /// The node that a reference points to; `None` if no good copy is left.
    pub(crate) fn read(&self, reference: NodeRef) -> Option<Arc<Node>> {
        let key = (reference.logical, reference.generation);
        let known = self.cache.lock().get(&key).cloned();
        if let Some(node) = known {
            return (node.level() == reference.level).then_some(node);
        }
        let node = Arc::new(self.load(reference)?);
        let room = CACHE_BYTES.checked_div(self.identity.node_size);
        let mut cache = self.cache.lock();
        if cache.len() >= room.unwrap_or(0) {
            cache.clear();
        }
        cache.insert(key, Arc::clone(&node));
        Some(node)
    }

    fn load(&self, reference: NodeRef) -> Option<Node> {
        let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
        for way in 0..self.space.ways(reference.logical) {
            let read = self.space.read_copy(reference.logical, way, &mut bytes);
            if read.is_ok() && Node::check(&bytes, &self.identity, reference.into()).is_ok() {
                return Node::verify(bytes, &self.identity, reference.into()).ok();
            }
        }
        for copy in self.index.at(reference.logical, reference.generation) {
            let Some(device) = self.devices.get(usize::from(copy.device)) else {
                continue;
            };
            let read = device.read_at(copy.offset, &mut bytes);
            if read.is_ok() && Node::check(&bytes, &self.identity, reference.into()).is_ok() {
                return Node::verify(bytes, &self.identity, reference.into()).ok();
            }
        }
        None
    }

    /// The node that lies at an address now, whatever it is.
    pub(crate) fn read_at_address(&self, logical: Logical) -> Option<Arc<Node>> {
        let expected = Expected {
            logical,
            generation: None,
            level: None,
        };
        for way in 0..self.space.ways(logical) {
            let mut bytes = vec![0; self.identity.node_size].into_boxed_slice();
            if self.space.read_copy(logical, way, &mut bytes).is_ok()
                && let Ok(node) = Node::verify(bytes, &self.identity, expected)
            {
                return Some(Arc::new(node));
            }
        }
        let mut found = self
            .index
            .nodes
            .iter()
            .filter(|node| node.logical == logical);
        let newest = found.by_ref().max_by_key(|node| node.generation)?;
        self.read(newest.reference())
    }

    /// Bytes of a sector.
    pub(crate) fn sector(&self) -> usize {
        memory_of(self.identity.sector_size)
    }
}
