//! Why receiving ends early.

use crate::FsError;
use butterfs_format::send_stream::{CommandKind, StreamFault};
use std::io::ErrorKind;
use thiserror::Error;

/// Why a target did not do a command.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A volume.
    #[error(transparent)]
    Fs(#[from] FsError),
    /// A mounted file system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// A command that no receive carries out, however often the stream is sent.
    #[error("{0}")]
    Impossible(&'static str),
    /// Any other reason, as a sentence.
    #[error("{0}")]
    Other(String),
}

impl TargetError {
    /// Whether the volume, and not one command, is the reason: no other command
    /// could be carried out either.
    #[must_use]
    pub(super) fn is_of_volume(&self) -> bool {
        match self {
            Self::Fs(error) => error.is_of_volume(),
            Self::Io(error) => matches!(
                error.kind(),
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::ReadOnlyFilesystem
            ),
            Self::Impossible(_) | Self::Other(_) => false,
        }
    }

    /// Data that were left out of the stream.
    pub const NO_DATA: Self = Self::Impossible(
        "the stream was sent without data (send --no-data) and cannot be received; send it with them",
    );
    /// A file that fs-verity protects.
    pub const VERITY: Self = Self::Impossible("fs-verity cannot be received");
}

/// A receive that did not come to its end. Offsets are bytes of the stream.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The stream is damaged.
    #[error("the stream is damaged at offset {offset}: {fault}")]
    Damaged {
        /// Where the command begins.
        offset: u64,
        /// What is wrong.
        fault: StreamFault,
    },
    /// The stream ends within a command, or before its last one.
    #[error("the stream is cut at offset {offset}: {missing}")]
    Cut {
        /// Where it ends.
        offset: u64,
        /// What should follow.
        missing: &'static str,
    },
    /// Reading the stream.
    #[error("reading the stream at offset {offset}: {error}")]
    Read {
        /// Where.
        offset: u64,
        /// Why not.
        error: std::io::Error,
    },
    /// The receiver was asked to end.
    #[error("interrupted at offset {offset} of the stream")]
    Interrupted {
        /// Where.
        offset: u64,
    },
    /// A command that cannot come here.
    #[error("{command} at offset {offset} of the stream: {reason}")]
    OutOfOrder {
        /// Where the command begins.
        offset: u64,
        /// The command.
        command: CommandKind,
        /// Why not.
        reason: &'static str,
    },
    /// The target did not do a command.
    #[error("{command} of {} at offset {offset} of the stream: {error}", .path.escape_ascii())]
    Target {
        /// Where the command begins.
        offset: u64,
        /// The command.
        command: CommandKind,
        /// What it is about.
        path: Vec<u8>,
        /// Why not.
        error: TargetError,
    },
    /// More entries were left out than are remembered.
    #[error(
        "offset {offset} of the stream: so many of its entries were left out that 64 MiB do not \
         hold their paths; receive it into a volume, which can hold what this target cannot"
    )]
    TooMuchLeftOut {
        /// Where the command begins.
        offset: u64,
    },
    /// What was received before is the beginning of another stream.
    #[error(
        "the stream is not the one whose beginning was received: they differ before offset {offset}"
    )]
    OtherStream {
        /// Where receiving should go on.
        offset: u64,
    },
}

impl ReceiveError {
    /// The position in the stream at which it happened.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        match self {
            Self::Damaged { offset, .. }
            | Self::Cut { offset, .. }
            | Self::Read { offset, .. }
            | Self::Interrupted { offset }
            | Self::TooMuchLeftOut { offset }
            | Self::OutOfOrder { offset, .. }
            | Self::Target { offset, .. }
            | Self::OtherStream { offset } => *offset,
        }
    }
}

impl ReceiveError {
    /// Whether no receive of this stream can come to its end.
    #[must_use]
    pub const fn is_final(&self) -> bool {
        matches!(
            self,
            Self::TooMuchLeftOut { .. }
                | Self::Target {
                    error: TargetError::Impossible(_),
                    ..
                }
        )
    }
}
