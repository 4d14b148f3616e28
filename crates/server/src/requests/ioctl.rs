//! Numbers of the ioctls on subvolumes, quotas and the volume that the server
//! answers, and layouts of the first two.
//!
//! Source: the kernel's interface header linux/btrfs.h.

/// Offset of the name in `btrfs_ioctl_vol_args`.
pub const NAME_V1: usize = 8;
/// Offset of the name, or of the id, in `btrfs_ioctl_vol_args_v2`.
pub const NAME_V2: usize = 56;
/// Flag: the snapshot or subvolume is read-only.
pub const READ_ONLY: u64 = 1 << 1;
/// Flag: the id says what is deleted, not the name.
pub const BY_ID: u64 = 1 << 4;
/// Flag: the request names quota groups to join; their size and address follow.
pub const INHERIT: u64 = 1 << 2;
/// Offset of their size in `btrfs_ioctl_vol_args_v2`, and of their address.
pub const INHERIT_SIZE: usize = 24;
/// Their address.
pub const INHERIT_ADDRESS: usize = 32;
/// Bytes of `btrfs_qgroup_inherit` before the groups.
pub const INHERIT_HEADER: usize = 72;
/// Bytes of `btrfs_ioctl_qgroup_limit_args`.
pub const LIMIT_SIZE: usize = 48;
/// Bytes of `btrfs_ioctl_search_args`.
pub const SEARCH_SIZE: usize = 4096;
/// Bytes of `btrfs_ioctl_search_args_v2` before the items.
pub const SEARCH_INTO_SIZE: usize = 112;
/// Where the items begin in it; in the second version, their size in bytes.
pub const SEARCH_ITEMS: usize = 104;
/// Bytes of `btrfs_ioctl_search_header`.
pub const SEARCH_HEADER: usize = 32;
/// Bytes of `btrfs_ioctl_ino_lookup_args`.
pub const LOOKUP_SIZE: usize = 4096;
/// Bytes of `btrfs_ioctl_quota_rescan_args`.
pub const RESCAN_SIZE: usize = 64;
/// Bytes of `btrfs_ioctl_received_subvol_args`.
pub const RECEIVED_SIZE: usize = 200;
/// Bytes of `btrfs_ioctl_get_subvol_info_args`.
pub const INFO_SIZE: usize = 504;
/// Bytes of `btrfs_ioctl_ino_lookup_user_args`, and where its texts lie.
pub const PLACE_SIZE: usize = 4096;
/// Offset of the name in it.
pub const PLACE_NAME: usize = 16;
/// Offset of the directory's path in it.
pub const PLACE_PATH: usize = PLACE_NAME + 256;
/// References in one answer of `btrfs_ioctl_get_subvol_rootref_args`.
pub const ROOT_REFS_MAX: usize = 255;

macro_rules! commands {
    ($(#[$about:meta])* $set:ident { $($name:ident = $number:literal, $doc:literal;)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $set {
            $(#[doc = $doc] $name,)*
        }

        impl $set {
            /// The command with this number.
            pub const fn of(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

commands! {
    /// What can be asked of subvolumes.
    Command {
        Sync = 0x0000_9408, "Everything is made durable.";
        Snapshot = 0x5000_9401, "A writable snapshot.";
        Defragment = 0x5000_9402, "Small extents of a file are rewritten.";
        DefragmentRange = 0x4030_9410, "So are those of a part, or with compression.";
        Create = 0x5000_940e, "A subvolume.";
        Delete = 0x5000_940f, "A subvolume is deleted.";
        SetDefault = 0x4008_9413, "The default subvolume.";
        WaitSync = 0x4008_9416, "Waits for a commit.";
        SnapshotV2 = 0x5000_9417, "A snapshot with flags.";
        CreateV2 = 0x5000_9418, "A subvolume with flags.";
        StartSync = 0x8008_9418, "Begins a commit.";
        GetFlags = 0x8008_9419, "Flags of a subvolume.";
        SetFlags = 0x4008_941a, "Changes them.";
        SetReceived = 0xc0c8_9425, "Where a subvolume was received from.";
        Info = 0x81f8_943c, "Facts of a subvolume.";
        RootRefs = 0xd000_943d, "Subvolumes in a subvolume.";
        Place = 0xd000_943e, "Where a subvolume hangs in another.";
        DeleteV2 = 0x5000_943f, "A subvolume is deleted, by name or identity.";
    }
}

commands! {
    /// What can be asked of quotas and trees.
    QuotaCommand {
        SearchTree = 0xd000_9411, "Items of a tree.";
        SearchTreeInto = 0xc070_9411, "Items of a tree, into the caller's memory.";
        DirectoryPath = 0xd000_9412, "Path of a directory in its subvolume.";
        Switch = 0xc010_9428, "Quotas on or off.";
        Relate = 0x4018_9429, "A group into another, or out of it.";
        Group = 0x4010_942a, "A group is made or removed.";
        Limit = 0x8030_942b, "A group is limited.";
        Rescan = 0x4040_942c, "All groups are counted anew.";
        RescanStatus = 0x8040_942d, "How far a count is.";
        RescanWait = 0x0000_942e, "Waits for a count.";
    }
}

commands! {
    /// What can be asked of the volume and its devices.
    Question {
        Space = 0xc010_9414, "Space by kind and profile.";
        Device = 0xd000_941e, "A device.";
        Volume = 0x8400_941f, "The volume.";
        PathsOfInode = 0xc038_9423, "Paths of an inode.";
        FilesAt = 0xc038_9424, "Files at a logical address.";
        Stats = 0xc408_9434, "Error counters of a device.";
        Features = 0x8018_9439, "Features that the volume has.";
        SupportedFeatures = 0x8048_9439, "Features that the server can write.";
        FilesAtV2 = 0xc038_943b, "Files at a logical address, or in its extent.";
    }
}

impl Command {
    /// Whether it changes something.
    pub const fn changes(self) -> bool {
        match self {
            Self::Snapshot
            | Self::SnapshotV2
            | Self::Create
            | Self::CreateV2
            | Self::Delete
            | Self::DeleteV2
            | Self::Defragment
            | Self::DefragmentRange
            | Self::SetDefault
            | Self::SetFlags
            | Self::SetReceived => true,
            Self::Sync
            | Self::StartSync
            | Self::WaitSync
            | Self::GetFlags
            | Self::Info
            | Self::RootRefs
            | Self::Place => false,
        }
    }
}

impl QuotaCommand {
    /// Whether it changes something.
    pub const fn changes(self) -> bool {
        matches!(
            self,
            Self::Switch | Self::Relate | Self::Group | Self::Limit | Self::Rescan
        )
    }
}
