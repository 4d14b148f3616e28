//! A scrub that runs, here or in the server of a mount.

use super::faults::Told;
use super::record::{self, Line, Record, Running, seconds_now};
use super::show::{Shown, found_of};
use super::subject::Subject;
use crate::commands::device::named::named_with_state;
use crate::facts;
use crate::fail::{Context, Done, Failure};
use crate::host;
use crate::interrupt::Interrupt;
use crate::place::Place;
use butterfs::{MemberState, OpenOptions, RunningScrub, Subvolume, Volume};
use butterfs_admin::scrub::{self, DeviceProgress, News, Options, Pace, Repair};
use butterfs_format::DeviceId;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// What is to be done.
#[derive(Debug)]
pub struct Work {
    /// Where the volume is.
    pub place: Place,
    /// Nothing is written.
    pub read_only: bool,
    /// Bytes of a device per second, at most.
    pub limit: Option<u64>,
    /// Threads for each device; 0 means one for each core.
    pub threads: usize,
    /// It goes on with an earlier one.
    pub resume: bool,
    /// How the end is shown.
    pub shown: Shown,
}

impl Work {
    /// A failure with the volume's name.
    fn failure(&self, error: impl std::fmt::Display) -> Failure {
        Failure(format!("{}: {error}", self.place.volume.display()))
    }
}

/// Opens the volume, or takes that of the server.
fn open(work: &Work) -> Result<(Volume, bool), Failure> {
    if let Some(volume) = host::volume() {
        return Ok((volume, false));
    }
    let Place { volume: path, .. } = &work.place;
    let mut options = if work.read_only {
        OpenOptions::as_committed()
    } else {
        OpenOptions::default()
    };
    options.subvolume = Subvolume::Id(5);
    let volume = Volume::open(path, options).context(path.display())?;
    Ok((volume, true))
}

/// What is written down and reported while it runs.
struct Watch<'w> {
    volume: &'w Volume,
    uuid: String,
    running: Running,
    /// What other users of the volume see of it.
    seen: RunningScrub,
    /// Ctrl-C.
    asked: Option<Arc<AtomicBool>>,
    bar: ProgressBar,
    devices: BTreeMap<DeviceId, DeviceProgress>,
    expected: u64,
    t_start: u64,
    t_resumed: u64,
    /// Seconds that earlier runs took.
    before: u64,
    begun: Instant,
    told: Told,
    limit: Option<u64>,
    failure: Option<Failure>,
}

impl Watch<'_> {
    fn record(&self, is_cancelled: bool) -> Record {
        let duration = self.before + self.begun.elapsed().as_secs();
        let lines = self.devices.values().map(|progress| {
            let mut line = Line::of(progress);
            let cancelled = is_cancelled && !progress.is_finished;
            let values = [
                ("t_start", self.t_start),
                ("t_resumed", self.t_resumed),
                ("duration", duration),
                ("canceled", u64::from(cancelled)),
            ];
            let values = values.into_iter();
            line.values
                .extend(values.map(|(name, value)| (name.to_owned(), value)));
            line
        });
        Record {
            lines: lines.collect(),
        }
    }

    fn hear(&mut self, news: &News<'_>) -> ControlFlow<(), Pace> {
        self.devices.insert(news.progress.device, *news.progress);
        let done = self.devices.values().map(|progress| {
            let counts = &progress.counts;
            counts.data_bytes + counts.tree_bytes
        });
        self.expected = self.devices.values().map(|of| of.bytes_expected).sum();
        self.bar.set_length(self.expected);
        self.bar.set_position(done.sum());
        for line in self.told.lines(self.volume, news.faults) {
            self.bar.suspend(|| note!("{line}"));
        }
        let unwanted = self.seen.note(news.progress)
            || self.running.is_unwanted()
            || self
                .asked
                .as_ref()
                .is_some_and(|asked| asked.load(Ordering::Acquire));
        if let Err(error) = self.record(unwanted).store(&self.uuid) {
            self.failure.get_or_insert(error);
        }
        if unwanted {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(Pace {
            bytes_per_second: self.limit.or_else(|| record::limit(&self.uuid)),
        })
    }
}

/// Says which devices were not verified, because the volume goes on without them.
fn note_unverified(volume: &Volume) {
    let devices = volume.devices();
    let away = devices
        .iter()
        .filter(|device| device.state != MemberState::Present);
    for device in away {
        note!(
            "butterfs: warning: {name} was not verified: the volume goes on without it; `butterfs \
             replace start {id} TARGET VOLUME` puts another device in its place, or itself anew",
            name = named_with_state(device),
            id = device.item.id,
        );
    }
}

/// Runs it.
pub fn run(work: &Work) -> Done {
    let (volume, is_own) = open(work)?;
    let store = volume.files().store();
    let uuid = facts::of(&volume).uuid;
    let running = Running::begin(&uuid).map_err(|error| work.failure(error.0))?;
    let devices: Vec<DeviceId> = store.space().devices().map(|(id, _)| id).collect();
    let seen = volume
        .begin_scrub(&devices)
        .ok_or_else(|| work.failure("a scrub runs; `butterfs scrub status` shows it"))?;
    let earlier = match work.resume {
        true => Record::load(&uuid)?,
        false => None,
    };
    let is_host = host::is_serving();
    let interrupt = (!is_host).then(Interrupt::watch).transpose()?;
    let target = match is_host || work.shown.json {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let bar = ProgressBar::with_draw_target(Some(0), target);
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let sum = earlier.as_ref().map(Record::sum).unwrap_or_default();
    let mut watch = Watch {
        volume: &volume,
        uuid: uuid.clone(),
        running,
        seen,
        asked: interrupt.as_ref().map(Interrupt::asked),
        bar,
        devices: BTreeMap::new(),
        expected: 0,
        t_start: match work.resume {
            true => sum.get("t_start"),
            false => seconds_now(),
        },
        t_resumed: if work.resume { seconds_now() } else { 0 },
        before: sum.get("duration"),
        begun: Instant::now(),
        told: Told::default(),
        limit: work.limit,
        failure: None,
    };
    let threads = match work.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let options = Options {
        repair: match work.read_only {
            true => Repair::ReportOnly,
            false => Repair::Rewrite,
        },
        threads,
    };
    let lines = earlier.iter().flat_map(|record| &record.lines);
    let starts: Vec<_> = lines.map(Line::start).collect();
    let done = scrub::scrub(store, &options, &starts, &mut |news| watch.hear(news));
    watch.bar.finish_and_clear();
    let seconds = watch.begun.elapsed().as_secs_f64();
    let done = done.map_err(|error| work.failure(error))?;
    let is_cancelled = done.iter().any(|progress| !progress.is_finished);
    let record = watch.record(is_cancelled);
    record.store(&uuid)?;
    if let Some(failure) = watch.failure.take() {
        return Err(failure);
    }
    if watch.told.left_out > 0 {
        note!("{} errors more", watch.told.left_out);
    }
    drop(watch);
    note_unverified(&volume);
    let subject = Subject::open(&facts::of(&volume));
    found_of(&work.shown, &subject, &record, seconds)?;
    let repairable: u64 = done.iter().map(|of| of.counts.repairable_errors).sum();
    if repairable > 0 && !work.shown.json {
        say!("  Correctable:    {repairable} (left as they are)");
    }
    if is_own && !work.read_only {
        volume.close().context(work.place.volume.display())?;
    }
    match is_cancelled {
        true => {
            Err(work.failure("the scrub was cancelled; `butterfs scrub resume` goes on with it"))
        }
        false => Ok(()),
    }
}
