//! The kinds of faults.
//!
//! Owns the table of codes. A code is stable: programs may rely on it.

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The volume is damaged.
    Fault,
    /// The kernel still mounts and uses the volume: leftovers that every
    /// implementation ignores, and missing devices.
    Warning,
}

macro_rules! codes {
    ($($(#[$meta:meta])* $name:ident = $text:literal, $meaning:literal;)*) => {
        /// A kind of fault. Each has one stable name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum FaultCode {
            $(#[doc = $meaning] $name,)*
        }

        impl FaultCode {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Returns its stable name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Returns what it means, in a sentence.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => $meaning,)* }
            }
        }
    };
}

codes! {
    SuperblockCopyInvalid = "superblock-copy-invalid", "A copy of the superblock is damaged.";
    SuperblocksDiffer = "superblocks-differ", "Two devices have different trees of one generation: each was changed without the other.";
    SuperblockCopyStale = "superblock-copy-stale", "A copy of the superblock is older than an interrupted commit leaves it.";
    SuperblockField = "superblock-field", "A field of the superblock has an impossible value.";
    SuperblockBytesUsed = "superblock-bytes-used", "The superblock's count of used bytes is wrong.";
    SuperblockTotalBytes = "superblock-total-bytes", "The superblock's size of the volume is wrong.";
    SuperblockDevices = "superblock-devices", "The superblock's number of devices is wrong.";
    SuperblockDeviceItem = "superblock-device-item", "The superblock's device item differs from the chunk tree's.";
    SuperblockChunks = "superblock-chunks", "The superblock's system chunks differ from the chunk tree's.";

    NodeUnmapped = "node-unmapped", "A node lies in no chunk.";
    NodeUnreadable = "node-unreadable", "A node cannot be read from the device.";
    NodeCopyDamaged = "node-copy-damaged", "A copy of a node is damaged; another one is good.";
    NodeCopiesDiffer = "node-copies-differ", "Two copies of a node are valid and differ.";
    NodeSize = "node-size", "A node has a wrong size.";
    NodeChecksum = "node-checksum", "A node does not match its checksum.";
    NodeFsid = "node-fsid", "A node belongs to another volume.";
    NodeAddress = "node-address", "A node says that it lies elsewhere.";
    NodeGeneration = "node-generation", "A node has another generation than its parent names.";
    NodeLevel = "node-level", "A node has another level than its parent names.";
    NodeItemCount = "node-item-count", "A node has more items than fit.";
    NodeEmpty = "node-empty", "A node that is no root is empty.";
    NodeKeyOrder = "node-key-order", "The keys of a node do not ascend.";
    NodeFirstKey = "node-first-key", "A node begins with another key than its parent names.";
    NodeLastKey = "node-last-key", "A node reaches into its right neighbour.";
    NodeItemRange = "node-item-range", "Data of a leaf's items overlap or lie outside.";
    NodePointer = "node-pointer", "A branch points to an impossible address.";
    NodePointerGeneration = "node-pointer-generation", "A pointer is newer than the node that holds it.";
    NodeOwner = "node-owner", "A node belongs to another tree than it is found in.";
    NodeFlags = "node-flags", "A node's header has impossible flags.";
    NodeReachedTwice = "node-reached-twice", "A node that cannot be shared is reached twice.";

    ChunkInvalid = "chunk-invalid", "A chunk is impossible.";
    ChunkWithoutBlockGroup = "chunk-without-block-group", "A chunk has no block group.";
    ChunkWithoutDeviceExtent = "chunk-without-device-extent", "A stripe of a chunk has no device extent.";
    BlockGroupInvalid = "block-group-invalid", "A block group item is impossible.";
    BlockGroupWithoutChunk = "block-group-without-chunk", "A block group has no chunk.";
    BlockGroupFlags = "block-group-flags", "A block group and its chunk differ in length or flags.";
    BlockGroupUsed = "block-group-used", "A block group's count of used bytes is wrong.";
    DeviceItemInvalid = "device-item-invalid", "A device item is impossible.";
    DeviceExtentInvalid = "device-extent-invalid", "A device extent is impossible.";
    DeviceExtentWithoutChunk = "device-extent-without-chunk", "A device extent belongs to no chunk.";
    DeviceExtentOverlap = "device-extent-overlap", "Two device extents overlap.";
    DeviceExtentBeyondDevice = "device-extent-beyond-device", "A device extent does not fit its device.";
    DeviceBytesUsed = "device-bytes-used", "A device's count of allocated bytes is wrong.";
    DeviceMissing = "device-missing", "A device is missing; what lies on it was not looked at.";
    ChunkLost = "chunk-lost", "More devices of a chunk are missing than its profile can do without.";
    DeviceSize = "device-size", "A device is smaller than the volume believes.";

    ExtentItemInvalid = "extent-item-invalid", "An extent item is impossible.";
    ExtentOverlap = "extent-overlap", "Two extents overlap.";
    ExtentOutsideBlockGroup = "extent-outside-block-group", "An extent lies in no block group.";
    ExtentWrongBlockGroup = "extent-wrong-block-group", "An extent lies in a block group of another type.";
    ExtentMissing = "extent-missing", "Something refers to an extent that the extent tree does not know.";
    ExtentLength = "extent-length", "A reference and its extent differ in length or level.";
    ExtentGeneration = "extent-generation", "The extent of a node names another generation than the node.";
    ExtentUnreferenced = "extent-unreferenced", "Nothing refers to an extent.";
    ExtentReferenceMissing = "extent-reference-missing", "A reference is not recorded with its extent.";
    ExtentReferenceExtra = "extent-reference-extra", "An extent records a reference that does not exist.";
    ExtentByParent = "extent-by-parent", "A node is marked as a parent of references (FULL_BACKREF) and cannot be one.";
    ExtentReferenceCount = "extent-reference-count", "An extent's number of references is not the sum of its references.";

    ChecksumItemInvalid = "checksum-item-invalid", "A checksum item is impossible.";
    ChecksumOverlap = "checksum-overlap", "Two checksum items overlap.";
    ChecksumWithoutExtent = "checksum-without-extent", "Checksums cover space that no data extent owns.";
    ChecksumMissing = "checksum-missing", "Data that should have checksums have none.";
    ChecksumUnexpected = "checksum-unexpected", "Data that should have no checksums have some.";
    DataUnreadable = "data-unreadable", "File data cannot be read from the device.";
    DataChecksum = "data-checksum", "File data do not match their checksum.";

    FreeSpaceInvalid = "free-space-invalid", "An item of the free-space tree is impossible.";
    FreeSpaceOrphan = "free-space-orphan", "Entries of the free-space tree belong to no block group (mkfs.btrfs 6.2 leaves such entries; ButterFS deletes them when it first writes to the volume).";
    FreeSpaceNotValid = "free-space-not-valid", "The free-space tree is not marked as valid. Nobody believes it; the first mount for writing makes it anew.";
    FreeSpaceInfoMissing = "free-space-info-missing", "A block group is not in the free-space tree.";
    FreeSpaceWrongGroup = "free-space-wrong-group", "A free range does not lie within its block group.";
    FreeSpaceCount = "free-space-count", "The free-space tree's number of free ranges is wrong.";
    FreeSpaceOverlapsExtent = "free-space-overlaps-extent", "The free-space tree calls used space free.";
    SpaceCacheOverlapsExtent = "space-cache-overlaps-extent", "The old space cache calls used space free, so the kernel would overwrite data.";
    FreeSpaceMissing = "free-space-missing", "The free-space tree calls free space used.";

    ItemInvalid = "item-invalid", "An item cannot be parsed.";
    ItemUnexpected = "item-unexpected", "An item has no place in its tree.";

    InodeInvalid = "inode-invalid", "An inode's attributes are impossible.";
    InodeMissing = "inode-missing", "Items belong to an inode that does not exist.";
    InodeLinks = "inode-links", "An inode's link count is not the number of its names.";
    InodeLinksMax = "inode-links-max", "A file has more than 65,535 names, which no driver gives it: it can be read, but a send stream of it cannot be received.";
    InodeBytes = "inode-bytes", "An inode's count of bytes is not that of its extents.";
    InodeSize = "inode-size", "An inode's size does not fit its content.";
    InodeKind = "inode-kind", "An inode has items that its type cannot have.";
    InodeOrphanMissing = "inode-orphan-missing", "An inode without names is not marked as an orphan.";
    InodeRootMissing = "inode-root-missing", "A subvolume has no root directory.";

    InodeCache = "inode-cache", "A subvolume keeps the inode cache of old kernels, which nobody reads.";

    NameInvalid = "name-invalid", "A name, its hash or its target is impossible.";
    NameDuplicate = "name-duplicate", "A directory has a name twice.";
    NameIndexMissing = "name-index-missing", "A name has no entry in its directory's index.";
    NameItemMissing = "name-item-missing", "A name in a directory's index has no hashed entry.";
    NameReferenceMissing = "name-reference-missing", "A directory entry's inode does not know the name.";
    NameKind = "name-kind", "A directory entry and its inode differ in type.";

    FileExtentInvalid = "file-extent-invalid", "A file extent is impossible.";
    FileExtentOverlap = "file-extent-overlap", "Two file extents overlap.";
    FileExtentHole = "file-extent-hole", "A range of a file has no file extent although holes need one.";
    FileExtentInline = "file-extent-inline", "An inline extent has a position or a form that none can have.";
    FileExtentCompressed = "file-extent-compressed", "Compressed inline data do not unpack, so the file cannot be read (looked at with --check-data-csum).";

    RootInvalid = "root-invalid", "A root item is impossible.";
    RootMissing = "root-missing", "A tree that every volume has is missing.";
    RootReferenceMissing = "root-reference-missing", "A subvolume's parent does not refer to it.";
    RootBackrefMissing = "root-backref-missing", "A subvolume does not know its parent.";
    RootEntryMissing = "root-entry-missing", "A subvolume has no directory entry.";
    RootOrphanMissing = "root-orphan-missing", "A deleted subvolume is not marked for cleaning.";
    RootBytes = "root-bytes", "A root item's count of bytes is not that of the tree's nodes. The kernel sizes its reserve of metadata space by it, and may find the volume full too early; the first mount for writing counts anew.";
    RootFlags = "root-flags", "A subvolume is marked read-only, but Linux takes it as writable: its root item does not say that its flags count. Set the property ro again.";
    RootUnreachable = "root-unreachable", "A subvolume has no parent.";

    UuidMissing = "uuid-missing", "A subvolume's UUID is not in the UUID tree.";
    UuidWrong = "uuid-wrong", "An entry of the UUID tree is wrong.";

    UuidTopLevel = "uuid-top-level", "The UUID tree and the top-level subvolume do not agree on its UUID, which nobody looks up.";

    QgroupMissing = "qgroup-missing", "A subvolume has no quota group, or a relation has only one direction.";
    QgroupNumbers = "qgroup-numbers", "A quota group's numbers are wrong.";
    QgroupVersion = "qgroup-version", "The quota tree is of a version that nobody knows. Quotas are off, in the kernel too; switching them off and on makes the tree anew.";

    LogInvalid = "log-invalid", "The fsync log is damaged.";
    LogChecksumMissing = "log-checksum-missing", "Data of the fsync log have no checksums.";
    LogDataChecksum = "log-data-checksum", "Data of the fsync log do not match the checksums of the log: once the log is replayed, the file cannot be read there.";
    LogOverlapsExtent = "log-overlaps-extent", "The fsync log lies on space that is in use.";
}

impl FaultCode {
    /// Returns how bad it is.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self {
            Self::FreeSpaceOrphan
            | Self::FreeSpaceNotValid
            | Self::DeviceMissing
            | Self::SuperblockCopyStale
            | Self::InodeCache
            | Self::RootBytes
            | Self::InodeLinksMax
            | Self::RootFlags
            | Self::QgroupVersion
            | Self::UuidTopLevel => Severity::Warning,
            _ => Severity::Fault,
        }
    }
}

impl std::fmt::Display for FaultCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kebab() {
        let mut names: Vec<_> = FaultCode::ALL.iter().map(|code| code.name()).collect();
        let plain = |name: &str| name.bytes().all(|b| b == b'-' || b.is_ascii_lowercase());
        assert!(names.iter().all(|name| plain(name)));
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
    }
}
