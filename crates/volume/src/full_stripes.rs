//! Rows of elements with parity: reading what is lost, and writing.
//!
//! Owns the way from a row's devices to its content and back. A write also
//! writes the parities of what it changes. They come from the new data alone if
//! these fill the row; otherwise the old data around them are read too.
//!
//! A power cut between the writes of one row leaves a parity that does not
//! match. What is rebuilt from it is wrong, and only a checksum shows that. So
//! rows should be written as a whole, with nothing else in them.

use crate::error::{BadCopy, CopyFault, VolumeError};
use crate::geometry::{ELEMENT, Row};
use crate::map::ChunkMap;
use crate::parity;
use crate::space::LogicalSpace;
use crate::stats::DeviceStats;
use crate::{bytes_of, memory_of};
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use std::ops::Range;
use std::sync::Arc;

/// Named in errors if a row has no such place.
const NOWHERE: Physical = Physical {
    device: DeviceId(0),
    offset: DeviceOffset(0),
};

/// A part of a row: the same bytes of each of its elements.
pub(crate) struct Slice {
    pub(crate) row: Row,
    /// Bytes of the elements.
    span: Range<u64>,
    /// Their content: data in logical order, then parities.
    pub(crate) columns: Vec<Vec<u8>>,
    /// Which of them could not be read.
    pub(crate) lost: Vec<usize>,
}

impl Slice {
    pub(crate) fn place(&self, column: usize) -> Option<Physical> {
        let element = self.row.elements.get(column)?;
        Some(Physical {
            device: element.device,
            offset: element.offset.checked_add(self.span.start)?,
        })
    }

    pub(crate) fn data(&self) -> usize {
        self.columns.len().saturating_sub(self.row.parities)
    }
}

/// Where a byte of a row lies: column and offset in the element.
pub(crate) fn position(row: Logical, at: Logical) -> (usize, u64) {
    let within = at.get().saturating_sub(row.get());
    let column = within.checked_div(ELEMENT).unwrap_or(0);
    let inside = within.checked_rem(ELEMENT).unwrap_or(0);
    (memory_of(column), inside)
}

impl LogicalSpace {
    /// Reads columns of a row; the others stay zeros.
    pub(crate) fn read_slice(
        &self,
        row: Row,
        span: Range<u64>,
        wanted: impl Fn(usize) -> bool,
    ) -> Slice {
        let length = memory_of(span.end.saturating_sub(span.start));
        let count = row.elements.len();
        let mut slice = Slice {
            row,
            span,
            columns: vec![vec![0; length]; count],
            lost: Vec::new(),
        };
        for column in 0..count {
            let Some(place) = slice.place(column) else {
                continue;
            };
            let Some(content) = slice.columns.get_mut(column) else {
                continue;
            };
            if wanted(column) && self.read_physical(place, content).is_err() {
                slice.lost.push(column);
            }
        }
        slice
    }

    /// Rebuilds the content at `logical` from the rest of its row. Way 1 uses
    /// all other elements that can be read; each further `way` takes one more
    /// of them for bad. It waits for the end of writes to the row, and a write
    /// may wait for the workers. So no worker may call it. Whoever holds a row
    /// may: nobody writes to that row, so its holder does not wait.
    pub(crate) fn rebuild(
        &self,
        map: &ChunkMap,
        logical: Logical,
        way: usize,
        buffer: &mut [u8],
    ) -> Result<(), BadCopy> {
        if let Some(result) = self.rebuild_unless_written(map, logical, way, buffer) {
            return result;
        }
        let row = map.row(logical);
        let _nobody_writes = row.map(|(start, _)| self.hold_row_at(start));
        let held = self.rebuild_unless_written(map, logical, way, buffer);
        held.unwrap_or(Err(BadCopy {
            physical: NOWHERE,
            fault: CopyFault::Missing,
        }))
    }

    /// [`LogicalSpace::rebuild`]; `None` if somebody writes to the row.
    pub(crate) fn rebuild_unless_written(
        &self,
        map: &ChunkMap,
        logical: Logical,
        way: usize,
        buffer: &mut [u8],
    ) -> Option<Result<(), BadCopy>> {
        let bad = |physical, fault| Some(Err(BadCopy { physical, fault }));
        let Some((start, row)) = map.row(logical) else {
            return bad(NOWHERE, CopyFault::Missing);
        };
        let (own, inside) = position(start, logical);
        let count = row.elements.len();
        // The element that this way takes for bad: any but its own.
        let other = way
            .checked_sub(2)
            .and_then(|n| (0..count).filter(|column| *column != own).nth(n));
        let span = inside..inside.saturating_add(bytes_of(buffer.len()));
        let distrusted = |column: usize| column == own || Some(column) == other;
        let mut slice = self.unless_written(start, || {
            self.read_slice(row, span, |column| !distrusted(column))
        })?;
        slice
            .lost
            .extend((0..count).filter(|column| distrusted(*column)));
        slice.lost.sort_unstable();
        let physical = slice.place(own).unwrap_or(NOWHERE);
        if !parity::solve(&mut slice.columns, slice.row.parities, &slice.lost) {
            return bad(physical, CopyFault::Missing);
        }
        match slice.columns.get(own) {
            Some(content) => buffer.copy_from_slice(content),
            None => return bad(physical, CopyFault::Missing),
        }
        Some(Ok(()))
    }

    /// Errors if it is known beforehand that the row of `logical` cannot be
    /// written.
    pub(crate) fn check_row(&self, map: &ChunkMap, logical: Logical) -> Result<(), VolumeError> {
        let Some((_, row)) = map.row(logical) else {
            return Ok(());
        };
        let mut missing = 0_usize;
        for element in &row.elements {
            match self.check_write(logical, *element, memory_of(ELEMENT)) {
                Err(VolumeError::MissingDevice(_)) => missing = missing.saturating_add(1),
                other => other?,
            }
        }
        match missing > row.parities {
            true => Err(VolumeError::TooFewDevices {
                logical,
                profile: map.profile(logical).unwrap_or(crate::Profile::Raid5),
            }),
            false => Ok(()),
        }
    }

    /// Writes parts of rows, each within an element, with their parities.
    pub(crate) fn write_rows(
        &self,
        map: &ChunkMap,
        mut parts: Vec<(Logical, &[u8])>,
    ) -> Result<(), VolumeError> {
        parts.sort_by_key(|(logical, _)| *logical);
        let mut rest = &parts[..];
        while let Some((first, _)) = rest.first() {
            let unmapped = VolumeError::Unmapped {
                logical: *first,
                length: 1,
            };
            let (start, row) = map.row(*first).ok_or(unmapped)?;
            let data = row.elements.len().saturating_sub(row.parities);
            let end = start.saturating_add(ELEMENT.saturating_mul(bytes_of(data)));
            let (own, later) = rest.split_at(rest.partition_point(|(at, _)| *at < end));
            self.write_row(start, row, own)?;
            rest = later;
        }
        Ok(())
    }

    fn write_row(
        &self,
        start: Logical,
        row: Row,
        parts: &[(Logical, &[u8])],
    ) -> Result<(), VolumeError> {
        let _one_at_a_time = self.hold_row_at(start);
        let placed = || {
            parts.iter().map(|(at, part)| {
                let (column, inside) = position(start, *at);
                (column, inside, *part)
            })
        };
        let ends = placed().map(|(_, inside, part)| inside.saturating_add(bytes_of(part.len())));
        let span =
            placed().map(|(_, inside, _)| inside).min().unwrap_or(0)..ends.max().unwrap_or(0);
        let length = span.end.saturating_sub(span.start);
        // Blocks do not overlap, so they cover a column if their lengths add up
        // to it.
        let is_new = |column: usize| {
            let own = placed().filter(|(of, _, _)| *of == column);
            own.map(|(_, _, part)| bytes_of(part.len())).sum::<u64>() == length
        };
        let data = row.elements.len().saturating_sub(row.parities);
        let is_kept = |column: usize| column < data && !is_new(column);
        let mut slice = self.read_slice(row.clone(), span.clone(), is_kept);
        if !slice.lost.is_empty() {
            // Data that stay are rebuilt first, from everything that can be
            // read.
            slice = self.read_slice(row, span.clone(), |_| true);
            if !parity::solve(&mut slice.columns, slice.row.parities, &slice.lost) {
                let copies = slice.lost.iter().filter_map(|column| slice.place(*column));
                let copies = copies.map(|physical| BadCopy {
                    physical,
                    fault: CopyFault::Missing,
                });
                return Err(VolumeError::NoGoodCopy {
                    logical: start,
                    copies: copies.collect(),
                });
            }
        }
        for (column, inside, part) in placed() {
            let from = memory_of(inside.saturating_sub(span.start));
            let target = slice
                .columns
                .get_mut(column)
                .and_then(|column| column.get_mut(from..from.saturating_add(part.len())));
            if let Some(target) = target {
                target.copy_from_slice(part);
            }
        }
        let parities: Vec<usize> = (data..slice.columns.len()).collect();
        parity::solve(&mut slice.columns, slice.row.parities, &parities);
        let mut pieces: Vec<(Physical, &[u8])> = Vec::new();
        for (column, inside, part) in placed() {
            if let Some(element) = slice.row.elements.get(column) {
                let offset = element.offset.saturating_add(inside);
                pieces.push((Physical { offset, ..*element }, part));
            }
        }
        for column in slice.data()..slice.columns.len() {
            if let (Some(place), Some(content)) = (slice.place(column), slice.columns.get(column)) {
                pieces.push((place, content));
            }
        }
        let _do_not_match = self.write_to_row(start);
        // The parity makes up for what cannot be written.
        pieces.retain(|(physical, _)| self.is_written(physical.device));
        self.write_pieces(pieces)
    }

    /// Reads a place of a device that is used; a failure is counted.
    ///
    /// # Errors
    /// It is missing, or cannot be read.
    pub fn read_physical(&self, from: Physical, buffer: &mut [u8]) -> Result<(), CopyFault> {
        let Ok((device, stats)) = self.used(from.device) else {
            return Err(CopyFault::Missing);
        };
        device.read_at(from.offset, buffer).map_err(|error| {
            DeviceStats::count(&stats.read_errs);
            CopyFault::Unreadable(Arc::new(error))
        })
    }
}
