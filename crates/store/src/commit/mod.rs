//! What makes a generation durable.
//!
//! Owns the superblock that the next commit writes, the one that is on the
//! devices, what both say of the devices, and the devices' error counters.
//! `prepare` completes a generation in memory, and `record_all` brings all
//! records into the trees for it. `writeback` writes most nodes before, and
//! `publish` writes the rest, flushes, and writes the superblocks (`devices`).
//! `view` reads an older commit. `device_loss` says when a commit must be
//! followed by another one.
//!
//! Does not own the nodes, the space that a commit frees, nor the fsync log.
//!
//! Invariants: all nodes of a generation are durable before a superblock names
//! it. What a superblock says changes only through [`Publisher::superblock_mut`],
//! which makes the next commit write it. The durable superblock changes only
//! when the devices have another one. After a failed commit nothing more is
//! written.

mod device_items;
pub mod device_loss;
pub mod device_stats;
pub mod devices;
pub mod equal_copies;
pub mod prepare;
mod publish;
mod record_all;
pub mod rounds;
pub mod view;
mod writeback;

use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::Superblock;
use butterfs_format::{DeviceId, TreeId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Items of all devices, also of those that are not there.
pub(crate) type DeviceItems = Arc<BTreeMap<DeviceId, DeviceItem>>;

/// Counters of each device: failed writes, reads and flushes, content that did
/// not pass its check, nodes of a wrong generation.
pub(crate) type StatsOfDevices = BTreeMap<DeviceId, [u64; 5]>;

/// What the superblocks say, and what the next ones will say.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// The superblock, as the next commit will write it.
    superblock: Superblock,
    /// The superblock's own fields (label, flags) changed.
    superblock_changed: bool,
    /// The superblock that is on the devices.
    durable: Superblock,
    /// The devices, as the trees of the running generation have them.
    devices: DeviceItems,
    /// The devices, as the superblocks that are on them say.
    durable_devices: DeviceItems,
    /// Backup root that the next commit overwrites.
    backup_slot: usize,
    /// Error counters as the device tree has them.
    stats: StatsOfDevices,
}

impl Publisher {
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

    /// The superblock, as the next commit will write it.
    pub(crate) const fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// That superblock, to change. The next commit has something to write then.
    pub(crate) const fn superblock_mut(&mut self) -> &mut Superblock {
        self.superblock_changed = true;
        &mut self.superblock
    }

    /// Makes the next commit write a superblock, whatever else changed.
    pub(crate) const fn note_superblock_change(&mut self) {
        self.superblock_changed = true;
    }

    /// While a volume opens: makes the superblock agree with the items of the
    /// devices. The devices are those that the durable superblocks tell of.
    pub(crate) fn adopt_devices(&mut self, own: DeviceItem) {
        self.superblock.device = own;
        self.superblock.num_devices = self.devices.len() as u64;
        self.durable_devices = Arc::clone(&self.devices);
    }

    /// The superblock that is on the devices.
    pub(crate) const fn durable(&self) -> &Superblock {
        &self.durable
    }

    /// Notes that the devices have another superblock of the same generation,
    /// which names another fsync log.
    pub(crate) fn log_is_durable(&mut self, superblock: Superblock) {
        self.durable = superblock;
    }

    /// The devices, as the trees of the running generation have them.
    pub(crate) const fn devices(&self) -> &DeviceItems {
        &self.devices
    }

    /// Those devices, to change.
    pub(crate) fn devices_mut(&mut self) -> &mut BTreeMap<DeviceId, DeviceItem> {
        Arc::make_mut(&mut self.devices)
    }

    /// Takes over the devices that the trees have.
    pub(crate) fn set_devices(&mut self, devices: DeviceItems) {
        self.devices = devices;
    }

    /// The devices, as the superblocks that are on them say.
    pub(crate) const fn durable_devices(&self) -> &DeviceItems {
        &self.durable_devices
    }

    /// Forgets the error counters of a device that leaves the volume.
    pub(crate) fn forget_stats(&mut self, device: DeviceId) {
        self.stats.remove(&device);
    }

    /// Tree that holds block group items.
    pub(crate) fn group_tree(&self) -> TreeId {
        if self.superblock.has_block_group_tree() {
            TreeId::BLOCK_GROUP
        } else {
            TreeId::EXTENT
        }
    }
}
