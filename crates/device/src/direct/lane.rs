//! What a request needs while it is under way (an aligned buffer and a ring),
//! and writes for which nobody waits yet.
//!
//! A request holds one lane at most, so that requests that wait for a lane do
//! not wait for each other.
//!
//! Invariants: the buffer of a lane that is behind is not touched until its
//! writes are complete. Whoever looks for writes under way finds each of them
//! until it is complete.
#![allow(unsafe_code, reason = "the kernel reads buffers of lanes")]

use super::ring::{ENTRIES, Ring};
use crate::parts::{self, after};
use crate::waiting;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::{Deref, DerefMut, Range};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes of a lane's buffer.
pub(super) const LANE_BYTES: usize = 1 << 20;
/// Lanes of a device at most.
const LANES_MAX: usize = 16;
/// Lanes at most for whose writes nobody waits.
const BEHIND_MAX: usize = 8;
/// What every device accepts: a page.
const ALIGNMENT: usize = 4096;

/// Memory that begins at a page.
pub(super) struct Buffer {
    storage: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new() -> Self {
        // Pages that are never touched cost no memory.
        let storage = vec![0; LANE_BYTES.saturating_add(ALIGNMENT)];
        let start = storage.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { storage, start }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let end = self.start.saturating_add(LANE_BYTES);
        self.storage.get(self.start..end).unwrap_or_default()
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let end = self.start.saturating_add(LANE_BYTES);
        self.storage.get_mut(self.start..end).unwrap_or_default()
    }
}

/// A buffer, and a ring if the system grants one.
pub(super) struct Lane {
    pub(super) buffer: Buffer,
    pub(super) ring: Option<Ring>,
}

/// A write of bytes of a lane's buffer.
#[derive(Clone, Debug)]
pub(super) struct Gathered {
    pub(super) offset: u64,
    pub(super) bytes: Range<usize>,
}

impl Gathered {
    /// The bytes of the device.
    fn range(&self) -> Range<u64> {
        self.offset..after(self.offset, self.bytes.len())
    }

    fn overlaps(&self, wanted: &Range<u64>) -> bool {
        let own = self.range();
        own.start < wanted.end && wanted.start < own.end
    }
}

/// A lane with writes for which nobody waits yet.
struct Behind {
    number: u64,
    lane: Lane,
}

/// Writes of a lane that are not complete.
struct UnderWay {
    number: u64,
    writes: Vec<Gathered>,
}

#[derive(Default)]
struct State {
    free: Vec<Lane>,
    made: usize,
    next: u64,
    behind: VecDeque<Behind>,
    under_way: Vec<UnderWay>,
    /// Writes that failed, and nobody was told.
    failed: Vec<Failed>,
}

/// A write that failed while nobody waited for it.
#[derive(Clone, Debug)]
struct Failed {
    bytes: Range<u64>,
    error: Arc<io::Error>,
}

/// The lanes of a device. They are made when they are needed.
pub(super) struct Lanes {
    /// By direct I/O.
    file: File,
    /// Requests are multiples of this many bytes.
    block: usize,
    state: Mutex<State>,
    /// A lane became free, or writes are complete.
    freed: Condvar,
}

/// A lane that goes back when it is dropped.
pub(super) struct Taken<'l> {
    lanes: &'l Lanes,
    /// There until it is given away.
    lane: Option<Lane>,
}

impl Lanes {
    /// Lanes for `file`, of which the first one is made.
    ///
    /// # Errors
    /// The system grants no ring.
    pub(super) fn new(file: File, block: usize) -> Result<Self, Errno> {
        let first = Lane {
            buffer: Buffer::new(),
            ring: Some(Ring::new()?),
        };
        let state = State {
            free: vec![first],
            made: 1,
            ..State::default()
        };
        Ok(Self {
            file,
            block,
            state: Mutex::new(state),
            freed: Condvar::new(),
        })
    }

    /// The file, by direct I/O.
    pub(super) const fn file(&self) -> &File {
        &self.file
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&'s self, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        waiting::about_to_wait();
        let woken = self.freed.wait(state);
        woken.unwrap_or_else(PoisonError::into_inner)
    }

    /// A lane for one request. Waits for one if all are taken.
    pub(super) fn take(&self) -> Taken<'_> {
        let mut state = self.state();
        loop {
            if let Some(lane) = state.free.pop() {
                drop(state);
                return self.taken(lane);
            }
            if state.made < LANES_MAX {
                state.made = state.made.saturating_add(1);
                drop(state);
                return self.taken(Lane {
                    buffer: Buffer::new(),
                    // Without a ring requests are only slower.
                    ring: Ring::new().ok(),
                });
            }
            state = match state.behind.pop_front() {
                Some(behind) => {
                    drop(state);
                    self.complete(behind);
                    self.state()
                }
                None => self.wait(state),
            };
        }
    }

    const fn taken(&self, lane: Lane) -> Taken<'_> {
        Taken {
            lanes: self,
            lane: Some(lane),
        }
    }

    /// Waits for the writes of a lane, and frees it.
    fn complete(&self, behind: Behind) {
        waiting::about_to_wait();
        let Behind { number, mut lane } = behind;
        let of_lane = |under_way: &&UnderWay| under_way.number == number;
        let writes = self
            .state()
            .under_way
            .iter()
            .find(of_lane)
            .map(|found| found.writes.clone());
        let writes = writes.unwrap_or_default();
        let done = match &mut lane.ring {
            Some(ring) => ring.finish(writes.len()),
            None => writes.iter().map(|_| Ok(0)).collect(),
        };
        let mut failed = Vec::new();
        for (write, done) in writes.iter().zip(done) {
            let bytes = lane.buffer.get(write.bytes.clone()).unwrap_or_default();
            let parts = [IoSlice::new(bytes)];
            let rest = |done| parts::write(&self.file, write.offset, &parts, (done, self.block));
            if let Err(error) = done.and_then(rest) {
                failed.push(Failed {
                    bytes: write.range(),
                    error: Arc::new(error),
                });
            }
        }
        let mut state = self.state();
        state.failed.append(&mut failed);
        state
            .under_way
            .retain(|under_way| under_way.number != number);
        state.free.push(lane);
        drop(state);
        self.freed.notify_all();
    }

    /// Waits until no write of `wanted` is under way for which nobody waits.
    pub(super) fn settle(&self, wanted: &Range<u64>) {
        self.settle_where(|under_way| {
            let mut writes = under_way.writes.iter();
            writes.any(|write| write.overlaps(wanted))
        });
    }

    /// Waits for the writes of `wanted`. Whoever calls this is told of what
    /// failed of them, and nobody else is.
    ///
    /// # Errors
    /// That of the first write that failed.
    pub(super) fn finish(&self, wanted: &Range<u64>) -> Result<(), Arc<io::Error>> {
        self.settle(wanted);
        let mut told = Ok(());
        self.state().failed.retain(|failed| {
            let is_wanted = failed.bytes.start < wanted.end && wanted.start < failed.bytes.end;
            if is_wanted && told.is_ok() {
                told = Err(Arc::clone(&failed.error));
            }
            !is_wanted
        });
        told
    }

    /// Waits for all writes that began before this call. Then it says whether
    /// a write failed of which nobody was told, now or ever before.
    ///
    /// # Errors
    /// That of the first write that failed.
    pub(super) fn settle_all(&self) -> Result<(), Arc<io::Error>> {
        let end = self.state().next;
        self.settle_where(|under_way| under_way.number < end);
        match self.state().failed.first() {
            Some(failed) => Err(Arc::clone(&failed.error)),
            None => Ok(()),
        }
    }

    fn settle_where(&self, is_wanted: impl Fn(&UnderWay) -> bool) {
        let mut state = self.state();
        while let Some(number) = state
            .under_way
            .iter()
            .find(|one| is_wanted(one))
            .map(|one| one.number)
        {
            let place = state
                .behind
                .iter()
                .position(|behind| behind.number == number);
            state = match place.and_then(|place| state.behind.remove(place)) {
                Some(behind) => {
                    drop(state);
                    self.complete(behind);
                    self.state()
                }
                // Another thread waits for it.
                None => self.wait(state),
            };
        }
    }
}

impl Taken<'_> {
    /// The buffer and the ring.
    pub(super) fn parts(&mut self) -> (&mut [u8], Option<&mut Ring>) {
        match &mut self.lane {
            Some(lane) => (&mut lane.buffer, lane.ring.as_mut()),
            None => (&mut [], None),
        }
    }

    /// Begins at most [`ENTRIES`] writes, which do not overlap what is under
    /// way, and waits for none of them.
    pub(super) fn write_behind(mut self, writes: Vec<Gathered>) {
        debug_assert!(writes.len() <= ENTRIES, "a ring takes them at once");
        let Some(mut lane) = self.lane.take() else {
            return;
        };
        let lanes = self.lanes;
        let mut state = lanes.state();
        let number = state.next;
        state.next = number.wrapping_add(1);
        state.under_way.push(UnderWay {
            number,
            writes: writes.clone(),
        });
        drop(state);
        if let Some(ring) = &mut lane.ring {
            let parts = writes.iter().map(|write| {
                let bytes = lane.buffer.get(write.bytes.clone());
                (write.offset, bytes.unwrap_or_default())
            });
            // SAFETY: the bytes lie in the buffer's own allocation, wherever
            // the lane is moved. The lane goes to `behind` and comes out only
            // for `complete`, which finishes the ring before anything else. The
            // drop of the lanes completes what is left; they own the file.
            unsafe { ring.begin(&lanes.file, parts) };
        }
        let mut state = lanes.state();
        state.behind.push_back(Behind { number, lane });
        let first = match state.behind.len() > BEHIND_MAX {
            true => state.behind.pop_front(),
            false => None,
        };
        drop(state);
        // Somebody may have looked for it in vain.
        lanes.freed.notify_all();
        if let Some(first) = first {
            lanes.complete(first);
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if let Some(lane) = self.lane.take() {
            self.lanes.state().free.push(lane);
            self.lanes.freed.notify_all();
        }
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // The kernel may still read the buffers.
        self.settle_where(|_| true);
    }
}

impl std::fmt::Debug for Lanes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state();
        f.debug_struct("Lanes")
            .field("made", &state.made)
            .field("behind", &state.behind.len())
            .field("failed", &state.failed)
            .finish_non_exhaustive()
    }
}
