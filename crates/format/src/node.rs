//! Layout of nodes: the header, leaf items and branch pointers.
//!
//! Owns the offsets and the header's encoding. Whether a node as a whole is
//! sound is decided by the tree crate.

use crate::bytes::{Reader, Writer};
use crate::checksum::CHECKSUM_FIELD;
use crate::{Generation, Key, Logical, ParseError, TreeId, UuidBytes};

/// Greatest level of a root.
pub const LEVEL_MAX: u8 = 7;
/// Bytes of the header.
pub const HEADER_SIZE: usize = 101;
/// Bytes of one leaf item's descriptor: key, data offset, data size.
pub const ITEM_SIZE: usize = 25;
/// Bytes of one branch pointer: key, logical address, generation.
pub const POINTER_SIZE: usize = 33;
/// Smallest and greatest size of a node.
pub const NODE_SIZE_RANGE: std::ops::RangeInclusive<u32> = 4096..=65536;

/// Header flag: the node was written (set on every node on disk).
pub const FLAG_WRITTEN: u64 = 1 << 0;
/// Header flag: made by relocation; references of such trees are by parent.
pub const FLAG_RELOC: u64 = 1 << 1;
/// The back reference revision occupies the top byte of the flags; 1 (mixed)
/// is what every volume since 2009 has.
pub const BACKREF_REVISION_SHIFT: u32 = 56;
/// Mixed back references.
pub const BACKREF_REVISION_MIXED: u64 = 1;

/// The first bytes of every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeHeader {
    /// Volume (its metadata UUID).
    pub fsid: UuidBytes,
    /// Its own address.
    pub logical: Logical,
    /// `FLAG_*` and the back reference revision.
    pub flags: u64,
    /// UUID of the chunk tree.
    pub chunk_tree_uuid: UuidBytes,
    /// Generation that wrote it.
    pub generation: Generation,
    /// Tree that allocated it.
    pub owner: TreeId,
    /// Items in a leaf, pointers in a branch.
    pub item_count: u32,
    /// 0 for a leaf.
    pub level: u8,
}

impl NodeHeader {
    /// Parses the header at the start of `node` (checksum field included).
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn parse(node: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new("node header", node);
        r.bytes(CHECKSUM_FIELD)?;
        Ok(Self {
            fsid: r.array()?,
            logical: Logical(r.u64()?),
            flags: r.u64()?,
            chunk_tree_uuid: r.array()?,
            generation: Generation(r.u64()?),
            owner: TreeId(r.u64()?),
            item_count: r.u32()?,
            level: r.u8()?,
        })
    }

    /// Its bytes, with a zero checksum field.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(HEADER_SIZE);
        w.zeros(CHECKSUM_FIELD)
            .bytes(&self.fsid)
            .u64(self.logical.get())
            .u64(self.flags)
            .bytes(&self.chunk_tree_uuid)
            .u64(self.generation.get())
            .u64(self.owner.get())
            .u32(self.item_count)
            .u8(self.level);
        w.finish()
    }
}

/// Descriptor of one item in a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemDescriptor {
    /// Its key.
    pub key: Key,
    /// Where its data begins, counted from the end of the header.
    pub data_offset: u32,
    /// Bytes of its data.
    pub data_size: u32,
}

impl ItemDescriptor {
    /// Parses one descriptor.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self {
            key: Key::parse(reader)?,
            data_offset: reader.u32()?,
            data_size: reader.u32()?,
        })
    }
}

/// Offset of each header field, for in-place edits.
pub mod field {
    /// Volume UUID.
    pub const FSID: usize = 32;
    /// Own address.
    pub const LOGICAL: usize = 48;
    /// Flags.
    pub const FLAGS: usize = 56;
    /// Chunk tree UUID.
    pub const CHUNK_TREE_UUID: usize = 64;
    /// Generation.
    pub const GENERATION: usize = 80;
    /// Owner.
    pub const OWNER: usize = 88;
    /// Item count.
    pub const ITEM_COUNT: usize = 96;
    /// Level.
    pub const LEVEL: usize = 100;
}
