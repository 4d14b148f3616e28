//! `butterfs tree`.

use crate::changes::Start;
use crate::fail::{Context, Done, Failure};
use crate::files_bar::FilesBar;
use crate::ground::Ground;
use crate::left_out::{LeftOut, Undone};
use crate::on_mount::{Ending, OnFiles};
use crate::output;
use crate::place::Place;
use crate::service::Effect;
use crate::sizes;
use butterfs::{InodeId, ListedEntry};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{BufWriter, Write};

/// Draws directories by name, in a volume or on a mount.
#[derive(Args, Debug, Deserialize, Serialize)]
#[command(
    disable_help_flag = true,
    after_help = "Example:
  butterfs tree -L 2 disk.img:/etc"
)]
pub struct Tree {
    /// Levels that are shown.
    #[arg(short = 'L', long, value_name = "N")]
    levels: Option<usize>,
    /// Directories only.
    #[arg(short, long)]
    directories: bool,
    /// With sizes such as 1.5K and 12M.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    #[serde(skip)]
    start: Start,
    /// VOLUME:/path, or a path on a mount; the root without a path.
    place: Place,
}

/// What is still to be drawn.
struct Waiting {
    entry: ListedEntry,
    /// What stands before its name.
    lead: String,
    level: usize,
}

#[derive(Default)]
struct Counts {
    directories: u64,
    files: u64,
}

impl OnFiles for Tree {
    const TAG: &'static str = "Tree";

    fn start(&self) -> &Start {
        &self.start
    }

    fn places(&mut self) -> Vec<(&mut Place, Ending)> {
        vec![(&mut self.place, Ending::Followed)]
    }

    fn effect(&self) -> Effect {
        Effect::Reads
    }

    fn here(self) -> Done {
        let volume = self.start.open(&self.place)?;
        self.on(&Ground::opened(&volume))
    }

    fn on(&self, ground: &Ground<'_>) -> Done {
        let start = ground.followed(&self.place).map_err(Undone::into_failure)?;
        let mut out = BufWriter::new(output::standard());
        writeln!(out, "{}", self.place)?;
        let left_out = LeftOut::new(ground.when_unreadable(), &FilesBar::new(true));
        let mut counts = Counts::default();
        let mut waiting = self.children(ground, start, ("", 1))?;
        // A directory that lies in itself ends here, because no path is deeper.
        const LEVELS_MAX: usize = 4096;
        while let Some(Waiting { entry, lead, level }) = waiting.pop() {
            let of = ground.calls.attributes(entry.target.inode)?;
            write!(out, "{lead}")?;
            if self.human_readable {
                write!(out, "[{:>5}]  ", sizes::short(of.size))?;
            }
            out.write_all(&entry.name)?;
            match of.mode & libc::S_IFMT {
                libc::S_IFLNK => {
                    out.write_all(b" -> ")?;
                    out.write_all(&ground.calls.read_link(of.id)?)?;
                }
                libc::S_IFDIR if entry.target.subvolume => write!(out, "  (subvolume)")?,
                _ => {}
            }
            out.write_all(b"\n")?;
            if !of.is_directory() {
                counts.files += 1;
                continue;
            }
            counts.directories += 1;
            if level < self.levels.unwrap_or(LEVELS_MAX).min(LEVELS_MAX) {
                let below = lead.replace("├── ", "│   ").replace("└── ", "    ");
                let children = self.children(ground, of.id, (&below, level + 1));
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                let children = children.map_err(Undone::Entry);
                waiting.extend(left_out.entry(name, children)?.unwrap_or_default());
            }
        }
        let Counts { directories, files } = counts;
        match self.directories {
            true => writeln!(out, "\n{directories} directories")?,
            false => writeln!(out, "\n{directories} directories, {files} files")?,
        }
        out.flush()?;
        left_out.ended("drawn")
    }
}

impl Tree {
    /// What lies in a directory, the last name first.
    fn children(
        &self,
        ground: &Ground<'_>,
        id: InodeId,
        (lead, level): (&str, usize),
    ) -> Result<Vec<Waiting>, Failure> {
        let mut entries = ground.calls.list(id).context(&self.place)?;
        if self.directories {
            entries.retain(|entry| entry.target.kind == butterfs::FileType::Directory);
        }
        entries.sort_by(|one, other| other.name.cmp(&one.name));
        let drawn = entries.into_iter().enumerate().map(|(at, entry)| Waiting {
            entry,
            lead: format!("{lead}{}", if at == 0 { "└── " } else { "├── " }),
            level,
        });
        Ok(drawn.collect())
    }
}
