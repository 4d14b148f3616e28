//! Volumes that are a part of a device, and devices that hold something else.
//!
//! Owns which part of a device contains a volume. If a device holds no volume,
//! this module finds out which partitions hold one, or what the device holds
//! instead.

use crate::Error;
use crate::held::Held;
use butterfs_device::probe::{self, Found};
use butterfs_device::{Access, BlockDevice, DeviceRange, FileDevice, WindowDevice};
use butterfs_format::DeviceOffset;
use std::path::Path;
use std::sync::Arc;

/// Which part of a device contains a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// From this byte on.
    Offset(u64),
    /// The partition with this number in its partition table.
    Partition(u32),
}

impl Part {
    /// As a mount option; `None` for the whole device.
    #[must_use]
    pub fn option(self) -> Option<String> {
        match self {
            Self::Whole => None,
            Self::Offset(offset) => Some(format!("offset={offset}")),
            Self::Partition(number) => Some(format!("partition={number}")),
        }
    }
}

/// Opens a part of the file or block device at `path`.
///
/// # Errors
/// The device is busy or not there, or has no such part.
pub fn open_part(path: &Path, access: Access, part: Part) -> Result<Arc<dyn BlockDevice>, Error> {
    part_of(Arc::new(FileDevice::open(path, access)?), part)
}

/// A part of an open device.
///
/// # Errors
/// There is no such part; reading.
pub fn part_of(device: Arc<dyn BlockDevice>, part: Part) -> Result<Arc<dyn BlockDevice>, Error> {
    let range = match part {
        Part::Whole => return Ok(device),
        Part::Offset(offset) => {
            let length = device.size().saturating_sub(offset);
            DeviceRange::new(DeviceOffset(offset), length)
        }
        Part::Partition(number) => {
            let table = probe::partitions(&*device)?;
            let mut all = table.iter().flat_map(|table| &table.partitions);
            let found = all.find(|one| one.number == number);
            match found {
                Some(partition) => partition.range,
                None => {
                    return Err(Error::Holds {
                        device: device.identity(),
                        held: Held::NoPartition { number, table },
                    });
                }
            }
        }
    };
    Ok(Arc::new(WindowDevice::new(device, range)?))
}

/// What a device without a volume holds. `None` if nothing is recognized, or if
/// there are signs of Btrfs.
///
/// # Errors
/// Reading.
pub fn held_instead(device: &Arc<dyn BlockDevice>) -> Result<Option<Held>, Error> {
    let found = probe::contents(&**device)?;
    if found.contains(&BTRFS) {
        return Ok(None);
    }
    if let Some(table) = probe::partitions(&**device)? {
        let mut btrfs = Vec::new();
        for partition in table.partitions {
            let part = WindowDevice::new(Arc::clone(device), partition.range)?;
            if probe::contents(&part)?.contains(&BTRFS) {
                btrfs.push(partition);
            }
        }
        let table = table.kind;
        return Ok(Some(Held::Partitions { table, btrfs }));
    }
    Ok(found.first().copied().map(Held::Other))
}

const BTRFS: Found = Found::FileSystem("btrfs");
