//! Telling that a thread is about to wait.
//!
//! Owns the one hook for it: a server of requests lets another thread serve
//! while this one waits for a device. Without a hook nothing happens.

use std::sync::OnceLock;

static HOOK: OnceLock<fn()> = OnceLock::new();

/// Has `hook` called on each thread that is about to wait, as often as it
/// waits. The first hook of a process stays.
pub fn on_wait(hook: fn()) {
    let _ = HOOK.set(hook);
}

/// Call it before anything that takes much longer than most requests: I/O that
/// reaches a device, compression of megabytes, a wait for a commit.
pub fn about_to_wait() {
    if let Some(hook) = HOOK.get() {
        hook();
    }
}

/// Whether anybody wants to know.
pub(crate) fn is_heard() -> bool {
    HOOK.get().is_some()
}
