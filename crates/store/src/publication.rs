//! What makes a generation durable: superblocks, what they say of the devices,
//! and the fsync log.

use butterfs_format::DeviceId;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::Superblock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Items of all devices, also of those that are not there.
pub(crate) type DeviceItems = Arc<BTreeMap<DeviceId, DeviceItem>>;

/// Counters of each device: failed writes, reads and flushes, content that did
/// not pass its check, nodes of a wrong generation.
pub(crate) type StatsOfDevices = BTreeMap<DeviceId, [u64; 5]>;

/// What the superblocks say, and what the next ones will say.
#[derive(Debug)]
pub(crate) struct Publication {
    /// The superblock, as the next commit will write it.
    pub(crate) superblock: Superblock,
    /// The superblock's own fields (label, flags) changed.
    pub(crate) superblock_changed: bool,
    /// The superblock that is on the devices.
    pub(crate) durable: Superblock,
    /// The devices, as the trees of the running generation have them.
    pub(crate) devices: DeviceItems,
    /// The devices, as the superblocks that are on them say.
    pub(crate) durable_devices: DeviceItems,
    /// Backup root that the next commit overwrites.
    pub(crate) backup_slot: usize,
    /// Error counters as the device tree has them.
    pub(crate) stats: StatsOfDevices,
}

impl Publication {
    /// After the commit that wrote `superblock`.
    pub(crate) fn new(superblock: Superblock) -> Self {
        let slots = superblock.backup_roots.len();
        let newest = superblock
            .backup_roots
            .iter()
            .position(|backup| backup.tree_root.generation == superblock.generation);
        Self {
            superblock_changed: false,
            durable: superblock.clone(),
            devices: DeviceItems::default(),
            durable_devices: DeviceItems::default(),
            backup_slot: newest.map_or(0, |slot| (slot + 1) % slots),
            stats: StatsOfDevices::default(),
            superblock,
        }
    }
}
