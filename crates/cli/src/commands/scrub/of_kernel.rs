//! Scrubs of volumes that the kernel has mounted: the kernel does them, a
//! device on each thread.

use super::record::{Line, Record, Running, seconds_now};
use super::run::Work;
use super::running::{present, refused};
use super::show::found_of;
use super::subject::Subject;
use crate::beside::beside;
use crate::facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::interrupt::Interrupt;
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_kernel::{self as kernel, ScrubProgress, ScrubWrites};
use butterfs_server::Facts;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rustix::io::Errno;
use std::fs::{self, File};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

fn open(path: &Path) -> Result<File, Failure> {
    File::open(path).context(path.display())
}

/// The scrub of one device.
struct OfDevice {
    id: DeviceId,
    /// What an earlier one found, which this one goes on with.
    earlier: Line,
    found: ScrubProgress,
    ended: Option<Result<(), Errno>>,
}

impl OfDevice {
    const fn is_finished(&self) -> bool {
        matches!(self.ended, Some(Ok(())))
    }

    /// Its line in the record, without the times.
    fn line(&self) -> Line {
        let found = &self.found;
        let counted = [
            ("data_extents_scrubbed", found.data_extents),
            ("tree_extents_scrubbed", found.tree_extents),
            ("data_bytes_scrubbed", found.data_bytes),
            ("tree_bytes_scrubbed", found.tree_bytes),
            ("read_errors", found.read_errors),
            ("csum_errors", found.csum_errors),
            ("verify_errors", found.verify_errors),
            ("no_csum", found.no_csum),
            ("csum_discards", found.csum_discards),
            ("super_errors", found.super_errors),
            ("malloc_errors", found.malloc_errors),
            ("uncorrectable_errors", found.uncorrectable_errors),
            ("corrected_errors", found.corrected_errors),
        ];
        let mut line = Line {
            device: self.id.get(),
            ..Line::default()
        };
        for (name, value) in counted {
            let sum = self.earlier.get(name).saturating_add(value);
            line.values.insert(name.to_owned(), sum);
        }
        let last = self.earlier.get("last_physical");
        let last = last.max(found.last_physical.get());
        line.values.insert("last_physical".to_owned(), last);
        let finished = u64::from(self.is_finished());
        line.values.insert("finished".to_owned(), finished);
        line
    }
}

/// When it began.
struct Times {
    t_start: u64,
    t_resumed: u64,
    /// Seconds that earlier runs took.
    before: u64,
    begun: Instant,
}

fn record_of(devices: &[OfDevice], times: &Times) -> Record {
    let duration = times.before + times.begun.elapsed().as_secs();
    let lines = devices.iter().map(|device| {
        let mut line = device.line();
        let canceled = u64::from(device.ended == Some(Err(Errno::CANCELED)));
        let values = [
            ("t_start", times.t_start),
            ("t_resumed", times.t_resumed),
            ("duration", duration),
            ("canceled", canceled),
        ];
        let values = values.map(|(name, value)| (name.to_owned(), value));
        line.values.extend(values);
        line
    });
    Record {
        lines: lines.collect(),
    }
}

/// Scrubs all devices that are not done, and says how each ended.
fn scrub(file: BorrowedFd<'_>, starts: &[(DeviceId, DeviceOffset)], writes: ScrubWrites) -> Ends {
    thread::scope(|scope| {
        let begun: Vec<_> = starts
            .iter()
            .map(|(id, from)| {
                let work = || kernel::scrub_device(file, *id, *from, writes);
                (*id, thread::Builder::new().spawn_scoped(scope, work))
            })
            .collect();
        let ended = begun.into_iter().map(|(id, begun)| {
            let ended = begun.ok().and_then(|worker| worker.join().ok());
            (
                id,
                ended.unwrap_or((ScrubProgress::default(), Err(Errno::AGAIN))),
            )
        });
        ended.collect()
    })
}

/// How the scrubs of devices ended.
type Ends = Vec<(DeviceId, (ScrubProgress, Result<(), Errno>))>;

/// Runs a scrub, and waits for its end. The first Ctrl-C cancels it.
pub fn run(work: &Work, volume: &Path) -> Done {
    let name = volume.display();
    let failure = |text: String| Failure(format!("{name}: {text}"));
    let facts = facts::at(volume)?;
    let uuid = facts.uuid.clone();
    let file = open(volume)?;
    let file = file.as_fd();
    let running = Running::begin(&uuid).map_err(|error| error.at(&name))?;
    let earlier = match work.resume {
        true => Record::load(&uuid)?.unwrap_or_default(),
        false => Record::default(),
    };
    let sum = earlier.sum();
    let times = Times {
        t_start: match work.resume {
            true => sum.get("t_start"),
            false => seconds_now(),
        },
        t_resumed: if work.resume { seconds_now() } else { 0 },
        before: sum.get("duration"),
        begun: Instant::now(),
    };
    let mut devices: Vec<OfDevice> = present(&facts)
        .map(|id| {
            let is_own = |line: &&Line| line.device == id.get();
            let earlier = earlier.lines.iter().find(is_own);
            let earlier = earlier.cloned().unwrap_or_default();
            OfDevice {
                id,
                ended: (earlier.get("finished") > 0).then_some(Ok(())),
                earlier,
                found: ScrubProgress::default(),
            }
        })
        .collect();
    let starts: Vec<_> = devices
        .iter()
        .filter(|device| device.ended.is_none())
        .map(|device| (device.id, DeviceOffset(device.earlier.get("last_physical"))))
        .collect();
    if let Some(limit) = work.limit {
        set_limit(&facts, limit)?;
    }
    let writes = match work.read_only {
        true => ScrubWrites::Nothing,
        false => ScrubWrites::Corrections,
    };
    let interrupt = Interrupt::watch()?;
    let target = match work.shown.json {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let bar = ProgressBar::with_draw_target(Some(facts.device_used), target);
    let template = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    let mut stored = Ok(());
    let mut is_asked = false;
    let ended = beside(
        || scrub(file, &starts, writes),
        || {
            let mut done: u64 = 0;
            for device in &mut devices {
                if device.ended.is_none()
                    && let Ok(Some(found)) = kernel::scrub_progress(file, device.id)
                {
                    device.found = found;
                }
                let line = device.line();
                done += line.get("data_bytes_scrubbed") + line.get("tree_bytes_scrubbed");
            }
            bar.set_position(done);
            stored = record_of(&devices, &times).store(&uuid);
            if !is_asked && (interrupt.check().is_err() || running.is_unwanted()) {
                // The kernel may not have begun yet: then it is asked again.
                is_asked = kernel::cancel_scrub(file).is_ok();
            }
        },
    );
    bar.finish_and_clear();
    for (id, (found, result)) in ended? {
        if let Some(device) = devices.iter_mut().find(|device| device.id == id) {
            (device.found, device.ended) = (found, Some(result));
        }
    }
    let faults = devices.iter().filter_map(|device| match device.ended {
        Some(Err(Errno::CANCELED)) => None,
        Some(Err(error)) => Some(format!("device {}: {}", device.id, refused(error))),
        _ => None,
    });
    let faults: Vec<String> = faults.collect();
    let nothing = devices.iter().all(|device| {
        let is_refused = matches!(device.ended, Some(Err(error)) if error != Errno::CANCELED);
        is_refused && device.found == ScrubProgress::default()
    });
    if nothing {
        // The record of an earlier one stays.
        return Err(failure(faults.join("; ")));
    }
    stored?;
    let record = record_of(&devices, &times);
    record.store(&uuid)?;
    drop(running);
    let seconds = times.begun.elapsed().as_secs_f64();
    found_of(&work.shown, &Subject::open(&facts), &record, seconds)?;
    if !faults.is_empty() {
        return Err(failure(faults.join("; ")));
    }
    match record.can_go_on() {
        true => Err(failure(
            "the scrub was cancelled; `butterfs scrub resume` goes on with it".into(),
        )),
        false => Ok(()),
    }
}

/// Ends the scrubs of all devices, whoever began them. False if none runs.
pub fn cancel(volume: &Path) -> Result<bool, Failure> {
    match kernel::cancel_scrub(open(volume)?.as_fd()) {
        Ok(()) => Ok(true),
        Err(Errno::NOTCONN) => Ok(false),
        Err(error) => fail(format!("{}: {}", volume.display(), refused(error))),
    }
}

/// Where the kernel keeps the rate of a device.
fn limit_file(uuid: &str, id: DeviceId) -> PathBuf {
    PathBuf::from(format!("/sys/fs/btrfs/{uuid}/devinfo/{id}/scrub_speed_max"))
}

/// Sets the most bytes that are read of a device in a second; 0 for no limit.
pub fn set_limit_of(facts: &Facts, id: DeviceId, limit: u64) -> Done {
    let path = limit_file(&facts.uuid, id);
    fs::write(&path, format!("{limit}\n")).context(path.display())
}

/// The same for each device.
pub fn set_limit(facts: &Facts, limit: u64) -> Done {
    present(facts).try_for_each(|id| set_limit_of(facts, id, limit))
}

/// The limit of a device in bytes per second, if it has one.
pub fn limit_of(facts: &Facts, id: DeviceId) -> Option<u64> {
    let text = fs::read_to_string(limit_file(&facts.uuid, id)).ok()?;
    text.trim().parse().ok().filter(|limit| *limit > 0)
}
