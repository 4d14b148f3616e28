//! `butterfs tree`.

use crate::changes::Start;
use crate::fail::{Context, Done};
use crate::output;
use crate::place::Place;
use crate::sizes;
use butterfs::{InodeId, ListedEntry, Volume};
use clap::Args;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Draws directories of a volume that is not mounted, by name.
#[derive(Args, Debug)]
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
    start: Start,
    /// VOLUME:/path; the root without a path.
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

impl Tree {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = self.start.open(&self.place)?;
        let start = volume.resolve(&[self.place.path.as_bytes(), b"/"].concat())?;
        let mut out = BufWriter::new(output::own());
        writeln!(out, "{}", self.place)?;
        let mut counts = Counts::default();
        let mut waiting = self.children(&volume, start, "", 1)?;
        // A directory that lies in itself ends here, because no path is deeper.
        const LEVELS_MAX: usize = 4096;
        while let Some(Waiting { entry, lead, level }) = waiting.pop() {
            let of = volume.files().attributes(entry.target.inode)?;
            write!(out, "{lead}")?;
            if self.human_readable {
                write!(out, "[{:>5}]  ", sizes::short(of.size))?;
            }
            out.write_all(&entry.name)?;
            match of.mode & libc::S_IFMT {
                libc::S_IFLNK => {
                    out.write_all(b" -> ")?;
                    out.write_all(&volume.files().read_link(of.id)?)?;
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
                waiting.extend(self.children(&volume, of.id, &below, level + 1)?);
            }
        }
        let Counts { directories, files } = counts;
        match self.directories {
            true => writeln!(out, "\n{directories} directories")?,
            false => writeln!(out, "\n{directories} directories, {files} files")?,
        }
        Ok(out.flush()?)
    }

    /// What lies in a directory, the last name first.
    fn children(
        &self,
        volume: &Volume,
        id: InodeId,
        lead: &str,
        level: usize,
    ) -> Result<Vec<Waiting>, crate::fail::Failure> {
        let mut entries = volume.list(id).context(&self.place)?;
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
