//! The RAID stripe tree, which is only read.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use butterfs_format::features::Incompat;
use butterfs_format::item::raid_stripe::RaidStripe;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_tree::Cursor;
use butterfs_volume::StripeExtents;

impl Engine {
    /// Reads the RAID stripe tree, if the volume has one, so that data are read
    /// from where it says. All of it stays in memory.
    ///
    /// # Errors
    /// Damage of the tree, reading.
    pub(super) fn load_stripe_extents(&self) -> Result<(), StoreError> {
        if !self.has_stripe_tree() {
            return Ok(());
        }
        let mut extents = StripeExtents::default();
        let mut cursor = Cursor::seek_in(self, TreeId::RAID_STRIPE, &Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.item_type == ItemType::RAID_STRIPE {
                let item = RaidStripe::parse(data);
                let item = item.map_err(|error| bad_item(TreeId::RAID_STRIPE, key, &error))?;
                extents.insert(Logical(key.objectid), key.offset, item);
            }
            cursor.next()?;
        }
        let map = self.space.map().with_stripe_extents(extents);
        self.space.set_map(map);
        Ok(())
    }

    /// True when a RAID stripe tree says where data lie.
    #[must_use]
    pub fn has_stripe_tree(&self) -> bool {
        let features = self.publication.superblock.incompat;
        features.contains(Incompat::RAID_STRIPE_TREE)
    }
}
