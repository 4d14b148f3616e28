//! Making all copies of the superblock equal.
//!
//! A crash may leave copies that differ, and a killed program leaves copies of
//! which nobody knows whether they are durable. If a commit began from there, it
//! would write over what an older copy names. Then the power fails while it
//! writes the primary copy, and only the older copy is left. So before an open
//! volume is changed in any way, all copies are the same and durable. Scrub
//! rewrites bad copies in the same way. If a fsync log waits for its replay, it is
//! verified first: if it lies, nothing is written.
//!
//! The copy by which a device was opened is written last, when all others are
//! durable. So each device has a whole copy at every moment.

use crate::Store;
use crate::commit::DeviceItems;
use crate::commit::devices::write_superblocks_at;
use crate::error::StoreError;
use crate::open::superblocks::read_copy_of_superblock;
use butterfs_format::superblock::{COPIES, Superblock};
use butterfs_format::{DeviceId, DeviceOffset};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A copy of the superblock: its device, and where it lies there.
pub(crate) type CopyPlace = (DeviceId, DeviceOffset);

/// Whether a copy says what `superblock` says. It names its own place and
/// device, and the device's item may be a little older in it.
fn says_the_same(copy: &Superblock, superblock: &Superblock) -> bool {
    let (own, wanted) = (&copy.device, &superblock.device);
    let is_device =
        (own.id, own.uuid, own.total_bytes) == (wanted.id, wanted.uuid, wanted.total_bytes);
    is_device && copy.names_the_same(superblock)
}

impl Store {
    fn published(&self) -> (Superblock, DeviceItems) {
        let engine = self.engine.read();
        (
            engine.publisher.durable.clone(),
            Arc::clone(&engine.publisher.durable_devices),
        )
    }

    /// Makes all copies of the superblock on all devices say what the volume was
    /// opened by, durably. `chosen` has the offset of the copy that counted on
    /// each device. If all are equal, this is only a flush.
    ///
    /// # Errors
    /// Writing, flushing.
    pub(crate) fn make_copies_equal(
        &self,
        chosen: &BTreeMap<DeviceId, DeviceOffset>,
    ) -> Result<(), StoreError> {
        // Whoever wrote what was read may have been killed before its flush.
        self.flush()?;
        let (superblock, items) = self.published();
        let mut different: Vec<CopyPlace> = Vec::new();
        for (id, device) in self.space.own_devices() {
            let Some(item) = items.get(&id) else {
                continue;
            };
            let wanted = superblock.on_device(item);
            different.extend(COPIES.into_iter().filter_map(|offset| {
                let copy = read_copy_of_superblock(&*device, item, offset)?;
                let is_equal = copy.is_ok_and(|copy| says_the_same(&copy, &wanted));
                (!is_equal).then_some((id, offset))
            }));
        }
        if different.is_empty() {
            return Ok(());
        }
        tracing::info!(
            copies = different.len(),
            generation = superblock.generation.get(),
            "copies of the superblock differ, as after a crash; all are written anew"
        );
        let (last, first): (Vec<_>, Vec<_>) = different
            .into_iter()
            .partition(|(id, offset)| chosen.get(id) == Some(offset));
        self.rewrite_copies([&first, &last])
    }

    /// Does what opening left undone because a fsync log waited: makes all copies
    /// of the superblock equal. Must be called before nodes are written or space is
    /// discarded. The log is verified and replayed in memory then.
    ///
    /// # Errors
    /// Writing, flushing.
    pub(crate) fn settle_copies(&self) -> Result<(), StoreError> {
        // Others who are about to write wait here.
        let mut waiting = self.unequal_copies.lock();
        if let Some(chosen) = &*waiting {
            self.make_copies_equal(chosen)?;
            *waiting = None;
        }
        Ok(())
    }

    /// Writes the durable superblock to these places: to the second ones when
    /// the first ones are durable.
    ///
    /// # Errors
    /// Writing, flushing.
    pub(crate) fn rewrite_copies(&self, steps: [&[CopyPlace]; 2]) -> Result<(), StoreError> {
        let (superblock, items) = self.published();
        for places in steps.into_iter().filter(|places| !places.is_empty()) {
            let is_wanted = |id, offset| places.contains(&(id, offset));
            write_superblocks_at(&self.space, &superblock, &items, &is_wanted)?;
            self.flush()?;
        }
        Ok(())
    }
}
