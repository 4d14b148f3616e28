//! The address spaces and identities of a volume as distinct types.
//!
//! Owns: newtypes for quantities that must never be mixed up. Owns no I/O and
//! no layout.

use std::fmt;

macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The bare number, for encoding and printing.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// `self + bytes`, or `None` on overflow.
            #[inline]
            #[must_use]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }

            /// `self + bytes`, clamped at the greatest value.
            #[inline]
            #[must_use]
            pub const fn saturating_add(self, bytes: u64) -> Self {
                Self(self.0.saturating_add(bytes))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }
    };
}

quantity!(
    /// Byte address in the volume's logical space, mapped to devices by chunks.
    Logical
);
quantity!(
    /// Byte offset on one device.
    DeviceOffset
);
quantity!(
    /// Byte offset in a file.
    FileOffset
);
quantity!(
    /// Commit number; every node carries the generation that wrote it.
    Generation
);
quantity!(
    /// Identity of a tree: 5 is the top-level subvolume, 256 and up are
    /// subvolumes, 1..=13 and the top of the range are internal trees.
    TreeId
);
quantity!(
    /// Identity of an inode inside one subvolume.
    InodeNumber
);
quantity!(
    /// Identity of a device inside one volume (1 is the first).
    DeviceId
);

impl DeviceId {
    /// The number that the superblock of a replacement's target has while the
    /// kernel's replacement runs. The chunk tree has no item for it.
    pub const REPLACEMENT: Self = Self(0);
}

impl TreeId {
    /// Tree of tree roots.
    pub const ROOT: Self = Self(1);
    /// Extents and their references.
    pub const EXTENT: Self = Self(2);
    /// Logical to physical mapping.
    pub const CHUNK: Self = Self(3);
    /// Allocated ranges of each device.
    pub const DEVICE: Self = Self(4);
    /// Top-level subvolume.
    pub const FS: Self = Self(5);
    /// Directory of the default subvolume inside the tree of roots.
    pub const ROOT_TREE_DIR: Self = Self(6);
    /// Data checksums.
    pub const CSUM: Self = Self(7);
    /// Quota groups.
    pub const QUOTA: Self = Self(8);
    /// Subvolume UUIDs.
    pub const UUID: Self = Self(9);
    /// Free space of block groups.
    pub const FREE_SPACE: Self = Self(10);
    /// Block group items, where the feature block-group-tree is on.
    pub const BLOCK_GROUP: Self = Self(11);
    /// RAID stripe tree.
    pub const RAID_STRIPE: Self = Self(12);
    /// Template of a fsync log's inner tree.
    pub const LOG: Self = Self(u64::MAX - 5);
    /// A balance's relocated trees.
    pub const RELOC: Self = Self(u64::MAX - 7);
    /// Template of a data relocation tree.
    pub const DATA_RELOC: Self = Self(u64::MAX - 8);
    /// First identity of a user's subvolume.
    pub const FIRST_SUBVOLUME: Self = Self(256);
    /// Greatest identity of a user's subvolume. The upper 16 bits are 0, because
    /// in the number of a quota group they hold the group's level.
    pub const SUBVOLUME_MAX: Self = Self((1 << 48) - 1);
    /// Last number before those of internal trees. The numbers from
    /// [`Self::SUBVOLUME_MAX`] up to here belong to no tree, but inodes have
    /// them.
    pub const LAST_SUBVOLUME: Self = Self(u64::MAX - 255);

    /// True for trees that hold files: the top level and every subvolume.
    #[must_use]
    pub const fn is_subvolume(self) -> bool {
        self.0 == Self::FS.0
            || (self.0 >= Self::FIRST_SUBVOLUME.0 && self.0 <= Self::SUBVOLUME_MAX.0)
    }
}

impl InodeNumber {
    /// Root directory of every subvolume.
    pub const ROOT: Self = Self(256);
    /// Placeholder directory that a snapshot shows where a nested subvolume was.
    pub const EMPTY_SUBVOLUME: Self = Self(2);
}

/// Identity of an inode in a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeId {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode in it.
    pub number: InodeNumber,
}

/// Pointer to a node: where it is and what must be found there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NodeRef {
    /// Address of its first byte.
    pub logical: Logical,
    /// Generation that wrote it.
    pub generation: Generation,
    /// 0 for a leaf, at most [`crate::node::LEVEL_MAX`].
    pub level: u8,
}

/// A place on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Physical {
    /// Device.
    pub device: DeviceId,
    /// Offset on it.
    pub offset: DeviceOffset,
}
