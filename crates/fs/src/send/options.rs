//! What to send, and how.

use butterfs_format::TreeId;
use butterfs_format::send_stream::Version;

/// How data are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataMode {
    /// As files have them.
    #[default]
    Plain,
    /// Compressed extents as they lie, from version 2 on.
    Encoded,
    /// Only which ranges changed: such a stream cannot be received.
    Omit,
}

/// What begins a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beginning {
    /// Its header.
    #[default]
    Header,
    /// Nothing: the previous stream continues.
    Continued,
}

/// What ends a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// A command that says so.
    #[default]
    Command,
    /// Nothing: another subvolume follows.
    Continued,
}

/// How to send.
#[derive(Clone, Copy, Debug)]
pub struct SendOptions {
    /// Version of the stream.
    pub version: Version,
    /// Data.
    pub data: DataMode,
    /// How it ends.
    pub ending: Ending,
}

impl Default for SendOptions {
    fn default() -> Self {
        Self {
            version: Version::One,
            data: DataMode::Plain,
            ending: Ending::Command,
        }
    }
}

/// What to send.
#[derive(Clone, Debug)]
pub struct SendRequest<'a> {
    /// Read-only subvolume.
    pub subvolume: TreeId,
    /// Name that the receiver gives it.
    pub name: &'a [u8],
    /// Read-only subvolume that the receiver has: only what changed since is
    /// sent.
    pub parent: Option<TreeId>,
    /// More read-only subvolumes that the receiver has, to clone from.
    pub clone_sources: &'a [TreeId],
}
