//! Changes of a volume's devices that run in this process: their progress, and
//! whether somebody wants them to end.

use crate::facts;
use crate::fail::{Failure, fail};
use butterfs::Volume;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Running {
    /// A device is removed.
    Removal,
    /// A device is replaced.
    Replacement,
    /// A device gets another size.
    Resize,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default)]
pub struct State {
    /// Bytes that are done.
    pub done: u64,
    /// Bytes that are to be done.
    pub all: u64,
    /// Sectors without a good copy.
    pub errors: u64,
    cancelled: bool,
}

/// What runs, by the UUIDs of the volumes.
static ALL: Mutex<BTreeMap<String, (Running, State)>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<String, (Running, State)>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The only such change of its volume in this process.
#[derive(Debug)]
pub struct Turn(String);

impl Turn {
    /// Begins a change. Errors if another one runs.
    pub fn take(volume: &Volume, what: Running) -> Result<Self, Failure> {
        let uuid = facts::of(volume).uuid;
        let mut all = all();
        if all.contains_key(&uuid) {
            return fail(
                "another removal, replacement or resize of a device of this volume is under way; wait for its end, or cancel it",
            );
        }
        all.insert(uuid.clone(), (what, State::default()));
        Ok(Self(uuid))
    }

    /// Notes how far it is.
    pub fn note(&self, done: u64, of: u64, errors: u64) {
        if let Some((_, state)) = all().get_mut(&self.0) {
            (state.done, state.all, state.errors) = (done, of, errors);
        }
    }

    /// Whether somebody wants it to end.
    pub fn is_cancelled(&self) -> bool {
        all().get(&self.0).is_some_and(|(_, state)| state.cancelled)
    }

    /// Asks the running change to end, and waits for it. False if none runs.
    pub fn cancel(volume: &Volume, what: Running) -> bool {
        let uuid = facts::of(volume).uuid;
        match all().get_mut(&uuid) {
            Some((running, state)) if *running == what => state.cancelled = true,
            _ => return false,
        }
        while Self::state(volume, what).is_some() {
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    /// How far the running change is.
    pub fn state(volume: &Volume, what: Running) -> Option<State> {
        let uuid = facts::of(volume).uuid;
        let all = all();
        let (running, state) = all.get(&uuid)?;
        (*running == what).then_some(*state)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        all().remove(&self.0);
    }
}
