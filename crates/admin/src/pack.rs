//! Makes trees of any size from sorted items.
//!
//! Pure: takes items and makes nodes with their checksums, packed without gaps.
//! Leaves come first, then each level of branches. The root is the last node.

use butterfs_format::bytes::Writer;
use butterfs_format::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE,
    NodeHeader, POINTER_SIZE,
};
use butterfs_format::{ChecksumType, Generation, Key, Logical, NodeRef, TreeId, UuidBytes};

/// An item of a leaf.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) key: Key,
    pub(crate) data: Vec<u8>,
}

/// The most bytes of an item of a leaf.
pub(crate) const fn item_max(node_size: u32) -> usize {
    node_size as usize - HEADER_SIZE - ITEM_SIZE
}

/// How a tree is spread over nodes: for each level, the number of items or
/// children of each node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shape(Vec<Vec<usize>>);

impl Shape {
    /// Returns the shape with the fewest nodes that hold these items in order.
    pub(crate) fn of(items: &[Item], node_size: u32) -> Self {
        let room = node_size as usize - HEADER_SIZE;
        let mut leaves = vec![0];
        let mut used = 0;
        for item in items {
            let need = ITEM_SIZE + item.data.len();
            if used + need > room {
                leaves.push(0);
                used = 0;
            }
            used += need;
            if let Some(count) = leaves.last_mut() {
                *count += 1;
            }
        }
        let fan = room / POINTER_SIZE;
        let mut levels = vec![leaves];
        while let Some(below) = levels.last().filter(|below| below.len() > 1) {
            let mut left = below.len();
            let mut branches = Vec::new();
            while left > 0 {
                branches.push(left.min(fan));
                left -= left.min(fan);
            }
            levels.push(branches);
        }
        Self(levels)
    }

    /// The number of nodes of the tree.
    pub(crate) fn nodes(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The level of the root.
    pub(crate) fn root_level(&self) -> u8 {
        u8::try_from(self.0.len().saturating_sub(1)).unwrap_or(u8::MAX)
    }

    /// The level of each node, in the order of the nodes.
    pub(crate) fn levels(&self) -> impl Iterator<Item = u8> {
        (0..)
            .zip(&self.0)
            .flat_map(|(level, nodes)| nodes.iter().map(move |_| level))
    }
}

/// The fields that all nodes of a volume have in common.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeForm {
    pub(crate) node_size: u32,
    pub(crate) checksum: ChecksumType,
    pub(crate) fsid: UuidBytes,
    pub(crate) chunk_tree_uuid: UuidBytes,
    pub(crate) generation: Generation,
}

/// A tree that is to be written: its items, its shape, and an address for each
/// node.
#[derive(Clone, Debug, Default)]
pub(crate) struct PlannedTree {
    pub(crate) items: Vec<Item>,
    pub(crate) shape: Shape,
    pub(crate) addresses: Vec<Logical>,
}

impl PlannedTree {
    /// Returns a pointer to the root, in `generation`.
    pub(crate) fn root(&self, generation: Generation) -> NodeRef {
        NodeRef {
            logical: self.addresses.last().copied().unwrap_or_default(),
            generation,
            level: self.shape.root_level(),
        }
    }

    /// Returns the first key and the level of each node, in the order of the
    /// nodes.
    pub(crate) fn first_keys(&self) -> Vec<(Key, u8)> {
        let mut all = Vec::with_capacity(self.shape.nodes());
        let mut below: Vec<Key> = self.items.iter().map(|item| item.key).collect();
        for (level, counts) in (0..).zip(&self.shape.0) {
            let mut at = 0;
            let mut here = Vec::with_capacity(counts.len());
            for count in counts {
                here.push(below.get(at).copied().unwrap_or(Key::MIN));
                at += count;
            }
            all.extend(here.iter().map(|key| (*key, level)));
            below = here;
        }
        all
    }
}

impl NodeForm {
    /// Builds the nodes of a tree, and calls `write` with the address and the
    /// bytes of each.
    pub(crate) fn build<E>(
        &self,
        owner: TreeId,
        tree: &PlannedTree,
        mut write: impl FnMut(Logical, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(
            tree.addresses.len(),
            tree.shape.nodes(),
            "one address for each node"
        );
        let mut addresses = tree.addresses.iter();
        // The first key and the address of each node of the level below.
        let mut below: Vec<(Key, Logical)> = Vec::new();
        for (level, counts) in (0_u8..).zip(&tree.shape.0) {
            let mut at = 0;
            let mut here = Vec::with_capacity(counts.len());
            for (count, logical) in counts.iter().zip(&mut addresses) {
                let mut bytes = self.header(owner, *logical, *count, level);
                let first = if level == 0 {
                    let items = &tree.items[at..at + count];
                    self.fill_leaf(&mut bytes, items);
                    items.first().map_or(Key::MIN, |item| item.key)
                } else {
                    let children = &below[at..at + count];
                    let mut w = Writer::default();
                    for (key, child) in children {
                        w.bytes(&key.to_bytes())
                            .u64(child.get())
                            .u64(self.generation.get());
                    }
                    bytes.extend_from_slice(&w.finish());
                    children[0].0
                };
                at += count;
                bytes.resize(self.node_size as usize, 0);
                self.checksum.seal_block(&mut bytes);
                write(*logical, &bytes)?;
                here.push((first, *logical));
            }
            below = here;
        }
        Ok(())
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

    /// Fills a leaf. Data grow down from the end of the node. Their offsets count
    /// from the end of the header.
    fn fill_leaf(&self, bytes: &mut Vec<u8>, items: &[Item]) {
        let mut end = self.node_size as usize - HEADER_SIZE;
        let mut w = Writer::default();
        for item in items {
            end -= item.data.len();
            w.bytes(&item.key.to_bytes())
                .u32(end as u32)
                .u32(item.data.len() as u32);
        }
        bytes.extend_from_slice(&w.finish());
        bytes.resize(HEADER_SIZE + end, 0);
        for item in items.iter().rev() {
            bytes.extend_from_slice(&item.data);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::ItemType;

    #[test]
    fn levels_grow_with_items() {
        let item = |n: u64| Item {
            key: Key::new(n, ItemType::INODE_ITEM, 0),
            data: vec![0; 160],
        };
        // A node has 16283 bytes for items of 185 bytes, so a leaf has 88 of
        // them, and a branch has 493 leaves.
        let shape = |count: u64| Shape::of(&(0..count).map(item).collect::<Vec<_>>(), 16384);
        assert_eq!((shape(0).nodes(), shape(0).root_level()), (1, 0));
        assert_eq!((shape(88).nodes(), shape(88).root_level()), (1, 0));
        assert_eq!((shape(89).nodes(), shape(89).root_level()), (3, 1));
        let large = shape(88 * 493 + 1);
        assert_eq!((large.nodes(), large.root_level()), (494 + 2 + 1, 2));
        assert_eq!(large.levels().filter(|level| *level == 1).count(), 2);
    }
}
