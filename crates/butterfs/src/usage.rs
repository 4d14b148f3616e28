//! How a volume's space is used.
//!
//! Owns the sums over block groups, and what statfs says.

use crate::Volume;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_store::{Profile, SpaceKind};

/// Profiles in the order of the kernel's table.
const KERNELS_ORDER: [Profile; 9] = [
    Profile::Raid10,
    Profile::Raid1,
    Profile::Dup,
    Profile::Raid0,
    Profile::Single,
    Profile::Raid5,
    Profile::Raid6,
    Profile::Raid1c3,
    Profile::Raid1c4,
];

/// Space of one kind and profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindUsage {
    /// Flags that these block groups share: kind and profile.
    pub flags: BlockGroupFlags,
    /// Bytes of all their block groups.
    pub total: u64,
    /// Bytes used in them.
    pub used: u64,
    /// Bytes they take on the device.
    pub device: u64,
}

/// Space of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of the device that the volume uses.
    pub device_size: u64,
    /// Bytes of the device in chunks.
    pub device_allocated: u64,
    /// By kind and profile.
    pub kinds: Vec<KindUsage>,
    /// Bytes of data that can still be written.
    pub data_free: u64,
    /// Bytes of metadata that are kept for changes.
    pub metadata_free: u64,
}

impl Usage {
    /// Bytes of extents and nodes, one copy of each.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.kinds.iter().map(|kind| kind.used).sum()
    }

    /// Bytes of the device that are in no chunk.
    #[must_use]
    pub const fn unallocated(&self) -> u64 {
        self.device_size.saturating_sub(self.device_allocated)
    }

    /// Bytes on the device that are in use, with all copies.
    #[must_use]
    pub fn device_used(&self) -> u64 {
        // The ratio is a fraction with parity, so multiply first.
        let on_devices = |kind: &KindUsage| {
            let bytes = u128::from(kind.used) * u128::from(kind.device);
            let bytes = bytes.checked_div(kind.total.into()).unwrap_or(0);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        self.kinds.iter().map(on_devices).sum()
    }

    /// How many copies of data the profile of the data keeps, at least 1. Parity
    /// is no copy. Of several profiles, it is that which the kernel's statfs
    /// takes: the last one in the kernel's order.
    #[must_use]
    pub fn data_copies(&self) -> u64 {
        let has_data = |profile: &&Profile| {
            let mut kinds = self.kinds.iter().map(|kind| kind.flags);
            kinds.any(|flags| {
                flags.contains(BlockGroupFlags::DATA) && flags.profile() == profile.flag()
            })
        };
        let last = KERNELS_ORDER.iter().rfind(has_data);
        last.map_or(1, |profile| profile.copies() as u64)
    }
}

impl Volume {
    /// How its space is used now.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let engine = self.store().read();
        let mut kinds: Vec<KindUsage> = Vec::new();
        for group in engine.groups() {
            let device = engine.device_bytes(group.start);
            match kinds.iter_mut().find(|kind| kind.flags == group.flags) {
                Some(kind) => {
                    kind.total += group.length;
                    kind.used += group.used + group.promised;
                    kind.device += device;
                }
                None => kinds.push(KindUsage {
                    flags: group.flags,
                    total: group.length,
                    used: group.used + group.promised,
                    device,
                }),
            }
        }
        // As in the kernel: data, system, metadata, each by profile.
        kinds.sort_by_key(|kind| (kind.flags.0 & BlockGroupFlags::TYPE.0, kind.flags.0));
        let both = BlockGroupFlags::DATA | BlockGroupFlags::METADATA;
        let kinds_are_mixed = kinds.iter().any(|kind| kind.flags.contains(both));
        Usage {
            device_size: engine.superblock().total_bytes,
            device_allocated: kinds.iter().map(|kind| kind.device).sum(),
            kinds,
            data_free: match kinds_are_mixed {
                // A part of it is kept for metadata.
                true => engine.promisable().data,
                false => engine.available(SpaceKind::Data),
            },
            metadata_free: engine.available(SpaceKind::Metadata),
        }
    }
}
