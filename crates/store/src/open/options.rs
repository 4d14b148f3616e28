//! How a volume is opened.

use crate::memory_shares::MemoryShares;
use crate::rescue::Rescue;
use butterfs_device::Access;
use butterfs_format::Generation;

/// Changed nodes that a commit may write itself, by default.
const LEFT_TO_COMMIT: usize = 128;

/// How to open a volume.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Whether it may change.
    pub access: Access,
    /// Bytes of clean nodes kept in memory; by default a part of the memory that
    /// the process may use ([`MemoryShares`]).
    pub cache_bytes: usize,
    /// Bytes of changed nodes at which a generation is committed. What else
    /// waits for a commit is bounded in proportion.
    pub generation_bytes: usize,
    /// Whether commits flush the devices.
    pub barriers: Barriers,
    /// Whether freed space is discarded.
    pub discard: Discard,
    /// Open for reading although a fsync log waits for its replay.
    pub log: LogPolicy,
    /// Which roots of trees may be used.
    pub roots: Roots,
    /// Which damage is passed over.
    pub rescue: Rescue,
    /// Whether the free-space tree is believed.
    pub free_space: FreeSpace,
    /// Whether devices may be missing.
    pub degraded: Degraded,
    /// Which states of a volume are accepted.
    pub states: States,
    /// What to do about a replacement that the kernel began and did not end.
    pub on_replacement: OnReplacement,
    /// What to do about a device that is shorter than its item says.
    pub on_short_device: OnShortDevice,
    /// Changed nodes that a commit may write while others wait for it; more are
    /// written before it begins.
    pub left_to_commit: usize,
}

/// Which states of a volume are accepted when it is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum States {
    /// Those in which it can be used.
    #[default]
    Usable,
    /// Also a volume whose change of UUID or checksums is half done, and a seed
    /// that is opened for writing. This is for programs that end these states.
    Tuned,
}

/// What to do when a volume is opened for writing and the kernel's replacement
/// of a device was interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnReplacement {
    /// The volume is not opened. What is written would be missing on the target,
    /// and the kernel, which goes on with the replacement, would not know.
    #[default]
    Refuse,
    /// The replacement is cancelled by the first commit.
    Cancel,
}

/// What to do when a volume is opened for writing and one of its devices has
/// fewer bytes than its item says. Opened for reading, the volume shows what is
/// left, and what lay beyond the device's end cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnShortDevice {
    /// The volume is not opened, as in the kernel.
    #[default]
    Refuse,
    /// If no chunk reaches beyond the device's end, the volume is opened, and
    /// no new chunk goes there. This is for whoever sets the size in the item
    /// right.
    EndThere,
}

/// What to do about a fsync log that waits for its replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogPolicy {
    /// Replay it. A volume that is opened only for reading is shown as a replay
    /// would make it.
    #[default]
    Replay,
    /// Read without it (`norecovery`).
    Ignore,
}

/// Which roots of trees a volume may be opened by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roots {
    /// Those of the last commit.
    #[default]
    Last,
    /// If those are damaged, the roots of earlier commits that the superblock
    /// keeps (`usebackuproot`). What was written since is lost.
    OrBackups,
    /// Those of this generation, if the superblock keeps them; only for reading
    /// (`rescue=generation=N`).
    Of(Generation),
}

/// What to do about the record of free space when a volume is opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FreeSpace {
    /// It is believed and kept.
    #[default]
    Kept,
    /// If the volume is opened for writing, the free-space tree is made anew
    /// from the extent tree, and a cache of the old kind is disabled
    /// (`clear_cache`).
    Remade,
}

/// What to do if some devices of the volume are missing or stale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Degraded {
    /// The volume is not opened.
    #[default]
    Refused,
    /// The volume is opened without them. For writing, every chunk must still
    /// have its whole content (`degraded`).
    Allowed,
}

impl Default for OpenOptions {
    fn default() -> Self {
        let shares = MemoryShares::of_process();
        Self {
            access: Access::ReadWrite,
            cache_bytes: shares.cache_bytes,
            generation_bytes: shares.generation_bytes,
            barriers: Barriers::On,
            discard: Discard::Off,
            log: LogPolicy::Replay,
            roots: Roots::Last,
            rescue: Rescue::default(),
            free_space: FreeSpace::Kept,
            degraded: Degraded::Refused,
            states: States::Usable,
            on_replacement: OnReplacement::Refuse,
            on_short_device: OnShortDevice::Refuse,
            left_to_commit: LEFT_TO_COMMIT,
        }
    }
}

/// Whether a commit flushes the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Barriers {
    /// It does.
    #[default]
    On,
    /// A commit does not flush: a power cut can lose the volume.
    UnsafeOff,
}

/// Whether freed space is discarded on the devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// It is not.
    #[default]
    Off,
    /// It is, after each commit.
    On,
}
