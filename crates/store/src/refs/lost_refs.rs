//! Who refers to data extents, and who did.

use crate::refs::pending::Backref;
use butterfs_format::{InodeNumber, Logical, TreeId};
use rustc_hash::FxHashMap;

/// The owner of a reference to a data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataOwner {
    /// Subvolume.
    pub tree: TreeId,
    /// Inode.
    pub inode: InodeNumber,
    /// File offset of the file extent minus its offset into the extent.
    pub offset: u64,
}

impl DataOwner {
    pub(crate) const fn backref(self) -> Backref {
        Backref::Data {
            root: self.tree,
            inode: self.inode,
            offset: self.offset,
        }
    }
}

/// The owners that gave up references, by data extent.
pub(crate) type LostRefs = FxHashMap<Logical, LostBy>;

/// The owners that gave up references to one data extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LostBy {
    /// Nobody else.
    One(DataOwner),
    /// Several owners, or one that is not known.
    Others,
}
