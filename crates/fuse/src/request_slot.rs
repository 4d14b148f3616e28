//! A thread's right to take requests, the CPU on which it runs, and how it
//! gives both up while it waits.
//!
//! Owns no thread. The owner of the threads decides what becomes of a request
//! slot that was left.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::thread::CpuSet;

/// Where a request slot goes when its thread leaves it.
pub(crate) trait SlotOwner: Send + Sync {
    fn vacate(&self, index: usize);
}

/// One thread's right to take requests; held or not.
pub(crate) struct RequestSlot {
    owner: Arc<dyn SlotOwner>,
    index: Cell<Option<usize>>,
    placement: Arc<Placement>,
}

thread_local! {
    static MINE: RefCell<Option<Rc<RequestSlot>>> = const { RefCell::new(None) };
}

/// Lets another thread serve requests while this one waits: for a device, a
/// commit or memory. Calls after the first do nothing. On threads that serve no
/// requests it has no effect.
///
/// fsync, fsyncdir, syncfs and ioctl have done so before the file system sees
/// them.
pub fn about_to_wait() {
    MINE.with_borrow(|mine| {
        if let Some(slot) = mine {
            slot.leave();
        }
    });
}

impl RequestSlot {
    /// This thread's request slot, which is not held yet.
    pub(crate) fn of(owner: Arc<dyn SlotOwner>) -> Rc<Self> {
        let slot = Rc::new(Self {
            owner,
            index: Cell::new(None),
            placement: Arc::default(),
        });
        MINE.set(Some(Rc::clone(&slot)));
        slot
    }

    /// Which request slot is held.
    pub(crate) fn index(&self) -> Option<usize> {
        self.index.get()
    }

    /// Holds the request slot of that number.
    pub(crate) fn take(&self, index: usize) {
        self.index.set(Some(index));
        self.placement.may_keep();
    }

    /// Gives the request slot to another thread, and runs on any CPU from now
    /// on, because what follows takes long and threads that it starts run where
    /// this one may. No effect if the request slot is not held.
    pub(crate) fn leave(&self) {
        if let Some(index) = self.give_back() {
            self.owner.vacate(index);
        }
    }

    /// As `leave`, for a thread whose request slot goes to nobody.
    pub(crate) fn give_back(&self) -> Option<usize> {
        let index = self.index.take()?;
        self.placement.stay_anywhere();
        Some(index)
    }

    /// Where this thread runs.
    pub(crate) fn placement(&self) -> &Arc<Placement> {
        &self.placement
    }
}

impl Drop for RequestSlot {
    fn drop(&mut self) {
        // A thread that still wants to move this one must not move another
        // thread that gets its number.
        self.placement.stay_anywhere();
    }
}

impl std::fmt::Debug for RequestSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RequestSlot")
            .field("index", &self.index)
            .field("placement", &self.placement)
            .finish_non_exhaustive()
    }
}

/// Where one thread runs. Others may move it.
#[derive(Debug)]
pub(crate) struct Placement {
    thread: rustix::thread::Pid,
    /// The CPU to which it keeps, and whether it may be moved to one.
    place: Mutex<Place>,
    /// Where it could run before it was placed.
    before: CpuSet,
}

#[derive(Debug)]
struct Place {
    cpu: Option<usize>,
    may_keep: bool,
}

impl Default for Placement {
    /// Of this thread, which runs on any CPU that it may use.
    fn default() -> Self {
        Self {
            thread: rustix::thread::gettid(),
            place: Mutex::new(Place {
                cpu: None,
                may_keep: true,
            }),
            before: rustix::thread::sched_getaffinity(None).unwrap_or_default(),
        }
    }
}

impl Placement {
    /// Of this thread, which may run on the CPUs of `before`.
    pub(crate) fn within(before: CpuSet) -> Self {
        Self {
            before,
            ..Self::default()
        }
    }

    /// CPUs that this thread may run on.
    pub(crate) fn own_cpus() -> Vec<usize> {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
        let is_own = |cpu: &usize| set.is_set(*cpu);
        (0..CpuSet::MAX_CPU).filter(is_own).collect()
    }

    /// Whether the thread keeps to that CPU.
    pub(crate) fn is_on(&self, cpu: usize) -> bool {
        self.place.lock().cpu == Some(cpu)
    }

    /// Makes the thread keep to one CPU. False if that is not allowed; it then
    /// runs as before.
    pub(crate) fn on(&self, cpu: usize) -> bool {
        let mut place = self.place.lock();
        let is_own = cpu < CpuSet::MAX_CPU && self.before.is_set(cpu);
        if place.cpu == Some(cpu) {
            return true;
        }
        if !place.may_keep || !is_own {
            return false;
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        match rustix::thread::sched_setaffinity(Some(self.thread), &set) {
            Ok(()) => {
                place.cpu = Some(cpu);
                true
            }
            Err(error) => {
                tracing::debug!(cpu, %error, "a thread stays where it is");
                false
            }
        }
    }

    /// Lets the thread run wherever it could before it was placed.
    pub(crate) fn anywhere(&self) {
        self.release(&mut self.place.lock());
    }

    /// As `anywhere`, until `may_keep` again.
    fn stay_anywhere(&self) {
        let mut place = self.place.lock();
        place.may_keep = false;
        self.release(&mut place);
    }

    fn may_keep(&self) {
        self.place.lock().may_keep = true;
    }

    fn release(&self, place: &mut Place) {
        if place.cpu.take().is_some() {
            let _ = rustix::thread::sched_setaffinity(Some(self.thread), &self.before);
        }
    }
}
