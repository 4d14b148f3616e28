//! Data of an inode that are not on the device yet.
//!
//! Owns the runs of one inode, and their count in the sum over all inodes. The
//! count follows every change, so no caller can forget it.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs grow up to this many bytes.
const RUN_MAX: usize = 1 << 20;
/// A run that grows to this much gets the memory of a whole one at once.
const ROOMY_FROM: usize = 128 << 10;
/// How many whole runs keep their memory for later runs at most: twice what one
/// inode gathers before it is flushed.
const SPARE_MAX: usize = 16;
/// The part of all buffers' memory that these runs may have.
const SPARE_PART: u64 = 8;

/// Memory of runs that were flushed. Memory that is given back to the system
/// and asked for again costs a page fault for each of its pages.
#[derive(Debug)]
pub(crate) struct Spare {
    runs: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

impl Spare {
    /// Nothing yet, where all buffers together may hold `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        let part = limit / SPARE_PART / RUN_MAX as u64;
        Self {
            runs: Mutex::default(),
            most: usize::try_from(part).map_or(SPARE_MAX, |most| most.min(SPARE_MAX)),
        }
    }

    /// Gives the memory back to the allocator.
    pub(crate) fn clear(&self) {
        self.runs.lock().clear();
    }

    /// An empty run with room for all that a run can hold.
    fn take(&self) -> Vec<u8> {
        let spare = self.runs.lock().pop();
        spare.unwrap_or_else(|| Vec::with_capacity(RUN_MAX))
    }

    fn put(&self, mut run: Vec<u8>) {
        if run.capacity() >= RUN_MAX {
            let mut spare = self.runs.lock();
            if spare.len() < self.most {
                run.clear();
                spare.push(run);
            }
        }
    }
}

/// What a buffer's bytes are part of.
#[derive(Clone, Debug)]
pub(crate) struct Sums {
    /// All inodes.
    pub(crate) all: Arc<AtomicU64>,
    /// Those of the subvolume.
    pub(crate) subvolume: Arc<AtomicU64>,
    /// Memory for all inodes' runs.
    pub(crate) spare: Arc<Spare>,
}

/// Dirty data of one inode: disjoint runs of whole sectors.
#[derive(Debug, Default)]
pub struct WriteBuffer {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: u64,
    /// Sums of several inodes' bytes, once this buffer is part of them.
    sums: Option<Sums>,
}

impl WriteBuffer {
    /// True without data.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Bytes in it.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Takes all data out. What comes later is part of the same sums.
    pub(crate) fn take(&mut self) -> Self {
        let mut empty = Self::default();
        empty.sums.clone_from(&self.sums);
        std::mem::replace(self, empty)
    }

    /// True once its bytes are part of a sum.
    pub(crate) const fn is_charged(&self) -> bool {
        self.sums.is_some()
    }

    /// Makes its bytes part of `sums`, now and as they change.
    pub(crate) fn charge_to(&mut self, sums: Sums) {
        let bytes = self.bytes;
        self.set_bytes(0);
        self.sums = Some(sums);
        self.set_bytes(bytes);
    }

    /// Ends [`WriteBuffer::charge_to`]; false when it was not charged.
    pub(crate) fn stop_charging(&mut self) -> bool {
        let bytes = self.bytes;
        self.set_bytes(0);
        let charged = self.sums.take().is_some();
        self.bytes = bytes;
        charged
    }

    fn set_bytes(&mut self, bytes: u64) {
        if let Some(sums) = &self.sums {
            for sum in [&sums.all, &sums.subvolume] {
                if bytes >= self.bytes {
                    sum.fetch_add(bytes - self.bytes, Ordering::Relaxed);
                } else {
                    sum.fetch_sub(self.bytes - bytes, Ordering::Relaxed);
                }
            }
        }
        self.bytes = bytes;
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        let runs = std::mem::take(&mut self.runs);
        if let Some(sums) = &self.sums {
            runs.into_values().for_each(|run| sums.spare.put(run));
        }
        self.set_bytes(0);
    }

    /// Runs, ascending.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.runs.iter().map(|(offset, data)| (*offset, &data[..]))
    }

    /// The run that covers `at`: its offset.
    fn covering(&self, at: u64) -> Option<u64> {
        let (start, data) = self.runs.range(..=at).next_back()?;
        (at - start < data.len() as u64).then_some(*start)
    }

    /// True when the byte at `at` is here.
    #[must_use]
    pub fn contains(&self, at: u64) -> bool {
        self.covering(at).is_some()
    }

    /// True when some byte of `range` is here.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        self.contains(range.start) || self.runs.range(range.clone()).next().is_some()
    }

    /// Takes what `newer` has over what is here.
    pub(crate) fn take_over(&mut self, newer: &Self, sector: u64) {
        for (start, data) in newer.runs() {
            self.write(start, data, sector);
        }
    }

    /// Puts `data` at `offset`. If a sector is not here yet, `data` must begin
    /// at its start. What `data` lacks of the last sector becomes zeros.
    pub fn write(&mut self, offset: u64, data: &[u8], sector: u64) {
        let mut at = offset;
        let mut rest = data;
        while !rest.is_empty() {
            if let Some(start) = self.covering(at) {
                let run = self.runs.get_mut(&start).expect("covers");
                let within = (at - start) as usize;
                let take = rest.len().min(run.len() - within);
                run[within..within + take].copy_from_slice(&rest[..take]);
                at += take as u64;
                rest = &rest[take..];
                continue;
            }
            debug_assert_eq!(at % sector, 0);
            let next = self.runs.range(at..).next().map(|(start, _)| *start);
            let gap = next.map_or(usize::MAX, |next| {
                usize::try_from(next - at).unwrap_or(usize::MAX)
            });
            let (start, room) = self.run_ending_at(at);
            let take = rest.len().min(gap).min(room);
            let run = self.run_with_room(start, take);
            let grown = run.len();
            run.extend_from_slice(&rest[..take]);
            let padded = run.len().next_multiple_of(sector as usize);
            run.resize(padded, 0);
            let bytes = self.bytes + (padded - grown) as u64;
            self.set_bytes(bytes);
            at += take as u64;
            rest = &rest[take..];
        }
    }

    /// The run at `start`, which may be new, and is about to grow.
    fn run_with_room(&mut self, start: u64, more: usize) -> &mut Vec<u8> {
        let run = self.runs.entry(start).or_default();
        let grown = run.len() + more;
        if grown > run.capacity()
            && grown >= ROOMY_FROM
            && let Some(sums) = &self.sums
        {
            let mut roomy = sums.spare.take();
            roomy.extend_from_slice(run);
            *run = roomy;
        }
        run
    }

    /// Where the run begins that can grow at `at`, and by how much.
    fn run_ending_at(&self, at: u64) -> (u64, usize) {
        let before = self
            .runs
            .range(..at)
            .next_back()
            .filter(|(start, data)| **start + data.len() as u64 == at && data.len() < RUN_MAX)
            .map(|(start, data)| (*start, RUN_MAX - data.len()));
        before.unwrap_or((at, RUN_MAX))
    }

    /// Copies what is here from `offset` on over `target`.
    pub fn overlay(&self, offset: u64, target: &mut [u8]) {
        let end = offset + target.len() as u64;
        let first = self.covering(offset).unwrap_or(offset);
        for (start, data) in self.runs.range(first..end) {
            let from = offset.max(*start);
            let to = end.min(start + data.len() as u64);
            target[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&data[(from - start) as usize..(to - start) as usize]);
        }
    }

    /// Drops what is here of `range` (whole sectors).
    pub fn remove(&mut self, range: Range<u64>) {
        let first = self.covering(range.start).unwrap_or(range.start);
        let touched: Vec<u64> = self
            .runs
            .range(first..range.end.max(first))
            .map(|(start, _)| *start)
            .collect();
        let mut bytes = self.bytes;
        for start in touched {
            let mut data = self.runs.remove(&start).expect("listed");
            bytes -= data.len() as u64;
            let end = start + data.len() as u64;
            if end > range.end {
                let tail = data.split_off((range.end - start) as usize);
                bytes += tail.len() as u64;
                self.runs.insert(range.end, tail);
            }
            if start < range.start {
                data.truncate((range.start - start) as usize);
                bytes += data.len() as u64;
                self.runs.insert(start, data);
            }
        }
        self.set_bytes(bytes);
    }

    /// True if only `range` is here, as one run.
    #[must_use]
    pub fn is_exactly(&self, range: Range<u64>) -> bool {
        self.runs.len() == 1
            && self.runs.iter().next().is_some_and(|(start, data)| {
                *start == range.start && start + data.len() as u64 == range.end
            })
    }
}

impl Drop for WriteBuffer {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaves_like_bytes() {
        const SECTOR: u64 = 16;
        const SIZE: usize = 1024;
        let mut seed = 3_u64;
        let mut random = move |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(99);
            (seed >> 33) % below
        };
        let sum = Arc::new(AtomicU64::new(0));
        let mut buffer = WriteBuffer::default();
        let of_subvolume = Arc::new(AtomicU64::new(0));
        buffer.charge_to(Sums {
            all: Arc::clone(&sum),
            subvolume: Arc::clone(&of_subvolume),
            spare: Arc::new(Spare::new(0)),
        });
        let mut model: Vec<Option<u8>> = vec![None; SIZE];
        for _ in 0..20_000 {
            let start = random(60) * SECTOR;
            let end = start + (1 + random(4)) * SECTOR;
            if random(3) == 0 {
                buffer.remove(start..end);
                model[start as usize..end as usize].fill(None);
            } else {
                let value = random(256) as u8;
                let length = (end - start - random(SECTOR)) as usize;
                let had = buffer.contains(end - 1);
                buffer.write(start, &vec![value; length], SECTOR);
                let data_end = start as usize + length;
                model[start as usize..data_end].fill(Some(value));
                if !had {
                    model[data_end..end as usize].fill(Some(0));
                }
            }
            let mut bytes = vec![255; SIZE];
            buffer.overlay(0, &mut bytes);
            for (at, expected) in model.iter().enumerate() {
                assert_eq!(buffer.contains(at as u64), expected.is_some());
                assert_eq!(bytes[at], expected.unwrap_or(255));
            }
            let count = model.iter().filter(|byte| byte.is_some()).count();
            assert_eq!(buffer.bytes(), count as u64);
            assert_eq!(sum.load(Ordering::Relaxed), count as u64);
        }
        drop(buffer);
        assert_eq!(sum.load(Ordering::Relaxed), 0);
    }
}
