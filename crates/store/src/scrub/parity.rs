//! Parities of rows: compared with the data, and made anew from data that were
//! verified.
//!
//! A parity covers sectors of all elements of its row, one of each. Such a set
//! of sectors is compared if some of its data are in use. Its parity is made
//! anew if all of its data that have checksums match them, or could be rebuilt
//! from the rest of the row. In a set without any checksum nobody can say what
//! is bad. Its data are taken as they are, and its parity is made anew without
//! being called bad, because space that was reserved and never written looks
//! the same.

use super::plan::{PARITY_SECTORS_MAX, ParityPiece, Piece, Plan, What, sectors_of};
use super::settle::Proof;
use super::{Part, Repair};
use crate::Store;
use crate::engine::Engine;
use crate::error::StoreError;
use crate::scrub::report::{ScrubFault, ScrubOutcome, ScrubStep, ScrubbedKind};
use butterfs_format::{Logical, Physical};
use butterfs_volume::LockedRow;
use std::ops::{ControlFlow, Range};
use std::sync::atomic::Ordering;

/// What is known of the sectors of a row, one bit for each.
#[derive(Default)]
struct Known {
    /// Some data are in use.
    used: u32,
    /// Some data were verified.
    verified: u32,
    /// Some data are bad, and no good copy of them is left.
    lost: u32,
    /// Of each column, what was verified.
    columns: Vec<u32>,
    /// Data of missing devices that nothing can rebuild.
    gone: Vec<(u64, u64, ScrubbedKind)>,
}

/// Sectors of a parity, one bit for each, that differ from what it should be.
fn differing(found: &[u8], wanted: &[u8], sector: u64) -> u32 {
    let sectors = found
        .chunks(sector as usize)
        .zip(wanted.chunks(sector as usize));
    let differ = sectors
        .enumerate()
        .filter(|(_, (found, wanted))| found != wanted);
    differ.fold(0, |bits, (index, _)| bits | 1 << index)
}

/// Neighbouring bits, as ranges.
fn runs_of(bits: u32) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for index in (0..PARITY_SECTORS_MAX).filter(|index| bits & 1 << index != 0) {
        match runs.last_mut() {
            Some(run) if run.end == index => run.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

impl Store {
    /// True where a parity may be bad.
    pub(super) fn is_parity_suspect(&self, plan: &Plan, piece: &ParityPiece) -> bool {
        let Some(row) = self.space.lock_row(Logical(piece.row)) else {
            return false;
        };
        let column = row.data_columns() + piece.which;
        if !(0..row.data_columns()).all(|data| row.is_readable(data)) || !row.is_readable(column) {
            return true;
        }
        let sector = self.identity.sector_size;
        if differing(row.column(column), &row.parity(piece.which), sector) & piece.sectors != 0 {
            return true;
        }
        let data = plan.rows.get(piece.data.clone()).unwrap_or_default();
        data.iter().any(|data| {
            let (column, inside) = row.position(data.logical);
            let bytes = &row.column(column)[inside as usize..][..data.length as usize];
            !self.is_as_planned(plan, data, bytes)
        })
    }

    /// Whether a piece matches the plan.
    fn is_as_planned(&self, plan: &Plan, piece: &Piece, bytes: &[u8]) -> bool {
        let sector = self.identity.sector_size;
        match piece.what {
            What::Node { level, generation } => {
                self.is_node(bytes, piece.logical, level, generation)
            }
            What::Data => bytes
                .chunks(sector as usize)
                .zip(0..)
                .all(|(bytes, index)| {
                    let sum = plan.sum(piece.logical + index * sector, sector);
                    sum.is_none_or(|sum| self.has_sum(bytes, sum))
                }),
        }
    }

    /// Looks at a row again while nothing can be published. If its parity is
    /// bad, makes it anew.
    ///
    /// # Errors
    /// The extent tree cannot be read.
    pub(super) fn settle_parity(
        &self,
        part: &Part<'_>,
        piece: &ParityPiece,
        repair: Repair,
        step: &mut ScrubStep,
    ) -> Result<(), StoreError> {
        let engine = self.read();
        let Some(mut row) = self.space.lock_row(Logical(piece.row)) else {
            return Ok(());
        };
        let column = row.data_columns() + piece.which;
        let Some(place) = row.place(column).filter(|place| part.has(*place)) else {
            return Ok(());
        };
        let sector = self.identity.sector_size;
        let known = self.know(&engine, &mut row)?;
        if piece.which == 0 || row.is_missing(row.data_columns()) {
            for (logical, length, kind) in &known.gone {
                let (of, inside) = row.position(*logical);
                let begin = row.place(of).unwrap_or(place);
                let fault = ScrubFault {
                    logical: Logical(*logical),
                    place: Physical {
                        offset: begin.offset.saturating_add(inside),
                        ..begin
                    },
                    kind: *kind,
                    length: *length,
                    unreadable: true,
                    outcome: ScrubOutcome::Uncorrectable,
                };
                step.note(fault, length / sector);
            }
        }
        let made = row.parity(piece.which);
        let unreadable = !row.is_readable(column);
        let bad = match unreadable {
            true => known.used,
            false => differing(row.column(column), &made, sector) & known.used,
        };
        for run in runs_of(bad & !known.lost) {
            let bytes = u64::from(run.start) * sector..u64::from(run.end) * sector;
            let wanted = &made[bytes.start as usize..bytes.end as usize];
            let outcome = match repair {
                Repair::ReportOnly => ScrubOutcome::Repairable,
                Repair::Rewrite => {
                    let written = row.write(column, bytes.start, wanted);
                    let mut again = vec![0; wanted.len()];
                    let from = Physical {
                        offset: place.offset.saturating_add(bytes.start),
                        ..place
                    };
                    let read = self.space.read_physical(from, &mut again);
                    match matches!(written, Ok(true)) && read.is_ok() && again == wanted {
                        true => ScrubOutcome::Corrected,
                        false => ScrubOutcome::Repairable,
                    }
                }
            };
            let bits = sectors_of(bytes.clone(), sector);
            let sectors = u64::from((bits & (known.verified | mask(unreadable))).count_ones());
            if sectors == 0 {
                continue;
            }
            if let Some(stats) = self.space.stats(place.device)
                && !unreadable
            {
                stats.corruption_errs.fetch_add(1, Ordering::Relaxed);
            }
            let fault = ScrubFault {
                logical: Logical(piece.row),
                place: Physical {
                    offset: place.offset.saturating_add(bytes.start),
                    ..place
                },
                kind: ScrubbedKind::Parity(piece.which),
                length: bytes.end - bytes.start,
                unreadable,
                outcome,
            };
            step.note(fault, sectors);
        }
        // Content that cannot be read, and cannot be rebuilt either.
        let lost = (bad & known.lost & mask(unreadable)).count_ones();
        if lost > 0 {
            let fault = ScrubFault {
                logical: Logical(piece.row),
                place,
                kind: ScrubbedKind::Parity(piece.which),
                length: u64::from(lost) * sector,
                unreadable,
                outcome: ScrubOutcome::Uncorrectable,
            };
            step.note(fault, u64::from(lost));
        }
        Ok(())
    }

    /// Verifies the data of a row. Bad data are replaced in memory if they can
    /// be rebuilt.
    fn know(&self, engine: &Engine, row: &mut LockedRow<'_>) -> Result<Known, StoreError> {
        let range = row.range();
        let sector = self.identity.sector_size;
        let mut known = Known {
            columns: vec![0; row.data_columns()],
            ..Known::default()
        };
        engine.visit_extents_over(&range, &mut |head, length| {
            let begin = head.key.objectid;
            let end = begin.saturating_add(length);
            if let Some(level) = head.level() {
                let proof = match engine.generation_on_device(Logical(begin), level) {
                    Some(generation) => Proof::Node { level, generation },
                    None => Proof::None,
                };
                let kind = ScrubbedKind::Node(level);
                self.know_one(row, &mut known, (begin, length), (&proof, kind));
                return Ok(ControlFlow::Continue(()));
            }
            let (mut at, end) = (begin.max(range.start), end.min(range.end));
            let sums = engine.data_checksums(at..end)?;
            let mut index = 0;
            while at < end {
                let sum = sums.get(index);
                let proof = sum.map_or(Proof::None, |sum| Proof::Sum(sum.to_vec()));
                self.know_one(row, &mut known, (at, sector), (&proof, ScrubbedKind::Data));
                index += 1;
                at += sector;
            }
            Ok(ControlFlow::Continue(()))
        })?;
        // In a column that cannot be read, only what was verified is known.
        for (column, verified) in known.columns.iter().enumerate() {
            if !row.is_readable(column) {
                known.lost |= !verified;
            }
        }
        Ok(known)
    }

    /// Verifies one sector or node.
    fn know_one(
        &self,
        row: &mut LockedRow<'_>,
        known: &mut Known,
        (begin, length): (u64, u64),
        (proof, kind): (&Proof, ScrubbedKind),
    ) {
        let sector = self.identity.sector_size;
        let range = row.range();
        let is_inside = range.start <= begin && begin + length <= range.end;
        let own = begin.max(range.start)..(begin + length).min(range.end);
        let parts: Vec<_> = row.parts(own.start, own.end - own.start).collect();
        let bits: Vec<(usize, u32)> = parts
            .iter()
            .map(|(column, inside)| {
                let inside = inside.start as u64..inside.end as u64;
                (*column, sectors_of(inside, sector))
            })
            .collect();
        let all = bits.iter().fold(0, |all, (_, bits)| all | bits);
        known.used |= all;
        // A node that lies in two rows is not known as a whole here. It is read
        // as one.
        let content = match is_inside {
            true => row.data(begin, length),
            false => {
                let mut bytes = vec![0; length as usize];
                match self.space.read_copy(Logical(begin), 0, &mut bytes) {
                    Ok(()) => bytes,
                    Err(_) => Vec::new(),
                }
            }
        };
        if let Proof::None = proof {
            return;
        }
        let is_read = bits.iter().all(|(column, _)| row.is_readable(*column));
        let mut is_good = is_read && self.is_proved(proof, begin, &content);
        if !is_good && let Some(good) = self.good_from_elsewhere(proof, (begin, length), 0) {
            let from = (own.start - begin) as usize..(own.end - begin) as usize;
            row.set_data(own.start, &good[from]);
            is_good = true;
        }
        if is_good {
            known.verified |= all;
            for (column, bits) in bits {
                if let Some(column) = known.columns.get_mut(column) {
                    *column |= bits;
                }
            }
            return;
        }
        known.lost |= all;
        if is_inside && bits.iter().any(|(column, _)| row.is_missing(*column)) {
            known.gone.push((begin, length, kind));
        }
    }
}

/// All bits, or none.
const fn mask(all: bool) -> u32 {
    match all {
        true => u32::MAX,
        false => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_as_ranges_and_back() {
        assert_eq!(runs_of(0), []);
        assert_eq!(runs_of(0b1_0110), [1..3, 4..5]);
        assert_eq!(runs_of(0xf00f), [0..4, 12..16]);
        let (one, mut other) = (vec![0; 65536], vec![0; 65536]);
        assert_eq!(differing(&one, &other, 4096), 0);
        other[4096] = 1;
        other[65535] = 1;
        assert_eq!(differing(&one, &other, 4096), 0x8002);
    }
}
