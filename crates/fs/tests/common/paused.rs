//! A device that stops the writes of chosen threads, and delays some of the
//! others.

use super::Random;
use butterfs_device::{Access, BlockDevice, DeviceError};
use butterfs_format::DeviceOffset;
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// Nothing here takes this long, unless it waits for something that never
/// comes.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct State {
    /// Threads whose writes stop, and whether they did.
    held: BTreeMap<String, bool>,
    /// Writes of data linger now and then.
    lingers: Option<u64>,
}

/// Another device, with pauses.
#[derive(Debug)]
pub struct PausedDevice {
    under: Arc<dyn BlockDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

fn name(thread: ThreadId) -> String {
    format!("{thread:?}")
}

impl PausedDevice {
    pub fn new(under: Arc<dyn BlockDevice>) -> Self {
        Self {
            under,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// From now on one write in four waits for up to two milliseconds.
    pub fn linger(&self, seed: u64) {
        self.state.lock().unwrap().lingers = Some(seed);
    }

    /// From now on the writes of the calling thread stop; gives its name.
    pub fn hold_me(&self) -> String {
        let me = name(thread::current().id());
        self.state.lock().unwrap().held.insert(me.clone(), false);
        me
    }

    pub fn wait_until_stopped(&self, thread: &str) {
        assert!(self.stops_within(thread, PATIENCE), "it writes nothing");
    }

    /// Whether a write of the thread stops within `time`.
    pub fn stops_within(&self, thread: &str, time: Duration) -> bool {
        let state = self.state.lock().unwrap();
        let is_running = |state: &mut State| state.held.get(thread) == Some(&false);
        let wait = self.changed.wait_timeout_while(state, time, is_running);
        !wait.unwrap().1.timed_out()
    }

    pub fn release(&self, thread: &str) {
        self.state.lock().unwrap().held.remove(thread);
        self.changed.notify_all();
    }

    fn pause(&self) {
        let me = name(thread::current().id());
        let mut state = self.state.lock().unwrap();
        while let Some(stopped) = state.held.get_mut(&me) {
            *stopped = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap();
        }
        let time = state.lingers.as_mut().map(|seed| {
            *seed += 1;
            let mut random = Random(*seed * 7919);
            match random.below(4) {
                0 => random.below(2000),
                _ => 0,
            }
        });
        drop(state);
        if let Some(time) = time.filter(|time| *time > 0) {
            thread::sleep(Duration::from_micros(time));
        }
    }
}

impl BlockDevice for PausedDevice {
    fn size(&self) -> u64 {
        self.under.size()
    }

    fn identity(&self) -> String {
        self.under.identity()
    }

    fn access(&self) -> Access {
        self.under.access()
    }

    fn read_at(&self, offset: DeviceOffset, buf: &mut [u8]) -> Result<(), DeviceError> {
        self.under.read_at(offset, buf)
    }

    fn write_at(&self, offset: DeviceOffset, data: &[u8]) -> Result<(), DeviceError> {
        self.pause();
        self.under.write_at(offset, data)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.under.flush()
    }
}
