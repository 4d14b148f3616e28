//! What a conversion is asked for, and who watches it.

use butterfs_format::features::CompatRo;
use butterfs_format::item::inode::Timespec;
use butterfs_format::{ChecksumType, UuidBytes};

/// Whether data get checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataSums {
    /// Each sector has one.
    #[default]
    Made,
    /// No file has any.
    LeftOut,
}

/// Whether small files move into the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Inline {
    /// Files of up to 2 KiB do.
    #[default]
    Small,
    /// None does.
    Never,
}

/// Whether extended attributes and ACLs are converted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attributes {
    /// All that Btrfs has a place for.
    #[default]
    Kept,
    /// None.
    LeftOut,
}

/// The label of the new volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Label {
    /// None.
    #[default]
    Empty,
    /// That of the old file system.
    Copied,
    /// This one.
    Set(Vec<u8>),
}

/// Options of a conversion.
#[derive(Clone, Debug)]
pub struct Options {
    /// Checksums of data.
    pub data_sums: DataSums,
    /// Small files.
    pub inline: Inline,
    /// Extended attributes.
    pub attributes: Attributes,
    /// Bytes of a node.
    pub node_size: u32,
    /// Checksum of nodes and data.
    pub checksum: ChecksumType,
    /// The free-space tree and the block group tree, where they are wanted.
    pub compat_ro: CompatRo,
    /// Label.
    pub label: Label,
    /// UUID of the volume; random if `None`. Tools see two file systems where
    /// the UUID is that of the old one, so it is only copied if asked for.
    pub uuid: Option<UuidBytes>,
    /// Whether the UUID of the old file system is taken.
    pub copies_uuid: bool,
    /// The time of items that need one.
    pub time: Timespec,
    /// Bytes of memory for each sorting; what is more goes to a temporary file.
    pub sort_memory: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            data_sums: DataSums::default(),
            inline: Inline::default(),
            attributes: Attributes::default(),
            node_size: 16384,
            checksum: ChecksumType::Crc32c,
            compat_ro: CompatRo::FREE_SPACE_TREE | CompatRo::BLOCK_GROUP_TREE,
            label: Label::default(),
            uuid: None,
            copies_uuid: false,
            time: Timespec::default(),
            sort_memory: 32 << 20,
        }
    }
}

/// What a conversion is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Copying what the old file system uses to another device; in bytes.
    Copying,
    /// Reading names and inodes; counted in inodes.
    Reading,
    /// Writing files' items; counted in inodes.
    Files,
    /// Reading data for their checksums; counted in bytes.
    Checksums,
    /// Comparing data with their checksums before the way back; in bytes.
    Comparing,
}

/// Sees how far a conversion is, and may stop it before it decides.
pub trait Watch {
    /// `done` of `total` of a step.
    fn progress(&self, step: Step, done: u64, total: u64);

    /// Whether it is to stop.
    fn is_stopped(&self) -> bool;
}

/// Nobody watches.
#[derive(Clone, Copy, Debug)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn progress(&self, _: Step, _: u64, _: u64) {}

    fn is_stopped(&self) -> bool {
        false
    }
}
