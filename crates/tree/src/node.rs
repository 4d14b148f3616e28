//! A node in memory: on-disk bytes with the access that searches need.
//!
//! A [`Node`] comes from verified bytes or from [`Node::empty`], so its offsets
//! are within bounds. An offset out of bounds here is a fault of ButterFS, and
//! the program panics.

use crate::raw;
use butterfs_format::node::{self as layout, HEADER_SIZE, ITEM_SIZE, POINTER_SIZE};
use butterfs_format::{Generation, Key, Logical, NodeRef, TreeId, UuidBytes};

/// What every new node of a volume carries in its header.
#[derive(Clone, Copy, Debug)]
pub struct NodeStamp {
    /// Volume (metadata UUID).
    pub fsid: UuidBytes,
    /// UUID of the chunk tree.
    pub chunk_tree_uuid: UuidBytes,
}

/// A tree node: leaf or branch.
#[derive(Clone)]
pub struct Node {
    pub(crate) bytes: Box<[u8]>,
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("reference", &self.reference())
            .field("owner", &self.owner())
            .field("len", &self.len())
            .finish()
    }
}

impl Node {
    /// An empty node of `size` bytes.
    #[must_use]
    pub fn empty(size: usize, stamp: &NodeStamp, reference: NodeRef, owner: TreeId) -> Self {
        let header = layout::NodeHeader {
            fsid: stamp.fsid,
            logical: reference.logical,
            flags: layout::FLAG_WRITTEN
                | (layout::BACKREF_REVISION_MIXED << layout::BACKREF_REVISION_SHIFT),
            chunk_tree_uuid: stamp.chunk_tree_uuid,
            generation: reference.generation,
            owner,
            item_count: 0,
            level: reference.level,
        };
        let mut bytes = vec![0; size].into_boxed_slice();
        bytes[..HEADER_SIZE].copy_from_slice(&header.encode());
        Self { bytes }
    }

    /// A copy of this node as a new one, at another place and generation.
    #[must_use]
    pub fn copied_to(&self, logical: Logical, generation: Generation, owner: TreeId) -> Self {
        let mut copy = self.clone();
        copy.move_to(logical, generation, owner);
        copy
    }

    /// Makes it a new node, at another place and generation.
    pub fn move_to(&mut self, logical: Logical, generation: Generation, owner: TreeId) {
        raw::put_u64(&mut self.bytes, layout::field::LOGICAL, logical.get());
        raw::put_u64(&mut self.bytes, layout::field::GENERATION, generation.get());
        raw::put_u64(&mut self.bytes, layout::field::OWNER, owner.get());
        let flags = self.flags() & !layout::FLAG_RELOC | layout::FLAG_WRITTEN;
        raw::put_u64(&mut self.bytes, layout::field::FLAGS, flags);
    }

    /// Makes it a node of another volume.
    pub fn set_fsid(&mut self, fsid: &UuidBytes) {
        self.bytes[layout::field::FSID..layout::field::FSID + fsid.len()].copy_from_slice(fsid);
    }

    /// Marks it as moved by a relocation: whatever its generation, several trees
    /// may share it.
    pub fn mark_relocated(&mut self) {
        let flags = self.flags() | layout::FLAG_RELOC;
        raw::put_u64(&mut self.bytes, layout::field::FLAGS, flags);
    }

    /// Its bytes. The checksum field is that of the last seal.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Its bytes, to seal the checksum before writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// The reference that points to it.
    #[must_use]
    pub fn reference(&self) -> NodeRef {
        NodeRef {
            logical: self.logical(),
            generation: self.generation(),
            level: self.level(),
        }
    }

    /// Its address.
    #[must_use]
    pub fn logical(&self) -> Logical {
        Logical(raw::u64_at(&self.bytes, layout::field::LOGICAL))
    }

    /// The generation that wrote it.
    #[must_use]
    pub fn generation(&self) -> Generation {
        Generation(raw::u64_at(&self.bytes, layout::field::GENERATION))
    }

    /// The tree that allocated it.
    #[must_use]
    pub fn owner(&self) -> TreeId {
        TreeId(raw::u64_at(&self.bytes, layout::field::OWNER))
    }

    /// Header flags and back reference revision.
    #[must_use]
    pub fn flags(&self) -> u64 {
        raw::u64_at(&self.bytes, layout::field::FLAGS)
    }

    /// 0 for a leaf.
    #[must_use]
    #[inline]
    pub fn level(&self) -> u8 {
        self.bytes[layout::field::LEVEL]
    }

    /// True for a leaf.
    #[must_use]
    #[inline]
    pub fn is_leaf(&self) -> bool {
        self.level() == 0
    }

    /// Items or pointers in it.
    #[must_use]
    #[inline]
    pub fn len(&self) -> usize {
        raw::u32_at(&self.bytes, layout::field::ITEM_COUNT) as usize
    }

    /// True without items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub(crate) fn stride(&self) -> usize {
        if self.is_leaf() {
            ITEM_SIZE
        } else {
            POINTER_SIZE
        }
    }

    /// Key of the item or pointer in `slot`.
    #[must_use]
    #[inline]
    pub fn key(&self, slot: usize) -> Key {
        let at = HEADER_SIZE + slot * self.stride();
        raw::key_at(&self.bytes, at)
    }

    /// First key, if there is one.
    #[must_use]
    pub fn first_key(&self) -> Option<Key> {
        (!self.is_empty()).then(|| self.key(0))
    }

    /// Last key, if there is one.
    #[must_use]
    pub fn last_key(&self) -> Option<Key> {
        self.len().checked_sub(1).map(|slot| self.key(slot))
    }

    /// Where `key` is (`Ok`) or belongs (`Err`).
    ///
    /// # Errors
    /// The slot before which it would be inserted.
    #[inline]
    pub fn search(&self, key: &Key) -> Result<usize, usize> {
        let stride = self.stride();
        let mut low = 0;
        let mut high = self.len();
        while low < high {
            let middle = (low + high) / 2;
            let found = raw::key_at(&self.bytes, HEADER_SIZE + middle * stride);
            match found.cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
                std::cmp::Ordering::Equal => return Ok(middle),
            }
        }
        Err(low)
    }

    /// Slot of the child under which `key` belongs.
    #[must_use]
    #[inline]
    pub fn child_slot(&self, key: &Key) -> usize {
        match self.search(key) {
            Ok(slot) => slot,
            Err(slot) => slot.saturating_sub(1),
        }
    }

    /// Pointer in `slot` of a branch.
    #[must_use]
    #[inline]
    pub fn child(&self, slot: usize) -> NodeRef {
        debug_assert!(!self.is_leaf() && slot < self.len());
        let at = HEADER_SIZE + slot * POINTER_SIZE + Key::SIZE;
        NodeRef {
            logical: Logical(raw::u64_at(&self.bytes, at)),
            generation: Generation(raw::u64_at(&self.bytes, at + 8)),
            level: self.level() - 1,
        }
    }

    #[inline]
    pub(crate) fn data_range(&self, slot: usize) -> std::ops::Range<usize> {
        debug_assert!(self.is_leaf() && slot < self.len());
        let at = HEADER_SIZE + slot * ITEM_SIZE + Key::SIZE;
        let start = HEADER_SIZE + raw::u32_at(&self.bytes, at) as usize;
        start..start + raw::u32_at(&self.bytes, at + 4) as usize
    }

    /// Data of the item in `slot` of a leaf.
    #[must_use]
    #[inline]
    pub fn data(&self, slot: usize) -> &[u8] {
        &self.bytes[self.data_range(slot)]
    }

    /// Data of the item in `slot` of a leaf, to change in place.
    pub fn data_mut(&mut self, slot: usize) -> &mut [u8] {
        let range = self.data_range(slot);
        &mut self.bytes[range]
    }

    /// Offset of the first byte of data (the end of the free gap).
    #[inline]
    pub(crate) fn data_start(&self) -> usize {
        match self.len() {
            0 => self.bytes.len(),
            count => self.data_range(count - 1).start,
        }
    }

    /// Free bytes. In a leaf, descriptors and data share them; in a branch,
    /// they have room for pointers.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        let used = HEADER_SIZE + self.len() * self.stride();
        if self.is_leaf() {
            self.data_start() - used
        } else {
            self.bytes.len() - used
        }
    }

    /// Bytes that items (with descriptors) or pointers take.
    #[must_use]
    pub fn used_bytes(&self) -> usize {
        self.bytes.len() - HEADER_SIZE - self.free_bytes()
    }

    /// Greatest item data that a leaf of `node_size` holds.
    #[must_use]
    pub fn item_data_max(node_size: usize) -> usize {
        node_size - HEADER_SIZE - ITEM_SIZE
    }
}
