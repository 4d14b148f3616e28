//! `butterfs qgroup show`.

use crate::commands::quota::unmounted;
use crate::fail::{Done, fail};
use crate::place::json;
use crate::sizes::human;
use butterfs::list::Subvolumes;
use butterfs::quota::{GroupId, QgroupLimitFlags, QuotaGroup};
use clap::Args;
use serde::Serialize;
use std::collections::BTreeSet;
use std::ffi::OsString;

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
    /// Print bytes instead of KiB, MiB and so on.
    #[arg(short = 'b', long)]
    raw: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// The file or device that holds the volume, which is not mounted.
    volume: OsString,
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

#[derive(Serialize)]
struct Facts {
    inconsistent: bool,
    qgroups: Vec<Row>,
}

fn names(groups: &BTreeSet<GroupId>) -> Vec<String> {
    groups.iter().map(GroupId::to_string).collect()
}

fn row(id: GroupId, group: &QuotaGroup, subvolumes: &Subvolumes) -> Row {
    let limit = |flag, max| group.limit.flags.contains(flag).then_some(max);
    let path = id.tree().and_then(|tree| subvolumes.get(tree));
    let path = path.and_then(|info| info.path.as_ref());
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

impl Show {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = unmounted(&self.volume)?.open_read_only(None)?;
        let subvolumes = volume.subvolumes()?;
        let engine = volume.store().read();
        let Some(quotas) = engine.quotas() else {
            return fail(format!(
                "{}: quotas are not enabled; `butterfs quota enable` does it",
                self.volume.display()
            ));
        };
        let facts = Facts {
            inconsistent: quotas.is_inconsistent(),
            qgroups: quotas
                .groups()
                .map(|(id, group)| row(id, group, &subvolumes))
                .collect(),
        };
        if self.json {
            return json(&facts);
        }
        if facts.inconsistent {
            eprintln!(
                "butterfs: the numbers are inconsistent; `butterfs quota rescan` counts anew"
            );
        }
        self.print(&facts.qgroups);
        Ok(())
    }

    fn size(&self, bytes: u64) -> String {
        if self.raw {
            bytes.to_string()
        } else {
            human(bytes)
        }
    }

    fn print(&self, rows: &[Row]) {
        let limit = |max: Option<u64>| max.map_or_else(|| "none".to_owned(), |max| self.size(max));
        let list = |groups: &[String]| match groups {
            [] => "-".to_owned(),
            groups => groups.join(","),
        };
        let mut table = vec![
            self.line(["Qgroupid", "Referenced", "Exclusive"], |column| {
                column.title().to_owned()
            }),
        ];
        for row in rows {
            let numbers = [
                row.qgroupid.as_str(),
                &self.size(row.referenced),
                &self.size(row.exclusive),
            ];
            table.push(self.line(numbers, |column| match column {
                Column::MaxReferenced => limit(row.max_referenced),
                Column::MaxExclusive => limit(row.max_exclusive),
                Column::Parents => list(&row.parents),
                Column::Children => list(&row.children),
                Column::Path => match &row.path {
                    Some(path) if path.is_empty() => "<toplevel>".to_owned(),
                    Some(path) => path.clone(),
                    None => "-".to_owned(),
                },
            }));
        }
        let columns = table.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let cells = table.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for line in &table {
            let mut text = String::new();
            for ((at, cell), width) in line.iter().enumerate().zip(&widths) {
                // Numbers end where their column ends; the path is not padded.
                match at {
                    1 | 2 => text.push_str(&format!("{cell:>width$}  ")),
                    _ if at.saturating_add(1) == columns => text.push_str(cell),
                    _ => text.push_str(&format!("{cell:<width$}  ")),
                }
            }
            say!("{text}");
        }
    }

    fn line(&self, first: [&str; 3], cell: impl Fn(Column) -> String) -> Vec<String> {
        let mut line: Vec<String> = first.iter().map(|&text| text.to_owned()).collect();
        let columns = [
            (self.referenced, Column::MaxReferenced),
            (self.exclusive, Column::MaxExclusive),
            (self.parents, Column::Parents),
            (self.children, Column::Children),
            (true, Column::Path),
        ];
        let wanted = columns.into_iter().filter(|(wanted, _)| *wanted);
        line.extend(wanted.map(|(_, column)| cell(column)));
        line
    }
}

#[derive(Clone, Copy)]
enum Column {
    MaxReferenced,
    MaxExclusive,
    Parents,
    Children,
    Path,
}

impl Column {
    const fn title(self) -> &'static str {
        match self {
            Self::MaxReferenced => "Max referenced",
            Self::MaxExclusive => "Max exclusive",
            Self::Parents => "Parent",
            Self::Children => "Child",
            Self::Path => "Path",
        }
    }
}
