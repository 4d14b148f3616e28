//! Sending a read-only snapshot, whole or as what changed since another.
//!
//! Owns making the commands of a stream from trees; [`CommandSink`] takes
//! them, and [`StreamWriter`] makes bytes of them. What is read are the nodes
//! and data that differ: nodes that two snapshots share are skipped.
//!
//! The stream says the same as one of the kernel, not with the same commands:
//! names change in two passes (see `names`), and what directories hand down
//! to new inodes is set at the end.

mod changes;
mod clones;
mod content;
mod error;
mod names;
mod options;
mod sender;
mod snapshot;
mod writer;

pub use error::SendError;
pub use options::{Beginning, DataMode, Ending, SendOptions, SendRequest};
pub use writer::StreamWriter;

use crate::Filesystem;
use butterfs_format::send_stream::{Command, Version};
use clones::CloneSources;
use sender::Sender;
use snapshot::{Nodes, Snapshot};

/// Takes commands.
pub trait CommandSink {
    /// Takes the next command.
    ///
    /// # Errors
    /// It cannot be written.
    fn put(&mut self, command: &Command<'_>) -> Result<(), SendError>;
}

impl Filesystem {
    /// Sends a read-only subvolume.
    ///
    /// # Errors
    /// [`SendError`]: then the stream is cut and no receiver takes it for
    /// whole.
    pub fn send(
        &self,
        request: &SendRequest<'_>,
        options: &SendOptions,
        out: &mut dyn CommandSink,
    ) -> Result<(), SendError> {
        let mut options = *options;
        if options.version == Version::One && options.data == DataMode::Encoded {
            options.data = DataMode::Plain;
        }
        let nodes = Nodes(&self.store);
        let new = Snapshot::open(&nodes, request.subvolume)?;
        let old = request
            .parent
            .map(|tree| Snapshot::open(&nodes, tree))
            .transpose()?;
        let sources = request
            .clone_sources
            .iter()
            .filter(|tree| **tree != request.subvolume && Some(**tree) != request.parent)
            .map(|tree| Snapshot::open(&nodes, *tree))
            .collect::<Result<Vec<_>, _>>()?;
        let others = old.iter().chain(&sources).collect();
        let (path, stamp) = (request.name, new.stamp());
        out.put(&match &old {
            None => Command::Subvolume { path, stamp },
            Some(old) => Command::Snapshot {
                path,
                stamp,
                parent: old.stamp(),
            },
        })?;
        let pair = (old.as_ref(), &new);
        Sender::new(self, &nodes, pair, CloneSources::new(others), &options, out).run()?;
        match options.ending {
            Ending::Command => out.put(&Command::End),
            Ending::Continued => Ok(()),
        }
    }
}
