//! Telling the kernel what it does not expect, while a request waits for it.
//!
//! Such a notification waits for locks of the kernel (a directory's names, a
//! file's pages), and whoever holds them may wait for this server. So a
//! separate thread sends it, and the request waits only for a limited time. No
//! number of requests can block all threads of the server for ever.

use butterfs_fuse::Notifier;
use std::collections::HashMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Notifications that may be under way.
const TELLING_MAX: usize = 128;

/// Those of one user other than root. A user who holds a directory for ever
/// does not keep others from being told.
const TELLING_MAX_OF_USER: usize = 32;

/// How long a change of names waits. A program that asks for such a change may
/// look at once, so the server waits. If a program holds the directory, the
/// server waits no longer than this.
pub(super) const NAME_PATIENCE: Duration = Duration::from_secs(1);

/// Notifications under way, for each user who asked for what they tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Telling(Arc<Mutex<HashMap<u32, usize>>>);

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The kernel knows.
    Done,
    /// It will know later, or too many notifications were under way.
    Later,
}

/// One notification under way.
pub(super) struct Turn {
    all: Telling,
    uid: u32,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut counts = self.all.counts();
        if let Some(count) = counts.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

impl Telling {
    fn counts(&self) -> MutexGuard<'_, HashMap<u32, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None` if too many are under way.
    pub(super) fn turn_of(&self, uid: u32) -> Option<Turn> {
        let mut counts = self.counts();
        let all: usize = counts.values().sum();
        let own = counts.entry(uid).or_default();
        if all >= TELLING_MAX || (uid != 0 && *own >= TELLING_MAX_OF_USER) {
            if *own == 0 {
                counts.remove(&uid);
            }
            return None;
        }
        *own += 1;
        Some(Turn {
            all: self.clone(),
            uid,
        })
    }

    /// Lets `say` tell the kernel what the user asked for, and waits at most
    /// `patience` for it.
    pub(super) fn tell(
        &self,
        notifier: Option<&Notifier>,
        uid: u32,
        patience: Duration,
        say: impl FnOnce(&Notifier) + Send + 'static,
    ) -> Told {
        let Some(notifier) = notifier.cloned() else {
            return Told::Done;
        };
        let Some(turn) = self.turn_of(uid) else {
            tracing::warn!("the kernel does not take what it is told; names may be stale");
            return Told::Later;
        };
        let (done, said) = channel();
        let run = move || {
            let _turn = turn;
            say(&notifier);
            // The request may not wait any more.
            let _ = done.send(());
        };
        let thread = std::thread::Builder::new().name("butterfs-tell".into());
        match thread.spawn(run) {
            Ok(_) if said.recv_timeout(patience).is_ok() => Told::Done,
            Ok(_) => Told::Later,
            Err(error) => {
                tracing::warn!(%error, "the kernel is not told of a change");
                Told::Later
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_turns_for_others() {
        let telling = Telling::default();
        let of = |uid: u32| std::iter::from_fn(|| telling.turn_of(uid)).collect::<Vec<_>>();
        let first = of(1000);
        assert_eq!(first.len(), TELLING_MAX_OF_USER);
        let second = of(1001);
        assert_eq!(second.len(), TELLING_MAX_OF_USER);
        let roots = of(0);
        assert_eq!(roots.len(), TELLING_MAX - 2 * TELLING_MAX_OF_USER);
        assert!(of(1002).is_empty(), "all turns are taken");
        drop(first);
        assert_eq!(of(1000).len(), TELLING_MAX_OF_USER);
        drop((second, roots));
        assert!(telling.counts().is_empty());
    }
}
