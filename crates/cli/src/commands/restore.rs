//! `butterfs restore`, also called btrfs restore: files out of a volume that
//! does not open.

mod volume_target;

use self::volume_target::VolumeTarget;
use crate::fail::{Context, Done, Failure, fail};
use crate::output;
use crate::patient::{PatientArguments, Showing};
use crate::place::{Place, json};
use crate::sizes::human;
use butterfs_rescue::{
    DirectoryTarget, Outcome, Patient, RestoreOptions, Restored, RootSource, ScanScope, TarTarget,
    Target, Wholeness, restore,
};
use clap::Args;
use serde::Serialize;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};

/// Ranges of a file that are named.
const RANGES_MAX: usize = 8;

/// Copies files out of a volume that does not open, or that is damaged. Never
/// writes to it.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs restore disk.img /mnt/saved              files
  butterfs restore --all /dev/sdx1 /mnt/saved       with snapshots, links, owners, times
  butterfs restore --path-regex '^/home/ann/' disk.img /mnt/saved
  butterfs restore --all --tar - disk.img | zstd > saved.tar.zst
  butterfs restore --all disk.img other.img:/saved  into another volume
  butterfs restore --list-roots disk.img            generations to choose from
  butterfs restore --generation 4711 disk.img /mnt/saved

All devices of a volume can be named; those beside a single one are found. Superblocks, chunk tree and tree of roots may be lost: the devices are then scanned for tree nodes, which --index keeps for the next command.

Every byte is compared with its checksum. A file of which parts are lost is written as NAME.incomplete, and standard output names the ranges. What cannot be verified, because checksums are lost, is named too. Files without a directory are in lost+found, by subvolume and inode number. Files that are in the target already are left alone without -o, so that a restore that was cut short can be repeated.

Exit code 1: something is not whole.")]
pub struct Restore {
    /// Everything: -s, -x, -m and -S.
    #[arg(short = 'a', long)]
    all: bool,
    /// Snapshots too.
    #[arg(short = 's', long)]
    snapshots: bool,
    /// Extended attributes too.
    #[arg(short = 'x', long = "xattr")]
    xattrs: bool,
    /// Owners, permissions and times too.
    #[arg(short = 'm', long)]
    metadata: bool,
    /// Symbolic links, devices, pipes and sockets too.
    #[arg(short = 'S', long = "symlink")]
    symlinks: bool,
    /// Name every file.
    #[arg(short = 'v', long)]
    verbose: bool,
    /// Go on after errors; that is always so here.
    #[arg(short = 'i', long)]
    ignore_errors: bool,
    /// Replace files that are there.
    #[arg(short = 'o', long)]
    overwrite: bool,
    /// Only list what would be restored.
    #[arg(short = 'D', long)]
    dry_run: bool,
    /// Begin with the first directory that is found; that is always so here.
    #[arg(short = 'd')]
    find_dir: bool,
    /// List the generations that can be restored.
    #[arg(short = 'l', long)]
    list_roots: bool,
    /// Restore this generation.
    #[arg(long, value_name = "N", conflicts_with = "tree_root")]
    generation: Option<u64>,
    /// The root of the tree of roots lies at this address.
    #[arg(short = 't', value_name = "ADDRESS")]
    tree_root: Option<u64>,
    /// The root of the subvolume's tree lies at this address.
    #[arg(short = 'f', value_name = "ADDRESS")]
    fs_root: Option<u64>,
    /// Restore only the subvolume with this number.
    #[arg(short = 'r', long = "root", value_name = "ID")]
    root: Option<u64>,
    /// Only files whose path, from `/`, matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    path_regex: Option<String>,
    /// Ignore case in --path-regex.
    #[arg(short = 'c')]
    ignore_case: bool,
    /// Write a tar archive to this file; `-` is standard output.
    #[arg(long, value_name = "FILE")]
    tar: Option<PathBuf>,
    /// Print JSON at the end.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    patient: PatientArguments,
    /// Files or block devices; the last one is the directory for the files, on
    /// this machine or in another volume (VOLUME:/path). It is made if it is not
    /// there.
    #[arg(required = true)]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Summary {
    generation: u64,
    lost_generation: Option<u64>,
    from_leaves: bool,
    subvolumes: u64,
    files: u64,
    whole: u64,
    unverified: u64,
    may_be_older: u64,
    incomplete: u64,
    lost: u64,
    existing: u64,
    failed: u64,
    special_files: u64,
    left_out: u64,
    attributes_left_out: u64,
    symlinks: u64,
    directories: u64,
    bytes: u64,
    gaps: u64,
}

impl Restore {
    /// Runs it.
    pub fn run(mut self) -> Done {
        let target = self.take_target()?;
        let wanted = self.pattern()?;
        // The log belongs to the newest generation alone.
        let is_newest = self.generation.is_none()
            && self.tree_root.is_none()
            && self.fs_root.is_none()
            && !self.list_roots;
        let mut patient = match is_newest {
            true => self.patient.open_replayed(&self.paths)?,
            false => self.patient.open(&self.paths)?,
        };
        let showing = Showing::new()?;
        if self.list_roots {
            return list_roots(&mut patient, &showing);
        }
        let matches = |path: &[u8]| wanted.as_ref().is_none_or(|regex| regex.is_match(path));
        let options = RestoreOptions {
            generation: self.generation,
            tree_root: self.tree_root,
            fs_root: self.fs_root,
            subvolume: self.root,
            snapshots: self.snapshots || self.all,
            xattrs: self.xattrs || self.all,
            attributes: self.metadata || self.all,
            symlinks: self.symlinks || self.all,
            dry_run: self.dry_run,
            wanted: match &wanted {
                Some(_) => Some(&matches),
                None => None,
            },
        };
        let restored = match &self.tar {
            Some(file) if file == Path::new("-") && !self.dry_run => {
                let out = output::own();
                if std::io::stdout().is_terminal() {
                    return fail("an archive is not for a terminal; name a file, or use a pipe");
                }
                let mut target = TarTarget::new(BufWriter::with_capacity(1 << 20, out));
                self.restore_to(&mut patient, &mut target, &options, &showing)?
            }
            Some(file) if !self.dry_run => {
                let out = File::create_new(file).context(file.display())?;
                let mut target = TarTarget::new(BufWriter::with_capacity(1 << 20, out));
                let restored = self.restore_to(&mut patient, &mut target, &options, &showing)?;
                let out = target.into_inner().into_inner();
                let out = out.map_err(std::io::IntoInnerError::into_error);
                out.and_then(|out| out.sync_all()).context(file.display())?;
                restored
            }
            _ if let (Some(place), false) = (target.as_ref().and_then(in_volume), self.dry_run) => {
                let mut target = VolumeTarget::open(&place, self.overwrite)?;
                let restored = self.restore_to(&mut patient, &mut target, &options, &showing);
                // What came back before a failure stays.
                target.close(&place)?;
                restored?
            }
            _ => {
                let place = target.unwrap_or_default();
                let mut target: Box<dyn Target> = match self.dry_run {
                    true => Box::new(TarTarget::new(std::io::sink())),
                    false => {
                        let made = DirectoryTarget::new(&place).context(place.display())?;
                        match self.overwrite {
                            true => Box::new(made.replacing()),
                            false => Box::new(made),
                        }
                    }
                };
                self.restore_to(&mut patient, &mut *target, &options, &showing)?
            }
        };
        self.end(&restored)
    }

    /// Takes the directory for the files away from the devices.
    fn take_target(&mut self) -> Result<Option<PathBuf>, Failure> {
        if self.list_roots || self.tar.is_some() {
            return Ok(None);
        }
        let is_directory =
            |path: &PathBuf| !path.exists() || path.is_dir() || in_volume(path).is_some();
        match self.paths.len() {
            1 if self.dry_run => Ok(None),
            1 => fail("name the volume, and behind it the directory for the files"),
            _ if self.paths.last().is_some_and(is_directory) => Ok(self.paths.pop()),
            _ if self.dry_run => Ok(None),
            _ => fail("the last path is the directory for the files, and it is none"),
        }
    }

    fn pattern(&self) -> Result<Option<regex::bytes::Regex>, Failure> {
        let Some(text) = &self.path_regex else {
            return Ok(None);
        };
        let built = regex::bytes::RegexBuilder::new(text)
            .unicode(false)
            .case_insensitive(self.ignore_case)
            .build();
        built.context("--path-regex").map(Some)
    }

    fn restore_to(
        &self,
        patient: &mut Patient,
        target: &mut dyn Target,
        options: &RestoreOptions<'_>,
        showing: &Showing,
    ) -> Result<Restored, Failure> {
        let is_stdout = self.tar.as_deref() == Some(Path::new("-"));
        let mut lost: Option<Failure> = None;
        let restored = restore(patient, target, options, showing, &mut |path, outcome| {
            let Some(line) = self.line(&path.join(&b'/'), outcome) else {
                return;
            };
            if is_stdout || self.json {
                note!("{line}");
            } else if let Err(error) = output::say(format_args!("{line}")) {
                lost.get_or_insert(error);
            }
        });
        showing.end();
        match (restored, lost) {
            (_, Some(error)) => Err(error),
            (Ok(restored), None) => Ok(restored),
            (Err(error), None) => Err(showing.failed(error)),
        }
    }

    /// What is said of a path; nothing if all is well.
    fn line(&self, path: &[u8], outcome: &Outcome) -> Option<String> {
        let path = String::from_utf8_lossy(path);
        match outcome {
            Outcome::Whole | Outcome::Exists | Outcome::Special if !self.verbose => None,
            Outcome::Whole | Outcome::Listed => Some(format!("{path}")),
            Outcome::Exists => Some(format!("{path}: is there already")),
            Outcome::Special => Some(format!("{path}: a device, pipe or socket; -S restores it")),
            Outcome::LeftOut(why) => Some(format!("left out: {path}: {why}")),
            Outcome::WithoutAttribute { name, why } => {
                let name = String::from_utf8_lossy(name);
                Some(format!("left out: {path}: its attribute {name}: {why}"))
            }
            Outcome::Unverified(found) if found.may_be_older => {
                Some(format!("{path}: may be of an earlier time"))
            }
            Outcome::Unverified(found) => {
                let ranges = ranges(&found.unverified);
                Some(format!(
                    "{path}: not verified, checksums are lost: {ranges}"
                ))
            }
            Outcome::Incomplete(found) => Some(format!("{path}: {}", lost_of(found))),
            Outcome::Lost => Some(format!("{path}: lost, only its name is left")),
            Outcome::Failed(error) => Some(format!("{path}: {error}")),
            other => Some(format!("{path}: {other:?}")),
        }
    }

    fn end(&self, restored: &Restored) -> Done {
        if self.json {
            json(&summary(restored))?;
        } else {
            note!("{}", sentence(restored, self.dry_run));
        }
        if restored.is_whole() {
            return Ok(());
        }
        fail("not everything is whole; see above")
    }
}

/// The directory in another volume that a path names; `None` for paths of this
/// machine.
fn in_volume(path: &PathBuf) -> Option<Place> {
    let place = Place::parse(&OsString::from(path))?;
    let is_volume = |found: std::fs::Metadata| !found.is_dir();
    place
        .volume
        .metadata()
        .is_ok_and(is_volume)
        .then_some(place)
}

fn lost_of(found: &Wholeness) -> String {
    match (found.without_inode, found.missing.is_empty()) {
        (true, _) => "not whole: its size and attributes are lost".to_owned(),
        (false, _) => format!("not whole, lost: {}", ranges(&found.missing)),
    }
}

fn ranges(all: &[(u64, u64)]) -> String {
    let shown = all.iter().take(RANGES_MAX);
    let mut text: Vec<String> = shown.map(|(start, end)| format!("{start}-{end}")).collect();
    if all.len() > RANGES_MAX {
        text.push(format!("and {} more ranges", all.len() - RANGES_MAX));
    }
    format!("bytes {}", text.join(", "))
}

fn sentence(of: &Restored, is_dry: bool) -> String {
    let how = match of.lost_generation {
        Some(lost) => format!(" (the last that is whole; what {lost} changed is lost)"),
        None if of.from_leaves => " (put together from what is left)".to_owned(),
        None => String::new(),
    };
    let mut text = format!(
        "generation {}{how}: {} files in {} subvolumes",
        of.generation, of.files, of.subvolumes
    );
    if is_dry {
        return format!("{text} would be restored");
    }
    text.push_str(&format!(", {}: {} whole", human(of.bytes), of.whole));
    let parts = [
        (of.unverified.saturating_sub(of.older), "not verified"),
        (of.older, "perhaps of an earlier time"),
        (of.incomplete, "not whole"),
        (of.lost, "lost but for their names"),
        (of.existing, "there already"),
        (of.failed, "refused by the target"),
        (of.left_out, "left out"),
        (of.attributes_left_out, "attributes left out"),
    ];
    for (count, what) in parts.iter().filter(|(count, _)| *count > 0) {
        text.push_str(&format!(", {count} {what}"));
    }
    if of.gaps > 0 {
        text.push_str(&format!(
            "; {} leaves are lost, and with them names that nobody knows",
            of.gaps
        ));
    }
    text
}

const fn summary(of: &Restored) -> Summary {
    Summary {
        generation: of.generation,
        lost_generation: of.lost_generation,
        from_leaves: of.from_leaves,
        subvolumes: of.subvolumes,
        files: of.files,
        whole: of.whole,
        unverified: of.unverified,
        may_be_older: of.older,
        incomplete: of.incomplete,
        lost: of.lost,
        existing: of.existing,
        failed: of.failed,
        special_files: of.special,
        left_out: of.left_out,
        attributes_left_out: of.attributes_left_out,
        symlinks: of.symlinks,
        directories: of.directories,
        bytes: of.bytes,
        gaps: of.gaps,
    }
}

/// Lists the trees of roots.
fn list_roots(patient: &mut Patient, showing: &Showing) -> Done {
    let scanned = patient.scan(ScanScope::Nodes, showing);
    scanned.map_err(|error| showing.failed(error))?;
    showing.end();
    let mut out = BufWriter::new(output::own());
    for candidate in patient.candidates() {
        let Some(root) = candidate
            .root
            .filter(|_| candidate.source != RootSource::Leaves)
        else {
            continue;
        };
        writeln!(
            out,
            "generation {} root {} level {} ({})",
            candidate.generation,
            root.logical,
            root.level,
            candidate.source.name()
        )?;
    }
    out.flush()?;
    Ok(())
}
