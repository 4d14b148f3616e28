//! `butterfs qgroup show`.

use super::site::{group_at, without_path};
use crate::commands::quota::QuotaSite;
use crate::commands::quota::mounted::Mounted;
use crate::commands::subvolume::site::said;
use crate::fail::{Context, Done, Failure, fail};
use crate::place::Place;
use crate::place::json;
use crate::tools_json::{self, Format};
use crate::units::Units;
use butterfs::quota::{GroupId, QgroupLimitFlags, QgroupStatusFlags, QuotaGroup};
use clap::Args;
use serde::Serialize;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;

/// Options of the listing, as btrfs-progs has them.
#[derive(Args, Debug)]
pub struct Show {
    /// Show the groups that each is in.
    #[arg(short)]
    parents: bool,
    /// Show the groups that are in each.
    #[arg(short)]
    children: bool,
    /// Show limits of all bytes.
    #[arg(short)]
    referenced: bool,
    /// Show limits of exclusive bytes.
    #[arg(short)]
    exclusive: bool,
    /// Only the groups that a subvolume is in, directly or not: its path is
    /// named instead of the volume.
    #[arg(short = 'F', conflicts_with = "own")]
    around: bool,
    /// Only the group of a subvolume, whose path is named instead of the volume.
    #[arg(short = 'f')]
    own: bool,
    /// Order: qgroupid, rfer, excl, max_rfer, max_excl or path, several with
    /// commas between them; - before one turns it round.
    #[arg(long, value_name = "ORDER", value_delimiter = ',', value_parser = Sorting::parse,
          allow_hyphen_values = true)]
    sort: Vec<Sorting>,
    /// Commit what waits on a mount before the numbers are read.
    #[arg(long)]
    sync: bool,
    #[command(flatten)]
    units: Units,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The form of output: text, or JSON as the Btrfs tools have it.
    #[arg(long, value_name = "TYPE", conflicts_with = "json")]
    format: Option<Format>,
    /// File or block device that holds the volume, or its mountpoint.
    volume: OsString,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sorting {
    by: SortedBy,
    is_descending: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SortedBy {
    Id,
    Referenced,
    Exclusive,
    MaxReferenced,
    MaxExclusive,
    Path,
}

impl Sorting {
    fn parse(word: &str) -> Result<Self, String> {
        let is_descending = word.starts_with('-');
        let by = match word.trim_start_matches(['+', '-']) {
            "qgroupid" => SortedBy::Id,
            "rfer" => SortedBy::Referenced,
            "excl" => SortedBy::Exclusive,
            "max_rfer" => SortedBy::MaxReferenced,
            "max_excl" => SortedBy::MaxExclusive,
            "path" => SortedBy::Path,
            _ => return Err("must be qgroupid, rfer, excl, max_rfer, max_excl or path".to_owned()),
        };
        Ok(Self { by, is_descending })
    }

    /// Orders two rows, each with its position in the list of all rows by ID.
    fn compare(self, one: (usize, &Row), other: (usize, &Row)) -> Ordering {
        let key = |(at, row): (usize, &Row)| match self.by {
            SortedBy::Id => at as u64,
            SortedBy::Referenced => row.referenced,
            SortedBy::Exclusive => row.exclusive,
            // Without a limit, the Btrfs tools sort by 0.
            SortedBy::MaxReferenced => row.max_referenced.unwrap_or(0),
            SortedBy::MaxExclusive => row.max_exclusive.unwrap_or(0),
            // Paths are compared below.
            SortedBy::Path => 0,
        };
        let order = match self.by {
            SortedBy::Path => one.1.path.cmp(&other.1.path),
            _ => key(one).cmp(&key(other)),
        };
        match self.is_descending {
            true => order.reverse(),
            false => order,
        }
    }
}

#[derive(Serialize)]
struct Row {
    qgroupid: String,
    path: Option<String>,
    referenced: u64,
    exclusive: u64,
    max_referenced: Option<u64>,
    max_exclusive: Option<u64>,
    parents: Vec<String>,
    children: Vec<String>,
}

/// A limit as the Btrfs tools have it in JSON: a number or `none`.
#[derive(Serialize)]
#[serde(untagged)]
enum ToolsLimit {
    Bytes(u64),
    None(&'static str),
}

impl From<Option<u64>> for ToolsLimit {
    fn from(max: Option<u64>) -> Self {
        max.map_or(Self::None("none"), Self::Bytes)
    }
}

/// A group, as the Btrfs tools have it in JSON.
#[derive(Serialize)]
struct ToolsRow<'r> {
    qgroupid: &'r str,
    referenced: u64,
    max_referenced: ToolsLimit,
    exclusive: u64,
    max_exclusive: ToolsLimit,
    path: &'r str,
    parents: &'r [String],
    children: &'r [String],
}

impl<'r> From<&'r Row> for ToolsRow<'r> {
    fn from(row: &'r Row) -> Self {
        Self {
            qgroupid: &row.qgroupid,
            referenced: row.referenced,
            max_referenced: row.max_referenced.into(),
            exclusive: row.exclusive,
            max_exclusive: row.max_exclusive.into(),
            path: row.path.as_deref().unwrap_or_default(),
            parents: &row.parents,
            children: &row.children,
        }
    }
}

#[derive(Serialize)]
struct Facts {
    mode: &'static str,
    inconsistent: bool,
    qgroups: Vec<Row>,
}

fn names(groups: &BTreeSet<GroupId>) -> Vec<String> {
    groups.iter().map(GroupId::to_string).collect()
}

const fn mode(is_simple: bool) -> &'static str {
    if is_simple { "squota" } else { "qgroup" }
}

fn row(id: GroupId, group: &QuotaGroup, path: Option<&[u8]>) -> Row {
    let limit = |flag, max| group.limit.flags.contains(flag).then_some(max);
    Row {
        qgroupid: id.to_string(),
        path: path.map(|path| String::from_utf8_lossy(path).into_owned()),
        referenced: group.info.referenced,
        exclusive: group.info.exclusive,
        max_referenced: limit(QgroupLimitFlags::MAX_REFERENCED, group.limit.referenced_max),
        max_exclusive: limit(QgroupLimitFlags::MAX_EXCLUSIVE, group.limit.exclusive_max),
        parents: names(&group.parents),
        children: names(&group.children),
    }
}

/// Groups of a volume that is not mounted; `None` if quotas are off.
fn unmounted(place: &Place) -> Result<Option<Facts>, Failure> {
    let volume = place.open_read_only(None)?;
    let subvolumes = volume.subvolumes()?;
    let path = |id: GroupId| {
        let info = id.tree().and_then(|tree| subvolumes.get(tree));
        info.and_then(|info| info.path.as_deref())
    };
    Ok(volume.quota_state().map(|quotas| Facts {
        mode: mode(quotas.is_simple),
        inconsistent: quotas.is_inconsistent && !quotas.is_simple,
        qgroups: quotas
            .groups
            .iter()
            .map(|(id, group)| row(*id, group, path(*id)))
            .collect(),
    }))
}

/// Groups of a mounted volume; `None` if quotas are off.
fn mounted(site: &Mounted) -> Result<Option<Facts>, Failure> {
    let Some(items) = site.quotas()? else {
        return Ok(None);
    };
    let paths = site.paths()?;
    let path = |id: GroupId| paths.get(&id).map(Vec::as_slice);
    let flags = items.status.map(|status| status.flags).unwrap_or_default();
    let is_simple = flags.contains(QgroupStatusFlags::SIMPLE_MODE);
    let wrong = QgroupStatusFlags::INCONSISTENT | QgroupStatusFlags::RESCAN;
    Ok(Some(Facts {
        mode: mode(is_simple),
        inconsistent: flags.intersects(wrong) && !is_simple,
        qgroups: items
            .groups
            .iter()
            .map(|(id, group)| row(*id, group, path(*id)))
            .collect(),
    }))
}

impl Show {
    /// Runs it.
    pub fn run(self) -> Done {
        if self.sync && Path::new(&self.volume).is_dir() {
            let name = Path::new(&self.volume).display();
            let file = crate::host_file::open(self.volume.as_ref()).context(&name)?;
            butterfs_kernel::sync(file.as_fd()).map_err(|error| said(&name, error))?;
        }
        let of = match self.around || self.own {
            true => Some(group_at(&self.volume)?),
            false => None,
        };
        let facts = match QuotaSite::parse(&without_path(&self.volume)?)? {
            QuotaSite::Unmounted(place) => unmounted(&place)?,
            QuotaSite::Mounted(site) => mounted(&site)?,
        };
        let Some(mut facts) = facts else {
            return fail(format!(
                "{}: quotas are not enabled; `butterfs quota enable` does it",
                self.volume.display()
            ));
        };
        if let Some(group) = of {
            let wanted = self.wanted(&facts.qgroups, group);
            facts.qgroups.retain(|row| wanted.contains(&row.qgroupid));
        }
        facts.qgroups = self.sorted(facts.qgroups);
        if self.json {
            return json(&facts);
        }
        if facts.inconsistent {
            note!("butterfs: the numbers are inconsistent; `butterfs quota rescan` counts anew");
        }
        if self.format == Some(Format::Json) {
            let rows: Vec<_> = facts.qgroups.iter().map(ToolsRow::from).collect();
            return tools_json::print("qgroup-show", &rows);
        }
        self.print(&facts.qgroups)
    }

    /// A group, with all groups that contain it if that is asked for.
    fn wanted(&self, rows: &[Row], group: GroupId) -> BTreeSet<String> {
        let mut wanted = BTreeSet::new();
        let mut waiting = vec![group.to_string()];
        while let Some(group) = waiting.pop() {
            let row = rows.iter().find(|row| row.qgroupid == group);
            if let Some(row) = row.filter(|_| wanted.insert(group) && self.around) {
                waiting.extend(row.parents.iter().cloned());
            }
        }
        wanted
    }

    /// Sorts rows, which come by ascending ID, in the order that is asked for.
    fn sorted(&self, rows: Vec<Row>) -> Vec<Row> {
        let mut rows: Vec<(usize, Row)> = rows.into_iter().enumerate().collect();
        rows.sort_by(|one, other| {
            let mut orders = self
                .sort
                .iter()
                .map(|sorting| sorting.compare((one.0, &one.1), (other.0, &other.1)));
            orders
                .find(|order| order.is_ne())
                .unwrap_or(Ordering::Equal)
        });
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn size(&self, bytes: u64) -> String {
        self.units.size(bytes)
    }

    fn print(&self, rows: &[Row]) -> Done {
        let limit = |max: Option<u64>| max.map_or_else(|| "none".to_owned(), |max| self.size(max));
        let list = |groups: &[String]| match groups {
            [] => "-".to_owned(),
            groups => groups.join(","),
        };
        let columns: Vec<Column> = COLUMNS
            .into_iter()
            .filter(|column| match column {
                Column::MaxReferenced => self.referenced,
                Column::MaxExclusive => self.exclusive,
                Column::Parents => self.parents,
                Column::Children => self.children,
                Column::Group | Column::Referenced | Column::Exclusive => true,
            })
            .collect();
        let cell = |row: &Row, column: Column| match column {
            Column::Group => row.qgroupid.clone(),
            Column::Referenced => self.size(row.referenced),
            Column::Exclusive => self.size(row.exclusive),
            Column::MaxReferenced => limit(row.max_referenced),
            Column::MaxExclusive => limit(row.max_exclusive),
            Column::Parents => list(&row.parents),
            Column::Children => list(&row.children),
        };
        let widths: Vec<usize> = columns
            .iter()
            .map(|column| {
                let cells = rows.iter().map(|row| cell(row, *column).len());
                cells.fold(column.width_min(), usize::max)
            })
            .collect();
        let line = |text: &dyn Fn(Column) -> String, path: &str| -> Done {
            let cells = columns.iter().zip(&widths).map(|(column, width)| {
                let text = text(*column);
                match column.is_number() {
                    true => format!("{text:>width$}"),
                    false => format!("{text:<width$}"),
                }
            });
            say!("{}   {path}", cells.collect::<Vec<_>>().join(" "));
            Ok(())
        };
        line(&|column| column.title().to_owned(), "Path ")?;
        line(&|column| "-".repeat(column.title().len()), "---- ")?;
        for row in rows {
            line(&|column| cell(row, column), &row.shown_path())?;
        }
        Ok(())
    }
}

impl Row {
    /// As btrfs-qgroup(8) shows it.
    fn shown_path(&self) -> String {
        match (&self.path, self.qgroupid.starts_with("0/")) {
            (Some(path), _) if path.is_empty() => "<toplevel>".to_owned(),
            (Some(path), _) => path.clone(),
            (None, true) => "<stale>".to_owned(),
            (None, false) => match self.children.len() {
                1 => "<1 member qgroup>".to_owned(),
                count => format!("<{count} member qgroups>"),
            },
        }
    }
}

/// Columns in their order. The path comes after them.
const COLUMNS: [Column; 7] = [
    Column::Group,
    Column::Referenced,
    Column::Exclusive,
    Column::MaxReferenced,
    Column::MaxExclusive,
    Column::Parents,
    Column::Children,
];

#[derive(Clone, Copy)]
enum Column {
    Group,
    Referenced,
    Exclusive,
    MaxReferenced,
    MaxExclusive,
    Parents,
    Children,
}

impl Column {
    const fn title(self) -> &'static str {
        match self {
            Self::Group => "Qgroupid",
            Self::Referenced => "Referenced",
            Self::Exclusive => "Exclusive",
            Self::MaxReferenced => "Max referenced",
            Self::MaxExclusive => "Max exclusive",
            Self::Parents => "Parent",
            Self::Children => "Child",
        }
    }

    const fn width_min(self) -> usize {
        match self {
            Self::Referenced | Self::Exclusive => 12,
            Self::MaxReferenced => 15,
            Self::MaxExclusive => 14,
            Self::Group => 9,
            Self::Parents => 8,
            Self::Children => 5,
        }
    }

    /// Whether the column is aligned to the right, as numbers are.
    const fn is_number(self) -> bool {
        !matches!(self, Self::Group | Self::Parents | Self::Children)
    }
}
