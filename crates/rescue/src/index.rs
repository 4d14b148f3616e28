//! The nodes that a scan found.
//!
//! Owns what is kept of each node: where it lies, what it says of itself, and
//! its range of keys. Content is read again when it is needed.
//!
//! Invariant: nodes are in order, by tree, then newest generation first, then
//! highest level first.

use crate::bytes_of;
use butterfs_format::{
    ChecksumType, DeviceOffset, Generation, Key, Logical, NodeRef, TreeId, UuidBytes,
};
use std::cmp::Reverse;
use std::mem::size_of;

/// Nodes whose greatest key is kept.
const BLOCK: usize = 64;

/// What the nodes of one volume share. Several volumes can have left nodes on
/// the same devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// UUID in nodes.
    pub fsid: UuidBytes,
    /// UUID of the chunk tree.
    pub chunk_tree_uuid: UuidBytes,
    /// Bytes of a node.
    pub node_size: u32,
    /// Checksum of nodes.
    pub checksum: ChecksumType,
}

/// One copy of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// The address that it says it has.
    pub logical: Logical,
    /// Where it lies on its device, counted from the device's first byte.
    pub offset: DeviceOffset,
    /// Generation that wrote it.
    pub generation: Generation,
    /// Tree that allocated it.
    pub owner: TreeId,
    /// Its first key; greater than `last` if it has no items.
    pub first: Key,
    /// Its last key.
    pub last: Key,
    /// Number of its device among those that were given.
    pub device: u16,
    /// Number of its [`Shape`].
    pub shape: u16,
    /// 0 for a leaf.
    pub level: u8,
}

impl NodeRecord {
    /// The reference that points to it.
    #[must_use]
    pub const fn reference(&self) -> NodeRef {
        NodeRef {
            logical: self.logical,
            generation: self.generation,
            level: self.level,
        }
    }

    fn order(&self) -> (TreeId, Reverse<Generation>, Reverse<u8>, Key, Logical) {
        let newest_first = Reverse(self.generation);
        let highest_first = Reverse(self.level);
        (
            self.owner,
            newest_first,
            highest_first,
            self.first,
            self.logical,
        )
    }
}

/// A superblock that the scan found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuperblockPlace {
    pub(crate) device: u16,
    /// Where it lies on the device.
    pub(crate) offset: DeviceOffset,
    /// Where it says that it lies in its volume.
    pub(crate) own_offset: DeviceOffset,
}

/// A part of a device that is scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) device: u16,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Index {
    pub(crate) shapes: Vec<Shape>,
    pub(crate) superblocks: Vec<SuperblockPlace>,
    pub(crate) nodes: Vec<NodeRecord>,
    /// Numbers of nodes by address and generation.
    by_address: Vec<u32>,
    /// Numbers of nodes by tree and first key.
    by_key: Vec<u32>,
    /// The greatest key of each [`BLOCK`] of `by_key`.
    block_last: Vec<Key>,
    /// What is scanned, and how many segments of it are done.
    pub(crate) spans: Vec<Span>,
    pub(crate) segments_done: u64,
    /// Bytes that no device could read.
    pub(crate) unreadable: u64,
}

impl Index {
    /// Bytes of memory that each node takes.
    pub const NODE_BYTES: usize = size_of::<NodeRecord>() + 2 * size_of::<u32>();

    /// Puts the nodes in order, after some were added. Copies of one node stay
    /// beside each other.
    pub(crate) fn sort(&mut self) {
        self.nodes.sort_unstable_by_key(NodeRecord::order);
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX);
        self.by_address = (0..count).collect();
        let nodes = &self.nodes;
        let place = |number: &u32| {
            let node = usize::try_from(*number).ok().and_then(|at| nodes.get(at));
            node.map(|node| (node.logical, node.generation))
        };
        self.by_address.sort_unstable_by_key(place);
        self.by_key = (0..count).collect();
        let nodes = &self.nodes;
        self.by_key.sort_unstable_by_key(|number| {
            let node = usize::try_from(*number).ok().and_then(|at| nodes.get(at));
            node.map(|node| (node.owner, node.first))
        });
        let lasts = self.by_key.chunks(BLOCK).map(|block| {
            let numbers = block.iter().filter_map(|one| usize::try_from(*one).ok());
            let nodes = numbers.filter_map(|at| nodes.get(at));
            nodes.map(|node| node.last).max().unwrap_or(Key::MIN)
        });
        self.block_last = lasts.collect();
    }

    /// Nodes of a tree with keys of `from..to`, newest first.
    pub(crate) fn overlapping(&self, tree: TreeId, from: Key, to: Key) -> Vec<&NodeRecord> {
        if from == Key::MIN && to == Key::MAX {
            return self.of_tree(tree).iter().collect();
        }
        let node = |number: &u32| {
            usize::try_from(*number)
                .ok()
                .and_then(|n| self.nodes.get(n))
        };
        let place = |number: &u32| node(number).map(|node| (node.owner, node.first));
        let start = self
            .by_key
            .partition_point(|number| node(number).is_some_and(|node| node.owner < tree));
        let end = self
            .by_key
            .partition_point(|number| place(number) < Some((tree, to)));
        let mut found: Vec<u32> = Vec::new();
        let mut at = start;
        while at < end {
            let block = at.checked_div(BLOCK).unwrap_or(0);
            let next = block.saturating_add(1).saturating_mul(BLOCK).min(end);
            if self.block_last.get(block).is_some_and(|last| *last >= from) {
                let numbers = self.by_key.get(at..next).unwrap_or_default().iter();
                let fitting = numbers.filter(|number| node(number).is_some_and(|n| n.last >= from));
                found.extend(fitting);
            }
            at = next;
        }
        // Their numbers are in the order of the nodes.
        found.sort_unstable();
        found.iter().filter_map(node).collect()
    }

    /// Nodes of a tree, newest first.
    #[must_use]
    pub fn of_tree(&self, tree: TreeId) -> &[NodeRecord] {
        let start = self.nodes.partition_point(|node| node.owner < tree);
        let end = self.nodes.partition_point(|node| node.owner <= tree);
        self.nodes.get(start..end).unwrap_or_default()
    }

    /// Copies of the node that was written to an address by a generation.
    pub fn at(
        &self,
        logical: Logical,
        generation: Generation,
    ) -> impl Iterator<Item = &NodeRecord> {
        let wanted = (logical, generation);
        let node = |number: &u32| {
            usize::try_from(*number)
                .ok()
                .and_then(|n| self.nodes.get(n))
        };
        let place = move |number: &u32| node(number).map(|node| (node.logical, node.generation));
        let start = self
            .by_address
            .partition_point(|number| place(number) < Some(wanted));
        let later = self.by_address.get(start..).unwrap_or_default().iter();
        later
            .take_while(move |number| place(number) == Some(wanted))
            .filter_map(node)
    }

    /// Trees that left nodes, ascending.
    pub fn trees(&self) -> impl Iterator<Item = TreeId> {
        let mut at = 0_usize;
        std::iter::from_fn(move || {
            let tree = self.nodes.get(at)?.owner;
            at = self.nodes.partition_point(|node| node.owner <= tree);
            Some(tree)
        })
    }

    /// Nodes, each copy counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// True if no node was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Bytes that the scan could not read.
    #[must_use]
    pub const fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Bytes that the scan covers.
    #[must_use]
    pub fn scope_bytes(&self) -> u64 {
        let lengths = self.spans.iter().map(|span| span.length);
        lengths.fold(0, u64::saturating_add)
    }

    /// Shapes of nodes, and how many nodes have each.
    #[must_use]
    pub fn shapes(&self) -> Vec<(Shape, u64)> {
        let mut counts = vec![0_u64; self.shapes.len()];
        for node in &self.nodes {
            if let Some(count) = counts.get_mut(usize::from(node.shape)) {
                *count = count.saturating_add(1);
            }
        }
        self.shapes.iter().copied().zip(counts).collect()
    }

    /// Leaves out the nodes of all volumes but one.
    pub(crate) fn keep_volume(&mut self, fsid: UuidBytes) {
        let shapes = &self.shapes;
        self.nodes.retain(|node| {
            let shape = shapes.get(usize::from(node.shape));
            shape.is_some_and(|shape| shape.fsid == fsid)
        });
        self.sort();
    }

    /// Bytes of memory that it takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        bytes_of(self.nodes.len().saturating_mul(Self::NODE_BYTES))
    }
}
