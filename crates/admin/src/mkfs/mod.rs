//! Making new volumes.
//!
//! Owns the first chunks, the first trees and the first superblock of a
//! volume on one device. Planning is pure; `apply` alone writes.

mod apply;
mod error;
mod features;
mod layout;
mod leaf;
mod options;
mod trees;
mod volume;

pub use error::MkfsError;
pub use features::{DefaultState, FEATURES, Feature, FeatureBit, FeatureSet};
pub use options::{Layout, MkfsOptions, ProfileChoice, RootOwner};

use butterfs_device::BlockDevice;
use butterfs_format::UuidBytes;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::chunk::BlockGroupFlags;
use trees::Identities;

/// What was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// UUID of the volume.
    pub fsid: UuidBytes,
    /// UUID of the device.
    pub device_uuid: UuidBytes,
    /// Bytes of the volume.
    pub total_bytes: u64,
    /// Bytes in nodes.
    pub bytes_used: u64,
    /// Block groups: what they hold, and bytes of one copy.
    pub groups: Vec<(BlockGroupFlags, u64)>,
    /// Features for readers.
    pub incompat: Incompat,
    /// Features for writers.
    pub compat_ro: CompatRo,
}

/// Says whether a volume of these options can be made on `device`, without
/// writing anything.
///
/// # Errors
/// As [`make`], but for writing.
pub fn verify(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<(), MkfsError> {
    options.verify()?;
    total_bytes(device, options).map(drop)
}

/// Makes a volume on `device`; whatever was there is lost.
///
/// # Errors
/// Options that contradict each other and a device that is too small, before
/// anything is written; writing.
pub fn make(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<Summary, MkfsError> {
    options.verify()?;
    let total = total_bytes(device, options)?;
    let random = || uuid::Uuid::new_v4().into_bytes();
    let ids = Identities {
        fsid: options.fsid.unwrap_or_else(random),
        device: options.device_uuid.unwrap_or_else(random),
        chunk_tree: random(),
        top_level: random(),
    };
    let volume = volume::plan(options, &ids, total)?;
    apply::apply(device, &volume)?;
    let groups = volume
        .layout
        .chunks()
        .map(|planned| (planned.chunk.flags, planned.chunk.length));
    Ok(Summary {
        fsid: ids.fsid,
        device_uuid: ids.device,
        total_bytes: total,
        bytes_used: volume.superblock.bytes_used,
        groups: groups.collect(),
        incompat: volume.superblock.incompat,
        compat_ro: volume.superblock.compat_ro,
    })
}

/// Bytes that the volume shall have: whole sectors.
fn total_bytes(device: &dyn BlockDevice, options: &MkfsOptions) -> Result<u64, MkfsError> {
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
    let minimum = options.bytes_min()?;
    if total < minimum {
        return Err(MkfsError::TooSmall {
            device: device.identity(),
            available: total,
            minimum,
        });
    }
    Ok(total)
}
