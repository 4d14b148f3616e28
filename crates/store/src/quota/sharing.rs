//! Whether data are one file's alone.

use super::reach::{Now, Reach, Unkept, View};
use super::reach_sets::ReachSets;
use crate::data::{DataExtent, DataOwner};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::extent::pending::{Backref, ExtentKind};

/// Says of data extents whether others than one owner have them: other files,
/// other parts of the file, snapshots. What it found out about nodes it keeps,
/// so one probe for the extents of a file costs little more than one extent.
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

    /// True unless `owner` alone has `extent`, in its subvolume alone. Where
    /// that cannot be found out with bounded work, it counts as shared.
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

    /// True when all file extents with `extent` are of one inode and begin at
    /// one offset, in whatever subvolumes: keyed references say it, of others
    /// the leaves that hold them.
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
