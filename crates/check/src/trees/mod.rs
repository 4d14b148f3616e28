//! The tree of roots, the trees of UUIDs and quotas, and the fsync log.

pub(crate) mod log;
pub(crate) mod quotas;
pub(crate) mod roots;
pub(crate) mod uuids;

use crate::budget::Taken;
use crate::walk::{Leaf, Visitor};
use butterfs_format::{ItemType, Key};

/// Items of a small tree.
pub(crate) type Items = Vec<(Key, Box<[u8]>)>;

/// Bytes of memory for an item, without its data. It is in a list and in the
/// maps that are made from the list.
const ITEM_BYTES: u64 = 128;

/// Copies the items of a small tree.
pub(crate) struct ItemList<'t> {
    pub(crate) wanted: fn(ItemType) -> bool,
    pub(crate) taken: &'t Taken,
}

impl<'t> ItemList<'t> {
    /// Copies all items.
    pub(crate) fn all(taken: &'t Taken) -> Self {
        let wanted = |_| true;
        Self { wanted, taken }
    }

    /// Takes the memory of an item, for its copy and its parsed form.
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
