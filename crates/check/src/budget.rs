//! The memory that a check may take.
//!
//! Before code keeps something whose size depends on the volume, it takes the
//! bytes from this budget. When more than the limit is taken, every walk ends
//! at its next node and the check fails, so a volume cannot make it use up all
//! memory.

use crate::error::CheckError;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The bytes that are taken now, and the limit.
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

    /// Makes a separate budget for what the check can do without. Its limit is
    /// what remains if the walks to come need as much as the walks so far.
    pub(crate) fn spare(&self) -> Arc<Self> {
        Self::new(self.limit.saturating_sub(self.peak.load(Ordering::Relaxed)))
    }

    /// True once more than the limit was taken.
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded.load(Ordering::Relaxed)
    }

    /// Fails if more than the limit was taken.
    ///
    /// # Errors
    /// [`CheckError::Memory`] if more than the limit was taken.
    pub(crate) fn verify(&self) -> Result<(), CheckError> {
        if self.is_exceeded() {
            return Err(CheckError::Memory { limit: self.limit });
        }
        Ok(())
    }
}

/// The bytes that one part of a check has taken. Dropping this returns them.
#[derive(Debug)]
pub(crate) struct Taken {
    budget: Arc<Budget>,
    bytes: AtomicU64,
}

impl Taken {
    /// Makes an account that has taken nothing yet.
    pub(crate) fn new(budget: &Arc<Budget>) -> Self {
        Self {
            budget: Arc::clone(budget),
            bytes: AtomicU64::new(0),
        }
    }

    /// Takes `bytes`, also beyond the limit. The check fails if the limit is
    /// exceeded.
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

    /// Takes `bytes` if that many are left; returns false if not.
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

    /// Returns `bytes` to the budget. They must have been taken through `self`.
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
