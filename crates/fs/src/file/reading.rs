//! Large reads that several threads share.
//!
//! Owns how many threads take part in a read. A thread that reads alone copies
//! from the device's page cache as fast as one processor can, while others are
//! idle.

use butterfs_device::Helpers;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes for each thread at least. Waking one takes as long as reading half of
/// them.
const SHARE_MIN: usize = 256 << 10;
/// Threads that help at most.
const HELPERS_MAX: usize = 3;

/// Who reads, and who helps.
#[derive(Debug)]
pub(crate) struct Reading {
    helpers: Helpers,
    /// Threads that may read at the same time.
    threads: usize,
    /// Large reads that are under way.
    under_way: AtomicUsize,
}

/// A large read that is under way.
struct UnderWay<'r>(&'r AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Reading {
    pub(crate) const fn new(threads: usize) -> Self {
        let helpers = match threads {
            0 => 0,
            1..=HELPERS_MAX => threads - 1,
            _ => HELPERS_MAX,
        };
        Self {
            helpers: Helpers::new(helpers),
            threads,
            under_way: AtomicUsize::new(0),
        }
    }

    /// Does jobs, which read `bytes` together. Several threads take them in
    /// their order. After an error no job is begun.
    ///
    /// # Errors
    /// That of the first job that has one.
    pub(crate) fn run<J: Send, E: Send>(
        &self,
        jobs: Vec<J>,
        bytes: usize,
        work: impl Fn(J) -> Result<(), E> + Sync,
    ) -> Result<(), E> {
        let shares = jobs.len().min(bytes / SHARE_MIN);
        if shares < 2 || self.threads < 2 {
            return jobs.into_iter().try_for_each(work);
        }
        let readers = self.under_way.fetch_add(1, Ordering::Relaxed) + 1;
        let _under_way = UnderWay(&self.under_way);
        let helpers = (self.threads / readers).min(shares).saturating_sub(1);
        let left = Mutex::new(jobs.into_iter().enumerate());
        let failed: Mutex<Option<(usize, E)>> = Mutex::new(None);
        self.helpers.share(helpers, &|| {
            loop {
                let next = left.lock().next();
                let Some((number, job)) = next else {
                    break;
                };
                if let Err(error) = work(job) {
                    left.lock().by_ref().for_each(drop);
                    let mut failed = failed.lock();
                    if failed.as_ref().is_none_or(|(first, _)| number < *first) {
                        *failed = Some((number, error));
                    }
                }
            }
        });
        match failed.into_inner() {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_jobs_are_done_and_the_first_error_counts() {
        for threads in [1, 2, 5] {
            let reading = Reading::new(threads);
            let mut filled = [0_u8; 64];
            let jobs: Vec<_> = filled.chunks_mut(4).collect();
            let done = reading.run(jobs, 16 * SHARE_MIN, |job| {
                job.fill(7);
                Ok::<(), usize>(())
            });
            assert_eq!(done, Ok(()));
            assert!(filled.iter().all(|byte| *byte == 7));
            for _ in 0..50 {
                let failed = reading.run((0..64).collect(), 16 * SHARE_MIN, |job: usize| {
                    if job >= 20 { Err(job) } else { Ok(()) }
                });
                assert_eq!(failed, Err(20));
            }
        }
    }
}
