//! Numbers and layouts of the ioctls on subvolumes that the server answers.
//!
//! Source: the kernel's interface header linux/btrfs.h.

/// Offset of the name in `btrfs_ioctl_vol_args`.
pub const NAME_V1: usize = 8;
/// Offset of the name, or the identity, in `btrfs_ioctl_vol_args_v2`.
pub const NAME_V2: usize = 56;
/// Flag: the snapshot or subvolume is read-only.
pub const READ_ONLY: u64 = 1 << 1;
/// Flag: the identity says what is deleted, not the name.
pub const BY_ID: u64 = 1 << 4;
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
    ($($name:ident = $number:literal, $doc:literal;)*) => {
        /// What can be asked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command {
            $(#[doc = $doc] $name,)*
        }

        impl Command {
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
