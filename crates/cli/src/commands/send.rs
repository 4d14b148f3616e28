//! `butterfs send`.
//!
//! Owns the progress bar. The stream is made by the library, or by the kernel
//! ([`kernel`]).

mod arguments;
mod kernel;
mod relatives;

pub use arguments::Send;

use crate::fail::{Context, Done, Failure, fail};
use crate::output::Notes;
use crate::place::Place;
use crate::service::OnVolume;
use arguments::StreamOutput;
use butterfs::send::{
    Beginning, CommandSink, DataMode, Ending, SendError, SendOptions, SendRequest, StreamWriter,
};
use butterfs::{InodeNumber, TreeId, Volume};
use butterfs_format::send_stream::Command;
use butterfs_server::Connection;
use indicatif::{ProgressBar, ProgressStyle};
use relatives::{Named, Relations, nearest};
use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

impl Send {
    /// Runs it, here or where the snapshots are mounted.
    pub fn start(self) -> Done {
        let mounted = |word: &OsString| Place::parse(word).is_none() || Path::new(word).exists();
        match self.snapshots.iter().find(|word| mounted(word)) {
            Some(word) if butterfs_kernel::is_kernel_btrfs(Path::new(word)) => kernel::send(self),
            _ => self.run(),
        }
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

    /// A bar that knows how much there is to send, if somebody sees it.
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
                // If it is in the same volume, its path is enough.
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
        // This process writes the file itself, from what the server sends.
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
    let item = volume.trees().root_item(id.tree).context(place)?;
    let name = path
        .split(|byte| *byte == b'/')
        .rfind(|name| !name.is_empty());
    Ok(Named {
        tree: id.tree,
        relations: Relations {
            uuid: item.uuid,
            parent_uuid: item.parent_uuid,
            made: item.otransid,
        },
        name: name.unwrap_or(b"top-level").to_vec(),
    })
}

/// The size of a stream, estimated.
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
