//! Pages of the kernel's cache that are on their way to this server.
//!
//! Owns their count. The server only sees pages that have arrived, so it waits
//! until none has come for a while.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// No page has come for this long: none is on its way, unless the machine is
/// very busy.
const QUIET: Duration = Duration::from_millis(10);
const LOOK: Duration = Duration::from_millis(2);
/// While programs go on changing pages, more come all the time. After this long
/// the pages of before have come.
const PATIENCE: Duration = Duration::from_secs(2);

/// Writes from the kernel's page cache.
#[derive(Debug, Default)]
pub(super) struct Pages {
    begun: AtomicU64,
    ended: AtomicU64,
}

/// One such write. Dropping it ends it.
pub(super) struct Arriving<'p>(&'p Pages);

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

impl Pages {
    /// Notes that a write begins.
    pub(super) fn arrive(&self) -> Arriving<'_> {
        self.begun.fetch_add(1, Ordering::SeqCst);
        Arriving(self)
    }

    /// Waits until no write has come for a while, and all have ended, but no
    /// longer than [`PATIENCE`].
    pub(super) fn wait_until_quiet(&self) {
        let start = Instant::now();
        let mut quiet_since = start;
        let mut seen = self.begun.load(Ordering::SeqCst);
        while quiet_since.elapsed() < QUIET && start.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
            let ended = self.ended.load(Ordering::SeqCst);
            let begun = self.begun.load(Ordering::SeqCst);
            if begun != seen || begun != ended {
                seen = begun;
                quiet_since = Instant::now();
            }
        }
    }
}
