//! Running a command for another process, in the server of a mount.
//!
//! Owns where such a command finds its volume and prints to: both belong to the
//! thread that runs it.

use crate::fail::Done;
use butterfs::Volume;
use butterfs_server::Answer;
use std::cell::RefCell;
use std::io::{self, Write};

thread_local! {
    static HOST: RefCell<Option<Host>> = const { RefCell::new(None) };
}

/// What a command that runs for another process works with.
struct Host {
    volume: Volume,
    answer: Answer,
}

/// Runs a command on `volume`, and sends what it prints, and how it ended, to
/// the process that asked.
pub fn run(volume: Volume, answer: Answer, command: impl FnOnce() -> Done) {
    HOST.set(Some(Host { volume, answer }));
    let done = command();
    if let Some(host) = HOST.take() {
        host.answer.end(match &done {
            Ok(()) => Ok(()),
            Err(failure) => Err(&failure.0),
        });
    }
}

/// The volume of the server, for a command that runs for another process.
pub fn volume() -> Option<Volume> {
    HOST.with_borrow(|host| host.as_ref().map(|host| host.volume.share()))
}

/// Whether this thread runs a command for another process.
pub fn is_serving() -> bool {
    HOST.with_borrow(Option::is_some)
}

/// Prints to the standard error of another process; false when the command
/// runs for itself.
pub fn note(bytes: &[u8]) -> bool {
    HOST.with_borrow_mut(|host| {
        if let Some(host) = host {
            // Advice; the command's output says that nobody is there.
            let _ = host.answer.note(bytes);
        }
        host.is_some()
    })
}

/// Output for another process.
#[derive(Debug)]
pub struct Printed;

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        HOST.with_borrow_mut(|host| match host {
            Some(host) => {
                host.answer.output(bytes)?;
                Ok(bytes.len())
            }
            None => Err(io::ErrorKind::BrokenPipe.into()),
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
