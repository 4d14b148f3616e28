//! Nodes from sorted items, without a store.
//!
//! Pure: items in, sealed nodes out. A tree of one leaf is the usual case;
//! more leaves get one branch above them.

use super::MkfsError;
use butterfs_format::bytes::Writer;
use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE,
    NodeHeader, POINTER_SIZE,
};
use butterfs_format::{ChecksumType, Generation, Key, Logical, TreeId, UuidBytes};

/// An item of a leaf.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) data: Vec<u8>,
}

/// What all nodes of a volume have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct NodeForm {
    pub(super) node_size: u32,
    pub(super) checksum: ChecksumType,
    pub(super) fsid: UuidBytes,
    pub(super) chunk_tree_uuid: UuidBytes,
    pub(super) generation: Generation,
}

/// A node ready to be written.
#[derive(Clone, Debug)]
pub(super) struct BuiltNode {
    pub(super) logical: Logical,
    pub(super) bytes: Vec<u8>,
}

/// How the items of a tree are spread over leaves: items in each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shape(Vec<usize>);

impl Shape {
    /// Nodes of the tree: its leaves, and the branch when they are several.
    pub(super) fn nodes(&self) -> usize {
        self.0.len() + usize::from(self.0.len() > 1)
    }

    /// Level of the root.
    pub(super) fn root_level(&self) -> u8 {
        u8::from(self.0.len() > 1)
    }

    /// First key and level of each node of a tree with these items: the
    /// leaves in order, then the branch.
    pub(super) fn first_keys(&self, items: &[Item]) -> Vec<(Key, u8)> {
        let mut keys = Vec::new();
        let mut at = 0;
        for count in &self.0 {
            let first = items.get(at).map_or(Key::MIN, |item| item.key);
            keys.push((first, 0));
            at += count;
        }
        if keys.len() > 1 {
            keys.push((keys[0].0, 1));
        }
        keys
    }
}

impl NodeForm {
    /// Spreads `items` over as few leaves as hold them in order.
    pub(super) fn shape(&self, items: &[Item]) -> Result<Shape, MkfsError> {
        let room = self.node_size as usize - HEADER_SIZE;
        let mut leaves = vec![0];
        let mut used = 0;
        for item in items {
            let need = ITEM_SIZE + item.data.len();
            if need > room {
                return Err(MkfsError::TreesTooLarge(self.node_size));
            }
            if used + need > room {
                leaves.push(0);
                used = 0;
            }
            used += need;
            if let Some(count) = leaves.last_mut() {
                *count += 1;
            }
        }
        if leaves.len() * POINTER_SIZE > room {
            return Err(MkfsError::TreesTooLarge(self.node_size));
        }
        Ok(Shape(leaves))
    }

    /// The nodes of a tree at `addresses`, one for each node of `shape`.
    pub(super) fn build(
        &self,
        owner: TreeId,
        items: &[Item],
        shape: &Shape,
        addresses: &[Logical],
    ) -> Vec<BuiltNode> {
        assert_eq!(addresses.len(), shape.nodes(), "one address for each node");
        let mut nodes = Vec::new();
        let mut rest = items;
        for (count, logical) in shape.0.iter().zip(addresses) {
            let (here, after) = rest.split_at(*count);
            rest = after;
            nodes.push(self.leaf(owner, *logical, here));
        }
        if let Some(logical) = addresses.get(shape.0.len()) {
            let mut pointers = Writer::default();
            for ((key, _), child) in shape
                .first_keys(items)
                .iter()
                .zip(&addresses[..shape.0.len()])
            {
                pointers
                    .bytes(&key.to_bytes())
                    .u64(child.get())
                    .u64(self.generation.get());
            }
            let mut bytes = self.header(owner, *logical, shape.0.len(), 1);
            bytes.extend_from_slice(&pointers.finish());
            nodes.push(self.seal(*logical, bytes));
        }
        nodes
    }

    fn header(&self, owner: TreeId, logical: Logical, count: usize, level: u8) -> Vec<u8> {
        NodeHeader {
            fsid: self.fsid,
            logical,
            flags: FLAG_WRITTEN | BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT,
            chunk_tree_uuid: self.chunk_tree_uuid,
            generation: self.generation,
            owner,
            item_count: count as u32,
            level,
        }
        .encode()
    }

    fn leaf(&self, owner: TreeId, logical: Logical, items: &[Item]) -> BuiltNode {
        let mut bytes = self.header(owner, logical, items.len(), 0);
        // Data grow down from the end of the node; their offsets count from
        // the end of the header.
        let mut end = self.node_size as usize - HEADER_SIZE;
        let mut descriptors = Writer::default();
        for item in items {
            end -= item.data.len();
            descriptors
                .bytes(&item.key.to_bytes())
                .u32(end as u32)
                .u32(item.data.len() as u32);
        }
        bytes.extend_from_slice(&descriptors.finish());
        bytes.resize(HEADER_SIZE + end, 0);
        for item in items.iter().rev() {
            bytes.extend_from_slice(&item.data);
        }
        self.seal(logical, bytes)
    }

    fn seal(&self, logical: Logical, mut bytes: Vec<u8>) -> BuiltNode {
        assert!(bytes.len() <= self.node_size as usize, "a node fits");
        bytes.resize(self.node_size as usize, 0);
        self.checksum.seal_block(&mut bytes);
        BuiltNode { logical, bytes }
    }
}
