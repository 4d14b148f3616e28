//! Scrubbing a volume: all its devices at once, each from its beginning to its
//! end.
//!
//! Owns the way through the devices, how fast it goes, and where it goes on
//! after an end. Verifying a stretch is the store's.

use butterfs_format::{DeviceId, DeviceOffset};
pub use butterfs_store::{Repair, ScrubCounts, ScrubFault, ScrubOutcome, ScrubbedKind};
use butterfs_store::{SCRUB_STEP_MAX, Store, StoreError};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Bytes of a step where the rate is limited: a quarter of a second's.
const LIMITED_STEPS_PER_SECOND: u64 = 4;
/// Least bytes of a step.
const STEP_MIN: u64 = 1 << 20;

/// How to scrub.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What is done about bad copies.
    pub repair: Repair,
    /// Threads for each device.
    pub threads: usize,
}

/// Where a device begins: behind what an earlier scrub did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// Found before.
    pub counts: ScrubCounts,
    /// Behind this offset.
    pub from: DeviceOffset,
}

/// How far a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProgress {
    /// Device.
    pub device: DeviceId,
    /// What was found.
    pub counts: ScrubCounts,
    /// Everything before it is done.
    pub last: DeviceOffset,
    /// Bytes of extents on the device, copies counted: what there is to scrub,
    /// about.
    pub bytes_expected: u64,
    /// It came to its end.
    pub is_finished: bool,
}

/// What is told of.
#[derive(Debug)]
pub struct News<'n> {
    /// How far the device is.
    pub progress: &'n DeviceProgress,
    /// Bad copies that were found since.
    pub faults: &'n [ScrubFault],
}

/// How fast it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// Bytes in a second at most, of each device.
    pub bytes_per_second: Option<u64>,
}

/// Is told of news, and says how fast it goes on, or that it ends.
pub type Watch<'w> = dyn FnMut(&News<'_>) -> ControlFlow<(), Pace> + Send + 'w;

/// Scrubs a volume. `starts` says where devices begin that do not begin anew.
///
/// # Errors
/// Trees that cannot be read; writing superblocks. A volume with a RAID stripe
/// tree is refused.
pub fn scrub(
    store: &Store,
    options: &Options,
    starts: &[(DeviceId, Start)],
    watch: &mut Watch<'_>,
) -> Result<Vec<DeviceProgress>, StoreError> {
    if store.read().has_stripe_tree() {
        return Err(StoreError::Unsupported {
            what: "it has a RAID stripe tree, which a scrub here does not follow; scrub it with \
                   the kernel's Btrfs"
                .to_owned(),
            read_only_possible: true,
        });
    }
    let devices: Vec<DeviceId> = store.space().devices().map(|(id, _)| id).collect();
    let watch = Mutex::new(watch);
    let start_of = |device| {
        let found = starts.iter().find(|(id, _)| *id == device);
        found.map_or(Start::default(), |(_, start)| *start)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = devices
            .iter()
            .map(|device| {
                let watch = &watch;
                scope.spawn(move || {
                    scrub_device(store, options, (*device, start_of(*device)), watch)
                })
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    })
}

/// Tells, and gives the pace that is wanted; `None` to end.
fn tell(
    watch: &Mutex<&mut Watch<'_>>,
    progress: &DeviceProgress,
    faults: &[ScrubFault],
) -> Option<Pace> {
    let mut watch = watch
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    match watch(&News { progress, faults }) {
        ControlFlow::Continue(pace) => Some(pace),
        ControlFlow::Break(()) => None,
    }
}

fn scrub_device(
    store: &Store,
    options: &Options,
    (device, start): (DeviceId, Start),
    watch: &Mutex<&mut Watch<'_>>,
) -> Result<DeviceProgress, StoreError> {
    let stretches = store.scrub_stretches(device);
    let mut progress = DeviceProgress {
        device,
        counts: start.counts,
        last: start.from,
        bytes_expected: stretches.iter().map(|stretch| stretch.used).sum(),
        is_finished: false,
    };
    if start.from == DeviceOffset(0) {
        progress.counts.super_errors += store.scrub_superblocks(device, options.repair)?;
    }
    let Some(mut pace) = tell(watch, &progress, &[]) else {
        return Ok(progress);
    };
    for stretch in &stretches {
        let begin = stretch.place.offset.get();
        let mut done = start.from.get().saturating_sub(begin);
        while done < stretch.length {
            let begun = Instant::now();
            let bytes = match pace.bytes_per_second {
                None => SCRUB_STEP_MAX,
                Some(rate) => (rate / LIMITED_STEPS_PER_SECOND).clamp(STEP_MIN, SCRUB_STEP_MAX),
            };
            let before = progress.counts;
            let step = store.scrub_step(stretch, (done, bytes), options.repair, options.threads)?;
            done = step.done.max(done + 1);
            progress.counts += step.counts;
            progress.last = DeviceOffset(begin + done.min(stretch.length));
            pace = match tell(watch, &progress, &step.faults) {
                Some(pace) => pace,
                None => return Ok(progress),
            };
            if let Some(rate) = pace.bytes_per_second {
                let read = progress.counts.data_bytes + progress.counts.tree_bytes
                    - before.data_bytes
                    - before.tree_bytes;
                let takes = Duration::from_secs_f64(read as f64 / rate as f64);
                std::thread::sleep(takes.saturating_sub(begun.elapsed()));
            }
        }
    }
    progress.is_finished = true;
    tell(watch, &progress, &[]);
    Ok(progress)
}
