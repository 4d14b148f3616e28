//! Asking the kernel to forget files, when it remembers too many.
//!
//! The kernel remembers names and inodes as long as its own memory permits, which is
//! that of the programs. The server has to count each of them, in its own memory,
//! and that may be little.

use super::nodes::Nodes;
use butterfs_fuse::{Errno, NodeId, Notifier};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Bytes of memory for each node that the kernel may know: some ten times what the
/// server needs to count it.
const MEMORY_PER_NODE: u64 = 1024;
/// The least number of nodes at which the kernel is asked.
const LEAST: usize = 16_384;
/// The kernel is not asked again.
const NEVER: usize = usize::MAX;
/// Nodes that one notification names.
const BATCH: usize = 256;

/// How many nodes the kernel may know before it is asked to forget some.
#[derive(Clone, Debug)]
pub(super) struct Crowd(Arc<State>);

#[derive(Debug)]
struct State {
    /// A thread is asking.
    is_asking: AtomicBool,
    /// The number that the memory permits.
    most: usize,
    /// The number at which the kernel is asked next. It is greater after the kernel
    /// forgot less than it was asked to.
    next: AtomicUsize,
}

impl Crowd {
    /// As many as a process with `memory` bytes can count.
    pub(super) fn of_memory(memory: Option<u64>) -> Self {
        let most = memory.map_or(u64::MAX, |memory| memory / MEMORY_PER_NODE);
        let most = usize::try_from(most).unwrap_or(usize::MAX).max(LEAST);
        Self(Arc::new(State {
            is_asking: AtomicBool::new(false),
            most,
            next: AtomicUsize::new(most),
        }))
    }

    /// If the kernel knows too many nodes, lets a thread ask it to forget half of
    /// them. Those that programs use stay.
    pub(super) fn thin(&self, nodes: &Nodes, notifier: Option<&Notifier>) {
        let count = nodes.count();
        if !self.is_due(count) {
            return;
        }
        let Some(notifier) = notifier.cloned() else {
            return;
        };
        if self.0.is_asking.swap(true, Ordering::AcqRel) {
            return;
        }
        let all = nodes.some(count / 2);
        let crowd = self.clone();
        let thread = std::thread::Builder::new().name("butterfs-prune".into());
        let spawned = thread.spawn(move || crowd.ask(&notifier, &all, count));
        if let Err(error) = spawned {
            tracing::warn!(%error, "the kernel is not asked to forget files");
            self.0.is_asking.store(false, Ordering::Release);
        }
    }

    /// Whether to ask while the kernel knows `count` nodes.
    fn is_due(&self, count: usize) -> bool {
        let next = self.0.next.load(Ordering::Relaxed);
        // Written only if it changes: every lookup comes here.
        if count < self.0.most && next > self.0.most && next != NEVER {
            self.0.next.store(self.0.most, Ordering::Relaxed);
        }
        count >= next
    }

    fn ask(&self, notifier: &Notifier, nodes: &[NodeId], count: usize) {
        let mut asked = nodes.chunks(BATCH).map(|batch| notifier.prune(batch));
        let failed = asked.find_map(Result::err);
        if failed == Some(Errno::EINVAL) {
            tracing::debug!("this kernel cannot be asked to forget files");
        }
        self.0
            .next
            .store(self.after(count, failed), Ordering::Relaxed);
        self.0.is_asking.store(false, Ordering::Release);
    }

    /// When to ask next, after the kernel was asked while it knew `count` nodes.
    fn after(&self, count: usize, failed: Option<Errno>) -> usize {
        match failed {
            // No later try can succeed.
            Some(Errno::EINVAL) => NEVER,
            // Its answers, FORGET requests, are still to come. If programs use all of
            // the nodes there are none, and the next try comes a quarter later.
            _ => count + self.0.most / 4,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_decides_when_to_ask() {
        assert_eq!(Crowd::of_memory(Some(48 << 20)).0.most, 49_152);
        assert_eq!(Crowd::of_memory(Some(1 << 20)).0.most, LEAST);
        assert!(Crowd::of_memory(None).0.most > 1 << 40);
        let crowd = Crowd::of_memory(Some(96 << 20));
        assert_eq!(crowd.after(98_304, Some(Errno::EINVAL)), NEVER);
        assert!(!crowd.is_due(98_303) && crowd.is_due(98_304));
        crowd
            .0
            .next
            .store(crowd.after(98_304, None), Ordering::Relaxed);
        assert!(!crowd.is_due(122_879) && crowd.is_due(122_880));
        // The kernel forgot: the first bound holds again.
        assert!(!crowd.is_due(49_152));
        assert!(crowd.is_due(98_304));
    }
}
