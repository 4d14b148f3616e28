//! Work that several threads share.

use butterfs_device::ThreadTurn;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::Builder;

/// Runs jobs on at most `threads` threads, this one included, and on no more than
/// the process may have ([`ThreadTurn`]). Each thread takes
/// the next job that nobody has begun. After an error no thread begins another
/// job.
///
/// # Errors
/// One of those of `work`.
pub(crate) fn in_parallel<J: Sync, E: Send>(
    jobs: &[J],
    threads: usize,
    work: impl Fn(&J) -> Result<(), E> + Sync,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    let until_done = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(job) {
                next.store(jobs.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others = 1..threads.min(jobs.len());
        // Without a thread, the others have more to do.
        let start = |_| {
            let turn = ThreadTurn::take()?;
            let run = || {
                let _turn = turn;
                until_done()
            };
            Builder::new().spawn_scoped(scope, run).ok()
        };
        let others: Vec<_> = others.map_while(start).collect();
        let mut outcome = until_done();
        for other in others {
            match other.join() {
                Ok(result) => outcome = outcome.and(result),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        outcome
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Barrier;

    #[test]
    fn each_job_is_done_once_by_several_threads_and_an_error_ends_all() {
        let (all_there, seen) = (Barrier::new(3), Mutex::new(Vec::new()));
        let jobs: Vec<usize> = (0..30).collect();
        let done = in_parallel(&jobs, 3, |job| {
            if *job < 3 {
                // Nobody gets past it alone.
                all_there.wait();
            }
            seen.lock().push(*job);
            Ok::<(), usize>(())
        });
        assert_eq!(done, Ok(()));
        let mut seen = seen.into_inner();
        seen.sort_unstable();
        assert_eq!(seen, jobs);
        let begun = AtomicUsize::new(0);
        let failed = in_parallel(&jobs, 2, |job| {
            begun.fetch_add(1, Ordering::Relaxed);
            Err(*job)
        });
        assert!(failed.is_err());
        assert!(begun.into_inner() <= 2);
    }
}
