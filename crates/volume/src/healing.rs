//! Reading with the choice among copies, and healing of the bad ones.
//!
//! Invariants: what a verifier refused is never given to the caller as good;
//! a copy is rewritten only with content that passed the verifier.
//!
//! Whoever reads as [`ReadAs::Current`] makes sure that the range is not freed
//! and written anew meanwhile: healing would bring old content back.

use crate::error::{BadCopy, CopyFault, VolumeError};
use crate::geometry::Mapping;
use crate::map::ChunkMap;
use crate::space::LogicalSpace;
use crate::stats::DeviceStats;
use crate::{bytes_of, memory_of};
use butterfs_format::{Logical, Physical};
use std::sync::Arc;

/// What a read that succeeded had to get over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Healed {
    /// Copies that were unreadable or differed from the good one.
    pub bad: usize,
    /// Those of them that were rewritten.
    pub rewritten: usize,
}

impl Healed {
    fn add(&mut self, other: Self) {
        self.bad = self.bad.saturating_add(other.bad);
        self.rewritten = self.rewritten.saturating_add(other.rewritten);
    }
}

/// Whether a range is known to stay as it is while it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadAs {
    /// The volume refers to it: bad copies are counted, and healed.
    Current,
    /// It may have been freed and written anew meanwhile: a copy that differs
    /// is perhaps newer, and is left alone.
    Former,
}

/// One piece of a range: contiguous in each of its copies.
struct Piece {
    logical: Logical,
    mapping: Mapping,
}

impl Piece {
    /// The copy to read at attempt `attempt`: pieces with fewer copies stay
    /// at their last.
    fn copy(&self, attempt: usize) -> Option<Physical> {
        let copies = &self.mapping.copies;
        copies.get(attempt).or(copies.last()).copied()
    }

    fn length(&self) -> usize {
        memory_of(self.mapping.length)
    }
}

fn pieces_of(map: &ChunkMap, logical: Logical, length: usize) -> Result<Vec<Piece>, VolumeError> {
    let mut pieces = Vec::new();
    let mut at = logical;
    let mut left = bytes_of(length);
    while left > 0 {
        let mapping = map.map(at, left)?;
        left = left.saturating_sub(mapping.length);
        let next = at.saturating_add(mapping.length);
        pieces.push(Piece {
            logical: at,
            mapping,
        });
        at = next;
    }
    Ok(pieces)
}

impl LogicalSpace {
    fn read_physical(&self, from: Physical, buffer: &mut [u8]) -> Result<(), CopyFault> {
        let Ok(member) = self.member(from.device) else {
            return Err(CopyFault::Missing);
        };
        member.device.read_at(from.offset, buffer).map_err(|error| {
            DeviceStats::count(&member.stats.read_errs);
            CopyFault::Unreadable(Arc::new(error))
        })
    }

    /// Fills `buffer` from one copy of each piece; the pieces that cannot be
    /// read are returned.
    fn read_attempt(&self, pieces: &[Piece], attempt: usize, buffer: &mut [u8]) -> Vec<BadCopy> {
        let mut bad = Vec::new();
        let mut rest = buffer;
        for piece in pieces {
            let (part, later) = rest.split_at_mut(piece.length().min(rest.len()));
            rest = later;
            let Some(physical) = piece.copy(attempt) else {
                continue;
            };
            if let Err(fault) = self.read_physical(physical, part) {
                bad.push(BadCopy { physical, fault });
            }
        }
        bad
    }

    /// Fills `buffer` from the first copy that can be read, without checks.
    /// What is unreadable is left alone.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read(&self, logical: Logical, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let pieces = pieces_of(&self.map(), logical, buffer.len())?;
        let mut rest = buffer;
        for piece in &pieces {
            let (part, later) = rest.split_at_mut(piece.length().min(rest.len()));
            rest = later;
            let mut copies = Vec::new();
            let readable = piece.mapping.copies.iter().any(|physical| {
                let read = self.read_physical(*physical, part);
                if let Err(fault) = read {
                    copies.push(BadCopy {
                        physical: *physical,
                        fault,
                    });
                    return false;
                }
                true
            });
            if !readable {
                return Err(VolumeError::NoGoodCopy {
                    logical: piece.logical,
                    copies,
                });
            }
        }
        Ok(())
    }

    /// Fills `buffer` from copy number `copy` alone, counted from 0, without
    /// checks: for whoever compares copies.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`]; [`VolumeError::NoGoodCopy`] when this copy
    /// does not exist or cannot be read.
    pub fn read_copy(
        &self,
        logical: Logical,
        copy: usize,
        buffer: &mut [u8],
    ) -> Result<(), VolumeError> {
        let pieces = pieces_of(&self.map(), logical, buffer.len())?;
        let exists = pieces.iter().all(|p| copy < p.mapping.copies.len());
        let copies = if exists {
            self.read_attempt(&pieces, copy, buffer)
        } else {
            Vec::new()
        };
        if exists && copies.is_empty() {
            return Ok(());
        }
        Err(VolumeError::NoGoodCopy { logical, copies })
    }

    /// Fills `buffer` with the first copy that `verify` accepts, and rewrites
    /// the copies before it that differ. `verify` sees the whole buffer.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read_verified(
        &self,
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Healed, VolumeError> {
        self.read_verified_as(ReadAs::Current, logical, buffer, verify)
    }

    /// [`LogicalSpace::read_verified`], which says what the range is.
    ///
    /// # Errors
    /// As there.
    pub fn read_verified_as(
        &self,
        read_as: ReadAs,
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Healed, VolumeError> {
        let pieces = pieces_of(&self.map(), logical, buffer.len())?;
        let attempts = pieces.iter().map(|p| p.mapping.copies.len()).max();
        let mut bad = Vec::new();
        for attempt in 0..attempts.unwrap_or(0) {
            let unreadable = self.read_attempt(&pieces, attempt, buffer);
            if unreadable.is_empty() {
                if verify(buffer) {
                    if attempt == 0 || read_as == ReadAs::Former {
                        return Ok(Healed::default());
                    }
                    return Ok(self.heal(&pieces, attempt, buffer));
                }
                bad.extend(pieces.iter().filter_map(|piece| {
                    Some(BadCopy {
                        physical: piece.copy(attempt)?,
                        fault: CopyFault::Damaged,
                    })
                }));
            }
            bad.extend(unreadable);
        }
        if buffer.is_empty() {
            return Ok(Healed::default());
        }
        for copy in bad.iter().filter(|_| read_as == ReadAs::Current) {
            if let (CopyFault::Damaged, Ok(member)) =
                (&copy.fault, self.member(copy.physical.device))
            {
                DeviceStats::count(&member.stats.corruption_errs);
            }
        }
        Err(VolumeError::NoGoodCopy {
            logical,
            copies: bad,
        })
    }

    /// Fills `buffer`, sector by sector, with the first copy that `verify`
    /// accepts, so that a sector that is bad in one copy and another that is
    /// bad in the other are both found. `verify` is given the index of the
    /// sector in `buffer`.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`]; [`VolumeError::NoGoodCopy`] of the first
    /// sector that has none.
    ///
    /// # Panics
    /// If `buffer` is no multiple of `sector_size`, or that is 0.
    pub fn read_verified_sectors(
        &self,
        logical: Logical,
        buffer: &mut [u8],
        sector_size: u32,
        verify: &mut dyn FnMut(usize, &[u8]) -> bool,
    ) -> Result<Healed, VolumeError> {
        let sector = memory_of(u64::from(sector_size));
        assert!(
            sector > 0 && buffer.len().is_multiple_of(sector),
            "whole sectors are read"
        );
        let pieces = pieces_of(&self.map(), logical, buffer.len())?;
        // Sectors of a piece that cannot be read as a whole may still be
        // readable one by one, from this copy or another.
        let unreadable = self.read_attempt(&pieces, 0, buffer);
        let mut in_doubt = Vec::new();
        let mut offset = 0_usize;
        for piece in &pieces {
            let failed = unreadable
                .iter()
                .any(|bad| Some(bad.physical) == piece.copy(0));
            let end = offset.saturating_add(piece.length());
            if failed {
                in_doubt.push(offset..end);
            }
            offset = end;
        }
        let mut healed = Healed::default();
        let mut at = logical;
        let mut start = 0_usize;
        for (index, part) in buffer.chunks_exact_mut(sector).enumerate() {
            let end = start.saturating_add(sector);
            let doubt = in_doubt
                .iter()
                .any(|range| range.start < end && start < range.end);
            if doubt || !verify(index, part) {
                healed.add(self.read_verified(at, part, &mut |data| verify(index, data))?);
            }
            start = end;
            at = at.saturating_add(u64::from(sector_size));
        }
        Ok(healed)
    }

    /// Writes copy number `copy` alone, counted from 0: for whoever found it
    /// bad and has what it should be. False where copies are not healed, or it
    /// does not exist.
    ///
    /// # Errors
    /// As [`LogicalSpace::write`].
    pub fn rewrite_copy(
        &self,
        logical: Logical,
        copy: usize,
        good: &[u8],
    ) -> Result<bool, VolumeError> {
        let mut rest = good;
        for piece in pieces_of(&self.map(), logical, good.len())? {
            let (part, later) = rest.split_at(piece.length().min(rest.len()));
            rest = later;
            let Some(physical) = piece.mapping.copies.get(copy).copied() else {
                return Ok(false);
            };
            let member = self.member(physical.device)?;
            if !self.may_heal(member) {
                return Ok(false);
            }
            self.check_write(piece.logical, physical, part.len())?;
            let written = member.device.write_at(physical.offset, part);
            written.inspect_err(|_| DeviceStats::count(&member.stats.write_errs))?;
        }
        Ok(true)
    }

    /// Rewrites the copies tried before `good_attempt` where they differ from
    /// `good`. A failure is counted, not reported: the read itself succeeded.
    fn heal(&self, pieces: &[Piece], good_attempt: usize, good: &[u8]) -> Healed {
        let mut healed = Healed::default();
        let mut rest = good;
        for piece in pieces {
            let (part, later) = rest.split_at(piece.length().min(rest.len()));
            rest = later;
            for physical in piece.mapping.copies.iter().take(good_attempt) {
                if Some(*physical) != piece.copy(good_attempt) {
                    healed.add(self.heal_copy(piece.logical, *physical, part));
                }
            }
        }
        healed
    }

    fn heal_copy(&self, logical: Logical, physical: Physical, good: &[u8]) -> Healed {
        let Ok(member) = self.member(physical.device) else {
            return Healed {
                bad: 1,
                rewritten: 0,
            };
        };
        let mut found = vec![0; good.len()];
        let readable = member.device.read_at(physical.offset, &mut found).is_ok();
        if readable && found == good {
            return Healed::default();
        }
        if readable {
            DeviceStats::count(&member.stats.corruption_errs);
        }
        let mut rewritten = 0;
        if self.may_heal(member) {
            match member.device.write_at(physical.offset, good) {
                Ok(()) => rewritten = 1,
                Err(_) => DeviceStats::count(&member.stats.write_errs),
            }
        }
        tracing::warn!(
            %logical,
            device = %physical.device,
            offset = %physical.offset,
            rewritten = rewritten == 1,
            "a copy is bad; another one is good"
        );
        Healed { bad: 1, rewritten }
    }
}
