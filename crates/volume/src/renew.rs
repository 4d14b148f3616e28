//! Bringing the copies of a device that was away up to date.

use crate::error::VolumeError;
use crate::healing::pieces_of;
use crate::memory_of;
use crate::space::LogicalSpace;
use butterfs_format::{DeviceId, Logical, Physical};
use std::collections::BTreeSet;

impl LogicalSpace {
    /// Makes the copies of a range on the devices `behind` the same as those
    /// on other devices, and returns the bytes that differed. What no other
    /// device has, or can read, stays as it is. So do rows with parity: a crash
    /// may have torn a parity, and what is rebuilt from it may be worse than what
    /// is there.
    ///
    /// Nothing else may write the range meanwhile.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`]; those of [`LogicalSpace::write`].
    pub fn renew(
        &self,
        logical: Logical,
        length: u64,
        behind: &BTreeSet<DeviceId>,
    ) -> Result<u64, VolumeError> {
        let is_behind = |copy: &Physical| behind.contains(&copy.device);
        let (mut good, mut there) = (Vec::new(), Vec::new());
        let mut renewed = 0_u64;
        for piece in pieces_of(&self.map(), logical, memory_of(length))? {
            let copies = &piece.mapping.copies;
            let (old, others): (Vec<_>, Vec<_>) =
                (0..copies.len()).partition(|index| copies.get(*index).is_some_and(is_behind));
            if old.is_empty() {
                continue;
            }
            good.resize(piece.length(), 0);
            there.resize(piece.length(), 0);
            let mut read = |copy| self.read_copy(piece.logical, copy, &mut good).is_ok();
            if !others.into_iter().any(&mut read) {
                continue;
            }
            let mut is_same = |copy| {
                let read = self.read_copy(piece.logical, copy, &mut there);
                read.is_ok() && there == good
            };
            if !old.into_iter().all(&mut is_same) {
                self.write(piece.logical, &good)?;
                renewed = renewed.saturating_add(piece.mapping.length);
            }
        }
        Ok(renewed)
    }
}
