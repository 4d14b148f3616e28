//! Whether the devices that were given are those of one volume.
//!
//! Owns the comparison of their superblocks with each other and with the device
//! items: which device speaks for the volume, and which one is not used.
//!
//! All nodes of a commit are on every device before the first superblock names
//! them. So a crash between two superblocks leaves a device that is one commit
//! behind and has everything. Its copies without checksums are still read last. A
//! device that is further behind lacks what was written since: it is stale. A
//! commit that a device falls out of is followed by others at once, so that a
//! device which fell out is always more than one behind.
//!
//! A device that is away when the volume is opened for writing may be one commit
//! ahead of the others: it was lost in a crash that came between the superblocks.
//! What is committed without it must share no generation with what it has. So the
//! generations in between are left out ([`APART`]).
//!
//! Devices are added, removed and replaced, and a crash may come at any point. So
//! two kinds of devices are left out, as in the kernel. One is a device that the
//! newest trees do not have: it was about to be added, or it was removed. The other
//! is the older one of two that are the same device: it was replaced.

use super::{Degraded, FoundSuperblock, OpenOptions, States, read_superblock};
use crate::devices::DeviceItems;
use crate::error::StoreError;
use butterfs_device::BlockDevice;
use butterfs_format::superblock::{self, SuperFlags, Superblock};
use butterfs_format::{DeviceId, UuidBytes};
use butterfs_volume::{MemberState, Trust, VolumeDevice};
use std::sync::Arc;
use thiserror::Error;
use uuid::Uuid;

/// How many generations the first commit without a device skips. The missing
/// device may have one of them, and is stale then.
pub(super) const APART: u64 = 4;

/// Why devices are not a volume.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MemberFault {
    /// No device was given.
    #[error("no device is given")]
    None,
    /// A device of another volume.
    #[error("{device} belongs to another volume than {first}; leave it out")]
    Foreign {
        /// It.
        device: String,
        /// A device of the volume.
        first: String,
    },
    /// Two that are the same device of the volume.
    #[error(
        "{first} and {second} are both device {id} of the volume, so one is a copy of the other; \
         give only one of them"
    )]
    Twice {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// The number that both have.
        id: DeviceId,
    },
    /// A device that lacks what was written while it was away.
    #[error(
        "{device}, device {id} of the volume, is {behind} commits behind the others and lacks what \
         was written since; leave it out and go on without it (mount -o degraded), or replace it"
    )]
    Stale {
        /// It.
        device: String,
        /// Its number.
        id: DeviceId,
        /// How many commits it lacks.
        behind: u64,
    },
    /// Devices that were not given.
    #[error(
        "{} of the volume {} missing; give all its devices (-o device=PATH), or go on without \
         (mount -o degraded)",
        list(.0), if .0.len() == 1 { "is" } else { "are" }
    )]
    Missing(Vec<(DeviceId, UuidBytes)>),
}

fn list(devices: &[(DeviceId, UuidBytes)]) -> String {
    let one = |(id, uuid): &(DeviceId, UuidBytes)| {
        let uuid = Uuid::from_bytes(*uuid);
        format!("device {id} (UUID {uuid})")
    };
    devices.iter().map(one).collect::<Vec<_>>().join(" and ")
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
}

impl Members {
    /// Reads and compares the superblocks.
    pub(super) fn read(
        devices: Vec<Arc<dyn BlockDevice>>,
        states: States,
    ) -> Result<Self, StoreError> {
        let mut given = Vec::new();
        for device in devices {
            let found = read_superblock(&*device)?;
            given.push(Given { device, found });
        }
        // Among the newest devices, the one with the lowest number. A device
        // that a crash kept from being added has the highest number.
        given.sort_by_key(|one: &Given| {
            let newest_first = std::cmp::Reverse(one.superblock().generation);
            (newest_first, one.id())
        });
        let mut members = Self { given };
        members.leave_out_replaced();
        members.compare(states)?;
        Ok(members)
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
            if let Some(twin) = self.given.iter().take(index).find(same) {
                return Err(MemberFault::Twice {
                    first: twin.name(),
                    second: other.name(),
                    id: other.id(),
                }
                .into());
            }
        }
        Ok(())
    }

    /// The superblock that speaks for the volume.
    pub(super) fn superblock(&self) -> &Superblock {
        self.given[0].superblock()
    }

    /// Whether its primary copy was damaged.
    pub(super) fn is_damaged(&self) -> bool {
        self.given.iter().any(|one| !one.found.damaged.is_empty())
    }

    /// Whether all copies on all devices are those of one commit.
    pub(super) fn copies_agree(&self) -> bool {
        let newest = self.superblock().generation;
        let agree = |one: &Given| {
            one.superblock().generation == newest
                && super::copies_agree(&*one.device, one.superblock())
        };
        self.given.iter().all(agree)
    }

    pub(super) fn one(&self) -> Option<&Arc<dyn BlockDevice>> {
        match &self.given[..] {
            [one] => Some(&one.device),
            _ => None,
        }
    }

    /// Commits that a device lacks.
    fn behind(&self, one: &Given) -> u64 {
        let newest = self.superblock().generation.get();
        newest.saturating_sub(one.superblock().generation.get())
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
        self.given.iter().map(of).collect()
    }

    /// Leaves out devices that have no device item in the volume. True if there
    /// were some.
    pub(super) fn leave_out_strangers(&mut self, items: &DeviceItems) -> bool {
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
        self.given.len() < before
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
            let behind = self.behind(one);
            if behind > 1 && options.degraded == Degraded::Refused {
                return Err(MemberFault::Stale {
                    device: one.name(),
                    id: one.id(),
                    behind,
                }
                .into());
            }
        }
        let is_given = |id: DeviceId| self.given.iter().any(|one| one.id() == id);
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

impl Given {
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

/// Whether a device is large enough for a copy of the superblock.
pub(super) fn has_room(device: &dyn BlockDevice, offset: u64) -> bool {
    offset.saturating_add(superblock::SIZE as u64) <= device.size()
}
