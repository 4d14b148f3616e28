//! Nodes that are made from sorted items, full and without gaps.
//!
//! Pure: whoever makes a whole tree at once (a new volume, an image, a
//! conversion) decides which items go into a node and where it lies.

use crate::bytes::Writer;
use crate::item::inode::{InodeItem, RefEntry};
use crate::node::{
    BACKREF_REVISION_MIXED, BACKREF_REVISION_SHIFT, FLAG_WRITTEN, HEADER_SIZE, ITEM_SIZE,
    NodeHeader, POINTER_SIZE,
};
use crate::{ChecksumType, Generation, ItemType, Key, Logical, TreeId, UuidBytes};

/// An item of a leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its key.
    pub key: Key,
    /// Its bytes.
    pub data: Vec<u8>,
}

/// Bytes of a node behind its header.
#[must_use]
pub fn room(node_size: u32) -> usize {
    let size = usize::try_from(node_size).unwrap_or(usize::MAX);
    size.saturating_sub(HEADER_SIZE)
}

/// The most bytes of an item of a leaf.
#[must_use]
pub fn item_max(node_size: u32) -> usize {
    room(node_size).saturating_sub(ITEM_SIZE)
}

/// The most children of a branch.
#[must_use]
pub fn children_max(node_size: u32) -> usize {
    room(node_size).checked_div(POINTER_SIZE).unwrap_or(0)
}

/// Returns the items of an empty directory `object` that is its own parent, as
/// the root directory of a subvolume is.
#[must_use]
pub fn root_directory(object: u64, inode: &InodeItem) -> Vec<Item> {
    let parent = RefEntry {
        index: 0,
        name: b"..",
    };
    vec![
        Item {
            key: Key::new(object, ItemType::INODE_ITEM, 0),
            data: inode.encode(),
        },
        Item {
            key: Key::new(object, ItemType::INODE_REF, object),
            data: parent.encode(),
        },
    ]
}

/// The fields that all nodes of a volume have in common.
#[derive(Clone, Copy, Debug)]
pub struct NodeForm {
    /// Bytes of a node.
    pub node_size: u32,
    /// Checksum of nodes.
    pub checksum: ChecksumType,
    /// UUID in nodes.
    pub fsid: UuidBytes,
    /// UUID of the chunk tree.
    pub chunk_tree_uuid: UuidBytes,
    /// Generation of all nodes.
    pub generation: Generation,
}

impl NodeForm {
    /// Returns a leaf with its checksum. The items must fit: each takes
    /// [`ITEM_SIZE`] and its bytes of [`room`]. Data grow down from the end of
    /// the node; their offsets count from the end of the header.
    #[must_use]
    pub fn leaf(&self, owner: TreeId, logical: Logical, items: &[Item]) -> Vec<u8> {
        let mut end = room(self.node_size);
        let mut w = Writer::default();
        for item in items {
            end = end.saturating_sub(item.data.len());
            w.bytes(&item.key.to_bytes())
                .u32(number(end))
                .u32(number(item.data.len()));
        }
        let mut bytes = self.header(owner, logical, items.len(), 0);
        bytes.extend_from_slice(&w.finish());
        bytes.resize(HEADER_SIZE.saturating_add(end), 0);
        for item in items.iter().rev() {
            bytes.extend_from_slice(&item.data);
        }
        self.sealed(bytes)
    }

    /// Returns a branch with its checksum: the first key and the address of
    /// each child.
    #[must_use]
    pub fn branch(
        &self,
        owner: TreeId,
        logical: Logical,
        level: u8,
        children: &[(Key, Logical)],
    ) -> Vec<u8> {
        let mut w = Writer::default();
        for (key, child) in children {
            w.bytes(&key.to_bytes())
                .u64(child.get())
                .u64(self.generation.get());
        }
        let mut bytes = self.header(owner, logical, children.len(), level);
        bytes.extend_from_slice(&w.finish());
        self.sealed(bytes)
    }

    fn sealed(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        bytes.resize(usize::try_from(self.node_size).unwrap_or(usize::MAX), 0);
        self.checksum.seal_block(&mut bytes);
        bytes
    }

    fn header(&self, owner: TreeId, logical: Logical, count: usize, level: u8) -> Vec<u8> {
        NodeHeader {
            fsid: self.fsid,
            logical,
            flags: FLAG_WRITTEN | BACKREF_REVISION_MIXED << BACKREF_REVISION_SHIFT,
            chunk_tree_uuid: self.chunk_tree_uuid,
            generation: self.generation,
            owner,
            item_count: number(count),
            level,
        }
        .encode()
    }
}

/// A size within a node.
fn number(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}
