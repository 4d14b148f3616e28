//! `butterfs ls`.

use crate::dates::date;
use crate::fail::{Context, Done, Failure};
use crate::output;
use crate::part::PartArguments;
use crate::place::{Place, json};
use crate::sizes;
use butterfs::{Attributes, Volume, Walk};
use clap::Args;
use serde::Serialize;
use std::io::{BufWriter, Write};
use std::os::unix::ffi::OsStrExt;

/// Lists files of a volume that is not mounted.
#[derive(Args, Debug)]
#[command(
    disable_help_flag = true,
    after_help = "Examples:
  butterfs ls disk.img:/
  butterfs ls -lhR disk.img:/home"
)]
pub struct List {
    /// Type, permissions, links, owner, size and time too.
    #[arg(short)]
    long: bool,
    /// With -l, sizes such as 1.5K and 12M.
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Everything below too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Accepted; all names are shown.
    #[arg(short = 'a', visible_short_alias = 'A', long)]
    all: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print JSON, one array.
    #[arg(long)]
    json: bool,
    /// Subvolume id to start from.
    #[arg(long, value_name = "ID")]
    subvolid: Option<u64>,
    #[command(flatten)]
    part: PartArguments,
    /// VOLUME:/path; the root without a path.
    place: Place,
}

#[derive(Serialize)]
struct Entry {
    path: String,
    inode: u64,
    subvolume: u64,
    mode: String,
    links: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime_seconds: i64,
    mtime_nanoseconds: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

impl List {
    /// Runs it.
    pub fn run(self) -> Done {
        let volume = self.place.open_part(self.subvolid, self.part.part())?;
        let start = volume.resolve(self.place.path.as_bytes())?;
        let mut entries = Vec::new();
        let mut out = BufWriter::new(output::own());
        let is_directory = volume
            .files()
            .attributes(start)
            .context(&self.place)?
            .is_directory();
        volume.walk::<Failure>(start, &mut |entry| {
            let top = entry.path.is_empty();
            if !(top && is_directory) {
                let name = if top {
                    self.place.path.as_bytes().to_vec()
                } else {
                    entry.path.clone()
                };
                if self.json {
                    entries.push(fact(&volume, &name, &entry.attributes)?);
                } else {
                    self.print(&mut out, &volume, &name, &entry.attributes)?;
                }
            }
            Ok(if top || self.recursive {
                Walk::Enter
            } else {
                Walk::Skip
            })
        })?;
        if self.json {
            json(&entries)?;
        }
        Ok(out.flush()?)
    }

    fn print(&self, out: &mut impl Write, volume: &Volume, name: &[u8], of: &Attributes) -> Done {
        if self.long {
            let size = match of.mode & libc::S_IFMT {
                libc::S_IFCHR | libc::S_IFBLK => {
                    format!("{}, {}", of.rdev >> 20, of.rdev & 0xf_ffff)
                }
                _ if self.human_readable => sizes::short(of.size),
                _ => of.size.to_string(),
            };
            write!(
                out,
                "{} {:>3} {:>5} {:>5} {:>10} {} ",
                permissions(of.mode),
                of.nlink,
                of.uid,
                of.gid,
                size,
                date(of.mtime.seconds)
            )?;
        }
        out.write_all(name)?;
        if self.long
            && let Some(target) = link_target(volume, of)?
        {
            out.write_all(b" -> ")?;
            out.write_all(&target)?;
        }
        Ok(out.write_all(b"\n")?)
    }
}

fn link_target(volume: &Volume, of: &Attributes) -> Result<Option<Vec<u8>>, Failure> {
    if of.mode & libc::S_IFMT != libc::S_IFLNK {
        return Ok(None);
    }
    Ok(Some(volume.files().read_link(of.id)?))
}

fn fact(volume: &Volume, name: &[u8], of: &Attributes) -> Result<Entry, Failure> {
    let target = link_target(volume, of)?;
    Ok(Entry {
        path: String::from_utf8_lossy(name).into_owned(),
        inode: of.id.number.get(),
        subvolume: of.id.tree.get(),
        mode: format!("{:o}", of.mode),
        links: of.nlink,
        uid: of.uid,
        gid: of.gid,
        size: of.size,
        mtime_seconds: of.mtime.seconds,
        mtime_nanoseconds: of.mtime.nanoseconds,
        target: target.map(|target| String::from_utf8_lossy(&target).into_owned()),
    })
}

/// As ls(1) writes type and permissions.
pub fn permissions(mode: u32) -> String {
    let kind = match mode & libc::S_IFMT {
        libc::S_IFDIR => 'd',
        libc::S_IFLNK => 'l',
        libc::S_IFCHR => 'c',
        libc::S_IFBLK => 'b',
        libc::S_IFIFO => 'p',
        libc::S_IFSOCK => 's',
        _ => '-',
    };
    let mut text = String::from(kind);
    for (shift, special, set) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => set,
            (false, true) => set.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_read_as_usual() {
        assert_eq!(permissions(0o106_755), "-rwsr-sr-x");
        assert_eq!(permissions(0o041_776), "drwxrwxrwT");
    }
}
