//! Checksums of data.

use crate::error::ConvertError;
use crate::ground::SECTOR;
use crate::loader::{Counter, Items};
use crate::options::{Step, Watch};
use butterfs_device::BlockDevice;
use butterfs_format::item::csum;
use butterfs_format::{ChecksumType, DeviceOffset, Logical};
use std::ops::Range;
use std::thread;

/// Bytes that one thread reads at once.
const PIECE: u64 = 1 << 20;
/// Bytes that are read before their checksums go into the tree.
const BATCH: u64 = 32 << 20;

/// Spreads checksums over items: an item goes on while addresses do, and while
/// it has room.
#[derive(Clone, Debug)]
struct Rows {
    most: u64,
    start: u64,
    entries: u64,
}

impl Rows {
    fn new(node_size: u32, checksum: ChecksumType) -> Self {
        let most = csum::entries_max(node_size, checksum);
        Self {
            most: u64::try_from(most).unwrap_or(1).max(1),
            start: 0,
            entries: 0,
        }
    }

    /// Takes the sectors of a range, and gives items that are complete: where
    /// each begins, and its checksums.
    fn feed<E>(
        &mut self,
        range: &Range<u64>,
        complete: &mut dyn FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut at = range.start;
        while at < range.end {
            let end = self.start + self.entries * SECTOR;
            if end != at || self.entries >= self.most {
                self.end(complete)?;
                self.start = at;
            }
            let taken = ((range.end - at) / SECTOR).min(self.most - self.entries);
            self.entries += taken;
            at += taken * SECTOR;
        }
        Ok(())
    }

    fn end<E>(&mut self, complete: &mut dyn FnMut(u64, u64) -> Result<(), E>) -> Result<(), E> {
        match std::mem::take(&mut self.entries) {
            0 => Ok(()),
            entries => complete(self.start, entries),
        }
    }
}

/// Counts the nodes of the checksum tree.
#[derive(Clone, Debug)]
pub(crate) struct SumCounter {
    rows: Rows,
    size: u64,
    counter: Counter,
    /// Bytes with checksums.
    pub(crate) bytes: u64,
}

impl SumCounter {
    pub(crate) fn new(node_size: u32, checksum: ChecksumType) -> Self {
        Self {
            rows: Rows::new(node_size, checksum),
            size: u64::try_from(checksum.size()).unwrap_or(1),
            counter: Counter::new(node_size),
            bytes: 0,
        }
    }

    /// Counts a range with checksums. Ranges ascend.
    pub(crate) fn add(&mut self, range: &Range<u64>) {
        self.bytes = self.bytes.saturating_add(range.end - range.start);
        let (counter, size) = (&mut self.counter, self.size);
        let done: Result<(), ()> = self.rows.feed(range, &mut |_, entries| {
            counter.size(usize::try_from(entries * size).unwrap_or(usize::MAX));
            Ok(())
        });
        debug_assert!(done.is_ok(), "counting does not fail");
    }

    /// The nodes.
    pub(crate) fn finish(mut self) -> u64 {
        let (counter, size) = (&mut self.counter, self.size);
        let done: Result<(), ()> = self.rows.end(&mut |_, entries| {
            counter.size(usize::try_from(entries * size).unwrap_or(usize::MAX));
            Ok(())
        });
        debug_assert!(done.is_ok(), "counting does not fail");
        self.counter.nodes()
    }
}

/// Reads data and adds their checksums to the tree.
pub(crate) struct SumWriter<'s> {
    device: &'s dyn BlockDevice,
    checksum: ChecksumType,
    rows: Rows,
    items: &'s mut dyn Items,
    /// Ranges whose data were not read yet.
    waiting: Vec<Range<u64>>,
    waits: u64,
    /// Checksums that are in no item yet.
    sums: Vec<u8>,
    watch: &'s dyn Watch,
    done: u64,
    total: u64,
}

impl<'s> SumWriter<'s> {
    pub(crate) fn new(
        device: &'s dyn BlockDevice,
        (node_size, checksum): (u32, ChecksumType),
        items: &'s mut dyn Items,
        (watch, total): (&'s dyn Watch, u64),
    ) -> Self {
        Self {
            device,
            checksum,
            rows: Rows::new(node_size, checksum),
            items,
            waiting: Vec::new(),
            waits: 0,
            sums: Vec::new(),
            watch,
            done: 0,
            total,
        }
    }

    /// Adds a range. Ranges ascend.
    ///
    /// # Errors
    /// The device; [`ConvertError::Stopped`].
    pub(crate) fn add(&mut self, range: &Range<u64>) -> Result<(), ConvertError> {
        let mut at = range.start;
        while at < range.end {
            let end = range.end.min(at.saturating_add(PIECE));
            self.waiting.push(at..end);
            self.waits += end - at;
            at = end;
            if self.waits >= BATCH {
                self.read()?;
            }
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), ConvertError> {
        let ranges = std::mem::take(&mut self.waiting);
        self.done += std::mem::take(&mut self.waits);
        let all = sums_of(self.device, self.checksum, &ranges)?;
        for (range, sums) in ranges.iter().zip(all) {
            self.sums.extend(sums);
            let (items, own, size) = (&mut *self.items, &mut self.sums, self.checksum.size());
            self.rows.feed(range, &mut |start, entries| {
                complete(items, own, (start, entries), size)
            })?;
        }
        self.watch.progress(Step::Checksums, self.done, self.total);
        match self.watch.is_stopped() {
            true => Err(ConvertError::Stopped),
            false => Ok(()),
        }
    }

    /// Adds what waits.
    ///
    /// # Errors
    /// As [`SumWriter::add`].
    pub(crate) fn finish(mut self) -> Result<(), ConvertError> {
        self.read()?;
        let (items, own, size) = (&mut *self.items, &mut self.sums, self.checksum.size());
        self.rows
            .end(&mut |start, entries| complete(items, own, (start, entries), size))
    }
}

fn complete(
    items: &mut dyn Items,
    sums: &mut Vec<u8>,
    (start, entries): (u64, u64),
    size: usize,
) -> Result<(), ConvertError> {
    let count = usize::try_from(entries).unwrap_or(usize::MAX);
    let length = count.saturating_mul(size).min(sums.len());
    items.item(csum::key(Logical(start)), sums.drain(..length).collect())
}

/// The checksums of the sectors of each range, by several threads.
pub(crate) fn sums_of(
    device: &dyn BlockDevice,
    checksum: ChecksumType,
    ranges: &[Range<u64>],
) -> Result<Vec<Vec<u8>>, ConvertError> {
    let threads = thread::available_parallelism()
        .map_or(1, usize::from)
        .min(16);
    let share = ranges.len().div_ceil(threads).max(1);
    let of_share = |ranges: &[Range<u64>]| -> Result<Vec<Vec<u8>>, ConvertError> {
        let mut buffer = Vec::new();
        let sectors = usize::try_from(SECTOR).unwrap_or(1);
        let mut all = Vec::with_capacity(ranges.len());
        for range in ranges {
            buffer.resize(usize::try_from(range.end - range.start).unwrap_or(0), 0);
            device.read_at(DeviceOffset(range.start), &mut buffer)?;
            let mut sums = Vec::new();
            for sector in buffer.chunks_exact(sectors) {
                let sum = checksum.compute(sector);
                sums.extend_from_slice(sum.get(..checksum.size()).unwrap_or_default());
            }
            all.push(sums);
        }
        Ok(all)
    };
    let shares: Vec<_> = ranges.chunks(share).collect();
    let results = thread::scope(|scope| {
        let workers: Vec<_> = shares
            .iter()
            .map(|ranges| scope.spawn(|| of_share(ranges)))
            .collect();
        let joined = workers.into_iter().map(|worker| {
            worker
                .join()
                .unwrap_or(Err(ConvertError::Fault("a thread broke off")))
        });
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    Ok(results.into_iter().flatten().collect())
}
