//! What waking an idle processor costs, and whether idle processors poll.
//!
//! A virtual machine that halts an idle processor needs tens of microseconds to
//! wake it; one that polls first needs a few. A request to a file system in
//! userspace wakes two processors, so a figure of such a mount means nothing
//! without this.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::retry_on_intr;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long an idle processor of a virtual machine polls before it halts, in
/// nanoseconds.
pub const SETTING: &str = "/sys/module/haltpoll/parameters/guest_halt_poll_ns";

/// How long the kernel itself polls, if nobody sets another value.
const POLLING_NS: u64 = 200_000;

/// How often each processor is woken.
const ROUNDS: usize = 25;

/// Wake-ups before that, because the kernel polls longer only after some waits.
const WARM_UP: usize = 10;

/// How long a processor is idle before it is woken. Shorter than [`POLLING_NS`]
/// by more than a wake-up takes.
const IDLE: Duration = Duration::from_micros(120);

/// What idle processors do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// They halt at once.
    Halting,
    /// They poll for 200 µs first.
    Polling,
}

impl Wake {
    /// From the word of an experiment.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        [Self::Halting, Self::Polling]
            .into_iter()
            .find(|wake| wake.name() == word)
    }

    /// Its word in experiments.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Halting => "halting",
            Self::Polling => "polling",
        }
    }

    /// The value of [`SETTING`] for this.
    #[must_use]
    pub fn nanoseconds(self) -> u64 {
        match self {
            Self::Halting => 0,
            Self::Polling => POLLING_NS,
        }
    }

    /// Sets the machine's processors to this. The caller restores the setting.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set(self) -> Result<(), String> {
        fs::write(SETTING, self.nanoseconds().to_string())
            .map_err(|error| format!("{SETTING}: {error}"))
    }
}

/// Why this machine's processors cannot be made to poll or to halt.
#[must_use]
pub fn lack() -> Option<String> {
    let governor = crate::machine::read("/sys/devices/system/cpu/cpuidle/current_governor");
    if !Path::new(SETTING).exists() {
        return Some(format!("there is no {SETTING}"));
    }
    (governor != "haltpoll").then(|| {
        format!("idle processors are governed by {governor:?}, which does not look at {SETTING}")
    })
}

/// CPU seconds of all processors that went into polling, since the start. The
/// kernel counts them as idle time.
#[must_use]
pub fn polled() -> f64 {
    let folders = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten();
    let processors = folders(Path::new("/sys/devices/system/cpu"));
    let states = processors.flat_map(|one| folders(&one.path().join("cpuidle")));
    let polling = states.filter(|state| {
        let name = fs::read_to_string(state.path().join("name"));
        name.is_ok_and(|name| name.trim() == "POLL")
    });
    let microseconds = polling.filter_map(|state| {
        let time = fs::read_to_string(state.path().join("time")).ok()?;
        time.trim().parse::<f64>().ok()
    });
    microseconds.sum::<f64>() / 1e6
}

/// What this machine does when a processor is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WakeUp {
    /// From the wake-up on one processor to its thread running on another;
    /// `None` if there is only one processor.
    pub cost: Option<Duration>,
    /// How long idle processors poll; `None` if the kernel has no such setting.
    pub poll: Option<Duration>,
}

impl WakeUp {
    /// Looks and measures, in less than a tenth of a second.
    #[must_use]
    pub fn measure() -> Self {
        let setting = crate::machine::read(SETTING).parse().ok();
        Self {
            cost: cost(),
            poll: setting
                .filter(|_| lack().is_none())
                .map(Duration::from_nanos),
        }
    }
}

impl fmt::Display for WakeUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cost {
            Some(cost) => write!(f, "{:.1} µs", cost.as_secs_f64() * 1e6)?,
            None => f.write_str("not known on one processor")?,
        }
        match self.poll {
            Some(Duration::ZERO) => f.write_str("; idle processors halt at once"),
            Some(time) => write!(f, "; idle processors poll for {} µs", time.as_micros()),
            None => f.write_str("; idle processors do not poll as virtual machines can"),
        }
    }
}

/// Median of the time from a wake-up on one processor to its thread running on
/// another that was idle.
fn cost() -> Option<Duration> {
    let allowed = sched_getaffinity(None).ok()?;
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    let cpus = [cpus.next()?, cpus.next()?];
    let event = || eventfd(0, EventfdFlags::CLOEXEC).ok();
    let bells = [event()?, event()?];
    let (start, rung) = (Instant::now(), AtomicU64::new(0));
    let now = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let ring = |side: usize| {
        rung.store(now(), Ordering::Release);
        retry_on_intr(|| rustix::io::write(&bells[side], &1_u64.to_ne_bytes())).is_ok()
    };
    // Each in turn is idle until the other wakes it.
    let wait_and_ring = |side: usize| {
        let mut cpu = CpuSet::new();
        cpu.set(cpus[side]);
        let pinned = sched_setaffinity(None, &cpu).is_ok();
        let mut took = Vec::new();
        for _ in 0..WARM_UP + ROUNDS {
            retry_on_intr(|| rustix::io::read(&bells[side], &mut [0_u8; 8])).ok()?;
            took.push(now().saturating_sub(rung.load(Ordering::Acquire)));
            let idle_until = Instant::now() + IDLE;
            while Instant::now() < idle_until {
                std::hint::spin_loop();
            }
            if !ring(1 - side) {
                return None;
            }
        }
        pinned.then(|| took.split_off(WARM_UP))
    };
    let mut took = std::thread::scope(|scope| {
        let other = scope.spawn(|| wait_and_ring(1));
        let one = scope.spawn(|| wait_and_ring(0));
        ring(0);
        let (one, other) = (one.join().ok()??, other.join().ok()??);
        Some([one, other].concat())
    })?;
    took.sort_unstable();
    Some(Duration::from_nanos(took[took.len() / 2]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_takes_more_than_nothing_and_less_than_a_hundredth_of_a_second() {
        let found = WakeUp::measure();
        eprintln!("{found}");
        let several = std::thread::available_parallelism().unwrap().get() > 1;
        assert_eq!(found.cost.is_some(), several);
        let sane = Duration::from_nanos(100)..Duration::from_millis(10);
        assert!(found.cost.is_none_or(|cost| sane.contains(&cost)));
    }

    #[test]
    fn words_of_experiments() {
        assert_eq!(Wake::parse("halting"), Some(Wake::Halting));
        assert_eq!(Wake::parse("polling"), Some(Wake::Polling));
        assert_eq!(Wake::parse("sleeping"), None);
    }
}
