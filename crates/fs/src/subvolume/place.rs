//! Where a subvolume hangs in another one.

use crate::dir::Link;
use crate::error::FsError;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{InodeId, ItemType, Key, TreeId};
use butterfs_store::{Engine, bad_item};
use butterfs_tree::Cursor;

/// The key of what a subvolume knows of another one that hangs in it.
pub(super) const fn ref_key(parent: TreeId, child: TreeId) -> Key {
    Key::new(parent.0, ItemType::ROOT_REF, child.0)
}

const fn backref_key(child: TreeId, parent: TreeId) -> Key {
    Key::new(child.0, ItemType::ROOT_BACKREF, parent.0)
}

/// Where a subvolume hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Directory.
    pub dir: InodeId,
    /// Entry in it.
    pub link: Link,
}

/// Where `tree` hangs; `None` for the top level and for a deleted subvolume.
pub(super) fn place_of(engine: &Engine, tree: TreeId) -> Result<Option<Place>, FsError> {
    let cursor = Cursor::seek_in(engine, TreeId::ROOT, &backref_key(tree, TreeId(0)))?;
    let Some((key, data)) = cursor.item() else {
        return Ok(None);
    };
    if key.objectid != tree.get() || key.item_type != ItemType::ROOT_BACKREF {
        return Ok(None);
    }
    let found = RootRef::parse(data).map_err(|e| bad_item(TreeId::ROOT, key, &e))?;
    Ok(Some(Place {
        dir: InodeId {
            tree: TreeId(key.offset),
            number: found.directory,
        },
        link: Link {
            parent: found.directory,
            index: found.index,
            name: found.name.to_vec(),
        },
    }))
}

/// Notes, on both sides, that `tree` hangs at `place`.
pub(super) fn add_refs(engine: &mut Engine, tree: TreeId, place: &Place) -> Result<(), FsError> {
    let item = RootRef {
        directory: place.dir.number,
        index: place.link.index,
        name: &place.link.name,
    }
    .encode();
    let parent = place.dir.tree;
    butterfs_tree::insert(engine, TreeId::ROOT, &backref_key(tree, parent), &item)?;
    butterfs_tree::insert(engine, TreeId::ROOT, &ref_key(parent, tree), &item)?;
    Ok(())
}

/// Ends [`add_refs`].
pub(super) fn remove_refs(
    engine: &mut Engine,
    tree: TreeId,
    parent: TreeId,
) -> Result<(), FsError> {
    butterfs_tree::remove(engine, TreeId::ROOT, &backref_key(tree, parent))?;
    butterfs_tree::remove(engine, TreeId::ROOT, &ref_key(parent, tree))?;
    Ok(())
}

/// True when another subvolume hangs in `tree`.
pub(super) fn holds_subvolumes(engine: &Engine, tree: TreeId) -> Result<bool, FsError> {
    let cursor = Cursor::seek_in(engine, TreeId::ROOT, &ref_key(tree, TreeId(0)))?;
    Ok(cursor
        .key()
        .is_some_and(|key| key.objectid == tree.get() && key.item_type == ItemType::ROOT_REF))
}
