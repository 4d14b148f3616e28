//! Receives whole streams into a target.

use super::error::{ReceiveError, TargetError};
use super::left_out::{LeftOutPaths, TooMany};
use super::reader::{CommandSource, Position};
use super::target::{Begun, Left, NewSubvolume, OnFailure, Start, Target};
use butterfs_format::send_stream::{Command, CommandKind};
use std::time::{Duration, Instant};

/// When receiving ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Termination {
    /// At the end of the input: several streams may follow one another.
    #[default]
    EndOfInput,
    /// After the first command that ends a stream.
    EndCommand,
}

/// How to receive.
#[derive(Clone, Copy, Debug)]
pub struct ReceiveOptions {
    /// When it ends.
    pub termination: Termination,
    /// Whether to continue what is there.
    pub start: Start,
    /// The receive ends with this failed command; 0 for none. Until then, the
    /// commands after a failed one are carried out. A subvolume in which a
    /// command failed does not become whole. Whatever the number, the receive
    /// ends if no other command could be carried out either.
    pub errors_max: u64,
    /// How often the progress is noted.
    pub checkpoint_interval: Duration,
}

impl Default for ReceiveOptions {
    fn default() -> Self {
        Self {
            termination: Termination::EndOfInput,
            start: Start::New,
            errors_max: 1,
            checkpoint_interval: Duration::from_secs(30),
        }
    }
}

/// Failed commands that are remembered one by one.
const ERRORS_NAMED: usize = 10_000;

/// What was received.
#[derive(Debug, Default)]
pub struct Received {
    /// Whole subvolumes, in the order of the stream.
    pub subvolumes: Vec<NewSubvolume>,
    /// The first commands that failed and were allowed to.
    pub errors: Vec<ReceiveError>,
    /// How many more failed.
    pub more_errors: u64,
    /// Entries and attributes that the target cannot hold, and left out. The
    /// rest of their subvolume was received; it did not become whole.
    pub left_out: Vec<ReceiveError>,
    /// How many more there are.
    pub more_left_out: u64,
    /// What is left of a subvolume that is not whole.
    pub left: Option<Left>,
    /// Where the stream ended.
    pub position: Position,
    /// What ended it early.
    pub failure: Option<ReceiveError>,
}

/// A subvolume that is being received.
struct Current {
    new: NewSubvolume,
    state: State,
    /// Something of it was left out.
    is_partial: bool,
    left_out: LeftOutPaths,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Commands are applied.
    Applying,
    /// Commands up to this position were applied before.
    Skipping(Position),
    /// It is there already.
    Whole,
}

struct Receiver<'t> {
    target: &'t mut dyn Target,
    options: ReceiveOptions,
    received: Received,
    current: Option<Current>,
    noted: Instant,
}

/// Receives the streams of `reader`. The result says what ended the receive
/// early. An incomplete subvolume is left as it is, read-write and not known as
/// received.
#[must_use]
pub fn receive(
    reader: &mut dyn CommandSource,
    target: &mut dyn Target,
    options: ReceiveOptions,
    progress: &mut dyn FnMut(Position, &Command<'_>),
) -> Received {
    let mut receiver = Receiver {
        target,
        options,
        received: Received::default(),
        current: None,
        noted: Instant::now(),
    };
    let result = receiver.run(reader, progress);
    receiver.received.position = reader.position();
    if receiver.current.is_some() {
        receiver.leave();
    }
    receiver.received.failure = result.err();
    receiver.received
}

impl Receiver<'_> {
    fn run(
        &mut self,
        reader: &mut dyn CommandSource,
        progress: &mut dyn FnMut(Position, &Command<'_>),
    ) -> Result<(), ReceiveError> {
        let mut applied = None;
        loop {
            let next = reader.read_command();
            let (at, command) = match next {
                Ok(Some(next)) => next,
                Ok(None) => break,
                Err(error) => {
                    self.note(applied);
                    return Err(error);
                }
            };
            progress(at, &command);
            let kind = command.kind();
            let ended = kind == CommandKind::End;
            if let Err(error) = self.command(at, &command) {
                if self.ends_with(&error) {
                    self.note((!error.is_final()).then_some(at));
                    return Err(error);
                }
                if let Err(TooMany) = self.passed_over(&command) {
                    self.note(None);
                    return Err(ReceiveError::TooMuchLeftOut { offset: at.offset });
                }
                match self.received.errors.len() < ERRORS_NAMED {
                    true => self.received.errors.push(error),
                    false => self.received.more_errors += 1,
                }
            }
            let position = reader.position();
            applied = Some(position);
            if let Err(error) = self.checkpoint(position) {
                self.note(None);
                return Err(ReceiveError::Target {
                    offset: at.offset,
                    command: kind,
                    path: Vec::new(),
                    error,
                });
            }
            if ended && self.options.termination == Termination::EndCommand {
                return Ok(());
            }
        }
        let offset = reader.position().offset;
        let missing = if self.current.is_some() {
            "the command that ends it"
        } else if self.received.subvolumes.is_empty()
            && self.received.errors.is_empty()
            && self.received.left_out.is_empty()
        {
            "everything"
        } else {
            return Ok(());
        };
        self.note(applied);
        Err(ReceiveError::Cut { offset, missing })
    }

    fn checkpoint(&mut self, applied: Position) -> Result<(), TargetError> {
        // How far a subvolume came of which something is left out is not noted:
        // a receive that went on would not know of it.
        let applying = matches!(
            &self.current,
            Some(current) if current.state == State::Applying && !current.is_partial
        );
        if !applying || self.noted.elapsed() < self.options.checkpoint_interval {
            return Ok(());
        }
        self.target.checkpoint(applied)?;
        self.noted = Instant::now();
        Ok(())
    }

    /// Whether the receive ends with this error.
    fn ends_with(&self, error: &ReceiveError) -> bool {
        let ReceiveError::Target { error, .. } = error else {
            return true;
        };
        let before = self.received.errors.len() as u64 + self.received.more_errors;
        let is_last = self.options.errors_max != 0 && before + 1 >= self.options.errors_max;
        is_last || error.is_of_volume()
    }

    /// Goes on after a failed command. What is about an entry that it should
    /// have made cannot be carried out, and is not counted again.
    fn passed_over(&mut self, command: &Command<'_>) -> Result<(), TooMany> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        current.is_partial = true;
        let makes = matches!(
            command,
            Command::MakeFile { .. }
                | Command::MakeDirectory { .. }
                | Command::MakeSpecial { .. }
                | Command::Symlink { .. }
        );
        if makes && let Some(path) = command.path() {
            current.left_out.add(path)?;
        }
        Ok(())
    }

    /// Notes how far the subvolume came.
    fn note(&mut self, applied: Option<Position>) {
        let Some(current) = self.current.take() else {
            return;
        };
        let applied = match current.state {
            State::Applying if current.is_partial => None,
            State::Applying => applied,
            State::Skipping(until) => Some(until),
            State::Whole => return,
        };
        self.left(applied);
    }

    fn leave(&mut self) {
        self.current = None;
        self.left(None);
    }

    fn left(&mut self, applied: Option<Position>) {
        match self.target.interrupt(applied) {
            Ok(left) => self.received.left = Some(left),
            Err(error) => tracing::error!(%error, "how far the receive came cannot be noted"),
        }
    }

    fn command(&mut self, at: Position, command: &Command<'_>) -> Result<(), ReceiveError> {
        let failed = |error: TargetError| ReceiveError::Target {
            offset: at.offset,
            command: command.kind(),
            path: command.path().unwrap_or_default().to_vec(),
            error,
        };
        let (path, stamp, parent) = match *command {
            Command::Subvolume { path, stamp } => (path, stamp, None),
            Command::Snapshot {
                path,
                stamp,
                parent,
            } => (path, stamp, Some(parent)),
            Command::End => return self.finish(at).map_err(failed),
            _ => return self.change(at, command),
        };
        // A stream of several subvolumes may continue without an end between
        // them.
        self.finish(at).map_err(failed)?;
        if path.contains(&b'/') {
            return Err(ReceiveError::OutOfOrder {
                offset: at.offset,
                command: command.kind(),
                reason: "its name is a path",
            });
        }
        let new = NewSubvolume {
            name: path.to_vec(),
            stamp,
            parent,
        };
        let begun = self
            .target
            .begin(&new, self.options.start)
            .map_err(failed)?;
        let state = match begun {
            Begun::New => State::Applying,
            Begun::Partly(until) => State::Skipping(until),
            Begun::Whole => State::Whole,
        };
        self.current = Some(Current {
            new,
            state,
            is_partial: false,
            left_out: LeftOutPaths::default(),
        });
        Ok(())
    }

    fn change(&mut self, at: Position, command: &Command<'_>) -> Result<(), ReceiveError> {
        let Some(current) = &mut self.current else {
            return Err(ReceiveError::OutOfOrder {
                offset: at.offset,
                command: command.kind(),
                reason: "no subvolume was begun",
            });
        };
        match current.state {
            State::Whole => return Ok(()),
            State::Skipping(until) if at.offset < until.offset => return Ok(()),
            State::Skipping(until) if at != until => {
                return Err(ReceiveError::OtherStream {
                    offset: until.offset,
                });
            }
            State::Skipping(_) => current.state = State::Applying,
            State::Applying => {}
        }
        let too_many = |TooMany| ReceiveError::TooMuchLeftOut { offset: at.offset };
        if current.left_out.follow(command).map_err(too_many)? {
            return Ok(());
        }
        let applied = match self.options.errors_max {
            1 => self.target.apply(command),
            _ => self.target.apply_alone(command),
        };
        let Err(error) = applied else {
            return Ok(());
        };
        let path = command.path().unwrap_or_default().to_vec();
        let failure = self.target.on_failure(command, &error);
        if failure == OnFailure::LeavesOutEntry {
            current.left_out.add(&path).map_err(too_many)?;
        }
        let error = ReceiveError::Target {
            offset: at.offset,
            command: command.kind(),
            path,
            error,
        };
        if failure == OnFailure::Fails {
            return Err(error);
        }
        current.is_partial = true;
        match self.received.left_out.len() < ERRORS_NAMED {
            true => self.received.left_out.push(error),
            false => self.received.more_left_out += 1,
        }
        Ok(())
    }

    fn finish(&mut self, at: Position) -> Result<(), TargetError> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        let done = State::Skipping(at);
        match current.state {
            _ if current.is_partial => {
                self.left(None);
                return Ok(());
            }
            state if state == State::Applying || state == done => {
                if let Err(error) = self.target.finish() {
                    self.left(None);
                    return Err(error);
                }
            }
            State::Whole | State::Applying => {}
            State::Skipping(until) => {
                self.left(Some(until));
                return Err(TargetError::Other(format!(
                    "the stream ends before offset {}, up to which it was received before",
                    until.offset
                )));
            }
        }
        self.received.subvolumes.push(current.new);
        Ok(())
    }
}
