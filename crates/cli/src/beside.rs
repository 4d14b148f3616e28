//! A long call on a thread of its own, while the calling thread looks how far
//! it is.

use crate::fail::{Failure, fail};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Does `work` on another thread, and calls `look` now and then until it ends.
pub fn beside<T: Send>(
    work: impl FnOnce() -> T + Send,
    mut look: impl FnMut(),
) -> Result<T, Failure> {
    let (ended, end) = channel();
    thread::scope(|scope| {
        let spawned = thread::Builder::new().spawn_scoped(scope, move || {
            // This cannot fail: the other end waits for it.
            let _ = ended.send(work());
        });
        spawned?;
        loop {
            match end.recv_timeout(PAUSE) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => look(),
                Err(RecvTimeoutError::Disconnected) => return fail("the command broke off"),
            }
        }
    })
}
