//! `butterfs undelete`: files and directories that were deleted, and older
//! versions of files.

mod browse;

use crate::commands::find::like;
use crate::dates::date;
use crate::fail::{Context, Done, Failure, fail};
use crate::patient::{PatientArguments, Showing};
use crate::place::json;
use crate::sizes;
use butterfs_rescue::{
    Confidence, Deleted, DeletedKind, DirectoryTarget, Patient, ScanScope, UndeleteOptions,
    Version, bring_back, undelete,
};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

/// Finds files and directories that were deleted, and older versions of files,
/// and brings them back into a directory. Never writes to the volume.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs undelete disk.img                                what can be found, as a tree
  butterfs undelete --name '*.odt' --days 7 disk.img
  butterfs undelete --versions --path '/home/ann/*' disk.img
  butterfs undelete --name thesis.tex --to /mnt/saved disk.img
  butterfs undelete --interactive --to /mnt/saved disk.img  look around, and choose

A directory that matches --name or --path stands for all that was deleted below it.

Each file has a confidence: `certain` if all bytes match checksums of its time, `likely` if its space is free but no checksums are left, `partly` if some of it is overwritten or reads as zeros, as after a discard (TRIM), `gone` if all of it is. Unmount the volume as soon as you miss a file: what is written since may lie on it.")]
pub struct Undelete {
    /// The file's name matches: * any text, ? any byte, [a-z] one of these.
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Its path from the subvolume's root matches.
    #[arg(long, value_name = "PATTERN")]
    path: Option<String>,
    /// Its content changed in the last days.
    #[arg(long, value_name = "N")]
    days: Option<u32>,
    /// At least this many bytes.
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    larger: Option<u64>,
    /// At most this many bytes.
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    smaller: Option<u64>,
    /// Older versions of files too.
    #[arg(long)]
    versions: bool,
    /// Only the subvolume with this number.
    #[arg(long, value_name = "ID")]
    subvolume: Option<u64>,
    /// At least this confidence.
    #[arg(long, value_enum, default_value = "gone", hide_default_value = true)]
    confidence: Least,
    /// Read all of the devices, not only the parts that hold tree nodes.
    #[arg(long)]
    full: bool,
    /// Bring them back into this directory.
    #[arg(long, value_name = "DIRECTORY")]
    to: Option<PathBuf>,
    /// Look around in what was found, and choose what comes back.
    #[arg(short, long, requires = "to", conflicts_with = "json")]
    interactive: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patient: PatientArguments,
    /// All devices of the volume.
    #[arg(required = true)]
    volumes: Vec<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Least {
    Gone,
    Partly,
    Likely,
    Certain,
}

impl Least {
    const fn confidence(self) -> Confidence {
        match self {
            Self::Gone => Confidence::Gone,
            Self::Partly => Confidence::Partly,
            Self::Likely => Confidence::Likely,
            Self::Certain => Confidence::Certain,
        }
    }
}

#[derive(Serialize)]
struct FileFact {
    subvolume: u64,
    inode: u64,
    generation: u64,
    path: String,
    kind: &'static str,
    version: &'static str,
    size: u64,
    changed: i64,
    confidence: &'static str,
    overwritten: u64,
    unverified: u64,
    zeros: u64,
}

impl Undelete {
    /// Runs it.
    pub fn run(&self) -> Done {
        let mut patient = self.patient.open(&self.volumes)?;
        let showing = Showing::new()?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let since = self.days.map_or(i64::MIN, |days| {
            now.saturating_sub(i64::from(days) * 86_400)
        });
        let wanted = |path: &[u8]| {
            let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
            let is_like = |pattern: &Option<String>, text: &[u8]| {
                pattern
                    .as_ref()
                    .is_none_or(|pattern| like(pattern.as_bytes(), text))
            };
            is_like(&self.name, name) && is_like(&self.path, path)
        };
        let options = UndeleteOptions {
            scope: match self.full {
                true => ScanScope::Everything,
                false => ScanScope::Nodes,
            },
            versions: self.versions,
            subvolume: self.subvolume,
            wanted: Some(&wanted),
            size: (self.larger.unwrap_or(0), self.smaller.unwrap_or(u64::MAX)),
            changed: (since, i64::MAX),
        };
        let found = undelete(&mut patient, &options, &showing);
        let mut found = found.map_err(|error| showing.failed(error))?;
        showing.end();
        found.retain(|file| file.confidence >= self.confidence.confidence());
        found.sort_by(|a, b| {
            let key = |of: &Deleted| (of.subvolume, of.path.clone(), of.generation);
            key(a).cmp(&key(b))
        });
        if self.interactive {
            return browse::browse(&found, &mut |chosen| {
                self.bring_back(&mut patient, chosen, &showing)
            });
        }
        if self.json {
            json(&found.iter().map(fact).collect::<Vec<_>>())?;
        } else {
            tree(&found)?;
        }
        self.bring_back(&mut patient, &found, &showing)
    }

    fn bring_back(&self, patient: &mut Patient, found: &[Deleted], showing: &Showing) -> Done {
        let Some(to) = &self.to else {
            return Ok(());
        };
        let mut target = DirectoryTarget::new(to).context(to.display())?;
        let mut refused = 0_usize;
        let written = bring_back(patient, found, &mut target, showing, &mut |file, error| {
            refused += 1;
            note!("{}: {error}", path_of(file));
        });
        let written = written.map_err(|error| -> Failure { showing.failed(error) })?;
        let directories = match written.directories {
            0 => String::new(),
            count => format!(" and {count} directories"),
        };
        note!(
            "{} files{directories} are in {}",
            written.files,
            to.display()
        );
        match refused {
            0 => Ok(()),
            count => fail(format!("{count} files could not be written")),
        }
    }
}

fn path_of(file: &Deleted) -> String {
    let path = [b"/", &file.path.join(&b'/')[..]].concat();
    String::from_utf8_lossy(&path).into_owned()
}

fn fact(of: &Deleted) -> FileFact {
    FileFact {
        subvolume: of.subvolume.get(),
        inode: of.inode.get(),
        generation: of.generation.get(),
        path: path_of(of),
        kind: of.kind.name(),
        version: match of.version {
            Version::Deleted => "deleted",
            Version::Older => "older",
        },
        size: of.size,
        changed: of.mtime.seconds,
        confidence: of.confidence.name(),
        overwritten: of.overwritten,
        unverified: of.unverified,
        zeros: of.zeros,
    }
}

/// Prints files below their directories.
fn tree(found: &[Deleted]) -> Done {
    let mut last: Option<(u64, &[Vec<u8>])> = None;
    for file in found {
        let subvolume = file.subvolume.get();
        let (name, parents) = match file.path.split_last() {
            Some((name, parents)) => (String::from_utf8_lossy(name).into_owned(), parents),
            None => (String::new(), &[][..]),
        };
        if last.map(|(tree, _)| tree) != Some(subvolume) {
            say!("subvolume {subvolume}:");
            last = Some((subvolume, &[]));
        }
        let shown = last.map_or(&[][..], |(_, shown)| shown);
        let common = shown
            .iter()
            .zip(parents)
            .take_while(|(a, b)| a == b)
            .count();
        for (depth, parent) in parents.iter().enumerate().skip(common) {
            say!(
                "{}{}/",
                "  ".repeat(depth + 1),
                String::from_utf8_lossy(parent)
            );
        }
        last = Some((subvolume, parents));
        let version = match file.version {
            Version::Deleted => String::new(),
            Version::Older => format!(", as of generation {}", file.generation),
        };
        let lost = match (file.overwritten, file.zeros) {
            (0, 0) => String::new(),
            (lost, 0) => format!(", {lost} bytes overwritten"),
            (0, zeros) => format!(", {zeros} bytes read as zeros (discarded?)"),
            (lost, zeros) => format!(", {lost} bytes overwritten, {zeros} read as zeros"),
        };
        let what = match file.kind {
            DeletedKind::Directory => {
                // What was deleted in it follows.
                last = Some((subvolume, &file.path));
                say!("{}{name}/", "  ".repeat(parents.len() + 1));
                continue;
            }
            DeletedKind::File => format!("{} bytes", file.size),
            kind => kind.name().to_owned(),
        };
        say!(
            "{}{name}  {what}, changed {}{version}: {}{lost}",
            "  ".repeat(parents.len() + 1),
            date(file.mtime.seconds),
            file.confidence.name()
        );
    }
    if found.is_empty() {
        say!("nothing was found; --full reads all of the devices");
    }
    Ok(())
}
