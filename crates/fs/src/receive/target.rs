//! What streams are received into.

use super::error::TargetError;
use super::reader::Position;
use butterfs_format::send_stream::{Command, SourceStamp};

/// A subvolume that a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its name.
    pub name: Vec<u8>,
    /// Identifies it.
    pub stamp: SourceStamp,
    /// What it is a changed copy of.
    pub parent: Option<SourceStamp>,
}

/// Whether an earlier receive may be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The name must be free.
    #[default]
    New,
    /// The beginning that an earlier receive left is continued.
    Resume,
}

/// How a subvolume began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// It is new.
    New,
    /// Everything up to this position was applied.
    Partly(Position),
    /// All of it was received before.
    Whole,
}

/// What becomes of a command that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFailure {
    /// It failed.
    Fails,
    /// The target cannot hold the entry that it makes. Later commands about the
    /// entry are passed over.
    LeavesOutEntry,
    /// The target cannot hold an attribute, a mode or a time of an entry.
    LeavesOutAttribute,
}

/// Does what commands say.
pub trait Target {
    /// Makes the subvolume, empty or as a copy of its parent, or finds what is
    /// already there of it.
    ///
    /// # Errors
    /// The name is taken; the parent is not known; any error of the target.
    fn begin(&mut self, new: &NewSubvolume, start: Start) -> Result<Begun, TargetError>;

    /// Carries out one command that does not begin or end a subvolume.
    ///
    /// # Errors
    /// Whatever the target says.
    fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError>;

    /// Carries out one command and nothing else: no command that was given
    /// before waits to be done with it, and it waits for none. So a failure is
    /// its own, and later commands can follow.
    ///
    /// # Errors
    /// As [`Target::apply`].
    fn apply_alone(&mut self, command: &Command<'_>) -> Result<(), TargetError> {
        self.apply(command)
    }

    /// What becomes of a command that failed with `error`. A target that can hold
    /// everything fails.
    fn on_failure(&self, command: &Command<'_>, error: &TargetError) -> OnFailure {
        let _ = (command, error);
        OnFailure::Fails
    }

    /// Everything up to `applied` was done. Notes that durably if the receive
    /// can be continued after a crash.
    ///
    /// # Errors
    /// Whatever the target says.
    fn checkpoint(&mut self, applied: Position) -> Result<(), TargetError> {
        let _ = applied;
        Ok(())
    }

    /// Everything was applied. Makes the subvolume durable, read-only and known
    /// as received.
    ///
    /// # Errors
    /// Any error of the target; the subvolume is not whole then.
    fn finish(&mut self) -> Result<(), TargetError>;

    /// Nothing follows, but the subvolume is not whole: everything up to
    /// `applied` was done. Notes that, so that the receive can be continued.
    /// Gives whether that is possible, and where the subvolume lies.
    ///
    /// # Errors
    /// Whatever the target says.
    fn interrupt(&mut self, applied: Option<Position>) -> Result<Left, TargetError>;
}

/// What a failed receive leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Where it is.
    pub place: String,
    /// Whether `Start::Resume` can continue it.
    pub resumable: bool,
}
