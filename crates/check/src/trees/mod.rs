//! The trees that say where everything else is.

pub(crate) mod log;
pub(crate) mod quotas;
pub(crate) mod roots;
pub(crate) mod uuids;

use crate::budget::Taken;
use crate::walk::{Leaf, Visitor};
use butterfs_format::{ItemType, Key};

/// Items of a small tree.
pub(crate) type Items = Vec<(Key, Box<[u8]>)>;

/// Bytes of memory for an item beside its data: in a list and in the maps
/// that are made of it.
const ITEM_BYTES: u64 = 128;

/// Takes the items of a small tree as they are.
pub(crate) struct ItemList<'t> {
    pub(crate) wanted: fn(ItemType) -> bool,
    pub(crate) taken: &'t Taken,
}

impl<'t> ItemList<'t> {
    /// Takes all items.
    pub(crate) fn all(taken: &'t Taken) -> Self {
        let wanted = |_| true;
        Self { wanted, taken }
    }

    /// Takes the memory of an item, as it is and parsed.
    fn take(&self, data: &[u8]) {
        let length = u64::try_from(data.len()).unwrap_or(u64::MAX);
        self.taken
            .add(length.saturating_mul(2).saturating_add(ITEM_BYTES));
    }
}

impl Visitor for ItemList<'_> {
    type Summary = Items;

    fn leaf(&self, leaf: &Leaf<'_>) -> Items {
        leaf.items()
            .filter(|(key, _)| (self.wanted)(key.item_type))
            .map(|(key, data)| {
                self.take(data);
                (key, data.into())
            })
            .collect()
    }

    fn join(&self, mut left: Items, right: Items) -> Items {
        left.extend(right);
        left
    }

    fn gap(&self) -> Items {
        Items::new()
    }
}
