//! The memory that a check may take.
//!
//! Whoever keeps something whose size the volume decides takes its bytes here
//! first. Beyond the limit every walk ends at its next node, and the check
//! with an error: a volume cannot make it take more.

use crate::error::CheckError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes that are taken, and how many may be.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
    /// The most that was taken at one time.
    peak: AtomicU64,
    is_exceeded: AtomicBool,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self {
            limit,
            taken: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            is_exceeded: AtomicBool::new(false),
        })
    }

    /// A budget of its own for what can be given up: what is left when the walks
    /// to come need as much as those that were.
    pub(crate) fn spare(&self) -> Arc<Self> {
        Self::new(self.limit.saturating_sub(self.peak.load(Ordering::Relaxed)))
    }

    /// True as soon as more was taken than may be.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Errors when more was taken than may be.
    ///
    /// # Errors
    /// [`CheckError::Memory`]
    pub(crate) fn verify(&self) -> Result<(), CheckError> {
        if self.is_exceeded() {
            return Err(CheckError::Memory { limit: self.limit });
        }
        Ok(())
    }
}

/// What one part of a check has taken; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Taken {
    /// Nothing yet.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: AtomicU64::new(0),
        }
    }

    /// Takes `bytes`, without which the check cannot go on.
    pub(crate) fn add(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let before = self.budget.taken.fetch_add(bytes, Ordering::Relaxed);
        let now = before.saturating_add(bytes);
        self.budget.peak.fetch_max(now, Ordering::Relaxed);
        if now > self.budget.limit {
            self.budget.is_exceeded.store(true, Ordering::Relaxed);
        }
    }

    /// Takes `bytes` where there are so many left; false where not.
    pub(crate) fn try_add(&self, bytes: u64) -> bool {
        let limit = self.budget.limit;
        let fits = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        let taken = &self.budget.taken;
        let done = taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if done.is_ok() {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        done.is_ok()
    }

    /// Gives `bytes` back, which were taken here.
    pub(crate) fn give(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.budget.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.give(self.bytes.load(Ordering::Relaxed));
    }
}

/// Bytes of `count` things of `each` bytes.
pub(crate) fn bytes_of(count: usize, each: u64) -> u64 {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    count.saturating_mul(each)
}

#[cfg(test)]
mod tests {
    use super::{Budget, Taken};

    #[test]
    fn what_is_dropped_is_given_back() {
        let budget = Budget::new(100);
        let first = Taken::new(&budget);
        first.add(60);
        assert!(!first.try_add(41));
        assert!(first.try_add(40));
        first.give(10);
        drop(first);
        let second = Taken::new(&budget);
        second.add(100);
        assert!(budget.verify().is_ok());
        second.add(1);
        assert!(budget.verify().is_err());
    }
}
