//! Errors of a device, counted under the kernel's names.

use std::sync::atomic::{AtomicU64, Ordering};

/// Error counters of one device since they were last set to zero. They go on
/// across mounts if the store keeps them.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Writes that failed.
    pub write_errs: AtomicU64,
    /// Reads that failed.
    pub read_errs: AtomicU64,
    /// Flushes that failed.
    pub flush_errs: AtomicU64,
    /// Content that did not pass its check.
    pub corruption_errs: AtomicU64,
    /// Nodes of another generation than expected. Counted by whoever knows
    /// generations; this crate does not.
    pub generation_errs: AtomicU64,
}

impl DeviceStats {
    pub(crate) fn count(counter: &AtomicU64) {
        // The counters order no other memory access.
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the counters, in the order of [`DeviceStats::values`].
    pub fn set(&self, values: [u64; 5]) {
        let counters = [
            &self.write_errs,
            &self.read_errs,
            &self.flush_errs,
            &self.corruption_errs,
            &self.generation_errs,
        ];
        for (counter, value) in counters.into_iter().zip(values) {
            counter.store(value, Ordering::Relaxed);
        }
    }

    /// Names and values, in the kernel's order.
    #[must_use]
    pub fn values(&self) -> [(&'static str, u64); 5] {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        [
            ("write_errs", get(&self.write_errs)),
            ("read_errs", get(&self.read_errs)),
            ("flush_errs", get(&self.flush_errs)),
            ("corruption_errs", get(&self.corruption_errs)),
            ("generation_errs", get(&self.generation_errs)),
        ]
    }
}
