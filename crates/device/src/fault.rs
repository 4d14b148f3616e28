//! A device that fails as told, for tests.
//!
//! Faults are added at any time and stay until they are used up or cleared. The
//! seed alone decides what is random, so a failure found by chance can be
//! repeated.

use crate::block_device::{check_range, check_writable};
use crate::{Access, BlockDevice, Caching, DeviceError, DeviceRange, Operation, WriteRequest};
use butterfs_format::DeviceOffset;
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;

/// Which of the coming operations of a kind a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The operation after this many others, once; 0 is the next one.
    After(u64),
    /// All from now on.
    Always,
    /// Those that touch this range. Flushes touch nothing.
    Within(DeviceRange),
    /// Each with this chance, in millionths.
    Chance(u32),
}

/// Whether rotten bits stay rotten after they are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rot {
    /// A write heals them, as on a disk with a bad block.
    UntilWritten,
    /// They are bad for ever, as with a broken path.
    Permanent,
}

/// Something that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The operation does nothing and reports EIO.
    Fail(Operation, When),
    /// Reads give one flipped bit in each 512-byte sector of the range, the
    /// same one each time.
    FlipBits(DeviceRange, Rot),
    /// The write does nothing and reports success.
    LoseWrite(When),
    /// The write goes to another offset and reports success.
    MisdirectWrite(When, DeviceOffset),
    /// Every operation reports EIO: the device is gone.
    Gone,
}

#[derive(Debug)]
struct State {
    faults: Vec<Fault>,
    random: u64,
}

/// Another device, with faults.
#[derive(Debug)]
pub struct FaultDevice {
    inner: Arc<dyn BlockDevice>,
    seed: u64,
    state: Mutex<State>,
}

/// What becomes of a write.
enum Fate {
    Normal,
    Lost,
    Misdirected(DeviceOffset),
}

const SECTOR: u64 = 512;

/// A step of the SplitMix64 generator.
fn mix(value: u64) -> u64 {
    let z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl FaultDevice {
    /// Wraps `inner`, without faults at first.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>, seed: u64) -> Self {
        Self {
            inner,
            seed,
            state: Mutex::new(State {
                faults: Vec::new(),
                random: seed,
            }),
        }
    }

    /// Adds a fault.
    pub fn inject(&self, fault: Fault) {
        self.state.lock().faults.push(fault);
    }

    /// Removes all faults.
    pub fn clear(&self) {
        self.state.lock().faults.clear();
    }

    /// Faults that are not used up.
    #[must_use]
    pub fn pending(&self) -> Vec<Fault> {
        self.state.lock().faults.clone()
    }

    fn io_error(&self, operation: Operation, range: Option<DeviceRange>) -> DeviceError {
        DeviceError::Io {
            device: self.identity(),
            operation,
            range,
            source: Arc::new(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    /// Errors when a fault says that this operation fails.
    fn attempt(&self, operation: Operation, range: Option<DeviceRange>) -> Result<(), DeviceError> {
        let failed = self.state.lock().any_hit(range, |fault| match fault {
            Fault::Gone => Some(When::Always),
            Fault::Fail(kind, when) if kind == operation => Some(when),
            _ => None,
        });
        if failed.is_some() {
            return Err(self.io_error(operation, range));
        }
        Ok(())
    }

    fn fate_of_write(&self, range: DeviceRange) -> Fate {
        let hit = self.state.lock().any_hit(Some(range), |fault| match fault {
            Fault::LoseWrite(when) | Fault::MisdirectWrite(when, _) => Some(when),
            _ => None,
        });
        match hit {
            Some(Fault::LoseWrite(_)) => Fate::Lost,
            Some(Fault::MisdirectWrite(_, to)) => Fate::Misdirected(to),
            _ => Fate::Normal,
        }
    }

    /// Flips the rotten bits of what was read.
    fn rot(&self, range: DeviceRange, buf: &mut [u8]) {
        for fault in &self.state.lock().faults {
            let Fault::FlipBits(rotten, _) = fault else {
                continue;
            };
            let Some(common) = rotten.intersection(range) else {
                continue;
            };
            let first = common.start.get() / SECTOR;
            let past = common.end().get().div_ceil(SECTOR);
            for sector in first..past {
                let start = sector.saturating_mul(SECTOR);
                // One place per sector, inside of the rotten range: it does not
                // depend on how the reader splits its reads.
                let low = start.max(rotten.start.get());
                let high = start.saturating_add(SECTOR).min(rotten.end().get());
                let random = mix(self.seed ^ mix(sector));
                let step = random.checked_rem(high.saturating_sub(low)).unwrap_or(0);
                let at = low.saturating_add(step);
                let index = at
                    .checked_sub(range.start.get())
                    .and_then(|index| usize::try_from(index).ok());
                if let Some(byte) = index.and_then(|index| buf.get_mut(index)) {
                    *byte ^= 1 << (random >> 61);
                }
            }
        }
    }
}

impl State {
    /// The first fault that `select` is interested in and that hits this
    /// operation. Each [`When::After`] among the selected faults counts this
    /// operation, whether or not another fault hits it.
    fn any_hit(
        &mut self,
        range: Option<DeviceRange>,
        select: impl Fn(Fault) -> Option<When>,
    ) -> Option<Fault> {
        let mut found = None;
        let mut used_up = Vec::new();
        for (index, fault) in self.faults.iter_mut().enumerate() {
            let Some(when) = select(*fault) else {
                continue;
            };
            let hit = match when {
                When::Always => true,
                When::Within(place) => range.is_some_and(|range| range.overlaps(place)),
                When::Chance(millionths) => {
                    self.random = mix(self.random);
                    self.random % 1_000_000 < u64::from(millionths)
                }
                When::After(0) => {
                    used_up.push(index);
                    true
                }
                When::After(left) => {
                    let later = When::After(left.saturating_sub(1));
                    match fault {
                        Fault::Fail(_, when)
                        | Fault::LoseWrite(when)
                        | Fault::MisdirectWrite(when, _) => *when = later,
                        Fault::FlipBits(..) | Fault::Gone => {}
                    }
                    false
                }
            };
            if hit && found.is_none() {
                found = Some(*fault);
            }
        }
        for index in used_up.into_iter().rev() {
            self.faults.remove(index);
        }
        found
    }

    /// Heals what a write reaches.
    fn heal(&mut self, written: DeviceRange) {
        let old = std::mem::take(&mut self.faults);
        for fault in old {
            match fault {
                Fault::FlipBits(range, Rot::UntilWritten) => {
                    let left = range.without(written).into_iter().flatten();
                    let left = left.map(|range| Fault::FlipBits(range, Rot::UntilWritten));
                    self.faults.extend(left);
                }
                other => self.faults.push(other),
            }
        }
    }
}

impl BlockDevice for FaultDevice {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn look_at_size(&self) -> u64 {
        self.inner.look_at_size()
    }

    fn still_has(&self, size: u64) -> Result<(), DeviceError> {
        self.inner.still_has(size)
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, buf.len());
        check_range(self, Operation::Read, range)?;
        self.attempt(Operation::Read, Some(range))?;
        self.inner.read_at(offset, buf)?;
        self.rot(range, buf);
        Ok(())
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        self.attempt(Operation::Write, Some(range))?;
        let to = match self.fate_of_write(range) {
            Fate::Normal => offset,
            Fate::Lost => return Ok(()),
            Fate::Misdirected(to) => to,
        };
        self.inner.write_at(to, data)?;
        self.state
            .lock()
            .heal(DeviceRange::of_buffer(to, data.len()));
        Ok(())
    }

    /// Each request meets its own fate: when one fails, the others are written.
    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        let mut outcome = Ok(());
        let mut normal = Vec::with_capacity(requests.len());
        for request in requests {
            let range = request.range();
            check_writable(self, Operation::Write, range)?;
            if let Err(error) = self.attempt(Operation::Write, Some(range)) {
                outcome = outcome.and(Err(error));
                continue;
            }
            match self.fate_of_write(range) {
                Fate::Normal => normal.push(*request),
                Fate::Lost => {}
                Fate::Misdirected(offset) => normal.push(WriteRequest { offset, ..*request }),
            }
        }
        self.inner.write_all_at(&normal)?;
        for request in normal {
            self.state.lock().heal(request.range());
        }
        outcome
    }

    /// A write and a flush, either of which may fail.
    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        self.attempt(Operation::Write, Some(range))?;
        let to = match self.fate_of_write(range) {
            Fate::Normal => offset,
            Fate::Lost => return self.attempt(Operation::Flush, None),
            Fate::Misdirected(to) => to,
        };
        match self.attempt(Operation::Flush, None) {
            Ok(()) => self.inner.write_durably_at(to, data)?,
            Err(error) => {
                self.inner.write_at(to, data)?;
                return Err(error);
            }
        }
        self.state
            .lock()
            .heal(DeviceRange::of_buffer(to, data.len()));
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.attempt(Operation::Flush, None)?;
        self.inner.flush()
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        check_writable(self, Operation::Discard, range)?;
        self.attempt(Operation::Discard, Some(range))?;
        self.inner.discard(range)
    }

    fn identity(&self) -> String {
        self.inner.identity()
    }

    fn caching(&self) -> Option<Caching> {
        self.inner.caching()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn let_go(&self) {
        self.inner.let_go();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;
    use std::io::IoSlice;

    fn device() -> FaultDevice {
        FaultDevice::new(Arc::new(MemoryDevice::new(1 << 20)), 7)
    }

    fn read(device: &FaultDevice, offset: u64, length: usize) -> Vec<u8> {
        let mut buf = vec![0; length];
        device.read_at(DeviceOffset(offset), &mut buf).unwrap();
        buf
    }

    #[test]
    fn counted_faults_hit_once() {
        let device = device();
        device.inject(Fault::Fail(Operation::Write, When::After(2)));
        device.inject(Fault::Fail(Operation::Flush, When::After(0)));
        let write = || device.write_at(DeviceOffset(0), b"x").is_ok();
        assert_eq!(
            [write(), write(), write(), write()],
            [true, true, false, true]
        );
        let error = device.flush().unwrap_err();
        assert_eq!(error.io_source().unwrap().raw_os_error(), Some(libc::EIO));
        device.flush().unwrap();
        assert!(device.pending().is_empty());
    }

    #[test]
    fn one_of_several_requests_fails_alone() {
        let device = device();
        device.inject(Fault::Fail(Operation::Write, When::After(1)));
        let parts = [b"one", b"two", b"six"].map(|word| [IoSlice::new(word)]);
        let requests: Vec<WriteRequest<'_>> = (0..)
            .zip(&parts)
            .map(|(n, parts)| WriteRequest {
                offset: DeviceOffset(n * 3),
                parts,
            })
            .collect();
        assert!(device.write_all_at(&requests).is_err());
        assert_eq!(read(&device, 0, 9), b"one\0\0\0six");
        device.write_all_at(&requests).unwrap();
        assert_eq!(read(&device, 0, 9), b"onetwosix");
    }

    #[test]
    fn a_durable_write_fails_as_a_write_or_as_a_flush() {
        let device = device();
        device.inject(Fault::Fail(Operation::Write, When::After(0)));
        assert!(device.write_durably_at(DeviceOffset(0), b"x").is_err());
        assert_eq!(read(&device, 0, 1), [0]);
        device.inject(Fault::Fail(Operation::Flush, When::After(0)));
        assert!(device.write_durably_at(DeviceOffset(0), b"x").is_err());
        device.write_durably_at(DeviceOffset(0), b"y").unwrap();
        assert_eq!(read(&device, 0, 1), b"y");
    }

    #[test]
    fn lost_and_misdirected_writes_report_success() {
        let device = device();
        device.inject(Fault::LoseWrite(When::After(0)));
        device.write_at(DeviceOffset(0), b"lost").unwrap();
        assert_eq!(read(&device, 0, 4), [0; 4]);
        device.inject(Fault::MisdirectWrite(When::After(0), DeviceOffset(8192)));
        device.write_at(DeviceOffset(0), b"away").unwrap();
        assert_eq!(read(&device, 0, 4), [0; 4]);
        assert_eq!(read(&device, 8192, 4), b"away");
    }

    #[test]
    fn rot_is_the_same_each_time_and_heals_when_written() {
        let device = device();
        let range = DeviceRange::new(DeviceOffset(4096), 4096);
        device.inject(Fault::FlipBits(range, Rot::UntilWritten));
        let flipped = |bytes: &[u8]| bytes.iter().map(|b| b.count_ones()).sum::<u32>();
        let all = read(&device, 0, 16384);
        assert_eq!(flipped(&all), 8);
        assert_eq!(flipped(&all[4096..8192]), 8);
        let by_part: Vec<u8> = (0..64).flat_map(|n| read(&device, n * 256, 256)).collect();
        assert_eq!(by_part, all);
        device.write_at(DeviceOffset(4096), &[0; 1024]).unwrap();
        assert_eq!(flipped(&read(&device, 0, 16384)), 6);
        device.write_at(DeviceOffset(0), &[0; 16384]).unwrap();
        assert_eq!(flipped(&read(&device, 0, 16384)), 0);
        device.inject(Fault::FlipBits(range, Rot::Permanent));
        device.write_at(DeviceOffset(0), &[0; 16384]).unwrap();
        assert_eq!(flipped(&read(&device, 0, 16384)), 8);
    }

    #[test]
    fn gone_within_and_chance() {
        let device = device();
        let range = DeviceRange::new(DeviceOffset(100), 10);
        device.inject(Fault::Fail(Operation::Read, When::Within(range)));
        let mut byte = [0];
        assert!(device.read_at(DeviceOffset(99), &mut byte).is_ok());
        assert!(device.read_at(DeviceOffset(109), &mut byte).is_err());
        device.clear();
        device.inject(Fault::Fail(Operation::Read, When::Chance(300_000)));
        let failures = (0..1000)
            .filter(|_| device.read_at(DeviceOffset(0), &mut [0]).is_err())
            .count();
        assert!((200..400).contains(&failures), "{failures}");
        device.inject(Fault::Gone);
        assert!(device.flush().is_err());
        assert!(device.write_at(DeviceOffset(0), b"x").is_err());
    }
}
