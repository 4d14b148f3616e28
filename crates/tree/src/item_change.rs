//! Changes of single items, planned before anything is edited.
//!
//! A plan can be carried out in two ways: by an [`Editor`], which copies,
//! splits and merges nodes, or within leaves that are writable and have room.

use crate::NodeSink;
use crate::edit::Editor;
use crate::error::TreeError;
use crate::node::Node;
use butterfs_format::node::ITEM_SIZE;
use butterfs_format::{Key, TreeId};

/// What happens to an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It is new.
    Insert,
    /// It gets these data, whether it exists or not.
    Put,
    /// These data are appended to those that it has; if it does not exist, it
    /// is inserted.
    Append,
}

/// One item to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemChange {
    /// Its key.
    pub key: Key,
    /// What happens to it.
    pub edit: Edit,
    /// New data.
    pub data: Vec<u8>,
}

impl ItemChange {
    /// A change.
    #[must_use]
    pub const fn new(edit: Edit, key: Key, data: Vec<u8>) -> Self {
        Self { key, edit, data }
    }

    /// Whether it only overwrites data of `leaf`: the item has the same size
    /// before and after.
    #[must_use]
    pub fn is_in_place(&self, leaf: &Node) -> bool {
        let same = |slot| leaf.data(slot).len() == self.data.len();
        self.edit == Edit::Put && leaf.search(&self.key).is_ok_and(same)
    }
}

impl Node {
    /// Whether `changes` can be made here without touching another node. All of
    /// them belong in this leaf and have different keys. That is possible if
    /// there is room, the first key stays, and the items to insert do not exist
    /// yet.
    #[must_use]
    pub fn can_take<'a>(&self, changes: impl IntoIterator<Item = &'a ItemChange>) -> bool {
        let mut free = self.free_bytes();
        changes.into_iter().all(|change| {
            let (old, most) = (
                self.search(&change.key),
                Self::item_data_max(self.bytes.len()),
            );
            let need = match (old, change.edit) {
                (Ok(_), Edit::Insert) | (Err(0), _) => return false,
                (Ok(slot), Edit::Put) => change.data.len().checked_sub(self.data(slot).len()),
                (Ok(slot), Edit::Append) if self.data(slot).len() + change.data.len() > most => {
                    return false;
                }
                (Ok(_), Edit::Append) => Some(change.data.len()),
                (Err(_), _) => Some(ITEM_SIZE + change.data.len()),
            };
            let left = free.checked_sub(need.unwrap_or(0));
            free = left.unwrap_or(0);
            left.is_some()
        })
    }

    /// Makes a change for which [`Node::can_take`] found room.
    pub fn take(&mut self, change: &ItemChange) {
        let size = change.data.len();
        match (self.search(&change.key), change.edit) {
            (Err(slot), _) => {
                self.insert_item(slot, &change.key, size)
                    .copy_from_slice(&change.data);
            }
            (Ok(slot), Edit::Append) => {
                let old = self.data(slot).len();
                self.resize_item(slot, old + size)[old..].copy_from_slice(&change.data);
            }
            (Ok(slot), Edit::Insert | Edit::Put) => {
                self.resize_item(slot, size).copy_from_slice(&change.data);
            }
        }
    }
}

/// Makes `changes` in `tree`, one after the other.
///
/// # Errors
/// [`TreeError::Exists`] for an item that was to be new,
/// [`TreeError::ItemTooLarge`], reading, no space.
pub fn change_items<S: NodeSink>(
    sink: &mut S,
    tree: TreeId,
    changes: &[ItemChange],
) -> Result<(), TreeError> {
    let mut editor = Editor::new(sink, tree);
    for ItemChange { key, edit, data } in changes {
        match edit {
            Edit::Insert => editor.insert(key, data)?,
            Edit::Put => editor.replace(key, data)?,
            Edit::Append => editor.append(key, data)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NodeStamp;
    use butterfs_format::{Generation, ItemType, Logical, NodeRef};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const SIZE: usize = 4096;

    fn key(number: u64) -> Key {
        Key::new(number, ItemType::INODE_ITEM, 0)
    }

    /// A leaf with an empty item of number 0, and what it holds.
    fn leaf() -> (Node, BTreeMap<Key, Vec<u8>>) {
        let stamp = NodeStamp {
            fsid: [1; 16],
            chunk_tree_uuid: [2; 16],
        };
        let reference = NodeRef {
            logical: Logical(SIZE as u64),
            generation: Generation(1),
            level: 0,
        };
        let mut leaf = Node::empty(SIZE, &stamp, reference, TreeId(5));
        leaf.insert_item(0, &key(0), 0);
        (leaf, BTreeMap::from([(key(0), Vec::new())]))
    }

    /// What the leaf should hold after `change`; `None` if it cannot take it.
    fn after(
        items: &BTreeMap<Key, Vec<u8>>,
        change: &ItemChange,
    ) -> Option<BTreeMap<Key, Vec<u8>>> {
        let mut items = items.clone();
        let old = items.get(&change.key).cloned();
        let new = match (change.edit, old) {
            (Edit::Insert, Some(_)) => return None,
            (Edit::Append, Some(old)) => [old, change.data.clone()].concat(),
            _ => change.data.clone(),
        };
        items.insert(change.key, new);
        let used = |items: &BTreeMap<Key, Vec<u8>>| -> usize {
            items.values().map(|data| ITEM_SIZE + data.len()).sum()
        };
        (used(&items) <= Node::item_data_max(SIZE) + ITEM_SIZE).then_some(items)
    }

    fn change() -> impl Strategy<Value = ItemChange> {
        let edit = prop_oneof![Just(Edit::Insert), Just(Edit::Put), Just(Edit::Append)];
        let size = prop_oneof![4 => 0_usize..300, 1 => 1000_usize..4000];
        (edit, 1_u64..30, size, any::<u8>()).prop_map(|(edit, number, size, fill)| {
            ItemChange::new(edit, key(number), vec![fill; size])
        })
    }

    proptest! {
        #[test]
        fn a_leaf_takes_what_fits(changes in prop::collection::vec(change(), 1..60)) {
            let (mut leaf, mut items) = leaf();
            for change in &changes {
                let after = after(&items, change);
                prop_assert_eq!(leaf.can_take([change]), after.is_some());
                let Some(after) = after else { continue };
                let in_place = items.get(&change.key).map(Vec::len) == Some(change.data.len());
                prop_assert_eq!(change.is_in_place(&leaf), in_place && change.edit == Edit::Put);
                leaf.take(change);
                items = after;
                let found: Vec<_> = (0..leaf.len()).map(|at| (leaf.key(at), leaf.data(at).to_vec())).collect();
                prop_assert_eq!(found, items.clone().into_iter().collect::<Vec<_>>());
            }
        }

        #[test]
        fn several_changes_share_the_room(changes in prop::collection::vec(change(), 1..12)) {
            let (mut leaf, _) = leaf();
            let changes: BTreeMap<Key, ItemChange> = changes.into_iter().map(|change| (change.key, change)).collect();
            let need: usize = changes.values().map(|change| ITEM_SIZE + change.data.len()).sum();
            prop_assert_eq!(leaf.can_take(changes.values()), need <= leaf.free_bytes());
            if leaf.can_take(changes.values()) {
                changes.values().for_each(|change| leaf.take(change));
                prop_assert_eq!(leaf.len(), 1 + changes.len());
            }
        }
    }

    #[test]
    fn the_first_key_of_a_leaf_stays() {
        let (leaf, _) = leaf();
        let before = ItemChange::new(Edit::Insert, Key::MIN, Vec::new());
        assert!(Key::MIN < key(0) && !leaf.can_take([&before]));
    }
}
