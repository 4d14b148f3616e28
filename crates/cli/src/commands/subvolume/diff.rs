//! `butterfs subvolume diff`.

use super::shown::text;
use super::site::subvolume_at;
use crate::fail::{Done, Failure, fail};
use crate::output;
use crate::place::Place;
use crate::service::{OnKernel, OnVolume};
use butterfs::diff::{Compared, Difference, DifferenceKind, Field, FileDifference};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Show what changed between two subvolumes: files added, removed, renamed,
/// their content by range, their metadata. Only what changed is read, and no
/// file data.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs subvolume diff disk.img:/snapshots/monday disk.img:/snapshots/tuesday
  butterfs subvolume diff --json disk.img:/old disk.img:/new | jq -r '.[] | select(.kind == \"added\").paths[]'

Lines begin with A (added), D (removed), R (renamed), L (one more name), U (one name less) or M (content or metadata changed). What was written again with the same bytes counts as changed. Access times and times of change (ctime) are left out.")]
pub struct Diff {
    /// Print JSON, one array.
    #[arg(long)]
    json: bool,
    /// Ignore entries that differ only in their modification time.
    #[arg(long)]
    ignore_times: bool,
    /// Subvolume id that paths start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// The old subvolume: VOLUME:/path.
    old: Place,
    /// The new subvolume, in the same volume: VOLUME:/path.
    new: Place,
}

#[derive(Serialize)]
struct RangeFact {
    offset: u64,
    length: u64,
}

/// A difference as JSON.
#[derive(Serialize)]
pub(super) struct Fact {
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    inode: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subvolume: Option<u64>,
    paths: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_old: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    size_new: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names_removed: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    names_added: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    content: Vec<RangeFact>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    fields: Vec<String>,
}

const fn kind_name(kind: DifferenceKind) -> &'static str {
    match kind {
        DifferenceKind::Added => "added",
        DifferenceKind::Removed => "removed",
        DifferenceKind::Changed => "changed",
    }
}

fn field_name(field: &Field) -> String {
    match field {
        Field::Mode => "mode".to_owned(),
        Field::Uid => "uid".to_owned(),
        Field::Gid => "gid".to_owned(),
        Field::Device => "device".to_owned(),
        Field::Flags => "flags".to_owned(),
        Field::Modified => "mtime".to_owned(),
        Field::Verity => "verity".to_owned(),
        Field::Xattr(name) => format!("xattr {}", text(name)),
    }
}

fn texts(paths: &[Vec<u8>]) -> Vec<String> {
    paths.iter().map(|path| shown(path)).collect()
}

/// A path in a subvolume; its root is `.`.
fn bytes(path: &[u8]) -> &[u8] {
    match path {
        b"" => b".",
        path => path,
    }
}

/// The same for JSON.
fn shown(path: &[u8]) -> String {
    text(bytes(path))
}

/// A file's difference as JSON.
pub(super) fn file_fact(file: &FileDifference) -> Fact {
    let content = file.content.iter().map(|range| RangeFact {
        offset: range.start,
        length: range.end.saturating_sub(range.start),
    });
    Fact {
        kind: kind_name(file.kind),
        inode: Some(file.inode.get()),
        subvolume: None,
        paths: texts(&file.paths),
        mode: Some(format!("{:o}", file.mode)),
        size_old: (file.kind != DifferenceKind::Added).then_some(file.size_old),
        size_new: (file.kind != DifferenceKind::Removed).then_some(file.size_new),
        names_removed: texts(&file.names_removed),
        names_added: texts(&file.names_added),
        content: content.collect(),
        fields: file.fields.iter().map(field_name).collect(),
    }
}

fn fact(difference: &Difference) -> Fact {
    match difference {
        Difference::File(file) => file_fact(file),
        Difference::Subvolume { kind, path, id } => Fact {
            kind: kind_name(*kind),
            inode: None,
            subvolume: Some(id.get()),
            paths: vec![shown(path)],
            mode: None,
            size_old: None,
            size_new: None,
            names_removed: Vec::new(),
            names_added: Vec::new(),
            content: Vec::new(),
            fields: Vec::new(),
        },
    }
}

/// What changed besides names, in words; empty if nothing did.
pub(super) fn in_words(file: &FileDifference) -> String {
    /// Ranges that are spelled out.
    const SPELLED: usize = 8;
    let mut words = Vec::new();
    if file.size_old != file.size_new && !file.content.is_empty() {
        words.push(format!("size {} to {}", file.size_old, file.size_new));
    }
    if !file.content.is_empty() {
        let ranges = file.content.iter().take(SPELLED);
        let ranges: Vec<String> = ranges
            .map(|range| format!("{}-{}", range.start, range.end))
            .collect();
        let more = match file.content.len().saturating_sub(SPELLED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        words.push(format!("bytes {}{more}", ranges.join(",")));
    }
    words.extend(file.fields.iter().map(field_name));
    words.join("; ")
}

impl OnVolume for Diff {
    const NAME: &'static str = "subvolume diff";
    const TAG: &'static str = "Diff";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.old)?;
        visit(&mut self.new)
    }

    fn run_here(self) -> Done {
        if self.old.volume != self.new.volume {
            return fail("both subvolumes must be in one volume");
        }
        let volume = self.old.open_read_only(self.subvolid)?;
        let compared = Compared {
            old: subvolume_at(&volume, &self.old)?,
            new: subvolume_at(&volume, &self.new)?,
        };
        // Item by item, because a difference may be larger than memory.
        let mut lead = "[\n  ";
        volume.diff::<Failure>(compared, &mut |difference| {
            if self.is_left_out(&difference) {
                return Ok(());
            }
            if self.json {
                output::print(format_args!(
                    "{lead}{}",
                    serde_json::to_string(&fact(&difference))?
                ))?;
                lead = ",\n  ";
            } else {
                print(&difference)?;
            }
            Ok(())
        })?;
        if self.json {
            let end = if lead.starts_with('[') {
                "[]\n"
            } else {
                "\n]\n"
            };
            output::print(format_args!("{end}"))?;
        }
        Ok(())
    }
}

impl Diff {
    fn is_left_out(&self, difference: &Difference) -> bool {
        let Difference::File(file) = difference else {
            return false;
        };
        self.ignore_times
            && file.kind == DifferenceKind::Changed
            && file.content.is_empty()
            && file.names_added.is_empty()
            && file.names_removed.is_empty()
            && file.fields.iter().all(|field| *field == Field::Modified)
    }
}

fn print(difference: &Difference) -> Done {
    match difference {
        Difference::Subvolume { kind, path, id } => {
            let letter = if *kind == DifferenceKind::Added {
                'A'
            } else {
                'D'
            };
            let (lead, end) = (format!("{letter} "), format!(" (subvolume {id})"));
            output::line(&[lead.as_bytes(), bytes(path), end.as_bytes()])?;
        }
        Difference::File(file) => print_file(file)?,
    }
    Ok(())
}

fn print_file(file: &FileDifference) -> Done {
    let letter = match file.kind {
        DifferenceKind::Added => b"A ",
        DifferenceKind::Removed => b"D ",
        DifferenceKind::Changed => return print_changed(file),
    };
    for path in &file.paths {
        output::line(&[letter, bytes(path)])?;
    }
    Ok(())
}

fn print_changed(file: &FileDifference) -> Done {
    let mut removed = file.names_removed.iter();
    let mut added = file.names_added.iter();
    loop {
        match (removed.next(), added.next()) {
            (Some(old), Some(new)) => {
                output::line(&[b"R ", bytes(old), b" -> ", bytes(new)])?;
            }
            (Some(old), None) => output::line(&[b"U ", bytes(old)])?,
            (None, Some(new)) => output::line(&[b"L ", bytes(new)])?,
            (None, None) => break,
        }
    }
    let words = in_words(file);
    if let (Some(path), false) = (file.paths.first(), words.is_empty()) {
        let words = format!(" ({words})");
        output::line(&[b"M ", bytes(path), words.as_bytes()])?;
    }
    Ok(())
}
