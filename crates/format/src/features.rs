//! Feature bits of the superblock.

use crate::bit_flags;

bit_flags!(
    /// Features that a reader must know.
    Incompat: u64 {
        /// Mixed back references; all volumes since 2009.
        MIXED_BACKREF = 1 << 0, "MIXED_BACKREF";
        /// A default subvolume was set.
        DEFAULT_SUBVOL = 1 << 1, "DEFAULT_SUBVOL";
        /// Data and metadata share block groups.
        MIXED_GROUPS = 1 << 2, "MIXED_GROUPS";
        /// LZO was used.
        COMPRESS_LZO = 1 << 3, "COMPRESS_LZO";
        /// zstd was used.
        COMPRESS_ZSTD = 1 << 4, "COMPRESS_ZSTD";
        /// Nodes greater than a page.
        BIG_METADATA = 1 << 5, "BIG_METADATA";
        /// More links than fit one item.
        EXTENDED_IREF = 1 << 6, "EXTENDED_IREF";
        /// RAID5 or RAID6.
        RAID56 = 1 << 7, "RAID56";
        /// Extents of nodes without key and level.
        SKINNY_METADATA = 1 << 8, "SKINNY_METADATA";
        /// Holes have no file extents.
        NO_HOLES = 1 << 9, "NO_HOLES";
        /// The UUID in nodes differs from the volume's.
        METADATA_UUID = 1 << 10, "METADATA_UUID";
        /// RAID1C3 or RAID1C4.
        RAID1C34 = 1 << 11, "RAID1C34";
        /// Zoned devices.
        ZONED = 1 << 12, "ZONED";
        /// Another extent tree.
        EXTENT_TREE_V2 = 1 << 13, "EXTENT_TREE_V2";
        /// RAID stripe tree.
        RAID_STRIPE_TREE = 1 << 14, "RAID_STRIPE_TREE";
        /// Simple quotas.
        SIMPLE_QUOTA = 1 << 16, "SIMPLE_QUOTA";
    }
);

bit_flags!(
    /// Features that a writer must know.
    CompatRo: u64 {
        /// Free-space tree.
        FREE_SPACE_TREE = 1 << 0, "FREE_SPACE_TREE";
        /// The free-space tree is right.
        FREE_SPACE_TREE_VALID = 1 << 1, "FREE_SPACE_TREE_VALID";
        /// fs-verity was used.
        VERITY = 1 << 2, "VERITY";
        /// Block group items have a tree of their own.
        BLOCK_GROUP_TREE = 1 << 3, "BLOCK_GROUP_TREE";
    }
);

impl Incompat {
    /// What ButterFS reads and writes.
    pub const SUPPORTED: Self = Self(
        Self::MIXED_BACKREF.0
            | Self::DEFAULT_SUBVOL.0
            | Self::MIXED_GROUPS.0
            | Self::COMPRESS_LZO.0
            | Self::COMPRESS_ZSTD.0
            | Self::BIG_METADATA.0
            | Self::EXTENDED_IREF.0
            | Self::RAID56.0
            | Self::SKINNY_METADATA.0
            | Self::NO_HOLES.0
            | Self::METADATA_UUID.0
            | Self::RAID1C34.0
            | Self::SIMPLE_QUOTA.0,
    );
    /// What ButterFS only reads.
    pub const READ_ONLY: Self = Self::RAID_STRIPE_TREE;

    /// What a program would need to support those of these features that
    /// ButterFS lacks.
    pub fn needs(self) -> impl Iterator<Item = &'static str> {
        let own = NEEDS.iter().filter(move |(bit, _)| self.contains(*bit));
        own.map(|(_, needs)| *needs)
    }
}

/// Features that ButterFS neither reads nor writes, and what they need. The last
/// two are no part of Linux 6.18.
const NEEDS: [(Incompat, &str); 4] = [
    (
        Incompat::ZONED,
        "zoned devices need an allocator that writes each zone in order, and superblocks in a log \
         of zones",
    ),
    (
        Incompat::EXTENT_TREE_V2,
        "the second form of the extent tree needs a kernel built for experiments with it",
    ),
    (
        Incompat(1 << 15),
        "files encrypted by fscrypt need their keys, which only a kernel with fscrypt for Btrfs \
         has",
    ),
    (
        Incompat(1 << 17),
        "the remap tree needs each address of data to be looked up in it first",
    ),
];

impl CompatRo {
    /// What ButterFS writes.
    pub const SUPPORTED: Self =
        Self(Self::FREE_SPACE_TREE.0 | Self::FREE_SPACE_TREE_VALID.0 | Self::BLOCK_GROUP_TREE.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_says_what_it_needs() {
        assert_eq!(Incompat::SUPPORTED.needs().count(), 0);
        let both = Incompat::ZONED | Incompat(1 << 15);
        let text = both.needs().collect::<Vec<_>>().join("; ");
        assert!(text.contains("zone") && text.contains("fscrypt"), "{text}");
        for (bit, _) in NEEDS {
            assert!((bit - Incompat::SUPPORTED - Incompat::READ_ONLY) == bit);
        }
    }
}
