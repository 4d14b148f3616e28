//! What a write must obey besides the state of its file: whether its subvolume
//! may be changed, and quotas.
//!
//! The engine knows both, but a write that asks it waits for whoever changes a
//! tree. So a file notes that no rule holds it back, and the note is good until
//! some rule changes. Whoever changes a rule does that in the engine, then calls
//! [`WriteRules::note_change`]. Then it locks each file for a moment, if nobody
//! may go on writing by the old rules.

use std::sync::atomic::{AtomicU64, Ordering};

/// How often rules have changed, and one more.
#[derive(Debug)]
pub(crate) struct WriteRules(AtomicU64);

impl Default for WriteRules {
    fn default() -> Self {
        Self(AtomicU64::new(1))
    }
}

impl WriteRules {
    /// Notes that a rule has changed in the engine.
    pub(crate) fn note_change(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Another number after each change; never 0.
    pub(crate) fn changes(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }
}
