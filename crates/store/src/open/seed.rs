//! A new volume that grows from another one, its seed.
//!
//! The trees of the seed are those of the new volume, too, until it changes
//! them; what changes goes to the new device. Nothing is written to the seed.
//! The new device gets a superblock as the very last step, so a crash before
//! that leaves no volume on it, and the seed as it was.

use super::features::check_features;
use super::load::{load_by_roots, store_of};
use super::members::Members;
use super::options::{OpenOptions, States};
use super::superblocks::Preferred;
use crate::Store;
use crate::error::StoreError;
use crate::space::Remake;
use crate::space::block_group::BlockGroup;
use crate::space::kind::SpaceKind;
use butterfs_device::Access;
use butterfs_device::BlockDevice;
use butterfs_format::features::Incompat;
use butterfs_format::superblock::SuperFlags;
use butterfs_format::{DeviceId, Logical};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Nodes that the first commit touches.
const NODES: usize = 32;

impl Store {
    /// Makes a volume that grows from the seed on `seeds`, with `device` as its
    /// own; what was on that is lost. It must not hold a superblock. Gives the
    /// open volume and the number of the new device.
    ///
    /// # Errors
    /// As [`Store::open_all`]; the volume on `seeds` is no seed, or has a fsync
    /// log that waits; the device is too small; no space; reading, writing.
    pub fn grow_from_seed(
        seeds: Vec<Arc<dyn BlockDevice>>,
        device: Arc<dyn BlockDevice>,
        options: &OpenOptions,
    ) -> Result<(Self, DeviceId), StoreError> {
        Self::verify_new_device(&*device)?;
        let mut members = Members::read(seeds, States::Usable, Preferred::Primary)?;
        let seed = members.superblock().clone();
        let refuse = |what: &str| {
            Err(StoreError::Unsupported {
                what: what.to_owned(),
                read_only_possible: true,
            })
        };
        if !seed.flags.contains(SuperFlags::SEEDING) {
            return refuse("it is no seed; `butterfs tune -S 1` makes it one");
        }
        if seed.log_root.get() != 0 {
            return refuse("it has a fsync log that waits; mount it for writing first");
        }
        let reading = OpenOptions {
            access: Access::ReadOnly,
            ..options.clone()
        };
        let read = load_by_roots(&mut members, &seed, &reading)?;
        let uuid = uuid::Uuid::new_v4().into_bytes();
        let mut item = read.publisher.item_of_new(uuid, device.size());
        drop(read);

        let mut superblock = seed;
        superblock.fsid = uuid::Uuid::new_v4().into_bytes();
        superblock.flags = superblock.flags.without(SuperFlags::SEEDING);
        superblock.incompat = superblock.incompat.without(Incompat::METADATA_UUID);
        superblock.metadata_uuid = [0; 16];
        superblock.num_devices = superblock.num_devices.saturating_add(1);
        superblock.total_bytes = superblock.total_bytes.saturating_add(item.total_bytes);
        item.fsid = superblock.fsid;
        superblock.device = item.clone();
        check_features(&superblock, options)?;
        members.grow_from_seed(device, superblock.clone());
        let mut engine = load_by_roots(&mut members, &superblock, options)?;
        // A free-space tree that is not valid is made anew when the volume is
        // opened the next time.
        if !superblock.has_valid_free_space_tree() {
            engine.space_map.set_remake(Remake::No);
        }
        for start in engine.space_map.groups_with_rows() {
            engine.load_group_at(start)?;
        }
        engine.publisher.note_superblock_change();
        let store = store_of(engine, options);
        store.nascent.store(true, Ordering::Release);
        let items: Vec<DeviceId> = store.read().publisher.devices().keys().copied().collect();
        store.commit_with(NODES, |engine| {
            engine.note_edit();
            // From now on, the items of the seed's devices say its generation.
            for id in items {
                engine.write_device_item(id)?;
            }
            Ok::<_, StoreError>(())
        })?;
        // The kernel knows the seed only after it has read the system chunks.
        // So none of them may lie on the seed.
        for start in store.system_groups_on_seeds() {
            store.relocate_group(start, &mut |_| ControlFlow::Continue(()))?;
        }
        store.nascent.store(false, Ordering::Release);
        store.commit_with(NODES, |engine| {
            engine.note_edit();
            engine.publisher.note_superblock_change();
            Ok::<_, StoreError>(())
        })?;
        Ok((store, item.id))
    }

    fn system_groups_on_seeds(&self) -> Vec<Logical> {
        let engine = self.read();
        let system = |group: &&BlockGroup| group.flags.contains(SpaceKind::System.flag());
        let groups = engine.space_map.groups().values().filter(system);
        let on_seeds = groups.filter(|group| !engine.may_be_written(group.start));
        on_seeds.map(|group| group.start).collect()
    }
}
