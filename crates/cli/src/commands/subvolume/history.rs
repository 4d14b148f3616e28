//! `butterfs subvolume history`.

use super::diff::{Fact, file_fact, in_words};
use super::shown::{moment, text};
use crate::fail::{Context, Done};
use crate::place::{Place, json};
use crate::service::OnVolume;
use butterfs::history::{AtPath, FileVersion, HistoryEntry};
use butterfs::list::Subvolumes;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::os::unix::ffi::OsStrExt;

/// Show the history of one file over all snapshots: which have it, by
/// whatever name, and when its content, names and metadata changed.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs subvolume history disk.img:/home/notes.txt
  butterfs subvolume history --changes disk.img:/home/notes.txt
  butterfs subvolume history --json disk.img:/home/notes.txt

Snapshots and subvolumes come in the order of their states: a writable subvolume is placed by its last change. Each version is compared with the one before it.")]
pub struct History {
    /// Print JSON, one array.
    #[arg(long)]
    json: bool,
    /// Leave out versions that are equal to the one before.
    #[arg(long)]
    changes: bool,
    /// Subvolume id that the path starts from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// The file: VOLUME:/path.
    place: Place,
}

#[derive(Serialize)]
struct Version {
    subvolume: u64,
    subvolume_path: Option<String>,
    generation: u64,
    time_seconds: i64,
    present: bool,
    /// What is at the path that was asked for: nothing, same, other.
    at_path: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    other_inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    paths: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtime_seconds: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Fact>,
}

fn subvolume_path(subvolumes: &Subvolumes, entry: &HistoryEntry) -> Option<String> {
    match subvolumes.get(entry.subvolume)?.path.as_deref()? {
        b"" => Some("<FS_TREE>".to_owned()),
        path => Some(text(path)),
    }
}

fn fact(subvolumes: &Subvolumes, entry: &HistoryEntry) -> Version {
    let file = entry.file.as_ref();
    let (at_path, other_inode) = match entry.at_path {
        AtPath::Nothing => ("nothing", None),
        AtPath::SameFile => ("same", None),
        AtPath::Other(inode) => ("other", Some(inode.get())),
    };
    Version {
        subvolume: entry.subvolume.get(),
        subvolume_path: subvolume_path(subvolumes, entry),
        generation: entry.generation.get(),
        time_seconds: entry.time.seconds,
        present: file.is_some(),
        at_path,
        other_inode,
        paths: file.map(|file| file.paths.iter().map(|path| text(path)).collect()),
        size: file.map(|file| file.size),
        mtime_seconds: file.map(|file| file.modified.seconds),
        change: file.and_then(|file| file.change.as_ref()).map(file_fact),
    }
}

impl OnVolume for History {
    const NAME: &'static str = "subvolume history";
    const TAG: &'static str = "History";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(self.subvolid)?;
        let subvolumes = volume.subvolumes()?;
        let mut entries = volume
            .history(self.place.path.as_bytes())
            .context(self.place.volume.display())?;
        if self.changes {
            let mut was_there = false;
            entries.retain(|entry| {
                let is_there = entry.file.is_some();
                let changed = entry
                    .file
                    .as_ref()
                    .is_some_and(|file| file.change.is_some());
                let keep = changed || is_there != was_there;
                was_there = is_there;
                keep
            });
        }
        if self.json {
            let facts: Vec<_> = entries
                .iter()
                .map(|entry| fact(&subvolumes, entry))
                .collect();
            return json(&facts);
        }
        let mut is_first = true;
        for entry in &entries {
            let words = match &entry.file {
                None => "not there".to_owned(),
                Some(file) => {
                    let words = what(file, is_first);
                    is_first = false;
                    words
                }
            };
            let other = match entry.at_path {
                AtPath::Other(inode) => format!("; the path is another file's (inode {inode})"),
                AtPath::Nothing | AtPath::SameFile => String::new(),
            };
            say!(
                "{:>8} {}  {}: {words}{other}",
                entry.generation.get(),
                moment(entry.time.seconds),
                subvolume_path(&subvolumes, entry).unwrap_or_else(|| "?".to_owned())
            );
        }
        Ok(())
    }
}

/// What happened to a version, in words.
fn what(file: &FileVersion, is_first: bool) -> String {
    let paths: Vec<String> = file.paths.iter().map(|path| text(path)).collect();
    let paths = paths.join(", ");
    if is_first {
        return format!("{paths}, {} bytes", file.size);
    }
    let Some(change) = &file.change else {
        return "unchanged".to_owned();
    };
    let mut words = Vec::new();
    if !change.names_added.is_empty() || !change.names_removed.is_empty() {
        words.push(format!("now named {paths}"));
    }
    words.push(in_words(change));
    words.retain(|word| !word.is_empty());
    words.join("; ")
}
