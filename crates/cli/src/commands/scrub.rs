//! `butterfs scrub`: compares all copies of everything with their checksums.

mod record;
mod run;
mod show;
mod subject;

use crate::facts;
use crate::fail::{Context, Done, fail};
use crate::place::Place;
use crate::service::OnVolume;
use crate::sizes;
use crate::units::Units;
use clap::{Args, Subcommand};
use record::{Record, State};
use run::Work;
use serde::{Deserialize, Serialize};
use show::Shown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
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
    /// Go on where a scrub was cancelled or interrupted.
    Resume(Start),
    /// Show how far it is, or how the last one ended.
    #[command(disable_help_flag = true)]
    Status(Status),
    /// End the one that runs; `resume` goes on with it.
    Cancel(OfVolume),
    /// Show or set how many bytes of a device are read in a second.
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
    /// Threads for each device (default: one for each core).
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    threads: usize,
    /// Goes on with an earlier one.
    #[arg(skip)]
    resume: bool,
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
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
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct OfVolume {
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct Limit {
    /// Bytes in a second; 0 for as many as there can be. A scrub that runs
    /// follows.
    #[arg(short, long, value_parser = sizes::parse, value_name = "SIZE")]
    limit: Option<u64>,
    /// The file or device that holds the volume, or a directory where it is
    /// mounted.
    volume: PathBuf,
}

impl OnVolume for Start {
    const NAME: &'static str = "scrub start";
    const TAG: &'static str = "Scrub";

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.volume)
    }

    fn run_here(self) -> Done {
        run::run(&Work {
            place: self.volume,
            read_only: self.read_only,
            limit: self.limit,
            threads: self.threads,
            resume: self.resume,
            shown: Shown {
                raw: self.raw,
                devices: self.devices,
                json: self.json,
                units: Units::default(),
            },
        })
    }
}

impl Start {
    fn begin(self) -> Done {
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
        let program = std::env::current_exe().context("this program")?;
        let mut command = Command::new(program);
        command.arg("scrub");
        command.arg(if self.resume { "resume" } else { "start" });
        command.arg("-B");
        if self.read_only {
            command.arg("-r");
        }
        if let Some(limit) = self.limit {
            command.arg("--limit").arg(limit.to_string());
        }
        command.arg("--threads").arg(self.threads.to_string());
        command.arg("--").arg(&self.volume.volume);
        let quiet = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = quiet.process_group(0).spawn().context("scrub")?;
        // What fails, mostly fails at once.
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(10));
            let Some(ended) = child.try_wait()? else {
                continue;
            };
            if !ended.success() && ended.code() != Some(UNCORRECTABLE) {
                let mut said = String::new();
                if let Some(mut text) = child.stderr.take() {
                    std::io::Read::read_to_string(&mut text, &mut said)?;
                }
                let said = said.trim().trim_start_matches("butterfs: ");
                return fail(said.to_owned());
            }
            break;
        }
        say!(
            "scrub started on {}, fsid {uuid} (pid={})",
            self.volume.volume.display(),
            child.id()
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
        let uuid = Subject::of(&self.volume)?.uuid;
        if record::state_of(&uuid)? != State::Running {
            note!(
                "scrub cancel failed on {}: not running",
                self.volume.display()
            );
            std::process::exit(NOT_RUNNING);
        }
        record::ask_to_cancel(&uuid)?;
        while record::state_of(&uuid)? == State::Running {
            std::thread::sleep(Duration::from_millis(20));
        }
        say!("scrub cancelled");
        Ok(())
    }
}

impl Limit {
    fn run(&self) -> Done {
        let uuid = Subject::of(&self.volume)?.uuid;
        if let Some(limit) = self.limit {
            record::set_limit(&uuid, limit)?;
        }
        match record::limit(&uuid) {
            Some(limit) => say!("Limit: {}/s", sizes::human(limit)),
            None => say!("Limit: unlimited"),
        }
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
