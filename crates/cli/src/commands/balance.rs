//! `butterfs balance`: moves the content of block groups elsewhere and removes
//! the groups.

mod chosen;
mod ends;
mod of_kernel;
mod shown;

use crate::background::until_begun;
use crate::commands::device::named::named_with_state;
use crate::commands::subvolume::site::open_volume;
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::host;
use crate::interrupt::Interrupt;
use crate::kernel_volume;
use crate::output;
use crate::place::{Place, json};
use crate::service::{Effect, OnKernel, OnVolume};
use crate::sizes::human;
use butterfs::{MemberState, Part, RunningBalance, StoreError, Volume};
use butterfs_admin::balance::{self, BalanceError, End, Planned, Progress, Wish};
use chosen::Chosen;
use clap::{Args, Subcommand};
use ends::{PAUSED, WAITS, none};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Deserialize, Serialize};
use shown::Shown;
use std::ffi::OsString;
use std::path::Path;

/// Moves the content of block groups elsewhere and frees their space.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs balance plan -dusage=50 disk.img      what would move; nothing is written
  butterfs balance start -dusage=50 disk.img
  butterfs balance start -mconvert=dup disk.img
  butterfs balance start disk.img                everything
  butterfs balance start --background /mnt       goes on after the command has ended
  butterfs balance status disk.img

A filter follows its letter: -d for data, -m for metadata and system chunks, -s for system chunks. Filters are profiles=P|P, usage=N or A..B (percent), devid=N, drange=A..B, vrange=A..B (bytes), convert=P, soft, limit=N or A..B and stripes=A..B, with commas between them. Ctrl-C pauses the balance of a volume that is not mounted; one of a mounted volume goes on in its server until it is paused or cancelled.")]
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
    /// Cancel the running balance, or forget an interrupted one.
    Cancel(OfVolume),
    /// Pause the running balance; `resume` continues it.
    Pause(OfVolume),
    /// Say whether one runs or waits to go on.
    Status(OfVolume),
}

#[derive(Args, Debug)]
struct Start {
    #[command(flatten)]
    chosen: Chosen,
    /// Everything, as without filters.
    #[arg(long, alias = "full", conflicts_with_all = ["data", "metadata", "system"])]
    full_balance: bool,
    /// Do not show how far it is.
    #[arg(short, long)]
    quiet: bool,
    /// End when the balance has begun; it goes on in the background.
    #[arg(long, alias = "bg")]
    background: bool,
    /// Say on standard output that it has begun.
    #[arg(long, hide = true)]
    says_begun: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: Place,
}

#[derive(Args, Debug)]
struct Plan {
    #[command(flatten)]
    chosen: Chosen,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// File or block device that holds the volume, or its mountpoint.
    volume: Place,
}

#[derive(Args, Debug)]
struct OfVolume {
    /// File or block device that holds the volume, or its mountpoint.
    volume: Place,
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
    seconds_estimated: u64,
}

/// What is to be done to a balance.
#[derive(Debug, Deserialize, Serialize)]
enum Action {
    Start { chosen: Chosen, shown: Shown },
    Plan { chosen: Chosen, json: bool },
    Resume,
    Cancel,
    Pause,
    Status,
}

/// What is to be done, and where.
#[derive(Debug, Deserialize, Serialize)]
pub struct Order {
    action: Action,
    place: Place,
}

impl OnVolume for Order {
    const NAME: &'static str = "balance";
    const TAG: &'static str = "Balance";
    const ON_KERNEL: OnKernel = OnKernel::Asks;

    fn each_place(&mut self, visit: &mut dyn FnMut(&mut Place) -> Done) -> Done {
        visit(&mut self.place)
    }

    fn whole_volume(&self) -> Option<(&Place, Part)> {
        Some((&self.place, Part::Whole))
    }

    fn effect(&self) -> Effect {
        match self.action {
            Action::Start { .. } | Action::Resume => Effect::Changes,
            Action::Plan { .. } | Action::Cancel | Action::Pause | Action::Status => Effect::Reads,
        }
    }

    fn run_here(self) -> Done {
        let place = &self.place;
        match &self.action {
            Action::Start { chosen, shown } => {
                let filters = chosen.filters()?;
                let redundancy = chosen.redundancy();
                run(place, *shown, |volume, watch| {
                    balance::start(volume.files().store(), &filters, redundancy, watch)
                })
            }
            Action::Resume => run(place, Shown::Progress, |volume, watch| {
                balance::resume(volume.files().store(), watch)
            }),
            Action::Plan { chosen, json } => plan(place, chosen, *json),
            Action::Cancel => end_it(place, Wish::Cancel),
            Action::Pause => end_it(place, Wish::Pause),
            Action::Status => status(place),
        }
    }

    fn ask_kernel(self, mountpoint: &Path, given: &Path) -> Done {
        match &self.action {
            Action::Start { chosen, shown } => {
                let (filters, redundancy) = (chosen.filters()?, chosen.redundancy());
                of_kernel::start(given, &filters, redundancy, *shown)
            }
            Action::Resume => of_kernel::resume(given),
            Action::Plan { .. } => kernel_volume::run(mountpoint, || self.run_here()),
            Action::Cancel => of_kernel::cancel(given),
            Action::Pause => of_kernel::pause(given),
            Action::Status => of_kernel::status(given),
        }
    }
}

/// Notes that a balance begins. Errors if one runs.
fn begun(volume: &Volume) -> Result<RunningBalance, Failure> {
    volume.begin_balance().ok_or_else(|| {
        Failure(
            "a balance of this volume is under way; `butterfs balance status` shows it, `balance cancel` ends it"
                .to_owned(),
        )
    })
}

/// Opens the volume, or takes that of the server.
fn open(place: &Place) -> Result<(Volume, bool), Failure> {
    match host::volume() {
        Some(volume) => Ok((volume, false)),
        None => Ok((open_volume(&place.volume)?, true)),
    }
}

/// Lets an interrupted balance continue beside whatever uses the volume, as the
/// kernel does when it mounts one.
pub fn go_on(volume: &Volume) {
    match balance::waiting(volume.files().store()) {
        Ok(None) => return,
        Ok(Some(_)) => {}
        Err(error) => {
            tracing::error!(%error, "a balance that was interrupted does not go on");
            return;
        }
    }
    tracing::info!("a balance that was interrupted goes on");
    let volume = volume.share();
    let resume = move || {
        let running = begun(&volume)?;
        volume.files().clean_all()?;
        let watch = &mut |progress: &Progress| running.note(progress);
        let (_, end) = balance::resume(volume.files().store(), watch)?;
        Ok::<_, Failure>(end)
    };
    let begun = std::thread::Builder::new()
        .name("balance".to_owned())
        .spawn(move || match resume() {
            Ok(End::Done) => tracing::info!("the balance is done"),
            Ok(End::Stopped(Wish::Pause)) => tracing::info!("the balance is paused"),
            Ok(End::Stopped(Wish::Cancel)) => tracing::info!("the balance is cancelled"),
            Err(failure) => tracing::error!("the balance ended: {}", failure.0),
        });
    if let Err(error) = begun {
        tracing::error!(%error, "a balance that was interrupted does not go on");
    }
}

/// Runs a balance that `begin` begins, and reports how it ended.
fn run(
    place: &Place,
    shown: Shown,
    begin: impl FnOnce(
        &Volume,
        &mut dyn FnMut(&Progress) -> Option<Wish>,
    ) -> Result<(Progress, End), BalanceError>,
) -> Done {
    let (volume, is_own) = open(place)?;
    let running = begun(&volume)?;
    let interrupt = is_own.then(Interrupt::watch).transpose()?;
    volume.files().clean_all().context(place.volume.display())?;
    let target = match is_own {
        true => shown.target(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left{msg}";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut most = 0;
    let mut has_begun = false;
    let ended = begin(&volume, &mut |progress| {
        if !std::mem::replace(&mut has_begun, true) {
            shown.begun();
        }
        most = most.max(progress.bytes_left);
        bar.set_length(most);
        bar.set_position(most.saturating_sub(progress.bytes_left));
        let done = progress.completed + progress.without_space;
        let all = progress.expected;
        bar.set_message(format!(", block group {done} of {all}"));
        let asked = interrupt.as_ref().is_some_and(|own| own.check().is_err());
        running.note(progress).or(asked.then_some(Wish::Pause))
    });
    bar.finish_and_clear();
    drop(running);
    let (progress, end) = match ended {
        Err(error @ BalanceError::NoneWaits) => return none(&place.volume, &error.to_string()),
        Err(BalanceError::Store(StoreError::Closed)) => {
            return fail("the volume was unmounted; the balance goes on at its next mount");
        }
        ended => ended.context(place.volume.display())?,
    };
    let lessened = without_their_copies(&volume);
    if is_own {
        volume.close().context(place.volume.display())?;
    }
    match end {
        End::Stopped(Wish::Pause) => return fail(PAUSED),
        End::Stopped(Wish::Cancel) => return fail("cancelled"),
        End::Done => {}
    }
    say!(
        "Done, had to relocate {} out of {} chunks",
        progress.completed,
        progress.considered
    );
    match (progress.without_space, &lessened[..]) {
        (0, []) => Ok(()),
        (0, names) => fail(format!(
            "what lies on {names} has fewer copies than its profile says: the volume goes on \
             without it; `butterfs replace start` puts another device in its place",
            names = names.join(" and ")
        )),
        (count, _) => fail(format!(
            "{count} block groups stay where they are: there is no space elsewhere for what is in \
             them"
        )),
    }
}

/// The devices that the volume goes on without although chunks lie on them, with
/// their states.
fn without_their_copies(volume: &Volume) -> Vec<String> {
    let devices = volume.devices().into_iter();
    let away =
        devices.filter(|device| device.state != MemberState::Present && !device.chunks.is_empty());
    away.map(|device| named_with_state(&device)).collect()
}

fn plan(place: &Place, chosen: &Chosen, as_json: bool) -> Done {
    let filters = chosen.filters()?;
    let volume = place.open_as_committed()?;
    let planned = balance::plan(volume.files().store(), &filters);
    let fact = |group: &Planned| PlannedFact {
        start: group.start.get(),
        kind: group.flags.describe(),
        length: group.length,
        used: group.used,
    };
    let seconds = balance::estimate(volume.files().store(), &planned).as_secs();
    let facts = PlanFacts {
        groups: planned.iter().map(fact).collect(),
        bytes_to_move: planned.iter().map(|group| group.used).sum(),
        bytes_of_groups: planned.iter().map(|group| group.length).sum(),
        seconds_estimated: seconds,
    };
    if as_json {
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
        "{} block groups with {}; {} would move, in about {} as fast as the devices can be read \
         now. Nothing was written.",
        facts.groups.len(),
        human(facts.bytes_of_groups),
        human(facts.bytes_to_move),
        duration(seconds)
    );
    Ok(())
}

/// A number of seconds, for people.
fn duration(seconds: u64) -> String {
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    match seconds {
        0 | 1 => "a second".to_owned(),
        2..=119 => format!("{seconds} seconds"),
        120..=7199 => format!("{minutes} minutes"),
        _ => format!("{hours} hours {} minutes", minutes % 60),
    }
}

/// Pauses or cancels the running balance, or forgets the one that waits.
fn end_it(place: &Place, wish: Wish) -> Done {
    let (volume, is_own) = open(place)?;
    if volume.stop_balance(wish) {
        return Ok(());
    }
    if wish == Wish::Pause {
        return none(&place.volume, "no balance runs");
    }
    match balance::cancel(volume.files().store()) {
        Err(error @ BalanceError::NoneWaits) => return none(&place.volume, &error.to_string()),
        cancelled => cancelled.context(place.volume.display())?,
    }
    if is_own {
        volume.close()?;
    }
    Ok(())
}

fn status(place: &Place) -> Done {
    let volume = place.open_as_committed()?;
    let name = place.volume.display();
    let progress = volume.balance_progress();
    let waiting = balance::waiting(volume.files().store()).context(&name)?;
    let Some(filters) = waiting else {
        say!("No balance found on '{name}'");
        return Ok(());
    };
    match progress {
        None => say!("Balance on '{name}' is paused"),
        Some(progress) => {
            say!("Balance on '{name}' is running");
            say!(
                "{} out of about {} chunks balanced ({} considered), {} left",
                progress.completed,
                progress.expected,
                progress.considered,
                human(progress.bytes_left)
            );
        }
    }
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
    output::end_with(WAITS)
}

impl Balance {
    /// Runs it.
    pub fn run(self) -> Done {
        let (action, place) = match self.what {
            What::Start(start) if start.background => return start.in_background(),
            What::Start(start) => {
                let shown = start.shown();
                let chosen = start.chosen;
                (Action::Start { chosen, shown }, start.volume)
            }
            What::Plan(plan) => {
                let json = plan.json;
                let chosen = plan.chosen;
                (Action::Plan { chosen, json }, plan.volume)
            }
            What::Resume(resume) => (Action::Resume, resume.volume),
            What::Cancel(cancel) => (Action::Cancel, cancel.volume),
            What::Pause(pause) => (Action::Pause, pause.volume),
            What::Status(status) => (Action::Status, status.volume),
        };
        if matches!(action, Action::Cancel | Action::Pause) {
            facts::note_mixed_profiles_of_mount(&place.volume);
        }
        OnVolume::run(Order { action, place })
    }
}

impl Start {
    const fn shown(&self) -> Shown {
        match (self.says_begun, self.quiet) {
            (true, _) => Shown::Begin,
            (false, true) => Shown::Nothing,
            (false, false) => Shown::Progress,
        }
    }

    /// Has another process do it, and returns when it has begun.
    fn in_background(&self) -> Done {
        let mut words: Vec<OsString> = ["balance", "start", "--says-begun"]
            .map(OsString::from)
            .into();
        let chosen = &self.chosen;
        let filters = [
            ("--data=", &chosen.data),
            ("--metadata=", &chosen.metadata),
            ("--system=", &chosen.system),
        ];
        for (option, filter) in filters {
            words.extend(filter.as_ref().map(|text| format!("{option}{text}").into()));
        }
        if chosen.force {
            words.push("--force".into());
        }
        words.push("--".into());
        words.push(self.volume.volume.clone().into());
        until_begun(&words)
    }
}
