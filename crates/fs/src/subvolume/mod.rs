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
mod place;
mod properties;
pub mod quota;
mod remove;
pub(crate) mod rename;

pub use properties::Received;
pub use remove::Cleaning;

use crate::Filesystem;
use crate::error::FsError;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{InodeId, InodeNumber, ItemType, TreeId};
use butterfs_store::bad_item;
use butterfs_tree::Cursor;
use place::{place_of, ref_key};

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
