//! Whether the devices that were given are those of one volume.
//!
//! Owns the comparison of their superblocks with each other and with the device
//! items: which device speaks for the volume, and which one is not used.
//!
//! All nodes of a commit are on every device before the first superblock names
//! them. So a crash between two superblocks leaves a device that is one commit
//! behind and has everything. Its copies without checksums are still read last,
//! and compared before the next commit ([`super::renew`]). A device that is
//! further behind lacks what was written since: it is stale. A commit that a
//! device falls out of is followed by others at once, so that a device which
//! fell out is always more than one behind.
//!
//! A device that is away when the volume is opened for writing may be one
//! commit ahead of the others: it was lost in a crash that came between the
//! superblocks. What is committed without it must share no generation with what
//! it has. So the generations in between are left out ([`apart`]).
//!
//! A volume may have grown from another one, its seed (`btrfs device add` to a
//! volume with the flag for that). The devices of the seed keep their
//! superblocks, with the UUID of their own volume and the generation of its
//! last commit. The items of the devices say which ones they are. They are read
//! and never written.
//!
//! Devices are added, removed and replaced, and a crash may come at any point.
//! So two kinds of devices are left out, as in the kernel. One is a device that
//! the newest trees do not have: it was about to be added, or it was removed.
//! The other is the older one of two that are the same device: it was replaced.

use super::older_copy::OlderCopy;
use super::options::{Degraded, OpenOptions, States};
use super::superblocks::{FoundSuperblock, Preferred, read_preferred};
use crate::commit::DeviceItems;
use crate::error::StoreError;
use crate::open::member_fault::MemberFault;
use crate::open::space_fault::SpaceFault;
use butterfs_device::BlockDevice;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{SuperFlags, Superblock};
use butterfs_format::{DeviceId, DeviceOffset, UuidBytes};
use butterfs_tree::Seeds;
use butterfs_volume::{MemberState, Trust, VolumeDevice};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many generations the first commit without a device skips at least. The
/// missing device may have one of them, and is stale then.
const APART: u64 = 4;

/// How many generations the first commit without a device skips: a number that
/// cannot be foreseen. If two halves of a volume are changed one without the
/// other, they hardly ever come to the same generation. So the older half is
/// stale, and is not mixed with the newer one.
pub(super) fn apart() -> u64 {
    let [one, other, ..] = uuid::Uuid::new_v4().into_bytes();
    APART + u64::from(u16::from_le_bytes([one, other]))
}

/// A device with its superblock.
#[derive(Debug)]
pub(super) struct Given {
    device: Arc<dyn BlockDevice>,
    found: FoundSuperblock,
}

/// The devices that were given, all of one volume.
#[derive(Debug)]
pub(super) struct Members {
    /// The first one speaks for the volume.
    given: Vec<Given>,
    /// Devices of other volumes, from which it may have grown.
    seeds: Vec<Given>,
    /// Targets of the kernel's replacement of a device.
    targets: Vec<Given>,
    /// It grows now: the first device has no item yet.
    is_growing: bool,
}

impl Members {
    /// Reads and compares the superblocks.
    pub(super) fn read(
        devices: Vec<Arc<dyn BlockDevice>>,
        states: States,
        preferred: Preferred,
    ) -> Result<Self, StoreError> {
        let mut given = Vec::new();
        for device in devices {
            let found = read_preferred(&*device, preferred)?;
            given.push(Given { device, found });
        }
        // Among the newest devices, the one with the lowest number. A device
        // that a crash kept from being added has the highest number.
        given.sort_by_key(|one: &Given| {
            let newest_first = std::cmp::Reverse(one.superblock().generation);
            // A volume is newer than its seed in any case.
            (one.is_seeding(), newest_first, one.id())
        });
        let fsid = given.first().map(|first| first.superblock().fsid);
        let is_seed = |one: &Given| one.is_seeding() && Some(one.superblock().fsid) != fsid;
        let (seeds, given): (Vec<_>, Vec<_>) = given.into_iter().partition(is_seed);
        let is_target = |one: &Given| one.id() == DeviceId::REPLACEMENT;
        let (targets, given): (Vec<_>, Vec<_>) = given.into_iter().partition(is_target);
        if let (Some(target), true) = (targets.first(), given.is_empty()) {
            return Err(MemberFault::OnlyTarget(target.name()).into());
        }
        let mut members = Self {
            given,
            seeds,
            targets,
            is_growing: false,
        };
        members.leave_out_replaced();
        members.compare(states)?;
        Ok(members)
    }

    /// The targets of the kernel's replacement of a device of this volume.
    pub(super) fn take_targets(&mut self) -> Vec<Arc<dyn BlockDevice>> {
        let fsid = self.superblock().fsid;
        let targets = std::mem::take(&mut self.targets).into_iter();
        let own = targets.filter(|one| one.superblock().fsid == fsid);
        own.map(|one| one.device).collect()
    }

    /// Leaves out devices whose place a newer device has taken.
    fn leave_out_replaced(&mut self) {
        let mut kept: Vec<Given> = Vec::new();
        for one in std::mem::take(&mut self.given) {
            let place = |other: &&Given| {
                let (own, other) = (one.superblock(), other.superblock());
                (own.fsid, own.device.id) == (other.fsid, other.device.id)
                    && own.generation < other.generation
            };
            match kept.iter().find(place) {
                Some(newer) => tracing::warn!(
                    device = one.name(),
                    newer = newer.name(),
                    id = %one.id(),
                    "an older device with the number of another one is left out"
                ),
                None => kept.push(one),
            }
        }
        self.given = kept;
    }

    fn compare(&self, states: States) -> Result<(), StoreError> {
        let Some((first, others)) = self.given.split_first() else {
            return Err(MemberFault::None.into());
        };
        let of_volume = |one: &Given| (one.superblock().fsid, one.superblock().node_fsid());
        // A crash may have left such a change on only some devices. The device
        // items say whether the devices belong together.
        let is_changing = |one: &Given| one.superblock().flags.intersects(SuperFlags::CHANGING);
        let is_changing = states == States::Tuned && self.given.iter().any(is_changing);
        for (index, other) in (1..).zip(others) {
            if of_volume(other) != of_volume(first) && !is_changing {
                return Err(MemberFault::Foreign {
                    device: other.name(),
                    first: first.name(),
                }
                .into());
            }
            let same = |before: &&Given| before.id() == other.id();
            if let Some(same) = self.given.iter().take(index).find(same) {
                return Err(MemberFault::Twice {
                    first: same.name(),
                    second: other.name(),
                    id: other.id(),
                }
                .into());
            }
            if self.behind(other) == 0 && !is_changing && !is_same_commit(first, other) {
                return Err(split(first, other).into());
            }
        }
        Ok(())
    }

    /// The fault of two devices of the newest generation that have different
    /// contents; `None` if only one device has that generation.
    pub(super) fn split(&self) -> Option<MemberFault> {
        let (first, others) = self.given.split_first()?;
        let other = others.iter().find(|other| self.behind(other) == 0)?;
        Some(split(first, other))
    }

    /// The superblock that speaks for the volume.
    pub(super) fn superblock(&self) -> &Superblock {
        self.given[0].superblock()
    }

    /// Whether only mirrors have the superblock that speaks for the volume.
    pub(super) fn speaks_by_mirror(&self) -> bool {
        let mut newest = self.given.iter().filter(|one| self.behind(one) == 0);
        newest.all(|one| one.found.is_mirror())
    }

    /// Which copies may count instead, if what these name is damaged.
    pub(super) fn instead(&self) -> Option<Preferred> {
        let is_older = |one: &Given| one.found.older.is_some();
        match self.newer_mirrors().next() {
            Some(_) => Some(Preferred::Newest),
            None => (self.given.iter().any(is_older)).then_some(Preferred::WholePrimary),
        }
    }

    /// Mirrors of newer commits than that superblock.
    pub(super) fn newer_mirrors(&self) -> impl Iterator<Item = &Superblock> {
        let newest = self.superblock().generation;
        let mirrors = self
            .given
            .iter()
            .filter_map(|one| one.found.newer.as_deref());
        mirrors.filter(move |mirror| mirror.generation > newest)
    }

    /// Errors if whoever wrote a newer mirror made commits that the whole
    /// primary copy does not know of. A wrong number in the mirror alone does
    /// not say so.
    ///
    /// # Errors
    /// [`OlderCopy::OlderPrimary`]
    pub(super) fn verify_age_of_primary(&self) -> Result<(), OlderCopy> {
        let own = self.superblock();
        let names = |copy: &Superblock, from: u64| {
            let mut backups = copy.backup_roots.iter();
            backups.any(|backup| backup.tree_root.generation.get() >= from)
        };
        // After its roots were set back (`usebackuproot`), a volume still names
        // the commits that were given up.
        let is_later = |mirror: &&Superblock| {
            names(mirror, own.generation.get().saturating_add(1))
                && !names(own, mirror.generation.get())
        };
        match self.newer_mirrors().find(is_later) {
            Some(mirror) => Err(OlderCopy::OlderPrimary {
                device: self.given[0].name(),
                generation: own.generation,
                newer: mirror.generation,
                damage: "by its backup roots, it was written".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Where the copy lies that counted on each device.
    pub(super) fn chosen_copies(&self) -> BTreeMap<DeviceId, DeviceOffset> {
        let place = |one: &Given| (one.id(), one.superblock().own_offset);
        self.given.iter().map(place).collect()
    }

    /// Errors if by the damaged primary copy the mirror in its place is too old
    /// to go on from it.
    ///
    /// # Errors
    /// [`OlderCopy::Behind`]
    pub(super) fn verify_age_of_mirror(&self) -> Result<(), OlderCopy> {
        let generation = self.superblock().generation;
        let claims = self.given.iter().filter_map(|one| {
            let claimed = one.found.claimed?;
            // A torn write has the next generation.
            (claimed.get() > generation.get().saturating_add(1)).then_some((one, claimed))
        });
        match claims.max_by_key(|(_, claimed)| *claimed) {
            Some((one, claimed)) => Err(OlderCopy::Behind {
                device: one.name(),
                generation,
                claimed,
            }),
            None => Ok(()),
        }
    }

    /// An error of opening. If it may come from the age of a mirror, it says so.
    pub(super) fn explain(&self, error: StoreError) -> StoreError {
        if !error.is_damage() || !self.speaks_by_mirror() {
            return error;
        }
        if let Some(generation) = self.given[0].found.older {
            return OlderCopy::OlderPrimary {
                device: self.given[0].name(),
                generation,
                newer: self.superblock().generation,
                damage: error.to_string(),
            }
            .into();
        }
        OlderCopy::Overwritten {
            device: self.given[0].name(),
            generation: self.superblock().generation,
            claimed: self.given[0].found.claimed,
            damage: error.to_string(),
        }
        .into()
    }

    pub(super) fn one(&self) -> Option<&Arc<dyn BlockDevice>> {
        match &self.given[..] {
            [one] => Some(&one.device),
            _ => None,
        }
    }

    /// How far the generation of a device is below the newest.
    fn behind(&self, one: &Given) -> u64 {
        let newest = self.superblock().generation.get();
        newest.saturating_sub(one.superblock().generation.get())
    }

    /// Devices that lack the last commit only. They are used.
    pub(super) fn one_behind(&self) -> BTreeSet<DeviceId> {
        let given = self.given.iter().filter(|one| self.behind(one) == 1);
        given.map(Given::id).collect()
    }

    /// The devices in the form that the volume's space takes, as far as they
    /// are known before the trees are loaded.
    pub(super) fn devices(&self) -> Vec<VolumeDevice> {
        let of = |one: &Given| {
            let uuid = one.superblock().device.uuid;
            let (state, trust) = match self.behind(one) {
                0 => (MemberState::Present, Trust::Full),
                1 => (MemberState::Present, Trust::Last),
                _ => (MemberState::Stale, Trust::Last),
            };
            VolumeDevice {
                state,
                trust,
                ..VolumeDevice::present(one.id(), uuid, Arc::clone(&one.device))
            }
        };
        let seed = |one: &Given| {
            let uuid = one.superblock().device.uuid;
            VolumeDevice::seed(one.id(), uuid, Arc::clone(&one.device))
        };
        let seeds = self.seeds_by_number().map(seed);
        self.given.iter().map(of).chain(seeds).collect()
    }

    /// One seed for each number that a device may have.
    fn seeds_by_number(&self) -> impl Iterator<Item = &Given> {
        let mut ids: BTreeSet<DeviceId> = self.given.iter().map(Given::id).collect();
        self.seeds.iter().filter(move |one| ids.insert(one.id()))
    }

    /// Makes the devices seeds of a new volume, whose only device is `device`.
    pub(super) fn grow_from_seed(&mut self, device: Arc<dyn BlockDevice>, superblock: Superblock) {
        let new = Given {
            device,
            found: FoundSuperblock::only(superblock),
        };
        self.seeds.append(&mut self.given);
        self.given = vec![new];
        self.is_growing = true;
    }

    /// If the volume grows now, adds the item of its new device, and notes the
    /// generations of its seeds in their items.
    pub(super) fn add_new(&self, items: &mut BTreeMap<DeviceId, DeviceItem>) {
        if !self.is_growing {
            return;
        }
        for one in &self.seeds {
            if let Some(item) = items.get_mut(&one.id()) {
                item.generation = one.superblock().generation;
            }
        }
        let own = self.superblock().device.clone();
        items.insert(own.id, own);
    }

    /// Puts first the seeds on which, by the superblock, system chunks of the
    /// volume lie. They are needed to read the device items.
    pub(super) fn choose_seeds(&mut self) {
        let chunks = self.given[0].superblock().sys_chunks.clone();
        self.seeds.sort_by_key(|one| {
            let own = &one.superblock().device;
            let mut stripes = chunks.iter().flat_map(|(_, chunk)| &chunk.stripes);
            !stripes.any(|stripe| stripe.device == own.id && stripe.device_uuid == own.uuid)
        });
    }

    /// UUIDs in the nodes of the seeds.
    ///
    /// # Errors
    /// [`MemberFault::TooManySeeds`]
    pub(super) fn seeds(&self) -> Result<Option<Seeds>, MemberFault> {
        let seeds = self.seeds_by_number();
        let fsids: BTreeSet<UuidBytes> = seeds.map(|one| one.superblock().node_fsid()).collect();
        if fsids.is_empty() {
            return Ok(None);
        }
        let fsids: Vec<UuidBytes> = fsids.into_iter().collect();
        let seeds = Seeds::new(&fsids).ok_or(MemberFault::TooManySeeds(fsids.len()))?;
        Ok(Some(seeds))
    }

    /// Errors if the item of a device of this volume says that it belongs to
    /// another one. It would be taken for a seed, and not be written.
    fn verify_volumes(&self, items: &DeviceItems) -> Result<(), SpaceFault> {
        for one in &self.given {
            let own = &one.superblock().device;
            let item = items.get(&own.id).filter(|item| item.uuid == own.uuid);
            let is_changing = one.superblock().flags.intersects(SuperFlags::CHANGING);
            if !is_changing && item.is_some_and(|item| item.fsid != own.fsid) {
                return Err(SpaceFault::DeviceOfOtherVolume(own.id));
            }
        }
        Ok(())
    }

    /// Leaves out seeds that the volume did not grow from by its items. True
    /// when there were some.
    ///
    /// # Errors
    /// [`MemberFault::SeedChanged`]
    fn leave_out_strange_seeds(&mut self, items: &DeviceItems) -> Result<bool, MemberFault> {
        let before = self.seeds.len();
        let item_of = |one: &Given| {
            let own = one.superblock();
            let item = items.get(&own.device.id)?;
            let is_it = item.uuid == own.device.uuid && item.fsid == own.node_fsid();
            is_it.then_some(item)
        };
        self.seeds.retain(|one| item_of(one).is_some());
        // Of several copies of a seed, the one that did not change comes first.
        self.seeds.sort_by_key(|one| {
            let expected = item_of(one).map(|item| item.generation);
            expected != Some(one.superblock().generation)
        });
        let mut ids = BTreeSet::new();
        self.seeds.retain(|one| ids.insert(one.id()));
        for one in &self.seeds {
            let found = one.superblock().generation;
            if let Some(item) = item_of(one).filter(|item| item.generation != found) {
                return Err(MemberFault::SeedChanged {
                    device: one.name(),
                    id: one.id(),
                    expected: item.generation,
                    found,
                });
            }
        }
        Ok(self.seeds.len() < before)
    }

    /// Leaves out devices that have no device item in the volume. True if there
    /// were some.
    ///
    /// # Errors
    /// [`MemberFault::SeedChanged`]
    pub(super) fn leave_out_strangers(&mut self, items: &DeviceItems) -> Result<bool, StoreError> {
        self.verify_volumes(items)?;
        let has_strange_seeds = self.leave_out_strange_seeds(items)?;
        let before = self.given.len();
        self.given.retain(|one| {
            let own = &one.superblock().device;
            let is_known = items.get(&own.id).is_some_and(|item| item.uuid == own.uuid);
            if !is_known {
                tracing::warn!(
                    device = one.name(),
                    id = %own.id,
                    "a device that the volume does not have is left out"
                );
            }
            is_known
        });
        Ok(has_strange_seeds || self.given.len() < before)
    }

    /// The devices that the volume has by its items and that were not given.
    ///
    /// # Errors
    /// A device is missing or stale, and the options do not allow that.
    pub(super) fn missing(
        &self,
        items: &DeviceItems,
        options: &OpenOptions,
    ) -> Result<Vec<VolumeDevice>, StoreError> {
        for one in &self.given {
            if self.behind(one) > 1 && options.degraded == Degraded::Refused {
                return Err(MemberFault::Stale {
                    device: one.name(),
                    id: one.id(),
                    found: one.superblock().generation,
                    newest: self.superblock().generation,
                }
                .into());
            }
        }
        let is_given = |id: DeviceId| {
            let mut all = self.given.iter().chain(&self.seeds);
            all.any(|one| one.id() == id)
        };
        let missing: Vec<_> = items
            .values()
            .filter(|item| !is_given(item.id))
            .map(|item| (item.id, item.uuid))
            .collect();
        if !missing.is_empty() && options.degraded == Degraded::Refused {
            return Err(MemberFault::Missing(missing).into());
        }
        let missing = missing.into_iter();
        Ok(missing
            .map(|(id, uuid)| VolumeDevice::missing(id, uuid))
            .collect())
    }
}

/// Whether the superblocks of two devices name the same trees. The fsync log is
/// not compared: a crash may have left it on one device only.
fn is_same_commit(one: &Given, other: &Given) -> bool {
    let trees = |one: &Given| {
        let own = one.superblock();
        (
            (own.root, own.root_level),
            (own.chunk_root, own.chunk_root_level),
            own.bytes_used,
        )
    };
    trees(one) == trees(other)
}

fn split(first: &Given, second: &Given) -> MemberFault {
    MemberFault::Split {
        first: first.name(),
        second: second.name(),
        generation: first.superblock().generation,
    }
}

impl Given {
    const fn is_seeding(&self) -> bool {
        self.superblock().flags.contains(SuperFlags::SEEDING)
    }

    const fn superblock(&self) -> &Superblock {
        &self.found.superblock
    }

    const fn id(&self) -> DeviceId {
        self.superblock().device.id
    }

    fn name(&self) -> String {
        self.device.identity()
    }
}
