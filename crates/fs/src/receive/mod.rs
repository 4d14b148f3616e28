//! Receiving streams: a subvolume, or changes to a copy of one.
//!
//! Owns reading a stream command by command ([`StreamReader`]), the order in
//! which commands may come, errors with their offset, and resuming. Owns the
//! rule that only a complete stream makes a whole subvolume ([`receive`]). A
//! [`Target`] carries out the commands.
//!
//! Invariants: a command is applied only after its checksum matched. A
//! subvolume becomes read-only, and known by the sender's UUID, only after the
//! last command of its stream was applied.

mod apply;
mod base;
mod decode;
mod error;
mod left_out;
mod moment;
mod note;
mod read_ahead;
mod reader;
mod target;
mod translate;
mod volume;
mod volume_files;

pub use apply::{ReceiveOptions, Received, Termination, receive};
pub use base::{BaseSearch, Candidate};
pub use decode::decode;
pub use error::{ReceiveError, TargetError};
pub use note::Note;
pub use read_ahead::ReadAhead;
pub use reader::{CommandSource, Position, StreamReader};
pub use target::{Begun, Left, NewSubvolume, OnFailure, Start, Target};
pub use volume::VolumeTarget;
