//! `butterfs send`.
//!
//! Owns the arguments, the choice of a parent among clone sources, and the
//! progress bar; the stream is the library's, or the kernel's ([`kernel`]).

mod kernel;

use crate::fail::{Context, Done, Failure, fail};
use crate::host::{self, Printed};
use crate::output::Notes;
use crate::output::{self, Output};
use crate::place::Place;
use crate::service::OnVolume;
use crate::whole_file::WholeFile;
use butterfs::send::{
    Beginning, CommandSink, DataMode, Ending, SendError, SendOptions, SendRequest, StreamWriter,
};
use butterfs::{InodeNumber, TreeId, Volume};
use butterfs_format::send_stream::{Command, Version};
use butterfs_format::{Generation, UuidBytes};
use butterfs_server::Connection;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

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
    parent: Option<OsString>,
    /// Snapshot that the receiver has, to clone from; may be given several
    /// times. Without -p, the nearest one is the parent.
    #[arg(short, long, value_name = "SNAPSHOT")]
    clone_source: Vec<OsString>,
    /// Write to this file, not to standard output.
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Several snapshots make one stream, without ends between them.
    #[arg(short = 'e', long)]
    one_stream: bool,
    /// Version of the stream: 1 or 2; 0 is the newest.
    #[arg(long, value_name = "N")]
    proto: Option<u32>,
    /// Send compressed extents as they lie.
    #[arg(long)]
    compressed_data: bool,
    /// Send which ranges changed, but no data; it cannot be received.
    #[arg(long)]
    no_data: bool,
    /// No progress, and no word but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say what is sent from what.
    #[arg(short, long)]
    verbose: bool,
    /// Subvolume id that paths start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// Read-only snapshots of one volume: VOLUME:/path, or paths where it is
    /// mounted.
    #[arg(required = true, value_name = "SNAPSHOT")]
    snapshots: Vec<OsString>,
}

/// Where a stream goes.
pub enum StreamOutput {
    /// A file, which has its name when it is whole.
    File(WholeFile),
    /// Standard output.
    Standard(Output),
    /// The process that asked.
    Printed(Printed),
}

impl StreamOutput {
    /// All was written.
    pub fn finish(mut self) -> Done {
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

/// A snapshot to send, or to send from.
struct Named {
    tree: TreeId,
    relations: Relations,
    name: Vec<u8>,
}

/// What tells which snapshots are relatives.
#[derive(Clone, Copy)]
struct Relations {
    uuid: UuidBytes,
    parent_uuid: UuidBytes,
    /// The generation in which it was made.
    made: Generation,
}

impl Send {
    /// Runs it, here or where the snapshots are mounted.
    pub fn start(self) -> Done {
        let mounted = |word: &OsString| Place::parse(word).is_none() || Path::new(word).exists();
        match self.snapshots.iter().find(|word| mounted(word)) {
            Some(word) if butterfs_kernel::is_kernel_btrfs(Path::new(word)) => kernel::send(self),
            _ => self.run(),
        }
    }

    fn options(&self) -> Result<SendOptions, Failure> {
        let version = match (self.proto, self.compressed_data) {
            (Some(1), true) => return fail("--compressed-data needs --proto 2"),
            (None, false) | (Some(1), false) => Version::One,
            (None, true) | (Some(0 | 2), _) => Version::Two,
            (Some(other), _) => return fail(format!("version {other} of streams is not known")),
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

    fn output(&self) -> Result<StreamOutput, Failure> {
        if host::is_serving() {
            return Ok(StreamOutput::Printed(Printed));
        }
        if let Some(path) = &self.file {
            return Ok(StreamOutput::File(WholeFile::create(path)?));
        }
        if io::stdout().is_terminal() {
            return fail("a stream is nothing for a terminal: use -f FILE or a pipe");
        }
        Ok(StreamOutput::Standard(output::own()))
    }

    fn send(
        &self,
        volume: &Volume,
        request: &SendRequest<'_>,
        options: &SendOptions,
        beginning: Beginning,
        out: StreamOutput,
    ) -> Result<StreamOutput, SendError> {
        let bar = self.bar(volume, request, options)?;
        let mut sink = Counted {
            inner: StreamWriter::new(out, options.version, beginning),
            bar,
        };
        volume.files().send(request, options, &mut sink)?;
        sink.bar.finish_and_clear();
        sink.inner.finish()
    }

    /// A bar that knows how much there is to send, where somebody sees it.
    fn bar(
        &self,
        volume: &Volume,
        request: &SendRequest<'_>,
        options: &SendOptions,
    ) -> Result<ProgressBar, SendError> {
        if self.quiet || !io::stderr().is_terminal() {
            return Ok(ProgressBar::hidden());
        }
        let mut estimate = Estimate::default();
        let without_data = SendOptions {
            data: DataMode::Omit,
            ..*options
        };
        volume.files().send(request, &without_data, &mut estimate)?;
        let bar = ProgressBar::new(estimate.content + estimate.commands);
        if let Ok(style) = ProgressStyle::with_template(
            "{wide_bar} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)",
        ) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        Ok(bar)
    }
}

impl OnVolume for Send {
    const NAME: &'static str = "send";
    const TAG: &'static str = "Send";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        let first = self.snapshots.first().cloned().unwrap_or_default();
        let words = self.snapshots.iter_mut();
        let others = self.parent.iter_mut().chain(&mut self.clone_source);
        for word in words.chain(others) {
            let path = Path::new(word);
            let mut place = match Place::parse(word) {
                Some(place) if !path.is_dir() => place,
                // What is in the same volume needs no more than its path.
                None if !path.is_dir() => match Place::parse(&first) {
                    Some(place) => Place {
                        path: word.clone(),
                        ..place
                    },
                    None => return fail(format!("{}: there is no such snapshot", path.display())),
                },
                _ => Place {
                    volume: path.to_owned(),
                    path: "/".into(),
                },
            };
            visit(&mut place)?;
            *word = [place.volume.as_os_str(), OsStr::new(":"), &place.path]
                .iter()
                .copied()
                .collect();
        }
        Ok(())
    }

    fn run_here(self) -> Done {
        let places: Vec<Place> = self
            .snapshots
            .iter()
            .map(place_of)
            .collect::<Result<_, _>>()?;
        let Some(first) = places.first() else {
            return fail("a snapshot is needed");
        };
        if places.iter().any(|place| place.volume != first.volume) {
            return fail("all snapshots must be of one volume");
        }
        let volume = first.open_read_only(self.subvolid)?;
        let find = |word: &OsString| {
            let place = Place::parse(word).unwrap_or_else(|| Place {
                volume: first.volume.clone(),
                path: word.clone(),
            });
            if place.volume != first.volume {
                return fail(format!("{place}: it must be of {}", first.volume.display()));
            }
            named(&volume, &place)
        };
        let parent = self.parent.as_ref().map(find).transpose()?;
        let mut sources = self
            .clone_source
            .iter()
            .map(find)
            .collect::<Result<Vec<_>, _>>()?;
        let options = self.options()?;
        let mut out = self.output()?;
        let last = places.len() - 1;
        for (index, place) in places.iter().enumerate() {
            let sent = named(&volume, place)?;
            let joined = self.one_stream && index > 0;
            let options = SendOptions {
                ending: if self.one_stream && index < last {
                    Ending::Continued
                } else {
                    Ending::Command
                },
                ..options
            };
            let beginning = if joined {
                Beginning::Continued
            } else {
                Beginning::Header
            };
            let base = match &parent {
                Some(parent) => Some(parent),
                None => nearest(&sent, &sources),
            };
            if base.is_none() && !sources.is_empty() && self.parent.is_none() && index == 0 {
                return fail(format!(
                    "{place}: none of the clone sources is a relative of it; name a parent with -p"
                ));
            }
            if self.verbose {
                let from = base.map_or("nothing".into(), |base| {
                    String::from_utf8_lossy(&base.name).into_owned()
                });
                note!("{place} from {from}");
            }
            let trees: Vec<TreeId> = sources.iter().map(|source| source.tree).collect();
            let request = SendRequest {
                subvolume: sent.tree,
                name: &sent.name,
                parent: base.map(|base| base.tree),
                clone_sources: &trees,
            };
            out = self
                .send(&volume, &request, &options, beginning, out)
                .context(place)?;
            // The receiver has it from now on.
            sources.push(sent);
        }
        out.finish()
    }

    fn ask(mut self, server: Connection) -> Done {
        let mut stream = self.output()?;
        // This process writes it there.
        self.file = None;
        server.run(&self.request()?, &mut stream, &mut Notes)?;
        stream.finish()
    }
}

/// A snapshot on the command line.
fn place_of(word: &OsString) -> Result<Place, Failure> {
    Place::parse(word).ok_or_else(|| {
        Failure(format!(
            "{}: name a snapshot, as VOLUME:/path or as a path where it is mounted",
            word.display()
        ))
    })
}

fn named(volume: &Volume, place: &Place) -> Result<Named, Failure> {
    let path = place.path.as_bytes();
    let id = volume.resolve(path).context(place)?;
    if id.number != InodeNumber::ROOT {
        return fail(format!("{place}: it is no subvolume"));
    }
    let state = volume.store().read().tree_state(id.tree).context(place)?;
    let name = path
        .split(|byte| *byte == b'/')
        .rfind(|name| !name.is_empty());
    Ok(Named {
        tree: id.tree,
        relations: Relations {
            uuid: state.item.uuid,
            parent_uuid: state.item.parent_uuid,
            made: state.item.otransid,
        },
        name: name.unwrap_or(b"top-level").to_vec(),
    })
}

/// The relative of `sent` that is nearest in time: a snapshot of the same
/// subvolume, what it is a snapshot of, or a snapshot of it.
fn nearest<'s>(sent: &Named, sources: &'s [Named]) -> Option<&'s Named> {
    let known = |uuid: &[u8; 16]| *uuid != [0; 16];
    let related = |other: &&Named| {
        let (a, b) = (&sent.relations, &other.relations);
        (known(&a.parent_uuid) && (a.parent_uuid == b.parent_uuid || a.parent_uuid == b.uuid))
            || (known(&b.parent_uuid) && b.parent_uuid == a.uuid)
    };
    let distance = |other: &&Named| {
        let (a, b) = (sent.relations.made, other.relations.made);
        a.get().abs_diff(b.get())
    };
    sources
        .iter()
        .filter(|other| other.tree != sent.tree)
        .filter(related)
        .min_by_key(distance)
}

/// How much a stream says.
#[derive(Default)]
struct Estimate {
    content: u64,
    commands: u64,
}

impl CommandSink for Estimate {
    fn put(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        self.content += content_of(command);
        self.commands += COMMAND;
        Ok(())
    }
}

/// What a command without data counts for, in bytes of content.
const COMMAND: u64 = 100;

/// Bytes of a file that a command is about.
const fn content_of(command: &Command<'_>) -> u64 {
    match command {
        Command::Write { data, .. } => data.len() as u64,
        Command::EncodedWrite(write) => write.file_length,
        Command::UpdateExtent { length, .. } => *length,
        _ => 0,
    }
}

/// Moves a bar with what goes through.
struct Counted {
    inner: StreamWriter<StreamOutput>,
    bar: ProgressBar,
}

impl CommandSink for Counted {
    fn put(&mut self, command: &Command<'_>) -> Result<(), SendError> {
        self.bar.inc(content_of(command).max(COMMAND));
        self.inner.put(command)
    }
}
