//! The verdict on what seemed bad, and its repair.

use super::plan::What;
use super::{Part, Repair};
use crate::Store;
use crate::engine::Engine;
use crate::refs::pending::ExtentKind;
use crate::refs::record::ExtentRecord;
use crate::scrub::report::{ScrubFault, ScrubOutcome, ScrubStep, ScrubbedKind};
use butterfs_format::{Generation, Logical};
use std::sync::atomic::Ordering;

/// What something on a device must be.
pub(super) enum Proof {
    Node {
        level: u8,
        generation: Generation,
    },
    Sum(Vec<u8>),
    /// Nothing is known of it.
    None,
}

impl Engine {
    /// The generation that the node at `logical` should have on the device.
    /// `None` if the device need not have the node yet, or if the extent tree
    /// lacks it.
    pub(super) fn generation_on_device(&self, logical: Logical, level: u8) -> Option<Generation> {
        let in_memory = self.nodes.has_changed(logical);
        if in_memory
            || self
                .ledger
                .pending()
                .get(logical)
                .is_some_and(|extent| extent.new)
        {
            return None;
        }
        let kind = ExtentKind::Node {
            level,
            first_key: None,
        };
        let record = ExtentRecord::load(self, logical, self.node_size() as u64, kind);
        record.ok().map(|record| record.generation)
    }

    /// What a sector of data must be.
    pub(super) fn proof_of_sector(&self, logical: u64) -> Proof {
        let range = logical..logical + self.sector_size();
        match self.data_checksums(range) {
            Ok(sums) => sums
                .get(0)
                .map_or(Proof::None, |sum| Proof::Sum(sum.to_vec())),
            Err(_) => Proof::None,
        }
    }
}

impl Store {
    pub(super) fn is_proved(&self, proof: &Proof, logical: u64, bytes: &[u8]) -> bool {
        match proof {
            Proof::Sum(sum) => self.has_sum(bytes, sum),
            Proof::Node { level, generation } => self.is_node(bytes, logical, *level, *generation),
            Proof::None => true,
        }
    }

    /// The content of `logical`, read in any way but `not`; `None` if no way
    /// gives valid content.
    pub(super) fn good_from_elsewhere(
        &self,
        proof: &Proof,
        (logical, length): (u64, u64),
        not: usize,
    ) -> Option<Vec<u8>> {
        let ways = self.space.ways(Logical(logical));
        let mut bytes = vec![0; length as usize];
        let found = (0..ways).filter(|way| *way != not).any(|way| {
            let read = self.space.read_copy(Logical(logical), way, &mut bytes);
            read.is_ok() && self.is_proved(proof, logical, &bytes)
        });
        found.then_some(bytes)
    }

    /// Looks at a suspect again while nothing can be published. If it is bad,
    /// repairs or reports it.
    pub(super) fn settle(
        &self,
        part: &Part<'_>,
        (logical, what): (u64, What),
        repair: Repair,
        step: &mut ScrubStep,
    ) {
        let engine = self.read();
        let at = Logical(logical);
        // If the row changed meanwhile, it would get a parity over bad data.
        let _row = self.space.hold_row(at);
        let sector = self.identity.sector_size;
        let (length, kind, proof) = match what {
            What::Node { level, .. } => {
                let Some(generation) = engine.generation_on_device(at, level) else {
                    return;
                };
                let proof = Proof::Node { level, generation };
                let length = self.identity.node_size as u64;
                (length, ScrubbedKind::Node(level), proof)
            }
            What::Data => (sector, ScrubbedKind::Data, engine.proof_of_sector(logical)),
        };
        let copy = part.layout.copy();
        let Some(place) = self.space.place(at, copy).filter(|place| part.has(*place)) else {
            return;
        };
        let mut bytes = vec![0; length as usize];
        let read = self.space.read_copy(at, copy, &mut bytes);
        if read.is_ok() && self.is_proved(&proof, logical, &bytes) {
            return;
        }
        let unreadable = read.is_err();
        if let Some(stats) = self.space.stats(place.device)
            && !unreadable
        {
            stats.corruption_errs.fetch_add(1, Ordering::Relaxed);
        }
        let good = self.good_from_elsewhere(&proof, (logical, length), copy);
        let outcome = match (good, &proof) {
            (None, _) => ScrubOutcome::Uncorrectable,
            // Data without checksums may be written in place at this moment. A
            // repair would overwrite them with what was read before.
            (Some(_), Proof::None) => ScrubOutcome::Repairable,
            (Some(_), _) if repair == Repair::ReportOnly => ScrubOutcome::Repairable,
            (Some(good), _) => {
                let written = self.space.rewrite_copy(at, copy, &good);
                let read = self.space.read_copy(at, copy, &mut bytes);
                match written.is_ok() && read.is_ok() && self.is_proved(&proof, logical, &bytes) {
                    true => ScrubOutcome::Corrected,
                    false => ScrubOutcome::Repairable,
                }
            }
        };
        let fault = ScrubFault {
            logical: at,
            place,
            kind,
            length,
            unreadable,
            outcome,
        };
        step.note(fault, length / sector);
    }
}
