//! What was copied so far.

use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::interrupt::Interrupt;

/// What was copied so far.
pub(super) struct Tally {
    pub(super) bar: FilesBar,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Metadata that the host did not take.
    pub(super) left_out: u64,
    pub(super) interrupt: Interrupt,
}

impl Tally {
    pub(super) fn new(quiet: bool) -> Result<Self, Failure> {
        Ok(Self {
            bar: FilesBar::new(quiet),
            files: 0,
            bytes: 0,
            left_out: 0,
            interrupt: Interrupt::watch()?,
        })
    }

    /// Fails when somebody wants the copying to end.
    pub(super) fn check_interrupt(&self) -> Done {
        self.interrupt.check()
    }

    pub(super) fn file(&mut self) {
        self.files += 1;
        self.bar.done().file();
    }

    pub(super) fn data(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.done().data(bytes as u64);
    }

    /// How copying ended; where it failed, with what is there nevertheless.
    pub(super) fn ended(&mut self, copied: Done) -> Done {
        copied.or_else(|failure| {
            self.bar.end();
            fail(format!(
                "{}; {} files before it are copied, each whole",
                failure.0, self.files
            ))
        })
    }

    pub(super) fn leave_out(&mut self) {
        self.left_out += 1;
    }
}
