//! Subvolumes and snapshots.
//!
//! Owns where a subvolume hangs in another one (its entry in a directory,
//! ROOT_REF and ROOT_BACKREF), and what its root item says. The store owns the
//! trees.

pub mod content;
pub mod diff;
pub mod du;
pub mod files_at;
pub mod find_new;
pub mod history;
pub(crate) mod in_place;
pub mod list;
mod make;
pub mod member_sets;
pub mod paths;
mod properties;
pub mod quota;
mod remove;
pub(crate) mod rename;

pub use properties::Received;
pub use remove::Cleaning;

use crate::Filesystem;
use crate::dir::Link;
use crate::error::FsError;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, TreeId};
use butterfs_store::{Engine, bad_item};
use butterfs_tree::Cursor;

impl Filesystem {
    /// The directory and name of a subvolume.
    ///
    /// # Errors
    /// [`FsError::NotFound`] for the top level and for a deleted subvolume.
    pub fn subvolume_place(&self, tree: TreeId) -> Result<(InodeId, Vec<u8>), FsError> {
        let place = place_of(&self.store.read(), tree)?.ok_or(FsError::NotFound)?;
        Ok((place.dir, place.link.name))
    }

    /// Subvolumes that hang in `tree`, with their directories, beginning with
    /// the identity `from`, ascending.
    ///
    /// # Errors
    /// Damage; reading.
    pub fn subvolumes_in(
        &self,
        tree: TreeId,
        from: TreeId,
    ) -> Result<Vec<(TreeId, InodeNumber)>, FsError> {
        let engine = self.store.read();
        let mut found = Vec::new();
        let mut cursor = Cursor::seek_in(&*engine, TreeId::ROOT, &ref_key(tree, from))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != tree.get() || key.item_type != ItemType::ROOT_REF {
                break;
            }
            let item = RootRef::parse(data).map_err(|e| bad_item(TreeId::ROOT, key, &e))?;
            found.push((TreeId(key.offset), item.directory));
            cursor.next()?;
        }
        Ok(found)
    }
}

const fn ref_key(parent: TreeId, child: TreeId) -> Key {
    Key::new(parent.0, ItemType::ROOT_REF, child.0)
}

const fn backref_key(child: TreeId, parent: TreeId) -> Key {
    Key::new(child.0, ItemType::ROOT_BACKREF, parent.0)
}

/// Where a subvolume hangs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Directory.
    pub dir: InodeId,
    /// Entry in it.
    pub link: Link,
}

/// Where `tree` hangs; `None` for the top level and for a deleted subvolume.
pub(crate) fn place_of(engine: &Engine, tree: TreeId) -> Result<Option<Place>, FsError> {
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
pub(crate) fn add_refs(engine: &mut Engine, tree: TreeId, place: &Place) -> Result<(), FsError> {
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
pub(crate) fn remove_refs(
    engine: &mut Engine,
    tree: TreeId,
    parent: TreeId,
) -> Result<(), FsError> {
    butterfs_tree::remove(engine, TreeId::ROOT, &backref_key(tree, parent))?;
    butterfs_tree::remove(engine, TreeId::ROOT, &ref_key(parent, tree))?;
    Ok(())
}

/// True when another subvolume hangs in `tree`.
fn holds_subvolumes(engine: &Engine, tree: TreeId) -> Result<bool, FsError> {
    let cursor = Cursor::seek_in(engine, TreeId::ROOT, &ref_key(tree, TreeId(0)))?;
    Ok(cursor
        .key()
        .is_some_and(|key| key.objectid == tree.get() && key.item_type == ItemType::ROOT_REF))
}
