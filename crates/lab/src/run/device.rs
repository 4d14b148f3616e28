//! Devices: files full of random bytes behind loop devices, or block devices
//! that somebody gave.

use super::command::{self, TIME_LIMIT};
use super::undo::{Made, Undo};
use crate::stats::Random;
use butterfs_device::probe;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const MIB: usize = 1 << 20;

/// A device of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    /// Its file below /dev.
    pub(crate) path: PathBuf,
    /// The file behind it.
    pub(crate) file: Option<PathBuf>,
}

/// What a device has read and written, in sectors of 512 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sectors {
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Device {
    /// A loop device over a new file of random bytes.
    pub(crate) fn make(file: &Path, size: u64, undo: &mut Undo, seed: u64) -> Result<Self, String> {
        undo.will_make(Made::File(file.to_owned()))?;
        fill(file, size, seed).map_err(|error| format!("{}: {error}", file.display()))?;
        undo.will_make(Made::Loop(file.to_owned()))?;
        let line = ["losetup", "--direct-io=on", "--show", "-f"].map(str::to_owned);
        let line: Vec<String> = line
            .into_iter()
            .chain([file.display().to_string()])
            .collect();
        let said = command::run(&line, TIME_LIMIT)?;
        let path = loops_over(file)
            .into_iter()
            .next()
            .ok_or_else(|| format!("losetup made no device over {}: {said}", file.display()))?;
        let device = Self {
            path,
            file: Some(file.to_owned()),
        };
        // Discarded ranges would be holes, and reading holes costs nothing.
        for limit in [
            "discard_max_bytes",
            "write_zeroes_max_bytes",
            "write_zeroes_unmap_max_bytes",
        ] {
            // Older kernels do not have all of them; holes are found anyway.
            let _ = fs::write(device.queue(limit), "0");
        }
        Ok(device)
    }

    fn name(&self) -> String {
        let path = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        path.file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default()
    }

    fn queue(&self, name: &str) -> PathBuf {
        let own = Path::new("/sys/class/block").join(self.name());
        // A partition has the queue of its disk.
        let own = fs::canonicalize(&own).unwrap_or(own);
        let disk = match own.parent() {
            Some(disk) if own.join("partition").exists() => disk,
            _ => &own,
        };
        disk.join("queue").join(name)
    }

    /// It compresses what it holds (zram): figures depend on the data.
    pub(crate) fn compresses(&self) -> bool {
        self.name().starts_with("zram")
    }

    /// What the kernel says of its queue.
    pub(crate) fn queue_value(&self, name: &str) -> String {
        let text = fs::read_to_string(self.queue(name)).unwrap_or_default();
        text.trim().to_owned()
    }

    /// What it has read and written.
    pub(crate) fn sectors(&self) -> Sectors {
        let path = Path::new("/sys/class/block").join(self.name()).join("stat");
        let text = fs::read_to_string(path).unwrap_or_default();
        let field = |n: usize| text.split_whitespace().nth(n).and_then(|f| f.parse().ok());
        Sectors {
            read: field(2).unwrap_or(0),
            written: field(6).unwrap_or(0),
        }
    }

    /// Direct I/O of the loop device; None for others.
    pub(crate) fn is_direct(&self) -> Option<bool> {
        let path = Path::new("/sys/block").join(self.name()).join("loop/dio");
        fs::read_to_string(path).ok().map(|text| text.trim() == "1")
    }

    /// Its I/O scheduler, and all that it can have.
    pub(crate) fn schedulers(&self) -> (String, Vec<String>) {
        let text = fs::read_to_string(self.queue("scheduler")).unwrap_or_default();
        let chosen = text
            .split_once('[')
            .and_then(|(_, rest)| rest.split_once(']'));
        let all = text.replace(['[', ']'], " ");
        (
            chosen.map_or(String::new(), |(name, _)| name.to_owned()),
            all.split_whitespace().map(str::to_owned).collect(),
        )
    }

    /// Sets its I/O scheduler.
    pub(crate) fn schedule(&self, name: &str) -> Result<(), String> {
        let (_, known) = self.schedulers();
        if !known.iter().any(|other| other == name) {
            return Err(format!(
                "the kernel has no scheduler {name}; it has {}",
                known.join(", ")
            ));
        }
        fs::write(self.queue("scheduler"), name)
            .map_err(|error| format!("scheduler {name}: {error}"))
    }

    /// Overwrites the superblocks of the device, and fills the holes of the
    /// file behind it. Returns whether there were any holes.
    pub(crate) fn freshen(&self, seed: u64) -> Result<bool, String> {
        let at = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let mut holes = false;
        if let Some(file) = &self.file {
            let meta = fs::metadata(file).map_err(at)?;
            holes = meta.blocks() * 512 < meta.size();
            if holes {
                fill(file, meta.size(), seed).map_err(at)?;
            }
        }
        // Superblocks of all kinds are at both ends and, of Btrfs, at 64 MiB.
        let mut device = open_patiently(&self.path).map_err(at)?;
        let size = device.seek(SeekFrom::End(0)).map_err(at)?;
        let mut bytes = vec![0; MIB];
        let mut random = Random::new(seed);
        for place in [0, 64 << 20, size.saturating_sub(MIB as u64)] {
            if place + MIB as u64 <= size {
                scramble(&mut bytes, &mut random);
                device.seek(SeekFrom::Start(place)).map_err(at)?;
                device.write_all(&bytes).map_err(at)?;
            }
        }
        device.sync_all().map_err(at)?;
        Ok(holes)
    }
}

/// A program that looks at new devices may hold one for a moment.
fn open_patiently(path: &Path) -> std::io::Result<File> {
    let mut last = None;
    for _ in 0..50 {
        let flags = i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap_or(0);
        match OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(flags)
            .open(path)
        {
            Ok(file) => return Ok(file),
            Err(error) => last = Some(error),
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::ResourceBusy.into()))
}

fn scramble(bytes: &mut [u8], random: &mut Random) {
    for chunk in bytes.chunks_mut(8) {
        let word = random.bits().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Overwrites a whole file with bytes that nothing compresses.
fn fill(file: &Path, size: u64, seed: u64) -> std::io::Result<()> {
    let mut out = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(file)?;
    let mut random = Random::new(seed);
    let mut bytes = vec![0; MIB];
    let mut left = size;
    while left > 0 {
        scramble(&mut bytes, &mut random);
        let now = usize::try_from(left).unwrap_or(MIB).min(MIB);
        out.write_all(&bytes[..now])?;
        left -= now as u64;
    }
    out.sync_all()
}

/// Loop devices over a file.
pub(crate) fn loops_over(file: &Path) -> Vec<PathBuf> {
    let file = fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let deleted = format!("{} (deleted)", file.display());
    let Ok(entries) = fs::read_dir("/sys/block") else {
        return Vec::new();
    };
    entries
        .flatten()
        .filter(|entry| {
            let behind = fs::read_to_string(entry.path().join("loop/backing_file"));
            let behind = behind.unwrap_or_default();
            let behind = behind.trim_end();
            Path::new(behind) == file || behind == deleted
        })
        .map(|entry| Path::new("/dev").join(entry.file_name()))
        .collect()
}

/// Why block devices must not be overwritten.
pub(crate) fn refuse(paths: &[PathBuf], meant: &[PathBuf]) -> Vec<String> {
    paths
        .iter()
        .filter_map(|path| refuse_one(path, meant).err())
        .collect()
}

fn refuse_one(path: &Path, meant: &[PathBuf]) -> Result<(), String> {
    let name = path.display();
    let meta = fs::metadata(path).map_err(|error| format!("{name}: {error}"))?;
    if !meta.file_type().is_block_device() {
        return Err(format!("{name} is no block device"));
    }
    if let Some(holder) = butterfs_device::Holder::of(path) {
        return Err(format!("{name} is in use: {holder}"));
    }
    if meant.iter().any(|other| other == path) {
        return Ok(());
    }
    match content(path)? {
        Some(what) => Err(format!(
            "{name} holds {what}, which would be lost; --i-mean-it={name} says that it may be"
        )),
        None => Ok(()),
    }
}

/// What a device holds; `None` if both its ends are zero and no signature is
/// known.
fn content(path: &Path) -> Result<Option<String>, String> {
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let device = butterfs_device::FileDevice::open(path, butterfs_device::Access::ReadOnly)
        .map_err(|error| at(&error))?;
    if let Some(found) = probe::contents(&device)
        .map_err(|error| at(&error))?
        .first()
    {
        return Ok(Some(found.name().to_owned()));
    }
    let mut file = File::open(path).map_err(|error| at(&error))?;
    let size = file.seek(SeekFrom::End(0)).map_err(|error| at(&error))?;
    let mut bytes = vec![0; 4 * MIB];
    for place in [0, size.saturating_sub(bytes.len() as u64)] {
        file.seek(SeekFrom::Start(place))
            .map_err(|error| at(&error))?;
        let count = file.read(&mut bytes).map_err(|error| at(&error))?;
        if bytes[..count].iter().any(|byte| *byte != 0) {
            return Ok(Some("data".to_owned()));
        }
    }
    Ok(None)
}
