//! Ctrl-C in the middle of a command that must leave things in order.
//!
//! Owns the wish to end. The first SIGINT, SIGTERM or SIGHUP is noted. The
//! command looks at it between its steps and ends in order. The next signal
//! ends the process at once. A command that ended in this way ends by the
//! signal, as if it had not been caught, so that its caller sees that.

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

/// Ends the process by the signal that was noted, if one was. From now on no
/// signals are noted.
pub fn end_by_signal() {
    let noted = NOTED.load(Ordering::Acquire);
    if let Some(signal) = Signal::from_named_raw(noted) {
        let _ = kill_process(getpid(), signal);
    }
}
