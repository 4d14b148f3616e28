//! Long operations on a whole volume: what runs, how far it is, and who wants
//! it to end.
//!
//! Owns this state of an open volume, for its balance, the scrubs of its
//! devices, and a change of the devices. All handles of the volume share it. So
//! a program that embeds a volume can show on any thread how far an operation
//! is, and end it. What the operations do is in [`crate::balance`],
//! [`crate::scrub`], [`crate::devices`] and [`crate::resize`]. Whoever calls
//! these notes the progress here.
//!
//! Invariant: an operation that was begun is here until its handle is dropped.

use crate::Volume;
use butterfs_admin::balance::{BalanceError, Progress, Wish, waiting};
use butterfs_admin::scrub::DeviceProgress;
use butterfs_format::DeviceId;
use butterfs_store::ExclusiveKind;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A change of the devices of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// A device is removed.
    Removal,
    /// A device is replaced.
    Replacement,
    /// A device gets another size.
    Resize,
}

/// How far a change of the devices is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceChangeProgress {
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that are to be done.
    pub all: u64,
    /// Sectors without a good copy.
    pub errors: u64,
}

/// An operation on a whole volume. Only one is under way at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExclusiveOperation {
    /// A balance runs.
    Balance,
    /// A balance was paused or interrupted, and waits to be resumed.
    BalancePaused,
    /// A device is being added.
    DeviceAdd,
    /// A device is being removed.
    DeviceRemove,
    /// A device is being replaced.
    DeviceReplace,
    /// A device is being resized.
    Resize,
}

#[derive(Debug)]
struct Change {
    what: DeviceChange,
    progress: DeviceChangeProgress,
    is_cancelled: bool,
}

#[derive(Debug)]
struct Scrubbed {
    progress: DeviceProgress,
    is_cancelled: bool,
}

#[derive(Debug, Default)]
struct State {
    balance: Option<(Progress, Option<Wish>)>,
    scrubs: BTreeMap<DeviceId, Scrubbed>,
    change: Option<Change>,
}

/// What runs on a volume.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    state: Mutex<State>,
    ended: Condvar,
}

impl Operations {
    fn end(&self, end: impl FnOnce(&mut State)) {
        end(&mut self.state.lock());
        self.ended.notify_all();
    }

    /// Lets `ask` ask what runs to end, and waits until `runs` says that it has
    /// ended. False if `ask` finds nothing.
    fn end_and_wait(
        &self,
        ask: impl FnOnce(&mut State) -> bool,
        runs: impl Fn(&State) -> bool,
    ) -> bool {
        let mut state = self.state.lock();
        let found = ask(&mut state);
        while found && runs(&state) {
            self.ended.wait(&mut state);
        }
        found
    }
}

/// The balance that runs on a volume, until it is dropped.
#[derive(Debug)]
pub struct RunningBalance(Arc<Operations>);

impl RunningBalance {
    /// Notes how far it is. Returns what somebody wishes.
    #[must_use]
    pub fn note(&self, progress: &Progress) -> Option<Wish> {
        let mut state = self.0.state.lock();
        let (noted, wish) = state.balance.as_mut()?;
        *noted = *progress;
        *wish
    }
}

impl Drop for RunningBalance {
    fn drop(&mut self) {
        self.0.end(|state| state.balance = None);
    }
}

/// The scrub that runs on some devices of a volume, until it is dropped.
#[derive(Debug)]
pub struct RunningScrub(Arc<Operations>, Vec<DeviceId>);

impl RunningScrub {
    /// Notes how far it is on a device. Returns whether somebody wants it to
    /// end.
    #[must_use]
    pub fn note(&self, progress: &DeviceProgress) -> bool {
        let mut state = self.0.state.lock();
        let scrubbed = state.scrubs.get_mut(&progress.device);
        scrubbed.is_some_and(|scrubbed| {
            scrubbed.progress = *progress;
            scrubbed.is_cancelled
        })
    }
}

impl Drop for RunningScrub {
    fn drop(&mut self) {
        let Self(operations, devices) = self;
        operations.end(|state| state.scrubs.retain(|device, _| !devices.contains(device)));
    }
}

/// The change of the devices that runs on a volume, until it is dropped.
#[derive(Debug)]
pub struct RunningChange(Arc<Operations>);

impl RunningChange {
    /// Notes how far it is. Returns whether somebody wants it to end.
    pub fn note(&self, progress: DeviceChangeProgress) -> bool {
        let mut state = self.0.state.lock();
        let change = state.change.as_mut();
        change.is_some_and(|change| {
            change.progress = progress;
            change.is_cancelled
        })
    }

    /// Whether somebody wants it to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let state = self.0.state.lock();
        state
            .change
            .as_ref()
            .is_some_and(|change| change.is_cancelled)
    }
}

impl Drop for RunningChange {
    fn drop(&mut self) {
        self.0.end(|state| state.change = None);
    }
}

impl Volume {
    /// Notes that a balance begins; `None` if one runs.
    #[must_use]
    pub fn begin_balance(&self) -> Option<RunningBalance> {
        let mut state = self.operations.state.lock();
        if state.balance.is_some() {
            return None;
        }
        state.balance = Some((Progress::default(), None));
        Some(RunningBalance(Arc::clone(&self.operations)))
    }

    /// How far the running balance is; `None` if none runs. One that was paused
    /// or interrupted does not run: [`crate::balance::waiting`] finds it.
    #[must_use]
    pub fn balance_progress(&self) -> Option<Progress> {
        self.operations
            .state
            .lock()
            .balance
            .map(|(progress, _)| progress)
    }

    /// The operation on the whole volume that is under way, if one is.
    ///
    /// # Errors
    /// If no operation runs and the state of a balance that waits cannot be read.
    pub fn exclusive_operation(&self) -> Result<Option<ExclusiveOperation>, BalanceError> {
        let store = self.files().store();
        Ok(match store.exclusive() {
            Some(ExclusiveKind::Balance) => Some(ExclusiveOperation::Balance),
            Some(ExclusiveKind::Resize) => Some(ExclusiveOperation::Resize),
            Some(ExclusiveKind::Add) => Some(ExclusiveOperation::DeviceAdd),
            Some(ExclusiveKind::Remove) => Some(ExclusiveOperation::DeviceRemove),
            Some(ExclusiveKind::Replace) => Some(ExclusiveOperation::DeviceReplace),
            None => waiting(store)?.map(|_| ExclusiveOperation::BalancePaused),
        })
    }

    /// Pauses or cancels the running balance, and waits until it has ended.
    /// False if none runs.
    #[must_use]
    pub fn stop_balance(&self, wish: Wish) -> bool {
        self.operations.end_and_wait(
            |state| match &mut state.balance {
                Some((_, wished)) => {
                    *wished = Some(wish);
                    true
                }
                None => false,
            },
            |state| state.balance.is_some(),
        )
    }

    /// Notes that a scrub of `devices` begins; `None` if one of them is being
    /// scrubbed.
    #[must_use]
    pub fn begin_scrub(&self, devices: &[DeviceId]) -> Option<RunningScrub> {
        let mut state = self.operations.state.lock();
        if devices
            .iter()
            .any(|device| state.scrubs.contains_key(device))
        {
            return None;
        }
        for device in devices {
            let scrubbed = Scrubbed {
                progress: DeviceProgress::of(*device),
                is_cancelled: false,
            };
            state.scrubs.insert(*device, scrubbed);
        }
        Some(RunningScrub(Arc::clone(&self.operations), devices.to_vec()))
    }

    /// How far the scrub of a device is; `None` if none runs.
    #[must_use]
    pub fn scrub_progress(&self, device: DeviceId) -> Option<DeviceProgress> {
        let state = self.operations.state.lock();
        state.scrubs.get(&device).map(|scrubbed| scrubbed.progress)
    }

    /// Whether a device is being scrubbed.
    #[must_use]
    pub fn is_scrubbed(&self) -> bool {
        !self.operations.state.lock().scrubs.is_empty()
    }

    /// Ends the scrubs of all devices, and waits until they have ended. False
    /// if none runs.
    #[must_use]
    pub fn cancel_scrubs(&self) -> bool {
        self.operations.end_and_wait(
            |state| {
                let mut running = state.scrubs.values_mut();
                running.all(|scrubbed| {
                    scrubbed.is_cancelled = true;
                    true
                });
                !state.scrubs.is_empty()
            },
            |state| state.scrubs.values().any(|scrubbed| scrubbed.is_cancelled),
        )
    }

    /// Notes that a change of the devices begins; `None` if one runs.
    #[must_use]
    pub fn begin_device_change(&self, what: DeviceChange) -> Option<RunningChange> {
        let mut state = self.operations.state.lock();
        if state.change.is_some() {
            return None;
        }
        state.change = Some(Change {
            what,
            progress: DeviceChangeProgress::default(),
            is_cancelled: false,
        });
        Some(RunningChange(Arc::clone(&self.operations)))
    }

    /// How far a change of the devices is; `None` if no such change runs.
    #[must_use]
    pub fn device_change_progress(&self, what: DeviceChange) -> Option<DeviceChangeProgress> {
        let state = self.operations.state.lock();
        let change = state.change.as_ref().filter(|change| change.what == what);
        change.map(|change| change.progress)
    }

    /// Ends a change of the devices, and waits until it has ended. False if no
    /// such change runs.
    #[must_use]
    pub fn cancel_device_change(&self, what: DeviceChange) -> bool {
        self.operations.end_and_wait(
            |state| match &mut state.change {
                Some(change) if change.what == what => {
                    change.is_cancelled = true;
                    true
                }
                _ => false,
            },
            |state| state.change.is_some(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MkfsOptions, OpenOptions, make_volume};
    use butterfs_admin::balance::{End, Filters, Redundancy, cancel, start};

    fn volume(directory: &tempfile::TempDir) -> Volume {
        let path = directory.path().join("volume");
        make_volume(&path, 128 << 20, &MkfsOptions::default()).expect("a volume");
        Volume::open(&path, OpenOptions::default()).expect("it opens")
    }

    #[test]
    fn the_operation_that_is_under_way_is_told() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = volume(&directory);
        let store = Arc::clone(volume.files().store());
        let now = || volume.exclusive_operation().expect("it can be read");
        assert_eq!(now(), None);
        for (kind, told) in [
            (ExclusiveKind::Balance, ExclusiveOperation::Balance),
            (ExclusiveKind::Resize, ExclusiveOperation::Resize),
            (ExclusiveKind::Add, ExclusiveOperation::DeviceAdd),
            (ExclusiveKind::Remove, ExclusiveOperation::DeviceRemove),
            (ExclusiveKind::Replace, ExclusiveOperation::DeviceReplace),
        ] {
            let alone = store.begin_exclusive(kind).expect("nothing runs");
            assert_eq!(now(), Some(told));
            drop(alone);
            assert_eq!(now(), None);
        }
        let paused = start(&store, &Filters::all(), Redundancy::Kept, &mut |_| {
            assert_eq!(now(), Some(ExclusiveOperation::Balance));
            Some(Wish::Pause)
        });
        assert_eq!(paused.expect("it pauses").1, End::Stopped(Wish::Pause));
        assert_eq!(now(), Some(ExclusiveOperation::BalancePaused));
        cancel(&store).expect("it ends");
        assert_eq!(now(), None);
    }

    #[test]
    fn other_handles_see_what_runs_and_end_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = volume(&directory);
        let other = volume.share();
        assert!(!other.stop_balance(Wish::Pause));
        let balance = volume.begin_balance().expect("none runs");
        assert!(other.begin_balance().is_none());
        let progress = Progress {
            expected: 7,
            ..Progress::default()
        };
        assert_eq!(balance.note(&progress), None);
        assert_eq!(other.balance_progress(), Some(progress));
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| other.stop_balance(Wish::Cancel));
            while balance.note(&progress) != Some(Wish::Cancel) {
                std::thread::yield_now();
            }
            drop(balance);
            assert!(ended.join().expect("it does not panic"));
        });
        assert_eq!(other.balance_progress(), None);

        let (one, two) = (DeviceId(1), DeviceId(2));
        let scrub = volume.begin_scrub(&[one]).expect("none runs");
        assert!(other.begin_scrub(&[two, one]).is_none());
        assert!(other.begin_scrub(&[two]).is_some());
        assert_eq!(other.scrub_progress(two), None, "it was dropped");
        std::thread::scope(|scope| {
            let ended = scope.spawn(|| other.cancel_scrubs());
            while !scrub.note(&DeviceProgress::of(one)) {
                std::thread::yield_now();
            }
            drop(scrub);
            assert!(ended.join().expect("it does not panic"));
        });
        assert!(!other.cancel_scrubs());

        let resize = volume.begin_device_change(DeviceChange::Resize);
        assert!(volume.begin_device_change(DeviceChange::Removal).is_none());
        assert!(!other.cancel_device_change(DeviceChange::Removal));
        assert!(other.device_change_progress(DeviceChange::Resize).is_some());
        drop(resize);
        assert!(other.device_change_progress(DeviceChange::Resize).is_none());
    }
}
