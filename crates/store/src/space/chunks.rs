//! Making and removing chunks, and their items in the trees.
//!
//! A chunk is made in memory at once, because any edit may need one. Its items
//! enter the trees at the commit, before the items of any extent in it.

use super::Unallocated;
use crate::engine::Engine;
use crate::error::{StoreError, corrupt_item};
use crate::item_fault::ItemFault;
use crate::space::block_group::{BlockGroup, Standing};
use crate::space::free_space_tree;
use crate::space::kind::SpaceKind;
use crate::space::ranges::RangeSet;
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk, Stripe};
use butterfs_format::item::device::DeviceExtent;
use butterfs_format::superblock::{COPIES, Superblock};
use butterfs_format::{DeviceId, ItemType, Key, Logical, TreeId};
use butterfs_tree::Editor;
use butterfs_volume::placement::{self, DeviceSpace};
use butterfs_volume::{Profile, VolumeError, row_length, stripe_length, superblock_ranges};
use std::ops::Range;

const STRIPE_LENGTH: u64 = 64 << 10;
/// First logical address that chunks use.
const LOGICAL_MIN: u64 = 1 << 20;

/// Logical ranges of a chunk that hold superblock copies, ascending.
pub fn excluded(logical: Logical, chunk: &Chunk) -> Vec<Range<u64>> {
    let mut set = RangeSet::default();
    for range in superblock_ranges(logical, chunk) {
        set.insert(range);
    }
    let first = COPIES[0].get();
    if logical.get() < first {
        set.insert(logical.get()..first.min(logical.get() + chunk.length));
    }
    set.iter().collect()
}

impl Engine {
    pub(crate) fn device_spaces(&self) -> Vec<DeviceSpace> {
        self.device_spaces_of(|_| true)
    }

    /// The devices as if no chunks existed but those for which `counts` is
    /// true.
    pub(crate) fn device_spaces_of(&self, counts: impl Fn(Logical) -> bool) -> Vec<DeviceSpace> {
        let mut allocated: Vec<(DeviceId, Range<u64>)> = self
            .space_map
            .chunks
            .iter()
            .filter(|(start, _)| counts(**start))
            .flat_map(|(_, chunk)| {
                let length = stripe_length(chunk);
                chunk.stripes.iter().map(move |stripe| {
                    let start = stripe.offset.get();
                    (stripe.device, start..start + length)
                })
            })
            .collect();
        allocated.sort_by_key(|(device, range)| (*device, range.start));
        self.space
            .own_devices()
            .map(|(device, block)| DeviceSpace {
                device,
                size: block.size().min(self.bytes_of(device)),
                allocated: allocated
                    .iter()
                    .filter(|(other, _)| *other == device)
                    .map(|(_, range)| range.clone())
                    .collect(),
            })
            .collect()
    }

    /// Bytes of a device that chunks may have.
    fn bytes_of(&self, device: DeviceId) -> u64 {
        let item = self.publisher.devices().get(&device);
        let bytes = item.map_or(0, |item| item.total_bytes);
        let end = self.space_map.device_ends.get(&device).copied();
        end.unwrap_or(u64::MAX).min(bytes)
    }

    /// Flags for a new chunk. A conversion may ask for some; otherwise they are
    /// those of the newest group of this kind. Where there are groups of
    /// several profiles, or devices are missing, they name the safest profile
    /// that the devices allow, as in the kernel.
    pub(crate) fn flags_for(&self, kind: SpaceKind) -> BlockGroupFlags {
        if let Some(flags) = self.space_map.new_profiles[kind as usize] {
            return flags;
        }
        let newest = self
            .space_map
            .groups
            .newest_flags(kind)
            .unwrap_or(kind.flag());
        if self.publisher.devices().len() == 1 {
            return newest;
        }
        let devices = self.publisher.devices_used(&self.space);
        let profiles = self.space_map.groups.flags_of(kind).filter_map(|flags| {
            let profile = Profile::from_flags(flags)?;
            (profile.devices_min() <= devices).then_some((safety(profile), flags))
        });
        let safest = profiles.max_by_key(|(safety, _)| *safety);
        safest.map_or(newest & BlockGroupFlags::TYPE, |(_, flags)| flags)
    }

    /// Bytes that new chunks of `kind` could have.
    pub(crate) fn unallocated(&self, kind: SpaceKind) -> u64 {
        self.look_at_unallocated(kind).bytes
    }

    fn look_at_unallocated(&self, kind: SpaceKind) -> Unallocated {
        self.space_map.unallocated_cache.get(kind, || {
            let (flags, spaces) = (self.flags_for(kind), self.device_spaces());
            Unallocated {
                bytes: placement::possible(flags, &spaces),
                next: placement::plan(flags, &spaces).map_or(0, |plan| plan.length),
            }
        })
    }

    /// Bytes that new metadata chunks could have after one more data chunk.
    pub(crate) fn unallocated_beside_data_chunk(&self) -> u64 {
        let mut spaces = self.device_spaces();
        if let Ok(plan) = placement::plan(self.flags_for(SpaceKind::Data), &spaces) {
            for (device, offset) in &plan.stripes {
                let space = spaces.iter_mut().find(|space| space.device == *device);
                let start = offset.get();
                if let Some(space) = space {
                    space.allocated.push(start..start + plan.stripe_length);
                    space.allocated.sort_by_key(|range| range.start);
                }
            }
        }
        placement::possible(self.flags_for(SpaceKind::Metadata), &spaces)
    }

    /// Bytes of the next chunk of `kind`; 0 when there is no room for one.
    pub(crate) fn next_chunk(&self, kind: SpaceKind) -> u64 {
        self.look_at_unallocated(kind).next
    }

    /// Bytes of devices that a byte of `kind` takes.
    pub(crate) fn copies(&self, kind: SpaceKind) -> u64 {
        match Profile::from_flags(self.flags_for(kind)) {
            Some(profile) if profile.parities() > 0 => {
                let stripes = self.publisher.devices_used(&self.space);
                stripes.div_ceil(profile.data_stripes(stripes).max(1)) as u64
            }
            Some(profile) => profile.copies() as u64,
            None => 1,
        }
    }

    /// Makes a chunk in memory.
    pub(crate) fn create_chunk(&mut self, kind: SpaceKind) -> Result<(), StoreError> {
        let flags = self.flags_for(kind);
        let spaces = self.device_spaces();
        let plan = match kind {
            // The superblock may have room for fewer stripes than there are
            // devices.
            SpaceKind::System => {
                let stripes_max = Superblock::array_stripes_left(&self.space_map.system_chunks());
                placement::plan_narrow(flags, &spaces, stripes_max)
            }
            _ => placement::plan(flags, &spaces),
        };
        let plan = plan.map_err(|error| match error {
            VolumeError::NoSpace => StoreError::NoSpace,
            other => other.into(),
        })?;
        let last = self.space_map.chunks.iter().next_back();
        let end = last.map_or(LOGICAL_MIN, |(logical, chunk)| logical.get() + chunk.length);
        // The last chunk of a volume may lie at the end of all addresses.
        let logical = end
            .checked_next_multiple_of(STRIPE_LENGTH)
            .filter(|logical| logical.checked_add(plan.length).is_some())
            .map(Logical)
            .ok_or(StoreError::NoSpace)?;
        let profile = Profile::from_flags(flags).unwrap_or(Profile::Single);
        let uuid_of = |device: &DeviceId| {
            let item = self.publisher.devices().get(device);
            item.map(|item| item.uuid).unwrap_or_default()
        };
        let chunk = Chunk {
            length: plan.length,
            owner: TreeId::EXTENT.get(),
            stripe_length: STRIPE_LENGTH,
            flags,
            io_align: 65536,
            io_width: 65536,
            sector_size: self.publisher.superblock().sector_size,
            sub_stripes: profile.sub_stripes(),
            stripes: plan
                .stripes
                .iter()
                .map(|(device, offset)| Stripe {
                    device: *device,
                    offset: *offset,
                    device_uuid: uuid_of(device),
                })
                .collect(),
        };
        if kind == SpaceKind::System {
            let mut system = self.space_map.system_chunks();
            system.push((logical, chunk.clone()));
            if !Superblock::array_fits(&system) {
                return Err(StoreError::NoSpace);
            }
        }
        let map = self.space.map().with(logical, chunk.clone())?;
        self.space.set_map(map);
        let excluded = excluded(logical, &chunk);
        let mut free = RangeSet::default();
        free.insert(logical.get()..logical.get() + chunk.length);
        for range in &excluded {
            free.remove(range.clone());
        }
        self.space_map.groups.insert(BlockGroup {
            start: logical,
            length: chunk.length,
            flags,
            used: 0,
            promised: 0,
            pinned: 0,
            excluded,
            free: Some(free),
            cursor: logical.get(),
            dirty: false,
            standing: Standing::New,
            read_only: false,
            row: row_length(&chunk),
            left_over: RangeSet::default(),
        });
        self.space_map.chunks.insert(logical, chunk);
        self.space_map.unallocated_cache.forget();
        Ok(())
    }

    /// Enters the items of new chunks into the trees.
    pub(crate) fn enter_new_groups(&mut self) -> Result<(), StoreError> {
        // This comes before a new group gets items where leftovers were seen.
        self.remove_orphan_free_space()?;
        loop {
            let Some(start) = self.space_map.groups.first_new() else {
                return Ok(());
            };
            self.space_map
                .groups
                .change(start, |group| group.standing = Standing::Entered);
            let group = self.space_map.groups.get(start).expect("found above");
            let span = group.span(self.publisher.superblock().sector_size.into());
            let (key, item) = (group.item_key(), group.item());
            let mut free = RangeSet::default();
            free.insert(start.get()..group.end());
            for range in &group.excluded {
                free.remove(range.clone());
            }
            let free: Vec<_> = free.iter().collect();
            self.enter_chunk(start)?;
            let tree = self.publisher.group_tree();
            Editor::new(self, tree).insert(&key, &item.encode())?;
            if self.space_map.free_space_tree {
                free_space_tree::add_group(self, &span, &free)?;
            }
        }
    }

    fn enter_chunk(&mut self, logical: Logical) -> Result<(), StoreError> {
        let chunk = self.space_map.chunks[&logical].clone();
        let key = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, logical.get());
        Editor::new(self, TreeId::CHUNK).insert(&key, &chunk.encode())?;
        let extent = DeviceExtent {
            chunk_tree: TreeId::CHUNK.get(),
            chunk_objectid: Chunk::OBJECT,
            chunk: logical,
            length: stripe_length(&chunk),
            chunk_tree_uuid: self.nodes.stamp().chunk_tree_uuid,
        };
        for stripe in &chunk.stripes {
            let key = device_extent_key(stripe);
            Editor::new(self, TreeId::DEVICE).insert(&key, &extent.encode())?;
        }
        let devices: Vec<DeviceId> = chunk.stripes.iter().map(|s| s.device).collect();
        self.change_devices(&devices, |used| used.saturating_add(extent.length))
    }

    /// Removes the chunks of groups that hold nothing, but the last of each
    /// kind. Such a group held nothing in the last generation either.
    pub(crate) fn remove_empty_groups(&mut self) -> Result<(), StoreError> {
        for kind in [SpaceKind::Data, SpaceKind::Metadata] {
            let mut left = self.space_map.groups.count(kind);
            for start in self.space_map.groups.idle(kind) {
                let group = self.space_map.groups.get(start);
                // What moved here when another group was removed counts as
                // well.
                let is_idle = group.is_some_and(|group| {
                    let held = group.used + group.promised + group.pinned;
                    // Relocation removes its own group.
                    let is_ours = group.standing == Standing::Committed && !group.read_only;
                    is_ours && !group.dirty && held == 0
                });
                if !is_idle || left < 2 {
                    continue;
                }
                let span = start.get()..group.map_or(start.get(), BlockGroup::end);
                if self.first_extent_over(&span)?.is_some() {
                    // Its count lies, and the superblock's sum with it.
                    let used = self.count_used(&span)?;
                    self.correct_used(start, used);
                    continue;
                }
                self.remove_group(start)?;
                left -= 1;
            }
        }
        Ok(())
    }

    /// Removes a group that holds nothing, and held nothing in the last
    /// generation.
    ///
    /// # Errors
    /// The extent tree has something in it: its count is wrong. Nothing changed
    /// then.
    pub(crate) fn remove_group(&mut self, start: Logical) -> Result<(), StoreError> {
        if let Some(group) = self.space_map.groups.get(start)
            && let Some(at) = self.first_extent_over(&(start.get()..group.end()))?
        {
            let key = Key::new(at, ItemType::EXTENT_ITEM, 0);
            return Err(corrupt_item(TreeId::EXTENT, key, ItemFault::InEmptyGroup));
        }
        let (Some(group), Some(chunk)) = (
            self.space_map.groups.remove(start),
            self.space_map.chunks.remove(&start),
        ) else {
            return Err(StoreError::Internal("a block group without a chunk"));
        };
        self.space_map.unallocated_cache.forget();
        for current in &mut self.space_map.current {
            current.take_if(|at| *at == start);
        }
        let map = self.space.map().without(start);
        self.space.set_map(map);
        let tree = self.publisher.group_tree();
        Editor::new(self, tree).remove(&group.item_key())?;
        if self.space_map.free_space_tree {
            free_space_tree::remove_group(self, &group.span(self.sector_size()))?;
        }
        let key = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, start.get());
        Editor::new(self, TreeId::CHUNK).remove(&key)?;
        for stripe in &chunk.stripes {
            Editor::new(self, TreeId::DEVICE).remove(&device_extent_key(stripe))?;
        }
        let devices: Vec<DeviceId> = chunk.stripes.iter().map(|s| s.device).collect();
        let length = stripe_length(&chunk);
        self.change_devices(&devices, |used| used.saturating_sub(length))
    }
}

/// How the kernel ranks profiles where a volume has several. New chunks get the
/// one of the highest rank.
const fn safety(profile: Profile) -> u8 {
    match profile {
        Profile::Single => 0,
        Profile::Raid0 => 1,
        Profile::Dup => 2,
        Profile::Raid1 => 3,
        Profile::Raid10 => 4,
        Profile::Raid5 => 5,
        Profile::Raid1c3 => 6,
        Profile::Raid6 => 7,
        Profile::Raid1c4 => 8,
    }
}

fn device_extent_key(stripe: &Stripe) -> Key {
    Key::new(
        stripe.device.get(),
        ItemType::DEV_EXTENT,
        stripe.offset.get(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenOptions, Store};
    use butterfs_device::{Access, FileDevice};
    use std::process::Command;
    use std::sync::Arc;

    fn open(path: &std::path::Path) -> Store {
        let device = FileDevice::open(path, Access::ReadWrite).unwrap();
        Store::open(Arc::new(device), &OpenOptions::default()).unwrap()
    }

    #[test]
    fn the_superblock_lists_system_chunks_until_it_is_full() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(4 << 30).unwrap();
        let made = Command::new("mkfs.btrfs").arg("-q").arg(&path).output();
        assert!(made.unwrap().status.success());
        let check = || {
            let checked = Command::new("btrfs").arg("check").arg(&path).output();
            let checked = checked.unwrap();
            let text = String::from_utf8_lossy(&checked.stderr).into_owned();
            assert!(checked.status.success(), "{text}");
        };
        let listed = |store: &Store| store.read().superblock().sys_chunks.len();
        let store = open(&path);
        assert_eq!(listed(&store), 1);
        store
            .begin(0, crate::Purpose::Grow)
            .unwrap()
            .create_chunk(SpaceKind::System)
            .unwrap();
        store.commit().unwrap();
        drop(store);
        check();
        let store = open(&path);
        assert_eq!(listed(&store), 2, "the second one was kept");
        let mut more = 0;
        let refused = loop {
            let mut engine = store.begin(0, crate::Purpose::Grow).unwrap();
            match engine.create_chunk(SpaceKind::System) {
                Ok(()) => more += 1,
                Err(error) => break error,
            }
            assert!(more < 100, "the array takes any number");
        };
        assert!(matches!(refused, StoreError::NoSpace), "{refused}");
        assert!(more > 5, "{more}");
        store.commit().unwrap();
        drop(store);
        check();
        let store = open(&path);
        assert_eq!(listed(&store), 2 + more);
        assert_eq!(store.read().space_map.system_chunks().len(), 2 + more);
    }

    #[test]
    fn opening_thousands_of_block_groups_is_quick() {
        const GROUPS: usize = 2000;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let file = std::fs::File::create(&path).unwrap();
        file.set_len(4 << 40).unwrap();
        let made = Command::new("mkfs.btrfs").arg("-q").arg(&path).output();
        assert!(made.unwrap().status.success());
        let store = open(&path);
        let mut engine = store.begin(0, crate::Purpose::Grow).unwrap();
        for _ in 0..GROUPS {
            engine.create_chunk(SpaceKind::Data).unwrap();
        }
        drop(engine);
        store.commit().unwrap();
        drop(store);
        let started = std::time::Instant::now();
        let store = open(&path);
        let elapsed = started.elapsed();
        assert!(store.read().space_map.groups.len() > GROUPS);
        println!("{GROUPS} block groups are opened in {elapsed:?}");
        // Milliseconds, so that a busy machine has enough time.
        assert!(elapsed < std::time::Duration::from_secs(2), "{elapsed:?}");
    }
}
