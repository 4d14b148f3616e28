//! The copies of a superblock on one device.

use crate::error::StoreError;
use butterfs_device::BlockDevice;
use butterfs_format::DeviceOffset;
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{self, Superblock};

/// A superblock as it was found on a device.
#[derive(Debug)]
pub struct FoundSuperblock {
    /// The newest valid copy.
    pub superblock: Superblock,
    /// What is wrong with the copies before this one.
    pub damaged: Vec<String>,
}

/// Reads the superblock of a device: the primary copy, or the newest valid
/// mirror when that one is damaged.
///
/// # Errors
/// [`StoreError::NoSuperblock`]
pub fn read_superblock(device: &dyn BlockDevice) -> Result<FoundSuperblock, StoreError> {
    let mut damaged = Vec::new();
    let mut best: Option<Superblock> = None;
    for offset in superblock::COPIES {
        if offset.saturating_add(superblock::SIZE as u64).get() > device.size() {
            break;
        }
        let mut bytes = vec![0; superblock::SIZE];
        let parsed = device
            .read_at(offset, &mut bytes)
            .map_err(|error| error.to_string())
            .and_then(|()| Superblock::parse(&bytes, offset).map_err(|e| e.to_string()));
        match parsed {
            Ok(found) if offset == superblock::COPIES[0] => {
                return Ok(FoundSuperblock {
                    superblock: found,
                    damaged,
                });
            }
            Ok(found) => {
                if best
                    .as_ref()
                    .is_none_or(|b| b.generation < found.generation)
                {
                    best = Some(found);
                }
            }
            Err(reason) => damaged.push(format!("copy at {offset}: {reason}")),
        }
    }
    match best {
        Some(superblock) => {
            tracing::warn!(
                device = device.identity(),
                ?damaged,
                "the primary superblock is damaged; a mirror is used"
            );
            Ok(FoundSuperblock {
                superblock,
                damaged,
            })
        }
        None => Err(StoreError::NoSuperblock {
            device: device.identity(),
            reason: if damaged.is_empty() {
                "it is too small for one".to_owned()
            } else {
                let copies = damaged.join("; ");
                format!("{copies}; `butterfs info` says what it holds instead")
            },
        }),
    }
}

/// Whether all copies on a device are those of one commit.
pub(super) fn copies_agree(device: &dyn BlockDevice, superblock: &Superblock) -> bool {
    superblock::COPIES.iter().all(|offset| {
        if !has_room(device, &superblock.device, *offset) {
            return true;
        }
        let mut bytes = vec![0; superblock::SIZE];
        device.read_at(*offset, &mut bytes).is_ok()
            && Superblock::parse(&bytes, *offset)
                .is_ok_and(|copy| copy.generation == superblock.generation)
    })
}

/// The copy of the superblock at an offset; `None` where the device has none.
pub(crate) fn read_copy_of_superblock(
    device: &dyn BlockDevice,
    item: &DeviceItem,
    offset: DeviceOffset,
) -> Option<Result<Superblock, String>> {
    if !has_room(device, item, offset) {
        return None;
    }
    let mut bytes = vec![0; superblock::SIZE];
    let read = device.read_at(offset, &mut bytes);
    let parsed = read.map_err(|error| error.to_string());
    Some(parsed.and_then(|()| Superblock::parse(&bytes, offset).map_err(|e| e.to_string())))
}

/// Whether a copy of the superblock lies within what the volume has of a
/// device. Behind that, the file or device may be cut off.
pub(crate) fn has_room(device: &dyn BlockDevice, item: &DeviceItem, offset: DeviceOffset) -> bool {
    let end = device.size().min(item.total_bytes);
    offset.saturating_add(superblock::SIZE as u64).get() <= end
}
