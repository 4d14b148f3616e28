//! The trees that say where everything else is.

pub(crate) mod log;
pub(crate) mod quotas;
pub(crate) mod roots;
pub(crate) mod uuids;

use crate::walk::{Leaf, Visitor};
use butterfs_format::{ItemType, Key};

/// Items of a small tree.
pub(crate) type Items = Vec<(Key, Box<[u8]>)>;

/// Takes the items of a small tree as they are.
pub(crate) struct ItemList {
    pub(crate) wanted: fn(ItemType) -> bool,
}

impl ItemList {
    pub(crate) const ALL: Self = Self { wanted: |_| true };
}

impl Visitor for ItemList {
    type Summary = Items;

    fn leaf(&self, leaf: &Leaf<'_>) -> Items {
        leaf.items()
            .filter(|(key, _)| (self.wanted)(key.item_type))
            .map(|(key, data)| (key, data.into()))
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
