//! Ctrl-C in the middle of a command that must leave things in order.
//!
//! Owns the wish to end: the first SIGINT, SIGTERM or SIGHUP is noted, and the
//! command, which looks at it between its steps, ends in order; the next one
//! ends the process at once. A command that ended so ends by the signal, as if
//! it had not been caught: whoever started it sees that.

use crate::fail::{Context, Done, Failure, fail};
use butterfs_fuse::{SignalGuard, on_signals};
use rustix::process::{Signal, getpid, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

/// The signal that was noted; 0 for none.
static NOTED: AtomicI32 = AtomicI32::new(0);

/// Notes signals until dropped.
#[derive(Debug)]
pub struct Interrupt {
    asked: Arc<AtomicBool>,
    _signals: SignalGuard,
}

impl Interrupt {
    /// Begins to note signals.
    pub fn watch() -> Result<Self, Failure> {
        let asked = Arc::new(AtomicBool::new(false));
        let shared = Arc::clone(&asked);
        let signals = on_signals(move |signal| {
            if shared.swap(true, Ordering::AcqRel) {
                std::process::exit(128 + signal);
            }
            NOTED.store(signal, Ordering::Release);
            note!("ending; once more ends it at once");
        });
        Ok(Self {
            asked,
            _signals: signals.context("signals")?,
        })
    }

    /// Becomes true when somebody asks.
    pub fn asked(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.asked)
    }

    /// Fails when somebody asked.
    pub fn check(&self) -> Done {
        if self.asked.load(Ordering::Acquire) {
            return fail("interrupted");
        }
        Ok(())
    }
}

/// Ends the process by the signal that was noted, if one was. Nothing notes
/// signals any more.
pub fn end_by_signal() {
    let noted = NOTED.load(Ordering::Acquire);
    if let Some(signal) = Signal::from_named_raw(noted) {
        let _ = kill_process(getpid(), signal);
    }
}
