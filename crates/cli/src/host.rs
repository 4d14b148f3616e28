//! Running a command on a volume that somebody else opened: in the server of a
//! mount, for another process; or here, on what the kernel has mounted.
//!
//! Owns where such a command finds its volume and where it prints. Both belong
//! to the thread that runs it.

use crate::fail::Done;
use butterfs::Volume;
use butterfs_server::Answer;
use std::cell::RefCell;
use std::io::{self, Write};

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// What such a command works with.
struct Host {
    volume: Volume,
    /// The other process; `None` if the command runs for its own.
    answer: Option<Answer>,
    /// The exit code of the command if it does not fail.
    code: u8,
}

/// Runs a command on `volume`, and sends what it prints, and how it ended, to
/// the process that asked.
pub fn run(volume: Volume, answer: Answer, command: impl FnOnce() -> Done) {
    HOST.set(Some(Host {
        volume,
        answer: Some(answer),
        code: 0,
    }));
    let done = command();
    if let Some(host) = HOST.take()
        && let Some(answer) = host.answer
    {
        answer.end(match &done {
            Ok(()) => Ok(host.code),
            Err(failure) => Err(&failure.0),
        });
    }
}

/// Runs a command of this process on `volume`.
pub fn run_on(volume: Volume, command: impl FnOnce() -> Done) -> Done {
    HOST.set(Some(Host {
        volume,
        answer: None,
        code: 0,
    }));
    let done = command();
    HOST.take();
    done
}

/// The volume that is open for the command that runs.
pub fn volume() -> Option<Volume> {
    HOST.with_borrow(|host| host.as_ref().map(|host| host.volume.share()))
}

/// Whether this thread runs a command for another process.
pub fn is_serving() -> bool {
    HOST.with_borrow(|host| host.as_ref().is_some_and(|host| host.answer.is_some()))
}

/// Notes the exit code of the command that this thread runs for another process.
pub fn note_code(code: u8) {
    HOST.with_borrow_mut(|host| {
        if let Some(host) = host {
            host.code = code;
        }
    });
}

/// Prints to the standard error of another process; false when the command
/// runs for itself.
pub fn note(bytes: &[u8]) -> bool {
    HOST.with_borrow_mut(|host| {
        let answer = host.as_mut().and_then(|host| host.answer.as_mut());
        let is_served = answer.is_some();
        if let Some(answer) = answer {
            // This is only advice. The command's output shows whether the
            // reader is gone.
            let _ = answer.note(bytes);
        }
        is_served
    })
}

/// Output for another process.
#[derive(Debug)]
pub struct Printed;

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HOST.with_borrow_mut(
            |host| match host.as_mut().and_then(|host| host.answer.as_mut()) {
                Some(answer) => {
                    answer.output(bytes)?;
                    Ok(bytes.len())
                }
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        )
    }

    fn flush(&mut self) -> io::Result<()> {
        HOST.with_borrow_mut(
            |host| match host.as_mut().and_then(|host| host.answer.as_mut()) {
                Some(answer) => answer.flush(),
                None => Err(io::ErrorKind::BrokenPipe.into()),
            },
        )
    }
}
