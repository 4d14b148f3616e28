//! Scrubbing a volume: all its devices at once, each from its beginning to its
//! end.
//!
//! Owns the order on each device, the speed, and where a scrub resumes. The store
//! verifies the stretches.

use butterfs_device::each_by_a_thread;
use butterfs_format::{DeviceId, DeviceOffset};
pub use butterfs_store::{HolderAt, Repair, ScrubCounts, ScrubFault, ScrubOutcome, ScrubbedKind};
use butterfs_store::{SCRUB_STEP_MAX, Store, StoreError};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// If the rate is limited, the number of steps in a second.
const LIMITED_STEPS_PER_SECOND: u64 = 4;
/// The least bytes of a step.
const STEP_MIN: u64 = 1 << 20;
/// A scrub that waits because of its limit looks this often whether it is
/// cancelled.
const SLEEP_MAX: Duration = Duration::from_secs(1);
/// More threads only wait for the device.
const THREADS_MAX: usize = 256;

/// Options of a scrub.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What to do with bad copies.
    pub repair: Repair,
    /// Threads for each device, at most 256.
    pub threads: usize,
}

/// Where the scrub of a device begins, after an earlier one did a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Start {
    /// What the earlier scrub found.
    pub counts: ScrubCounts,
    /// The offset at which to begin.
    pub from: DeviceOffset,
}

/// The progress on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceProgress {
    /// The device.
    pub device: DeviceId,
    /// What was found.
    pub counts: ScrubCounts,
    /// Everything before this offset is done.
    pub last: DeviceOffset,
    /// About how many bytes there are to scrub: the bytes of extents on the
    /// device, each copy counted.
    pub bytes_expected: u64,
    /// The scrub reached the end of the device.
    pub is_finished: bool,
}

impl DeviceProgress {
    /// The progress on a device of which nothing is done yet.
    #[must_use]
    pub fn of(device: DeviceId) -> Self {
        Self {
            device,
            counts: ScrubCounts::default(),
            last: DeviceOffset(0),
            bytes_expected: 0,
            is_finished: false,
        }
    }
}

/// A message about a device.
#[derive(Debug)]
pub struct News<'n> {
    /// The progress on the device.
    pub progress: &'n DeviceProgress,
    /// Bad copies that were found since the last message.
    pub faults: &'n [ScrubFault],
}

/// The speed of a scrub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    /// The most bytes in a second for each device; no limit if `None` or 0.
    pub bytes_per_second: Option<u64>,
}

impl Pace {
    fn limit(self) -> Option<u64> {
        self.bytes_per_second.filter(|rate| *rate > 0)
    }
}

/// Takes messages. Returns the speed for the next step, or stops the scrub of the
/// device.
pub type Watch<'w> = dyn FnMut(&News<'_>) -> ControlFlow<(), Pace> + Send + 'w;

/// Scrubs a volume. `starts` says where to begin on devices that are partly
/// done; the others begin at 0. Returns the progress on all devices.
///
/// # Errors
/// A [`StoreError`] if trees cannot be read, if superblocks cannot be written, or
/// if the volume has a RAID stripe tree.
pub fn scrub(
    store: &Store,
    options: &Options,
    starts: &[(DeviceId, Start)],
    watch: &mut Watch<'_>,
) -> Result<Vec<DeviceProgress>, StoreError> {
    verify_possible(store)?;
    let devices: Vec<DeviceId> = store.space().devices().map(|(id, _)| id).collect();
    let watch = Mutex::new(watch);
    let start_of = |device| {
        let found = starts.iter().find(|(id, _)| *id == device);
        found.map_or(Start::default(), |(_, start)| *start)
    };
    let scrubbed = each_by_a_thread(devices, |device| {
        scrub_device(store, options, (device, start_of(device)), &watch)
    });
    scrubbed.into_iter().collect()
}

/// Scrubs one device of a volume, from `start` on.
///
/// # Errors
/// As [`scrub`].
pub fn scrub_one(
    store: &Store,
    options: &Options,
    (device, start): (DeviceId, Start),
    watch: &mut Watch<'_>,
) -> Result<DeviceProgress, StoreError> {
    verify_possible(store)?;
    scrub_device(store, options, (device, start), &Mutex::new(watch))
}

fn verify_possible(store: &Store) -> Result<(), StoreError> {
    if store.read().has_stripe_tree() {
        return Err(StoreError::Unsupported {
            what: "it has a RAID stripe tree, which a scrub here does not follow; scrub it with \
                   the kernel's Btrfs"
                .to_owned(),
            read_only_possible: true,
        });
    }
    Ok(())
}

/// Calls `watch`, and returns the wanted speed; `None` if it stops the scrub.
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
            let bytes = match pace.limit() {
                None => SCRUB_STEP_MAX,
                Some(rate) => (rate / LIMITED_STEPS_PER_SECOND).clamp(STEP_MIN, SCRUB_STEP_MAX),
            };
            let before = progress.counts;
            let step = store.scrub_step(
                stretch,
                (done, bytes),
                options.repair,
                options.threads.min(THREADS_MAX),
            )?;
            done = step.done.max(done + 1);
            progress.counts += step.counts;
            progress.last = DeviceOffset(begin + done.min(stretch.length));
            pace = match tell(watch, &progress, &step.faults) {
                Some(pace) => pace,
                None => return Ok(progress),
            };
            let read = progress.counts.data_bytes + progress.counts.tree_bytes
                - before.data_bytes
                - before.tree_bytes;
            // The limit may change meanwhile, and the scrub may be cancelled.
            while let Some(rate) = pace.limit() {
                let takes = Duration::from_secs_f64(read as f64 / rate as f64);
                let left = takes.saturating_sub(begun.elapsed());
                std::thread::sleep(left.min(SLEEP_MAX));
                if left <= SLEEP_MAX {
                    break;
                }
                pace = match tell(watch, &progress, &[]) {
                    Some(pace) => pace,
                    None => return Ok(progress),
                };
            }
        }
    }
    progress.is_finished = true;
    tell(watch, &progress, &[]);
    Ok(progress)
}
