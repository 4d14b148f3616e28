//! What is wrong with chunks, block groups and devices.

use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{DeviceId, DeviceOffset, Logical};
use thiserror::Error;

/// A contradiction between the descriptions of space.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpaceFault {
    /// A device item says that it is of another volume.
    #[error("the item of device {0} belongs to another volume")]
    DeviceOfOtherVolume(DeviceId),
    /// A device item has another UUID than its device.
    #[error("the item of device {0} has another UUID than the device")]
    DeviceUuid(DeviceId),
    /// A device item has another number than its key.
    #[error("the item of device {key} says that it is of device {found}")]
    DeviceNumber {
        /// Number in its key.
        key: DeviceId,
        /// Number in it.
        found: DeviceId,
    },
    /// A device has no item.
    #[error("device {0} has no item in the chunk tree")]
    NoDeviceItem(DeviceId),
    /// A device item has more bytes than the device.
    #[error(
        "{name}, device {device} of the volume, has {size} bytes, but its item says {found}: it was \
         cut short; {}", advice(*.device, *.beyond)
    )]
    DeviceSize {
        /// Device.
        device: DeviceId,
        /// Where it is.
        name: String,
        /// Bytes that the item says.
        found: u64,
        /// Bytes that there are.
        size: u64,
        /// Chunks that reach beyond the end of the device.
        beyond: usize,
    },
    /// More of a device is used than it has.
    #[error("the item of device {device} says that {used} of {size} bytes are used")]
    DeviceUsed {
        /// Device.
        device: DeviceId,
        /// Bytes in chunks.
        used: u64,
        /// Bytes.
        size: u64,
    },
    /// The superblock gives the volume fewer bytes than the device items have
    /// together.
    #[error(
        "the superblock says {found} bytes, but the device items have {devices} (it can be \
         mounted with -o ro)"
    )]
    VolumeSize {
        /// Bytes that the superblock says.
        found: u64,
        /// Bytes of all device items.
        devices: u64,
    },
    /// A stripe names its device by another UUID.
    #[error("a stripe of the chunk at logical {chunk} has another UUID than its device {device}")]
    StripeUuid {
        /// Chunk.
        chunk: Logical,
        /// Device.
        device: DeviceId,
    },
    /// A device extent belongs to something other than the chunk tree, or to no
    /// chunk.
    #[error("the device extent at {offset} of device {device} is not one of the chunk tree")]
    ExtentKind {
        /// Device.
        device: DeviceId,
        /// Where it begins.
        offset: DeviceOffset,
    },
    /// A device extent names a chunk that is not there.
    #[error(
        "the device extent at {offset} of device {device} belongs to a chunk at logical {chunk}, \
         which does not exist"
    )]
    ExtentWithoutChunk {
        /// Device.
        device: DeviceId,
        /// Where it begins.
        offset: DeviceOffset,
        /// Chunk that it names.
        chunk: Logical,
    },
    /// A device extent has another length than the stripes of its chunk.
    #[error(
        "the device extent at {offset} of device {device} has {found} bytes, but the stripes of \
         its chunk at logical {chunk} have {expected}"
    )]
    ExtentLength {
        /// Device.
        device: DeviceId,
        /// Where it begins.
        offset: DeviceOffset,
        /// Chunk.
        chunk: Logical,
        /// Bytes that it says.
        found: u64,
        /// Bytes of a stripe.
        expected: u64,
    },
    /// A chunk has no stripe where a device extent says.
    #[error(
        "the device extent at {offset} of device {device} is no stripe of its chunk at logical \
         {chunk}"
    )]
    ExtentWithoutStripe {
        /// Device.
        device: DeviceId,
        /// Where it begins.
        offset: DeviceOffset,
        /// Chunk that it names.
        chunk: Logical,
    },
    /// A stripe has no device extent.
    #[error(
        "the stripe at {offset} of device {device} of the chunk at logical {chunk} has no device \
         extent"
    )]
    StripeWithoutExtent {
        /// Chunk.
        chunk: Logical,
        /// Device.
        device: DeviceId,
        /// Where the stripe begins.
        offset: DeviceOffset,
    },
    /// A block group has no chunk of its address and length.
    #[error("the block group at logical {group} (+{length}) has no such chunk")]
    GroupWithoutChunk {
        /// Block group.
        group: Logical,
        /// Its bytes.
        length: u64,
    },
    /// A block group holds something else than its chunk.
    #[error(
        "the block group at logical {group} holds {}, but its chunk {}",
        .found.names().join("|"), .expected.names().join("|")
    )]
    GroupType {
        /// Block group.
        group: Logical,
        /// What it holds.
        found: BlockGroupFlags,
        /// What its chunk holds.
        expected: BlockGroupFlags,
    },
    /// A block group item that names no chunk, or has more used than there is.
    #[error("the block group at logical {group} has impossible numbers")]
    GroupNumbers {
        /// Block group.
        group: Logical,
    },
}

/// What to do about a device that is shorter than its item says.
fn advice(device: DeviceId, beyond: usize) -> String {
    match beyond {
        0 => format!(
            "nothing lies beyond its end, and `butterfs filesystem resize {device}:max` ends the \
             volume there"
        ),
        _ => format!(
            "{beyond} of its chunks reach beyond its end; get a complete copy, or leave it out \
             (-o degraded, and device= for each of the others) and replace it; -o ro reads what is \
             left"
        ),
    }
}
