//! Telling the kernel what it does not expect, while a request waits for it.
//!
//! Such a notification waits for locks of the kernel (a directory's names, a
//! file's pages), and whoever holds them may wait for this server. So a
//! separate thread sends it, and the request waits only for a limited time. No
//! number of requests can block all threads of the server for ever.

use butterfs_fuse::Notifier;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

/// Notifications that may be under way.
const TELLING_MAX: usize = 128;

/// How long a change of names waits. A program that asks for such a change may
/// look at once, so the server waits. If a program holds the directory, the
/// server waits no longer than this.
pub(super) const NAME_PATIENCE: Duration = Duration::from_secs(1);

/// Notifications under way.
#[derive(Debug, Default)]
pub(super) struct Telling(Arc<AtomicUsize>);

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// The kernel knows.
    Done,
    /// It will know later, or too many notifications were under way.
    Later,
}

/// One notification under way.
struct Turn(Arc<AtomicUsize>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Telling {
    /// Lets `say` tell the kernel, and waits at most `patience` for it.
    pub(super) fn tell(
        &self,
        notifier: Option<&Notifier>,
        patience: Duration,
        say: impl FnOnce(&Notifier) + Send + 'static,
    ) -> Told {
        let Some(notifier) = notifier.cloned() else {
            return Told::Done;
        };
        let turn = Turn(Arc::clone(&self.0));
        if turn.0.fetch_add(1, Ordering::AcqRel) >= TELLING_MAX {
            tracing::warn!("the kernel does not take what it is told; names may be stale");
            return Told::Later;
        }
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
