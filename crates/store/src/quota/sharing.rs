//! Whether data are one file's alone.

use super::reach::{Now, Reach, Unkept, View};
use super::reach_sets::ReachSets;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::refs::data::DataExtent;
use crate::refs::lost_refs::DataOwner;
use crate::refs::pending::{Backref, ExtentKind};

/// Tells for data extents whether anybody but one owner refers to them: other
/// files, other parts of the file, or snapshots. It remembers what it finds out
/// about nodes. So one probe for all extents of a file costs little more than
/// for one extent.
pub struct SharingProbe<'e> {
    engine: &'e Engine,
    reach: Reach<Now<'e>>,
    sets: ReachSets,
}

impl<'e> SharingProbe<'e> {
    /// A probe of the running generation.
    #[must_use]
    pub fn new(engine: &'e Engine) -> Self {
        Self {
            engine,
            reach: Reach::new(Now(engine)),
            sets: ReachSets::new(),
        }
    }

    /// True unless `owner` alone refers to `extent`, in its own subvolume
    /// alone. An extent counts as shared if bounded work cannot decide it.
    ///
    /// # Errors
    /// The extent is unknown; damage, reading.
    pub fn is_shared(&mut self, extent: DataExtent, owner: DataOwner) -> Result<bool, StoreError> {
        if !self.is_held_once(extent, owner)? {
            return Ok(true);
        }
        let found = self.reach.of(
            &mut self.sets,
            extent.logical,
            extent.length,
            ExtentKind::Data,
        );
        match found {
            Ok(set) => Ok(self.sets.members(set) != [owner.tree]),
            Err(Unkept::Store(error)) => Err(error),
            Err(Unkept::TooMuch | Unkept::Rule(_) | Unkept::NotFound(_)) => Ok(true),
        }
    }

    /// True if all file extents of `extent` belong to one inode and begin at
    /// one offset, in any subvolumes. Keyed references say so themselves; for
    /// other references the leaves that hold them are read.
    fn is_held_once(&self, extent: DataExtent, owner: DataOwner) -> Result<bool, StoreError> {
        let refs = Now(self.engine).refs(extent.logical, extent.length, ExtentKind::Data)?;
        let is_own = |inode, offset| inode == owner.inode && offset == owner.offset;
        for (by, count) in refs.by {
            let own = match by {
                _ if count <= 0 => true,
                Backref::Data { inode, offset, .. } => is_own(inode, offset),
                Backref::SharedData(leaf) => {
                    let mut holders = Vec::new();
                    self.engine.holders_in(leaf, extent.logical, &mut holders)?;
                    holders.iter().all(|by| is_own(by.inode, by.offset))
                }
                Backref::Tree(_) | Backref::SharedNode(_) => false,
            };
            if !own {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
