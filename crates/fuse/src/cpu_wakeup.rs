//! Keeping CPUs from falling asleep between two requests.
//!
//! Owns what is known of the machine's wake-ups, and the threads that act on
//! it. A caller waits for the server, and the server for the caller's next
//! request. So one CPU is idle for a few microseconds, over and over. If an
//! idle CPU sleeps at once and wakes slowly (virtual machines that halt: 40
//! microseconds), each request pays for that, and pays many times its own cost.
//!
//! What is done while requests follow each other depends on the number of CPUs
//! and callers:
//!
//! - With few CPUs and one caller, the CPUs that serve nothing are *occupied*
//!   by threads of the lowest priority (nice 19). The scheduler moves a woken
//!   caller to any idle CPU, and now finds none. So caller and server stay on
//!   one CPU and hand over by a switch.
//! - During large reads nothing is done: copying takes longer than waking a
//!   CPU, and caller and server copy side by side.
//! - With few CPUs and several callers nothing is done: the CPUs are at work,
//!   and two threads serve them.
//! - With more CPUs, those that serve requests are *held*: a thread of the idle
//!   class (SCHED_IDLE) runs on each. It yields at once to anything else that
//!   wants to run, so it takes only time in which the CPU would sleep. The
//!   scheduler counts such a CPU as idle.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::thread::CpuSet;

use crate::caller_count::CallerCount;
use crate::request_slot::Placement;

/// What is done about CPUs that wake slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wake {
    /// They are kept awake while requests come, if this machine's are slow.
    Auto,
    /// They are kept awake while requests come.
    Poll,
    /// Nothing.
    #[default]
    Sleep,
}

/// A read of at least this many bytes makes caller and server copy for longer
/// than waking a CPU takes, so they are faster side by side. (Writers are not:
/// threads of the library use the other CPU to write out what the writers hand
/// over.)
pub(crate) const BULK: usize = 128 << 10;

/// A wake-up that takes at least this long is worth avoiding. Switching from
/// one thread to another takes 2 to 5 microseconds.
const DEAR: Duration = Duration::from_micros(10);
/// Requests that follow each other within this time form a flow.
const GAP: Duration = Duration::from_micros(1_000);
/// Requests of a flow before anything is done.
const FLOW: u32 = 8;
/// How long a CPU is kept awake after its last request, at most.
const LINGER: Duration = Duration::from_micros(10_000);
/// Each request keeps its CPU awake for this many times what a wake-up takes.
/// So a trickle of requests costs a bounded multiple of what it saves.
const EARNED: u64 = 8;
/// With at most this many CPUs, those that serve nothing are occupied.
const FEW: usize = 4;
/// A CPU that served a request within this time is not occupied.
const LATELY: Duration = Duration::from_micros(1_000);
/// How long a CPU is occupied that a server is about to leave.
const SETTLING: Duration = Duration::from_micros(500);
/// If a caller was seen on a CPU within this time, a disturbance of the CPU is
/// taken for that caller, for the first [`EXCUSED`] times.
const SEEN: Duration = Duration::from_millis(20);
const EXCUSED: u32 = 2;
/// Wake-ups that took longer than this were delayed by other work.
const COST_MAX: Duration = Duration::from_micros(200);
/// After this time without requests, wake-ups can be measured.
const IDLE: Duration = Duration::from_millis(100);
/// How often a thread that occupies a CPU checks whether it has the CPU to
/// itself.
const WINDOW: Duration = Duration::from_micros(1_000);
/// How often such a thread yields. The device's work may be done by a thread of
/// the kernel that woke on this CPU, and the scheduler would let it wait until
/// the next tick.
const YIELD: Duration = Duration::from_micros(10);
/// A pause of the thread that keeps a CPU awake. If it is this long, somebody
/// else uses the CPU, which then does not sleep anyway.
const PREEMPTED: Duration = Duration::from_micros(1_000);
/// How long such a CPU is left alone. The time doubles each time until the CPU
/// is found idle again. The first time is short, because it may have been the
/// caller that used the CPU, and its server may have moved there since.
const REST: Duration = Duration::from_millis(1);
const REST_DOUBLES: u32 = 9;
/// How often the caller's thread is looked for.
const LOOK: Duration = Duration::from_micros(1_000);
/// How long a mount waits for the first measurement.
const FIRST: Duration = Duration::from_millis(50);
/// How often a machine is measured again.
const MEASURE_AGAIN: Duration = Duration::from_secs(10);

/// How a CPU is kept from sleeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Occupy,
    Hold,
}

/// One CPU.
#[derive(Debug, Default)]
struct Cpu {
    /// When the last request was served here, and whose it was.
    served: AtomicU64,
    caller: AtomicU32,
    /// When a caller was seen here last.
    seen: AtomicU64,
    occupier: Keeper,
    holder: Keeper,
}

/// A thread that keeps one CPU from sleeping.
#[derive(Debug, Default)]
struct Keeper {
    /// Until when it does so, in nanoseconds since `origin`.
    until: AtomicU64,
    /// When it was last told to.
    told: AtomicU64,
    /// Until when it leaves the CPU alone.
    rests: AtomicU64,
    /// Whether it runs, or is told to.
    runs: AtomicBool,
    thread: OnceLock<Thread>,
}

impl Cpu {
    const fn keeper(&self, way: Way) -> &Keeper {
        match way {
            Way::Occupy => &self.occupier,
            Way::Hold => &self.holder,
        }
    }
}

/// A thread to be moved to its caller's CPU.
#[derive(Debug)]
struct Order {
    caller: u32,
    placement: Arc<Placement>,
}

/// The state of all CPUs of this process.
#[derive(Debug)]
pub struct CpuWakeup {
    wake: Wake,
    origin: Instant,
    /// Wake-ups are slow enough to do something about them.
    enabled: AtomicBool,
    /// When the last request came, on any CPU.
    last: AtomicU64,
    flow: AtomicU32,
    /// Where this process may run.
    own: CpuSet,
    /// By number. CPUs that are not this process's are `None`.
    cpus: Vec<Option<Cpu>>,
    /// There are few enough CPUs that they may be occupied.
    are_few: bool,
    callers: CallerCount,
    /// Nanoseconds that a wake-up took; zero: not measured.
    cost: AtomicU64,
    spent: AtomicU64,
    /// A server is being moved until then.
    settled: AtomicU64,
    /// The thread that looks where callers run, and its last order.
    scout: OnceLock<Thread>,
    order: Mutex<Option<Order>>,
    ordered: AtomicU64,
    closed: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl CpuWakeup {
    pub(crate) fn new(wake: Wake) -> Arc<Self> {
        let set = rustix::thread::sched_getaffinity(None).unwrap_or_default();
        let own = Placement::own_cpus();
        // If a container has a quota of CPU time, the time spent awake counts.
        let has_quota = std::thread::available_parallelism().is_ok_and(|n| n.get() < own.len());
        let wake = if has_quota || own.len() < 2 {
            Wake::Sleep
        } else {
            wake
        };
        let count = own.iter().max().map_or(0, |last| last + 1);
        let cpu = |number| own.contains(&number).then(Cpu::default);
        Arc::new(Self {
            wake,
            origin: Instant::now(),
            enabled: AtomicBool::new(wake == Wake::Poll),
            last: AtomicU64::new(0),
            flow: AtomicU32::new(0),
            own: set,
            cpus: (0..count).map(cpu).collect(),
            are_few: own.len() <= FEW,
            callers: CallerCount::default(),
            cost: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            settled: AtomicU64::new(0),
            scout: OnceLock::new(),
            order: Mutex::default(),
            ordered: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            threads: Mutex::default(),
        })
    }

    /// Whether requests of several callers are mixed.
    pub(crate) fn has_several_callers(&self) -> bool {
        self.callers.are_several()
    }

    /// What waking a thread on another CPU took when that was last measured;
    /// `None` with one CPU, and with [`Wake::Sleep`].
    #[must_use]
    pub fn cost(&self) -> Option<Duration> {
        match self.cost.load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Duration::from_nanos(nanos)),
        }
    }

    /// CPU time that keeping CPUs awake has taken.
    #[must_use]
    pub fn spent(&self) -> Duration {
        Duration::from_nanos(self.spent.load(Ordering::Relaxed))
    }

    /// Measures wake-ups, and continues in the background while the caller goes
    /// on.
    pub(crate) fn start(self: &Arc<Self>) {
        if self.wake == Wake::Sleep {
            return;
        }
        let (judged, wait) = mpsc::channel();
        let me = Arc::clone(self);
        self.spawn("fuse-wake".into(), move || {
            me.judge();
            let _ = judged.send(());
            me.measure();
        });
        // Wait for the first measurement, because whoever mounts begins to work
        // at once. On a busy machine it may take longer.
        let _ = wait.recv_timeout(FIRST);
    }

    /// Ends all threads.
    pub(crate) fn stop(&self) {
        self.closed.store(true, Ordering::SeqCst);
        let threads = std::mem::take(&mut *self.threads.lock());
        for thread in &threads {
            thread.thread().unpark();
        }
        for thread in threads {
            let _ = thread.join();
        }
    }

    /// A request of the thread `caller`, which reads this many bytes, is served
    /// on `cpu`. Nobody waits for what the kernel itself asks (caller 0).
    pub(crate) fn serves(self: &Arc<Self>, cpu: usize, caller: u32, reads: usize) {
        if caller == 0 {
            return;
        }
        let now = self.now();
        let before = self.last.swap(now, Ordering::Relaxed);
        let since = Duration::from_nanos(now.saturating_sub(before));
        self.callers.note(caller, since);
        if self.wake == Wake::Sleep || reads >= BULK {
            return;
        }
        if !self.enabled.load(Ordering::Relaxed) {
            return;
        }
        if since > GAP {
            self.flow.store(0, Ordering::Relaxed);
            return;
        }
        if self.flow.load(Ordering::Relaxed) < FLOW {
            self.flow.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let Some(Some(state)) = self.cpus.get(cpu) else {
            return;
        };
        if !self.are_few {
            return self.keep(cpu, Way::Hold, now);
        }
        state.served.store(now, Ordering::Relaxed);
        state.caller.store(caller, Ordering::Relaxed);
        if !self.callers.are_several() {
            self.occupy_but(cpu, caller, now);
        }
    }

    /// Occupies the CPUs that serve nobody but this caller, who is on `cpu`.
    fn occupy_but(self: &Arc<Self>, cpu: usize, caller: u32, now: u64) {
        for (other, state) in self.cpus.iter().enumerate() {
            let Some(state) = state else { continue };
            if other != cpu
                && (!is_lately(&state.served, now, LATELY)
                    || state.caller.load(Ordering::Relaxed) == caller)
            {
                self.keep(other, Way::Occupy, now);
            }
        }
    }

    /// Keeps a CPU from sleeping a little longer.
    fn keep(self: &Arc<Self>, cpu: usize, way: Way, now: u64) {
        let Some(Some(state)) = self.cpus.get(cpu) else {
            return;
        };
        let keeper = state.keeper(way);
        if now < keeper.rests.load(Ordering::Relaxed) {
            return;
        }
        let earned = EARNED
            * self
                .cost
                .load(Ordering::Relaxed)
                .max(DEAR.as_nanos() as u64);
        let until = keeper.until.load(Ordering::Relaxed).max(now) + earned;
        let until = until.min(now + LINGER.as_nanos() as u64);
        keeper.until.store(until, Ordering::Relaxed);
        keeper.told.store(now, Ordering::Relaxed);
        if keeper.runs.load(Ordering::Relaxed) || keeper.runs.swap(true, Ordering::AcqRel) {
            return;
        }
        match keeper.thread.get() {
            Some(thread) => thread.unpark(),
            None => {
                let me = Arc::clone(self);
                let name = match way {
                    Way::Occupy => format!("fuse-occupy{cpu}"),
                    Way::Hold => format!("fuse-hold{cpu}"),
                };
                self.spawn(name, move || me.keep_awake(cpu, way));
            }
        }
    }

    /// Lets a thread soon be moved to the CPU on which `caller` runs.
    ///
    /// Another thread looks for that CPU. /proc tells nothing about a process
    /// in the middle of execve(2), and that process may be waiting for an
    /// answer of the thread that would ask (the close of a file).
    pub(crate) fn move_to(self: &Arc<Self>, caller: u32, placement: &Arc<Placement>) {
        if !self.enabled.load(Ordering::Relaxed) {
            return;
        }
        let now = self.now();
        let before = self.ordered.load(Ordering::Relaxed);
        if now.saturating_sub(before) < LOOK.as_nanos() as u64 {
            return;
        }
        self.ordered.store(now, Ordering::Relaxed);
        let order = Order {
            caller,
            placement: Arc::clone(placement),
        };
        *self.order.lock() = Some(order);
        match self.scout.get() {
            Some(scout) => scout.unpark(),
            None => {
                let me = Arc::clone(self);
                self.spawn("fuse-scout".into(), move || me.look());
            }
        }
    }

    fn look(self: &Arc<Self>) {
        if self.scout.set(std::thread::current()).is_err() {
            return;
        }
        while !self.closed.load(Ordering::SeqCst) {
            let order = self.order.lock().take();
            let Some(Order { caller, placement }) = order else {
                std::thread::park();
                continue;
            };
            let Some(cpu) = cpu_of(caller) else { continue };
            let now = self.now();
            if let Some(Some(state)) = self.cpus.get(cpu) {
                state.seen.store(now, Ordering::Relaxed);
            }
            // This comes first, because the caller would go on to a CPU that is
            // idle when its server arrives.
            if self.are_few && !placement.is_on(cpu) {
                self.settled
                    .store(now + SETTLING.as_nanos() as u64, Ordering::Relaxed);
                self.occupy_but(cpu, caller, now);
            }
            placement.on(cpu);
        }
    }

    fn now(&self) -> u64 {
        self.origin.elapsed().as_nanos() as u64
    }

    fn spawn(&self, name: String, work: impl FnOnce() + Send + 'static) {
        let mut threads = self.threads.lock();
        if self.closed.load(Ordering::SeqCst) {
            return;
        }
        match std::thread::Builder::new().name(name).spawn(work) {
            Ok(thread) => threads.push(thread),
            Err(error) => tracing::debug!(%error, "CPUs are not kept awake"),
        }
    }

    /// Measures again, now and then while the mount is in use, because the
    /// machine may have been busy. While CPUs are kept awake, wake-ups are
    /// fast. So only a measurement without requests can end that.
    fn measure(&self) {
        let mut requests = 0;
        loop {
            let again = Instant::now() + MEASURE_AGAIN;
            while !self.closed.load(Ordering::SeqCst) && Instant::now() < again {
                std::thread::park_timeout(again.saturating_duration_since(Instant::now()));
            }
            if self.closed.load(Ordering::SeqCst) {
                return;
            }
            let last = self.last.load(Ordering::Relaxed);
            let is_flowing = is_lately(&self.last, self.now(), IDLE);
            let is_enabled = self.enabled.load(Ordering::Relaxed);
            if requests != last && !(is_enabled && is_flowing) {
                requests = last;
                self.judge();
            }
        }
    }

    /// Decides whether anything is done. Measures twice, because one round may
    /// have met a busy CPU. If the two rounds differ, nothing changes.
    fn judge(&self) {
        let is_dear = self.is_dear();
        let is_new = is_dear != self.enabled.load(Ordering::Relaxed);
        if is_new && self.wake == Wake::Auto && is_dear == self.is_dear() {
            self.enabled.store(is_dear, Ordering::Relaxed);
        }
    }

    fn is_dear(&self) -> bool {
        let Some(cost) = wake_up() else {
            return false;
        };
        let cost = cost.min(COST_MAX);
        self.cost.store(cost.as_nanos() as u64, Ordering::Relaxed);
        cost >= DEAR
    }

    /// A thread of one CPU.
    fn keep_awake(&self, cpu: usize, way: Way) {
        let Some(Some(state)) = self.cpus.get(cpu) else {
            return;
        };
        let keeper = state.keeper(way);
        let _ = keeper.thread.set(std::thread::current());
        let placement = Placement::within(self.own);
        let is_yielding = match way {
            Way::Occupy => be_last(),
            Way::Hold => be_idle_class(),
        };
        if !placement.on(cpu) || !is_yielding {
            tracing::debug!(cpu, "it is not kept awake");
            return;
        }
        let (mut doubles, mut excused) = (0, 0);
        while !self.closed.load(Ordering::SeqCst) {
            if !keeper.runs.load(Ordering::Acquire) {
                std::thread::park();
                continue;
            }
            let began = cpu_time();
            match self.spin(state, way) {
                Spun::Disturbed => {
                    let rests = self.now() + (REST.as_nanos() as u64) * (1 << doubles);
                    keeper.rests.store(rests, Ordering::Relaxed);
                    if is_lately(&state.seen, self.now(), SEEN) && excused < EXCUSED {
                        excused += 1;
                    } else {
                        doubles = REST_DOUBLES.min(doubles + 1);
                    }
                }
                Spun::Alone => (doubles, excused) = (0, 0),
                Spun::Briefly => {}
            }
            let took = cpu_time().saturating_sub(began);
            self.spent
                .fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
            keeper.runs.store(false, Ordering::Release);
        }
    }

    /// Runs until the CPU need no longer be kept awake.
    fn spin(&self, state: &Cpu, way: Way) -> Spun {
        let keeper = state.keeper(way);
        let mut before = self.now();
        let mut window = (before, cpu_time());
        let mut yielded = before;
        let mut ended = Spun::Briefly;
        loop {
            for _ in 0..50 {
                std::hint::spin_loop();
            }
            let now = self.now();
            if now.saturating_sub(before) > PREEMPTED.as_nanos() as u64 {
                return Spun::Disturbed;
            }
            before = now;
            if now > keeper.until.load(Ordering::Relaxed) || self.closed.load(Ordering::Relaxed) {
                return ended;
            }
            if way == Way::Hold {
                ended = Spun::Alone;
                continue;
            }
            if now.saturating_sub(yielded) > YIELD.as_nanos() as u64 {
                std::thread::yield_now();
                yielded = now;
            }
            if state.served.load(Ordering::Relaxed) > keeper.told.load(Ordering::Relaxed)
                && now > self.settled.load(Ordering::Relaxed)
            {
                return ended;
            }
            let elapsed = now - window.0;
            if elapsed > WINDOW.as_nanos() as u64 {
                let used = cpu_time();
                // Others on this CPU, or another virtual machine, took more
                // than a quarter of the time.
                if used.saturating_sub(window.1).as_nanos() as u64 * 4 < elapsed * 3 {
                    return Spun::Disturbed;
                }
                window = (now, used);
                ended = Spun::Alone;
            }
        }
    }
}

/// Whether the time in `at` is at most `ago` back.
fn is_lately(at: &AtomicU64, now: u64, ago: Duration) -> bool {
    let at = at.load(Ordering::Relaxed);
    at > 0 && now.saturating_sub(at) < ago.as_nanos() as u64
}

/// How keeping a CPU awake ended.
enum Spun {
    /// It ended before anything could be said.
    Briefly,
    /// Nobody else wanted the CPU.
    Alone,
    /// Somebody else uses the CPU, which then does not sleep.
    Disturbed,
}

/// The CPU on which a thread runs, or ran last.
fn cpu_of(thread: u32) -> Option<usize> {
    let mut buffer = [0; 1024];
    let path = format!("/proc/{thread}/task/{thread}/stat");
    let file = rustix::fs::open(
        path,
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .ok()?;
    let len = rustix::io::read(file, &mut buffer).ok()?;
    processor(std::str::from_utf8(&buffer[..len]).ok()?)
}

/// The field `processor` (39) of proc_pid_stat(5). The name, field 2, may have
/// spaces and brackets.
fn processor(stat: &str) -> Option<usize> {
    let (_, after_name) = stat.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(36)?.parse().ok()
}

fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}

/// Gives this thread the smallest share of a CPU, a tenth of a millisecond at a
/// time. The thread does not get the idle class, because a CPU that runs only
/// that class counts as idle.
#[allow(unsafe_code, reason = "rustix has no scheduling attributes")]
fn be_last() -> bool {
    /// `struct sched_attr` in its first version, sched_setattr(2).
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        /// Linux 6.12 and later: how long it runs at a time, in nanoseconds.
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 19,
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: the call reads the structure, which states its own size, and
    // changes only this thread.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) == 0 }
}

/// Makes this thread run only when nothing else wants to.
#[allow(unsafe_code, reason = "rustix has no scheduling policies")]
fn be_idle_class() -> bool {
    // SAFETY: the structure is plain data, and all zeroes are a valid value of
    // it.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the call reads the structure and changes this thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) == 0 }
}

/// What waking a thread on another, idle CPU takes: the median of a few
/// measurements. It takes 4 milliseconds. `None` if it cannot be measured.
fn wake_up() -> Option<Duration> {
    const ROUNDS: usize = 9;
    /// Long enough for an idle CPU to sleep as deeply as it does between
    /// requests.
    const APART: Duration = Duration::from_micros(300);
    const TIMEOUT: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 50_000_000,
    };
    let own = Placement::own_cpus();
    let [here, there, ..] = own[..] else {
        return None;
    };
    let bell: OwnedFd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
    let (origin, rung) = (Instant::now(), AtomicU64::new(0));
    let mut times = std::thread::scope(|scope| {
        let sleeper = std::thread::Builder::new().spawn_scoped(scope, || {
            Placement::default().on(there);
            let mut times = Vec::with_capacity(ROUNDS);
            while times.len() < ROUNDS {
                let mut wait = [PollFd::new(&bell, PollFlags::IN)];
                let rings = poll(&mut wait, Some(&TIMEOUT));
                let now = origin.elapsed().as_nanos() as u64;
                let is_read = rustix::io::read(&bell, &mut [0; 8]);
                if !matches!(rings, Ok(1)) || is_read.is_err() {
                    break;
                }
                times.push(now.saturating_sub(rung.load(Ordering::SeqCst)));
            }
            times
        });
        let sleeper = sleeper.ok()?;
        let mine = Placement::default();
        mine.on(here);
        for _ in 0..ROUNDS {
            std::thread::sleep(APART);
            rung.store(origin.elapsed().as_nanos() as u64, Ordering::SeqCst);
            if rustix::io::write(&bell, &1u64.to_ne_bytes()).is_err() {
                break;
            }
        }
        mine.anywhere();
        sleeper.join().ok()
    })?;
    times.sort_unstable();
    let median = *times.get(times.len() / 2)?;
    Some(Duration::from_nanos(median))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_the_39th_field() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let stat = format!("17 (a) b ) {}", fields.join(" "));
        assert_eq!(processor(&stat), Some(39));
        assert_eq!(processor("17 (short) S 1"), None);
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        assert!(cpu_of(own).is_some());
    }

    #[test]
    fn a_wake_up_takes_some_time() {
        if Placement::own_cpus().len() > 1 {
            let cost = wake_up().unwrap();
            assert!(
                cost > Duration::ZERO && cost < Duration::from_secs(1),
                "{cost:?}"
            );
        }
    }

    #[test]
    fn cpus_are_kept_awake_while_requests_flow_and_no_longer() {
        let own = Placement::own_cpus();
        let [here, there, ..] = own[..] else { return };
        for occupies in [false, true] {
            let mut wakeup = CpuWakeup::new(Wake::Poll);
            Arc::get_mut(&mut wakeup).unwrap().are_few = occupies;
            let kept = if occupies { there } else { here };
            let is_awake = |cpu: usize| {
                let state = wakeup.cpus[cpu].as_ref().unwrap();
                let ways = [&state.occupier, &state.holder];
                ways.iter().any(|way| way.runs.load(Ordering::SeqCst))
            };
            wakeup.serves(here, 7, 0);
            assert!(!is_awake(kept), "one request is no flow");
            let begun = Instant::now();
            while !is_awake(kept) {
                assert!(begun.elapsed() < Duration::from_secs(10), "a flow does it");
                wakeup.serves(here, 7, 0);
            }
            assert_eq!(is_awake(here), !occupies);
            while is_awake(kept) {
                assert!(begun.elapsed() < Duration::from_secs(20), "it sleeps again");
                std::thread::sleep(Duration::from_millis(1));
            }
            wakeup.stop();
        }
    }

    #[test]
    fn cpus_that_serve_several_callers_are_not_occupied() {
        let own = Placement::own_cpus();
        let [here, there, ..] = own[..] else { return };
        let mut wakeup = CpuWakeup::new(Wake::Sleep);
        let inner = Arc::get_mut(&mut wakeup).unwrap();
        inner.are_few = true;
        let served = |cpu: usize, caller: u32, now: u64| {
            let state = wakeup.cpus[cpu].as_ref().unwrap();
            state.served.store(now, Ordering::Relaxed);
            state.caller.store(caller, Ordering::Relaxed);
        };
        let occupies = |cpu: usize, now: u64| {
            wakeup.occupy_but(here, 7, now);
            let state = wakeup.cpus[cpu].as_ref().unwrap();
            state.occupier.told.load(Ordering::Relaxed) == now
        };
        const MILLI: u64 = 1_000_000;
        served(here, 7, MILLI);
        served(there, 8, MILLI);
        assert!(
            !occupies(there, MILLI + 10),
            "another caller is served there"
        );
        assert!(!occupies(here, MILLI + 10), "itself");
        assert!(occupies(there, 3 * MILLI), "no longer");
        served(there, 7, 3 * MILLI);
        assert!(
            occupies(there, 3 * MILLI + 10),
            "the caller came from there"
        );
        wakeup.stop();
    }

    #[test]
    fn what_shall_sleep_is_left_alone() {
        let wakeup = CpuWakeup::new(Wake::Sleep);
        wakeup.start();
        for _ in 0..100 {
            wakeup.serves(0, 7, 0);
        }
        assert!(wakeup.threads.lock().is_empty());
        assert_eq!(wakeup.cost(), None);
        wakeup.stop();
    }
}
