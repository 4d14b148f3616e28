//! Where the RAID stripe tree says that data lie.

use butterfs_format::item::raid_stripe::RaidStripe;
use butterfs_format::{Logical, Physical};
use std::collections::BTreeMap;

/// The items of a RAID stripe tree.
#[derive(Clone, Debug, Default)]
pub struct StripeExtents {
    /// By the beginning of each range: its length in bytes, and its places.
    extents: BTreeMap<Logical, (u64, Vec<Physical>)>,
}

impl StripeExtents {
    /// Adds the item for the `length` bytes from `logical` on.
    pub fn insert(&mut self, logical: Logical, length: u64, item: RaidStripe) {
        self.extents.insert(logical, (length, item.copies));
    }

    /// How many bytes from `logical` on the item covers, and where the first of
    /// them lies, with one place for each copy. `None` if no item covers it, or
    /// if its item does not have `copies` places.
    pub(crate) fn find(&self, logical: Logical, copies: usize) -> Option<(u64, Vec<Physical>)> {
        let (start, (length, places)) = self.extents.range(..=logical).next_back()?;
        let within = logical.get().checked_sub(start.get())?;
        let left = length.checked_sub(within).filter(|left| *left > 0)?;
        if places.len() != copies {
            return None;
        }
        let places = places.iter().map(|place| {
            let offset = place.offset.checked_add(within)?;
            Some(Physical { offset, ..*place })
        });
        Some((left, places.collect::<Option<Vec<_>>>()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::{DeviceId, DeviceOffset};

    #[test]
    fn a_byte_lies_in_the_range_that_covers_it() {
        let place = |device, offset| Physical {
            device: DeviceId(device),
            offset: DeviceOffset(offset),
        };
        let mut extents = StripeExtents::default();
        let copies = vec![place(1, 1000), place(2, 5000)];
        extents.insert(Logical(100), 50, RaidStripe { copies });
        assert_eq!(extents.find(Logical(99), 2), None);
        assert_eq!(
            extents.find(Logical(120), 2),
            Some((30, vec![place(1, 1020), place(2, 5020)]))
        );
        assert_eq!(extents.find(Logical(150), 2), None);
        assert_eq!(extents.find(Logical(120), 3), None, "a place is missing");
    }
}
