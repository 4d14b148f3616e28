//! Resizing a device of a volume.
//!
//! Owns what a wanted size means, and the order of the steps. A device that grows
//! gets its new size at once. If a device shrinks, what lies beyond the new end is
//! moved first. The device keeps its size until all of that was moved, so the
//! volume stays consistent after a crash or if the caller stops.

use butterfs_format::{DeviceId, Logical};
use butterfs_store::{ExclusiveKind, RelocateEnd, Relocated, Store, StoreError};
use std::ops::ControlFlow;

/// The least size in bytes to which a device shrinks, as in the kernel.
pub const SIZE_MIN: u64 = 256 << 20;
/// The most rounds of moving. A later round moves what other operations put
/// beyond the new end during the one before.
const ROUNDS_MAX: usize = 8;

/// A wanted size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// The whole device.
    Max,
    /// This number of bytes.
    Exactly(u64),
    /// This number of bytes more than now.
    Plus(u64),
    /// This number of bytes less than now.
    Minus(u64),
}

impl Size {
    /// Returns it in bytes, for a device that has `old` of `room` bytes now.
    #[must_use]
    pub const fn bytes(self, old: u64, room: u64) -> u64 {
        match self {
            Self::Max => room,
            Self::Exactly(bytes) => bytes,
            Self::Plus(bytes) => old.saturating_add(bytes),
            Self::Minus(bytes) => old.saturating_sub(bytes),
        }
    }
}

/// The progress of emptying a device or its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Block groups to move.
    pub groups: usize,
    /// Block groups that were moved.
    pub moved: usize,
    /// Bytes left in the block group that is being moved.
    pub left: u64,
    /// Bytes left in all block groups to move.
    pub left_in_all: u64,
}

/// How a resize ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The device has the new size.
    Resized {
        /// The size before, in bytes.
        from: u64,
        /// The size now, in bytes.
        to: u64,
    },
    /// The caller stopped it. The device keeps its size.
    Stopped,
}

/// Returns the wanted size of a device in bytes, in whole sectors.
///
/// # Errors
/// [`StoreError::BadSize`] if the device cannot get that size; another
/// [`StoreError`] if the volume has no such device.
pub fn wanted(store: &Store, device: DeviceId, size: Size) -> Result<u64, StoreError> {
    let old = store.device_bytes(device)?;
    let block = store.space().device(device);
    // The device may have grown since it was opened.
    let room = block.map_or(0, |block| block.look_at_size());
    let wanted = size.bytes(old, room);
    let sector = store.read().sector_size();
    let wanted = wanted - wanted % sector;
    let bad = |reason: String| StoreError::BadSize {
        device,
        wanted,
        reason,
    };
    if wanted > room {
        return Err(bad(format!("it has {room}")));
    }
    // A device that was cut short has less than its volume already.
    if wanted < old && wanted < SIZE_MIN && room >= old {
        return Err(bad(format!("no device shrinks below {SIZE_MIN}")));
    }
    Ok(wanted)
}

/// Changes the size of a device. Calls `watch` with the progress while something
/// is moved; `watch` may stop the resize.
///
/// # Errors
/// - As [`wanted`] and [`Store::begin_exclusive`].
/// - [`StoreError::NoSpace`] if there is no space for what lies beyond the new
///   end.
/// - Another [`StoreError`] if the volume is damaged, or if reading or writing
///   fails.
pub fn resize(
    store: &Store,
    device: DeviceId,
    size: Size,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<End, StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Resize)?;
    store.verify_own(device)?;
    let from = store.device_bytes(device)?;
    let to = wanted(store, device, size)?;
    if to < from {
        let _end = store.end_device_at(device, to)?;
        if empty(store, device, to, watch)? == Emptied::Stopped {
            return Ok(End::Stopped);
        }
        store.set_device_size(device, to)?;
    } else if to > from {
        store.set_device_size(device, to)?;
    }
    Ok(End::Resized { from, to })
}

/// Shrinks each device of a volume to the end of its last chunk, also below
/// [`SIZE_MIN`]. Nothing is moved. A device without chunks stays as it is. This is
/// for volumes that shall take little space.
///
/// # Errors
/// As [`Store::begin_exclusive`]; another [`StoreError`] if there is no space for
/// a commit, or if reading or writing fails.
pub fn end_at_content(store: &Store) -> Result<(), StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Resize)?;
    let devices = store.read().devices();
    for facts in devices {
        let device = facts.item.id;
        let end = store.allocated_end(device);
        if end == 0 {
            continue;
        }
        // A commit may make a chunk. This keeps it below the new end.
        let _end = store.end_device_at(device, end)?;
        store.set_device_size(device, end)?;
    }
    Ok(())
}

/// How emptying a device or its end ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// No rounds are left, or nothing lies there any more.
    Whole,
    /// The caller stopped it.
    Stopped,
}

/// Moves the block groups that lie beyond `end` on a device. The caller must make
/// sure that no chunk is made there meanwhile.
pub(crate) fn empty(
    store: &Store,
    device: DeviceId,
    end: u64,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Emptied, StoreError> {
    let used = |groups: &[Logical]| -> u64 {
        let engine = store.read();
        let of = |group: &butterfs_store::BlockGroup| match groups.contains(&group.start) {
            true => group.used,
            false => 0,
        };
        engine.groups().map(of).sum()
    };
    let mut progress = Progress::default();
    for _ in 0..ROUNDS_MAX {
        let beyond = store.groups_beyond(device, end);
        if beyond.is_empty() {
            break;
        }
        progress.groups = progress.moved + beyond.len();
        for (index, start) in beyond.iter().enumerate() {
            let behind = used(beyond.get(index + 1..).unwrap_or_default());
            let ended = store.relocate_group(*start, &mut |relocated: &Relocated| {
                progress.left = relocated.left;
                progress.left_in_all = behind + relocated.left;
                watch(&progress)
            })?;
            if ended == RelocateEnd::Stopped {
                return Ok(Emptied::Stopped);
            }
            progress.moved += 1;
        }
    }
    Ok(Emptied::Whole)
}

/// Returns the bytes of a device that its volume uses, by its superblock.
///
/// # Errors
/// A [`StoreError`] if the device has no good superblock or cannot be read.
pub fn bytes_used(device: &dyn butterfs_device::BlockDevice) -> Result<u64, StoreError> {
    let found = butterfs_store::read_superblock(device)?;
    Ok(found.superblock.device.total_bytes)
}
