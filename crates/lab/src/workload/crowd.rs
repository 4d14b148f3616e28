//! Threads of a workload, watched so that cancelling ends them.

use super::Ground;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Tells workers to end.
#[derive(Debug, Default)]
pub(super) struct Stop(AtomicBool);

impl Stop {
    /// Whether a worker should end; asked between operations.
    pub(super) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a cancelled workload ends with.
pub(super) const CANCELLED: &str = "cancelled";

/// Runs `work` in so many threads and gives what each returned. The first
/// error and cancelling stop all.
pub(super) fn crowd<T: Send>(
    ground: &dyn Ground,
    threads: usize,
    work: impl Fn(usize, &Stop) -> Result<T, String> + Sync,
) -> Result<Vec<T>, String> {
    let stop = Stop::default();
    let mut is_cancelled = false;
    let results: Vec<Result<T, String>> = std::thread::scope(|scope| {
        let (stop, work) = (&stop, &work);
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                scope.spawn(move || {
                    let result = work(index, stop);
                    if result.is_err() {
                        stop.ask();
                    }
                    result
                })
            })
            .collect();
        while !workers.iter().all(|worker| worker.is_finished()) {
            if ground.is_cancelled() {
                is_cancelled = true;
                stop.ask();
            }
            std::thread::sleep(Duration::from_millis(2));
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
