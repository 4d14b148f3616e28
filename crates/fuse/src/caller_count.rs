//! Whether several callers take turns.
//!
//! Owns that answer for all threads of a session. One thread serves one caller
//! best: with two, the kernel wakes the other CPU for every second request. Two
//! callers keep two CPUs at work by themselves, and two threads serve them
//! best.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// How much more a request counts if its caller is not the last one's. Callers
/// that each wait for their answers take turns at nearly every request.
const TURN: u32 = 2;
/// Such a request counts if it comes within this time after the previous one,
/// because then it was already waiting. Processes that follow each other, as in
/// a shell's loop, begin later.
const SOON: Duration = Duration::from_micros(100);
/// The sum above which callers count as several.
const SEVERAL: u32 = 32;
/// The bound of the sum. After this many requests of one caller, callers no
/// longer count as several.
const MAX: u32 = 64;

/// What is known of the callers of a session.
#[derive(Debug, Default)]
pub(crate) struct CallerCount {
    last: AtomicU32,
    sum: AtomicU32,
    several: AtomicBool,
}

impl CallerCount {
    /// A request of the thread `caller` came, this long after the previous one.
    /// Zero is the kernel itself and is ignored. Races with other threads only
    /// cost accuracy.
    pub(crate) fn note(&self, caller: u32, since: Duration) {
        if caller == 0 {
            return;
        }
        let is_turn = self.last.load(Ordering::Relaxed) != caller;
        let sum = self.sum.load(Ordering::Relaxed);
        let now = match is_turn {
            true => {
                self.last.store(caller, Ordering::Relaxed);
                let counts = if since < SOON { TURN } else { 0 };
                (sum + counts).min(MAX)
            }
            false => sum.saturating_sub(1),
        };
        if now != sum {
            self.sum.store(now, Ordering::Relaxed);
        }
        let several = match self.are_several() {
            true => now > 0,
            false => now > SEVERAL,
        };
        if several != self.are_several() {
            self.several.store(several, Ordering::Relaxed);
        }
    }

    /// Whether requests of several callers are mixed.
    pub(crate) fn are_several(&self) -> bool {
        self.several.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT_ONCE: Duration = Duration::from_micros(10);

    fn after(callers: impl IntoIterator<Item = u32>) -> CallerCount {
        let count = CallerCount::default();
        let callers = callers.into_iter();
        callers.for_each(|caller| count.note(caller, AT_ONCE));
        count
    }

    #[test]
    fn callers_that_take_turns_are_several() {
        assert!(after((0..40).map(|n| 7 + n % 2)).are_several(), "two");
        assert!(after((0..40).map(|n| 7 + n % 5)).are_several(), "five");
        let pairs = (0..80).map(|n| 7 + n / 2 % 2);
        assert!(after(pairs).are_several(), "two requests each");
        assert!(!after([7, 8, 7, 8]).are_several(), "a few");
    }

    #[test]
    fn callers_that_follow_each_other_are_not() {
        assert!(!after((0..900).map(|_| 7)).are_several(), "one");
        let loop_of_a_shell = CallerCount::default();
        for n in 0..900 {
            // Two requests of each process.
            let begins = Duration::from_millis(if n % 2 == 0 { 1 } else { 0 });
            loop_of_a_shell.note(7 + n / 2, begins);
        }
        assert!(!loop_of_a_shell.are_several());
        let with_the_kernel = (0..900).map(|n| n % 2 * 7);
        assert!(!after(with_the_kernel).are_several());
    }

    #[test]
    fn one_that_goes_on_alone_is_one_again() {
        let count = after((0..400).map(|n| 7 + n % 2));
        (0..=MAX).for_each(|_| count.note(7, AT_ONCE));
        assert!(!count.are_several());
    }
}
