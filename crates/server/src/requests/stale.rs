//! Pages that the kernel could not write back.

use std::collections::{HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Files with pages in the kernel whose write-back was refused. One thread
/// makes the kernel drop them, because the kernel may refuse many pages while
/// those of one file are dropped.
#[derive(Debug, Default)]
pub(super) struct Stale(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// In the order in which the thread takes them.
    order: VecDeque<u64>,
    /// The same files.
    known: HashSet<u64>,
    has_thread: bool,
}

/// What follows from a refused page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// The thread will come to the file.
    Waits,
    /// There is no thread. The caller starts one, which calls [`Stale::next`].
    StartThread {
        /// The file waits since now.
        is_new: bool,
    },
}

impl Stale {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a refused page of a file.
    pub(super) fn note(&self, node: u64) -> Noted {
        let mut waiting = self.waiting();
        let is_new = waiting.known.insert(node);
        if is_new {
            waiting.order.push_back(node);
        }
        match std::mem::replace(&mut waiting.has_thread, true) {
            true => Noted::Waits,
            false => Noted::StartThread { is_new },
        }
    }

    /// The next file for the thread. A page that is refused from now on makes
    /// it wait again. `None`: the thread ends.
    pub(super) fn next(&self) -> Option<u64> {
        let mut waiting = self.waiting();
        let next = waiting.order.pop_front();
        match next {
            Some(node) => _ = waiting.known.remove(&node),
            None => waiting.has_thread = false,
        }
        next
    }

    /// The thread could not be started. The next refused page tries again.
    pub(super) fn has_no_thread(&self) {
        self.waiting().has_thread = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_comes_to_every_file_and_again_if_more_is_refused() {
        let stale = Stale::default();
        assert_eq!(stale.note(5), Noted::StartThread { is_new: true });
        stale.has_no_thread();
        assert_eq!(stale.note(5), Noted::StartThread { is_new: false });
        assert_eq!((stale.note(7), stale.note(5)), (Noted::Waits, Noted::Waits));
        assert_eq!(stale.next(), Some(5));
        assert_eq!(stale.note(5), Noted::Waits);
        assert_eq!((stale.next(), stale.next()), (Some(7), Some(5)));
        assert_eq!(stale.next(), None);
        assert_eq!(stale.note(7), Noted::StartThread { is_new: true });
    }
}
