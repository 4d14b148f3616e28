//! A call that takes long, on a thread of its own, and somebody who looks at it.

use crate::fail::{Failure, fail};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Does `work` on another thread, and calls `look` now and then until it ends.
pub fn beside<T: Send>(
    work: impl FnOnce() -> T + Send,
    mut look: impl FnMut(),
) -> Result<T, Failure> {
    let (ended, end) = channel();
    thread::scope(|scope| {
        let spawned = thread::Builder::new().spawn_scoped(scope, move || {
            // Nobody has gone: the other end waits for this.
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
