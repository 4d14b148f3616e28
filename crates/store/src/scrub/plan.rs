//! What there is to verify in a part of a stretch.

use crate::engine::Engine;
use crate::error::StoreError;
use crate::item_fault::ItemFault;
use crate::refs::checksums::SectorChecksums;
use crate::refs::record::ExtentHead;
use crate::scrub::report::ScrubCounts;
use butterfs_format::{Generation, Logical, TreeId};
use butterfs_volume::{StripeLayout, StripePart, StripeRole};
use std::ops::{ControlFlow, Range};

/// Sectors that a stripe element has at most.
pub(super) const PARITY_SECTORS_MAX: u32 = 16;
/// Bytes that a thread reads at once: they stay in its cache while they are
/// verified.
const RUN_BYTES: u64 = 512 << 10;
/// Longer gaps between extents are not read.
const GAP_MAX: u64 = 128 << 10;
/// Data extents are verified in parts of this size.
const PART_BYTES: u64 = 256 << 10;

/// Something to verify that lies in one piece on its device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    /// Offset in the stretch.
    pub at: u64,
    pub logical: u64,
    pub length: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Node { level: u8, generation: Generation },
    Data,
}

/// A row of which the stretch holds a parity.
#[derive(Clone, Debug)]
pub(super) struct ParityPiece {
    /// Where the row begins in logical space.
    pub row: u64,
    pub which: usize,
    /// Sectors, within an element, at which some data are in use.
    pub sectors: u32,
    /// Which of [`Plan::rows`] are in it.
    pub data: Range<usize>,
}

/// What is to be verified in a step.
pub(super) struct Plan {
    /// By their offsets in the stretch.
    pub pieces: Vec<Piece>,
    pub parities: Vec<ParityPiece>,
    /// Data of rows with parities, in which a matching parity proves nothing:
    /// with two parities, bad data may match one of them while the other one
    /// could rebuild them.
    pub rows: Vec<Piece>,
    /// Nodes that begin here and go on in another element, by logical address.
    pub split_nodes: Vec<(u64, What)>,
    pub counts: ScrubCounts,
    /// Checksums from the first sector of data on.
    pub sums: Option<(u64, SectorChecksums)>,
}

/// Neighbouring pieces that are read at once.
pub(super) struct Run {
    /// Offsets in the stretch.
    pub range: Range<u64>,
    pub pieces: Range<usize>,
}

impl What {
    pub fn of(head: &ExtentHead) -> Self {
        match head.level() {
            None => Self::Data,
            Some(level) => Self::Node {
                level,
                generation: head.generation,
            },
        }
    }
}

/// Bits of the sectors of an element that a range in it touches.
pub(super) fn sectors_of(inside: Range<u64>, sector: u64) -> u32 {
    let first = inside.start / sector;
    let last = inside
        .end
        .div_ceil(sector)
        .min(u64::from(PARITY_SECTORS_MAX));
    (first..last).fold(0, |bits, index| bits | 1 << index)
}

impl Engine {
    /// What there is to verify in a part of a stripe.
    pub(super) fn plan_scrub(
        &self,
        chunk: Logical,
        layout: &StripeLayout,
        within: &Range<u64>,
    ) -> Result<Plan, StoreError> {
        let mut plan = Plan {
            pieces: Vec::new(),
            parities: Vec::new(),
            rows: Vec::new(),
            split_nodes: Vec::new(),
            counts: ScrubCounts::default(),
            sums: None,
        };
        let mut sums: Option<Range<u64>> = None;
        let start = chunk.get();
        let range = start + within.start..start + within.end;
        let sector = self.sector_size();
        let chunk_end = start.saturating_add(layout.chunk_length());
        self.visit_extents_over(&range, &mut |head, length| {
            let begin = head.key.objectid;
            let end = begin.saturating_add(length);
            if begin < start || end > chunk_end {
                let fault = ItemFault::BeyondChunk;
                return Err(crate::corrupt_item(TreeId::EXTENT, head.key, fault));
            }
            let own = begin.max(range.start)..end.min(range.end);
            let what = What::of(head);
            if let What::Data = what {
                sums = Some(sums.as_ref().map_or(own.start, |sums| sums.start)..own.end);
            }
            let own = own.start - start..own.end - start;
            layout.visit(own, &mut |of| {
                plan.add((begin, length, what), (start, sector), of, layout);
            });
            Ok(ControlFlow::Continue(()))
        })?;
        if let Some(range) = sums {
            plan.sums = Some((range.start, self.data_checksums(range)?));
        }
        // Rows follow each other, and so do the elements of one stripe.
        plan.pieces.sort_by_key(|piece| piece.at);
        Ok(plan)
    }
}

impl Plan {
    fn add(
        &mut self,
        (begin, length, what): (u64, u64, What),
        (start, sector): (u64, u64),
        part: StripePart,
        layout: &StripeLayout,
    ) {
        let logical = start + part.within.start;
        let bytes = part.within.end - part.within.start;
        let at = match part.role {
            StripeRole::None => return,
            StripeRole::Held { at } => at,
            StripeRole::Parity { row, which, .. } => {
                let bits = sectors_of(part.inside..part.inside + bytes, sector);
                let row = start + row;
                let first = self.rows.len();
                let is_whole = match what {
                    What::Node { .. } => logical == begin && bytes == length,
                    What::Data => true,
                };
                if layout.parities() > 1 && is_whole {
                    self.rows.push(Piece {
                        at: part.inside,
                        logical,
                        length: bytes,
                        what,
                    });
                }
                match self.parities.last_mut() {
                    Some(last) if last.row == row => {
                        last.sectors |= bits;
                        last.data.end = self.rows.len();
                    }
                    _ => self.parities.push(ParityPiece {
                        row,
                        which,
                        sectors: bits,
                        data: first..self.rows.len(),
                    }),
                }
                return;
            }
        };
        let is_first = logical == begin;
        match what {
            // It is verified where it begins.
            What::Node { .. } if !is_first => return,
            What::Node { .. } => {
                self.counts.tree_extents += 1;
                self.counts.tree_bytes += length;
                if bytes < length {
                    self.split_nodes.push((logical, what));
                    return;
                }
            }
            What::Data => {
                self.counts.data_extents += u64::from(is_first);
                self.counts.data_bytes += bytes;
            }
        }
        let most = match what {
            What::Node { .. } => length,
            What::Data => PART_BYTES,
        };
        let mut done = 0;
        while done < bytes {
            let length = most.min(bytes - done);
            self.pieces.push(Piece {
                at: at + done,
                logical: logical + done,
                length,
                what,
            });
            done += length;
        }
    }

    /// Checksum of a sector of data.
    pub fn sum(&self, logical: u64, sector: u64) -> Option<&[u8]> {
        let (first, sums) = self.sums.as_ref()?;
        sums.get((logical.checked_sub(*first)? / sector) as usize)
    }

    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (index, piece) in self.pieces.iter().enumerate() {
            let (start, end) = (piece.at, piece.at + piece.length);
            if let Some(run) = runs.last_mut()
                && start.saturating_sub(run.range.end) <= GAP_MAX
                && end - run.range.start <= RUN_BYTES
            {
                run.range.end = end;
                run.pieces.end = index + 1;
                continue;
            }
            runs.push(Run {
                range: start..end,
                pieces: index..index + 1,
            });
        }
        runs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_of_an_element() {
        assert_eq!(sectors_of(0..65536, 4096), 0xffff);
        assert_eq!(sectors_of(4096..8192, 4096), 2);
        assert_eq!(sectors_of(4095..8193, 4096), 7);
        assert_eq!(sectors_of(0..65536, 65536), 1);
        assert_eq!(sectors_of(0..0, 4096), 0);
    }
}
