//! What a command on many files leaves out.
//!
//! Owns the one rule of all such commands (docs/bulk.md): what cannot be done
//! for one entry is named and counted, the rest is done, and the command ends
//! with exit code 1. What no other entry could do either (no space, a volume
//! that failed, Ctrl-C) ends it. A command whose result is good whole or not at
//! all ends at the first entry instead.

use crate::fail::{Done, Failure, fail};
use crate::files_bar::FilesBar;
use butterfs::{Doubts, FsError};
use indicatif::ProgressBar;
use rustix::io::Errno;
use std::fmt::Display;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Ranges of a file that are named.
const RANGES_NAMED: usize = 8;

/// Why something was not done.
#[derive(Debug)]
pub enum Undone {
    /// It cannot be done for this entry. Others are not concerned.
    Entry(Failure),
    /// It could not be done for any other entry either, or somebody wants the
    /// command to end.
    All(Failure),
    /// The same, because there is no more space.
    Full(Failure),
}

impl Undone {
    /// With `what` before its text.
    pub fn at(self, what: impl Display) -> Self {
        match self {
            Self::Entry(failure) => Self::Entry(failure.at(what)),
            Self::All(failure) => Self::All(failure.at(what)),
            Self::Full(failure) => Self::Full(failure.at(what)),
        }
    }

    /// As the failure of the command.
    pub fn into_failure(self) -> Failure {
        match self {
            Self::Entry(failure) | Self::All(failure) | Self::Full(failure) => failure,
        }
    }
}

impl From<Failure> for Undone {
    fn from(failure: Failure) -> Self {
        Self::All(failure)
    }
}

impl From<FsError> for Undone {
    fn from(error: FsError) -> Self {
        butterfs::Error::from(error).into()
    }
}

impl From<butterfs::Error> for Undone {
    fn from(error: butterfs::Error) -> Self {
        match (error.is_of_volume(), error.kind()) {
            (false, _) => Self::Entry(error.into()),
            (true, io::ErrorKind::StorageFull) => Self::Full(error.into()),
            (true, _) => Self::All(error.into()),
        }
    }
}

/// Errors of the host that the next file meets, too.
const OF_HOST: [Errno; 7] = [
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::ROFS,
    Errno::MFILE,
    Errno::NFILE,
    Errno::NOMEM,
    Errno::NOTCONN,
];

impl From<io::Error> for Undone {
    fn from(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(errno) if !OF_HOST.contains(&errno) => Self::Entry(error.into()),
            Some(Errno::NOSPC) => Self::Full(error.into()),
            _ => Self::All(error.into()),
        }
    }
}

impl From<Errno> for Undone {
    fn from(error: Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// What happens when something cannot be done for one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUndone {
    /// It is named and counted, and the command goes on.
    GoesOn,
    /// The command ends.
    Ends,
}

/// What was left out so far. Several threads may add to it.
#[derive(Debug)]
pub struct LeftOut {
    rule: OnUndone,
    /// What is printed appears beside it.
    bar: ProgressBar,
    entries: AtomicU64,
    attributes: AtomicU64,
    cut: AtomicU64,
    doubtful: AtomicU64,
    nodes: AtomicU64,
    is_full: AtomicBool,
}

impl LeftOut {
    /// Nothing yet.
    pub fn new(rule: OnUndone, bar: &FilesBar) -> Self {
        Self {
            rule,
            bar: bar.line(),
            entries: AtomicU64::new(0),
            attributes: AtomicU64::new(0),
            cut: AtomicU64::new(0),
            doubtful: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
            is_full: AtomicBool::new(false),
        }
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| note!("butterfs: {text}"));
    }

    /// What was done for the entry at `at`; `None` if it was left out.
    ///
    /// # Errors
    /// What ends the command.
    pub fn entry<T>(
        &self,
        at: impl Display,
        tried: Result<T, Undone>,
    ) -> Result<Option<T>, Failure> {
        match tried {
            Ok(done) => Ok(Some(done)),
            Err(undone) => self.undone(undone.at(at)).map(|()| None),
        }
    }

    /// Counts and names an entry that is left out.
    ///
    /// # Errors
    /// What ends the command.
    pub fn undone(&self, undone: Undone) -> Done {
        self.count(&self.entries, undone)
    }

    /// Counts and names something of an entry that is lost: an attribute, its
    /// permissions, its times. The entry itself is done.
    ///
    /// # Errors
    /// What ends the command.
    pub fn attribute(&self, undone: Undone) -> Done {
        self.count(&self.attributes, undone)
    }

    /// Counts and names a file that lacks a part of its bytes.
    ///
    /// # Errors
    /// What ends the command.
    pub fn in_part(&self, undone: Undone) -> Done {
        self.count(&self.cut, undone)
    }

    fn count(&self, counter: &AtomicU64, undone: Undone) -> Done {
        match undone {
            Undone::Entry(failure) if self.rule == OnUndone::GoesOn => {
                counter.fetch_add(1, Ordering::Relaxed);
                self.say(&format!("left out: {}", failure.0));
                Ok(())
            }
            undone => {
                let is_full = matches!(undone, Undone::Full(_));
                self.is_full.fetch_or(is_full, Ordering::Relaxed);
                Err(undone.into_failure())
            }
        }
    }

    /// Notes how a step for all entries ended.
    ///
    /// # Errors
    /// That of the step.
    pub fn done<E: Into<Undone>>(&self, step: Result<(), E>) -> Done {
        match step.map_err(Into::into) {
            Ok(()) => Ok(()),
            Err(Undone::Entry(failure)) => Err(failure),
            Err(undone) => self.undone(undone),
        }
    }

    /// Whether the command ended because there was no more space.
    pub fn is_full(&self) -> bool {
        self.is_full.load(Ordering::Relaxed)
    }

    /// Counts and names a file that has bytes for which nobody vouches. It is
    /// copied: that was asked for.
    pub fn doubtful(&self, at: impl Display, doubts: &Doubts) {
        if doubts.is_empty() {
            return;
        }
        self.doubtful.fetch_add(1, Ordering::Relaxed);
        for (ranges, what) in [
            (doubts.wrong(), "do not match their checksums"),
            (doubts.unverified(), "have no checksums to compare with"),
        ] {
            if !ranges.is_empty() {
                let named = named(&ranges);
                self.say(&format!("{at}: bytes {named} {what}, and may be wrong"));
            }
        }
    }

    /// Everything that was copied may be wrong, since its nodes are.
    pub fn nodes_passed_over(&self, nodes: usize) {
        if nodes > 0 {
            self.nodes.fetch_max(nodes as u64, Ordering::Relaxed);
        }
    }

    /// How the command ends. `done` says what was done with all else, as in
    /// "copied".
    ///
    /// # Errors
    /// Something was left out.
    pub fn ended(&self, done: &str) -> Done {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let mut parts = Vec::new();
        match count(&self.entries) {
            0 => {}
            count => parts.push(format!("{count} files or directories are left out")),
        }
        match count(&self.attributes) {
            0 => {}
            count => parts.push(format!("{count} attributes of files are left out")),
        }
        match count(&self.cut) {
            0 => {}
            count => parts.push(format!("{count} files lack a part")),
        }
        match count(&self.doubtful) {
            0 => {}
            count => parts.push(format!("{count} files have bytes that may be wrong")),
        }
        match count(&self.nodes) {
            0 => {}
            count => parts.push(format!(
                "{count} nodes of the trees have wrong checksums, so that names, metadata and \
                 content of any file may be wrong"
            )),
        }
        match parts.is_empty() {
            true => Ok(()),
            false => fail(format!("{}; all else is {done}", parts.join(", "))),
        }
    }
}

/// The first of the ranges, as first and last byte.
fn named(ranges: &[Range<u64>]) -> String {
    let first = ranges.iter().take(RANGES_NAMED);
    let first = first.map(|range| format!("{}-{}", range.start, range.end.saturating_sub(1)));
    let mut named = first.collect::<Vec<_>>().join(", ");
    if ranges.len() > RANGES_NAMED {
        let bytes: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        let (all, more) = (ranges.len(), ranges.len() - RANGES_NAMED);
        named.push_str(&format!(" and {more} more ranges ({bytes} bytes in {all})"));
    }
    named
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_named_up_to_a_bound() {
        assert_eq!(named(&[0..4096, 8192..8193]), "0-4095, 8192-8192");
        let many: Vec<_> = (0..10).map(|number| number * 10..number * 10 + 5).collect();
        let text = named(&many);
        assert!(text.starts_with("0-4, 10-14, "), "{text}");
        assert!(
            text.ends_with("70-74 and 2 more ranges (50 bytes in 10)"),
            "{text}"
        );
    }

    #[test]
    fn what_the_next_file_meets_too_ends_the_command() {
        let ends = |errno: Errno| !matches!(Undone::from(errno), Undone::Entry(_));
        assert!(ends(Errno::NOSPC) && ends(Errno::ROFS) && ends(Errno::MFILE));
        assert!(!ends(Errno::PERM) && !ends(Errno::NAMETOOLONG) && !ends(Errno::MLINK));
        assert!(matches!(
            Undone::from(io::Error::other("a pipe is gone")),
            Undone::All(_)
        ));
        let bar = FilesBar::new(true);
        let (on, off) = (
            LeftOut::new(OnUndone::GoesOn, &bar),
            LeftOut::new(OnUndone::Ends, &bar),
        );
        let refused = || Err::<(), _>(Undone::from(Errno::PERM));
        assert!(on.entry("a", refused()).unwrap().is_none());
        assert!(on.ended("copied").unwrap_err().0.starts_with("1 files"));
        assert!(off.entry("a", refused()).unwrap_err().0.starts_with("a: "));
        assert!(off.ended("copied").is_ok());
    }
}
