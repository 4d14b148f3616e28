//! Making trees from sorted items, one node after the other.
//!
//! A tree of any size takes the memory of one node for each of its levels. The
//! same items that are counted first ([`Counter`]) are written later
//! ([`Loader`]); both fill nodes in the same way.

use crate::error::ConvertError;
use butterfs_device::BlockDevice;
use butterfs_format::node::ITEM_SIZE;
use butterfs_format::packed::{Item, NodeForm, children_max, item_max, room};
use butterfs_format::{DeviceOffset, Key, Logical, NodeRef, TreeId};
use std::ops::Range;

/// Takes the items of a tree in ascending order.
pub(crate) trait Items {
    /// Takes one.
    ///
    /// # Errors
    /// An item that is too large or not in order, and those of writing.
    fn item(&mut self, key: Key, data: Vec<u8>) -> Result<(), ConvertError>;
}

/// Counts the nodes that items need.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    node_size: u32,
    used: usize,
    leaves: u64,
}

impl Counter {
    /// No items yet.
    pub(crate) const fn new(node_size: u32) -> Self {
        Self {
            node_size,
            used: 0,
            leaves: 1,
        }
    }

    /// Counts an item of this size.
    pub(crate) fn size(&mut self, data: usize) {
        let need = ITEM_SIZE.saturating_add(data);
        if self.used.saturating_add(need) > room(self.node_size) {
            self.leaves = self.leaves.saturating_add(1);
            self.used = 0;
        }
        self.used = self.used.saturating_add(need);
    }

    /// The nodes of each level, from the leaves on.
    pub(crate) fn levels(&self) -> Vec<u64> {
        let fan = u64::try_from(children_max(self.node_size)).unwrap_or(1);
        let mut levels = vec![self.leaves];
        let mut last = self.leaves;
        while last > 1 {
            last = last.div_ceil(fan);
            levels.push(last);
        }
        levels
    }

    /// All nodes.
    pub(crate) fn nodes(&self) -> u64 {
        self.levels().iter().sum()
    }
}

impl Items for Counter {
    fn item(&mut self, _: Key, data: Vec<u8>) -> Result<(), ConvertError> {
        self.size(data.len());
        Ok(())
    }
}

/// Gives nodes their addresses, and writes them.
pub(crate) trait Nodes {
    /// The address of the next node.
    ///
    /// # Errors
    /// There is no room.
    fn place(&mut self, owner: TreeId, level: u8) -> Result<Logical, ConvertError>;

    /// Writes a node.
    ///
    /// # Errors
    /// The device.
    fn write(&mut self, at: Logical, bytes: &[u8]) -> Result<(), ConvertError>;
}

/// A node, as the extent tree describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeNote {
    pub(crate) at: u64,
    pub(crate) owner: TreeId,
    pub(crate) level: u8,
}

/// Places for nodes: zones, each filled from its beginning. The last place of
/// a zone stays free, so that each chunk has one free range.
#[derive(Debug)]
pub(crate) struct Slots<'d> {
    device: &'d dyn BlockDevice,
    node_size: u64,
    /// Ascending.
    zones: Vec<Range<u64>>,
    number: usize,
    next: u64,
    /// All nodes that have a place.
    pub(crate) notes: Vec<NodeNote>,
    /// Bytes that are not written yet, and where they begin.
    waiting: (u64, Vec<u8>),
}

/// Bytes that are written at once.
const WRITE: usize = 1 << 20;

/// Nodes that fit into a zone.
pub(crate) const fn places(zone: &Range<u64>, node_size: u64) -> u64 {
    match (zone.end - zone.start).checked_div(node_size) {
        Some(places) => places.saturating_sub(1),
        None => 0,
    }
}

impl<'d> Slots<'d> {
    pub(crate) fn new(device: &'d dyn BlockDevice, node_size: u32, zones: Vec<Range<u64>>) -> Self {
        Self {
            device,
            node_size: node_size.into(),
            next: zones.first().map_or(0, |zone| zone.start),
            zones,
            number: 0,
            notes: Vec::new(),
            waiting: (0, Vec::new()),
        }
    }

    /// Takes the next place.
    fn slot(&mut self) -> Result<u64, ConvertError> {
        loop {
            let full = ConvertError::Fault("no place for a node");
            let zone = self.zones.get(self.number).ok_or(full)?;
            let end = zone.start + places(zone, self.node_size) * self.node_size;
            if self.next < end {
                let at = self.next;
                self.next += self.node_size;
                return Ok(at);
            }
            self.number = self.number.saturating_add(1);
            self.next = self.zones.get(self.number).map_or(0, |zone| zone.start);
        }
    }

    /// What was taken so far.
    pub(crate) fn mark(&self) -> (usize, u64, usize) {
        (self.number, self.next, self.notes.len())
    }

    /// Gives back what was taken since `mark`. Nothing of it was written.
    pub(crate) fn back_to(&mut self, (number, next, notes): (usize, u64, usize)) {
        self.number = number;
        self.next = next;
        self.notes.truncate(notes);
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// The device.
    pub(crate) fn finish(&mut self) -> Result<(), ConvertError> {
        let (at, bytes) = std::mem::take(&mut self.waiting);
        match bytes.is_empty() {
            true => Ok(()),
            false => Ok(self.device.write_at(DeviceOffset(at), &bytes)?),
        }
    }
}

impl Nodes for Slots<'_> {
    fn place(&mut self, owner: TreeId, level: u8) -> Result<Logical, ConvertError> {
        let at = self.slot()?;
        self.notes.push(NodeNote { at, owner, level });
        Ok(Logical(at))
    }

    fn write(&mut self, at: Logical, bytes: &[u8]) -> Result<(), ConvertError> {
        let length = u64::try_from(self.waiting.1.len()).unwrap_or(u64::MAX);
        let continues = self.waiting.0.saturating_add(length) == at.get();
        if !continues || self.waiting.1.len() >= WRITE {
            self.finish()?;
            self.waiting.0 = at.get();
        }
        self.waiting.1.extend_from_slice(bytes);
        Ok(())
    }
}

/// Places that were taken before, level by level.
#[derive(Debug)]
pub(crate) struct Reserved<'s, 'd> {
    slots: &'s mut Slots<'d>,
    /// For each level, from the leaves on.
    levels: Vec<std::vec::IntoIter<u64>>,
}

impl<'s, 'd> Reserved<'s, 'd> {
    /// Of the places of each level, from the leaves on.
    pub(crate) fn new(slots: &'s mut Slots<'d>, levels: Vec<Vec<u64>>) -> Self {
        Self {
            slots,
            levels: levels.into_iter().map(Vec::into_iter).collect(),
        }
    }
}

impl Nodes for Reserved<'_, '_> {
    fn place(&mut self, _: TreeId, level: u8) -> Result<Logical, ConvertError> {
        let places = self.levels.get_mut(usize::from(level));
        let next = places.and_then(Iterator::next);
        next.map(Logical)
            .ok_or(ConvertError::Fault("a tree has more nodes than counted"))
    }

    fn write(&mut self, at: Logical, bytes: &[u8]) -> Result<(), ConvertError> {
        self.slots.write(at, bytes)
    }
}

/// The root of a tree, and how many nodes the tree has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) root: NodeRef,
    pub(crate) nodes: u64,
}

/// Writes a tree.
pub(crate) struct Loader<'n> {
    owner: TreeId,
    form: NodeForm,
    nodes: &'n mut dyn Nodes,
    leaf: Vec<Item>,
    used: usize,
    last: Option<Key>,
    /// Children that no branch has yet, by the level of the branch less one.
    levels: Vec<Vec<(Key, Logical)>>,
    count: u64,
}

impl<'n> Loader<'n> {
    pub(crate) fn new(owner: TreeId, form: NodeForm, nodes: &'n mut dyn Nodes) -> Self {
        Self {
            owner,
            form,
            nodes,
            leaf: Vec::new(),
            used: 0,
            last: None,
            levels: Vec::new(),
            count: 0,
        }
    }

    fn end_leaf(&mut self) -> Result<(), ConvertError> {
        let at = self.nodes.place(self.owner, 0)?;
        let bytes = self.form.leaf(self.owner, at, &self.leaf);
        self.nodes.write(at, &bytes)?;
        self.count = self.count.saturating_add(1);
        let first = self.leaf.first().map_or(Key::MIN, |item| item.key);
        self.leaf.clear();
        self.used = 0;
        self.add_child(0, first, at)
    }

    fn add_child(&mut self, level: usize, key: Key, at: Logical) -> Result<(), ConvertError> {
        let full = children_max(self.form.node_size);
        if self.levels.get(level).is_some_and(|all| all.len() >= full) {
            self.end_branch(level)?;
        }
        match self.levels.get_mut(level) {
            Some(children) => children.push((key, at)),
            None => self.levels.push(vec![(key, at)]),
        }
        Ok(())
    }

    /// Writes the branch over the children that wait at `level`.
    fn end_branch(&mut self, level: usize) -> Result<(), ConvertError> {
        let children = self.levels.get_mut(level).map(std::mem::take);
        let children = children.unwrap_or_default();
        let of_branch = u8::try_from(level.saturating_add(1)).unwrap_or(u8::MAX);
        let at = self.nodes.place(self.owner, of_branch)?;
        let bytes = self.form.branch(self.owner, at, of_branch, &children);
        self.nodes.write(at, &bytes)?;
        self.count = self.count.saturating_add(1);
        let first = children.first().map_or(Key::MIN, |(key, _)| *key);
        self.add_child(level.saturating_add(1), first, at)
    }

    /// Writes what waits.
    ///
    /// # Errors
    /// Those of writing.
    pub(crate) fn finish(mut self) -> Result<Loaded, ConvertError> {
        if !self.leaf.is_empty() || self.count == 0 {
            self.end_leaf()?;
        }
        let mut level = 0_usize;
        loop {
            let above = self.levels.len() > level.saturating_add(1);
            let children = self.levels.get(level).map_or(&[][..], |all| &all[..]);
            if let ([(_, root)], false) = (children, above) {
                let root = NodeRef {
                    logical: *root,
                    generation: self.form.generation,
                    level: u8::try_from(level).unwrap_or(u8::MAX),
                };
                return Ok(Loaded {
                    root,
                    nodes: self.count,
                });
            }
            if !children.is_empty() {
                self.end_branch(level)?;
            }
            level = level.saturating_add(1);
        }
    }
}

impl Items for Loader<'_> {
    fn item(&mut self, key: Key, data: Vec<u8>) -> Result<(), ConvertError> {
        if data.len() > item_max(self.form.node_size) {
            return Err(ConvertError::Fault("an item is larger than a node"));
        }
        if self.last.is_some_and(|last| last >= key) {
            return Err(ConvertError::Fault("items are not in order"));
        }
        self.last = Some(key);
        let need = ITEM_SIZE.saturating_add(data.len());
        if self.used.saturating_add(need) > room(self.form.node_size) {
            self.end_leaf()?;
        }
        self.used = self.used.saturating_add(need);
        self.leaf.push(Item { key, data });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_device::MemoryDevice;
    use butterfs_format::{ChecksumType, Generation, ItemType};

    #[test]
    fn what_is_counted_is_written() {
        let device = MemoryDevice::new(64 << 20);
        for count in [0, 1, 21, 22, 2000, 40_000_u64] {
            let form = NodeForm {
                node_size: 4096,
                checksum: ChecksumType::Crc32c,
                fsid: [1; 16],
                chunk_tree_uuid: [2; 16],
                generation: Generation(1),
            };
            let mut slots = Slots::new(&device, 4096, vec![1 << 20..2 << 20, 8 << 20..60 << 20]);
            let mut counter = Counter::new(4096);
            let mut loader = Loader::new(TreeId::FS, form, &mut slots);
            for number in 0..count {
                let key = Key::new(number, ItemType::INODE_ITEM, 0);
                let data = vec![7; 160 - (number % 3) as usize];
                counter.item(key, data.clone()).unwrap();
                loader.item(key, data).unwrap();
            }
            let loaded = loader.finish().unwrap();
            slots.finish().unwrap();
            assert_eq!(loaded.nodes, counter.nodes());
            assert_eq!(usize::from(loaded.root.level) + 1, counter.levels().len());
            for (level, nodes) in (0_u8..).zip(counter.levels()) {
                let of_level = slots.notes.iter().filter(|note| note.level == level);
                assert_eq!(of_level.count() as u64, nodes);
            }
            assert!(slots.notes.iter().all(|note| note.at != (2 << 20) - 4096));
        }
    }
}
