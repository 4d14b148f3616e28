//! What holds the volumes of a run. Figures of work that waits for a device
//! compare only if all subjects have the same kind of device: a file in memory
//! flushes for free, a loop device over it does not.

use super::run;
use butterfs_lab::run::undo::{Made, Undo};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Bytes of a volume.
const IMAGE: u64 = 4 << 30;
/// A directory of the machine's own disk.
const DISK: &str = "/var/tmp";

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// ButterFS has a file in memory, whose flushes cost nothing; the kernel
    /// has a buffered loop device over it, whose flushes cost it something.
    Memory,
    /// All have one loop device with direct I/O over a file in memory.
    Loop,
    /// All have one loop device with direct I/O over a file on the machine's
    /// disk. ButterFS has such a file, too.
    Disk,
    /// All have one loop device with direct I/O over a file whose writes and
    /// flushes take at least these times, in microseconds.
    Delayed { write: u32, flush: u32 },
}

impl Medium {
    /// `memory`, `loop`, `disk` or `delayed:WRITE:FLUSH`.
    pub fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(':').collect();
        match words.as_slice() {
            ["memory"] => Some(Self::Memory),
            ["loop"] => Some(Self::Loop),
            ["disk"] => Some(Self::Disk),
            ["delayed", write, flush] => Some(Self::Delayed {
                write: write.parse().ok()?,
                flush: flush.parse().ok()?,
            }),
            _ => None,
        }
    }

    /// For the head of a report.
    pub fn described(self) -> String {
        match self {
            Self::Memory => "a file in memory, whose flushes cost nothing; for the kernel, a \
                 buffered loop device over it, whose flushes cost something: figures of durable \
                 work do not compare"
                .to_owned(),
            Self::Loop => "one loop device with direct I/O over a file in memory".to_owned(),
            Self::Disk => format!(
                "one loop device with direct I/O over a file in {DISK}; \"file\" is such a file \
                 without a loop device"
            ),
            Self::Delayed { write, flush } => format!(
                "one loop device with direct I/O over a file in memory, each write of which takes \
                 at least {write} µs and each flush {flush} µs"
            ),
        }
    }
}

/// The devices of a run.
pub struct Devices {
    /// What all subjects can have.
    pub shared: PathBuf,
    /// What only ButterFS can have.
    pub file: Option<PathBuf>,
    /// Serves a delayed file; it ends when that is unmounted.
    _server: Option<Child>,
}

impl Devices {
    /// Makes them in `work`, a directory in memory that exists.
    pub fn make(medium: Medium, work: &Path, undo: &mut Undo) -> Result<Self, String> {
        let in_memory = work.join("volume.img");
        let only = |shared| Self {
            shared,
            file: None,
            _server: None,
        };
        match medium {
            Medium::Memory => {
                filled(&in_memory)?;
                Ok(only(in_memory))
            }
            Medium::Loop => {
                filled(&in_memory)?;
                loop_over(&in_memory, undo).map(only)
            }
            Medium::Disk => {
                let work = Path::new(DISK).join(format!("butterfs-bench-{}", std::process::id()));
                undo.will_make(Made::Directory(work.clone()))?;
                std::fs::create_dir_all(&work)
                    .map_err(|error| format!("{}: {error}", work.display()))?;
                let [behind, file] = ["behind.img", "file.img"].map(|name| work.join(name));
                filled(&behind)?;
                filled(&file)?;
                Ok(Self {
                    file: Some(file),
                    ..only(loop_over(&behind, undo)?)
                })
            }
            Medium::Delayed { write, flush } => {
                filled(&in_memory)?;
                let point = work.join("delayed");
                let server = delay(&in_memory, &point, [write, flush], undo)?;
                Ok(Self {
                    _server: Some(server),
                    ..only(loop_over(&point.join("device"), undo)?)
                })
            }
        }
    }
}

/// A file that has all its space.
fn filled(file: &Path) -> Result<(), String> {
    let made = File::create(file).and_then(|made| {
        fallocate(&made, FallocateFlags::empty(), 0, IMAGE)?;
        made.sync_all()
    });
    made.map_err(|error| format!("{}: {error}", file.display()))
}

fn loop_over(file: &Path, undo: &mut Undo) -> Result<PathBuf, String> {
    undo.will_make(Made::Loop(file.to_owned()))?;
    let mut losetup = Command::new("losetup");
    losetup.args(["--direct-io=on", "--show", "-f"]).arg(file);
    let output = losetup.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let device = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    let name = device.file_name().unwrap_or_default();
    let direct = Path::new("/sys/block").join(name).join("loop/dio");
    if std::fs::read_to_string(&direct).is_ok_and(|text| text.trim() == "1") {
        Ok(device)
    } else {
        Err(format!("{} has no direct I/O", device.display()))
    }
}

/// Serves `file` with delays at `point`.
fn delay(
    file: &Path,
    point: &Path,
    [write, flush]: [u32; 2],
    undo: &mut Undo,
) -> Result<Child, String> {
    std::fs::create_dir_all(point).map_err(|error| format!("{}: {error}", point.display()))?;
    let place = point.to_str().unwrap_or_default().to_owned();
    undo.will_make(Made::Mount {
        directory: point.to_owned(),
        unmount: vec![vec!["umount".to_owned(), place]],
    })?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = own.with_file_name("examples").join("delayed");
    let mut server = Command::new(&program)
        .arg(file)
        .arg(point)
        .args([write.to_string(), flush.to_string()])
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    let mut line = String::new();
    if let Some(out) = server.stdout.take() {
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if line.trim() == "mounted" {
        Ok(server)
    } else {
        Err(format!("{} did not mount", program.display()))
    }
}

/// A file system of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelFileSystem {
    Btrfs,
    Ext4,
    Xfs,
}

impl KernelFileSystem {
    /// As people call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Btrfs => "kernel Btrfs",
            Self::Ext4 => "ext4",
            Self::Xfs => "XFS",
        }
    }

    /// Makes it; Btrfs is made by ButterFS, with the same options for all.
    pub fn make(self, device: &Path) {
        let device = device.to_str().unwrap();
        let (program, options): (_, &[&str]) = match self {
            Self::Btrfs => return super::subject::make_btrfs(Path::new(device)),
            Self::Ext4 => (
                "mkfs.ext4",
                &[
                    "-q",
                    "-F",
                    "-E",
                    "nodiscard,lazy_itable_init=0,lazy_journal_init=0",
                ],
            ),
            Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        };
        let arguments: Vec<&str> = options.iter().copied().chain([device]).collect();
        run(program, &arguments);
    }
}
