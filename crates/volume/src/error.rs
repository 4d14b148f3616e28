//! What can go wrong in logical space.

use crate::{ChunkFault, Profile};
use butterfs_device::DeviceError;
use butterfs_format::{DeviceId, Logical, Physical};
use std::fmt;
use std::sync::Arc;
use thiserror::Error;

/// Why one copy is no good.
#[derive(Clone, Debug)]
pub enum CopyFault {
    /// It was read, but is not what it should be.
    Damaged,
    /// It could not be read.
    Unreadable(Arc<DeviceError>),
    /// Its device is not there.
    Missing,
}

/// A copy that is no good.
#[derive(Clone, Debug)]
pub struct BadCopy {
    /// Where it lies.
    pub physical: Physical,
    /// Why.
    pub fault: CopyFault,
}

impl fmt::Display for BadCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Physical { device, offset } = self.physical;
        write!(f, "device {device} offset {offset}: ")?;
        match &self.fault {
            CopyFault::Damaged => f.write_str("does not match its checksum"),
            CopyFault::Unreadable(error) => write!(f, "{error}"),
            CopyFault::Missing => f.write_str("the device is missing"),
        }
    }
}

fn list(copies: &[BadCopy]) -> String {
    let texts: Vec<String> = copies.iter().map(ToString::to_string).collect();
    texts.join("; ")
}

/// Why an operation in logical space failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// No chunk covers an address.
    #[error("logical {logical} (+{length}) lies in no chunk")]
    Unmapped {
        /// Address.
        logical: Logical,
        /// Bytes.
        length: u64,
    },
    /// All copies are bad.
    #[error("no good copy at logical {logical}: {}", list(.copies))]
    NoGoodCopy {
        /// Address.
        logical: Logical,
        /// What was found.
        copies: Vec<BadCopy>,
    },
    /// A chunk is impossible.
    #[error("the chunk at logical {logical} is impossible: {fault}; check the volume")]
    BadChunk {
        /// Address.
        logical: Logical,
        /// Why.
        fault: ChunkFault,
    },
    /// A profile that ButterFS does not handle yet.
    #[error("the profile {profile} is not supported yet; mount the volume with the kernel's Btrfs")]
    Profile {
        /// Its name.
        profile: String,
    },
    /// A write that would hit a superblock. The allocator leaves those ranges
    /// out, so this is a fault of our own state or a misplaced chunk.
    #[error(
        "a write at logical {logical} would overwrite the superblock at offset {} of device {}; nothing was written there",
        .physical.offset, .physical.device
    )]
    HitsSuperblock {
        /// Address.
        logical: Logical,
        /// Where it lies.
        physical: Physical,
    },
    /// The address lies on a seed: a device of a volume from which this one
    /// grew.
    #[error("logical {logical} lies on device {device}, a seed, which is never written")]
    Seed {
        /// Address.
        logical: Logical,
        /// The device.
        device: DeviceId,
    },
    /// A device is not there, or not used any more.
    #[error(
        "device {0} of the volume is missing; give all its devices; `butterfs check` says what is lost without it"
    )]
    MissingDevice(DeviceId),
    /// So many devices are missing that a chunk cannot be written.
    #[error(
        "too many devices are missing: the chunk at logical {logical} ({profile}) loses content \
         without them; give more of the devices, or open the volume for reading only"
    )]
    TooFewDevices {
        /// Chunk.
        logical: Logical,
        /// Its profile.
        profile: Profile,
    },
    /// A device failed.
    #[error(transparent)]
    Device(Arc<DeviceError>),
    /// No room for a chunk.
    #[error("no unallocated space is left on the devices")]
    NoSpace,
}

impl From<DeviceError> for VolumeError {
    fn from(error: DeviceError) -> Self {
        Self::Device(Arc::new(error))
    }
}
