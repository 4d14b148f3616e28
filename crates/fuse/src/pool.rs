//! The threads of a session.
//!
//! Owns how many threads wait for requests (request slots). Owns the spares
//! that take over a request slot while its thread waits for a device. Some
//! request slots are open only while several callers take turns. Each thread
//! has its own queue and serves what it reads from it.
//!
//! Invariant: a thread reads from its queue only while it holds a request slot.
//! A request slot is free only while nobody could take it: at the bound of
//! threads, or until a parked or starting thread gets to run.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::config::Pinning;
use crate::dispatch::Serve;
use crate::request_slot::{RequestSlot, SlotOwner};
use crate::transport::{Queue, Served, Transport};

/// Numbers of threads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strength {
    /// Threads that wait for requests at one time.
    pub(crate) slots: usize,
    /// The same while several callers take turns.
    pub(crate) slots_max: usize,
    /// Threads in all.
    pub(crate) threads_max: usize,
}

struct State {
    free: Vec<usize>,
    /// Request slots that are not open.
    shut: Vec<usize>,
    parked: usize,
    starting: usize,
    /// Threads that have not ended.
    alive: usize,
    /// A queue failed: no thread is started any more.
    failing: bool,
    closed: bool,
    failure: Option<io::Error>,
    handles: Vec<JoinHandle<()>>,
}

/// All threads of one session.
pub(crate) struct Pool<T> {
    transport: T,
    server: Arc<dyn Serve>,
    pinning: Pinning,
    /// Where the threads may run.
    cpus: CpuSet,
    strength: Strength,
    state: Mutex<State>,
    /// Some request slots are shut and could be opened.
    has_shut: AtomicBool,
    vacancy: Condvar,
    me: Weak<Self>,
}

impl<T: Transport> Pool<T> {
    /// Starts the threads.
    pub(crate) fn start(
        transport: T,
        server: Arc<dyn Serve>,
        strength: Strength,
        pinning: Pinning,
    ) -> io::Result<Arc<Self>> {
        let cpus = sched_getaffinity(None)?;
        let pool = Arc::new_cyclic(|me| Self {
            transport,
            server,
            pinning,
            cpus,
            strength,
            state: Mutex::new(State {
                free: (0..strength.slots).rev().collect(),
                shut: (strength.slots..strength.slots_max).collect(),
                parked: 0,
                starting: strength.slots,
                alive: strength.slots,
                failing: false,
                closed: false,
                failure: None,
                handles: Vec::new(),
            }),
            has_shut: AtomicBool::new(strength.slots < strength.slots_max),
            vacancy: Condvar::new(),
            me: me.clone(),
        });
        for number in 0..strength.slots {
            if let Err(error) = pool.spawn(number) {
                pool.close();
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Waits until all threads ended.
    pub(crate) fn join(&self) -> io::Result<()> {
        loop {
            let handle = self.state.lock().handles.pop();
            let Some(handle) = handle else { break };
            if handle.join().is_err() {
                tracing::error!("a thread of the session panicked");
            }
        }
        self.state.lock().failure.take().map_or(Ok(()), Err)
    }

    fn spawn(&self, number: usize) -> io::Result<()> {
        let Some(pool) = self.me.upgrade() else {
            return Ok(());
        };
        let handle = std::thread::Builder::new()
            .name(format!("fuse-{number}"))
            .spawn(move || pool.work())?;
        self.state.lock().handles.push(handle);
        Ok(())
    }

    fn work(&self) {
        let Some(owner) = self.me.upgrade() else {
            return;
        };
        // Do not stay on the CPU of the thread that started this one.
        let _ = sched_setaffinity(None, &self.cpus);
        let slot = RequestSlot::of(owner);
        let mut starting = true;
        let mut queue = match self.transport.queue() {
            Ok(queue) => queue,
            Err(error) => {
                self.state.lock().starting -= 1;
                return self.fail(error);
            }
        };
        while self.sit(&slot, &mut starting) {
            self.pin(&slot);
            match queue.serve_one(&*self.server, &slot) {
                Served::Again => self.open_or_shut(&slot),
                Served::Ended => return self.close(),
                Served::Failed(error) => {
                    // Threads that exist may have more luck. New ones would
                    // only repeat the failure without end.
                    self.state.lock().failing = true;
                    slot.leave();
                    return self.fail(error);
                }
            }
        }
    }

    /// Takes a request slot unless it has one; false when the session ended.
    fn sit(&self, slot: &RequestSlot, starting: &mut bool) -> bool {
        if slot.index().is_some() {
            return true;
        }
        let mut state = self.state.lock();
        if std::mem::take(starting) {
            state.starting -= 1;
        }
        loop {
            if state.closed {
                return false;
            }
            if let Some(index) = state.free.pop() {
                slot.take(index);
                return true;
            }
            state.parked += 1;
            self.vacancy.wait(&mut state);
            state.parked -= 1;
        }
    }

    /// Opens the request slots for several callers if there are several. Shuts
    /// this request slot if it is one of those and there are no longer several.
    fn open_or_shut(&self, slot: &RequestSlot) {
        let are_several = self.transport.has_several_callers();
        if are_several && self.has_shut.load(Ordering::Relaxed) {
            let shut = {
                let mut state = self.state.lock();
                self.has_shut.store(false, Ordering::Relaxed);
                std::mem::take(&mut state.shut)
            };
            shut.into_iter().for_each(|index| self.vacate(index));
        } else if !are_several
            && slot
                .index()
                .is_some_and(|index| index >= self.strength.slots)
            && let Some(index) = slot.give_back()
        {
            let mut state = self.state.lock();
            state.shut.push(index);
            self.has_shut.store(true, Ordering::Relaxed);
        }
    }

    /// Runs where the configuration wants the request slot.
    fn pin(&self, slot: &RequestSlot) {
        if let (Pinning::Cpus(cpus), Some(index)) = (&self.pinning, slot.index())
            && let Some(at) = index.checked_rem(cpus.len())
        {
            slot.placement().on(cpus[at]);
        }
    }

    fn close(&self) {
        self.state.lock().closed = true;
        self.vacancy.notify_all();
    }

    /// One thread cannot go on. Others may. The last one's error is the error
    /// of the session.
    fn fail(&self, error: io::Error) {
        tracing::error!(%error, "a queue of the FUSE connection failed");
        let mut state = self.state.lock();
        state.alive -= 1;
        if state.alive == 0 {
            state.closed = true;
            state.failure = Some(error);
        }
    }
}

impl<T: Transport> SlotOwner for Pool<T> {
    fn vacate(&self, index: usize) {
        let mut state = self.state.lock();
        state.free.push(index);
        if state.free.len() <= state.parked {
            self.vacancy.notify_one();
            return;
        }
        let can_start = !(state.closed || state.failing)
            && state.alive < self.strength.threads_max
            && state.free.len() > state.parked + state.starting;
        if !can_start {
            return;
        }
        let number = state.alive;
        state.alive += 1;
        state.starting += 1;
        drop(state);
        if let Err(error) = self.spawn(number) {
            tracing::warn!(%error, "cannot start a spare thread; requests wait for each other");
            let mut state = self.state.lock();
            state.alive -= 1;
            state.starting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Outcome;
    use crate::protocol::Message;
    use std::sync::atomic::AtomicUsize;
    use std::time::{Duration, Instant};

    /// Turns without requests, counted by request slot.
    #[derive(Default)]
    struct Turns {
        several: AtomicBool,
        ends: AtomicBool,
        of_slot: [AtomicUsize; 2],
    }

    struct Nothing;

    impl Serve for Nothing {
        fn serve(&self, _: &Message<'_>, _: &RequestSlot, _: &mut [u8]) -> Outcome {
            Outcome::Silent
        }

        fn finish(&self) {}
    }

    impl Transport for Arc<Turns> {
        type Queue = Self;

        fn queue(&self) -> io::Result<Self> {
            Ok(Self::clone(self))
        }

        fn has_several_callers(&self) -> bool {
            self.several.load(Ordering::SeqCst)
        }
    }

    impl Queue for Arc<Turns> {
        fn serve_one(&mut self, _: &dyn Serve, slot: &RequestSlot) -> Served {
            if self.ends.load(Ordering::SeqCst) {
                return Served::Ended;
            }
            self.of_slot[slot.index().unwrap()].fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(100));
            Served::Again
        }
    }

    /// Waits until the first request slot has had some more turns, and says how
    /// many the other one had meanwhile.
    fn turns_of_the_second(turns: &Turns) -> usize {
        let count = |slot: usize| turns.of_slot[slot].load(Ordering::SeqCst);
        let (first, second, begun) = (count(0), count(1), Instant::now());
        while count(0) < first + 20 {
            assert!(begun.elapsed() < Duration::from_secs(20), "nobody serves");
            std::thread::sleep(Duration::from_micros(100));
        }
        count(1) - second
    }

    #[test]
    fn a_second_slot_is_open_while_there_are_several_callers() {
        let turns = Arc::new(Turns::default());
        let strength = Strength {
            slots: 1,
            slots_max: 2,
            threads_max: 2,
        };
        let transport = Arc::clone(&turns);
        let pool = Pool::start(transport, Arc::new(Nothing), strength, Pinning::Free).unwrap();
        let becomes = |is_open: bool| {
            let begun = Instant::now();
            while (turns_of_the_second(&turns) > 0) != is_open {
                assert!(begun.elapsed() < Duration::from_secs(20), "{is_open}");
            }
        };
        assert_eq!(turns_of_the_second(&turns), 0);
        for _ in 0..3 {
            turns.several.store(true, Ordering::SeqCst);
            becomes(true);
            turns.several.store(false, Ordering::SeqCst);
            becomes(false);
            assert_eq!(turns_of_the_second(&turns), 0, "and stays so");
        }
        turns.ends.store(true, Ordering::SeqCst);
        pool.join().unwrap();
    }
}
