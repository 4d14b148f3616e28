//! Makes trees of any size from sorted items.
//!
//! Pure: takes items and makes nodes with their checksums, packed without gaps.
//! Leaves come first, then each level of branches. The root is the last node.

use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE};
use butterfs_format::{Generation, Key, Logical, NodeRef, TreeId};

pub(crate) use butterfs_format::packed::{Item, NodeForm, item_max};

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

impl PlannedTree {
    /// Builds the nodes of the tree of `owner`, and calls `write` with the
    /// address and the bytes of each.
    pub(crate) fn build<E>(
        &self,
        form: &NodeForm,
        owner: TreeId,
        mut write: impl FnMut(Logical, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(
            self.addresses.len(),
            self.shape.nodes(),
            "one address for each node"
        );
        let mut addresses = self.addresses.iter();
        // The first key and the address of each node of the level below.
        let mut below: Vec<(Key, Logical)> = Vec::new();
        for (level, counts) in (0_u8..).zip(&self.shape.0) {
            let mut at = 0;
            let mut here = Vec::with_capacity(counts.len());
            for (count, logical) in counts.iter().zip(&mut addresses) {
                let (first, bytes) = if level == 0 {
                    let items = &self.items[at..at + count];
                    let first = items.first().map_or(Key::MIN, |item| item.key);
                    (first, form.leaf(owner, *logical, items))
                } else {
                    let children = &below[at..at + count];
                    (children[0].0, form.branch(owner, *logical, level, children))
                };
                at += count;
                write(*logical, &bytes)?;
                here.push((first, *logical));
            }
            below = here;
        }
        Ok(())
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
