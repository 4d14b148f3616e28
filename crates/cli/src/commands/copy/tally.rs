//! What was copied so far.

use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::interrupt::Interrupt;
use crate::left_out::{LeftOut, OnUndone};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What was copied so far.
pub struct Tally {
    /// Shows it.
    pub bar: FilesBar,
    /// Files, directories and all else that has a name.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Owners and attributes that only root can set, or that only other file
    /// systems know.
    pub refused: u64,
    /// What could not be copied.
    pub left_out: LeftOut,
    /// Whether somebody wants it to end. A server learns that from its calls.
    pub interrupt: Option<Interrupt>,
}

impl Tally {
    /// Nothing yet; shown unless `quiet`.
    pub fn new(quiet: bool, rule: OnUndone) -> Result<Self, Failure> {
        let bar = FilesBar::new(quiet);
        Ok(Self {
            left_out: LeftOut::new(rule, &bar),
            bar,
            files: 0,
            bytes: 0,
            refused: 0,
            interrupt: Some(Interrupt::watch()?),
        })
    }

    /// Nothing yet, for a server: shown by nobody.
    pub fn of_server() -> Self {
        let bar = FilesBar::new(true);
        Self {
            left_out: LeftOut::new(OnUndone::GoesOn, &bar),
            bar,
            files: 0,
            bytes: 0,
            refused: 0,
            interrupt: None,
        }
    }

    /// Fails if the user wants the copying to end.
    pub fn check_interrupt(&self) -> Done {
        self.interrupt.as_ref().map_or(Ok(()), Interrupt::check)
    }

    /// Becomes true when the user wants the copying to end.
    pub fn asked(&self) -> Arc<AtomicBool> {
        let interrupt = self.interrupt.as_ref();
        interrupt.map_or_else(Arc::default, Interrupt::asked)
    }

    /// Counts a file.
    pub fn file(&mut self) {
        self.files += 1;
        self.bar.done().file();
    }

    /// Counts content.
    pub fn data(&mut self, bytes: usize) {
        self.bytes += bytes as u64;
        self.bar.done().data(bytes as u64);
    }

    /// How copying ended. If it failed, with what was copied nevertheless.
    pub fn ended(&mut self, copied: Done) -> Done {
        copied.or_else(|failure| {
            self.bar.end();
            fail(format!(
                "{}; {} files before it are copied, each whole",
                failure.0, self.files
            ))
        })
    }

    /// Counts what the destination does not accept from this user.
    pub fn refuse(&mut self) {
        self.refused += 1;
    }
}
