//! What was copied so far.

use crate::fail::{Done, Failure, fail};
use crate::interrupt::Interrupt;
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Duration;

/// What was copied so far.
pub(super) struct Tally {
    pub(super) bar: ProgressBar,
    pub(super) files: u64,
    pub(super) bytes: u64,
    /// Metadata that the host did not take.
    pub(super) left_out: u64,
    pub(super) interrupt: Interrupt,
}

impl Tally {
    pub(super) fn new(quiet: bool) -> Result<Self, Failure> {
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            // It hides itself when standard error is no terminal.
            ProgressBar::new_spinner()
        };
        if let Ok(style) = ProgressStyle::with_template(
            "{spinner} {msg} files, {bytes} in {elapsed} ({bytes_per_sec})",
        ) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Ok(Self {
            bar,
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
        if self.files.is_multiple_of(64) {
            self.bar.set_message(self.files.to_string());
        }
    }

    pub(super) fn data(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.inc(bytes as u64);
    }

    /// How copying ended; where it failed, with what is there nevertheless.
    pub(super) fn ended(&self, copied: Done) -> Done {
        copied.or_else(|failure| {
            self.bar.finish_and_clear();
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
