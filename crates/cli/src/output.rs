//! Standard output and standard error of commands.
//!
//! Owns what happens to output that nobody takes. Standard output is a part of
//! a command's work, so if it cannot be written, the command fails and ends
//! there. If its reader is gone (`| head -1`), the command ends without a
//! message and with [`READER_GONE`], as programs do that SIGPIPE ends. Standard
//! error is advice: what cannot be written there is dropped, and harms nobody.

use crate::fail::Done;
use crate::host;
use std::fmt;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code if the reader of standard output is gone: what a shell shows for a
/// program that SIGPIPE ended.
const READER_GONE: u8 = 141;

/// Whether the reader of this process's standard output is gone.
static GONE: AtomicBool = AtomicBool::new(false);

/// Whether standard output could not be written.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether this command says nothing of what it did (`-q`).
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Standard output. Its errors say what failed.
#[derive(Debug)]
pub struct Output(io::Stdout);

/// This process's standard output, or what replaces it if the process serves
/// another one.
pub fn standard() -> Box<dyn Write> {
    if host::is_serving() {
        return Box::new(host::Printed);
    }
    Box::new(own())
}

/// This process's own standard output.
pub fn own() -> Output {
    Output(io::stdout())
}

/// Ends the command with an exit code that says what it found. It has printed
/// everything. In a server the caller returns what this returns; otherwise this
/// does not return unless output cannot be written.
pub fn end_with(code: u8) -> Done {
    if host::is_serving() {
        host::note_code(code);
        return Ok(());
    }
    own().flush()?;
    std::process::exit(code.into());
}

/// From here on, nothing is printed on this process's own standard output.
pub fn hush() {
    HUSHED.store(true, Ordering::Release);
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if HUSHED.load(Ordering::Acquire) {
            return Ok(bytes.len());
        }
        self.0.write(bytes).map_err(named)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(named)
    }
}

impl AsFd for Output {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// An error of standard output, with its name.
pub fn named(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::Interrupted => error,
        kind => {
            LOST.store(true, Ordering::Release);
            if kind == io::ErrorKind::BrokenPipe {
                GONE.store(true, Ordering::Release);
            }
            io::Error::new(kind, format!("standard output: {error}"))
        }
    }
}

/// Whether standard output could not be written. A command with several steps
/// then ends.
pub fn is_lost() -> bool {
    LOST.load(Ordering::Acquire)
}

/// Notes that the reader of standard output is gone, if somebody else writes to
/// it.
pub fn reader_is_gone() {
    GONE.store(true, Ordering::Release);
}

/// Prints a line; see the macro of this name.
pub fn say(line: fmt::Arguments<'_>) -> Done {
    print(format_args!("{line}\n"))
}

/// Prints a line of these parts, for names that need not be UTF-8.
pub fn line(parts: &[&[u8]]) -> Done {
    let mut line = parts.concat();
    line.push(b'\n');
    Ok(standard().write_all(&line)?)
}

/// Prints a part of a line.
pub fn print(part: fmt::Arguments<'_>) -> Done {
    Ok(standard().write_all(part.to_string().as_bytes())?)
}

/// Says a line on standard error; see the macro of this name.
pub fn note(line: fmt::Arguments<'_>) {
    let line = format!("{line}\n");
    if !host::note(line.as_bytes()) {
        let _ = Notes.write_all(line.as_bytes());
    }
}

/// Standard error, which never fails.
#[derive(Clone, Copy, Debug)]
pub struct Notes;

impl Write for Notes {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How a command ends: what is still to be printed is written, and a failure is
/// reported. `success` and `failure` are its exit codes.
pub fn end(done: Result<ExitCode, crate::fail::Failure>, failure: u8) -> ExitCode {
    let flushed = own().flush().map_err(Into::into);
    match done.and_then(|code| flushed.map(|()| code)) {
        Ok(code) => code,
        Err(_) if GONE.load(Ordering::Acquire) => ExitCode::from(READER_GONE),
        Err(error) => {
            note(format_args!("butterfs: {}", error.0));
            ExitCode::from(failure)
        }
    }
}
