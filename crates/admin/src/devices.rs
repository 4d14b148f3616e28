//! Devices that come to a volume, leave it, or take each other's place.
//!
//! Owns the order of steps of each, and what a wished end leaves. The store
//! keeps the volume whole between them: a crash at any point leaves the volume
//! with the device or without it.

use crate::mkfs;
use crate::resize::{self, Emptied, Progress};
use butterfs_device::{Access, BlockDevice, DeviceRange};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_store::{
    ExclusiveKind, GroupCopied, MembershipFault, OpenOptions, RemovedDevice, Store, StoreError,
};
use butterfs_volume::MemberState;
pub use butterfs_volume::TwinReads;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Whether what was on a new device is discarded first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// It is, where the device can.
    #[default]
    Whole,
    /// It is not.
    Nothing,
}

/// How a removal ended.
#[derive(Clone, Debug)]
pub enum Removal {
    /// The device is gone.
    Removed(RemovedDevice),
    /// Somebody wished for an end: the device stays, with what has not moved.
    Stopped,
}

/// How far a replacement is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaceProgress {
    /// Bytes of block groups that lie on the device, in logical space.
    pub bytes_expected: u64,
    /// Those that are done.
    pub bytes_done: u64,
    /// Bytes that the target got.
    pub copied: u64,
    /// Sectors of which no copy is good.
    pub uncorrectable: u64,
}

/// How a replacement ended.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// The target has the device's place.
    Done {
        /// The device that had it.
        former: RemovedDevice,
        /// What was done.
        progress: ReplaceProgress,
    },
    /// Somebody wished for an end: the device stays.
    Stopped,
}

/// Takes from a device what says what it held, before it becomes one of a
/// volume.
///
/// # Errors
/// Writing.
pub fn prepare(device: &dyn BlockDevice, discard: Discard) -> Result<(), StoreError> {
    if discard == Discard::Whole {
        // Advisory: not every device can.
        let _ = device.discard(DeviceRange::new(DeviceOffset(0), device.size()));
    }
    mkfs::wipe(device)?;
    Ok(device.flush()?)
}

/// Adds a device to the volume; what was on it is lost.
///
/// # Errors
/// As [`Store::add_device`]; something else of its kind is under way.
pub fn add(
    store: &Store,
    device: Arc<dyn BlockDevice>,
    discard: Discard,
) -> Result<DeviceId, StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Add)?;
    store.check_writable()?;
    Store::verify_new_device(&*device)?;
    prepare(&*device, discard)?;
    store.add_device(device)
}

/// Makes a volume that grows from the seed on `seeds`, with `device` as its own;
/// what was on that is lost, and the seed stays as it is. Gives the number of
/// the new device.
///
/// # Errors
/// As [`Store::sprout`].
pub fn sprout(
    seeds: Vec<Arc<dyn BlockDevice>>,
    device: Arc<dyn BlockDevice>,
    discard: Discard,
) -> Result<DeviceId, StoreError> {
    Store::verify_new_device(&*device)?;
    // That there is a seed is seen before the device is touched.
    let reading = OpenOptions {
        access: Access::ReadOnly,
        ..OpenOptions::default()
    };
    drop(Store::open_all(seeds.clone(), &reading)?);
    prepare(&*device, discard)?;
    let (store, id) = Store::sprout(seeds, device, &OpenOptions::default())?;
    store.close_if_clean()?;
    Ok(id)
}

/// The first device that is missing.
///
/// # Errors
/// [`MembershipFault::NoneMissing`]
pub fn first_missing(store: &Store) -> Result<DeviceId, StoreError> {
    let devices = store.read().devices();
    let mut missing = devices
        .iter()
        .filter(|device| device.state == MemberState::Missing);
    match missing.next() {
        Some(device) => Ok(device.item.id),
        None => Err(MembershipFault::NoneMissing.into()),
    }
}

/// Moves all that lies on a device to the others, and takes it out of the
/// volume. `watch` is told while something moves, and may end it.
///
/// # Errors
/// [`MembershipFault`]: nothing changed. [`StoreError::NoSpace`]: the device
/// stays, what moved stays moved. Damage, reading, writing.
pub fn remove(
    store: &Store,
    device: DeviceId,
    watch: &mut dyn FnMut(&Progress) -> ControlFlow<()>,
) -> Result<Removal, StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Remove)?;
    store.check_writable()?;
    store.read().verify_removal(device)?;
    store.read().verify_room_without(device)?;
    let _end = store.end_device_at(device, 0)?;
    if resize::empty(store, device, 0, watch)? == Emptied::Stopped {
        return Ok(Removal::Stopped);
    }
    store.remove_device(device).map(Removal::Removed)
}

/// Has `target` take the place of a device; what was on it is lost. `watch` is
/// told after each step, and may end it.
///
/// # Errors
/// The target is too small: nothing changed. The target fails, data without
/// checksums cannot be read: the device stays. Those of a commit.
pub fn replace(
    store: &Store,
    device: DeviceId,
    target: Arc<dyn BlockDevice>,
    (reads, discard): (TwinReads, Discard),
    watch: &mut dyn FnMut(&ReplaceProgress) -> ControlFlow<()>,
) -> Result<Replaced, StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Replace)?;
    store.check_writable()?;
    store.verify_target(device, &*target)?;
    prepare(&*target, discard)?;
    let replacement = store.begin_replace(device, target, reads)?;
    let groups = replacement.groups();
    let mut progress = ReplaceProgress {
        bytes_expected: groups.iter().map(|(_, length)| length).sum(),
        ..ReplaceProgress::default()
    };
    for (group, length) in groups {
        let before = progress;
        let mut copied = GroupCopied::default();
        loop {
            if watch(&progress).is_break() {
                replacement.cancel()?;
                return Ok(Replaced::Stopped);
            }
            let is_done = replacement.copy_step(group, &mut copied)?;
            progress.bytes_done = before.bytes_done + copied.done.min(length);
            progress.copied = before.copied + copied.copied;
            progress.uncorrectable = before.uncorrectable + copied.uncorrectable;
            if is_done {
                break;
            }
        }
        progress.bytes_done = before.bytes_done + length;
    }
    let _ = watch(&progress);
    let former = replacement.finish(progress.uncorrectable)?;
    Ok(Replaced::Done { former, progress })
}
