//! Serving where the caller runs.
//!
//! Owns the choice of the CPU for a thread that reads /dev/fuse. An idle CPU
//! may take long to wake (virtual machines that halt, deep sleep states). Then
//! a caller and a server on two CPUs wake each other twice for each request,
//! which costs many times what the request does. The scheduler leaves them
//! apart as long as both CPUs are mostly idle. On one CPU they hand over by a
//! switch.
//!
//! The time between a reply and the next request is the sign. It is short if
//! waking is fast or both are on one CPU; then nothing is done. A caller that
//! works between its requests is looked for too, once a millisecond at most.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cpu_wakeup::{BULK, CpuWakeup};
use crate::request_slot::Placement;

/// From this pause between reply and request on, it pays to see where the
/// caller runs. A switch takes 2 to 5 microseconds, waking an idle CPU of a
/// virtual machine 40.
const PAUSE: Duration = Duration::from_micros(25);

/// What one thread knows of its callers.
#[derive(Debug)]
pub(super) struct Follower {
    wakeup: Arc<CpuWakeup>,
    /// The last caller.
    caller: u32,
    replied: Instant,
}

/// What to do after a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Nothing.
    Stay,
    /// Go where the caller is.
    Follow,
    /// Let the scheduler choose.
    LetGo,
}

impl Follower {
    pub(super) fn new(wakeup: Arc<CpuWakeup>) -> Self {
        Self {
            wakeup,
            caller: 0,
            replied: Instant::now(),
        }
    }

    /// A request of `caller` came, which reads this many bytes. Call it before
    /// the request is served. Returns how long after the last reply it came.
    pub(super) fn arrived(&self, caller: u32, reads: usize) -> Duration {
        let cpu = rustix::thread::sched_getcpu();
        self.wakeup.serves(cpu, caller, reads);
        self.replied.elapsed()
    }

    /// The request was answered. It had come `pause` after the previous reply.
    pub(super) fn answered(
        &mut self,
        caller: u32,
        reads: usize,
        pause: Duration,
        placement: &Arc<Placement>,
    ) {
        match self.step(caller, reads, pause) {
            Step::Stay => {}
            Step::LetGo => placement.anywhere(),
            Step::Follow => self.wakeup.move_to(caller, placement),
        }
        self.replied = Instant::now();
    }

    fn step(&mut self, caller: u32, reads: usize, pause: Duration) -> Step {
        if reads >= BULK {
            return Step::LetGo;
        }
        // The kernel itself: read-ahead, write-back.
        if caller == 0 {
            return Step::Stay;
        }
        let last = std::mem::replace(&mut self.caller, caller);
        if self.wakeup.has_several_callers() {
            // Both CPUs are at work.
            return Step::LetGo;
        }
        match caller != last || pause >= PAUSE {
            true => Step::Follow,
            false => Step::Stay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu_wakeup::Wake;

    const SOON: Duration = Duration::from_micros(5);
    const LATE: Duration = Duration::from_micros(90);

    fn follower() -> Follower {
        Follower::new(CpuWakeup::new(Wake::Sleep))
    }

    #[test]
    fn one_caller_is_followed_when_it_is_far() {
        let mut follower = follower();
        assert_eq!(follower.step(7, 0, SOON), Step::Follow, "a new one");
        assert_eq!(follower.step(7, 0, SOON), Step::Stay);
        assert_eq!(follower.step(7, 0, LATE), Step::Follow);
        assert_eq!(follower.step(0, 0, LATE), Step::Stay, "the kernel");
        assert_eq!(
            follower.step(7, BULK, LATE),
            Step::LetGo,
            "they copy side by side"
        );
        assert_eq!(follower.step(8, 0, SOON), Step::Follow, "the next process");
    }

    #[test]
    fn several_callers_are_left_to_the_scheduler() {
        let mut follower = follower();
        let wakeup = Arc::clone(&follower.wakeup);
        (0..99).for_each(|n| wakeup.serves(0, 7 + n % 2, 0));
        assert_eq!(follower.step(7, 0, SOON), Step::LetGo);
        assert_eq!(follower.step(8, 0, LATE), Step::LetGo);
        (0..99).for_each(|_| wakeup.serves(0, 7, 0));
        assert_eq!(follower.step(7, 0, LATE), Step::Follow, "alone again");
    }
}
