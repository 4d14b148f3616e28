//! Resizing a device of a volume.
//!
//! Owns what a wanted size means and the order of steps: a device that grows
//! has its new size at once; of one that shrinks, what lies beyond the new end
//! moves first. Until all of it has moved the device keeps its size, so a crash
//! or an end by wish leaves a volume as good as before.

use butterfs_format::{DeviceId, Logical};
use butterfs_store::{ExclusiveKind, RelocateEnd, Relocated, Store, StoreError};
use std::ops::ControlFlow;

/// No device shrinks below this, as in the kernel.
pub const SIZE_MIN: u64 = 256 << 20;
/// Rounds in which others may put something beyond the new end.
const ROUNDS_MAX: usize = 8;

/// A wanted size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// All that the device has.
    Max,
    /// So many bytes.
    Exactly(u64),
    /// So many more.
    Plus(u64),
    /// So many less.
    Minus(u64),
}

/// How far a device that shrinks is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Block groups that are to move.
    pub groups: usize,
    /// Those that have moved.
    pub moved: usize,
    /// Bytes that are left in the one that moves.
    pub left: u64,
    /// Bytes that are left in all of them.
    pub left_in_all: u64,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The device has the new size, in bytes.
    Resized {
        /// Before.
        from: u64,
        /// Now.
        to: u64,
    },
    /// Somebody wished for an end.
    Stopped,
}

/// The size that is wanted of a device, in whole sectors.
///
/// # Errors
/// The volume has no such device; a size that it cannot get.
pub fn wanted(store: &Store, device: DeviceId, size: Size) -> Result<u64, StoreError> {
    let old = store.device_bytes(device)?;
    let block = store.space().device(device);
    // It may have become larger since it was opened.
    let room = block.map_or(0, |block| block.look_at_size());
    let wanted = match size {
        Size::Max => room,
        Size::Exactly(bytes) => bytes,
        Size::Plus(bytes) => old.saturating_add(bytes),
        Size::Minus(bytes) => old.saturating_sub(bytes),
    };
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
    if wanted < old && wanted < SIZE_MIN {
        return Err(bad(format!("no device shrinks below {SIZE_MIN}")));
    }
    Ok(wanted)
}

/// Gives a device another size. `watch` is told while something moves, and may
/// end it.
///
/// # Errors
/// As [`wanted`]; [`StoreError::NoSpace`] where what lies beyond the new end
/// has no place before it; damage, reading, writing.
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

/// Ends each device of a volume where what is allocated there ends, also below
/// [`SIZE_MIN`]; nothing moves. A device without anything stays as it is. For volumes that shall take little space.
///
/// # Errors
/// Another operation of its kind runs; no space; reading, writing.
pub fn end_at_content(store: &Store) -> Result<(), StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Resize)?;
    let devices = store.read().devices();
    for facts in devices {
        let device = facts.item.id;
        let end = store.allocated_end(device);
        if end == 0 {
            continue;
        }
        // A commit may make a chunk.
        let _end = store.end_device_at(device, end)?;
        store.set_device_size(device, end)?;
    }
    Ok(())
}

/// Whether all moved that was to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptied {
    /// It did.
    Whole,
    /// Somebody wished for an end.
    Stopped,
}

/// Moves what lies beyond `end` of a device. No chunk is made there meanwhile,
/// which the caller sees to.
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

/// Bytes of a device that its volume uses, as its superblock says.
///
/// # Errors
/// There is no volume.
pub fn bytes_used(device: &dyn butterfs_device::BlockDevice) -> Result<u64, StoreError> {
    let found = butterfs_store::read_superblock(device)?;
    Ok(found.superblock.device.total_bytes)
}
