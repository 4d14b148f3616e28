//! In-place edits of a node's bytes.
//!
//! Owns the geometry of leaves: descriptors grow from the front, data from the
//! back, without gaps between data. Bounds are asserted by slicing.

use crate::node::Node;
use butterfs_format::node::{self as layout, HEADER_SIZE, ITEM_SIZE, POINTER_SIZE};
use butterfs_format::{ItemType, Key, NodeRef};
use std::ops::Range;

#[inline]
pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let field: &[u8; 8] = bytes[at..at + 8].try_into().expect("eight bytes");
    u64::from_le_bytes(*field)
}

#[inline]
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let field: &[u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
    u32::from_le_bytes(*field)
}

#[inline]
pub fn key_at(bytes: &[u8], at: usize) -> Key {
    let field = &bytes[at..at + Key::SIZE];
    Key {
        objectid: u64_at(field, 0),
        item_type: ItemType(field[8]),
        offset: u64_at(field, 9),
    }
}

pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn put_u32(bytes: &mut [u8], at: usize, value: usize) {
    let value = u32::try_from(value).expect("offsets in a node fit 32 bits");
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

impl Node {
    fn set_len(&mut self, count: usize) {
        put_u32(&mut self.bytes, layout::field::ITEM_COUNT, count);
    }

    /// Sets the key in `slot`. The caller keeps the keys in order.
    pub(crate) fn set_key(&mut self, slot: usize, key: &Key) {
        let at = HEADER_SIZE + slot * self.stride();
        self.bytes[at..at + Key::SIZE].copy_from_slice(&key.to_bytes());
    }

    fn item_at(slot: usize) -> usize {
        HEADER_SIZE + slot * ITEM_SIZE
    }

    /// Moves the data of items `slots` by `shift` bytes towards the front
    /// (positive) or the back (negative).
    fn shift_data(&mut self, slots: Range<usize>, shift: isize) {
        if slots.is_empty() || shift == 0 {
            return;
        }
        let data = self.data_range(slots.end - 1).start..self.data_range(slots.start).end;
        let to = data
            .start
            .checked_add_signed(-shift)
            .expect("data stay within the node");
        self.bytes.copy_within(data, to);
        for slot in slots {
            let at = Self::item_at(slot) + Key::SIZE;
            let offset = u32_at(&self.bytes, at) as usize;
            let moved = offset
                .checked_add_signed(-shift)
                .expect("data stay within the node");
            put_u32(&mut self.bytes, at, moved);
        }
    }

    /// Inserts an item with `size` bytes of data before `slot` and returns the
    /// data to fill. There must be room.
    pub(crate) fn insert_item(&mut self, slot: usize, key: &Key, size: usize) -> &mut [u8] {
        let count = self.len();
        assert!(slot <= count && self.free_bytes() >= ITEM_SIZE + size);
        let end = if slot == 0 {
            self.bytes.len()
        } else {
            self.data_range(slot - 1).start
        };
        self.shift_data(slot..count, size as isize);
        let at = Self::item_at(slot);
        self.bytes
            .copy_within(at..Self::item_at(count), at + ITEM_SIZE);
        self.set_len(count + 1);
        self.set_key(slot, key);
        put_u32(&mut self.bytes, at + Key::SIZE, end - size - HEADER_SIZE);
        put_u32(&mut self.bytes, at + Key::SIZE + 4, size);
        &mut self.bytes[end - size..end]
    }

    /// Removes items `slots` of a leaf.
    pub(crate) fn remove_items(&mut self, slots: Range<usize>) {
        let count = self.len();
        if slots.is_empty() {
            return;
        }
        let gap = self.data_range(slots.start).end - self.data_range(slots.end - 1).start;
        self.shift_data(slots.end..count, -(gap as isize));
        self.bytes.copy_within(
            Self::item_at(slots.end)..Self::item_at(count),
            Self::item_at(slots.start),
        );
        self.set_len(count - slots.len());
    }

    /// Changes the size of an item's data. The first bytes are kept, and new
    /// ones are zero. There must be room.
    pub(crate) fn resize_item(&mut self, slot: usize, size: usize) -> &mut [u8] {
        let old = self.data_range(slot);
        let grow = size as isize - old.len() as isize;
        assert!(grow <= self.free_bytes() as isize);
        let count = self.len();
        self.shift_data(slot + 1..count, grow);
        let start = old.end - size;
        let keep = old.len().min(size);
        self.bytes.copy_within(old.start..old.start + keep, start);
        self.bytes[start + keep..old.end].fill(0);
        let at = Self::item_at(slot) + Key::SIZE;
        put_u32(&mut self.bytes, at, start - HEADER_SIZE);
        put_u32(&mut self.bytes, at + 4, size);
        &mut self.bytes[start..old.end]
    }

    /// Appends items `slots` of `from` (which keeps them) behind the last one.
    pub(crate) fn append_items(&mut self, from: &Self, slots: Range<usize>) {
        for slot in slots {
            let data = from.data(slot);
            self.insert_item(self.len(), &from.key(slot), data.len())
                .copy_from_slice(data);
        }
    }

    /// Greatest number of pointers in a branch.
    pub(crate) fn pointers_max(&self) -> usize {
        (self.bytes.len() - HEADER_SIZE) / POINTER_SIZE
    }

    fn pointer_at(slot: usize) -> usize {
        HEADER_SIZE + slot * POINTER_SIZE
    }

    /// Inserts a pointer before `slot`. There must be room.
    pub(crate) fn insert_pointer(&mut self, slot: usize, key: &Key, child: NodeRef) {
        let count = self.len();
        assert!(slot <= count && count < self.pointers_max());
        self.bytes.copy_within(
            Self::pointer_at(slot)..Self::pointer_at(count),
            Self::pointer_at(slot + 1),
        );
        self.set_len(count + 1);
        self.set_key(slot, key);
        self.set_child(slot, child);
    }

    /// Points `slot` of a branch to `child`, which has the same first key.
    pub fn set_child(&mut self, slot: usize, child: NodeRef) {
        assert!(child.level + 1 == self.level());
        let at = Self::pointer_at(slot) + Key::SIZE;
        put_u64(&mut self.bytes, at, child.logical.get());
        put_u64(&mut self.bytes, at + 8, child.generation.get());
    }

    /// Removes pointers `slots` of a branch.
    pub(crate) fn remove_pointers(&mut self, slots: Range<usize>) {
        let count = self.len();
        self.bytes.copy_within(
            Self::pointer_at(slots.end)..Self::pointer_at(count),
            Self::pointer_at(slots.start),
        );
        self.set_len(count - slots.len());
    }

    /// Appends pointers `slots` of `from` (which keeps them).
    pub(crate) fn append_pointers(&mut self, from: &Self, slots: Range<usize>) {
        for slot in slots {
            self.insert_pointer(self.len(), &from.key(slot), from.child(slot));
        }
    }

    /// Removes `slots` whatever the kind of node.
    pub(crate) fn remove_slots(&mut self, slots: Range<usize>) {
        if self.is_leaf() {
            self.remove_items(slots);
        } else {
            self.remove_pointers(slots);
        }
    }

    /// Appends `slots` of a node of the same kind.
    pub(crate) fn append_slots(&mut self, from: &Self, slots: Range<usize>) {
        if self.is_leaf() {
            self.append_items(from, slots);
        } else {
            self.append_pointers(from, slots);
        }
    }

    /// Puts all of `from` (same kind) in front. There must be room.
    pub(crate) fn prepend_all(&mut self, from: &Self) {
        let tail = self.clone();
        self.set_len(0);
        self.append_slots(from, 0..from.len());
        self.append_slots(&tail, 0..tail.len());
    }
}
