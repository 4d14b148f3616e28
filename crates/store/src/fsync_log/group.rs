//! Fsyncs that come at the same time share one write of the log.
//!
//! Owns who writes: one thread leads, and the others sleep until it is done. A
//! leader lets those that are about to log their file do that first. If a write
//! of the log takes long, because flushes of the device do, the leader also
//! waits for those that the last write served: they often come back at once,
//! and would otherwise wait for this write and for one of their own. A lone
//! fsync waits for nobody.
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
/// A leader waits for those that the last write served for this part of what a
/// write takes, and again if some of them came meanwhile, ...
const GATHERING_PART: u32 = 4;
/// ... at most so often.
const GATHERING_PARTS_MAX: usize = 4;
/// No part is longer than this, ...
const GATHERING_MAX: Duration = Duration::from_millis(5);
/// ... and none is shorter: where the device is fast, the processors are the
/// limit, and a wait only leaves them idle.
const GATHERING_MIN: Duration = Duration::from_micros(200);
/// After a leader waited in vain, this many leaders do not wait, at most. The
/// number doubles each time.
const SKIPS_MAX: u32 = 64;

/// Who leads, and who waits for the leader.
#[derive(Debug, Default)]
struct Led {
    is_led: bool,
    followers: usize,
    /// The last leader had followers when it was done.
    had_followers: bool,
    /// The leader and its followers when it was done.
    crowd: usize,
    /// A leader waits until there are so many followers; zero: it does not.
    wanted: usize,
    /// What a write of the log takes: a moving average.
    write_time: Duration,
    /// How many leaders are still to skip the wait, ...
    skips: u32,
    /// ... and how many did after the last wait in vain.
    skipped: u32,
}

impl Led {
    /// For how long a leader waits for those that the last write served;
    /// `None` if it does not.
    fn gathering(&mut self) -> Option<Duration> {
        let time = (self.write_time / GATHERING_PART).min(GATHERING_MAX);
        if time < GATHERING_MIN || self.followers + 1 >= self.crowd {
            return None;
        }
        match self.skips.checked_sub(1) {
            Some(left) => {
                self.skips = left;
                None
            }
            None => Some(time),
        }
    }

    /// Notes how a wait ended. It was in vain if most of them did not come.
    fn gathered(&mut self) {
        let in_vain = self.followers < self.wanted.div_ceil(2);
        self.wanted = 0;
        self.skipped = match in_vain {
            true => (self.skipped * 2 + 1).min(SKIPS_MAX),
            false => 0,
        };
        self.skips = self.skipped;
    }

    /// Notes that a write took `time`. A rare long one (a commit) counts little.
    fn note_write(&mut self, time: Duration) {
        let time = time.min(self.write_time * 2 + PATIENCE);
        self.write_time = (self.write_time * 7 + time) / 8;
    }
}

/// Fsyncs under way.
#[derive(Debug, Default)]
pub(crate) struct FsyncGroup {
    led: Mutex<Led>,
    ended: Condvar,
    /// The leader that waits for followers has them.
    gathered: Condvar,
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
pub(crate) struct Leader<'g> {
    group: &'g FsyncGroup,
    began: Instant,
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let mut led = self.group.lock();
        led.is_led = false;
        let is_awaited = led.followers > 0;
        led.had_followers = is_awaited;
        led.crowd = led.followers + 1;
        led.note_write(self.began.elapsed());
        drop(led);
        if is_awaited {
            self.group.ended.notify_all();
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
            if led.wanted > 0 && led.followers >= led.wanted {
                self.gathered.notify_one();
            }
            led = self.ended.wait(led).unwrap_or_else(PoisonError::into_inner);
            led.followers -= 1;
            if self.is_durable(ticket) {
                return None;
            }
        }
        has_company |= led.followers > 0 || self.arriving.load(Ordering::Relaxed) > 0;
        led.is_led = true;
        let gathering = led.gathering();
        if let Some(time) = gathering {
            led.wanted = led.crowd - 1;
            for _ in 0..GATHERING_PARTS_MAX {
                let before = led.followers;
                let lacks = |led: &mut Led| led.followers < led.wanted;
                let waited = self.gathered.wait_timeout_while(led, time, lacks);
                (led, _) = waited.unwrap_or_else(PoisonError::into_inner);
                if led.followers >= led.wanted || led.followers == before {
                    break;
                }
            }
            led.gathered();
        }
        drop(led);
        let mut leader = Leader {
            group: self,
            began: Instant::now(),
        };
        if has_company && gathering.is_none() {
            self.let_others_arrive();
            leader.began = Instant::now();
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

    /// Two callers, of which one follows the other. Then one comes back. How
    /// long it waits for the other one.
    fn waits_for_the_other(group: &FsyncGroup, comes_back: bool) -> Duration {
        let leader = group.lead_or_follow(ticket(3)).expect("nobody else leads");
        std::thread::scope(|scope| {
            let other = scope.spawn(|| group.lead_or_follow(ticket(3)).is_some());
            while group.lock().followers == 0 {
                std::thread::yield_now();
            }
            group.batch_is_durable(4);
            drop(leader);
            assert!(!other.join().expect("it does not panic"));
            assert_eq!(group.lock().crowd, 2);
            group.lock().write_time = Duration::from_secs(8);
            let start = Instant::now();
            if comes_back {
                scope.spawn(|| {
                    while !group.lock().is_led {
                        std::thread::yield_now();
                    }
                    drop(group.lead_or_follow(ticket(4)));
                });
            }
            let leader = group.lead_or_follow(ticket(4)).expect("nobody else leads");
            let waited = start.elapsed();
            group.batch_is_durable(5);
            drop(leader);
            waited
        })
    }

    #[test]
    fn a_leader_waits_for_those_that_come_back() {
        let group = FsyncGroup::default();
        waits_for_the_other(&group, true);
        assert_eq!(group.lock().skips, 0, "it came back");
        assert_eq!(group.lock().wanted, 0);
        let group = FsyncGroup::default();
        assert!(waits_for_the_other(&group, false) >= GATHERING_MAX);
        assert_eq!(group.lock().crowd, 1, "it is alone now");
        for skips in [1, 0] {
            assert_eq!(group.lock().skips, skips);
            // The first of these leaders finds that it is to skip.
            group.lock().crowd = 2;
            group.lock().write_time = Duration::from_millis(1);
            drop(group.lead_or_follow(ticket(5)));
        }
        assert_eq!(group.lock().skips, 3, "the second one waited in vain");
        drop(group.lead_or_follow(ticket(5)));
        assert_eq!(group.lock().skips, 3, "a lone one never waits");
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
