//! Threads of a workload, watched so that cancelling ends them.

use super::Ground;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Tells workers to end.
#[derive(Debug, Default)]
pub(super) struct Stop(AtomicBool);

impl Stop {
    /// Whether a worker should end. Workers ask between operations.
    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a cancelled workload ends with.
pub(super) const CANCELLED: &str = "cancelled";

/// Tells the watcher that a worker has ended, also by a panic.
struct End<'a> {
    left: &'a AtomicUsize,
    watcher: &'a Thread,
    stop: &'a Stop,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.stop.ask();
        }
        self.left.fetch_sub(1, Ordering::Release);
        self.watcher.unpark();
    }
}

/// Runs `work` in this many threads, and returns what each returned. The first
/// error, or cancelling, stops all.
pub(super) fn crowd<T: Send>(
    ground: &dyn Ground,
    threads: usize,
    work: impl Fn(usize, &Stop) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let stop = Stop::default();
    let left = AtomicUsize::new(threads);
    let watcher = std::thread::current();
    let mut is_cancelled = false;
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let (stop, work, left, watcher) = (&stop, &work, &left, &watcher);
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn(move || {
                    let _end = End {
                        left,
                        watcher,
                        stop,
                    };
                    let result = work(index, stop);
                    if result.is_err() {
                        stop.ask();
                    }
                    result
                })
            })
            .collect();
        while left.load(Ordering::Acquire) > 0 {
            if ground.is_cancelled() {
                is_cancelled = true;
                stop.ask();
            }
            // Long enough to cost nothing; the last worker ends it.
            std::thread::park_timeout(Duration::from_millis(100));
        }
        workers
            .into_iter()
            .map(|worker| {
                worker
                    .join()
                    .unwrap_or_else(|_| Err("a thread of the workload panicked".to_owned()))
            })
            .collect()
    });
    if is_cancelled {
        return Err(CANCELLED.to_owned());
    }
    results.into_iter().collect()
}

/// Waits for a time; false when asked to stop meanwhile.
pub(super) fn sleep_until(due: Instant, stop: &Stop) -> bool {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        if stop.is_asked() {
            return false;
        }
        std::thread::sleep(left.min(Duration::from_millis(100)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::nowhere::Nowhere;

    fn wait(stop: &Stop) {
        while !stop.is_asked() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn results_come_in_the_order_of_threads() {
        let squares = crowd(&Nowhere, 5, |index, _| Ok(index * index)).unwrap();
        assert_eq!(squares, [0, 1, 4, 9, 16]);
    }

    #[test]
    fn an_error_or_a_panic_of_one_ends_all() {
        let error = crowd(&Nowhere, 3, |index, stop| {
            if index == 1 {
                return Err("the disk is full".to_owned());
            }
            wait(stop);
            Ok(())
        });
        assert_eq!(error.unwrap_err(), "the disk is full");
        let panic = crowd(&Nowhere, 3, |index, stop| {
            assert!(index != 2, "on purpose");
            wait(stop);
            Ok(())
        });
        assert!(panic.unwrap_err().contains("panicked"));
    }
}
