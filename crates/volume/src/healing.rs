//! Reading with the choice among copies, and healing of the bad ones. Content
//! that has one copy, in a row with parity, can be rebuilt from the rest of the
//! row.
//!
//! Invariants: content that a verifier refused is never given to the caller as
//! good; a copy is rewritten only with content that passed the verifier.
//!
//! A caller that reads as [`ReadAs::Current`] makes sure that the range is not
//! freed and written anew meanwhile. Otherwise healing would bring old content
//! back.

use crate::error::{BadCopy, CopyFault, VolumeError};
use crate::geometry::Mapping;
use crate::map::ChunkMap;
use crate::member::Trust;
use crate::space::LogicalSpace;
use crate::stats::DeviceStats;
use crate::{bytes_of, memory_of, workers};
use butterfs_format::{DeviceId, DeviceOffset, Logical, Physical};
use parking_lot::Mutex;
use std::io::IoSliceMut;

/// What was wrong with copies that a successful read tried.
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

/// What content that no copy has right means for the error counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnFailure {
    /// Its devices are charged with it.
    Count,
    /// It has several parts, and which of them is bad is not known yet.
    CountNothing,
}

/// With several devices, the copy that is tried first changes after this many
/// bytes of a chunk. That is enough for a device to read ahead.
const TURN: u64 = 1 << 20;

/// One piece of a range: contiguous in each of its copies.
pub(crate) struct Piece {
    pub(crate) logical: Logical,
    pub(crate) mapping: Mapping,
}

/// Pieces that lie one behind the other on a device, and the buffers for them.
struct Stretch<'b> {
    start: Physical,
    end: DeviceOffset,
    /// It is a single piece, which is rebuilt from the rest of its row.
    is_made: bool,
    parts: Vec<(&'b Piece, &'b mut [u8])>,
}

impl Piece {
    /// Number of ways to read it: its copies, and the ways to rebuild it.
    fn attempts(&self) -> usize {
        let copies = self.mapping.copies.len();
        copies.saturating_add(self.mapping.rebuilds)
    }

    /// The copy to read at attempt `attempt`: pieces with fewer copies stay
    /// at their last.
    fn copy(&self, attempt: usize) -> Option<Physical> {
        let copies = &self.mapping.copies;
        copies.get(attempt).or(copies.last()).copied()
    }

    /// The way in which attempt `attempt` rebuilds it from the rest of its row,
    /// counted from 1; `None` if the attempt reads a copy.
    fn way(&self, attempt: usize) -> Option<usize> {
        let way = attempt.saturating_add(1);
        let way = way.saturating_sub(self.mapping.copies.len());
        (way > 0 && self.mapping.rebuilds > 0).then(|| way.min(self.mapping.rebuilds))
    }

    pub(crate) fn length(&self) -> usize {
        memory_of(self.mapping.length)
    }
}

pub(crate) fn pieces_of(
    map: &ChunkMap,
    logical: Logical,
    length: usize,
) -> Result<Vec<Piece>, VolumeError> {
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
    /// The pieces of a range, with their copies in the order of the attempts.
    fn plan(
        &self,
        map: &ChunkMap,
        logical: Logical,
        length: usize,
    ) -> Result<Vec<Piece>, VolumeError> {
        let mut pieces = pieces_of(map, logical, length)?;
        if self.has_several() {
            for piece in &mut pieces {
                self.order(&mut piece.mapping);
            }
        }
        Ok(pieces)
    }

    /// Puts copies in order: devices take turns, and copies that cannot or
    /// should not be read come last.
    fn order(&self, mapping: &mut Mapping) {
        let copies = &mut mapping.copies;
        let turn = mapping.within.checked_div(TURN).unwrap_or(0);
        let count = copies.len();
        let first = turn.checked_rem(bytes_of(count)).unwrap_or(0);
        copies.rotate_left(memory_of(first).min(count));
        copies.sort_by_key(|copy| match self.member(copy.device) {
            Some(member) if member.used().is_some() => match member.trust {
                Trust::Full => 0,
                Trust::Last => 1,
            },
            _ => 2,
        });
    }

    /// Fills `part` with a piece, by attempt number `attempt`.
    fn read_piece(
        &self,
        map: &ChunkMap,
        piece: &Piece,
        attempt: usize,
        part: &mut [u8],
    ) -> Result<(), BadCopy> {
        if let Some(way) = piece.way(attempt) {
            return self.rebuild(map, piece.logical, way, part);
        }
        match piece.copy(attempt) {
            Some(physical) => self
                .read_physical(physical, part)
                .map_err(|fault| BadCopy { physical, fault }),
            None => Ok(()),
        }
    }

    /// Fills `buffer` by one attempt for each piece. Returns the copies that
    /// could not be read.
    fn read_attempt(
        &self,
        map: &ChunkMap,
        pieces: &[Piece],
        attempt: usize,
        buffer: &mut [u8],
    ) -> Vec<BadCopy> {
        if self.has_several() && pieces.len() > 1 && buffer.len() >= workers::WORTH_IT {
            return self.read_at_once(map, pieces, attempt, buffer);
        }
        let mut bad = Vec::new();
        let mut rest = buffer;
        for piece in pieces {
            let (part, later) = rest.split_at_mut(piece.length().min(rest.len()));
            rest = later;
            bad.extend(self.read_piece(map, piece, attempt, part).err());
        }
        bad
    }

    /// [`LogicalSpace::read_attempt`], from all devices at the same time.
    fn read_at_once(
        &self,
        map: &ChunkMap,
        pieces: &[Piece],
        attempt: usize,
        buffer: &mut [u8],
    ) -> Vec<BadCopy> {
        let mut jobs: Vec<(DeviceId, Stretch<'_>)> = Vec::new();
        let mut rest = buffer;
        for piece in pieces {
            let (part, later) = rest.split_at_mut(piece.length().min(rest.len()));
            rest = later;
            let Some(physical) = piece.copy(attempt) else {
                continue;
            };
            let mut earlier = jobs.iter_mut().rev();
            let last = earlier.find(|(device, _)| *device == physical.device);
            let is_made = piece.way(attempt).is_some();
            match last {
                Some((_, stretch))
                    if stretch.end == physical.offset && !is_made && !stretch.is_made =>
                {
                    stretch.end = physical.offset.saturating_add(bytes_of(part.len()));
                    stretch.parts.push((piece, part));
                }
                _ => {
                    let stretch = Stretch {
                        start: physical,
                        end: physical.offset.saturating_add(bytes_of(part.len())),
                        is_made,
                        parts: vec![(piece, part)],
                    };
                    jobs.push((physical.device, stretch));
                }
            }
        }
        let bad = Mutex::new(Vec::new());
        let waits = Mutex::new(Vec::new());
        self.workers.run(self.count(), jobs, |stretch| {
            if !stretch.is_made {
                let found = self.read_stretch(map, attempt, stretch);
                bad.lock().extend(found);
                return;
            }
            for (piece, part) in stretch.parts {
                let way = piece.way(attempt).unwrap_or(1);
                match self.rebuild_unless_written(map, piece.logical, way, part) {
                    Some(result) => bad.lock().extend(result.err()),
                    None => waits.lock().push((piece, part)),
                }
            }
        });
        let mut bad = bad.into_inner();
        for (piece, part) in waits.into_inner() {
            bad.extend(self.read_piece(map, piece, attempt, part).err());
        }
        bad
    }

    /// Fills the parts of a stretch by one request or, if that fails, by one
    /// for each piece. Returns the copies that could not be read.
    fn read_stretch(
        &self,
        map: &ChunkMap,
        attempt: usize,
        mut stretch: Stretch<'_>,
    ) -> Vec<BadCopy> {
        let mut failed = None;
        if stretch.parts.len() > 1
            && let Ok((device, stats)) = self.used(stretch.start.device)
        {
            let parts = stretch.parts.iter_mut();
            let mut parts: Vec<_> = parts.map(|(_, part)| IoSliceMut::new(part)).collect();
            match device.read_vectored_at(stretch.start.offset, &mut parts) {
                Ok(()) => return Vec::new(),
                Err(_) => failed = Some(stats),
            }
        }
        let parts = stretch.parts.into_iter();
        let bad: Vec<_> = parts
            .filter_map(|(piece, part)| self.read_piece(map, piece, attempt, part).err())
            .collect();
        // If single pieces fail too, `read_piece` has counted that.
        if let Some(stats) = failed.filter(|_| bad.is_empty()) {
            DeviceStats::count(&stats.read_errs);
        }
        bad
    }

    /// Fills `buffer` by the first attempt of a read without checks. Nothing is
    /// healed or counted as damaged.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read_first(&self, logical: Logical, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let map = self.map();
        let pieces = self.plan(&map, logical, buffer.len())?;
        let copies = self.read_attempt(&map, &pieces, 0, buffer);
        match copies.is_empty() {
            true => Ok(()),
            false => Err(VolumeError::NoGoodCopy { logical, copies }),
        }
    }

    /// Fills `buffer` from the first copy that can be read, without checks.
    /// Unreadable copies are left alone.
    ///
    /// # Errors
    /// [`VolumeError::Unmapped`], [`VolumeError::NoGoodCopy`]
    pub fn read(&self, logical: Logical, buffer: &mut [u8]) -> Result<(), VolumeError> {
        let map = self.map();
        let pieces = self.plan(&map, logical, buffer.len())?;
        if self.has_several() && self.read_attempt(&map, &pieces, 0, buffer).is_empty() {
            return Ok(());
        }
        let mut rest = buffer;
        for piece in &pieces {
            let (part, later) = rest.split_at_mut(piece.length().min(rest.len()));
            rest = later;
            let mut copies = Vec::new();
            let readable = (0..piece.attempts()).any(|attempt| {
                let read = self.read_piece(&map, piece, attempt, part);
                read.map_err(|copy| copies.push(copy)).is_ok()
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
    /// checks. It is for callers that compare copies. The numbers behind those
    /// of the copies are the ways to rebuild the content from the rest of its
    /// row.
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
        let map = self.map();
        let pieces = pieces_of(&map, logical, buffer.len())?;
        let exists = pieces.iter().all(|piece| copy < piece.attempts());
        let copies = if exists {
            self.read_attempt(&map, &pieces, copy, buffer)
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

    /// [`LogicalSpace::read_verified`] with `read_as`, which says whether the
    /// range may be written anew meanwhile.
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
        let how = (read_as, OnFailure::Count);
        self.read_by_attempts(how, logical, buffer, verify)
    }

    /// [`LogicalSpace::read_verified`] for several sectors, which the caller
    /// reads one by one if there is no copy in which all are good. Nothing is
    /// counted as damaged then: only a sector that is bad by itself says which
    /// device has the damage.
    ///
    /// # Errors
    /// As there.
    pub fn read_verified_together(
        &self,
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Healed, VolumeError> {
        let how = (ReadAs::Current, OnFailure::CountNothing);
        self.read_by_attempts(how, logical, buffer, verify)
    }

    fn read_by_attempts(
        &self,
        (read_as, on_failure): (ReadAs, OnFailure),
        logical: Logical,
        buffer: &mut [u8],
        verify: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<Healed, VolumeError> {
        let map = self.map();
        let pieces = self.plan(&map, logical, buffer.len())?;
        let attempts = pieces.iter().map(Piece::attempts).max();
        let mut bad = Vec::new();
        for attempt in 0..attempts.unwrap_or(0) {
            let unreadable = self.read_attempt(&map, &pieces, attempt, buffer);
            if unreadable.is_empty() {
                if verify(buffer) {
                    if attempt == 0 || read_as == ReadAs::Former {
                        return Ok(Healed::default());
                    }
                    return Ok(self.heal(&pieces, attempt, buffer));
                }
                // A rebuilt piece does not say which element is bad.
                let read = pieces.iter().filter(|piece| piece.way(attempt).is_none());
                bad.extend(read.filter_map(|piece| {
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
        let counts = read_as == ReadAs::Current && on_failure == OnFailure::Count;
        for copy in bad.iter().filter(|_| counts) {
            if let (CopyFault::Damaged, Some(member)) =
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
        let map = self.map();
        let pieces = self.plan(&map, logical, buffer.len())?;
        // Sectors of a piece that cannot be read as a whole may still be
        // readable one by one, from this copy or another.
        let unreadable = self.read_attempt(&map, &pieces, 0, buffer);
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

    /// Writes copy number `copy` alone, counted from 0. It is for callers that
    /// found this copy bad and have the right content. False if copies are not
    /// healed, or if there is no such copy.
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
            let Ok((device, stats)) = self.used(physical.device) else {
                return Ok(false);
            };
            if !self.may_heal(&*device) {
                return Ok(false);
            }
            self.check_write(piece.logical, physical, part.len())?;
            let written = device.write_at(physical.offset, part);
            written.inspect_err(|_| DeviceStats::count(&stats.write_errs))?;
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
            let is_made = piece.way(good_attempt).is_some();
            for physical in piece.mapping.copies.iter().take(good_attempt) {
                if is_made || Some(*physical) != piece.copy(good_attempt) {
                    healed.add(self.heal_copy(piece.logical, *physical, part));
                }
            }
        }
        healed
    }

    fn heal_copy(&self, logical: Logical, physical: Physical, good: &[u8]) -> Healed {
        let Ok((device, stats)) = self.used(physical.device) else {
            return Healed {
                bad: 1,
                rewritten: 0,
            };
        };
        let mut found = vec![0; good.len()];
        let readable = device.read_at(physical.offset, &mut found).is_ok();
        if readable && found == good {
            return Healed::default();
        }
        if readable {
            DeviceStats::count(&stats.corruption_errs);
        }
        let mut rewritten = 0;
        if self.may_heal(&*device) {
            match device.write_at(physical.offset, good) {
                Ok(()) => rewritten = 1,
                Err(_) => DeviceStats::count(&stats.write_errs),
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
