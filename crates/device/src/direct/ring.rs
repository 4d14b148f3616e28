//! Writes that are under way at the same time.
//!
//! Owns the io_uring, and the waiting for the memory that the kernel reads.
#![allow(
    unsafe_code,
    reason = "the kernel reads memory while writes are under way"
)]

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

/// Writes that a ring has under way at the same time.
pub(super) const ENTRIES: usize = 32;

/// How long a thread looks for the end of its writes before it sleeps. To be
/// woken costs 20 µs and more where idle processors halt, and a device in memory
/// answers sooner.
const LOOK: Duration = Duration::from_micros(60);
/// After looking in vain a thread sleeps at once this many times at most.
const SLEEPS_MAX: u8 = 64;

/// When a write counts as done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// When the device has it.
    Taken,
    /// When it is durable (`RWF_DSYNC`).
    Durable,
}

/// One write: `parts` one after the other from `offset` on.
#[derive(Clone, Copy)]
pub(super) struct RingWrite<'a> {
    pub(super) offset: u64,
    pub(super) parts: &'a [IoSlice<'a>],
}

/// How many bytes of each write are done. A write may be done in part or not at
/// all without an error; the caller completes it.
pub(super) type Outcomes = Vec<io::Result<usize>>;

/// A ring that one caller uses at a time.
pub(super) struct Ring {
    ring: IoUring,
    /// Writes that were pushed and are not complete.
    left: usize,
    /// The kernel takes no more requests of this ring.
    is_broken: bool,
    /// How often a thread looked in vain since the last time that it did not.
    in_vain: u8,
    /// How often it sleeps at once before it looks again.
    sleeps: u8,
}

impl Ring {
    pub(super) fn new() -> Result<Self, Errno> {
        let entries = u32::try_from(ENTRIES).unwrap_or(1);
        let made = IoUring::new(entries);
        let ring = made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::NOSYS))?;
        Ok(Self {
            ring,
            left: 0,
            is_broken: false,
            in_vain: 0,
            sleeps: 0,
        })
    }

    /// Does all writes.
    pub(super) fn write(&mut self, file: &File, writes: &[RingWrite<'_>], done: Done) -> Outcomes {
        let flags = match done {
            Done::Taken => 0,
            Done::Durable => libc::RWF_DSYNC,
        };
        let mut outcomes = Vec::with_capacity(writes.len());
        for writes in writes.chunks(ENTRIES) {
            for (number, write) in (0_u64..).zip(writes) {
                // IoSlice has the layout of iovec.
                let parts = write.parts.as_ptr().cast::<libc::iovec>();
                let count = u32::try_from(write.parts.len()).unwrap_or(u32::MAX);
                let entry = opcode::Writev::new(types::Fd(file.as_raw_fd()), parts, count)
                    .offset(write.offset)
                    .rw_flags(flags)
                    .build();
                // SAFETY: the parts, the bytes that they name and the file are
                // borrowed until this function returns, and it returns only
                // after `finish`.
                unsafe { self.push(entry.user_data(number)) };
            }
            outcomes.extend(self.finish(writes.len()));
        }
        outcomes
    }

    /// Begins at most [`ENTRIES`] writes: each of a part of `buffer`, to an
    /// offset of `file`.
    ///
    /// # Safety
    /// Until [`Ring::finish`] has returned, `buffer` stays where it is and is
    /// not changed, and `file` stays open.
    pub(super) unsafe fn begin<'a>(
        &mut self,
        file: &File,
        writes: impl IntoIterator<Item = (u64, &'a [u8])>,
    ) {
        for (number, (offset, bytes)) in (0_u64..).zip(writes) {
            let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
            let file = types::Fd(file.as_raw_fd());
            let entry = opcode::Write::new(file, bytes.as_ptr(), length).offset(offset);
            // SAFETY: as promised by the caller.
            unsafe { self.push(entry.build().user_data(number)) };
        }
        if !self.is_broken {
            // What is not submitted now is submitted at the end.
            let _ = self.ring.submit();
        }
    }

    /// # Safety
    /// What the entry names stays as it is until [`Ring::finish`] has returned.
    unsafe fn push(&mut self, entry: squeue::Entry) {
        if self.is_broken {
            return;
        }
        // SAFETY: as promised by the caller.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        // A write that finds no room counts as not done.
        if pushed.is_ok() {
            self.left = self.left.saturating_add(1);
        }
    }

    /// Waits until the kernel is done with all writes. `count` of them were
    /// begun.
    pub(super) fn finish(&mut self, count: usize) -> Outcomes {
        const PAUSE: Duration = Duration::from_millis(1);
        let mut outcomes: Outcomes = (0..count).map(|_| Ok(0)).collect();
        // They may be complete already.
        self.reap(&mut outcomes);
        self.look(&mut outcomes);
        while self.left > 0 {
            let entered = self.ring.submit_and_wait(self.left);
            self.reap(&mut outcomes);
            let refused = entered.is_err_and(|error| {
                let again = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
                error
                    .raw_os_error()
                    .is_none_or(|errno| !again.contains(&errno))
            });
            if refused && self.left > 0 {
                self.is_broken = true;
                if self.ring.submission().len() == self.left {
                    // The kernel took none of them. No call follows by which
                    // it would.
                    self.left = 0;
                    break;
                }
                // The kernel still reads the memory of those that it took.
                std::thread::sleep(PAUSE);
            }
        }
        outcomes
    }

    /// Waits a moment without sleeping, if that helped lately. Other threads
    /// run meanwhile.
    fn look(&mut self, outcomes: &mut [io::Result<usize>]) {
        if self.left == 0 || self.is_broken {
            return;
        }
        if self.sleeps > 0 {
            self.sleeps = self.sleeps.saturating_sub(1);
            return;
        }
        if self.ring.submit().is_err() {
            return;
        }
        let begin = Instant::now();
        while self.left > 0 && begin.elapsed() < LOOK {
            std::thread::yield_now();
            self.reap(outcomes);
        }
        self.in_vain = match self.left {
            0 => 0,
            _ => self.in_vain.saturating_add(1),
        };
        let sleeps = 1_u8.checked_shl(self.in_vain.into()).unwrap_or(SLEEPS_MAX);
        self.sleeps = sleeps.saturating_sub(1).min(SLEEPS_MAX);
    }

    /// Takes in what is complete.
    fn reap(&mut self, outcomes: &mut [io::Result<usize>]) {
        for completed in self.ring.completion() {
            self.left = self.left.saturating_sub(1);
            let number = usize::try_from(completed.user_data()).unwrap_or(usize::MAX);
            if let Some(outcome) = outcomes.get_mut(number) {
                *outcome = outcome_of(completed.result());
            }
        }
    }
}

/// Bytes that a completed write has written.
fn outcome_of(result: i32) -> io::Result<usize> {
    match usize::try_from(result) {
        Ok(written) => Ok(written),
        Err(_) => match result.saturating_neg() {
            // The caller does it again.
            libc::EAGAIN | libc::EINTR => Ok(0),
            errno => Err(io::Error::from_raw_os_error(errno)),
        },
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring")
            .field("is_broken", &self.is_broken)
            .finish_non_exhaustive()
    }
}
