//! `butterfs filesystem defragment`: small extents into large ones.
//!
//! Owns the arguments, finding the files, and saying what a defragmentation
//! does to sharing before it begins. Shared data are rewritten only if that is
//! asked for, because a defragmentation must not take space that snapshots
//! saved.

use super::subvolume::site::{Site, open_volume};
use crate::fail::{Context, Done, Failure, fail};
use crate::place::{Place, json};
use crate::sizes::{self, human};
use butterfs::{Defragment as Wanted, Defragmented, InodeId, Method, Recompress, Sharing, Walk};
use butterfs_kernel::butterfs_mount as own;
use butterfs_kernel::{self as btrfs, DefragmentRequest, is_kernel_btrfs};
use clap::Args;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Rewrite small extents of files into large ones, or with another compression.
/// Data that snapshots or other files have too are left as they are, unless
/// --unshare is given: each file then gets a copy of its own, which takes space.
/// What will be done to shared data is said before it is done.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs filesystem defragment --dry-run -r disk.img:/
  butterfs filesystem defragment -r -c zstd:9 mnt/logs
  butterfs filesystem defragment --unshare disk.img:/database

No content and no time of a file changes. Files without copy-on-write are moved,
never compressed. On mounts of the kernel's Btrfs the kernel does it: it would
rewrite shared data too, so files that have some are left out there, unless
--unshare is given.")]
pub struct Defragment {
    /// Also everything below directories, without entering other subvolumes.
    #[arg(short, long)]
    recursive: bool,
    /// Compress what is rewritten, all of it: zlib, lzo or zstd, with a level
    /// as in zstd:9; none takes compression away. Without it data stay as they
    /// are compressed.
    #[arg(short, long, value_name = "ALGORITHM[:LEVEL]", value_parser = method)]
    compress: Option<Compression>,
    /// Begin at this offset of each file.
    #[arg(short, long, value_parser = sizes::parse, default_value = "0")]
    start: u64,
    /// So many bytes of each file; all without it.
    #[arg(short, long, value_parser = sizes::parse)]
    length: Option<u64>,
    /// Extents of this size are large enough.
    #[arg(short, long, value_parser = sizes::parse, default_value = "32m")]
    target: u64,
    /// Level of the compression that -c names.
    #[arg(
        short = 'L',
        long,
        value_name = "LEVEL",
        requires = "compress",
        allow_negative_numbers = true
    )]
    level: Option<i32>,
    /// Take compression away, as -c none.
    #[arg(long, conflicts_with = "compress")]
    nocomp: bool,
    /// Make each file durable before the next one.
    #[arg(short, long)]
    flush: bool,
    /// On mounts: so many bytes of a file at a time, each made durable before
    /// the next.
    #[arg(long, value_name = "SIZE", value_parser = step)]
    step: Option<u64>,
    /// Rewrite shared data too.
    #[arg(long)]
    unshare: bool,
    /// Say what would be done, and do nothing.
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Name each file that is rewritten.
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Files, and directories with -r: VOLUME:/path or paths on mounts.
    #[arg(required = true)]
    paths: Vec<OsString>,
}

#[derive(Clone, Copy, Debug)]
struct Compression(Option<Method>);

/// Whether this is what may follow `-c`.
pub fn is_compression(text: &str) -> bool {
    method(text).is_ok()
}

/// A step, but no shorter than btrfs-filesystem(8) allows.
fn step(text: &str) -> Result<u64, String> {
    const STEP_MIN: u64 = 256 << 10;
    Ok(sizes::parse(text)?.max(STEP_MIN))
}

fn method(text: &str) -> Result<Compression, String> {
    let parsed = Method::parse(text).map(Compression);
    parsed.ok_or_else(|| format!("`{text}` is none of zlib, lzo, zstd and none"))
}

/// What is done to files, or would be.
#[derive(Default, Serialize)]
struct Facts {
    files: u64,
    extents: u64,
    rewritten_extents: u64,
    rewritten_bytes: u64,
    shared_bytes: u64,
    new_extents: u64,
}

impl Facts {
    fn add(&mut self, done: &Defragmented) {
        self.files += u64::from(done.rewritten > 0);
        self.extents += done.extents;
        self.rewritten_extents += done.rewritten_extents;
        self.rewritten_bytes += done.rewritten;
        self.shared_bytes += done.shared;
        self.new_extents += done.new_extents;
    }
}

#[derive(Serialize)]
struct Report {
    plan: Facts,
    done: Option<Facts>,
}

/// Whether files are changed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Plan,
    Do,
}

/// A file, and what is done to it.
type Work<'w> = &'w mut dyn FnMut(Step) -> Result<Facts, Failure>;

impl Defragment {
    /// Runs it.
    pub fn run(self) -> Done {
        // One volume is opened once.
        let mut sites = self.paths.iter().map(|word| Site::parse(word)).peekable();
        while let Some(site) = sites.next() {
            match site {
                Site::Mounted(path) => self.on_mount(&path)?,
                Site::Unmounted(first) => {
                    let mut places = vec![first];
                    while let Some(Site::Unmounted(next)) = sites.peek()
                        && next.volume == places[0].volume
                    {
                        places.push(next.clone());
                        sites.next();
                    }
                    self.in_volume(&places)?;
                }
            }
        }
        Ok(())
    }

    /// The compression that is asked for, if one is.
    fn compression(&self) -> Option<Compression> {
        if self.nocomp {
            return Some(Compression(None));
        }
        let Compression(method) = self.compress?;
        let leveled = |method: Method| match self.level {
            None => method,
            Some(level) => Method {
                level: method.algorithm.clamp_level(level),
                ..method
            },
        };
        Some(Compression(method.map(leveled)))
    }

    /// Bytes of files that are rewritten.
    fn range(&self) -> Range<u64> {
        let end = self
            .length
            .map_or(u64::MAX, |length| self.start.saturating_add(length));
        self.start..end
    }

    fn wanted(&self, range: Range<u64>) -> Wanted {
        Wanted {
            range,
            large: self.target,
            compress: match self.compression() {
                None => Recompress::Keep,
                Some(Compression(None)) => Recompress::Plain,
                Some(Compression(Some(method))) => Recompress::With(method.algorithm, method.level),
            },
            sharing: match self.unshare {
                true => Sharing::Break,
                false => Sharing::Keep,
            },
        }
    }

    /// Says what it will do, and does it.
    fn perform(&self, work: Work<'_>) -> Done {
        let plan = work(Step::Plan)?;
        if !self.json {
            say!(
                "to rewrite: {} in {} extents of {} files",
                human(plan.rewritten_bytes),
                plan.rewritten_extents,
                plan.files
            );
            if plan.shared_bytes > 0 {
                let shared = human(plan.shared_bytes);
                match self.unshare {
                    true => say!(
                        "shared: {shared} of that are in snapshots or other files too; they get a copy of their own, which takes as much space"
                    ),
                    false => say!(
                        "shared: {shared} more are in snapshots or other files too and stay as they are; --unshare rewrites them, which takes as much space"
                    ),
                }
            }
        }
        let done = match self.dry_run {
            true => None,
            false => Some(work(Step::Do)?),
        };
        if self.json {
            return json(&Report { plan, done });
        }
        if let Some(done) = done {
            say!(
                "rewritten: {}, {} extents are now {}",
                human(done.rewritten_bytes),
                done.rewritten_extents,
                done.new_extents
            );
        }
        Ok(())
    }

    fn tell(&self, step: Step, name: &dyn std::fmt::Display, done: &Defragmented) -> Done {
        if self.verbose && !self.json && step == Step::Do && done.rewritten > 0 {
            say!(
                "{name}: {} extents to {}",
                done.rewritten_extents,
                done.new_extents
            );
        }
        Ok(())
    }

    fn in_volume(&self, places: &[Place]) -> Done {
        let [Place { volume: path, .. }, ..] = places else {
            return Ok(());
        };
        let volume = open_volume(path)?;
        let files = volume.files();
        let wanted = self.wanted(self.range());
        let done = self.perform(&mut |step| {
            let mut facts = Facts::default();
            // A file with several names is one file.
            let mut seen: HashSet<InodeId> = HashSet::new();
            for place in places {
                let start = volume.resolve(place.path.as_bytes()).context(place)?;
                let attributes = files.attributes(start).context(place)?;
                if attributes.is_directory() && !self.recursive {
                    return fail(format!(
                        "{place}: is a directory; take -r for what is in it"
                    ));
                }
                let mut found: Vec<(Vec<u8>, InodeId)> = Vec::new();
                volume.walk::<butterfs::Error>(start, &mut |entry| {
                    let attributes = &entry.attributes;
                    if attributes.is_directory() {
                        let inside = attributes.id.tree == start.tree;
                        return Ok(if inside { Walk::Enter } else { Walk::Skip });
                    }
                    if attributes.mode & libc::S_IFMT == libc::S_IFREG && seen.insert(attributes.id)
                    {
                        found.push((entry.path.clone(), attributes.id));
                    }
                    Ok(Walk::Enter)
                })?;
                for (path, id) in found {
                    let name = format!("{place}{}", below(&path));
                    let inode = files.inode(id).context(&name)?;
                    let done = match step {
                        Step::Plan => files.plan_defragment(&inode, &wanted),
                        Step::Do => files.defragment(&inode, &wanted),
                    };
                    let done = done.context(&name)?;
                    if self.flush && step == Step::Do {
                        volume.sync().context(&name)?;
                    }
                    self.tell(step, &name, &done)?;
                    facts.add(&done);
                }
            }
            Ok(facts)
        });
        volume.close().context(path.display())?;
        done
    }

    fn on_mount(&self, path: &Path) -> Done {
        let files = self.files_below(path)?;
        if is_kernel_btrfs(path) {
            if self.dry_run || self.json {
                return fail(format!(
                    "{}: the kernel does not say what it does, nor beforehand what it would do; leave --dry-run and --json out, or unmount the volume and name it as VOLUME:/path",
                    path.display()
                ));
            }
            for name in &files {
                self.open_file(name, Step::Do)?;
            }
            return Ok(());
        }
        self.perform(&mut |step| {
            let mut facts = Facts::default();
            for name in &files {
                let done = self.open_file(name, step)?;
                self.tell(step, &name.display(), &done)?;
                facts.add(&done);
            }
            Ok(facts)
        })
    }

    /// The files of a mount that `path` names, or that are below it.
    fn files_below(&self, path: &Path) -> Result<Vec<PathBuf>, Failure> {
        /// Inode number of a subvolume's root. On a mount of ButterFS, the bits
        /// above these name the subvolume.
        const ROOT: u64 = 256;
        const NUMBER: u64 = (1 << 40) - 1;
        let facts = std::fs::symlink_metadata(path).context(path.display())?;
        if !facts.is_dir() {
            return Ok(vec![path.to_owned()]);
        }
        if !self.recursive {
            return fail(format!(
                "{}: is a directory; take -r for what is in it",
                path.display()
            ));
        }
        let mut files = Vec::new();
        // A file with several names is one file.
        let mut seen: HashSet<(u64, u64)> = HashSet::new();
        let mut waiting = vec![path.to_owned()];
        while let Some(directory) = waiting.pop() {
            for entry in std::fs::read_dir(&directory).context(directory.display())? {
                let path = entry.context(directory.display())?.path();
                let found = std::fs::symlink_metadata(&path).context(path.display())?;
                if found.is_file() {
                    if found.nlink() == 1 || seen.insert((found.dev(), found.ino())) {
                        files.push(path);
                    }
                } else if found.is_dir()
                    && found.dev() == facts.dev()
                    && found.ino() & NUMBER != ROOT
                {
                    waiting.push(path);
                }
            }
        }
        Ok(files)
    }

    fn open_file(&self, path: &Path, step: Step) -> Result<Defragmented, Failure> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file = File::options().read(true).custom_flags(flags).open(path);
        let file = file.context(path.display())?;
        let at = |error| said(error).at(path.display());
        if own::is_butterfs(file.as_fd()) {
            return self.in_steps(&file, step, &|range| {
                self.ask_butterfs(&file, step, range).map_err(at)
            });
        }
        if !self.unshare && btrfs::shares_data(file.as_fd()).map_err(at)? {
            note!(
                "{}: is left as it is: the kernel would rewrite what snapshots or other files have too; --unshare does it, which takes as much space",
                path.display()
            );
            return Ok(Defragmented::default());
        }
        if self.verbose {
            say!("{}", path.display());
        }
        self.in_steps(&file, step, &|range| {
            let request = DefragmentRequest {
                start: range.start,
                length: match range.end {
                    u64::MAX => u64::MAX,
                    end => end - range.start,
                },
                large: u32::try_from(self.target).unwrap_or(u32::MAX),
                compression: self.compression().map(|Compression(method)| match method {
                    None => (0, None),
                    Some(method) => {
                        let level = i8::try_from(method.level.0).ok();
                        let usual = method.level == method.algorithm.default_level();
                        (method.algorithm.number(), level.filter(|_| !usual))
                    }
                }),
            };
            btrfs::defragment(file.as_fd(), request).map_err(at)?;
            Ok(Defragmented::default())
        })
    }

    /// Rewrites a file of a mount, all at once or in the steps that are asked
    /// for, each of them durable before the next.
    fn in_steps(
        &self,
        file: &File,
        step: Step,
        rewrite: &dyn Fn(Range<u64>) -> Result<Defragmented, Failure>,
    ) -> Result<Defragmented, Failure> {
        let wanted = self.range();
        let Some(length) = self.step.filter(|_| step == Step::Do) else {
            let done = rewrite(wanted)?;
            if self.flush && step == Step::Do {
                file.sync_data()?;
            }
            return Ok(done);
        };
        let end = wanted.end.min(file.metadata()?.len());
        let mut all = Defragmented::default();
        let mut at = wanted.start;
        while at < end {
            let next = at.saturating_add(length).min(end);
            let done = rewrite(at..next)?;
            file.sync_data()?;
            all.extents += done.extents;
            all.rewritten_extents += done.rewritten_extents;
            all.rewritten += done.rewritten;
            all.shared += done.shared;
            all.new_extents += done.new_extents;
            at = next;
        }
        Ok(all)
    }

    fn ask_butterfs(
        &self,
        file: &File,
        step: Step,
        range: Range<u64>,
    ) -> Result<Defragmented, Errno> {
        let wanted = self.wanted(range);
        let mut flags = 0;
        if self.unshare {
            flags |= own::UNSHARE;
        }
        if step == Step::Plan {
            flags |= own::PLAN;
        }
        let (mut algorithm, mut level) = (0, 0);
        if let Some(Compression(method)) = self.compression() {
            flags |= own::COMPRESS;
            if let Some(method) = method {
                algorithm = u64::from(method.algorithm.number());
                level = i64::from(method.level.0);
            }
        }
        let request = own::DefragmentRequest {
            start: wanted.range.start,
            end: wanted.range.end,
            large: wanted.large,
            flags,
            algorithm,
            level,
        };
        let done = own::defragment(file.as_fd(), request)?;
        Ok(Defragmented {
            extents: done.extents,
            rewritten_extents: done.rewritten_extents,
            rewritten: done.rewritten,
            shared: done.shared,
            new_extents: done.new_extents,
        })
    }
}

/// A path below a place, for people.
fn below(path: &[u8]) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!("/{}", String::from_utf8_lossy(path))
    }
}

fn said(error: Errno) -> Failure {
    Failure(match error {
        Errno::NOTTY | Errno::OPNOTSUPP => {
            "is on no Btrfs, or the kernel does not know this compression; name a path on a mounted one, or VOLUME:/path".into()
        }
        Errno::PERM => "only its owner and who mounted may do this".into(),
        Errno::ROFS => "the file system or the subvolume is read-only".into(),
        Errno::NOSPC => "no space is left to rewrite it; the file is as it was".into(),
        other => std::io::Error::from(other).to_string(),
    })
}
