//! Devices whose writes and flushes are recorded, and what a crash may leave.
//!
//! Owns the model of a crash: a write is durable once a flush of its device has
//! succeeded that began after the write had returned. Each of the other writes
//! may be there, be lost, or be there in some of its 512-byte sectors, in any
//! combination, and later ones without earlier ones.

use crate::block_device::{check_writable, parts_length};
use crate::{
    Access, BlockDevice, Caching, DeviceError, DeviceRange, MemoryDevice, Operation, WriteRequest,
};
use butterfs_format::DeviceOffset;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;
use std::sync::Arc;

/// Bytes that a device writes as a whole or not at all.
pub const SECTOR: usize = 512;

/// Number of an event in a recording, or of the place between two: the place
/// `n` is before event `n`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position(pub usize);

/// Which device of a recording, in the order in which they were added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Recorded(pub usize);

/// What was done to a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Data was written. Recorded when the write begins.
    Write {
        /// Where.
        offset: DeviceOffset,
        /// What.
        data: Arc<[u8]>,
    },
    /// The range reads as zeros from now on, once it is durable.
    Discard(DeviceRange),
    /// A flush or a durable write succeeded. Recorded when it returns.
    Flush {
        /// Where the recording was when the flush began, or when the write had
        /// begun.
        began: Position,
        /// Earlier changes that it did not make durable: those that had not
        /// returned when the flush began; for a durable write, all others of
        /// its device that were not durable.
        unfinished: Vec<Position>,
    },
}

/// An action and its device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Device.
    pub device: Recorded,
    /// Action.
    pub action: Action,
}

#[derive(Debug, Default)]
struct Log {
    events: Vec<Event>,
    unfinished: BTreeSet<Position>,
    /// Changes that no flush has made durable.
    volatile: BTreeMap<Position, Recorded>,
    devices: usize,
}

/// The events of one or more devices in one order.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    log: Arc<Mutex<Log>>,
}

impl Recording {
    /// Nothing recorded yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records `inner` from now on.
    #[must_use]
    pub fn wrap(&self, inner: Arc<dyn BlockDevice>) -> RecordDevice {
        let mut log = self.log.lock();
        let device = Recorded(log.devices);
        log.devices = log.devices.saturating_add(1);
        RecordDevice {
            inner,
            device,
            recording: self.clone(),
        }
    }

    /// All events so far.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().events.clone()
    }

    /// The place after the last event. A test notes it when an operation is
    /// acknowledged: a crash at or after this place must keep its promise.
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.log.lock().events.len())
    }

    /// Forgets all events; the next one is number 0 again. No write may be
    /// under way.
    pub fn clear(&self) {
        let mut log = self.log.lock();
        debug_assert!(log.unfinished.is_empty(), "a write is under way");
        log.events.clear();
        log.volatile.clear();
    }
}

/// A device whose changes go to a [`Recording`] too.
#[derive(Clone, Debug)]
pub struct RecordDevice {
    inner: Arc<dyn BlockDevice>,
    device: Recorded,
    recording: Recording,
}

impl RecordDevice {
    /// Records `inner` alone.
    #[must_use]
    pub fn new(inner: Arc<dyn BlockDevice>) -> Self {
        Recording::new().wrap(inner)
    }

    /// Where it is recorded.
    #[must_use]
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// All events so far, of the other devices of the recording too.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        self.recording.events()
    }

    /// Notes that changes begin, all of them before one of them returns.
    fn begin(&self, actions: impl IntoIterator<Item = Action>) -> Vec<Position> {
        let mut log = self.recording.log.lock();
        let begin = |action| {
            let position = Position(log.events.len());
            let device = self.device;
            log.events.push(Event { device, action });
            log.unfinished.insert(position);
            log.volatile.insert(position, device);
            position
        };
        actions.into_iter().map(begin).collect()
    }

    /// Notes that changes have returned. A change that failed never does: no
    /// flush vouches for it, and any part of it may be there.
    fn end(&self, positions: &[Position]) {
        let mut log = self.recording.log.lock();
        for position in positions {
            log.unfinished.remove(position);
        }
    }

    fn change(
        &self,
        action: Action,
        run: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let begun = self.begin([action]);
        run()?;
        self.end(&begun);
        Ok(())
    }

    /// Notes that what began before `began` is durable, except for
    /// `unfinished`.
    fn vouch(&self, began: Position, unfinished: Vec<Position>) {
        let mut log = self.recording.log.lock();
        log.volatile.retain(|position, device| {
            *device != self.device || *position >= began || unfinished.contains(position)
        });
        log.events.push(Event {
            device: self.device,
            action: Action::Flush { began, unfinished },
        });
    }
}

impl BlockDevice for RecordDevice {
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
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        let action = Action::Write {
            offset,
            data: data.into(),
        };
        self.change(action, || self.inner.write_at(offset, data))
    }

    fn write_vectored_at(
        &self,
        offset: DeviceOffset,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        // One event for each part: a device promises nothing about a larger
        // write as a whole, and crashes that keep only some of the nodes of a
        // write find more faults.
        let range = DeviceRange::of_buffer(offset, parts_length(parts));
        check_writable(self, Operation::Write, range)?;
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at = DeviceRange::of_buffer(at, part.len()).end();
        }
        Ok(())
    }

    fn write_all_at(&self, requests: &[WriteRequest<'_>]) -> Result<(), DeviceError> {
        let mut actions = Vec::new();
        for request in requests {
            check_writable(self, Operation::Write, request.range())?;
            let mut at = request.offset;
            for part in request.parts {
                actions.push(Action::Write {
                    offset: at,
                    data: (&**part).into(),
                });
                at = DeviceRange::of_buffer(at, part.len()).end();
            }
        }
        let begun = self.begin(actions);
        self.inner.write_all_at(requests)?;
        self.end(&begun);
        Ok(())
    }

    fn write_durably_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        let range = DeviceRange::of_buffer(offset, data.len());
        check_writable(self, Operation::Write, range)?;
        let action = Action::Write {
            offset,
            data: data.into(),
        };
        let begun = self.begin([action]);
        self.inner.write_durably_at(offset, data)?;
        self.end(&begun);
        for position in begun {
            let volatile = self.recording.log.lock().volatile.clone();
            let others = volatile
                .into_iter()
                .filter(|(other, device)| *device == self.device && *other < position);
            let others = others.map(|(other, _)| other).collect();
            self.vouch(Position(position.0.saturating_add(1)), others);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        let (began, unfinished) = {
            let log = self.recording.log.lock();
            let unfinished = log.unfinished.iter().copied().collect();
            (Position(log.events.len()), unfinished)
        };
        self.inner.flush()?;
        self.vouch(began, unfinished);
        Ok(())
    }

    fn discard(&self, range: DeviceRange) -> Result<(), DeviceError> {
        check_writable(self, Operation::Discard, range)?;
        self.change(Action::Discard(range), || self.inner.discard(range))
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

/// What a crash did to a change that was not durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it is there.
    Kept,
    /// None of it is there.
    Lost,
    /// The sectors for which this is true are there, counted from the first
    /// byte of the change; those that it does not mention are lost.
    Torn(Vec<bool>),
}

/// The moment of a crash in a recording.
#[derive(Clone, Copy, Debug)]
pub struct Crash<'a> {
    events: &'a [Event],
    at: Position,
}

impl<'a> Crash<'a> {
    /// A crash just before event `at`.
    #[must_use]
    pub const fn new(events: &'a [Event], at: Position) -> Self {
        Self { events, at }
    }

    fn before(&self) -> impl DoubleEndedIterator<Item = (Position, &'a Event)> + use<'a> {
        let events = self.events.get(..self.at.0).unwrap_or(self.events);
        events
            .iter()
            .enumerate()
            .map(|(n, event)| (Position(n), event))
    }

    /// Changes that the crash may have kept, lost or torn, in order.
    #[must_use]
    pub fn in_flight(&self) -> Vec<Position> {
        // Latest first: the latest flush makes the most changes durable.
        let flushes: Vec<_> = self
            .before()
            .rev()
            .filter_map(|(_, event)| match &event.action {
                Action::Flush { began, unfinished } => Some((event.device, *began, unfinished)),
                _ => None,
            })
            .collect();
        let is_durable = |change: Position, device: Recorded| {
            flushes.iter().any(|(flushed, began, unfinished)| {
                *flushed == device && change < *began && !unfinished.contains(&change)
            })
        };
        self.before()
            .filter(|(position, event)| {
                !matches!(event.action, Action::Flush { .. })
                    && !is_durable(*position, event.device)
            })
            .map(|(position, _)| position)
            .collect()
    }

    /// The devices after the crash: `bases` as they were when the recording
    /// began, in the order of [`Recorded`], with all durable changes and what
    /// `fate` leaves of those in flight. `bases` themselves stay unchanged.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] when a base is smaller than the device that
    /// was recorded. Devices without a base are left out.
    pub fn replay(
        &self,
        bases: &[MemoryDevice],
        mut fate: impl FnMut(Position, &Event) -> Fate,
    ) -> Result<Vec<MemoryDevice>, DeviceError> {
        let devices: Vec<MemoryDevice> = bases.iter().map(MemoryDevice::snapshot).collect();
        let in_flight: BTreeSet<Position> = self.in_flight().into_iter().collect();
        for (position, event) in self.before() {
            let Some(device) = devices.get(event.device.0) else {
                continue;
            };
            let fate = if in_flight.contains(&position) {
                fate(position, event)
            } else {
                Fate::Kept
            };
            apply(device, &event.action, &fate)?;
        }
        Ok(devices)
    }
}

fn apply(device: &MemoryDevice, action: &Action, fate: &Fate) -> Result<(), DeviceError> {
    match (action, fate) {
        (Action::Flush { .. }, _) | (_, Fate::Lost) => Ok(()),
        (Action::Write { offset, data }, Fate::Kept) => device.write_at(*offset, data),
        (Action::Write { offset, data }, Fate::Torn(sectors)) => {
            let mut at = *offset;
            for (sector, kept) in data.chunks(SECTOR).zip(sectors) {
                if *kept {
                    device.write_at(at, sector)?;
                }
                at = DeviceRange::of_buffer(at, sector.len()).end();
            }
            Ok(())
        }
        // A discard frees whole ranges; torn counts as kept.
        (Action::Discard(range), _) => device.discard(*range),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(device: &RecordDevice, offset: u64, byte: u8) {
        let data = [byte; 1024];
        device.write_at(DeviceOffset(offset), &data).unwrap();
    }

    fn first_bytes(devices: &[MemoryDevice], offsets: &[u64]) -> Vec<u8> {
        let byte = |offset: &u64| {
            let mut buf = [0];
            devices[0].read_at(DeviceOffset(*offset), &mut buf).unwrap();
            buf[0]
        };
        offsets.iter().map(byte).collect()
    }

    #[test]
    fn flushed_writes_survive_and_others_as_chosen() {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let bases = [inner.snapshot()];
        let device = RecordDevice::new(inner.clone());
        write(&device, 0, 1);
        write(&device, 4096, 2);
        device.flush().unwrap();
        write(&device, 8192, 3);
        write(&device, 0, 4);
        let events = device.events();
        let end = device.recording().position();
        assert_eq!(end, Position(5));

        let crash = Crash::new(&events, end);
        assert_eq!(crash.in_flight(), [Position(3), Position(4)]);
        let places = [0, 4096, 8192];
        let all = crash.replay(&bases, |_, _| Fate::Kept).unwrap();
        assert_eq!(all[0].first_difference(&inner), None);
        let none = crash.replay(&bases, |_, _| Fate::Lost).unwrap();
        assert_eq!(first_bytes(&none, &places), [1, 2, 0]);
        let later_alone = crash.replay(&bases, |position, _| {
            if position == Position(4) {
                Fate::Kept
            } else {
                Fate::Lost
            }
        });
        assert_eq!(first_bytes(&later_alone.unwrap(), &places), [4, 2, 0]);
        let torn = crash
            .replay(&bases, |_, _| Fate::Torn(vec![false, true]))
            .unwrap();
        assert_eq!(first_bytes(&torn, &[0, 511, 512, 1023]), [1, 1, 4, 4]);
        assert_eq!(first_bytes(&torn, &[8192, 8704]), [0, 3]);

        let before_flush = Crash::new(&events, Position(2));
        assert_eq!(before_flush.in_flight(), [Position(0), Position(1)]);
        assert_eq!(bases[0].allocated(), 0);
    }

    #[test]
    fn a_flush_vouches_for_its_own_device_alone() {
        let recording = Recording::new();
        let make = || recording.wrap(Arc::new(MemoryDevice::new(1 << 20)));
        let (first, second) = (make(), make());
        write(&first, 0, 1);
        write(&second, 0, 2);
        second.flush().unwrap();
        let events = recording.events();
        let crash = Crash::new(&events, recording.position());
        assert_eq!(crash.in_flight(), [Position(0)]);
        assert_eq!(events[1].device, Recorded(1));
    }

    #[test]
    fn a_write_under_way_or_failed_is_not_vouched_for() {
        let faulty = Arc::new(crate::fault::FaultDevice::new(
            Arc::new(MemoryDevice::new(1 << 20)),
            1,
        ));
        let device = RecordDevice::new(faulty.clone());
        write(&device, 0, 1);
        faulty.inject(crate::fault::Fault::Fail(
            Operation::Write,
            crate::fault::When::After(0),
        ));
        assert!(device.write_at(DeviceOffset(4096), &[2; 512]).is_err());
        device.flush().unwrap();
        let events = device.events();
        let crash = Crash::new(&events, device.recording().position());
        assert_eq!(crash.in_flight(), [Position(1)]);
    }

    #[test]
    fn a_durable_write_vouches_for_itself_alone() {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let bases = [inner.snapshot()];
        let device = RecordDevice::new(inner);
        write(&device, 0, 1);
        device.flush().unwrap();
        write(&device, 4096, 2);
        device
            .write_durably_at(DeviceOffset(8192), &[3; 1024])
            .unwrap();
        write(&device, 12288, 4);
        let crash_at_end = |events: &[Event]| {
            let crash = Crash::new(events, device.recording().position());
            crash.in_flight()
        };
        let events = device.events();
        assert_eq!(crash_at_end(&events), [Position(2), Position(5)]);
        let crash = Crash::new(&events, device.recording().position());
        let none = crash.replay(&bases, |_, _| Fate::Lost).unwrap();
        assert_eq!(first_bytes(&none, &[0, 4096, 8192, 12288]), [1, 0, 3, 0]);
        // While it is under way, it may be there or not.
        let crash = Crash::new(&events, Position(4));
        assert_eq!(crash.in_flight(), [Position(2), Position(3)]);
        device
            .write_durably_at(DeviceOffset(8192), &[5; 1024])
            .unwrap();
        let events = device.events();
        assert_eq!(crash_at_end(&events), [Position(2), Position(5)]);
        device.flush().unwrap();
        assert_eq!(crash_at_end(&device.events()), []);
    }

    /// Requests of one call are under way at the same time: a crash while they
    /// are, or before the next flush, keeps any of them.
    #[test]
    fn requests_of_one_call_are_kept_or_lost_in_any_combination() {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let bases = [inner.snapshot()];
        let device = RecordDevice::new(inner.clone());
        let parts = [1_u8, 2, 3].map(|byte| vec![byte; 512]);
        let parts = parts.each_ref().map(|data| [IoSlice::new(data)]);
        let requests: Vec<WriteRequest<'_>> = (0..)
            .zip(&parts)
            .map(|(n, parts)| WriteRequest {
                offset: DeviceOffset(n * 512),
                parts,
            })
            .collect();
        device.write_all_at(&requests).unwrap();
        let events = device.events();
        let crash = Crash::new(&events, device.recording().position());
        let places = [0, 512, 1024];
        let mut found = BTreeSet::new();
        for kept in 0..8_usize {
            let fate = |position: Position, _: &Event| match kept >> position.0 & 1 {
                0 => Fate::Lost,
                _ => Fate::Kept,
            };
            let after = crash.replay(&bases, fate).unwrap();
            found.insert(first_bytes(&after, &places));
        }
        assert_eq!(found.len(), 8);
        assert!(found.contains(&vec![0, 0, 3]) && found.contains(&vec![1, 2, 3]));
        device.flush().unwrap();
        let events = device.events();
        let crash = Crash::new(&events, device.recording().position());
        assert_eq!(crash.in_flight(), []);

        // When one fails, nobody knows which of them are there.
        let faulty = Arc::new(crate::fault::FaultDevice::new(inner, 1));
        faulty.inject(crate::fault::Fault::Fail(
            Operation::Write,
            crate::fault::When::After(1),
        ));
        let device = RecordDevice::new(faulty);
        assert!(device.write_all_at(&requests).is_err());
        device.flush().unwrap();
        let events = device.events();
        let crash = Crash::new(&events, device.recording().position());
        assert_eq!(crash.in_flight().len(), 3);
    }

    #[test]
    fn parts_are_recorded_one_by_one() {
        let inner = Arc::new(MemoryDevice::new(1 << 20));
        let device = RecordDevice::new(inner.clone());
        let parts = [IoSlice::new(b"one"), IoSlice::new(b"two")];
        device.write_vectored_at(DeviceOffset(10), &parts).unwrap();
        let offsets: Vec<DeviceOffset> = device
            .events()
            .iter()
            .map(|event| match &event.action {
                Action::Write { offset, .. } => *offset,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(offsets, [DeviceOffset(10), DeviceOffset(13)]);
    }
}
