//! Sending a read-only snapshot, whole or as what changed since another.
//!
//! Owns making the commands of a stream from trees. [`CommandSink`] takes the
//! commands, and [`StreamWriter`] turns them into bytes. Only nodes and data
//! that differ are read; nodes that two snapshots share are skipped.
//!
//! The stream has the same result as one of the kernel, with other commands.
//! Names change in two passes (see `names`), and what directories pass on to
//! new inodes is set at the end.

mod changes;
mod clones;
mod content;
mod error;
mod names;
mod options;
mod sender;
mod sink;
mod snapshot;
mod state;
mod writer;

pub use error::SendError;
pub use options::{Beginning, DataMode, Ending, SendOptions, SendRequest};
pub use sink::CommandSink;
pub use writer::StreamWriter;

use crate::Filesystem;
use butterfs_format::send_stream::{Command, Version};
use clones::CloneSources;
use snapshot::{Nodes, Snapshot};
use state::Sender;

impl Filesystem {
    /// Sends a read-only subvolume.
    ///
    /// # Errors
    /// [`SendError`]. The stream is cut then, and no receiver takes it for
    /// complete.
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
        let (path, stamp) = (request.name, new.stamp());
        // A receiver takes a clone from this UUID for one from the subvolume
        // that it is receiving. A received copy and its original have the same.
        let is_other = |other: &&Snapshot<'_>| other.stamp().uuid != stamp.uuid;
        let others = old.iter().chain(&sources).filter(is_other).collect();
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
