//! Items of trees: reading a range of them, and making a range equal to what is
//! wanted with as few changes as possible.

use crate::error::RepairError;
use crate::writer::Writer;
use butterfs_format::{Key, TreeId};
use butterfs_tree::{Cursor, Editor};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Items by key.
pub(crate) type Items = BTreeMap<Key, Vec<u8>>;

/// The items of `tree` in `keys`.
///
/// # Errors
/// Reading the tree.
pub(crate) fn read(
    writer: &Writer,
    tree: TreeId,
    keys: RangeInclusive<Key>,
) -> Result<Items, RepairError> {
    let mut items = Items::new();
    each(writer, tree, keys, |key, data| {
        items.insert(key, data.to_vec());
        Ok(())
    })?;
    Ok(items)
}

/// Calls `see` with the items of `tree` in `keys`.
///
/// # Errors
/// Reading the tree, and those of `see`.
pub(crate) fn each(
    writer: &Writer,
    tree: TreeId,
    keys: RangeInclusive<Key>,
    mut see: impl FnMut(Key, &[u8]) -> Result<(), RepairError>,
) -> Result<(), RepairError> {
    let mut cursor = Cursor::seek_in(writer, tree, keys.start())?;
    while let Some((key, data)) = cursor.item().filter(|(key, _)| key <= keys.end()) {
        see(key, data)?;
        cursor.next()?;
    }
    Ok(())
}

/// Makes the items of `tree` that `have` lists equal to `want`; gives how many
/// items changed.
///
/// # Errors
/// Reading or changing the tree.
pub(crate) fn change(
    writer: &mut Writer,
    tree: TreeId,
    have: &Items,
    want: &Items,
) -> Result<usize, RepairError> {
    let mut changed = 0_usize;
    let mut editor = Editor::new(writer, tree);
    for key in have.keys().filter(|key| !want.contains_key(key)) {
        editor.remove(key)?;
        changed = changed.saturating_add(1);
    }
    for (key, data) in want {
        if have.get(key) != Some(data) {
            editor.replace(key, data)?;
            changed = changed.saturating_add(1);
        }
    }
    Ok(changed)
}
