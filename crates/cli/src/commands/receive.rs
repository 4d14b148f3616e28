//! `butterfs receive`.
//!
//! Owns the arguments, what is said at the end, and the listing of a stream
//! ([`dump`]). The library receives.

mod dump;

use crate::fail::{Context, Done, Failure, fail};
use crate::files_bar::FilesBar;
use crate::interrupt::Interrupt;
use crate::left_out::{LeftOut, OnUndone, Undone};
use crate::place::{Place, json};
use butterfs::receive::{
    CommandSource, NewSubvolume, ReadAhead, ReceiveOptions, Received, Start, Target, Termination,
    VolumeTarget, receive,
};
use butterfs::{DirectoryTarget, MountOptions, Subvolume, Volume};
use clap::Args;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// A stream, and its bytes where they are known.
type Input = (Box<dyn Read + Send>, Option<u64>);

/// Longer than any receive.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1 << 30);

/// Receives streams into a volume that is not mounted, or into a directory of
/// any file system.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  ssh host btrfs send /snapshots/monday | butterfs receive /backup
  butterfs receive -f monday.stream backup.img:/
  butterfs receive --resume -f monday.stream /backup
  butterfs receive --dump -f monday.stream

In a volume, and in a directory on Btrfs, each snapshot becomes a read-only subvolume; elsewhere a
directory, and .butterfs-receive beside it says what it was received as. What a
directory cannot hold (device nodes, if you are not root) is named, the rest is
received, and the exit code is 1; no increment can be received on it. A
stream that is damaged or cut is an error that says where; what was received of
it stays, read-write and not known as a copy, and --resume goes on with it when
the same stream is sent again, also after Ctrl-C.")]
pub struct Receive {
    /// Read from this file, not from standard input.
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// End after the first stream.
    #[arg(short = 'e', long)]
    end_after_first: bool,
    /// End with the Nth failed command; 0: never. The commands after a failed
    /// one are carried out; the snapshot is not marked as received.
    #[arg(short = 'E', long, value_name = "N", default_value_t = 1)]
    max_errors: u64,
    /// Continue an interrupted receive of the same stream.
    #[arg(long, conflicts_with = "dump")]
    resume: bool,
    /// List the commands of the stream, and receive nothing.
    #[arg(long)]
    dump: bool,
    /// Print JSON: what was received, or with --dump one line for each command.
    #[arg(long)]
    json: bool,
    /// Accepted: paths in a stream never lead out of the directory.
    #[arg(short = 'C', long = "chroot")]
    _chroot: bool,
    /// Accepted: the mount is found by the directory.
    #[arg(short = 'm', value_name = "MOUNTPOINT")]
    _mountpoint: Option<PathBuf>,
    /// No progress, and no word but errors.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say each command.
    #[arg(short, long)]
    verbose: bool,
    /// Mount options for the volume, such as compress=zstd.
    #[arg(short, long, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Subvolume id that the path in the volume starts from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// Directory, or VOLUME:/path of a volume that is not mounted.
    #[arg(value_name = "TARGET", required_unless_present = "dump")]
    target: Option<OsString>,
}

#[derive(Serialize)]
struct Facts {
    subvolumes: Vec<SubvolumeFact>,
    stream_bytes: u64,
    errors: Vec<String>,
    /// Entries and attributes that the target cannot hold.
    lacks: Vec<String>,
    /// How many more the target lacks.
    more_lacks: u64,
    left_out: u64,
}

#[derive(Serialize)]
struct SubvolumeFact {
    name: String,
    uuid: String,
    ctransid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_uuid: Option<String>,
}

impl From<&NewSubvolume> for SubvolumeFact {
    fn from(new: &NewSubvolume) -> Self {
        let text = |uuid: &[u8; 16]| uuid::Uuid::from_bytes(*uuid).to_string();
        Self {
            name: String::from_utf8_lossy(&new.name).into_owned(),
            uuid: text(&new.stamp.uuid),
            ctransid: new.stamp.ctransid.get(),
            parent_uuid: new.parent.map(|parent| text(&parent.uuid)),
        }
    }
}

impl Receive {
    /// Runs it.
    pub fn run(self) -> Done {
        let (input, size) = self.input()?;
        if self.dump {
            let mut reader = ReadAhead::new(input)?;
            let form = if self.json {
                dump::Form::Json
            } else {
                dump::Form::Text
            };
            return dump::dump(&mut reader, form, self.termination());
        }
        let Some(word) = &self.target else {
            return fail("where to? name a directory or VOLUME:/path at the end");
        };
        let path = Path::new(word);
        let interrupt = Interrupt::watch()?;
        let mut reader = ReadAhead::until(input, interrupt.asked())?;
        if let Some(place) = Place::parse(word).filter(|_| !path.exists()) {
            return self.unmounted(&mut reader, &place, size);
        }
        let mut target = DirectoryTarget::open(path).context(word.display())?;
        let received = self.receive(&mut reader, &mut target, size);
        self.report(received, target.left_out())
    }

    fn unmounted(&self, reader: &mut dyn CommandSource, place: &Place, size: Option<u64>) -> Done {
        let mut mount = MountOptions::default();
        for options in &self.options {
            mount.apply(options)?;
        }
        let mut options = mount.open_options();
        if let Some(id) = self.subvolid {
            options.subvolume = Subvolume::Id(id);
        }
        // A resumed receive goes on from what is durable. So nothing but the
        // receive's own commits may make it durable.
        options.commit_interval = COMMIT_INTERVAL;
        let volume = Volume::open(&place.volume, options).context(place.volume.display())?;
        let path = [place.path.as_bytes(), b"/"].concat();
        let directory = volume.resolve(&path)?;
        let attributes = volume.files().attributes(directory).context(place)?;
        if !attributes.is_directory() {
            return fail(format!("{place}: it is no directory"));
        }
        let mut target = VolumeTarget::new(Arc::clone(volume.files()), directory);
        let received = self.receive(reader, &mut target, size);
        match volume.close().context(place.volume.display()) {
            Ok(()) => self.report(received, 0),
            // Otherwise the report would name what is not on the device.
            Err(failure) => match received.failure {
                Some(before) => fail(format!("{before}; then {}", failure.0)),
                None => Err(failure),
            },
        }
    }

    const fn termination(&self) -> Termination {
        if self.end_after_first {
            Termination::EndCommand
        } else {
            Termination::EndOfInput
        }
    }

    fn input(&self) -> Result<Input, Failure> {
        let Some(path) = &self.file else {
            let input = std::io::stdin();
            if input.is_terminal() {
                return fail("a stream is read from -f FILE or a pipe, not from a terminal");
            }
            return Ok((Box::new(input), None));
        };
        let file = File::open(path).context(path.display())?;
        let meta = file.metadata().context(path.display())?;
        let size = meta.is_file().then_some(meta.len());
        Ok((Box::new(file), size))
    }

    fn bar(&self, size: Option<u64>) -> ProgressBar {
        if self.quiet || self.verbose {
            return ProgressBar::hidden();
        }
        let (bar, template) = match size {
            Some(size) => (
                ProgressBar::new(size),
                "{wide_bar} {bytes} of {total_bytes} ({bytes_per_sec}, {eta} left)",
            ),
            None => (
                ProgressBar::new_spinner(),
                "{spinner} {bytes} in {elapsed} ({bytes_per_sec})",
            ),
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        bar
    }

    fn receive(
        &self,
        reader: &mut dyn CommandSource,
        target: &mut dyn Target,
        size: Option<u64>,
    ) -> Received {
        let bar = self.bar(size);
        let options = ReceiveOptions {
            termination: self.termination(),
            start: if self.resume {
                Start::Resume
            } else {
                Start::New
            },
            errors_max: self.max_errors,
            ..ReceiveOptions::default()
        };
        let mut prefix = Vec::new();
        let result = receive(reader, target, options, &mut |at, command| {
            bar.set_position(at.offset);
            if self.verbose {
                note!("{}", dump::line(&mut prefix, command));
            }
        });
        bar.finish_and_clear();
        result
    }

    fn report(&self, received: Received, left_out: u64) -> Done {
        let mut errors: Vec<String> = received.errors.iter().map(ToString::to_string).collect();
        errors.extend(received.failure.as_ref().map(ToString::to_string));
        if self.json {
            json(&Facts {
                subvolumes: received.subvolumes.iter().map(Into::into).collect(),
                stream_bytes: received.position.offset,
                errors: errors.clone(),
                lacks: received.left_out.iter().map(ToString::to_string).collect(),
                more_lacks: received.more_left_out,
                left_out,
            })?;
        } else if !self.quiet {
            for new in &received.subvolumes {
                let name = String::from_utf8_lossy(&new.name);
                note!("received {name} ({})", HumanBytes(received.position.offset));
            }
            if left_out > 0 {
                note!("{left_out} owners or attributes were left out: only root can set them");
            }
        }
        let lacks = LeftOut::new(OnUndone::GoesOn, &FilesBar::new(true));
        for error in &received.left_out {
            lacks.undone(Undone::Entry(error.into()))?;
        }
        if received.more_left_out > 0 {
            note!("{} more were left out", received.more_left_out);
        }
        let Some(first) = errors.first() else {
            return lacks.ended("received").map_err(|failure| {
                let place = received.left.map(|left| left.place).unwrap_or_default();
                Failure(format!(
                    "{}; {place} is not marked as received, and takes no increment",
                    failure.0
                ))
            });
        };
        let failed = errors.len() as u64 + received.more_errors;
        let mut text = first.clone();
        if failed > 1 {
            errors.iter().for_each(|error| note!("{error}"));
            text = format!("{failed} commands failed");
        }
        if let Some(left) = received.left {
            text.push_str(&format!(
                "; {} is not whole: {}",
                left.place,
                match &received.failure {
                    Some(failure) if failure.is_final() => "remove it",
                    _ if left.resumable => "go on with --resume and the same stream, or remove it",
                    _ => "remove it and receive again",
                }
            ));
        }
        fail(text)
    }
}
