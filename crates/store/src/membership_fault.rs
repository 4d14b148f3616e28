//! Why devices cannot be added or removed.

use butterfs_format::DeviceId;
use butterfs_volume::Profile;
use thiserror::Error;

/// Why a device cannot be added, removed or replaced.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MembershipFault {
    /// Too few devices would be left for a profile.
    #[error("unable to go below {} on {profile}", devices_in_words(*.least))]
    TooFewDevices {
        /// A profile that the volume has.
        profile: Profile,
        /// Devices that it needs.
        least: usize,
    },
    /// The last device that can be written.
    #[error("unable to remove the only writeable device")]
    OnlyWritable,
    /// No device is missing or stale.
    #[error("no missing devices found to remove")]
    NoneMissing,
    /// The device is one of a volume from which this one grew.
    #[error(
        "device {0} is a seed, which never changes; add a device and remove the seed, and what \
         lies on it moves"
    )]
    Seed(DeviceId),
    /// The volume has no such device.
    #[error("the volume has no device {0}; `butterfs device usage` lists them")]
    NoSuchDevice(String),
    /// Something was put on the device meanwhile.
    #[error("device {0} is in use again; try again")]
    InUse(DeviceId),
    /// There is no room for what lies on the device.
    #[error(
        "no space left on the other devices: {needed} bytes of {kind} lie in block groups of \
         device {device}, and {room} fit elsewhere"
    )]
    NoRoom {
        /// Device.
        device: DeviceId,
        /// What does not fit.
        kind: &'static str,
        /// Bytes that are to move.
        needed: u64,
        /// Bytes that there is room for.
        room: u64,
    },
    /// A device that is too small.
    #[error("{device} has {size} bytes and must have {least} at least")]
    TooSmall {
        /// Where it is.
        device: String,
        /// Its bytes.
        size: u64,
        /// Bytes that it must have.
        least: u64,
    },
    /// Data of which no copy is left, and whose loss nothing would show.
    #[error(
        "{bytes} bytes of data without checksums at logical {logical} cannot be read from any \
         copy, and nothing would show that on the new device: delete the file (`butterfs inspect \
         logical-resolve` names it) and begin again"
    )]
    Unreadable {
        /// Where it lies.
        logical: butterfs_format::Logical,
        /// Bytes.
        bytes: usize,
    },
}

fn devices_in_words(count: usize) -> String {
    match count {
        2 => "two devices".to_owned(),
        3 => "three devices".to_owned(),
        4 => "four devices".to_owned(),
        other => format!("{other} devices"),
    }
}
