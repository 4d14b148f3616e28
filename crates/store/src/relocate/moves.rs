//! Data extents that get another address.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::refs::pending::{Backref, ExtentKind};
use butterfs_format::item::file_extent::ExtentPlace;
use butterfs_format::{Logical, TreeId};
use rustc_hash::FxHashMap;

/// A data extent that moves.
#[derive(Debug)]
pub(super) struct Move {
    pub(super) length: u64,
    pub(super) to: Logical,
    /// Who allocated it, where simple quotas are on.
    pub(super) owner: Option<TreeId>,
    /// Checksums of runs of sectors at the extent's new place.
    pub(super) sums: Vec<(u64, Vec<u8>)>,
    /// The new extent has references.
    pub(super) is_born: bool,
}

/// Data extents that move, by their old addresses.
#[derive(Debug, Default)]
pub(super) struct Moves(pub(super) FxHashMap<Logical, Move>);

impl Moves {
    pub(super) fn has(&self, from: Logical) -> bool {
        self.0.contains_key(&from)
    }

    pub(super) fn place_of(&self, from: Logical) -> Option<Logical> {
        self.0.get(&from).map(|moved| moved.to)
    }

    /// Takes the reference `old` from a file extent's old data extent, and
    /// gives the reference `new` to the extent that replaces it.
    pub(super) fn refer(
        &mut self,
        engine: &mut Engine,
        place: &ExtentPlace,
        old: Backref,
        new: Backref,
    ) -> Result<(), StoreError> {
        let kind = ExtentKind::Data;
        let (from, length) = (place.disk, place.disk_length);
        engine
            .ledger
            .pending_mut()
            .change(from, length, kind, (old, -1));
        let Some(moved) = self.0.get_mut(&from) else {
            engine
                .ledger
                .pending_mut()
                .change(from, length, kind, (new, 1));
            return Ok(());
        };
        engine.ledger.note_lost(from, old);
        if moved.is_born {
            engine
                .ledger
                .pending_mut()
                .change(moved.to, length, kind, (new, 1));
            return Ok(());
        }
        moved.is_born = true;
        let owner = moved.owner;
        engine
            .ledger
            .pending_mut()
            .insert_moved((moved.to, length), kind, new, owner)?;
        for (at, sums) in std::mem::take(&mut moved.sums) {
            engine.ledger.add_checksums(at, sums);
        }
        Ok(())
    }
}
