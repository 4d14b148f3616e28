//! What `butterfs send` is asked for, and where the stream goes.

use crate::fail::{Done, Failure, fail};
use crate::host::{self, Printed};
use crate::output::{self, Output};
use crate::whole_file::WholeFile;
use butterfs::send::{DataMode, SendOptions};
use butterfs_format::send_stream::Version;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

/// Sends read-only snapshots as a stream, whole or as what changed since
/// another one.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs send disk.img:/monday | butterfs receive backup.img:/
  butterfs send -p disk.img:/monday disk.img:/tuesday -f tuesday.stream
  butterfs send -p mnt/monday mnt/tuesday | butterfs receive /backup
  butterfs send --compressed-data -p /monday disk.img:/tuesday | ssh host btrfs receive /backup

Only what differs is read: nodes that both snapshots share are skipped. btrfs
receive of any kernel takes version 1, which is the default; --compressed-data
needs version 2.")]
pub struct Send {
    /// Snapshot that the receiver has; only what changed since is sent.
    #[arg(short, long, value_name = "SNAPSHOT")]
    pub(super) parent: Option<OsString>,
    /// Snapshot that the receiver has, to clone from; may be given several
    /// times. Without -p, the nearest one is the parent.
    #[arg(short, long, value_name = "SNAPSHOT")]
    pub(super) clone_source: Vec<OsString>,
    /// Write to this file, not to standard output.
    #[arg(short = 'f', long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Several snapshots make one stream, without ends between them.
    #[arg(short = 'e', long)]
    pub(super) one_stream: bool,
    /// Version of the stream: 1 or 2; 0 is the newest.
    #[arg(long, value_name = "N")]
    pub(super) proto: Option<u32>,
    /// Send compressed extents as they lie.
    #[arg(long)]
    pub(super) compressed_data: bool,
    /// Send which ranges changed, but no data; it cannot be received.
    #[arg(long)]
    pub(super) no_data: bool,
    /// No progress, and no word but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    pub(super) quiet: bool,
    /// Say what is sent from what.
    #[arg(short, long)]
    pub(super) verbose: bool,
    /// Subvolume id that paths start from.
    #[arg(long, value_name = "ID")]
    pub(super) subvolid: Option<u64>,
    /// Read-only snapshots of one volume: VOLUME:/path, or paths where it is
    /// mounted.
    #[arg(required = true, value_name = "SNAPSHOT")]
    pub(super) snapshots: Vec<OsString>,
}

/// Where a stream goes.
pub(super) enum StreamOutput {
    /// A file, which has its name when it is whole.
    File(WholeFile),
    /// Standard output.
    Standard(Output),
    /// The process that asked.
    Printed(Printed),
}

impl StreamOutput {
    /// All was written.
    pub(super) fn finish(mut self) -> Done {
        self.flush()?;
        match self {
            Self::File(file) => file.finish(),
            Self::Standard(_) | Self::Printed(_) => Ok(()),
        }
    }
}

impl Write for StreamOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.write(bytes),
            Self::Standard(out) => out.write(bytes),
            Self::Printed(out) => out.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::File(file) => file.flush(),
            Self::Standard(out) => out.flush(),
            Self::Printed(out) => out.flush(),
        }
    }
}

impl AsFd for StreamOutput {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(file) => file.as_fd(),
            Self::Standard(out) => out.as_fd(),
            Self::Printed(_) => unreachable!("a server sends no volume that the kernel has"),
        }
    }
}

impl Send {
    pub(super) fn options(&self) -> Result<SendOptions, Failure> {
        let version = match (self.proto, self.compressed_data) {
            (Some(1), true) => return fail("--compressed-data needs --proto 2"),
            (None, false) | (Some(1), false) => Version::One,
            (None, true) | (Some(0 | 2), _) => Version::Two,
            (Some(other), _) => {
                return fail(format!(
                    "version {other} of streams is not known; take 1 or 2"
                ));
            }
        };
        let data = match (self.no_data, self.compressed_data) {
            (true, _) => DataMode::Omit,
            (false, true) => DataMode::Encoded,
            (false, false) => DataMode::Plain,
        };
        Ok(SendOptions {
            version,
            data,
            ..SendOptions::default()
        })
    }

    pub(super) fn output(&self) -> Result<StreamOutput, Failure> {
        if host::is_serving() {
            return Ok(StreamOutput::Printed(Printed));
        }
        if let Some(path) = &self.file {
            return Ok(StreamOutput::File(WholeFile::create_private(path)?));
        }
        if io::stdout().is_terminal() {
            return fail("a stream is nothing for a terminal: use -f FILE or a pipe");
        }
        Ok(StreamOutput::Standard(output::own()))
    }
}
