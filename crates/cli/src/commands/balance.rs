//! `butterfs balance`: what lies in block groups moves, and they are gone.

use crate::commands::subvolume::site::open_volume;
use crate::fail::{Context, Done, Failure, fail};
use crate::interrupt::Interrupt;
use crate::place::json;
use crate::sizes::human;
use butterfs::{OpenOptions, Volume};
use butterfs_admin::balance::{
    self, BalanceError, End, Filter, Filters, Planned, Progress, Redundancy, Wish,
};
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Exit code of `status` where a balance waits, as btrfs-balance(8) has it.
const WAITS: i32 = 1;
/// Exit code of `cancel`, `pause` and `resume` where there is none.
const NONE: i32 = 2;

/// Moves what lies in block groups, and gives their space back.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs balance plan -dusage=50 disk.img      what would move; nothing is written
  butterfs balance start -dusage=50 disk.img
  butterfs balance start -mconvert=dup disk.img
  butterfs balance start disk.img                everything
  butterfs balance status disk.img

A filter follows its letter: -d for data, -m for metadata and system chunks, -s for system chunks. Filters are profiles=P|P, usage=N or A..B (percent), devid=N, drange=A..B, vrange=A..B (bytes), convert=P, soft, limit=N or A..B and stripes=A..B, with commas between them. Ctrl-C pauses.")]
pub struct Balance {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Begin.
    Start(Start),
    /// Say what would move, and write nothing.
    Plan(Plan),
    /// Go on with the one that was interrupted.
    Resume(OfVolume),
    /// Forget the one that was interrupted.
    Cancel(OfVolume),
    /// Stop the one that runs.
    Pause(OfVolume),
    /// Say whether one waits to go on.
    Status(OfVolume),
}

#[derive(Args, Debug)]
struct Chosen {
    /// Data, all or what matches.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    data: Option<String>,
    /// Metadata (and system chunks), all or what matches.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    metadata: Option<String>,
    /// System chunks, all or what matches; needs -f.
    #[arg(short, long, value_name = "FILTERS", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    system: Option<String>,
    /// Convert also where fewer copies are left, and balance system chunks
    /// alone.
    #[arg(short, long)]
    force: bool,
}

#[derive(Args, Debug)]
struct Start {
    #[command(flatten)]
    chosen: Chosen,
    /// Do not show how far it is.
    #[arg(short, long)]
    quiet: bool,
    /// File or block device that holds the volume; it must not be mounted.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct Plan {
    #[command(flatten)]
    chosen: Chosen,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// File or block device that holds the volume; it must not be mounted.
    volume: PathBuf,
}

#[derive(Args, Debug)]
struct OfVolume {
    /// File or block device that holds the volume; it must not be mounted.
    volume: PathBuf,
}

#[derive(Serialize)]
struct PlannedFact {
    start: u64,
    kind: String,
    length: u64,
    used: u64,
}

#[derive(Serialize)]
struct PlanFacts {
    groups: Vec<PlannedFact>,
    bytes_to_move: u64,
    bytes_of_groups: u64,
}

fn filter(text: Option<&String>) -> Result<Option<Filter>, Failure> {
    let text = text.map(|text| text.trim_start_matches('='));
    Ok(text.map(Filter::parse).transpose()?)
}

impl Chosen {
    fn filters(&self) -> Result<Filters, Failure> {
        let mut filters = Filters {
            data: filter(self.data.as_ref())?,
            metadata: filter(self.metadata.as_ref())?,
            system: filter(self.system.as_ref())?,
        };
        if filters == Filters::default() {
            return Ok(Filters::all());
        }
        if filters.system.is_some() && !self.force {
            return fail("system chunks go with the metadata; -f balances them by themselves");
        }
        if filters.system.is_none() {
            filters.system = filters.metadata;
        }
        Ok(filters)
    }

    const fn redundancy(&self) -> Redundancy {
        match self.force {
            true => Redundancy::MayShrink,
            false => Redundancy::Kept,
        }
    }
}

fn check_unmounted(volume: &Path) -> Done {
    if volume.is_dir() {
        return fail(format!(
            "{}: a mounted volume is not balanced yet; unmount it, and name the file or device \
             that holds it",
            volume.display()
        ));
    }
    Ok(())
}

fn open(path: &Path) -> Result<Volume, Failure> {
    check_unmounted(path)?;
    let volume = open_volume(path)?;
    volume.files().clean_all().context(path.display())?;
    Ok(volume)
}

fn open_read_only(path: &Path) -> Result<Volume, Failure> {
    check_unmounted(path)?;
    Volume::open(path, OpenOptions::read_only()).context(path.display())
}

/// Runs a balance that `begin` begins, and says how it ended.
fn run(
    path: &Path,
    quiet: bool,
    begin: impl FnOnce(
        &Volume,
        &mut dyn FnMut(&Progress) -> Option<Wish>,
    ) -> Result<(Progress, End), BalanceError>,
) -> Done {
    let volume = open(path)?;
    let interrupt = Interrupt::watch()?;
    let target = match quiet {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut most = 0;
    let ended = begin(&volume, &mut |progress| {
        most = most.max(progress.bytes_left);
        bar.set_length(most);
        bar.set_position(most.saturating_sub(progress.bytes_left));
        let (done, all) = (progress.considered, progress.expected);
        bar.set_message(format!(", block group {done} of {all}"));
        interrupt.check().is_err().then_some(Wish::Pause)
    });
    bar.finish_and_clear();
    let (progress, end) = match ended {
        Err(BalanceError::NoneWaits) => {
            note!("{}: {}", path.display(), BalanceError::NoneWaits);
            std::process::exit(NONE);
        }
        ended => ended.context(path.display())?,
    };
    volume.close().context(path.display())?;
    if let End::Stopped(_) = end {
        return fail("interrupted; `butterfs balance resume` goes on with it");
    }
    say!(
        "Done, had to relocate {} out of {} chunks",
        progress.completed,
        progress.expected
    );
    match progress.without_space {
        0 => Ok(()),
        count => fail(format!(
            "{count} block groups stay where they are: there is no space elsewhere for what is in \
             them"
        )),
    }
}

impl Plan {
    fn run(&self) -> Done {
        let filters = self.chosen.filters()?;
        let volume = open_read_only(&self.volume)?;
        let planned = balance::plan(volume.files().store(), &filters);
        let moved = planned.iter().map(|group| group.used).sum();
        let all = planned.iter().map(|group| group.length).sum();
        let fact = |group: &Planned| PlannedFact {
            start: group.start.get(),
            kind: group.flags.describe(),
            length: group.length,
            used: group.used,
        };
        let facts = PlanFacts {
            groups: planned.iter().map(fact).collect(),
            bytes_to_move: moved,
            bytes_of_groups: all,
        };
        if self.json {
            return json(&facts);
        }
        for group in &facts.groups {
            say!(
                "{:<20} at {:>15}: {} used of {}",
                group.kind,
                group.start,
                human(group.used),
                human(group.length)
            );
        }
        say!(
            "{} block groups with {}; {} would move. Nothing was written.",
            facts.groups.len(),
            human(facts.bytes_of_groups),
            human(facts.bytes_to_move)
        );
        Ok(())
    }
}

impl OfVolume {
    fn cancel(&self) -> Done {
        let volume = open(&self.volume)?;
        match balance::cancel(volume.files().store()) {
            Err(BalanceError::NoneWaits) => {
                note!("{}: {}", self.volume.display(), BalanceError::NoneWaits);
                std::process::exit(NONE);
            }
            cancelled => cancelled.context(self.volume.display())?,
        }
        Ok(volume.close()?)
    }

    fn pause(&self) -> Done {
        check_unmounted(&self.volume)?;
        // One that runs has the volume open, and nobody else.
        let _volume = open_read_only(&self.volume)?;
        note!("{}: no balance runs", self.volume.display());
        std::process::exit(NONE);
    }

    fn status(&self) -> Done {
        let volume = open_read_only(&self.volume)?;
        let store = volume.files().store();
        let Some(filters) = balance::waiting(store).context(self.volume.display())? else {
            say!("No balance found on '{}'", self.volume.display());
            return Ok(());
        };
        say!("Balance on '{}' is paused", self.volume.display());
        let kinds = [
            ("data", filters.data),
            ("metadata", filters.metadata),
            ("system", filters.system),
        ];
        for (kind, filter) in kinds {
            if let Some(filter) = filter {
                say!("  {kind}: {filter}");
            }
        }
        std::process::exit(WAITS);
    }
}

impl Balance {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::Start(start) => {
                let filters = start.chosen.filters()?;
                let redundancy = start.chosen.redundancy();
                run(&start.volume, start.quiet, |volume, watch| {
                    balance::start(volume.files().store(), &filters, redundancy, watch)
                })
            }
            What::Plan(plan) => plan.run(),
            What::Resume(resume) => run(&resume.volume, false, |volume, watch| {
                balance::resume(volume.files().store(), watch)
            }),
            What::Cancel(cancel) => cancel.cancel(),
            What::Pause(pause) => pause.pause(),
            What::Status(status) => status.status(),
        }
    }
}
