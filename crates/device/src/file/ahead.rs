//! Blocks that the file system under an image allocates ahead.
//!
//! When a file gets a block that it did not have, or writes one for the first
//! time, its file system notes that in a journal, and each fdatasync then waits
//! for the journal too. So before a small write that is soon to be durable, the
//! holes around it are filled with zeros. Later writes there change no more
//! than the content, and fdatasync only flushes the disk.
//!
//! Invariants: only what is a hole and reads as zeros is filled, while nobody
//! writes to the device. The file does not become longer.

use crate::DeviceRange;
use crate::parts::{self, after};
use rustix::fs::{FsWord, SeekFrom};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Bytes that are filled together.
const REGION: u64 = 4 << 20;
/// Bytes between two flushes that count as small writes, of several callers.
/// Whoever writes more waits for the disk, not for the journal.
const SMALL: u64 = 1 << 20;
/// Regions that are filled between two flushes.
const FILLED_MAX: usize = 4;
/// Bytes that the file system must have free.
const KEPT_FREE: u64 = 1 << 30;
/// Bytes that are read and written at a time.
const PIECE: usize = 1 << 20;

/// What became of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    /// All its blocks are written.
    Filled,
    /// It could not be filled.
    GivenUp,
}

/// Which regions of a file were filled.
#[derive(Debug)]
pub(super) struct Ahead {
    regions: Mutex<BTreeMap<u64, Region>>,
    /// Bytes that were written since the last flush.
    since_flush: AtomicU64,
    /// Regions that were asked for since the last flush.
    asked_for: AtomicUsize,
    overwrites: Overwrites,
}

/// What a write to blocks that were written before needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Overwrites {
    /// Nothing: they stay where they are.
    InPlace,
    /// Perhaps other blocks, because files may share them.
    PerhapsElsewhere,
}

/// Regions that a range touches.
fn regions_of(range: DeviceRange) -> Range<u64> {
    let first = range.start.get() / REGION;
    first..range.end().get().div_ceil(REGION).max(first)
}

impl Ahead {
    /// For a file on a file system with such a journal.
    pub(super) fn of(file: &File) -> Option<Self> {
        const EXT4: FsWord = 0xef53;
        const XFS: FsWord = 0x5846_5342;
        let overwrites = match rustix::fs::fstatfs(file).ok()?.f_type {
            EXT4 => Overwrites::InPlace,
            XFS => Overwrites::PerhapsElsewhere,
            _ => return None,
        };
        Some(Self {
            regions: Mutex::default(),
            since_flush: AtomicU64::new(0),
            asked_for: AtomicUsize::new(0),
            overwrites,
        })
    }

    fn regions(&self) -> MutexGuard<'_, BTreeMap<u64, Region>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Regions to be filled before these ranges are written.
    pub(super) fn wanted(&self, ranges: &[DeviceRange]) -> Vec<u64> {
        let bytes = ranges.iter().map(|range| range.length).sum();
        let before = self.since_flush.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > SMALL {
            return Vec::new();
        }
        let known = self.regions();
        let touched: BTreeSet<u64> = ranges.iter().flat_map(|range| regions_of(*range)).collect();
        touched
            .into_iter()
            .filter(|region| !known.contains_key(region))
            .take_while(|_| self.asked_for.fetch_add(1, Ordering::Relaxed) < FILLED_MAX)
            .collect()
    }

    /// Whether a write of this range cannot fail for want of space.
    pub(super) fn has(&self, range: DeviceRange) -> bool {
        let known = self.regions();
        self.overwrites == Overwrites::InPlace
            && regions_of(range).all(|region| known.get(&region) == Some(&Region::Filled))
    }

    /// Notes a flush.
    pub(super) fn flushed(&self) {
        self.since_flush.store(0, Ordering::Relaxed);
        self.asked_for.store(0, Ordering::Relaxed);
    }

    /// Notes that a range may have holes again.
    pub(super) fn forget(&self, range: DeviceRange) {
        let mut known = self.regions();
        regions_of(range).for_each(|region| {
            known.remove(&region);
        });
    }

    /// Fills a region, as far as it lies within `size`. The caller makes sure
    /// that nobody writes to the device meanwhile.
    pub(super) fn fill(&self, file: &File, region: u64, size: u64) {
        let start = region.saturating_mul(REGION);
        let end = start.saturating_add(REGION).min(size);
        let filled = has_room(file) && fill_holes(file, start..end).is_some();
        let state = match filled {
            true => Region::Filled,
            false => Region::GivenUp,
        };
        self.regions().insert(region, state);
    }
}

fn has_room(file: &File) -> bool {
    let facts = rustix::fs::fstatvfs(file);
    facts.is_ok_and(|facts| facts.f_bavail.saturating_mul(facts.f_frsize) >= KEPT_FREE)
}

/// Fills the holes of a range; `None` if something is in the way.
fn fill_holes(file: &File, range: Range<u64>) -> Option<()> {
    let mut at = range.start;
    while at < range.end {
        let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).ok()?;
        if hole >= range.end {
            break;
        }
        let data = match rustix::fs::seek(file, SeekFrom::Data(hole)) {
            Ok(data) => data.min(range.end),
            Err(rustix::io::Errno::NXIO) => range.end,
            Err(_) => return None,
        };
        fill_hole(file, hole..data)?;
        at = data;
    }
    Some(())
}

fn fill_hole(file: &File, hole: Range<u64>) -> Option<()> {
    let zeros = vec![0; PIECE];
    let mut found = vec![0; PIECE];
    let mut at = hole.start;
    while at < hole.end {
        let left = usize::try_from(hole.end.saturating_sub(at)).unwrap_or(PIECE);
        let length = left.min(PIECE);
        let (zeros, found) = (zeros.get(..length)?, found.get_mut(..length)?);
        parts::read(file, at, &mut &mut [IoSliceMut::new(found)][..], 1).ok()?;
        if found != zeros {
            return None;
        }
        parts::write(file, at, &[IoSlice::new(zeros)], (0, 1)).ok()?;
        at = after(at, length);
    }
    Some(())
}
