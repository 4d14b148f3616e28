//! `butterfs du`.

use crate::changes::Start;
use crate::fail::{Done, Failure};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::output;
use crate::place::Place;
use crate::service::Effect;
use crate::sizes;
use butterfs::{InodeId, Walk, WalkEntry, walk};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Sums up the sizes of files below directories, in a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  butterfs du -sh disk.img:/usr
  butterfs du -h -d 1 disk.img

A file with several names counts once. Sizes are before compression, and what files share
counts for each; `butterfs subvolume du` says what deleting would free."
)]
pub struct Du {
    /// Only the sum of each path.
    #[arg(short, long, conflicts_with = "max_depth")]
    summarize: bool,
    /// Sizes such as 1.5K and 12M (without it KiB).
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Bytes.
    #[arg(short = 'b', long, conflicts_with = "human_readable")]
    bytes: bool,
    /// The lengths of files instead of their space.
    #[arg(long)]
    apparent_size: bool,
    /// Show directories as deep as this; their sums have all below.
    #[arg(short = 'd', long, value_name = "N")]
    max_depth: Option<usize>,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    #[serde(skip)]
    start: Start,
    /// VOLUME:/path, one or more, or paths on a mount; the root without a path.
    #[arg(required = true)]
    places: Vec<Place>,
}

impl OnFiles for Du {
    const TAG: &'static str = "FilesDu";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        let places = self.places.iter_mut();
        places.map(|place| (place, Ending::Entry)).collect()
    }

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn here(self) -> Done {
        let mut out = BufWriter::new(output::standard());
        for place in &self.places {
            let volume = self.start.open(place)?;
            let ground = Ground::opened(&volume);
            let left_out = LeftOut::new(ground.when_unreadable(), &FilesBar::new(true));
            self.sum(&ground, place, (&mut out, &left_out))?;
        }
        Ok(out.flush()?)
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let mut out = BufWriter::new(output::standard());
        let left_out = LeftOut::new(ground.when_unreadable(), &FilesBar::new(true));
        for place in &self.places {
            self.sum(ground, place, (&mut out, &left_out))?;
        }
        out.flush()?;
        left_out.ended("summed up")
    }
}

impl Du {
    fn sum(
        &self,
        ground: &Ground<'_>,
        place: &Place,
        (out, left_out): (&mut impl Write, &LeftOut),
    ) -> Done {
        let start = match ground.is_mounted() {
            true => left_out.entry(place, ground.find(place))?,
            false => Some(ground.find(place).map_err(Undone::into_failure)?),
        };
        let Some(start) = start else {
            return Ok(());
        };
        let most = match self.summarize {
            true => 0,
            false => self.max_depth.unwrap_or(usize::MAX),
        };
        // Sums of the directories that are shown, and of the start.
        let mut sums: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut counted: BTreeSet<InodeId> = BTreeSet::new();
        let mut visit = |entry: &WalkEntry| {
            let of = &entry.attributes;
            let depth = depth(&entry.path);
            if of.is_directory() && depth <= most {
                sums.entry(entry.path.clone()).or_default();
            }
            let is_new = of.nlink < 2 || of.is_directory() || counted.insert(of.id);
            let bytes = match (is_new, self.apparent_size || self.bytes) {
                (false, _) => 0,
                (true, true) => of.size,
                (true, false) => of.allocated,
            };
            for above in above(&entry.path, of.is_directory()) {
                if let Some(sum) = sums.get_mut(above) {
                    *sum += bytes;
                }
            }
            if depth == 0 && !of.is_directory() {
                sums.insert(Vec::new(), bytes);
            }
            Ok(Walk::Enter)
        };
        walk::<Failure>(ground.calls, start, &mut visit, &mut |error| {
            unread(ground, left_out, (place, error))
        })?;
        // The content of a directory comes before the directory, as with du(1).
        for (path, sum) in sums.iter().rev() {
            let shown = match (self.human_readable, self.bytes) {
                (true, _) => sizes::short(*sum),
                (false, true) => sum.to_string(),
                (false, false) => sum.div_ceil(1024).to_string(),
            };
            write!(out, "{shown}\t")?;
            let top = place.path.as_bytes();
            out.write_all(top)?;
            if !path.is_empty() && !top.ends_with(b"/") {
                out.write_all(b"/")?;
            }
            out.write_all(path)?;
            out.write_all(b"\n")?;
        }
        Ok(())
    }
}

/// Notes what cannot be read. In a volume it ends the command.
pub fn unread(
    ground: &Ground<'_>,
    left_out: &LeftOut,
    (place, error): (&Place, butterfs::Error),
) -> Done {
    match ground.is_mounted() {
        true => left_out.undone(Undone::from(error).at(place)),
        false => Err(error.into()),
    }
}

/// Names in a path below the start.
fn depth(path: &[u8]) -> usize {
    match path.is_empty() {
        true => 0,
        false => 1 + path.iter().filter(|byte| **byte == b'/').count(),
    }
}

/// The directories that hold a path, and the path itself if it is a directory.
fn above(path: &[u8], is_directory: bool) -> impl Iterator<Item = &[u8]> {
    let slashes = (0..path.len()).filter(move |at| path[*at] == b'/');
    let itself = (is_directory && !path.is_empty()).then_some(path);
    std::iter::once(&path[..0])
        .chain(slashes.map(move |at| &path[..at]))
        .chain(itself)
}
