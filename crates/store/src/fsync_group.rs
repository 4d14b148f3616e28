//! Fsyncs that come at the same time share one write of the log.
//!
//! Owns who writes: one thread leads, and the others sleep until it is done. A
//! leader lets those that are about to log their file do that first.
//!
//! Every fsync either leads once or sees its ticket durable. A leader that
//! fails or panics wakes the others, and the next of them leads.

use crate::fsync_log::LogTicket;
use butterfs_format::Generation;
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a leader waits for others at most: about what a write of the log
/// takes where it costs least.
const PATIENCE: Duration = Duration::from_micros(50);

/// Who leads, and who waits for the leader.
#[derive(Debug, Default)]
struct Led {
    is_led: bool,
    followers: usize,
    /// The last leader had followers when it was done.
    had_followers: bool,
}

/// Fsyncs under way.
#[derive(Debug, Default)]
pub(crate) struct FsyncGroup {
    led: Mutex<Led>,
    ended: Condvar,
    /// Fsyncs whose file is not in the log yet.
    arriving: CachePadded<AtomicUsize>,
    /// Fsyncs whose file came into the log, ever.
    arrived: CachePadded<AtomicUsize>,
    /// Batches before this one are durable.
    batch: AtomicU64,
    /// The last durable generation.
    generation: AtomicU64,
}

/// The part of an fsync until its file is in the log.
#[derive(Debug)]
pub struct Arrival<'g>(&'g FsyncGroup);

impl Drop for Arrival<'_> {
    fn drop(&mut self) {
        self.0.arrived.fetch_add(1, Ordering::Relaxed);
        self.0.arriving.fetch_sub(1, Ordering::Release);
    }
}

/// The leader. Dropping it wakes the others.
pub(crate) struct Leader<'g>(&'g FsyncGroup);

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut led = self.0.lock();
        led.is_led = false;
        let is_awaited = led.followers > 0;
        led.had_followers = is_awaited;
        drop(led);
        if is_awaited {
            self.0.ended.notify_all();
        }
    }
}

impl FsyncGroup {
    fn lock(&self) -> MutexGuard<'_, Led> {
        self.led.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an fsync begins.
    pub(crate) fn arrive(&self) -> Arrival<'_> {
        self.arriving.fetch_add(1, Ordering::Relaxed);
        Arrival(self)
    }

    /// Notes that everything before `batch` is durable.
    pub(crate) fn batch_is_durable(&self, batch: u64) {
        self.batch.fetch_max(batch, Ordering::Release);
    }

    /// Notes that everything up to `generation` is durable, and that no further
    /// commit is owed for it. A thread that wakes without this being noted
    /// leads, and asks the engine.
    pub(crate) fn generation_is_durable(&self, generation: Generation) {
        self.generation
            .fetch_max(generation.get(), Ordering::Release);
    }

    fn is_durable(&self, ticket: LogTicket) -> bool {
        self.batch.load(Ordering::Acquire) > ticket.batch
            || self.generation.load(Ordering::Acquire) >= ticket.generation.get()
    }

    /// Waits until `ticket` is durable or this thread is to lead.
    pub(crate) fn lead_or_follow(&self, ticket: LogTicket) -> Option<Leader<'_>> {
        let mut led = self.lock();
        let mut has_company = led.is_led || led.had_followers;
        if led.is_led {
            drop(led);
            butterfs_device::about_to_wait();
            led = self.lock();
        }
        while led.is_led {
            led.followers += 1;
            led = self.ended.wait(led).unwrap_or_else(PoisonError::into_inner);
            led.followers -= 1;
            if self.is_durable(ticket) {
                return None;
            }
        }
        has_company |= led.followers > 0 || self.arriving.load(Ordering::Relaxed) > 0;
        led.is_led = true;
        drop(led);
        let leader = Leader(self);
        if has_company {
            self.let_others_arrive();
        }
        Some(leader)
    }

    /// Lets others run until none of them logs a file any more.
    fn let_others_arrive(&self) {
        let start = Instant::now();
        let mut seen = self.arrived.load(Ordering::Relaxed);
        while start.elapsed() < PATIENCE {
            std::thread::yield_now();
            let arrived = self.arrived.load(Ordering::Relaxed);
            if self.arriving.load(Ordering::Acquire) == 0 && arrived == seen {
                break;
            }
            seen = arrived;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(batch: u64) -> LogTicket {
        LogTicket {
            generation: Generation(7),
            batch,
        }
    }

    /// Follows a leader who does `meanwhile`. True if the follower is to lead.
    fn follow(ticket: LogTicket, meanwhile: impl FnOnce(&FsyncGroup)) -> bool {
        let group = FsyncGroup::default();
        let leader = group.lead_or_follow(ticket).expect("nobody else leads");
        std::thread::scope(|scope| {
            let follower = scope.spawn(|| group.lead_or_follow(ticket).is_some());
            while group.lock().followers == 0 {
                std::thread::yield_now();
            }
            meanwhile(&group);
            drop(leader);
            follower.join().expect("it does not panic")
        })
    }

    #[test]
    fn whoever_follows_is_done_with_the_batch_or_the_generation_or_leads() {
        assert!(follow(ticket(3), |_| ()));
        assert!(follow(ticket(3), |group| group.batch_is_durable(3)));
        assert!(!follow(ticket(3), |group| group.batch_is_durable(4)));
        assert!(follow(ticket(3), |group| {
            group.generation_is_durable(Generation(6));
        }));
        assert!(!follow(ticket(3), |group| {
            group.generation_is_durable(Generation(7));
        }));
    }

    #[test]
    fn a_leader_waits_a_moment_for_those_that_arrive() {
        let group = FsyncGroup::default();
        let arrival = group.arrive();
        let start = Instant::now();
        drop(group.lead_or_follow(ticket(0)));
        assert!(start.elapsed() >= PATIENCE);
        drop(arrival);
        assert_eq!(group.arriving.load(Ordering::Relaxed), 0);
    }
}
