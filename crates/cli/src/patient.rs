//! Volumes that may not open, as the commands of recovery take them.
//!
//! Owns their options, and how a scan is shown and stopped. All devices are
//! opened for reading.

use crate::fail::{Context, Failure};
use crate::interrupt::Interrupt;
use crate::meter::Meter;
use crate::part::PartArguments;
use crate::sizes;
use butterfs::{Access, BlockDevice, Error, StoreError, open_part};
use butterfs_device::FileDevice;
use butterfs_format::superblock::Superblock;
use butterfs_rescue::{Patient, PatientOptions, RescueError, Step, Watch};
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use uuid::Uuid;

/// How a patient is opened.
#[derive(Args, Debug)]
pub struct PatientArguments {
    /// Keep what a scan finds in this file; a later command reads it instead of
    /// scanning, and a scan that was stopped goes on.
    #[arg(long, value_name = "FILE")]
    index: Option<PathBuf>,
    /// The volume with this UUID, where the devices have traces of several.
    #[arg(long, value_name = "UUID")]
    fsid: Option<Uuid>,
    /// Memory for the nodes that a scan finds, 96 bytes each (default 4g).
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse)]
    memory: Option<u64>,
    /// Use this copy of the superblock: 0, 1 or 2.
    #[arg(short = 'u', long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    superblock: Option<u8>,
    /// Threads of a scan (default: one for each core).
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    #[command(flatten)]
    part: PartArguments,
}

impl PatientArguments {
    /// Opens the devices at `paths`. The others of a volume are looked for
    /// beside a single one.
    pub fn open(&self, paths: &[PathBuf]) -> Result<Patient, Failure> {
        self.over(self.devices(paths)?)
    }

    /// As [`PatientArguments::open`], with what the fsync log says, if it can be
    /// replayed in memory.
    pub fn open_replayed(&self, paths: &[PathBuf]) -> Result<Patient, Failure> {
        let devices = self.devices(paths)?;
        let patient = self.over(devices.clone())?;
        let has_log = |superblock: &Superblock| superblock.log_root.get() != 0;
        if !patient.superblock().is_some_and(has_log) {
            return Ok(patient);
        }
        match butterfs::replayed_in_memory(&devices) {
            Ok(replayed) => self.over(replayed),
            Err(error) => {
                note!(
                    "what programs made durable since the last commit is in a fsync log, which \
                     cannot be replayed and is left out: {error}"
                );
                Ok(patient)
            }
        }
    }

    fn devices(&self, paths: &[PathBuf]) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
        let paths = match paths {
            [one] => butterfs::find_members(one),
            several => several.to_vec(),
        };
        if let Some(overlay) = butterfs::only_overlay(&paths)? {
            let devices = butterfs::open_overlay(overlay, Access::ReadOnly);
            return devices.context(overlay.display());
        }
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        for path in &paths {
            let device = open_part(path, Access::ReadOnly, self.part.part());
            devices.push(device.context(path.display())?);
        }
        Ok(devices)
    }

    fn over(&self, devices: Vec<Arc<dyn BlockDevice>>) -> Result<Patient, Failure> {
        let mut options = PatientOptions {
            fsid: self.fsid.map(Uuid::into_bytes),
            index: self.index.clone(),
            threads: self.threads.into(),
            superblock: self.superblock.map(usize::from),
            ..PatientOptions::default()
        };
        if let Some(memory) = self.memory {
            options.memory_max = memory;
        }
        Ok(Patient::open(devices, options)?)
    }

    /// The options as they are written in a command, with the volume.
    pub fn words(&self, paths: &[PathBuf]) -> String {
        let mut words = String::new();
        if let Some(index) = &self.index {
            words.push_str(&format!(" --index {}", shell(index)));
        }
        if let Some(fsid) = self.fsid {
            words.push_str(&format!(" --fsid {fsid}"));
        }
        if let Some(copy) = self.superblock {
            words.push_str(&format!(" -u {copy}"));
        }
        words.push_str(&self.part.words());
        for path in paths {
            words.push_str(&format!(" {}", shell(path)));
        }
        words
    }

    /// Whether an index file is named.
    pub const fn has_index(&self) -> bool {
        self.index.is_some()
    }
}

/// The failure of a volume that does not open because of damage names the way
/// to its files.
pub fn guided(failure: Failure, error: &Error, volume: &Path) -> Failure {
    let Error::Store(error) = error else {
        return failure;
    };
    match error.is_damage() || matches!(error, StoreError::NoSuperblock { .. }) {
        true => Failure(format!(
            "{}{}; begin with `butterfs rescue guide {}`",
            failure.0,
            chunk_tree_hint(&butterfs::find_members(volume)),
            shell(volume)
        )),
        false => failure,
    }
}

/// What brings back a chunk tree, with the words before it; empty if the chunk
/// tree of these devices is whole, or no superblock names one.
pub fn chunk_tree_hint(paths: &[PathBuf]) -> String {
    let open = |path: &PathBuf| -> Option<Arc<dyn BlockDevice>> {
        Some(Arc::new(FileDevice::open_unlocked(path).ok()?))
    };
    let devices: Option<Vec<_>> = match paths {
        [one] if butterfs::is_overlay(one) => butterfs::open_overlay(one, Access::ReadOnly).ok(),
        several => several.iter().map(open).collect(),
    };
    let patient = devices.map(|devices| Patient::open(devices, PatientOptions::default()));
    let Some(Ok(patient)) = patient else {
        return String::new();
    };
    let words: Vec<String> = paths.iter().map(|path| shell(path)).collect();
    match patient.needs_scan() && patient.superblock().is_some() {
        true => format!(
            "; its chunk tree is damaged, and `butterfs rescue chunk-recover {}` makes it anew from \
             what is left",
            words.join(" ")
        ),
        false => String::new(),
    }
}

/// A path as a shell takes it.
pub fn shell(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |one: char| one.is_alphanumeric() || "/._-+=:@%".contains(one);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', "'\\''")),
    }
}

/// Shows how far a recovery is, and stops it when somebody asks.
#[derive(Debug)]
pub struct Showing {
    asked: Arc<AtomicBool>,
    interrupt: Interrupt,
    meter: Mutex<(Option<Step>, Meter)>,
}

impl Showing {
    /// Begins to show.
    pub fn new() -> Result<Self, Failure> {
        let interrupt = Interrupt::watch()?;
        Ok(Self {
            asked: interrupt.asked(),
            interrupt,
            meter: Mutex::new((None, Meter::new())),
        })
    }

    /// Ends showing.
    pub fn end(&self) {
        let meter = self.meter.lock().unwrap_or_else(PoisonError::into_inner);
        meter.1.end();
    }

    /// The failure of a recovery: the interrupt, if it was that.
    pub fn failed(&self, error: RescueError) -> Failure {
        self.end();
        match (&error, self.interrupt.check()) {
            (RescueError::Stopped, Err(interrupted)) => interrupted,
            _ => error.into(),
        }
    }
}

impl Watch for Showing {
    fn progress(&self, step: Step, done: u64, total: u64) {
        if total == 0 || step == Step::Trees {
            return;
        }
        // Whoever finds it in use leaves it: somebody else is showing.
        if let Ok(mut meter) = self.meter.try_lock() {
            if meter.0 != Some(step) {
                meter.1.end();
                *meter = (Some(step), Meter::new());
            }
            meter.1.show(done.min(total), total);
        }
    }

    fn is_stopped(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }
}
