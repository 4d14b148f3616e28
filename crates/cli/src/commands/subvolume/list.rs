//! `butterfs subvolume list`.

use super::shown::{Name, moment, uuid};
use crate::fail::Done;
use crate::output;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use butterfs::TreeId;
use butterfs::list::{SubvolumeInfo, Subvolumes};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;

/// List subvolumes and snapshots, by id unless --sort says otherwise.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(after_help = "Examples:
  butterfs subvolume list disk.img
  butterfs subvolume list --tree disk.img
  butterfs subvolume list -s -u --sort=-ogen disk.img
  butterfs subvolume list --json disk.img | jq '.[] | select(.read_only)'")]
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a switch of btrfs-progs"
)]
pub struct List {
    /// Only those that lie directly in the subvolume of the path.
    #[arg(short = 'o')]
    only_below: bool,
    /// Mark with <FS_TREE>/ those that do not lie directly in the subvolume
    /// of the path.
    #[arg(short = 'a')]
    all: bool,
    /// Show the parent's id.
    #[arg(short = 'p')]
    parent: bool,
    /// Show the generation of creation.
    #[arg(short = 'c')]
    ogen: bool,
    /// Show the generation; it is shown anyway.
    #[arg(short = 'g')]
    generation: bool,
    /// Show the UUID.
    #[arg(short = 'u')]
    uuid: bool,
    /// Show the UUID of what it is a snapshot of.
    #[arg(short = 'q')]
    parent_uuid: bool,
    /// Show the UUID of what was received.
    #[arg(short = 'R')]
    received_uuid: bool,
    /// Only snapshots, with their time of creation.
    #[arg(short = 's')]
    snapshots: bool,
    /// Only those that cannot be changed.
    #[arg(short = 'r')]
    read_only: bool,
    /// Only those that were deleted and are not cleaned yet.
    #[arg(short = 'd')]
    deleted: bool,
    /// Print a table.
    #[arg(short = 't', conflicts_with_all = ["json", "tree"])]
    table: bool,
    /// Only of this generation; +N: N and later, -N: N and earlier.
    #[arg(short = 'G', value_name = "[+-]N", allow_hyphen_values = true)]
    with_generation: Option<Bound>,
    /// Only created in this generation; +N: N and later, -N: N and earlier.
    #[arg(short = 'C', value_name = "[+-]N", allow_hyphen_values = true)]
    with_ogen: Option<Bound>,
    /// Sort by gen, ogen, rootid, path; a leading minus reverses the order.
    #[arg(
        long,
        value_name = "FIELDS",
        value_delimiter = ',',
        allow_hyphen_values = true
    )]
    sort: Vec<SortBy>,
    /// Print JSON, one array.
    #[arg(long, conflicts_with = "tree")]
    json: bool,
    /// Draw what lies in what.
    #[arg(long)]
    tree: bool,
    /// Subvolume id that the path starts from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    /// VOLUME or VOLUME:/path.
    place: Place,
}

/// A limit on generations.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Bound {
    Exactly(u64),
    AtLeast(u64),
    AtMost(u64),
}

impl std::str::FromStr for Bound {
    type Err = std::num::ParseIntError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        Ok(if let Some(number) = word.strip_prefix('+') {
            Self::AtLeast(number.parse()?)
        } else if let Some(number) = word.strip_prefix('-') {
            Self::AtMost(number.parse()?)
        } else {
            Self::Exactly(word.parse()?)
        })
    }
}

impl Bound {
    const fn holds(self, value: u64) -> bool {
        match self {
            Self::Exactly(number) => value == number,
            Self::AtLeast(number) => value >= number,
            Self::AtMost(number) => value <= number,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Field {
    Generation,
    Ogen,
    Id,
    Path,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
enum Order {
    Ascending,
    Descending,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
struct SortBy(Field, Order);

impl std::str::FromStr for SortBy {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let (order, name) = match word.strip_prefix('-') {
            Some(name) => (Order::Descending, name),
            None => (Order::Ascending, word.strip_prefix('+').unwrap_or(word)),
        };
        let field = match name {
            "gen" => Field::Generation,
            "ogen" => Field::Ogen,
            "rootid" => Field::Id,
            "path" => Field::Path,
            _ => return Err(format!("`{name}` is none of gen, ogen, rootid, path")),
        };
        Ok(Self(field, order))
    }
}

impl SortBy {
    fn compare(self, one: &Row, other: &Row) -> Ordering {
        let ordering = match self.0 {
            Field::Generation => one.generation.cmp(&other.generation),
            Field::Ogen => one.ogen.cmp(&other.ogen),
            Field::Id => one.id.cmp(&other.id),
            Field::Path => one.shown.cmp(&other.shown),
        };
        match self.1 {
            Order::Ascending => ordering,
            Order::Descending => ordering.reverse(),
        }
    }
}

/// A subvolume as it is shown.
#[derive(Serialize)]
struct Row {
    id: u64,
    generation: u64,
    ogen: u64,
    parent: u64,
    path: Option<Name>,
    uuid: Option<String>,
    parent_uuid: Option<String>,
    received_uuid: Option<String>,
    read_only: bool,
    deleted: bool,
    otime_seconds: i64,
    /// The path as it is printed.
    #[serde(skip)]
    shown: Vec<u8>,
}

impl Row {
    fn of(info: &SubvolumeInfo) -> Self {
        let item = &info.item;
        Self {
            id: info.id.get(),
            generation: item.generation.get(),
            ogen: item.otransid.get(),
            parent: info.parent.as_ref().map_or(0, |parent| parent.tree.get()),
            path: info.path.as_deref().map(Name::of),
            uuid: uuid(item.uuid),
            parent_uuid: uuid(item.parent_uuid),
            received_uuid: uuid(item.received_uuid),
            read_only: info.is_read_only(),
            deleted: info.is_being_deleted(),
            otime_seconds: item.otime.seconds,
            shown: Vec::new(),
        }
    }
}

impl OnVolume for List {
    const NAME: &'static str = "subvolume list";
    const TAG: &'static str = "List";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn run_here(self) -> Done {
        let volume = self.place.open_read_only(self.subvolid)?;
        let subvolumes = volume.subvolumes()?;
        let here = volume
            .resolve(&[self.place.path.as_bytes(), b"/."].concat())?
            .tree;
        if self.tree {
            return tree(&subvolumes, "");
        }
        let wanted = subvolumes.iter().filter(|info| self.shows(info, here));
        let mut rows: Vec<Row> = wanted.map(Row::of).collect();
        let above = subvolumes.get(here).and_then(|info| info.path.as_deref());
        let above = above.filter(|path| !path.is_empty());
        for row in &mut rows {
            row.shown = self.path(row, here, above);
        }
        rows.sort_by(|one, other| {
            let each = self.sort.iter().map(|by| by.compare(one, other));
            each.fold(Ordering::Equal, Ordering::then)
        });
        if self.json {
            return json(&rows);
        }
        if self.table {
            self.heading()?;
        }
        for row in &rows {
            if self.table {
                self.table_row(row)?;
            } else {
                self.line(row)?;
            }
        }
        Ok(())
    }
}

impl List {
    fn shows(&self, info: &SubvolumeInfo, here: TreeId) -> bool {
        let item = &info.item;
        let holds = |bound: Option<Bound>, value| bound.is_none_or(|bound| bound.holds(value));
        let below = info
            .parent
            .as_ref()
            .is_some_and(|parent| parent.tree == here);
        info.id != TreeId::FS
            && info.is_being_deleted() == self.deleted
            && (!self.only_below || below)
            && (!self.snapshots || info.is_snapshot())
            && (!self.read_only || info.is_read_only())
            && holds(self.with_generation, item.generation.get())
            && holds(self.with_ogen, item.otransid.get())
    }

    /// The path as btrfs-progs show it: what lies below the subvolume of the
    /// given path is relative to it.
    fn path(&self, row: &Row, here: TreeId, above: Option<&[u8]>) -> Vec<u8> {
        if row.deleted {
            return b"DELETED".to_vec();
        }
        let Some(Name(path)) = &row.path else {
            return b"?".to_vec();
        };
        if self.all && row.parent != here.get() {
            return [b"<FS_TREE>/", &path[..]].concat();
        }
        let relative = above
            .filter(|_| !self.all && !self.only_below)
            .and_then(|above| path.strip_prefix(above)?.strip_prefix(b"/"));
        relative.unwrap_or(path).to_vec()
    }

    const fn shows_ogen(&self) -> bool {
        self.ogen || self.snapshots || self.with_ogen.is_some()
    }

    /// Columns in their order, without the path: name and value.
    fn columns(&self, row: &Row) -> Vec<(&'static str, String)> {
        let or_dash = |uuid: &Option<String>| format!("{:<36}", uuid.as_deref().unwrap_or("-"));
        let mut columns = vec![
            ("ID", row.id.to_string()),
            ("gen", row.generation.to_string()),
        ];
        if self.shows_ogen() {
            columns.push(("cgen", row.ogen.to_string()));
        }
        if self.parent {
            columns.push(("parent", row.parent.to_string()));
        }
        columns.push(("top level", row.parent.to_string()));
        if self.snapshots {
            columns.push(("otime", moment(row.otime_seconds)));
        }
        if self.parent_uuid {
            columns.push(("parent_uuid", or_dash(&row.parent_uuid)));
        }
        if self.received_uuid {
            columns.push(("received_uuid", or_dash(&row.received_uuid)));
        }
        if self.uuid {
            columns.push(("uuid", or_dash(&row.uuid)));
        }
        columns
    }

    fn line(&self, row: &Row) -> Done {
        let mut line = String::new();
        for (name, value) in self.columns(row) {
            let _ = write!(line, "{name} {value} ");
        }
        output::line(&[line.as_bytes(), b"path ", &row.shown])
    }

    fn heading(&self) -> Done {
        // Names do not depend on the row.
        let blank = Row {
            id: 0,
            generation: 0,
            ogen: 0,
            parent: 0,
            path: None,
            uuid: None,
            parent_uuid: None,
            received_uuid: None,
            read_only: false,
            deleted: false,
            otime_seconds: 0,
            shown: Vec::new(),
        };
        let (mut names, mut rules) = (String::new(), String::new());
        let columns = self.columns(&blank);
        for name in columns.iter().map(|(name, _)| *name).chain(["path"]) {
            let _ = write!(names, "{name}\t");
            let _ = write!(rules, "{}\t", "-".repeat(name.len()));
        }
        say!("{names}\n{rules}");
        Ok(())
    }

    fn table_row(&self, row: &Row) -> Done {
        let mut line = String::new();
        for (name, value) in self.columns(row) {
            // A name wider than a tab stop takes two.
            let tabs = if name == "top level" { "\t\t" } else { "\t" };
            let _ = write!(line, "{value}{tabs}");
        }
        output::line(&[line.as_bytes(), &row.shown])
    }
}

/// Draws the subvolumes below one another, with the subvolumes of which they
/// are snapshots. `margin` precedes each line.
pub fn tree(subvolumes: &Subvolumes, margin: &str) -> Done {
    say!("{margin}<FS_TREE> (5)");
    // Each subvolume has one parent, but on a hostile volume they could form a
    // loop. Only what can be reached from the top level is drawn.
    let mut waiting: Vec<(&SubvolumeInfo, String)> = Vec::new();
    push_children(subvolumes, TreeId::FS, margin, &mut waiting);
    while let Some((info, lead)) = waiting.pop() {
        output::line(&[lead.as_bytes(), &label(subvolumes, info)])?;
        let continued = lead.replace("├── ", "│   ").replace("└── ", "    ");
        push_children(subvolumes, info.id, &continued, &mut waiting);
    }
    Ok(())
}

fn push_children<'s>(
    subvolumes: &'s Subvolumes,
    parent: TreeId,
    lead: &str,
    waiting: &mut Vec<(&'s SubvolumeInfo, String)>,
) {
    let mut children: Vec<_> = subvolumes.children(parent).collect();
    children.sort_by(|one, other| one.path.cmp(&other.path));
    for (at, info) in children.into_iter().rev().enumerate() {
        let branch = if at == 0 { "└── " } else { "├── " };
        waiting.push((info, format!("{lead}{branch}")));
    }
}

fn label(subvolumes: &Subvolumes, info: &SubvolumeInfo) -> Vec<u8> {
    let above = info
        .parent
        .as_ref()
        .and_then(|parent| subvolumes.get(parent.tree));
    let above = above
        .and_then(|above| above.path.clone())
        .unwrap_or_default();
    let path = info.path.clone().unwrap_or_default();
    let relative = path.strip_prefix(&above[..]).unwrap_or(&path);
    let relative = relative.strip_prefix(b"/").unwrap_or(relative);
    let mut label = [relative, format!(" ({})", info.id).as_bytes()].concat();
    if info.is_read_only() {
        label.extend(b" read-only");
    }
    if info.is_snapshot() {
        let source = subvolumes.by_uuid(info.item.parent_uuid);
        let source = source.and_then(|source| source.path.as_deref());
        let source = match source {
            Some(b"") => b"<FS_TREE>",
            Some(path) => path,
            None => b"a subvolume that is gone",
        };
        label.extend(b" snapshot of ");
        label.extend(source);
    }
    label
}
