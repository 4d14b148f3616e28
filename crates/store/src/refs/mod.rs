//! Extents: who refers to them, in memory and in the extent tree, and the
//! checksums of their data.
//!
//! Owns the changes of references that are not in the extent tree yet
//! (`pending`), the checksums that are not in the checksum tree yet
//! (`pending_checksums`), and which references to data a crash may bring back
//! (`lost_refs`). `record` parses what the extent tree says of an extent,
//! `share` keeps the references of shared nodes right, `apply` brings what is
//! pending into the extent tree, and `checksums` does so for the checksum tree.
//!
//! Does not own the space of the extents: whoever drops the last reference
//! gives the space back, or the commit frees it.
//!
//! Invariants: changes of one extent are netted, so an extent that is born and
//! freed in one generation never reaches the extent tree. References and
//! checksums leave this ledger only for their trees, or with their extent. An
//! extent has at most one first reference ([`PendingRefs::insert_new`]).

pub mod apply;
pub mod checksums;
pub mod data;
pub mod lost_refs;
pub mod pending;
mod pending_checksums;
pub mod record;
pub(crate) mod share;
mod visit;

use butterfs_format::Logical;
use lost_refs::{DataOwner, LostBy, LostRefs};
use pending::{Backref, PendingRefs};
use pending_checksums::PendingChecksums;
use std::ops::Range;

/// Changes of references and checksums that wait for their trees.
#[derive(Debug, Default)]
pub struct RefLedger {
    /// References to extents that are not in the extent tree yet.
    pending: PendingRefs,
    /// Checksums of data that are not in their tree yet.
    checksums: PendingChecksums,
    /// File extents that lost their references to data in the running
    /// generation. A crash may give them back.
    lost: LostRefs,
    /// The same, of the generation that is being published.
    lost_writing: LostRefs,
}

impl RefLedger {
    /// Changes of references that wait for the extent tree.
    pub(crate) const fn pending(&self) -> &PendingRefs {
        &self.pending
    }

    /// Those changes, to add to them or take from them.
    pub(crate) const fn pending_mut(&mut self) -> &mut PendingRefs {
        &mut self.pending
    }

    /// Bytes of checksums that wait for the checksum tree.
    pub(crate) const fn checksum_bytes(&self) -> usize {
        self.checksums.bytes()
    }

    /// Bytes of checksums in memory.
    pub(crate) const fn held_checksum_bytes(&self) -> usize {
        self.checksums.held_bytes()
    }

    /// Whether more than `most` extents or references wait.
    pub(crate) fn has_more_than(&self, most: usize) -> bool {
        self.pending.len().max(self.pending.references()) > most
    }

    /// Notes the checksums of data at `logical`, one for each sector.
    pub fn add_checksums(&mut self, logical: u64, sums: Vec<u8>) {
        self.checksums.insert(logical, sums);
    }

    /// Forgets waiting checksums of an extent that vanished.
    pub(crate) fn forget_checksums(&mut self, range: &Range<u64>) {
        let held = [&self.checksums.runs, &self.checksums.applied];
        let runs = held.into_iter().flat_map(|runs| runs.range(range.clone()));
        let inside: Vec<u64> = runs.map(|(at, _)| *at).collect();
        for at in inside {
            self.checksums.remove(at);
        }
    }

    /// Notes that a reference to a data extent was dropped. A crash may bring
    /// it back.
    pub(crate) fn note_lost(&mut self, logical: Logical, by: Backref) {
        let lost = match by {
            Backref::Data {
                root,
                inode,
                offset,
            } => LostBy::One(DataOwner {
                tree: root,
                inode,
                offset,
            }),
            Backref::SharedData(_) | Backref::Tree(_) | Backref::SharedNode(_) => LostBy::Others,
        };
        let known = self.lost.entry(logical).or_insert(lost);
        if *known != lost {
            *known = LostBy::Others;
        }
    }

    /// Notes that a data extent is gone, with all references to it.
    pub(crate) fn forget_lost(&mut self, logical: Logical) {
        self.lost.remove(&logical);
    }

    /// Whether somebody but `owner` refers to a data extent in the last commit
    /// and does not any more.
    pub(crate) fn had_others(&self, logical: Logical, owner: DataOwner) -> bool {
        let both = [&self.lost, &self.lost_writing];
        let mut lost = both.into_iter().filter_map(|lost| lost.get(&logical));
        lost.any(|lost| *lost != LostBy::One(owner))
    }

    /// The running generation ends: its commit has all checksums.
    pub(crate) fn end_generation(&mut self) {
        self.checksums.forget_applied();
        self.lost_writing = std::mem::take(&mut self.lost);
    }

    /// The generation is durable: no crash brings its lost references back.
    pub(crate) fn published(&mut self) {
        self.lost_writing.clear();
    }
}
