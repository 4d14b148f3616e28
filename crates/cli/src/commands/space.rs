//! `butterfs filesystem du`: what files and directories hold alone, and what
//! they share.

use super::inspect::resolve::on_mount;
use super::subvolume::shown::{Name, text};
use crate::fail::{Context, Done, Failure};
use crate::output;
use crate::place::{Place, json};
use crate::service::{OnKernel, OnVolume};
use crate::units::Units;
use butterfs::{FileType, InodeId, Volume};
use butterfs_server::Mount;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Show how much space files hold: in all, alone, and shared with others.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs filesystem du -s disk.img:/home
  butterfs filesystem du /mnt/home

What other file systems are mounted on, and what lies below, is left out. What is shared counts once in `Set shared`, which is of all that is below a path. Sizes are those of
the files' content, compressed or not. `butterfs subvolume du` says what deleting snapshots frees.")]
pub struct Du {
    /// One line for each path that is given.
    #[arg(short, long)]
    summarize: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// VOLUME:/path, or a path on a mount.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<OsString>,
}

/// What is asked of a volume.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    summarize: bool,
    json: bool,
    units: Units,
    /// As the user wrote them.
    names: Vec<OsString>,
    places: Vec<Place>,
    /// What is mounted below each place.
    covered: Vec<Vec<Covered>>,
}

impl From<Du> for Order {
    fn from(du: Du) -> Self {
        let place = |word: &OsString| {
            on_mount(Place::parse(word).unwrap_or_else(|| Place {
                volume: word.into(),
                path: "/".into(),
            }))
        };
        let places: Vec<Place> = du.paths.iter().map(place).collect();
        Self {
            summarize: du.summarize,
            json: du.json,
            units: du.units,
            covered: places.iter().map(Covered::below).collect(),
            places,
            names: du.paths,
        }
    }
}

/// A directory below a place that something is mounted on.
#[derive(Debug, Deserialize, Serialize)]
struct Covered {
    /// The path below the place.
    at: OsString,
    /// What a program sees there, as a path in the same volume; `None` if
    /// another file system is mounted.
    shows: Option<OsString>,
}

impl Covered {
    /// What is mounted below a place; nothing below the places of a volume that
    /// is not mounted.
    fn below(place: &Place) -> Vec<Self> {
        let path = Path::new(&place.path);
        let start = place.volume.join(path.strip_prefix("/").unwrap_or(path));
        let (true, Ok(start)) = (place.volume.is_dir(), start.canonicalize()) else {
            return Vec::new();
        };
        let Some(own) = Mount::of_path(&start) else {
            return Vec::new();
        };
        let mut covered: Vec<Self> = Vec::new();
        for mount in Mount::seen_by("self") {
            let Ok(at) = mount.point.strip_prefix(&start) else {
                continue;
            };
            // Of several mounts at one place, the last covers the others.
            covered.retain(|other| Path::new(&other.at) != at);
            if !at.as_os_str().is_empty() {
                covered.push(Self {
                    at: at.as_os_str().to_owned(),
                    shows: (mount.device == own.device).then(|| mount.root.into_os_string()),
                });
            }
        }
        covered
    }

    /// Whether it is at this path, which may begin with a slash.
    fn is_at(&self, below: &[u8]) -> bool {
        below.strip_prefix(b"/").unwrap_or(below) == self.at.as_bytes()
    }
}

/// A line.
#[derive(Serialize)]
struct Fact {
    path: Name,
    total: u64,
    exclusive: u64,
    /// Only for a path that was given.
    set_shared: Option<u64>,
}

/// Bytes of files.
#[derive(Clone, Copy, Default)]
struct Sum {
    total: u64,
    shared: u64,
}

impl Sum {
    const fn add(&mut self, other: Self) {
        self.total = self.total.saturating_add(other.total);
        self.shared = self.shared.saturating_add(other.shared);
    }
}

impl OnVolume for Order {
    const NAME: &'static str = "filesystem du";
    const TAG: &'static str = "Space";
    const ON_KERNEL: OnKernel = OnKernel::Reads;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        self.places.iter_mut().try_for_each(visit)
    }

    fn run_here(self) -> Done {
        let mut facts = Vec::new();
        let mut volumes: BTreeMap<_, Volume> = BTreeMap::new();
        if !self.json {
            say!("     Total   Exclusive  Set shared  Filename");
        }
        let places = self.places.iter().zip(&self.covered);
        for (name, (place, covered)) in self.names.iter().zip(places) {
            if !volumes.contains_key(&place.volume) {
                volumes.insert(&place.volume, place.open_read_only(None)?);
            }
            let volume = &volumes[&place.volume];
            let start = volume.resolve(place.path.as_bytes()).context(place)?;
            let mut tell = |fact: Fact| -> Done {
                if self.json {
                    facts.push(fact);
                    return Ok(());
                }
                let shared = fact.set_shared.map(|bytes| self.units.size(bytes));
                let figures = format!(
                    "{:>10}  {:>10}  {:>10}  ",
                    self.units.size(fact.total),
                    self.units.size(fact.exclusive),
                    shared.as_deref().unwrap_or("-"),
                );
                output::line(&[figures.as_bytes(), &fact.path.0])
            };
            Walker::new(volume, self.summarize, covered).walk(start, name.as_bytes(), &mut tell)?;
        }
        if self.json {
            return json(&facts);
        }
        Ok(())
    }
}

/// A walk over everything below a path.
struct Walker<'v> {
    volume: &'v Volume,
    summarize: bool,
    /// Directories that something is mounted on.
    covered: &'v [Covered],
    /// Inodes that were counted.
    seen: BTreeSet<InodeId>,
    /// Shared ranges: addresses, and where they end.
    shared: Vec<(u64, u64)>,
}

/// What is to be done next.
enum Step {
    Enter(Vec<u8>, InodeId, FileType),
    Leave(Vec<u8>),
}

impl<'v> Walker<'v> {
    const fn new(volume: &'v Volume, summarize: bool, covered: &'v [Covered]) -> Self {
        Self {
            volume,
            summarize,
            covered,
            seen: BTreeSet::new(),
            shared: Vec::new(),
        }
    }

    fn walk(
        mut self,
        start: InodeId,
        name: &[u8],
        tell: &mut dyn FnMut(Fact) -> Done,
    ) -> Result<(), Failure> {
        let files = self.volume.files();
        let start_is = files.attributes(start).context(text(name))?;
        let kind = match start_is.mode & 0o170_000 {
            0o040_000 => FileType::Directory,
            0o100_000 => FileType::Regular,
            // Others have no data.
            _ => FileType::Symlink,
        };
        let mut steps = vec![Step::Enter(name.to_owned(), start, kind)];
        // Sums of the directories that are open, the outermost first.
        let mut sums = vec![Sum::default()];
        while let Some(step) = steps.pop() {
            let (path, sum) = match step {
                Step::Enter(path, id, FileType::Directory) => {
                    // No directory is walked twice, not even on a damaged volume.
                    if !self.seen.insert(id) {
                        continue;
                    }
                    let children = self.volume.list(id).context(text(&path))?;
                    sums.push(Sum::default());
                    steps.push(Step::Leave(path.clone()));
                    for child in children.into_iter().rev() {
                        let slash: &[u8] = if path.ends_with(b"/") { b"" } else { b"/" };
                        let path = [&path, slash, &child.name].concat();
                        let below = path.get(name.len()..).unwrap_or_default();
                        let Some(inode) = self.seen_at(below, child.target.inode)? else {
                            let path = String::from_utf8_lossy(&path);
                            note!("{path}: another file system is mounted here; it is left out");
                            continue;
                        };
                        steps.push(Step::Enter(path, inode, child.target.kind));
                    }
                    continue;
                }
                Step::Enter(path, id, kind) => {
                    let is_start = path == name;
                    if !self.seen.insert(id) || (kind != FileType::Regular && !is_start) {
                        continue;
                    }
                    let sum = match kind {
                        FileType::Regular => self.file(id, &path)?,
                        _ => Sum::default(),
                    };
                    (path, sum)
                }
                Step::Leave(path) => (path, sums.pop().unwrap_or_default()),
            };
            if let Some(above) = sums.last_mut() {
                above.add(sum);
            }
            let is_last = steps.is_empty();
            if is_last || !self.summarize {
                tell(Fact {
                    path: Name(path),
                    total: sum.total,
                    exclusive: sum.total.saturating_sub(sum.shared),
                    set_shared: is_last.then(|| match kind {
                        FileType::Directory => self.set_shared(),
                        // As the Btrfs tools count for one file.
                        _ => sum.shared,
                    }),
                })?;
            }
        }
        Ok(())
    }

    /// The inode that a program sees at a path below the start; `None` if it is
    /// in another file system.
    fn seen_at(&self, below: &[u8], inode: InodeId) -> Result<Option<InodeId>, Failure> {
        let covered = self.covered.iter().find(|covered| covered.is_at(below));
        let Some(covered) = covered else {
            return Ok(Some(inode));
        };
        let shows = covered.shows.as_ref();
        let inode = shows.map(|path| self.volume.resolve(path.as_bytes()));
        Ok(inode.transpose()?)
    }

    fn file(&mut self, id: InodeId, path: &[u8]) -> Result<Sum, Failure> {
        let files = self.volume.files();
        let inode = files.inode(id).context(text(path))?;
        let space = files.space_of(&inode).context(text(path))?;
        let mut sum = Sum {
            total: space.total,
            shared: 0,
        };
        for (start, length) in space.shared {
            sum.shared = sum.shared.saturating_add(length);
            let start = start.get();
            self.shared.push((start, start.saturating_add(length)));
        }
        Ok(sum)
    }

    /// Bytes of all shared ranges, each once.
    fn set_shared(&mut self) -> u64 {
        self.shared.sort_unstable();
        let (mut bytes, mut reached) = (0_u64, 0);
        for (start, end) in &self.shared {
            bytes = bytes.saturating_add(end.saturating_sub(reached.max(*start)));
            reached = reached.max(*end);
        }
        bytes
    }
}
