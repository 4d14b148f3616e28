//! The RAID stripe tree, which is only read.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::rescue;
use butterfs_format::features::Incompat;
use butterfs_format::item::raid_stripe::RaidStripe;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use butterfs_volume::StripeExtents;

impl Engine {
    /// Reads the RAID stripe tree, if the volume has one, so that data are read
    /// from where it says. All of it stays in memory. Data that a damaged part of
    /// the tree would locate cannot be read; everything else can.
    ///
    /// # Errors
    /// Reading, where it is not damage that fails it.
    pub(super) fn load_stripe_extents(&self) -> Result<(), StoreError> {
        if !self.has_stripe_tree() {
            return Ok(());
        }
        let mut extents = StripeExtents::default();
        let read = self.read_stripe_extents(&mut extents);
        let map = self.space.map().with_stripe_extents(extents);
        self.space.set_map(map);
        rescue::go_without(
            read,
            "data that a damaged part of the RAID stripe tree locates cannot be read",
        )
    }

    /// Reads what can be read; an item that does not parse is an error only at
    /// the end.
    fn read_stripe_extents(&self, extents: &mut StripeExtents) -> Result<(), StoreError> {
        let mut first = Ok(());
        let mut cursor = Cursor::seek_in(self, TreeId::RAID_STRIPE, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::RAID_STRIPE {
                match RaidStripe::parse(data) {
                    Ok(item) => extents.insert(Logical(key.objectid), key.offset, item),
                    Err(error) if first.is_ok() => {
                        first = Err(bad_item(TreeId::RAID_STRIPE, key, &error));
                    }
                    Err(_) => {}
                }
            }
            cursor.next()?;
        }
        first
    }

    /// True when a RAID stripe tree says where data lie.
    #[must_use]
    pub fn has_stripe_tree(&self) -> bool {
        let features = self.publisher.superblock().incompat;
        features.contains(Incompat::RAID_STRIPE_TREE)
    }
}
