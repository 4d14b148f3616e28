//! Keys: what orders the items of a tree.
//!
//! Owns the key triple, its 17-byte encoding and the table of item types.

use crate::bytes::Reader;
use crate::error::ParseError;
use std::fmt;

/// Kind of an item (the middle part of a key).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct ItemType(pub u8);

macro_rules! item_types {
    ($($(#[$doc:meta])* $name:ident = $value:literal, $text:literal;)*) => {
        impl ItemType {
            $($(#[$doc])* pub const $name: Self = Self($value);)*

            /// Every known type with the name that dump-tree prints.
            pub const TABLE: &'static [(Self, &'static str)] = &[$((Self::$name, $text)),*];
        }
    };
}

item_types! {
    /// Attributes of an inode.
    INODE_ITEM = 1, "INODE_ITEM";
    /// Name of an inode in its parent; offset is the parent.
    INODE_REF = 12, "INODE_REF";
    /// Names that did not fit INODE_REF; offset is a hash of parent and name.
    INODE_EXTREF = 13, "INODE_EXTREF";
    /// Extended attribute; offset is the hash of its name.
    XATTR_ITEM = 24, "XATTR_ITEM";
    /// fs-verity descriptor.
    VERITY_DESC = 36, "VERITY_DESC_ITEM";
    /// fs-verity hash tree.
    VERITY_MERKLE = 37, "VERITY_MERKLE_ITEM";
    /// Mark of an inode to delete at the next mount; offset is the inode.
    ORPHAN_ITEM = 48, "ORPHAN_ITEM";
    /// Logged range of a directory.
    DIR_LOG_ITEM = 60, "DIR_LOG_ITEM";
    /// Logged range of a directory's indexes.
    DIR_LOG_INDEX = 72, "DIR_LOG_INDEX";
    /// Directory entry by hash of its name.
    DIR_ITEM = 84, "DIR_ITEM";
    /// Directory entry by order of creation.
    DIR_INDEX = 96, "DIR_INDEX";
    /// File extent; offset is the file offset.
    EXTENT_DATA = 108, "EXTENT_DATA";
    /// Data checksums; offset is the logical address.
    EXTENT_CSUM = 128, "EXTENT_CSUM";
    /// Root of a tree.
    ROOT_ITEM = 132, "ROOT_ITEM";
    /// Parent of a subvolume; offset is the parent tree.
    ROOT_BACKREF = 144, "ROOT_BACKREF";
    /// Child of a subvolume; offset is the child tree.
    ROOT_REF = 156, "ROOT_REF";
    /// Extent; offset is its length.
    EXTENT_ITEM = 168, "EXTENT_ITEM";
    /// Extent of a node; offset is its level.
    METADATA_ITEM = 169, "METADATA_ITEM";
    /// Owner of a data extent under simple quotas.
    EXTENT_OWNER_REF = 172, "EXTENT_OWNER_REF";
    /// Reference to a node by tree.
    TREE_BLOCK_REF = 176, "TREE_BLOCK_REF";
    /// Reference to a data extent by tree, inode and offset.
    EXTENT_DATA_REF = 178, "EXTENT_DATA_REF";
    /// Reference to a node by parent node.
    SHARED_BLOCK_REF = 182, "SHARED_BLOCK_REF";
    /// Reference to a data extent by parent leaf.
    SHARED_DATA_REF = 184, "SHARED_DATA_REF";
    /// Use and flags of a block group; offset is its length.
    BLOCK_GROUP_ITEM = 192, "BLOCK_GROUP_ITEM";
    /// Free-space accounting of a block group.
    FREE_SPACE_INFO = 198, "FREE_SPACE_INFO";
    /// Free range.
    FREE_SPACE_EXTENT = 199, "FREE_SPACE_EXTENT";
    /// Free sectors as a bitmap.
    FREE_SPACE_BITMAP = 200, "FREE_SPACE_BITMAP";
    /// Allocated range of a device.
    DEV_EXTENT = 204, "DEV_EXTENT";
    /// A device.
    DEV_ITEM = 216, "DEV_ITEM";
    /// A chunk; offset is its logical address.
    CHUNK_ITEM = 228, "CHUNK_ITEM";
    /// RAID stripe extent.
    RAID_STRIPE = 230, "RAID_STRIPE";
    /// Quota status.
    QGROUP_STATUS = 240, "QGROUP_STATUS";
    /// Quota use.
    QGROUP_INFO = 242, "QGROUP_INFO";
    /// Quota limit.
    QGROUP_LIMIT = 244, "QGROUP_LIMIT";
    /// Quota parent.
    QGROUP_RELATION = 246, "QGROUP_RELATION";
    /// Balance status and other state kept for a while.
    TEMPORARY_ITEM = 248, "TEMPORARY_ITEM";
    /// Device statistics and other persistent state.
    PERSISTENT_ITEM = 249, "PERSISTENT_ITEM";
    /// Device replace status.
    DEV_REPLACE = 250, "DEV_REPLACE";
    /// Subvolume UUID to tree.
    UUID_SUBVOL = 251, "UUID_KEY_SUBVOL";
    /// Received UUID to tree.
    UUID_RECEIVED_SUBVOL = 252, "UUID_KEY_RECEIVED_SUBVOL";
    /// A string, for tests.
    STRING_ITEM = 253, "STRING_ITEM";
}

impl ItemType {
    /// Smallest type, for range searches.
    pub const MIN: Self = Self(0);
    /// Greatest type, for range searches.
    pub const MAX: Self = Self(u8::MAX);

    /// Its name in dump-tree's spelling, if known.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Self::TABLE
            .iter()
            .find(|(item_type, _)| *item_type == self)
            .map(|(_, name)| *name)
    }
}

impl fmt::Debug for ItemType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "UNKNOWN.{}", self.0),
        }
    }
}

/// Key of an item: ordered by object, then type, then offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// What the item belongs to: an inode, a logical address, a tree.
    pub objectid: u64,
    /// Kind of item.
    pub item_type: ItemType,
    /// Meaning depends on the type.
    pub offset: u64,
}

impl Key {
    /// Bytes of an encoded key.
    pub const SIZE: usize = 17;
    /// Smallest key.
    pub const MIN: Self = Self::new(0, ItemType::MIN, 0);
    /// Greatest key.
    pub const MAX: Self = Self::new(u64::MAX, ItemType::MAX, u64::MAX);

    /// A key of these three parts.
    #[must_use]
    pub const fn new(objectid: u64, item_type: ItemType, offset: u64) -> Self {
        Self {
            objectid,
            item_type,
            offset,
        }
    }

    /// Reads a key from its 17 bytes.
    #[inline]
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let [
            a0,
            a1,
            a2,
            a3,
            a4,
            a5,
            a6,
            a7,
            t,
            o0,
            o1,
            o2,
            o3,
            o4,
            o5,
            o6,
            o7,
        ] = *bytes;
        Self {
            objectid: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            item_type: ItemType(t),
            offset: u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]),
        }
    }

    /// Its 17 bytes.
    #[inline]
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut out = [0; Self::SIZE];
        let (object, rest) = out.split_at_mut(8);
        object.copy_from_slice(&self.objectid.to_le_bytes());
        let (item_type, offset) = rest.split_at_mut(1);
        item_type.copy_from_slice(&[self.item_type.0]);
        offset.copy_from_slice(&self.offset.to_le_bytes());
        out
    }

    /// Reads a key from a cursor.
    ///
    /// # Errors
    /// [`ParseError::TooShort`]
    pub fn parse(reader: &mut Reader<'_>) -> Result<Self, ParseError> {
        Ok(Self::from_bytes(&reader.array()?))
    }

    /// The key right after this one, or `None` after [`Key::MAX`].
    #[must_use]
    pub fn successor(self) -> Option<Self> {
        if let Some(offset) = self.offset.checked_add(1) {
            return Some(Self { offset, ..self });
        }
        if let Some(item_type) = self.item_type.0.checked_add(1) {
            return Some(Self::new(self.objectid, ItemType(item_type), 0));
        }
        let objectid = self.objectid.checked_add(1)?;
        Some(Self::new(objectid, ItemType::MIN, 0))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "({} {:?} {})",
            self.objectid, self.item_type, self.offset
        )
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_little_endian_and_round_trip() {
        let key = Key::new(0x0102, ItemType::DIR_ITEM, u64::MAX - 1);
        let bytes = key.to_bytes();
        assert_eq!(
            bytes,
            [
                2, 1, 0, 0, 0, 0, 0, 0, 84, 254, 255, 255, 255, 255, 255, 255, 255
            ]
        );
        assert_eq!(Key::from_bytes(&bytes), key);
    }

    #[test]
    fn successor_carries() {
        let key = Key::new(7, ItemType::MAX, u64::MAX);
        assert_eq!(key.successor(), Some(Key::new(8, ItemType::MIN, 0)));
        assert_eq!(Key::MAX.successor(), None);
    }
}
