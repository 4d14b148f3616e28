//! `butterfs rescue guide`: from "it does not mount" to files.
//!
//! Asks nothing that can be found out. It opens the volume for reading, measures
//! how fast the devices are read, and prints the steps that are left.

use crate::fail::Done;
use crate::patient::{PatientArguments, shell};
use crate::sizes::human;
use butterfs::{OpenOptions, Volume};
use butterfs_device::FileDevice;
use butterfs_format::DeviceOffset;
use butterfs_rescue::{ChunkSource, Patient, ScanScope};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes that are read to measure a device.
const SAMPLE: u64 = 64 << 20;

/// Takes you from "it does not mount" to your files, in at most five steps. It
/// asks nothing and writes nothing.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs rescue guide disk.img
  butterfs rescue guide --to /mnt/saved /dev/sdx1")]
pub struct Guide {
    /// Where the files are to go: a directory on another disk.
    #[arg(long, value_name = "DIRECTORY", default_value = "DIRECTORY")]
    to: PathBuf,
    #[command(flatten)]
    patient: PatientArguments,
    /// All devices of the volume.
    #[arg(required = true)]
    volumes: Vec<PathBuf>,
}

/// A step: what it does, how long it takes, and the command.
struct Step {
    does: String,
    takes: String,
    command: String,
}

impl Guide {
    /// Runs it.
    pub fn run(&self) -> Done {
        let speed = self.speed();
        let mut steps = Vec::new();
        let opened = match &self.volumes[..] {
            [one] => Volume::open(one, OpenOptions::read_only()).map(|_| ()),
            several => Volume::open_all(several, OpenOptions::read_only()).map(|_| ()),
        };
        let patient = self.patient.open(&self.volumes)?;
        match &opened {
            Ok(()) => say!("What was found: the volume opens for reading."),
            Err(error) => say!("What was found: the volume does not open: {error}"),
        }
        self.found(&patient)?;
        say!("");
        say!("Nothing below writes to the devices. Do not mount them writable before your");
        say!("files are elsewhere, and do not run repairs on the only copy. If a device is");
        say!("failing, copy it first (ddrescue) and go on with the copy.");
        if opened.is_ok() && self.volumes.len() == 1 {
            steps.push(self.mount());
        }
        self.steps(&patient, speed, &mut steps);
        for (number, step) in steps.iter().enumerate() {
            say!("");
            say!("Step {}: {}", number + 1, step.does);
            say!("    {}", step.command);
            say!("    takes {}; nothing is written to the volume", step.takes);
        }
        Ok(())
    }

    fn found(&self, patient: &Patient) -> Done {
        let (good, all) = patient.superblock_copies();
        say!("  superblocks: {good} of {all} copies are good");
        let chunks = match patient.map_facts().source {
            ChunkSource::Tree => "the chunk tree is whole",
            ChunkSource::Remains => "the chunk tree is damaged; the rest is looked for by a scan",
            ChunkSource::Nothing => "no chunk tree was found yet; a scan looks for what is left",
        };
        say!("  chunks: {chunks}");
        if patient.needs_scan() && patient.superblock().is_some() {
            say!("    (`butterfs rescue chunk-recover` makes it anew, on an overlay)");
        }
        for id in patient.missing() {
            say!("  device {id} is missing: name it too if you have it");
        }
        Ok(())
    }

    fn mount(&self) -> Step {
        let volume = self.volumes.first().map_or(Path::new(""), PathBuf::as_path);
        Step {
            does: "look at the files where they are".to_owned(),
            takes: "a second".to_owned(),
            command: format!("butterfs mount -o ro {} {}", shell(volume), shell(&self.to)),
        }
    }

    fn steps(&self, patient: &Patient, speed: f64, steps: &mut Vec<Step>) {
        let bytes = patient.scan_bytes(ScanScope::Nodes);
        let mut words = self.patient.words(&self.volumes);
        if !self.patient.has_index() {
            words = format!(" --index rescue.index{words}");
        }
        steps.push(Step {
            does: format!(
                "see what is left, and in which generations ({} are read)",
                human(bytes)
            ),
            takes: time(bytes, speed),
            command: format!("butterfs rescue survey{words}"),
        });
        steps.push(Step {
            does: "list the files that would come back".to_owned(),
            takes: "about a minute for each million files".to_owned(),
            command: format!("butterfs restore --all -D{words}"),
        });
        let used = patient.superblock().map(|one| one.bytes_used);
        let room = used.map_or_else(String::new, |used| format!(" (up to {})", human(used)));
        steps.push(Step {
            does: format!("bring the files out, verified{room}; repeat it if it is cut short"),
            takes: used.map_or_else(|| "as long as a copy".to_owned(), |used| time(used, speed)),
            command: format!("butterfs restore --all{words} {}", shell(&self.to)),
        });
        steps.push(Step {
            does: "look for files that were deleted, or older versions of files that are not whole"
                .to_owned(),
            takes: "as long as the second step, if the index is there".to_owned(),
            command: format!("butterfs undelete{words}"),
        });
    }

    /// Bytes in a second that the first device gives.
    fn speed(&self) -> f64 {
        let Some(Ok(device)) = self
            .volumes
            .first()
            .map(|path| FileDevice::open_unlocked(path))
        else {
            return 100e6;
        };
        let size = butterfs::BlockDevice::size(&device);
        let mut buffer = vec![0; 4 << 20];
        let begun = Instant::now();
        let mut read = 0_u64;
        // From the middle: the beginning may be in memory.
        let mut at = (size / 2) & !0xfff;
        while read < SAMPLE && at + buffer.len() as u64 <= size && begun.elapsed().as_secs() < 2 {
            if butterfs::BlockDevice::read_at(&device, DeviceOffset(at), &mut buffer).is_err() {
                break;
            }
            at += buffer.len() as u64;
            read += buffer.len() as u64;
        }
        match read {
            0 => 100e6,
            _ => read as f64 / begun.elapsed().as_secs_f64().max(1e-6),
        }
    }
}

/// About how long it takes to read this many bytes.
fn time(bytes: u64, speed: f64) -> String {
    let seconds = bytes as f64 / speed.max(1.0);
    if seconds < 90.0 {
        format!("about {} s", seconds.ceil().max(1.0))
    } else if seconds < 5400.0 {
        format!("about {} min", (seconds / 60.0).ceil())
    } else {
        format!("about {} h", (seconds / 3600.0).ceil())
    }
}
