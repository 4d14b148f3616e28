//! The item in the tree of roots that says what is being balanced, so that a
//! balance which was interrupted goes on, here or in the kernel.

use crate::engine::Engine;
use crate::error::{StoreError, bad_item};
use crate::space::kind::SpaceKind;
use crate::{Purpose, Store};
use butterfs_format::TreeId;
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::item::state::BalanceItem;

/// Nodes that a change of the item touches.
const NODES: usize = 16;

/// While this lives, new space is allocated with other profiles.
#[derive(Debug)]
pub struct NewProfiles<'s>(&'s Store);

impl Drop for NewProfiles<'_> {
    fn drop(&mut self) {
        let mut engine = self.0.change();
        for kind in [SpaceKind::Data, SpaceKind::Metadata, SpaceKind::System] {
            engine.set_profile_of_new_chunks(kind, None);
        }
    }
}

impl Engine {
    /// The balance that was begun and has not ended.
    ///
    /// # Errors
    /// Damage, reading.
    pub fn balance_item(&self) -> Result<Option<BalanceItem>, StoreError> {
        let key = BalanceItem::key();
        let Some((leaf, slot)) = butterfs_tree::find(self, TreeId::ROOT, &key)? else {
            return Ok(None);
        };
        let item = BalanceItem::parse(leaf.data(slot));
        item.map(Some)
            .map_err(|error| bad_item(TreeId::ROOT, key, &error))
    }
}

impl Store {
    /// Notes what is being balanced, or that nothing is any more, durably.
    ///
    /// # Errors
    /// The volume is not writable; no space; reading or writing failed.
    pub fn set_balance_item(&self, item: Option<&BalanceItem>) -> Result<(), StoreError> {
        let key = BalanceItem::key();
        self.commit_for((NODES, Purpose::Shrink), |engine| {
            match item {
                Some(item) => {
                    butterfs_tree::replace(engine, TreeId::ROOT, &key, &item.encode())?;
                }
                None => {
                    butterfs_tree::remove(engine, TreeId::ROOT, &key)?;
                }
            }
            Ok(())
        })
    }

    /// From now on allocates with these profiles, where there is space for
    /// them.
    ///
    /// # Errors
    /// Not writable.
    pub fn convert_new(
        &self,
        profiles: &[(SpaceKind, BlockGroupFlags)],
    ) -> Result<NewProfiles<'_>, StoreError> {
        let mut engine = self.change_writable()?;
        for (kind, profile) in profiles {
            engine.set_profile_of_new_chunks(*kind, Some(*profile));
        }
        drop(engine);
        Ok(NewProfiles(self))
    }
}
