//! What was copied so far.

use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::interrupt::Interrupt;

/// How many things that could not be read are named.
pub(super) const TOLD_MAX: u64 = 20;

/// What was copied so far.
pub struct Tally {
    /// Shows it.
    pub bar: FilesBar,
    /// Files, directories and all else that has a name.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Metadata that the host did not accept.
    pub left_out: u64,
    /// What could not be read, with all below it.
    pub unreadable: u64,
    /// Whether somebody wants it to end.
    pub interrupt: Interrupt,
}

impl Tally {
    /// Nothing yet; shown unless `quiet`.
    pub fn new(quiet: bool) -> Result<Self, Failure> {
        Ok(Self {
            bar: FilesBar::new(quiet),
            files: 0,
            bytes: 0,
            left_out: 0,
            unreadable: 0,
            interrupt: Interrupt::watch()?,
        })
    }

    /// Fails if the user wants the copying to end.
    pub fn check_interrupt(&self) -> Done {
        self.interrupt.check()
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

    /// Counts what could not be read, and names the first of it.
    pub fn unreadable(&mut self, failure: &Failure) {
        self.unreadable += 1;
        let text = match self.unreadable {
            ..=TOLD_MAX => format!("butterfs: left out: {}", failure.0),
            more if more == TOLD_MAX + 1 => "butterfs: more is left out, and counted".to_owned(),
            _ => return,
        };
        self.bar.suspend(|| note!("{text}"));
    }

    /// Counts what the destination does not accept.
    pub fn leave_out(&mut self) {
        self.left_out += 1;
    }
}
