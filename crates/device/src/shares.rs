//! Shares of some work, each done by a thread.
//!
//! A system may refuse a thread: a limit of the user, of a container or of a
//! service is reached. Then the calling thread does the share, so work becomes
//! slower and does not fail.

use std::panic::resume_unwind;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

/// Does `work` for each of `shares`, and gives the results in their order. The
/// calling thread takes the first.
///
/// # Panics
/// If `work` panics.
pub fn each_by_a_thread<S: Send, R: Send>(
    shares: impl IntoIterator<Item = S>,
    work: impl Fn(S) -> R + Sync,
) -> Vec<R> {
    each_by(Builder::new, shares, work)
}

fn each_by<S: Send, R: Send>(
    thread: impl Fn() -> Builder,
    shares: impl IntoIterator<Item = S>,
    work: impl Fn(S) -> R + Sync,
) -> Vec<R> {
    // A share stays in its place until a thread takes it.
    let places: Vec<Mutex<Option<S>>> = shares.into_iter().map(|s| Mutex::new(Some(s))).collect();
    let take = |place: &Mutex<Option<S>>| {
        let share = place.lock().unwrap_or_else(PoisonError::into_inner).take();
        share.map(&work)
    };
    let take = &take;
    let Some((first, others)) = places.split_first() else {
        return Vec::new();
    };
    std::thread::scope(|scope| {
        let start = |place| (place, thread().spawn_scoped(scope, move || take(place)));
        let started: Vec<_> = others.iter().map(start).collect();
        let own = take(first);
        let others = started.into_iter().map(|(place, thread)| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Err(_) => take(place),
        });
        std::iter::once(own).chain(others).flatten().collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn results_come_in_order_from_threads_that_run_together() {
        let all_there = Barrier::new(4);
        let doubled = each_by_a_thread(0..4, |number| {
            all_there.wait();
            number * 2
        });
        assert_eq!(doubled, [0, 2, 4, 6]);
        let mut texts = ["a".to_owned(), "b".to_owned()];
        each_by_a_thread(&mut texts, |text| text.push('!'));
        assert_eq!(texts, ["a!", "b!"]);
        assert!(each_by_a_thread(0..0, |number| number).is_empty());
    }

    #[test]
    fn what_no_thread_can_do_is_done_here() {
        // No machine has so much memory.
        let impossible = || Builder::new().stack_size(1 << 60);
        assert!(impossible().spawn(|| ()).is_err());
        let here = std::thread::current().id();
        let done = each_by(impossible, 0..3, |number| {
            (number, std::thread::current().id() == here)
        });
        assert_eq!(done, [(0, true), (1, true), (2, true)]);
    }
}
