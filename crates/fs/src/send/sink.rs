//! What takes the commands of a stream.

use super::error::SendError;
use butterfs_format::send_stream::Command;

/// Takes commands.
pub trait CommandSink {
    /// Takes the next command.
    ///
    /// # Errors
    /// It cannot be written.
    fn put(&mut self, command: &Command<'_>) -> Result<(), SendError>;
}
