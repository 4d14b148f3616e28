//! Adding, removing and replacing devices of a volume.
//!
//! Owns the order of the steps, and what is left if the caller stops them. The
//! store keeps the volume consistent between the steps: after a crash at any
//! point, the volume either has the device or not.

use crate::mkfs;
use crate::resize::{self, Emptied, Progress};
use butterfs_device::{Access, BlockDevice, DeviceRange};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_store::{
    ExclusiveKind, GroupCopied, MembershipFault, OpenOptions, RemovedDevice, Replacement, Store,
    StoreError,
};
use butterfs_volume::MemberState;
pub use butterfs_volume::ReplaceReads;
use std::ops::ControlFlow;
use std::sync::Arc;

/// Whether a new device is discarded first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// The whole device is discarded, if it supports that.
    #[default]
    Whole,
    /// Nothing is discarded.
    Nothing,
}

/// How a removal ended.
#[derive(Clone, Debug)]
pub enum Removal {
    /// The device was removed.
    Removed(RemovedDevice),
    /// The caller stopped it. The device stays, with what was not moved yet.
    Stopped,
}

/// The progress of a replacement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaceProgress {
    /// Bytes (of logical space) of the block groups that lie on the device.
    pub bytes_expected: u64,
    /// Bytes of them that are done.
    pub bytes_done: u64,
    /// Bytes that were copied to the target.
    pub copied: u64,
    /// Sectors that have no good copy.
    pub uncorrectable: u64,
}

/// How a replacement ended.
#[derive(Clone, Debug)]
pub enum Replaced {
    /// The target has replaced the device.
    Done {
        /// The device that was replaced.
        former: RemovedDevice,
        /// What was done.
        progress: ReplaceProgress,
    },
    /// The caller stopped it. The device stays.
    Stopped,
}

/// Removes the signatures of what a device held, before it joins a volume.
///
/// # Errors
/// [`StoreError::Device`] if the device cannot be written.
pub fn prepare(device: &dyn BlockDevice, discard: Discard) -> Result<(), StoreError> {
    if discard == Discard::Whole {
        // Not every device supports this, so an error does not matter.
        let _ = device.discard(DeviceRange::new(DeviceOffset(0), device.size()));
    }
    mkfs::wipe(device)?;
    Ok(device.flush()?)
}

/// Adds a device to the volume. What was on it is lost.
///
/// # Errors
/// As [`Store::begin_exclusive`] and [`Store::add_device`]; also if the device
/// cannot join a volume or cannot be written.
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

/// Makes a volume that grows from the seed on `seeds`, with `device` as its own
/// device. What was on `device` is lost; the seed stays as it is. Returns the
/// number of the new device.
///
/// # Errors
/// As [`Store::sprout`]; also if the device cannot join a volume or cannot be
/// written.
pub fn sprout(
    seeds: Vec<Arc<dyn BlockDevice>>,
    device: Arc<dyn BlockDevice>,
    discard: Discard,
) -> Result<DeviceId, StoreError> {
    Store::verify_new_device(&*device)?;
    // Makes sure that the seed can be opened before the device is changed.
    let reading = OpenOptions {
        access: Access::ReadOnly,
        ..OpenOptions::default()
    };
    drop(Store::open_all(seeds.clone(), &reading)?);
    prepare(&*device, discard)?;
    let (store, id) = Store::grow_from_seed(seeds, device, &OpenOptions::default())?;
    store.close_if_clean()?;
    Ok(id)
}

/// Returns the first missing device or, if none is missing, the first stale one:
/// the volume goes on without it, too.
///
/// # Errors
/// [`MembershipFault::NoneMissing`] if no device is missing or stale.
pub fn first_missing(store: &Store) -> Result<DeviceId, StoreError> {
    let devices = store.read().devices();
    let first = |state: MemberState| devices.iter().find(|device| device.state == state);
    match first(MemberState::Missing).or_else(|| first(MemberState::Stale)) {
        Some(device) => Ok(device.item.id),
        None => Err(MembershipFault::NoneMissing.into()),
    }
}

/// Moves everything on a device to the others, and removes the device from the
/// volume. Calls `watch` with the progress; `watch` may stop the removal.
///
/// # Errors
/// - [`MembershipFault`] if the device cannot be removed; nothing changed.
/// - [`StoreError::NoSpace`] if the others have no space. The device stays; what
///   was moved stays where it is now.
/// - Another [`StoreError`] if the volume is damaged, or if reading or writing
///   fails.
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

/// Replaces a device by `target`. What was on `target` is lost. Calls `watch`
/// with the progress before each step; `watch` may stop the replacement.
///
/// # Errors
/// - [`MembershipFault`] if `target` is too small or cannot replace the device;
///   nothing changed.
/// - Another [`StoreError`] if `target` fails, if data without checksums cannot be
///   read, or if a commit fails. The device stays, and the volume notes that the
///   replacement was cancelled.
pub fn replace(
    store: &Store,
    device: DeviceId,
    target: Arc<dyn BlockDevice>,
    (reads, discard): (ReplaceReads, Discard),
    watch: &mut dyn FnMut(&ReplaceProgress) -> ControlFlow<()>,
) -> Result<Replaced, StoreError> {
    let _alone = store.begin_exclusive(ExclusiveKind::Replace)?;
    store.check_writable()?;
    store.verify_target(device, &*target)?;
    prepare(&*target, discard)?;
    let replacement = store.begin_replace(device, target, reads)?;
    let mut progress = ReplaceProgress::default();
    match copy_groups(&replacement, &mut progress, watch) {
        Ok(ControlFlow::Continue(())) => {}
        Ok(ControlFlow::Break(())) => {
            replacement.cancel(progress.uncorrectable)?;
            return Ok(Replaced::Stopped);
        }
        Err(error) => {
            // The first error says more than one of this commit.
            let _ = replacement.cancel(progress.uncorrectable);
            return Err(error);
        }
    }
    let _ = watch(&progress);
    let former = replacement.finish(progress.uncorrectable)?;
    Ok(Replaced::Done { former, progress })
}

/// Copies all block groups that lie on the device.
fn copy_groups(
    replacement: &Replacement<'_>,
    progress: &mut ReplaceProgress,
    watch: &mut dyn FnMut(&ReplaceProgress) -> ControlFlow<()>,
) -> Result<ControlFlow<()>, StoreError> {
    let groups = replacement.groups();
    progress.bytes_expected = groups.iter().map(|(_, length)| length).sum();
    for (group, length) in groups {
        let before = *progress;
        let mut copied = GroupCopied::default();
        loop {
            if watch(progress).is_break() {
                return Ok(ControlFlow::Break(()));
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
    Ok(ControlFlow::Continue(()))
}
