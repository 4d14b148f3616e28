//! What streams are received into.

use super::error::TargetError;
use super::reader::Position;
use butterfs_format::send_stream::{Command, SourceStamp};

/// A subvolume that a stream begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSubvolume {
    /// Its name.
    pub name: Vec<u8>,
    /// By what it is known.
    pub stamp: SourceStamp,
    /// What it is a changed copy of.
    pub parent: Option<SourceStamp>,
}

/// Whether what is there already may be gone on with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Start {
    /// The name must be free.
    #[default]
    New,
    /// A beginning that was received before is gone on with.
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

/// Does what commands say.
pub trait Target {
    /// Makes the subvolume, empty or as a copy of its parent, or finds what is
    /// there of it.
    ///
    /// # Errors
    /// The name is taken, the parent is not known; whatever the target says.
    fn begin(&mut self, new: &NewSubvolume, start: Start) -> Result<Begun, TargetError>;

    /// Does one command other than those that begin and end subvolumes.
    ///
    /// # Errors
    /// Whatever the target says.
    fn apply(&mut self, command: &Command<'_>) -> Result<(), TargetError>;

    /// Everything up to `applied` was done: notes it durably, where what is
    /// noted can be gone on with after a crash.
    ///
    /// # Errors
    /// Whatever the target says.
    fn checkpoint(&mut self, applied: Position) -> Result<(), TargetError> {
        let _ = applied;
        Ok(())
    }

    /// Everything was applied: makes it durable, read-only and known.
    ///
    /// # Errors
    /// Whatever the target says; then it is not whole.
    fn finish(&mut self) -> Result<(), TargetError>;

    /// Nothing follows, but the subvolume is not whole: everything up to
    /// `applied` was done. Notes it so that it can be gone on with. Gives
    /// whether it can be, and where it lies.
    ///
    /// # Errors
    /// Whatever the target says.
    fn interrupt(&mut self, applied: Option<Position>) -> Result<Left, TargetError>;
}

/// What a receive that failed leaves behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Where it is.
    pub place: String,
    /// Whether `Start::Resume` can go on with it.
    pub resumable: bool,
}
