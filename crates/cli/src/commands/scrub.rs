//! `butterfs scrub`: compares all copies of everything with their checksums.

mod faults;
mod limit;
mod of_kernel;
mod record;
mod run;
mod running;
mod show;
mod subject;

use crate::background::in_background;
use crate::facts;
use crate::fail::{Context, Done, Failure};
use crate::place::Place;
use crate::service::{Effect, OnKernel, OnVolume};
use crate::sizes;
use crate::units::Units;
use butterfs::Part;
use clap::{Args, Subcommand};
use limit::Limit;
use record::{Record, State};
use run::Work;
use serde::{Deserialize, Serialize};
use show::Shown;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use subject::Subject;

/// Exit code if errors are left that no copy corrects, as in btrfs-scrub(8).
const UNCORRECTABLE: i32 = 3;
/// Exit code where there is nothing to resume.
const NOTHING_TO_RESUME: i32 = 2;
/// Exit code of `cancel` where nothing runs.
const NOT_RUNNING: i32 = 2;

/// Reads every copy of everything and compares it with its checksum.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs scrub start -B disk.img               wait for the end
  butterfs scrub start -r --limit 100m mnt       report only, 100 MiB in a second
  butterfs scrub status disk.img
  butterfs scrub cancel disk.img
  butterfs scrub resume -B disk.img

Exit codes: 0 success, 1 failure, 2 nothing to resume or cancel, 3 errors were found that no copy corrects.")]
pub struct Scrub {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Begin, in the background unless -B is given.
    Start(Start),
    /// Continue a cancelled or interrupted scrub.
    Resume(Start),
    /// Show how far it is, or how the last one ended.
    #[command(disable_help_flag = true)]
    Status(Status),
    /// End the one that runs; `resume` goes on with it.
    Cancel(OfVolume),
    /// Show or set how many bytes of a device are read in a second.
    #[command(
        disable_help_flag = true,
        mut_arg("raw", |units| units.short(None)),
    )]
    Limit(Limit),
}

/// How a scrub runs.
#[derive(Args, Clone, Debug, Deserialize, Serialize)]
pub struct Start {
    /// Wait for the end, and show what was found.
    #[arg(short = 'B')]
    wait: bool,
    /// Show each device by itself.
    #[arg(short)]
    devices: bool,
    /// Report what is bad, and write nothing.
    #[arg(short)]
    read_only: bool,
    /// Show all counters as they are.
    #[arg(short = 'R')]
    raw: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Bytes of a device that are read in a second at most.
    #[arg(long, value_parser = sizes::parse, value_name = "SIZE")]
    limit: Option<u64>,
    /// Threads for each device, at most 256 (default: one for each core).
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true, value_parser = clap::value_parser!(u16).range(0..=256))]
    threads: u16,
    /// Run in this class of ionice(1).
    #[arg(short = 'c', value_name = "CLASS", value_parser = clap::value_parser!(u8).range(0..=3))]
    class: Option<u8>,
    /// The priority in that class: 0 to 7.
    #[arg(short = 'n', value_name = "LEVEL", value_parser = clap::value_parser!(u8).range(0..=7))]
    level: Option<u8>,
    /// Accepted and ignored.
    #[arg(short = 'f')]
    _force: bool,
    /// Goes on with an earlier one.
    #[arg(skip)]
    resume: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: Place,
}

#[derive(Args, Debug)]
struct Status {
    /// Show each device by itself.
    #[arg(short)]
    devices: bool,
    /// Show all counters as they are.
    #[arg(short = 'R')]
    counters: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    units: Units,
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct OfVolume {
    /// File or block device that holds the volume, or its mountpoint.
    volume: PathBuf,
}

impl OnVolume for Start {
    const NAME: &'static str = "scrub start";
    const TAG: &'static str = "Scrub";
    const ON_KERNEL: OnKernel = OnKernel::Asks;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.volume)
    }

    /// It mends.
    fn effect(&self) -> Effect {
        match self.read_only {
            true => Effect::Reads,
            false => Effect::Changes,
        }
    }

    fn run_here(self) -> Done {
        run::run(&self.work())
    }

    fn ask_kernel(self, _: &Path, given: &Path) -> Done {
        of_kernel::run(&self.work(), given)
    }
}

impl Start {
    fn work(self) -> Work {
        Work {
            place: self.volume,
            read_only: self.read_only,
            limit: self.limit,
            threads: self.threads.into(),
            resume: self.resume,
            shown: Shown {
                raw: self.raw,
                devices: self.devices,
                json: self.json,
                units: Units::default(),
            },
        }
    }

    /// Replaces this process by the same command under ionice(1). Returns only
    /// if that cannot be run.
    fn by_priority(&self) -> Failure {
        let mut command = std::process::Command::new("ionice");
        for (letter, value) in [("-c", self.class), ("-n", self.level)] {
            if let Some(value) = value {
                command.args([letter, &value.to_string()]);
            }
        }
        let words = match self.words(if self.wait { &["-B"] } else { &[] }) {
            Ok((program, words)) => {
                command.arg(program);
                words
            }
            Err(error) => return error,
        };
        let error = command.args(words).exec();
        Failure(format!(
            "ionice(1), which sets the priority of -c and -n: {error}"
        ))
    }

    /// This program, and the words of this scrub without its priority.
    fn words(&self, first: &[&str]) -> Result<(PathBuf, Vec<OsString>), Failure> {
        let program = std::env::current_exe().context("this program")?;
        let mut words: Vec<OsString> = vec!["scrub".into()];
        words.push(if self.resume { "resume" } else { "start" }.into());
        words.extend(first.iter().map(OsString::from));
        let flags = [
            (self.read_only, "-r"),
            (self.devices, "-d"),
            (self.raw, "-R"),
            (self.json, "--json"),
        ];
        let set = flags.iter().filter(|(is_set, _)| *is_set);
        words.extend(set.map(|(_, flag)| OsString::from(flag)));
        if let Some(limit) = self.limit {
            words.push("--limit".into());
            words.push(limit.to_string().into());
        }
        words.push("--threads".into());
        words.push(self.threads.to_string().into());
        words.push("--".into());
        words.push(self.volume.volume.clone().into());
        Ok((program, words))
    }

    fn begin(self) -> Done {
        self.volume.verify_exists(Part::Whole)?;
        if self.class.is_some() || self.level.is_some() {
            return Err(self.by_priority());
        }
        let uuid = facts::at(&self.volume.volume)?.uuid;
        if self.resume && Record::load(&uuid)?.is_none_or(|record| !record.can_go_on()) {
            note!(
                "scrub: nothing to resume for {}",
                self.volume.volume.display()
            );
            std::process::exit(NOTHING_TO_RESUME);
        }
        if !self.wait {
            return self.in_background(&uuid);
        }
        OnVolume::run(self)?;
        let errors = Record::load(&uuid)?.map_or(0, |record| record.uncorrectable());
        if errors > 0 {
            std::process::exit(UNCORRECTABLE);
        }
        Ok(())
    }

    /// Has another process do it.
    fn in_background(&self, uuid: &str) -> Done {
        let (_, words) = self.words(&["-B"])?;
        let runs = || matches!(record::state_of(uuid), Ok(State::Running));
        let process = in_background(&words, &[UNCORRECTABLE], runs)?;
        say!(
            "scrub started on {}, fsid {uuid} (pid={})",
            self.volume.volume.display(),
            process
        );
        Ok(())
    }
}

impl Status {
    fn run(&self) -> Done {
        let subject = Subject::of(&self.volume)?;
        let record = Record::load(&subject.uuid)?;
        let shown = Shown {
            raw: self.counters,
            devices: self.devices,
            json: self.json,
            units: self.units,
        };
        show::show(&shown, &subject, record.as_ref())
    }
}

impl OfVolume {
    fn cancel(&self) -> Done {
        let subject = Subject::of(&self.volume)?;
        let runs = match (record::state_of(&subject.uuid)?, &subject.of_kernel) {
            (State::Running, _) => {
                record::ask_to_cancel(&subject.uuid)?;
                true
            }
            (State::Idle, Some(mount)) => of_kernel::cancel(mount)?,
            (State::Idle, None) => false,
        };
        if !runs {
            note!(
                "scrub cancel failed on {}: not running",
                self.volume.display()
            );
            std::process::exit(NOT_RUNNING);
        }
        while running::state(&subject)? == State::Running {
            std::thread::sleep(Duration::from_millis(20));
        }
        say!("scrub cancelled");
        Ok(())
    }
}

impl Scrub {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Start(start) => start.begin(),
            What::Resume(start) => Start {
                resume: true,
                ..start
            }
            .begin(),
            What::Status(status) => status.run(),
            What::Cancel(cancel) => cancel.cancel(),
            What::Limit(limit) => limit.run(),
        }
    }
}
