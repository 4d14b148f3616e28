//! Shares of some work, each done by a thread.
//!
//! Owns how many threads of the process do such work at a time. Many threads of
//! a program, or many devices, may have work at the same time; none of them
//! starts threads beyond that. A system may refuse a thread, too: a limit of the
//! user, of a container or of a service is reached. Then the threads that there
//! are do all shares, so work becomes slower and does not fail.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Threads of the process that do shares of others' work at a time. Those that
/// wait for devices outnumber the processors; more than this only wait.
const THREADS_MAX: usize = 256;

/// Threads that do shares now.
static THREADS: AtomicUsize = AtomicUsize::new(0);

/// One of the threads that the process may have. It is given back when it is
/// dropped.
#[derive(Debug)]
pub struct ThreadTurn(&'static AtomicUsize);

impl ThreadTurn {
    /// `None` if the process has [`THREADS_MAX`] of them.
    #[must_use]
    pub fn take() -> Option<Self> {
        Self::take_of(&THREADS, THREADS_MAX)
    }

    fn take_of(taken: &'static AtomicUsize, most: usize) -> Option<Self> {
        let add = |now: usize| (now < most).then_some(now + 1);
        let took = taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
        took.is_ok().then(|| Self(taken))
    }
}

impl Drop for ThreadTurn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Does `work` for each of `shares`, and gives the results in their order. The
/// calling thread takes part.
///
/// # Panics
/// If `work` panics.
pub fn each_by_a_thread<S: Send, R: Send>(
    shares: impl IntoIterator<Item = S>,
    work: impl Fn(S) -> R + Sync,
) -> Vec<R> {
    each_by(
        &|| Some((ThreadTurn::take()?, Builder::new())),
        shares,
        work,
    )
}

fn each_by<S: Send, R: Send>(
    thread: &dyn Fn() -> Option<(ThreadTurn, Builder)>,
    shares: impl IntoIterator<Item = S>,
    work: impl Fn(S) -> R + Sync,
) -> Vec<R> {
    // A share stays in its place until a thread takes it.
    let places: Vec<Mutex<Option<S>>> = shares.into_iter().map(|s| Mutex::new(Some(s))).collect();
    let next = AtomicUsize::new(0);
    let until_done = || {
        let mut done = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(place) = places.get(number) else {
                return done;
            };
            let share = place.lock().unwrap_or_else(PoisonError::into_inner).take();
            done.extend(share.map(|share| (number, work(share))));
        }
    };
    let mut done = std::thread::scope(|scope| {
        let start = |_| {
            let (turn, builder) = thread()?;
            let run = || {
                let _turn = turn;
                until_done()
            };
            builder.spawn_scoped(scope, run).ok()
        };
        let others: Vec<_> = (1..places.len()).map_while(start).collect();
        let mut done = until_done();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_unstable_by_key(|(number, _)| *number);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_come_in_order_from_threads_that_run_together() {
        let all_there = Barrier::new(4);
        let doubled = each_by_a_thread(0..4, |number| {
            all_there.wait();
            number * 2
        });
        assert_eq!(doubled, [0, 2, 4, 6]);
        let mut texts = ["a".to_owned(), "b".to_owned()];
        each_by_a_thread(&mut texts, |text| text.push('!'));
        assert_eq!(texts, ["a!", "b!"]);
        assert!(each_by_a_thread(0..0, |number| number).is_empty());
    }

    #[test]
    fn what_no_thread_can_do_is_done_here() {
        // No machine has so much memory.
        let impossible = || Builder::new().stack_size(1 << 60);
        assert!(impossible().spawn(|| ()).is_err());
        let here = std::thread::current().id();
        let thread = || Some((ThreadTurn::take()?, impossible()));
        let done = each_by(&thread, 0..3, |number| {
            (number, std::thread::current().id() == here)
        });
        assert_eq!(done, [(0, true), (1, true), (2, true)]);
    }

    /// Work within work asks for far more threads than the process may have.
    #[test]
    fn there_are_never_more_threads_than_the_process_may_have() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let thread = || Some((ThreadTurn::take_of(&TAKEN, 5)?, Builder::new()));
        let done = each_by(&thread, 0..20, |outer| {
            let inner = each_by(&thread, 0..20, |inner| {
                let count = now.fetch_add(1, Ordering::SeqCst) + 1;
                most.fetch_max(count, Ordering::SeqCst);
                std::thread::yield_now();
                now.fetch_sub(1, Ordering::SeqCst);
                inner
            });
            assert_eq!(inner, (0..20).collect::<Vec<_>>());
            outer
        });
        assert_eq!(done, (0..20).collect::<Vec<_>>());
        // The thread that asks is one more.
        assert!(most.into_inner() <= 6);
        assert_eq!(TAKEN.load(Ordering::SeqCst), 0);
    }
}
