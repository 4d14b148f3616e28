//! Requests to several devices at the same time.
//!
//! Owns the threads that wait for devices. A volume of one device has none.

use butterfs_format::DeviceId;
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::sync::OnceLock;

/// Requests of fewer bytes are done one after the other: waking a thread takes
/// longer than copying them.
pub(crate) const WORTH_IT: usize = 128 << 10;
/// Threads for each device: several readers have requests at the same time.
const EACH: usize = 2;
/// Threads at most.
const THREADS_MAX: usize = 32;

/// Threads that wait for devices.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    pool: OnceLock<Option<ThreadPool>>,
}

impl Workers {
    fn pool(&self, devices: usize) -> Option<&ThreadPool> {
        let pool = self.pool.get_or_init(|| {
            let threads = devices.saturating_mul(EACH).min(THREADS_MAX);
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads)
                .thread_name(|number| format!("device-{number}"))
                .build();
            // Without threads requests are only slower.
            pool.inspect_err(|error| tracing::warn!(%error, "devices are used one at a time"))
                .ok()
        });
        pool.as_ref()
    }

    /// Runs jobs: those of one device in their order, those of different
    /// devices at the same time.
    pub(crate) fn run<J: Send>(
        &self,
        devices: usize,
        mut jobs: Vec<(DeviceId, J)>,
        work: impl Fn(J) + Sync,
    ) {
        jobs.sort_by_key(|(device, _)| *device);
        let mut each: Vec<(DeviceId, Vec<J>)> = Vec::new();
        for (device, job) in jobs {
            match each.last_mut() {
                Some((last, jobs)) if *last == device => jobs.push(job),
                _ => each.push((device, vec![job])),
            }
        }
        let first = each.pop();
        let pool = match each.is_empty() {
            true => None,
            false => self.pool(devices),
        };
        let work = &work;
        let all = |jobs: Vec<J>| jobs.into_iter().for_each(work);
        match pool {
            None => {
                for (_, jobs) in each.into_iter().chain(first) {
                    all(jobs);
                }
            }
            Some(pool) => pool.in_place_scope(|scope| {
                for (_, jobs) in each {
                    scope.spawn(move |_| all(jobs));
                }
                // This thread would only wait, so it does a part itself.
                if let Some((_, jobs)) = first {
                    all(jobs);
                }
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Barrier;

    #[test]
    fn devices_are_asked_at_the_same_time_and_each_in_order() {
        let workers = Workers::default();
        let (all_there, seen) = (Barrier::new(3), Mutex::new(Vec::new()));
        let jobs: Vec<(DeviceId, (u64, u64))> = (0..4)
            .flat_map(|n| (1..=3).map(move |device| (DeviceId(device), (device, n))))
            .collect();
        workers.run(3, jobs, |(device, n)| {
            if n == 0 {
                // No thread gets past this alone.
                all_there.wait();
            }
            seen.lock().push((device, n));
        });
        let seen = seen.into_inner();
        for device in 1..=3 {
            let own = seen.iter().filter(|(of, _)| *of == device);
            assert_eq!(own.map(|(_, n)| *n).collect::<Vec<_>>(), [0, 1, 2, 3]);
        }
    }
}
