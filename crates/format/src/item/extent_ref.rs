//! References to extents: who uses a node or a data extent.
//!
//! Owns their inline and keyed forms and their order. Inside an extent item,
//! types ascend; within a type the greatest [`ExtentRef::order`] comes first.
//! In the tree the same number is the key's offset and ascends. Both orders
//! were read off dump-tree of kernel volumes (see `tests/golden.rs`).

use crate::bytes::{Reader, Writer};
use crate::checksum::crc32c_raw;
use crate::item::expect_end;
use crate::{FileOffset, InodeNumber, ItemType, Key, Logical, ParseError, TreeId};

/// One reference to an extent, with its count where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExtentRef {
    /// A tree refers to a node.
    TreeBlock {
        /// Tree.
        root: TreeId,
    },
    /// A node refers to a node.
    SharedBlock {
        /// The referring node.
        parent: Logical,
    },
    /// File extents of a tree refer to a data extent.
    Data {
        /// Tree.
        root: TreeId,
        /// Inode in it.
        inode: InodeNumber,
        /// File offset at which the extent's first byte would lie. It wraps
        /// below zero when only the extent's end is used.
        offset: FileOffset,
        /// File extents that share these three.
        count: u32,
    },
    /// File extents of a leaf refer to a data extent.
    SharedData {
        /// The referring leaf.
        parent: Logical,
        /// File extents in it.
        count: u32,
    },
    /// Not a reference: who allocated the extent, under simple quotas. Only
    /// inline, once and first.
    Owner {
        /// Tree.
        root: TreeId,
    },
}

/// Key offset and order of a data reference: the CRC of the tree, shifted left
/// by 31 bits, exclusive-or the CRC of inode and offset. The CRCs start from
/// all ones and are not inverted at the end.
#[must_use]
pub fn data_ref_hash(root: TreeId, inode: InodeNumber, offset: FileOffset) -> u64 {
    let high = crc32c_raw(u32::MAX, &root.get().to_le_bytes());
    let low = crc32c_raw(u32::MAX, &inode.get().to_le_bytes());
    let low = crc32c_raw(low, &offset.get().to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

impl ExtentRef {
    const WHAT: &str = "extent reference";

    /// Its type, inline and as a key.
    #[must_use]
    pub const fn item_type(&self) -> ItemType {
        match self {
            Self::TreeBlock { .. } => ItemType::TREE_BLOCK_REF,
            Self::SharedBlock { .. } => ItemType::SHARED_BLOCK_REF,
            Self::Data { .. } => ItemType::EXTENT_DATA_REF,
            Self::SharedData { .. } => ItemType::SHARED_DATA_REF,
            Self::Owner { .. } => ItemType::EXTENT_OWNER_REF,
        }
    }

    /// Its order among references of its type, and its key's offset.
    #[must_use]
    pub fn order(&self) -> u64 {
        match *self {
            Self::TreeBlock { root } | Self::Owner { root } => root.get(),
            Self::SharedBlock { parent } | Self::SharedData { parent, .. } => parent.get(),
            Self::Data {
                root,
                inode,
                offset,
                ..
            } => data_ref_hash(root, inode, offset),
        }
    }

    /// How many references it stands for; none for an owner.
    #[must_use]
    pub const fn count(&self) -> u32 {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => 1,
            Self::Data { count, .. } | Self::SharedData { count, .. } => *count,
            Self::Owner { .. } => 0,
        }
    }

    /// Bytes of its inline form, with the type.
    #[must_use]
    pub const fn inline_size(&self) -> usize {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } | Self::Owner { .. } => 9,
            Self::Data { .. } => 29,
            Self::SharedData { .. } => 13,
        }
    }

    /// Key of its item for the extent at `extent`. A data reference whose key
    /// is taken by another one of the same hash goes to the next free offset.
    #[must_use]
    pub fn key(&self, extent: Logical) -> Key {
        Key::new(extent.get(), self.item_type(), self.order())
    }

    /// Body of its item.
    #[must_use]
    pub fn encode_keyed(&self) -> Vec<u8> {
        let mut w = Writer::default();
        match *self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } | Self::Owner { .. } => {}
            Self::Data {
                root,
                inode,
                offset,
                count,
            } => {
                w.u64(root.get())
                    .u64(inode.get())
                    .u64(offset.get())
                    .u32(count);
            }
            Self::SharedData { count, .. } => {
                w.u32(count);
            }
        }
        w.finish()
    }

    /// Appends its inline form.
    pub fn write_inline(&self, w: &mut Writer) {
        w.u8(self.item_type().0);
        match self {
            Self::Data { .. } => {}
            _ => {
                w.u64(self.order());
            }
        }
        w.bytes(&self.encode_keyed());
    }

    /// Reads an inline reference.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]; [`ParseError::BadValue`] for an unknown type
    /// or a count of zero.
    pub fn read_inline(r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let item_type = ItemType(r.u8()?);
        let offset = match item_type {
            ItemType::EXTENT_DATA_REF => 0,
            _ => r.u64()?,
        };
        Self::read_body(item_type, offset, r)
    }

    /// Reads the item of a keyed reference.
    ///
    /// # Errors
    /// As for the inline form, and [`ParseError::TrailingBytes`].
    pub fn parse_keyed(key: &Key, data: &[u8]) -> Result<Self, ParseError> {
        let mut r = Reader::new(Self::WHAT, data);
        let found = Self::read_body(key.item_type, key.offset, &mut r)?;
        expect_end(Self::WHAT, &r)?;
        Ok(found)
    }

    fn read_body(item_type: ItemType, offset: u64, r: &mut Reader<'_>) -> Result<Self, ParseError> {
        let found = match item_type {
            ItemType::TREE_BLOCK_REF => Self::TreeBlock {
                root: TreeId(offset),
            },
            ItemType::SHARED_BLOCK_REF => Self::SharedBlock {
                parent: Logical(offset),
            },
            ItemType::EXTENT_DATA_REF => Self::Data {
                root: TreeId(r.u64()?),
                inode: InodeNumber(r.u64()?),
                offset: FileOffset(r.u64()?),
                count: r.u32()?,
            },
            ItemType::SHARED_DATA_REF => Self::SharedData {
                parent: Logical(offset),
                count: r.u32()?,
            },
            ItemType::EXTENT_OWNER_REF => Self::Owner {
                root: TreeId(offset),
            },
            ItemType(other) => {
                return Err(ParseError::BadValue {
                    what: Self::WHAT,
                    field: "type",
                    value: u64::from(other),
                });
            }
        };
        if found.count() == 0 && item_type != ItemType::EXTENT_OWNER_REF {
            return Err(ParseError::BadValue {
                what: Self::WHAT,
                field: "count",
                value: 0,
            });
        }
        Ok(found)
    }
}
