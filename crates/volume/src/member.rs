//! The devices of a volume, and which of them can be used.
//!
//! Owns the state of each. A device that is not present is neither read nor
//! written. It is missing, or its content is too old, or a write to it failed
//! and the volume went on without it. Nobody knows what such a device lacks
//! since then, so it is not trusted again until it was repaired.

use crate::replace_target::ReplaceTarget;
use crate::stats::DeviceStats;
use butterfs_device::{BlockDevice, Caching, ReadOnlyDevice};
use butterfs_format::{DeviceId, UuidBytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether a device of a volume is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It is read and written.
    Present,
    /// It was not given.
    Missing,
    /// It has an older generation than the others and lacks what was written
    /// since.
    Stale,
    /// A write or flush of it failed, and the volume went on without it.
    Failing,
}

impl MemberState {
    const ALL: [Self; 4] = [Self::Present, Self::Missing, Self::Stale, Self::Failing];

    const fn number(self) -> u8 {
        match self {
            Self::Present => 0,
            Self::Missing => 1,
            Self::Stale => 2,
            Self::Failing => 3,
        }
    }

    /// Its name, for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Missing => "missing",
            Self::Stale => "stale",
            Self::Failing => "failing",
        }
    }
}

/// When the copies of a device are tried. It matters for data without
/// checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// As those of every other device.
    #[default]
    Full,
    /// Last, because its superblock is one commit behind. A crash between the
    /// superblocks of two devices leaves a device like that, and then it has
    /// everything. But a device that fell out at that moment looks the same.
    Last,
}

/// Whose device it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// The volume's own.
    #[default]
    Own,
    /// That of another volume, from which this one grew: a seed. It is read and
    /// never written.
    Seed,
}

/// A device of a volume as it is given to [`crate::LogicalSpace`].
#[derive(Clone, Debug)]
pub struct VolumeDevice {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: UuidBytes,
    /// The device itself; `None` when it is missing.
    pub device: Option<Arc<dyn BlockDevice>>,
    /// Whether it is used. Without a device it is [`MemberState::Missing`].
    pub state: MemberState,
    /// Whether its copies come last.
    pub trust: Trust,
    /// Whose it is.
    pub role: Role,
}

impl VolumeDevice {
    /// A device that is there and trusted.
    #[must_use]
    pub fn present(id: DeviceId, uuid: UuidBytes, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            id,
            uuid,
            device: Some(device),
            state: MemberState::Present,
            trust: Trust::Full,
            role: Role::Own,
        }
    }

    /// A device of a volume from which this one grew. The returned value gives
    /// only read access to it.
    #[must_use]
    pub fn seed(id: DeviceId, uuid: UuidBytes, device: Arc<dyn BlockDevice>) -> Self {
        Self {
            role: Role::Seed,
            ..Self::present(id, uuid, Arc::new(ReadOnlyDevice::new(device)))
        }
    }

    /// A device that was not given.
    #[must_use]
    pub const fn missing(id: DeviceId, uuid: UuidBytes) -> Self {
        Self {
            id,
            uuid,
            device: None,
            state: MemberState::Missing,
            trust: Trust::Full,
            role: Role::Own,
        }
    }
}

/// A device and how it is now.
#[derive(Clone, Debug)]
pub struct MemberFacts {
    /// Its number.
    pub id: DeviceId,
    /// Its UUID.
    pub uuid: UuidBytes,
    /// How it is.
    pub state: MemberState,
    /// Where it is, for messages; `None` when it is missing.
    pub name: Option<String>,
    /// How requests reach it, for a file or block device that is there.
    pub caching: Option<Caching>,
    /// Bytes of the device; `None` when it is missing.
    pub size: Option<u64>,
    /// Its error counters, by [`DeviceStats::values`].
    pub stats: [u64; 5],
}

/// A device and what is known of it.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) uuid: UuidBytes,
    pub(crate) device: Option<Arc<dyn BlockDevice>>,
    pub(crate) trust: Trust,
    pub(crate) role: Role,
    pub(crate) stats: Arc<DeviceStats>,
    state: Arc<AtomicU8>,
    /// The device that is to take its place.
    pub(crate) replace_target: Option<Arc<ReplaceTarget>>,
}

impl Member {
    pub(crate) fn new(given: VolumeDevice) -> (DeviceId, Self) {
        let state = match given.device {
            Some(_) => given.state,
            None => MemberState::Missing,
        };
        let member = Self {
            uuid: given.uuid,
            device: given.device,
            trust: given.trust,
            role: given.role,
            stats: Arc::default(),
            state: Arc::new(AtomicU8::new(state.number())),
            replace_target: None,
        };
        (given.id, member)
    }

    pub(crate) fn state(&self) -> MemberState {
        let number = self.state.load(Ordering::Acquire);
        let state = MemberState::ALL.get(usize::from(number));
        state.copied().unwrap_or(MemberState::Failing)
    }

    pub(crate) fn set_failing(&self) {
        let failing = MemberState::Failing.number();
        self.state.store(failing, Ordering::Release);
    }

    /// Whether writes reach something: the device, or its replace target.
    pub(crate) fn is_written(&self) -> bool {
        (self.role == Role::Own && self.used().is_some()) || self.replace_target.is_some()
    }

    /// The device, if it is used.
    pub(crate) fn used(&self) -> Option<&Arc<dyn BlockDevice>> {
        let device = self.device.as_ref()?;
        let present = MemberState::Present.number();
        (self.state.load(Ordering::Acquire) == present).then_some(device)
    }
}
