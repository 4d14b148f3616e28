//! Threads that take part in the work of another thread.
//!
//! Owns the threads, and the rule that lets them borrow what the work borrows:
//! the thread that asks for help goes on, or unwinds, only when every helper
//! that began has ended. A helper that has not begun by the time the asking
//! thread is finished does not begin any more. When all processors are busy,
//! asking for help therefore costs a wake-up but no wait.
#![allow(unsafe_code, reason = "helpers borrow from the thread that asks")]

use crate::waiting;
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::{JoinHandle, Thread};

/// How often a thread looks for work before it sleeps: for about 30
/// microseconds, the time that waking it takes.
const LOOKS: usize = 1000;

/// Nobody asks.
const FREE: u8 = 0;
/// A thread is about to offer work, or to take it back.
const ASKED: u8 = 1;
/// Work is offered.
const OFFERED: u8 = 2;
/// The helper works.
const TAKEN: u8 = 3;
/// The helper has ended.
const ENDED: u8 = 4;

type Work = dyn Fn() + Sync;

/// Work that lives until its helper has ended.
struct Offer {
    work: &'static Work,
    asking: Thread,
}

/// What one helper and those who ask it share.
#[derive(Default)]
struct Seat {
    state: AtomicU8,
    offer: Mutex<Option<Offer>>,
    /// What the helper panicked with.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    closed: AtomicBool,
}

/// Threads that help. They are started when they are first needed.
pub struct Helpers {
    most: usize,
    threads: OnceLock<Vec<(Arc<Seat>, JoinHandle<()>)>>,
}

impl Helpers {
    /// At most this many.
    #[must_use]
    pub const fn new(most: usize) -> Self {
        Self {
            most,
            threads: OnceLock::new(),
        }
    }

    /// Runs `work` on this thread, and at the same time on at most `helpers`
    /// others that have nothing to do. All calls have ended when it returns.
    ///
    /// # Panics
    /// When `work` does, on whatever thread.
    pub fn share(&self, helpers: usize, work: &(dyn Fn() + Sync)) {
        let mut asked = Asked(Vec::with_capacity(helpers));
        if helpers > 0 {
            // SAFETY: `asked` is dropped before `work` goes away, also in a
            // panic. After that no helper has the work any more: each has
            // ended, or its offer was taken back.
            let lasting = unsafe { std::mem::transmute::<&(dyn Fn() + Sync), &'static Work>(work) };
            for (seat, thread) in self.threads() {
                if asked.0.len() < helpers && seat.offers(lasting) {
                    asked.0.push(seat);
                    thread.thread().unpark();
                }
            }
        }
        work();
        if let Some(panic) = asked.end() {
            resume_unwind(panic);
        }
    }

    fn threads(&self) -> &[(Arc<Seat>, JoinHandle<()>)] {
        self.threads.get_or_init(|| {
            let start = |number| {
                let seat = Arc::<Seat>::default();
                let own = Arc::clone(&seat);
                let thread = std::thread::Builder::new().name(format!("helper-{number}"));
                let thread = thread.spawn(move || {
                    // The thread that happened to start this one may be bound
                    // to a processor.
                    if let Ok(all) = sched_getaffinity(Some(getpid())) {
                        let _ = sched_setaffinity(None, &all);
                    }
                    own.serve();
                });
                // Without helpers work is only slower.
                thread.map(|thread| (seat, thread)).ok()
            };
            (0..self.most).map_while(start).collect()
        })
    }
}

impl Drop for Helpers {
    fn drop(&mut self) {
        for (seat, thread) in self.threads.take().into_iter().flatten() {
            seat.closed.store(true, Ordering::Release);
            thread.thread().unpark();
            // It catches panics.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for Helpers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Helpers")
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

/// Helpers that were asked. They have ended when it is dropped.
struct Asked<'h>(Vec<&'h Seat>);

impl Asked<'_> {
    /// Waits for them; gives what one of them panicked with.
    fn end(&mut self) -> Option<Box<dyn Any + Send>> {
        let seats = self.0.drain(..);
        seats.fold(None, |panic, seat| panic.or(seat.end()))
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        // Either this thread panics already, or no helper is left to wait for.
        let _ = self.end();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Seat {
    fn turn(&self, from: u8, to: u8) -> bool {
        let turned = self
            .state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire);
        turned.is_ok()
    }

    /// Offers work to the helper; false if it has work already.
    fn offers(&self, work: &'static Work) -> bool {
        if !self.turn(FREE, ASKED) {
            return false;
        }
        let asking = std::thread::current();
        *lock(&self.offer) = Some(Offer { work, asking });
        self.state.store(OFFERED, Ordering::Release);
        true
    }

    /// Takes the offer back, or waits until the helper has ended.
    fn end(&self) -> Option<Box<dyn Any + Send>> {
        if self.turn(OFFERED, ASKED) {
            lock(&self.offer).take();
        } else {
            let mut looks = 0_usize;
            while self.state.load(Ordering::Acquire) != ENDED {
                looks = looks.saturating_add(1);
                if looks < LOOKS {
                    std::hint::spin_loop();
                } else {
                    // It waits for a device.
                    waiting::about_to_wait();
                    std::thread::park();
                }
            }
        }
        let panic = lock(&self.panic).take();
        self.state.store(FREE, Ordering::Release);
        panic
    }

    /// What the helper's thread does.
    fn serve(&self) {
        let mut looks = 0_usize;
        while !self.closed.load(Ordering::Acquire) {
            if !self.turn(OFFERED, TAKEN) {
                looks = looks.saturating_add(1);
                if looks < LOOKS {
                    std::hint::spin_loop();
                } else {
                    std::thread::park();
                }
                continue;
            }
            looks = 0;
            let Some(Offer { work, asking }) = lock(&self.offer).take() else {
                continue;
            };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
                *lock(&self.panic) = Some(panic);
            }
            // After this the work may be gone.
            self.state.store(ENDED, Ordering::Release);
            asking.unpark();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn helpers_take_part_and_end_before_the_work_does() {
        let helpers = Helpers::new(2);
        for _ in 0..200 {
            let (all_there, ended) = (Barrier::new(3), AtomicUsize::new(0));
            helpers.share(2, &|| {
                // Nobody gets past it alone.
                all_there.wait();
                ended.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(ended.into_inner(), 3);
        }
    }

    #[test]
    fn helpers_that_come_late_do_not_begin() {
        let helpers = Helpers::new(3);
        let begun = AtomicUsize::new(0);
        for _ in 0..2000 {
            let left = AtomicUsize::new(1);
            helpers.share(3, &|| {
                begun.fetch_add(1, Ordering::Relaxed);
                left.store(0, Ordering::Relaxed);
            });
            assert_eq!(left.into_inner(), 0);
        }
        let begun = begun.into_inner();
        assert!((2000..=8000).contains(&begun), "{begun}");
        helpers.share(0, &|| ());
    }

    #[test]
    fn several_threads_ask_at_the_same_time() {
        let helpers = Helpers::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let numbers = Mutex::new((0..20).collect::<Vec<u64>>());
                        let sum = Mutex::new(0);
                        helpers.share(2, &|| {
                            while let Some(number) = { lock(&numbers).pop() } {
                                *lock(&sum) += number;
                            }
                        });
                        assert_eq!(sum.into_inner().unwrap(), 190);
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_of_a_helper_comes_back_and_the_helper_stays() {
        let helpers = Helpers::new(1);
        for _ in 0..3 {
            let (both, first) = (Barrier::new(2), AtomicBool::new(true));
            let own = std::thread::current().id();
            let caught = catch_unwind(AssertUnwindSafe(|| {
                helpers.share(1, &|| {
                    both.wait();
                    first.store(false, Ordering::Relaxed);
                    assert!(std::thread::current().id() == own, "on purpose");
                });
            }));
            assert!(caught.is_err());
        }
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let both = Barrier::new(2);
            helpers.share(1, &|| {
                both.wait();
                panic!("on purpose, on both");
            });
        }));
        assert!(caught.is_err());
        let both = Barrier::new(2);
        helpers.share(1, &|| {
            both.wait();
        });
    }
}
