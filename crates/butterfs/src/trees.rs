//! The trees of a volume, item by item and node by node.

use crate::Volume;
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::Superblock;
use butterfs_format::{Generation, InodeNumber, Key, Logical, NodeRef, TreeId};
use butterfs_fs::FsError;
use butterfs_fs::subvolume::paths::Paths;
use butterfs_store::{Engine, StoreError};
use butterfs_tree::{Cursor, Node, NodeSource, TreeError};
use std::fmt;
use std::ops::{ControlFlow, Deref};
use std::sync::Arc;

/// All trees of a volume in their current state, with changes that are not yet
/// committed. Nobody can change them while this exists, so do not keep it.
pub struct Trees<'v>(Box<dyn Deref<Target = Engine> + 'v>);

impl fmt::Debug for Trees<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trees").finish_non_exhaustive()
    }
}

/// An item, and when the leaf that holds it was written.
#[derive(Clone, Copy, Debug)]
pub struct TreeItem<'t> {
    /// Generation of its leaf.
    pub generation: Generation,
    /// Its key.
    pub key: Key,
    /// Its data.
    pub data: &'t [u8],
}

impl Volume {
    /// A look at all trees.
    #[must_use]
    pub fn trees(&self) -> Trees<'_> {
        Trees(Box::new(self.store().read()))
    }

    /// All trees in their current state, to be looked at for as long as it
    /// takes while others change the volume. Commits if the volume is open for
    /// writing. If the volume runs out of space, it takes back what is kept for
    /// this, and reading ends with an error.
    ///
    /// # Errors
    /// No space; reading, writing.
    pub fn steady_trees(&self) -> Result<Trees<'_>, FsError> {
        let steady = self.store().steady().map_err(FsError::from)?;
        Ok(Trees(Box::new(steady)))
    }
}

/// A tree that does not exist is not damage: the caller may ask for any.
fn absent(error: TreeError) -> FsError {
    match error {
        TreeError::NoSuchTree(_) => FsError::NotFound,
        error => error.into(),
    }
}

impl Trees<'_> {
    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        self.0.superblock()
    }

    /// Root of a tree.
    ///
    /// # Errors
    /// There is no such tree; reading.
    pub fn root(&self, tree: TreeId) -> Result<NodeRef, StoreError> {
        Ok(self.0.tree_state(tree)?.root)
    }

    /// Root of the tree of the fsync logs, if an earlier run left one that is
    /// not yet replayed.
    #[must_use]
    pub fn log_root(&self) -> Option<NodeRef> {
        self.0.waiting_log()
    }

    /// The node at an address, of any tree and any age.
    ///
    /// # Errors
    /// No node is there; reading.
    pub fn node_at(&self, logical: Logical) -> Result<Arc<Node>, StoreError> {
        self.0.node_at(logical, None)
    }

    /// The root item of a subvolume or another tree.
    ///
    /// # Errors
    /// There is no such tree; reading.
    pub fn root_item(&self, tree: TreeId) -> Result<RootItem, StoreError> {
        Ok(self.0.tree_state(tree)?.item)
    }

    /// Gives the items of a tree from `first` on, until `visit` breaks.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such tree; damage, reading.
    pub fn items_from(
        &self,
        tree: TreeId,
        first: &Key,
        visit: &mut dyn FnMut(TreeItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), FsError> {
        let engine: &Engine = &self.0;
        engine.root(tree).map_err(absent)?;
        let mut cursor = Cursor::seek_in(engine, tree, first).map_err(absent)?;
        while let (Some((key, data)), Some((leaf, _))) = (cursor.item(), cursor.leaf()) {
            let item = TreeItem {
                generation: leaf.generation(),
                key,
                data,
            };
            if visit(item).is_break() {
                break;
            }
            cursor.next().map_err(absent)?;
        }
        Ok(())
    }

    /// Path of a directory in its subvolume; empty for the root.
    ///
    /// # Errors
    /// [`FsError::NotFound`] if there is no such subvolume or directory;
    /// damage, reading.
    pub fn directory_path(&self, tree: TreeId, directory: InodeNumber) -> Result<Vec<u8>, FsError> {
        let engine: &Engine = &self.0;
        let root = engine.root(tree).map_err(|_| FsError::NotFound)?;
        let mut paths = Paths::new(engine, tree, root);
        if directory != InodeNumber::ROOT && paths.links(directory)?.is_empty() {
            return Err(FsError::NotFound);
        }
        paths.directory(directory)
    }
}

impl NodeSource for Trees<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.0.node(reference)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        self.0.root(tree)
    }
}
