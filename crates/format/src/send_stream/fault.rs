//! What can be wrong with a stream.

use super::{AttributeKind, CommandKind};
use crate::ParseError;
use thiserror::Error;

/// Why bytes of a stream are no command. It says what is wrong; whoever reads
/// the stream adds the offset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StreamFault {
    /// It does not begin with the magic bytes.
    #[error("this is no send stream")]
    NoStream,
    /// A version that is not known.
    #[error("version {0} of the stream is not known; 1 to 3 are")]
    UnknownVersion(u32),
    /// A command's length is beyond what its version allows.
    #[error("a command of {length} bytes is longer than any can be ({limit})")]
    TooLong {
        /// Bytes after the header.
        length: usize,
        /// Greatest number of them.
        limit: usize,
    },
    /// Kind of command that is not known.
    #[error("command {0} is not known")]
    UnknownCommand(u16),
    /// The checksum does not match.
    #[error("the checksum of {command} does not match: stored {stored:#010x}, found {found:#010x}")]
    Checksum {
        /// The command, as far as its damaged header says.
        command: CommandKind,
        /// In the stream.
        stored: u32,
        /// Of the bytes.
        found: u32,
    },
    /// An attribute that the command needs is not there.
    #[error("{command} has no {attribute}")]
    Missing {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
    },
    /// An attribute that is there twice.
    #[error("{command} has {attribute} twice")]
    Twice {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
    },
    /// An attribute has an impossible value.
    #[error("{command} has a {attribute} that cannot be: {reason}")]
    BadValue {
        /// The command.
        command: CommandKind,
        /// The attribute.
        attribute: AttributeKind,
        /// Why.
        reason: &'static str,
    },
    /// Fields are cut short.
    #[error(transparent)]
    Parse(#[from] ParseError),
}
