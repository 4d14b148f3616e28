//! Whether data are one file's alone.

use super::reach::{Now, Reach, Unkept};
use super::reach_sets::ReachSets;
use crate::data::{DataExtent, DataOwner};
use crate::engine::Engine;
use crate::error::StoreError;
use crate::extent::pending::ExtentKind;

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
        if !self.engine.is_referred_only_by(extent, owner)? {
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
}
