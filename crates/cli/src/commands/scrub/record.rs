//! Records of scrubs, in the place and the form of btrfs-progs, so that either
//! tool shows the records of the other.
//!
//! As long as a scrub runs, a file that it has locked lies beside the record.
//! If somebody wants something of the scrub, a second file says what: that it
//! ends, or how fast it goes.

use crate::fail::{Context, Done, Failure, fail};
use butterfs_admin::scrub::{DeviceProgress, Start};
use butterfs_format::{DeviceId, DeviceOffset};
use rustix::fs::{FlockOperation, flock};
use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where btrfs-progs keeps its records.
const SHARED: &str = "/var/lib/btrfs";
const FIRST_LINE: &str = "scrub status:1";

/// A device's line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Device.
    pub device: u64,
    /// Names and numbers.
    pub values: BTreeMap<String, u64>,
}

/// The order of names in a line.
const NAMES: [&str; 19] = [
    "data_extents_scrubbed",
    "tree_extents_scrubbed",
    "data_bytes_scrubbed",
    "tree_bytes_scrubbed",
    "read_errors",
    "csum_errors",
    "verify_errors",
    "no_csum",
    "csum_discards",
    "super_errors",
    "malloc_errors",
    "uncorrectable_errors",
    "corrected_errors",
    "last_physical",
    "t_start",
    "t_resumed",
    "duration",
    "canceled",
    "finished",
];

impl Line {
    /// A number; 0 where there is none.
    pub fn get(&self, name: &str) -> u64 {
        self.values.get(name).copied().unwrap_or(0)
    }

    /// The counters in their order.
    pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES[..14].iter().map(|name| (*name, self.get(name)))
    }

    /// The line of a device that is being scrubbed.
    pub fn of(progress: &DeviceProgress) -> Self {
        let counts = &progress.counts;
        let values = [
            ("data_extents_scrubbed", counts.data_extents),
            ("tree_extents_scrubbed", counts.tree_extents),
            ("data_bytes_scrubbed", counts.data_bytes),
            ("tree_bytes_scrubbed", counts.tree_bytes),
            ("read_errors", counts.read_errors),
            ("csum_errors", counts.csum_errors),
            ("verify_errors", counts.verify_errors),
            ("no_csum", counts.no_csum),
            ("super_errors", counts.super_errors),
            ("uncorrectable_errors", counts.uncorrectable_errors),
            ("corrected_errors", counts.corrected_errors),
            ("last_physical", progress.last.get()),
            ("finished", u64::from(progress.is_finished)),
        ];
        let values = values.into_iter();
        Self {
            device: progress.device.get(),
            values: values
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        }
    }

    /// Where a scrub that goes on begins.
    pub fn start(&self) -> (DeviceId, Start) {
        let mut start = Start {
            from: DeviceOffset(self.get("last_physical")),
            ..Start::default()
        };
        let counts = &mut start.counts;
        counts.data_extents = self.get("data_extents_scrubbed");
        counts.tree_extents = self.get("tree_extents_scrubbed");
        counts.data_bytes = self.get("data_bytes_scrubbed");
        counts.tree_bytes = self.get("tree_bytes_scrubbed");
        counts.read_errors = self.get("read_errors");
        counts.csum_errors = self.get("csum_errors");
        counts.verify_errors = self.get("verify_errors");
        counts.no_csum = self.get("no_csum");
        counts.super_errors = self.get("super_errors");
        counts.uncorrectable_errors = self.get("uncorrectable_errors");
        counts.corrected_errors = self.get("corrected_errors");
        (DeviceId(self.device), start)
    }
}

/// What is known of the last scrub of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// A line for each device.
    pub lines: Vec<Line>,
}

/// Now, in seconds since 1970, as records have times.
pub fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Whether a scrub runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// One does.
    Running,
    /// None does.
    Idle,
}

/// The directory of the records: that of btrfs-progs if this user may write
/// there, or else the user's own, or else one of the user for temporary files.
fn directory() -> Result<PathBuf, Failure> {
    let shared = Path::new(SHARED);
    let may_make = rustix::process::geteuid().is_root() && fs::create_dir_all(shared).is_ok();
    if may_make || is_writable(shared) {
        return Ok(shared.to_owned());
    }
    if let Some(state) = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from)
        && state.is_absolute()
    {
        let state = state.join("butterfs");
        return match fs::create_dir_all(&state) {
            Ok(()) => Ok(state),
            Err(error) => fail(unusable(&state, &error)),
        };
    }
    // Without HOME, the directory of the user's entry in the passwd database.
    let home = std::env::home_dir().filter(|path| path.is_absolute());
    let own = home.map(|home| home.join(".local/state/butterfs"));
    let own = own.filter(|path| fs::create_dir_all(path).is_ok() && is_writable(path));
    own.map_or_else(temporary, Ok)
}

/// Why a directory cannot have the records.
fn unusable(directory: &Path, reason: &dyn Display) -> String {
    let directory = directory.display();
    format!(
        "{directory}: {reason}; the state of scrubs is kept there: set XDG_STATE_HOME to a \
         directory that you may write to"
    )
}

fn is_writable(directory: &Path) -> bool {
    let access = rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK;
    rustix::fs::access(directory, access).is_ok()
}

/// A directory of this user alone among temporary files, for users without a
/// home that they may write to.
fn temporary() -> Result<PathBuf, Failure> {
    let user = rustix::process::geteuid();
    let path = std::env::temp_dir().join(format!("butterfs-state-{}", user.as_raw()));
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            return fail(unusable(&path, &error));
        }
        _ => {}
    }
    // Somebody else may have made it.
    let found = fs::symlink_metadata(&path).context(path.display())?;
    match found.is_dir() && found.uid() == user.as_raw() && found.mode() & 0o022 == 0 {
        true => Ok(path),
        false => fail(unusable(&path, &"it is not a directory of yours alone")),
    }
}

fn file(what: &str, uuid: &str) -> Result<PathBuf, Failure> {
    Ok(directory()?.join(format!("scrub.{what}.{uuid}")))
}

impl Record {
    /// The record of the last scrub of a volume, if there was one.
    pub fn load(uuid: &str) -> Result<Option<Self>, Failure> {
        let path = file("status", uuid)?;
        match fs::read_to_string(&path) {
            Ok(text) => Self::parse(&text, uuid).map(Some).ok_or_else(|| {
                Failure(format!(
                    "{}: is no record of a scrub; remove it, and scrub anew",
                    path.display()
                ))
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).context(path.display()),
        }
    }

    fn parse(text: &str, uuid: &str) -> Option<Self> {
        let mut lines = text.lines();
        if lines.next() != Some(FIRST_LINE) {
            return None;
        }
        let mut record = Self::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let mut words = line.split('|');
            let (id, device) = words.next()?.split_once(':')?;
            if id != uuid {
                return None;
            }
            let mut line = Line {
                device: device.parse().ok()?,
                ..Line::default()
            };
            for word in words {
                let (name, value) = word.split_once(':')?;
                line.values.insert(name.to_owned(), value.parse().ok()?);
            }
            record.lines.push(line);
        }
        Some(record)
    }

    /// Writes it down, in one piece.
    pub fn store(&self, uuid: &str) -> Done {
        let path = file("status", uuid)?;
        let mut text = format!("{FIRST_LINE}\n");
        for line in &self.lines {
            let _ = write!(text, "{uuid}:{}", line.device);
            for name in NAMES {
                let _ = write!(text, "|{name}:{}", line.get(name));
            }
            text.push('\n');
        }
        let new = path.with_extension(format!("{uuid}_tmp"));
        fs::write(&new, text).context(new.display())?;
        fs::rename(&new, &path).context(path.display())
    }

    /// Whether the scrub stopped before it was complete.
    pub fn can_go_on(&self) -> bool {
        self.lines.iter().any(|line| line.get("finished") == 0)
    }

    /// Errors that no copy corrects.
    pub fn uncorrectable(&self) -> u64 {
        let errors = self.lines.iter();
        errors.map(|line| line.get("uncorrectable_errors")).sum()
    }

    /// The sum of all devices.
    pub fn sum(&self) -> Line {
        let mut sum = Line::default();
        for line in &self.lines {
            for (name, value) in &line.values {
                let entry = sum.values.entry(name.clone()).or_default();
                *entry = match name.as_str() {
                    "t_start" | "t_resumed" | "duration" | "canceled" => *value.max(entry),
                    _ => entry.saturating_add(*value),
                };
            }
        }
        let finished = !self.can_go_on();
        sum.values.insert("finished".to_owned(), finished.into());
        sum
    }
}

/// Locked while a scrub runs.
#[derive(Debug)]
pub struct Running {
    _locked: File,
    path: PathBuf,
    wish: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        let _ = fs::remove_file(&self.wish);
    }
}

impl Running {
    /// Notes that a scrub runs. Errors while another one runs.
    pub fn begin(uuid: &str) -> Result<Self, Failure> {
        let path = file("running", uuid)?;
        let opened = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let locked = opened.context(path.display())?;
        if flock(&locked, FlockOperation::NonBlockingLockExclusive).is_err() {
            return fail(
                "a scrub of this volume is under way; `butterfs scrub status` shows it, `scrub cancel` ends it",
            );
        }
        let wish = file("cancel", uuid)?;
        let _ = fs::remove_file(&wish);
        Ok(Self {
            _locked: locked,
            path,
            wish,
        })
    }

    /// Whether somebody wants it to end.
    pub fn is_unwanted(&self) -> bool {
        self.wish.exists()
    }
}

/// Whether a scrub of a volume runs.
pub fn state_of(uuid: &str) -> Result<State, Failure> {
    let path = file("running", uuid)?;
    let opened = match File::open(&path) {
        Ok(opened) => opened,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(State::Idle),
        Err(error) => return Err(error).context(path.display()),
    };
    Ok(
        match flock(&opened, FlockOperation::NonBlockingLockShared) {
            Ok(()) => State::Idle,
            Err(_) => State::Running,
        },
    )
}

/// Asks the running scrub to end.
pub fn ask_to_cancel(uuid: &str) -> Done {
    let path = file("cancel", uuid)?;
    fs::write(&path, "").context(path.display())
}

/// Bytes per second, if somebody set a limit.
pub fn limit(uuid: &str) -> Option<u64> {
    let text = fs::read_to_string(file("limit", uuid).ok()?).ok()?;
    text.trim().parse().ok().filter(|limit| *limit > 0)
}

/// Sets the limit in bytes per second; 0 for none.
pub fn set_limit(uuid: &str, limit: u64) -> Done {
    let path = file("limit", uuid)?;
    fs::write(&path, format!("{limit}\n")).context(path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_btrfs_progs_are_read() {
        let uuid = "fb8265ae-df1a-4dd2-800d-c6faa20de133";
        let text = format!(
            "scrub status:1\n{uuid}:1|data_extents_scrubbed:90|tree_extents_scrubbed:20|\
             data_bytes_scrubbed:2662400|tree_bytes_scrubbed:327680|read_errors:0|csum_errors:3|\
             verify_errors:0|no_csum:20|csum_discards:0|super_errors:0|malloc_errors:0|\
             uncorrectable_errors:2|corrected_errors:1|last_physical:260243456|\
             t_start:1795380750|t_resumed:0|duration:7|canceled:0|finished:1\n"
        );
        let record = Record::parse(&text, uuid).unwrap();
        assert_eq!(record.uncorrectable(), 2);
        assert!(!record.can_go_on());
        let sum = record.sum();
        assert_eq!(sum.get("data_bytes_scrubbed"), 2_662_400);
        assert_eq!(sum.get("duration"), 7);
        let (device, start) = record.lines[0].start();
        assert_eq!((device.get(), start.from.get()), (1, 260_243_456));
        assert!(Record::parse(&text, "another").is_none());
        assert!(Record::parse("nothing\n", uuid).is_none());
    }
}
