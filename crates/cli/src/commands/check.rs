//! `butterfs check`, also called fsck.butterfs and btrfsck.
//!
//! Owns the options and how a report is shown. The crate `check` does the check
//! itself.

use crate::commands::check_report::{severity_name, show};
use crate::commands::repair::{RepairArguments, open_all};
use crate::fail::{Done, Failure, fail};
use crate::log;
use crate::output;
use crate::part::PartArguments;
use crate::patient::chunk_tree_hint;
use crate::place::json;
use crate::sizes;
use butterfs::{Access, BlockDevice, FileDevice, held_instead, open_part, part_of};
use butterfs_check::{CheckError, DataChecksums, Options, Phase, Progress, Report, Status};
use butterfs_device::Holder;
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

/// Exit code where faults were found.
pub const FAULTS: u8 = 1;
/// The volume could not be checked; fsck(8) calls this an operational error.
const NOT_CHECKED: u8 = 8;

/// Checks a volume that is not mounted; repairs it, if asked to, on an overlay.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs check disk.img
  butterfs check --check-data-csum --progress /dev/sdx1
  butterfs check --json disk.img | jq .counts
  butterfs check --repair disk.img                what a repair would do; disk.img stays as it is
  butterfs check --repair --commit disk.img       the same, and write it to disk.img

Exit codes: 0 clean (warnings aside), 1 faults found, 2 a mistake in the arguments, 8 it could not be checked.
Called as fsck.butterfs it takes the options of fsck(8) and has its exit codes (4 faults, 16 a mistake);
at boot (-a, -p) it checks nothing, since a mount replays what a crash left.")]
pub struct Check {
    /// Read all file data and nodes, every copy, and compare them with their
    /// checksums.
    #[arg(long)]
    check_data_csum: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Use at most this much memory (default 1g).
    #[arg(long, value_parser = sizes::parse, value_name = "SIZE")]
    memory: Option<u64>,
    /// Threads, at most 256 (default: one for each core).
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    /// Show how far it is, with the time that is left.
    #[arg(short, long)]
    progress: bool,
    /// Begin with this copy of the superblock: 0, 1 or 2.
    #[arg(short, long = "super", value_name = "N", value_parser = clap::value_parser!(u8).range(0..=2))]
    superblock: Option<u8>,
    /// Faults of each kind to describe; all are counted.
    #[arg(long, default_value_t = 100, value_name = "N")]
    faults: usize,
    /// Check although the volume is in use; what is being written may look
    /// like a fault.
    #[arg(long)]
    force: bool,
    /// Accepted: without --repair nothing is written.
    #[arg(long = "readonly", conflicts_with = "repair")]
    _readonly: bool,
    /// Accepted: there is one way to look for faults.
    #[arg(long = "mode", value_name = "MODE", value_parser = ["original", "lowmem"])]
    _mode: Option<String>,
    /// Print the recorded and the counted usage of each quota group.
    #[arg(short = 'Q', long)]
    qgroup_report: bool,
    #[command(flatten)]
    repair: RepairArguments,
    #[command(flatten)]
    part: PartArguments,
    /// Print every kind of fault with its meaning.
    #[arg(long, exclusive = true)]
    list_codes: bool,
    /// File or block device. The other devices of a volume of several are looked
    /// for beside it, unless they are given too.
    #[arg(required_unless_present = "list_codes")]
    devices: Vec<PathBuf>,
}

#[derive(Serialize)]
struct FaultFact<'r> {
    code: &'static str,
    severity: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tree: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<(u64, u8, u64)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logical: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'r str>,
    sentence: &'r str,
}

#[derive(Serialize)]
struct Figures {
    bytes_used: u64,
    nodes: u64,
    extents: u64,
    checksummed_bytes: u64,
    data_bytes_read: u64,
    subvolumes: u64,
    inodes: u64,
    directories: u64,
}

#[derive(Serialize)]
struct Facts<'r> {
    clean: bool,
    counts: BTreeMap<&'static str, u64>,
    faults: Vec<FaultFact<'r>>,
    unchecked: &'r [String],
    figures: Figures,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    quota_groups: Vec<GroupFact>,
}

/// What a quota group says that it uses, and what it uses; bytes.
#[derive(Serialize)]
struct GroupFact {
    group: String,
    referenced: u64,
    exclusive: u64,
    noted_referenced: u64,
    noted_exclusive: u64,
}

/// A bar on standard error.
struct Bar {
    bar: ProgressBar,
    phase: Mutex<Option<Phase>>,
}

impl Bar {
    fn new(wanted: bool) -> Self {
        let target = if wanted {
            ProgressDrawTarget::stderr()
        } else {
            ProgressDrawTarget::hidden()
        };
        Self {
            bar: ProgressBar::with_draw_target(Some(0), target),
            phase: Mutex::new(None),
        }
    }
}

impl Progress for Bar {
    fn status(&self, status: Status) {
        if self.bar.is_hidden() {
            return;
        }
        let mut phase = self.phase.lock().expect("no thread panics with it");
        if *phase != Some(status.phase) {
            *phase = Some(status.phase);
            let template = if status.total > 0 {
                "{msg:20} {bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left"
            } else {
                "{msg:20} {bytes} {bytes_per_sec}"
            };
            let style = ProgressStyle::with_template(template);
            self.bar.set_style(style.expect("the template is right"));
            self.bar.reset();
            self.bar.set_length(status.total);
            self.bar.set_message(status.phase.to_string());
        }
        self.bar.set_position(status.done);
    }
}

impl Check {
    /// Runs it. `faults` is the exit code if faults are found.
    pub fn run(&self, faults: u8) -> ExitCode {
        let done = if self.list_codes {
            list_codes().map(|()| true)
        } else {
            self.check()
        };
        let code = done.map(|is_clean| match is_clean {
            true => ExitCode::SUCCESS,
            false => ExitCode::from(faults),
        });
        output::end(code, NOT_CHECKED)
    }

    fn check(&self) -> Result<bool, Failure> {
        log::start(log::Target::Terminal)?;
        let default = Options::default();
        let options = Options {
            threads: self.threads.into(),
            data: if self.check_data_csum {
                DataChecksums::Verify
            } else {
                DataChecksums::Ignore
            },
            memory_max: self.memory.unwrap_or(default.memory_max),
            faults_max: self.faults,
            superblock: self.superblock.map(usize::from),
        };
        let overlay = butterfs::only_overlay(&self.devices)?;
        if self.repair.is_wanted() {
            let devices = match overlay {
                Some(overlay) => open_all(&butterfs::devices_of_overlay(overlay)?)?,
                None => self.open()?,
            };
            let bar = Bar::new(self.progress);
            let done = self.repair.run((devices, overlay), options, &bar);
            bar.bar.finish_and_clear();
            return done;
        }
        let mut devices = match overlay {
            Some(overlay) => butterfs::open_overlay(overlay, Access::ReadOnly)?,
            None => self.open()?,
        };
        if let Some(overlay) = &self.repair.overlay {
            devices = butterfs_repair::overlay::open(overlay, devices, Access::ReadOnly)?;
        }
        let bar = Bar::new(self.progress);
        let report = butterfs_check::check(devices, &options, &bar);
        bar.bar.finish_and_clear();
        let report = report.map_err(|error: CheckError| self.instead(&error))?;
        if self.json {
            json(&facts(&report))?;
        } else {
            if self.qgroup_report {
                show_groups(&report)?;
            }
            show(&report)?;
        }
        Ok(report.is_clean())
    }

    /// What the device holds if it holds no volume.
    fn instead(&self, error: &CheckError) -> Failure {
        if let (CheckError::NoSuperblock { .. }, [path]) = (error, &self.devices[..]) {
            let device = open_part(path, Access::ReadOnly, self.part.part());
            let held = device.and_then(|device| held_instead(&device));
            if let Ok(Some(held)) = held {
                return Failure(format!("{} {held}", path.display()));
            }
        }
        if matches!(error, CheckError::NoSuperblock { .. }) {
            return Failure(format!("{error}{}", chunk_tree_hint(&self.devices)));
        }
        Failure(error.to_string())
    }

    fn open(&self) -> Result<Vec<Arc<dyn BlockDevice>>, Failure> {
        let mut devices: Vec<Arc<dyn BlockDevice>> = Vec::new();
        let paths = match &self.devices[..] {
            [one] => butterfs::find_members(one),
            several => several.to_vec(),
        };
        for path in &paths {
            if !self.force
                && let Some(holder) = Holder::of(path)
            {
                return fail(format!(
                    "{} is in use by {holder}; unmount it first, or check it with --force",
                    path.display()
                ));
            }
            let part = self.part.part();
            devices.push(match self.force {
                true => part_of(Arc::new(FileDevice::open_unlocked(path)?), part)?,
                false => open_part(path, Access::ReadOnly, part)?,
            });
        }
        Ok(devices)
    }
}

fn facts(report: &Report) -> Facts<'_> {
    let figures = &report.figures;
    Facts {
        clean: report.is_clean(),
        counts: report
            .counts
            .iter()
            .map(|(code, count)| (code.name(), *count))
            .collect(),
        faults: report
            .faults
            .iter()
            .map(|fault| FaultFact {
                code: fault.code.name(),
                severity: severity_name(fault.code.severity()),
                tree: fault.place.tree.map(|tree| tree.get()),
                key: fault
                    .place
                    .key
                    .map(|key| (key.objectid, key.item_type.0, key.offset)),
                logical: fault.place.logical.map(|logical| logical.get()),
                path: fault.path.as_deref(),
                sentence: &fault.sentence,
            })
            .collect(),
        unchecked: &report.unchecked,
        quota_groups: report
            .quota_groups
            .iter()
            .map(|numbers| GroupFact {
                group: numbers.group.to_string(),
                referenced: numbers.referenced,
                exclusive: numbers.exclusive,
                noted_referenced: numbers.noted_referenced,
                noted_exclusive: numbers.noted_exclusive,
            })
            .collect(),
        figures: Figures {
            bytes_used: figures.bytes_used,
            nodes: figures.nodes,
            extents: figures.extents,
            checksummed_bytes: figures.checksummed_bytes,
            data_bytes_read: figures.data_bytes_read,
            subvolumes: figures.subvolumes,
            inodes: figures.inodes,
            directories: figures.directories,
        },
    }
}

/// Prints the numbers of quota groups as the Btrfs tools do.
fn show_groups(report: &Report) -> Done {
    for numbers in &report.quota_groups {
        let pairs = [
            ("referenced", numbers.referenced, numbers.noted_referenced),
            ("exclusive", numbers.exclusive, numbers.noted_exclusive),
        ];
        let differ = pairs.iter().any(|(_, found, noted)| found != noted);
        let group = numbers.group;
        match differ {
            true => say!("Counts for qgroup id: {group} are different"),
            false => say!("Counts for qgroup id: {group} "),
        }
        for (name, found, noted) in pairs {
            say!("our:\t\t{name} {found} {name} compressed {found}");
            say!("disk:\t\t{name} {noted} {name} compressed {noted}");
            let difference = i128::from(found) - i128::from(noted);
            if difference != 0 {
                say!("diff:\t\t{name} {difference} {name} compressed {difference}");
            }
        }
    }
    Ok(())
}

fn list_codes() -> Done {
    for code in butterfs_check::FaultCode::ALL {
        say!("{:<28} {}", code.name(), code.meaning());
    }
    Ok(())
}
