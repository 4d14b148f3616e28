//! Why devices cannot be opened as one volume.

use butterfs_format::{DeviceId, Generation, UuidBytes};
use butterfs_tree::Seeds;
use thiserror::Error;
use uuid::Uuid;

/// Why devices cannot be opened as one volume.
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
    /// Two devices whose superblocks name different trees of one generation.
    #[error(
        "{first} and {second} have different contents of the same generation ({generation}): each \
         was changed while the other was away; move one of them away, mount the other one with -o \
         degraded, and bring in a device in place of the missing one (`butterfs replace start`)"
    )]
    Split {
        /// One.
        first: String,
        /// The other.
        second: String,
        /// Their generation.
        generation: Generation,
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
    /// An older copy of a device that is there, too.
    #[error(
        "{device} is an older copy of {newer}, device {id} of the volume; give {newer}, or move one \
         of them elsewhere"
    )]
    OlderCopy {
        /// It.
        device: String,
        /// The number of the device.
        id: DeviceId,
        /// The newer one.
        newer: String,
    },
    /// The target of a replacement without a device of the volume.
    #[error(
        "{0} is the target of the kernel's replacement of a device, which was interrupted; give the \
         devices of the volume, too"
    )]
    OnlyTarget(String),
    /// A device that lacks what was written while it was away.
    #[error(
        "{device}, device {id} of the volume, has an old state: it is of generation {found}, the \
         volume of {newest}, and it lacks what was written since; leave it out and go on without it \
         (mount -o degraded), or replace it"
    )]
    Stale {
        /// It.
        device: String,
        /// Its number.
        id: DeviceId,
        /// Its generation.
        found: Generation,
        /// That of the volume. While a device is away, numbers are left out,
        /// so the difference does not count commits.
        newest: Generation,
    },
    /// A seed that changed after the volume grew from it.
    #[error(
        "{device}, device {id} of the volume, is a seed that changed since the volume grew from it: \
         its generation was {expected} and is {found}; give the unchanged one"
    )]
    SeedChanged {
        /// It.
        device: String,
        /// Its number.
        id: DeviceId,
        /// Its generation by its item.
        expected: Generation,
        /// Its generation by its superblock.
        found: Generation,
    },
    /// The volume grew from too many others.
    #[error("the volume grew from {0} others; ButterFS reads such of {max} at most", max = Seeds::MAX)]
    TooManySeeds(usize),
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
