//! `butterfs check --repair`, and what commits and undoes an overlay.
//!
//! Owns the options, where the overlay is, and what is said to its owner. The
//! crate `repair` does the repair.

use crate::commands::check_report::show;
use crate::fail::{Context, Done, Failure, fail};
use crate::sizes;
use butterfs::{
    Access, BlockDevice, Compared, FileDevice, Logical, OpenOptions, Volume, compare_readable,
};
use butterfs_check::{NoProgress, Options as CheckOptions, Progress};
use butterfs_device::{GrowingFile, OverlayFile};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_repair::{Anew, Begin, FsyncLog, Options, Outcome, overlay, repair, transfer};
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of files that are listed as lost.
const LISTED_MAX: u64 = 100;

/// Options of a repair.
#[derive(Args, Debug)]
pub struct RepairArguments {
    /// Repair the volume on an overlay: a file that keeps all changes, so that
    /// the devices stay as they are until it is committed.
    #[arg(long)]
    repair: bool,
    /// The overlay (default: the device's name with .overlay, for a block device
    /// in this directory). Without --repair, check what it shows.
    #[arg(long, value_name = "FILE")]
    pub overlay: Option<PathBuf>,
    /// Write the outcome to the devices. What they held is kept in an undo file
    /// beside the overlay.
    #[arg(long, requires = "repair")]
    commit: bool,
    /// The same as --commit.
    #[arg(long, requires = "repair")]
    in_place: bool,
    /// Do not compare which files can be read before and after.
    #[arg(long, requires = "repair")]
    no_compare: bool,
    /// Make the checksum tree anew from the data as they are. Whether these are
    /// right is then unknown.
    #[arg(long)]
    init_csum_tree: bool,
    /// Make the extent tree anew from all references.
    #[arg(long)]
    init_extent_tree: bool,
    /// Make the free-space tree anew (v2).
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v2"])]
    clear_space_cache: Option<String>,
    /// Begin with the tree of roots at this address.
    #[arg(short = 'r', long, value_name = "BYTES", value_parser = sizes::parse)]
    tree_root: Option<u64>,
    /// Begin with the chunk tree at this address.
    #[arg(long, value_name = "BYTES", value_parser = sizes::parse)]
    chunk_root: Option<u64>,
    /// Begin with the newest backup roots of the superblock that can be read.
    #[arg(short, long)]
    backup: bool,
}

/// Whether `butterfs rescue` writes to the devices.
#[derive(Args, Debug)]
pub struct Writing {
    /// The overlay (default: the device's name with .overlay).
    #[arg(long, value_name = "FILE")]
    overlay: Option<PathBuf>,
    /// Write the outcome to the devices. What they held is kept in an undo file
    /// beside the overlay.
    #[arg(long)]
    commit: bool,
    /// The same as --commit.
    #[arg(long)]
    in_place: bool,
    /// Accepted: nothing is asked.
    #[arg(short = 'y')]
    _yes: bool,
}

impl Writing {
    /// Opens the devices at `paths`, or those of the overlay there, and says how
    /// a repair of them ends.
    pub fn open(&self, paths: &[PathBuf]) -> Result<(Vec<Arc<dyn BlockDevice>>, Ending), Failure> {
        let named = butterfs::only_overlay(paths)?;
        let devices = match named {
            Some(overlay) => open_all(&butterfs::devices_of_overlay(overlay)?)?,
            None => open_all(paths)?,
        };
        let first = paths.first().map_or(Path::new(""), PathBuf::as_path);
        let usual = || usual_overlay(&first.display().to_string());
        let ending = Ending {
            overlay: only(named, self.overlay.as_deref())?.unwrap_or_else(usual),
            commit: self.commit || self.in_place,
            compare: false,
        };
        Ok((devices, ending))
    }
}

/// Which volume `butterfs rescue` changes.
#[derive(Args, Debug)]
pub struct Change {
    #[command(flatten)]
    writing: Writing,
    /// File or block device.
    volume: PathBuf,
}

/// How a repair ends.
pub struct Ending {
    overlay: PathBuf,
    commit: bool,
    compare: bool,
}

/// The overlay that is named in the place of a volume, or as an option.
fn only(named: Option<&Path>, option: Option<&Path>) -> Result<Option<PathBuf>, Failure> {
    match (named, option) {
        (Some(_), Some(_)) => fail("the volume is an overlay itself; leave out --overlay"),
        (named, option) => Ok(named.or(option).map(Path::to_owned)),
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Where the overlay of a device is if nobody says otherwise.
fn usual_overlay(device: &str) -> PathBuf {
    let path = Path::new(device);
    match path.is_file() {
        true => with_ending(path, ".overlay"),
        false => with_ending(Path::new(path.file_name().unwrap_or_default()), ".overlay"),
    }
}

impl RepairArguments {
    /// Whether anything is to be changed, or begun elsewhere than at the
    /// superblock's roots.
    pub const fn is_wanted(&self) -> bool {
        self.repair
            || self.init_csum_tree
            || self.init_extent_tree
            || self.clear_space_cache.is_some()
    }

    /// Repairs the volume on `devices`, which are open for reading, in the
    /// overlay that was named in their place, if one was. False if faults are
    /// left.
    pub fn run(
        &self,
        (devices, named): (Vec<Arc<dyn BlockDevice>>, Option<&Path>),
        check: CheckOptions,
        progress: &dyn Progress,
    ) -> Result<bool, Failure> {
        let first = devices.first().map(|device| device.identity());
        let options = Options {
            begin: Begin {
                superblock: check.superblock,
                tree_root: self.tree_root.map(Logical),
                chunk_root: self.chunk_root.map(Logical),
                backup: self.backup,
                chunks: None,
            },
            anew: Anew {
                checksums: self.init_csum_tree,
                extents: self.init_extent_tree,
                free_space: self.clear_space_cache.is_some(),
                ..Anew::default()
            },
            log: FsyncLog::Keep,
            memory_max: check.memory_max,
            check,
            ..Options::default()
        };
        let usual = || usual_overlay(&first.unwrap_or_default());
        let ending = Ending {
            overlay: only(named, self.overlay.as_deref())?.unwrap_or_else(usual),
            commit: self.commit || self.in_place,
            compare: !self.no_compare,
        };
        carry_out(devices, &options, progress, &ending)
    }
}

impl Change {
    /// Makes what `choose` sets anew.
    pub fn run(self, choose: impl FnOnce(&mut Anew)) -> Done {
        let mut options = Options::default();
        choose(&mut options.anew);
        let paths = butterfs::find_members(&self.volume);
        let (devices, ending) = self.writing.open(&paths)?;
        carry_out(devices, &options, &NoProgress, &ending).map(drop)
    }
}

/// Opens devices for reading.
pub fn open_all(paths: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
    let open = |path: &PathBuf| {
        let device = FileDevice::open(path, Access::ReadOnly)?;
        Ok(Arc::new(device) as Arc<dyn BlockDevice>)
    };
    paths.iter().map(open).collect()
}

/// Whether a superblock names an fsync log.
fn has_log(device: &Arc<dyn BlockDevice>) -> bool {
    let mut bytes = vec![0; SIZE];
    let primary = COPIES[0];
    let read = device.read_at(primary, &mut bytes);
    let parsed = Superblock::parse(&bytes, primary);
    read.is_ok() && parsed.is_ok_and(|superblock| superblock.log_root.get() != 0)
}

/// Brings back what fsync made durable.
fn replay_log(devices: &[Arc<dyn BlockDevice>]) -> Result<(), butterfs::Error> {
    if devices.iter().any(has_log) {
        Volume::open_devices(devices.to_vec(), OpenOptions::default())?.close()?;
        note!("the fsync log was replayed on the overlay");
    }
    Ok(())
}

fn carry_out(
    devices: Vec<Arc<dyn BlockDevice>>,
    options: &Options,
    progress: &dyn Progress,
    ending: &Ending,
) -> Result<bool, Failure> {
    let patient = Laid::open(devices, ending)?;
    if options.begin.is_plain() {
        // If the volume does not open yet, the log waits for the repair.
        let _ = replay_log(&patient.laid);
    }
    patient.repair(options, progress, ending)
}

/// A patient under its overlay.
pub struct Laid {
    devices: Vec<Arc<dyn BlockDevice>>,
    /// The devices with the changes of the overlay.
    pub laid: Vec<Arc<dyn BlockDevice>>,
    /// The overlay has changes of an earlier repair.
    was_there: bool,
}

impl Laid {
    /// Lays the overlay over `devices`, which are open for reading.
    pub fn open(devices: Vec<Arc<dyn BlockDevice>>, ending: &Ending) -> Result<Self, Failure> {
        let was_there = ending.overlay.exists();
        let laid = overlay::open(&ending.overlay, devices.clone(), Access::ReadWrite)?;
        Ok(Self {
            devices,
            laid,
            was_there,
        })
    }

    /// Takes the overlay away, unless an earlier repair made it.
    pub fn give_up(self, ending: &Ending) {
        drop(self.laid);
        if !self.was_there {
            let _ = std::fs::remove_file(&ending.overlay);
        }
    }

    /// Replays the log that a repair left, or throws it away if that is not
    /// possible, and repairs what is wrong then.
    fn end_log(
        &self,
        outcome: &mut Outcome,
        options: &Options,
        progress: &dyn Progress,
    ) -> Result<(), Failure> {
        let replayed = replay_log(&self.laid);
        if let Err(error) = &replayed {
            note!("the fsync log cannot be replayed: {error}");
        }
        let again = Options {
            begin: Begin::default(),
            anew: Anew {
                superblocks: replayed.is_err(),
                ..Anew::default()
            },
            log: FsyncLog::Drop,
            check: CheckOptions {
                superblock: None,
                ..options.check.clone()
            },
            ..options.clone()
        };
        let ended = repair(self.laid.clone(), &again, progress)?;
        outcome.steps.extend(ended.steps);
        outcome.after = ended.after;
        outcome.is_changed = true;
        Ok(())
    }

    /// Repairs the volume, says what was done, and commits it if asked to. False
    /// if faults are left.
    pub fn repair(
        self,
        options: &Options,
        progress: &dyn Progress,
        ending: &Ending,
    ) -> Result<bool, Failure> {
        let mut outcome = repair(self.laid.clone(), options, progress)?;
        if self.laid.iter().any(has_log) {
            self.end_log(&mut outcome, options, progress)?;
        }
        tell(&outcome)?;
        let file = ending.overlay.display();
        if !outcome.is_changed && !self.was_there {
            self.give_up(ending);
            say!("nothing was changed; there is no overlay");
            return Ok(outcome.after.is_clean());
        }
        if ending.compare {
            compare(&self.devices, &self.laid)?;
        }
        for device in &self.laid {
            device.flush()?;
        }
        drop(self);
        match ending.commit {
            true => commit(&ending.overlay, &[])?,
            false => {
                say!("the devices are as they were; all changes are in {file}");
                say!("look at it:      butterfs mount -o ro {file} DIRECTORY");
                say!("write it:        butterfs rescue commit {file}");
                say!("throw it away:   rm {file}");
            }
        }
        Ok(outcome.after.is_clean())
    }
}

fn tell(outcome: &Outcome) -> Done {
    if let Some(before) = &outcome.before {
        say!("before the repair:");
        show(before)?;
    } else {
        say!("before the repair the volume could not even be checked");
    }
    for (number, step) in (1..).zip(&outcome.steps) {
        say!("step {number}: {step}");
    }
    if outcome.is_changed {
        say!("after the repair:");
        show(&outcome.after)?;
    }
    if !outcome.after.is_clean() {
        say!(
            "what is left cannot be mended here; the faults name the files. `butterfs rescue survey` \
             says what else can be done"
        );
    }
    Ok(())
}

/// Compares what can be read before and after.
fn compare(before: &[Arc<dyn BlockDevice>], after: &[Arc<dyn BlockDevice>]) -> Done {
    let open = |devices: &[Arc<dyn BlockDevice>]| {
        let mut options = OpenOptions::read_only();
        options.subvolume = butterfs::Subvolume::Id(butterfs::TreeId::FS.get());
        Volume::open_devices(devices.to_vec(), options)
    };
    let Ok(old) = open(before) else {
        say!("before the repair no file could be read");
        return Ok(());
    };
    let new = open(after)?;
    let mut listed = 0;
    let mut paths = Vec::new();
    let Compared { entries, lost } = compare_readable(&old, &new, &mut |path| {
        listed += 1;
        if listed <= LISTED_MAX {
            paths.push(String::from_utf8_lossy(path).into_owned());
        }
    })?;
    match lost {
        0 => say!("files that were readable before and are not any more: none (of {entries})"),
        lost => say!("files that were readable before and are not any more: {lost} of {entries}"),
    }
    for path in paths {
        say!("  {path}");
    }
    Ok(())
}

/// The devices of an overlay or undo file, in its order, open for writing.
fn devices_of(file: &OverlayFile, given: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
    let names = &file.header().names;
    let paths: Vec<PathBuf> = match given {
        [] => names.iter().map(PathBuf::from).collect(),
        given => given.to_vec(),
    };
    let open = |path: &PathBuf| {
        let device = FileDevice::open(path, Access::ReadWrite)?;
        Ok(Arc::new(device) as Arc<dyn BlockDevice>)
    };
    paths.iter().map(open).collect()
}

/// Opens a file that grows, and makes it if it is not there.
fn growing(path: &Path) -> Result<Arc<dyn BlockDevice>, Failure> {
    let file = match path.exists() {
        true => GrowingFile::open(path, Access::ReadWrite)?,
        false => GrowingFile::create(path)?,
    };
    Ok(Arc::new(file))
}

/// `butterfs rescue commit`.
pub fn commit(path: &Path, devices: &[PathBuf]) -> Done {
    let backing = GrowingFile::open(path, Access::ReadOnly).context(path.display())?;
    let file = OverlayFile::open(Arc::new(backing)).context(path.display())?;
    let devices = devices_of(&file, devices)?;
    let undo = with_ending(path, ".undo");
    let done = transfer::commit(&file, &devices, growing(&undo)?)?;
    say!(
        "{} pages ({}) were written; {} keeps what was there before",
        done.pages,
        sizes::human(done.bytes),
        undo.display()
    );
    say!("bring it back:   butterfs rescue undo {}", path.display());
    Ok(())
}

/// `butterfs rescue undo`.
pub fn undo(path: &Path, devices: &[PathBuf]) -> Done {
    let is_undo = path.extension().is_some_and(|ending| ending == "undo");
    let path = match is_undo {
        true => path.to_owned(),
        false => with_ending(path, ".undo"),
    };
    if !path.exists() {
        return fail(format!(
            "there is no {}: nothing was written, so there is nothing to undo",
            path.display()
        ));
    }
    let backing = GrowingFile::open(&path, Access::ReadOnly).context(path.display())?;
    let file = OverlayFile::open(Arc::new(backing)).context(path.display())?;
    let devices = devices_of(&file, devices)?;
    let done = transfer::undo(&file, &devices)?;
    say!(
        "{} pages ({}) are as before the commit",
        done.pages,
        sizes::human(done.bytes)
    );
    Ok(())
}
