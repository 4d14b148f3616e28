//! Making new volumes.
//!
//! Owns the first chunks, the first trees and the first superblock of a volume on
//! one or several devices. Planning is pure; only `apply` writes.

mod apply;
mod error;
mod features;
mod layout;
mod options;
mod trees;
mod volume;

pub(crate) use apply::wipe;
pub use butterfs_volume::Profile as ProfileChoice;
pub use error::MkfsError;
pub use features::{DefaultState, FEATURES, Feature, FeatureBit, FeatureSet};
pub use options::{Layout, MkfsOptions, RootOwner};

use butterfs_device::BlockDevice;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{DeviceId, UuidBytes};
use layout::NewDevice;
use std::sync::Arc;
use trees::Identities;
use volume::NewVolume;

/// The least size in bytes of a device of several.
const MEMBER_BYTES_MIN: u64 = 16 << 20;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// UUID of the volume.
    pub fsid: UuidBytes,
    /// UUID of the first device.
    pub device_uuid: UuidBytes,
    /// Size of the volume in bytes.
    pub total_bytes: u64,
    /// Bytes in nodes.
    pub bytes_used: u64,
    /// Block groups: kind and profile, and length in bytes.
    pub groups: Vec<(BlockGroupFlags, u64)>,
    /// Features that readers must know.
    pub incompat: Incompat,
    /// Features that writers must know.
    pub compat_ro: CompatRo,
}

/// The most devices of a new volume.
pub const DEVICES_MAX: usize = 32;

/// Verifies that a volume with these options can be made on `devices`. Writes
/// nothing.
///
/// # Errors
/// As [`make_on`], except the errors of writing.
pub fn verify(devices: &[&dyn BlockDevice], options: &MkfsOptions) -> Result<(), MkfsError> {
    plan(devices, options).map(drop)
}

/// Makes a volume on `device`. What was there is lost.
///
/// # Errors
/// - Before anything is written: an [`MkfsError`] if the options are not possible
///   or the device is too small.
/// - [`MkfsError::Device`] if writing fails.
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Summary, MkfsError> {
    let volume = plan(&[device], options)?;
    apply::apply(&[device], &volume, |volume| {
        apply::write_on_one(device, volume)
    })?;
    Ok(summary(&volume))
}

/// Makes a volume on several devices, in their order. What was there is lost.
///
/// # Errors
/// As [`make`]. Also [`MkfsError::TooFewDevices`], [`MkfsError::TooManyDevices`]
/// and [`MkfsError::NoRoom`], before anything is written, and
/// [`MkfsError::Volume`] if writing fails.
pub fn make_on(
    devices: &[Arc<dyn BlockDevice>],
    options: &MkfsOptions,
) -> Result<Summary, MkfsError> {
    let all: Vec<&dyn BlockDevice> = devices.iter().map(|device| &**device).collect();
    let volume = plan(&all, options)?;
    apply::apply(&all, &volume, |volume| {
        apply::write_on_several(devices, volume)
    })?;
    Ok(summary(&volume))
}

fn plan(devices: &[&dyn BlockDevice], options: &MkfsOptions) -> Result<NewVolume, MkfsError> {
    options.verify()?;
    if devices.len() > DEVICES_MAX {
        return Err(MkfsError::TooManyDevices(DEVICES_MAX));
    }
    options.profiles(devices.len())?;
    let random = || uuid::Uuid::new_v4().into_bytes();
    let mut planned = Vec::new();
    for (id, device) in (1..).zip(devices) {
        let least = match devices {
            [_] => options.bytes_min()?,
            _ => MEMBER_BYTES_MIN,
        };
        planned.push(NewDevice {
            id: DeviceId(id),
            uuid: match options.device_uuid {
                Some(uuid) if id == 1 => uuid,
                _ => random(),
            },
            total: total_bytes(*device, options, least)?,
        });
    }
    let ids = Identities {
        fsid: options.fsid.unwrap_or_else(random),
        chunk_tree: random(),
        top_level: random(),
    };
    volume::plan(options, &ids, &planned)
}

fn summary(volume: &NewVolume) -> Summary {
    let superblock = &volume.superblock;
    let groups = volume
        .layout
        .chunks()
        .map(|planned| (planned.chunk.flags, planned.chunk.length));
    Summary {
        fsid: superblock.fsid,
        device_uuid: superblock.device.uuid,
        total_bytes: superblock.total_bytes,
        bytes_used: superblock.bytes_used,
        groups: groups.collect(),
        incompat: superblock.incompat,
        compat_ro: superblock.compat_ro,
    }
}

/// Returns the bytes of a device that the volume uses, in whole sectors.
fn total_bytes(
    device: &dyn BlockDevice,
    options: &MkfsOptions,
    minimum: u64,
) -> Result<u64, MkfsError> {
    let available = device.size();
    let wanted = options.byte_count.unwrap_or(available);
    if wanted > available {
        return Err(MkfsError::ByteCount {
            device: device.identity(),
            available,
            wanted,
        });
    }
    let total = wanted - wanted % u64::from(options.sector_size);
    if total < minimum {
        return Err(MkfsError::TooSmall {
            device: device.identity(),
            available: total,
            minimum,
        });
    }
    Ok(total)
}
