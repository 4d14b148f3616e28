//! What a cell costs while it is measured: time, CPU, sectors.
//!
//! CPU time of a file system is spent in three places: in the processes of the
//! workload, in the process that serves it, and in the kernel's own threads. A
//! cell is charged the sum of the three, and also what processors burn by
//! polling while they wait for it, which no clock counts as busy. If the
//! machine was otherwise idle, the time of the whole machine, less what it
//! spends when idle, is shown beside it.

use super::device::{Device, Sectors};
use super::process::{Process, TICKS, own_time, own_writes};
use crate::wakeup::polled;
use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Seconds.
    pub(crate) time: f64,
    /// CPU seconds of the workload's processes.
    pub(crate) processes: f64,
    /// Bytes that these processes wrote, to any file.
    pub(crate) asked: u64,
    /// CPU seconds of the process that serves the file system.
    pub(crate) server: f64,
    /// CPU seconds of the kernel's own threads (write-back, commits).
    pub(crate) kernel: f64,
    /// CPU seconds of the whole machine.
    pub(crate) machine: f64,
    /// CPU seconds for which idle processors polled for work; not part of the
    /// machine's.
    pub(crate) polled: f64,
    /// Sectors of all devices.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.time += other.time;
        self.processes += other.processes;
        self.asked += other.asked;
        self.server += other.server;
        self.kernel += other.kernel;
        self.machine += other.machine;
        self.polled += other.polled;
        self.read += other.read;
        self.written += other.written;
    }
}

/// CPU seconds of all processors that are not idle, since the start.
pub(crate) fn machine_time() -> f64 {
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let line = text.lines().next().unwrap_or_default();
    let fields: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .filter_map(|field| field.parse().ok())
        .collect();
    // user, nice, system, idle, iowait, irq, softirq; guests are in user.
    let busy = [0, 1, 2, 5, 6].map(|n| fields.get(n).copied().unwrap_or(0));
    busy.iter().sum::<u64>() as f64 / TICKS
}

/// CPU seconds spent per second while nothing is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Idle {
    /// By the whole machine.
    pub(crate) machine: f64,
    /// By the kernel's own threads.
    pub(crate) kernel: f64,
}

impl Idle {
    /// Above this the machine has other work, and its time says nothing.
    const QUIET: f64 = 0.1;

    pub(crate) fn measure(time: Duration) -> Self {
        let (threads, before, start) = (kernel_threads(), machine_time(), Instant::now());
        std::thread::sleep(time);
        let seconds = start.elapsed().as_secs_f64();
        Self {
            machine: (machine_time() - before) / seconds,
            kernel: since(&threads, &kernel_threads()) / seconds,
        }
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.machine <= Self::QUIET
    }
}

/// Ticks of all threads of the kernel.
fn kernel_threads() -> BTreeMap<i32, u64> {
    super::process::others()
        .into_iter()
        .filter_map(|pid| Some((pid, super::process::kernel_ticks(pid)?)))
        .collect()
}

/// CPU seconds from one look at the kernel's threads to the next. Those of
/// threads that ended in between are lost.
fn since(before: &BTreeMap<i32, u64>, after: &BTreeMap<i32, u64>) -> f64 {
    let spent = after.iter().map(|(pid, ticks)| {
        // The number may now belong to another thread, which began at 0.
        match before.get(pid) {
            Some(old) if old <= ticks => ticks - old,
            _ => *ticks,
        }
    });
    spent.sum::<u64>() as f64 / TICKS
}

struct Start {
    at: Instant,
    processes: f64,
    asked: u64,
    server: f64,
    kernel: BTreeMap<i32, u64>,
    machine: f64,
    polled: f64,
    sectors: Sectors,
}

/// Adds up what is spent while it is on.
#[derive(Default)]
pub(crate) struct Meter {
    devices: Vec<Device>,
    servers: Vec<Process>,
    start: Option<Start>,
    sum: Usage,
}

impl Meter {
    pub(crate) fn new(devices: &[Device]) -> Self {
        Self {
            devices: devices.to_vec(),
            ..Self::default()
        }
    }

    /// Continues. Another process may serve the file system now.
    pub(crate) fn on(&mut self, servers: &[Process]) {
        self.servers = servers.to_vec();
        self.start = Some(self.now());
    }

    /// Stops. Returns what was spent since it continued.
    pub(crate) fn off(&mut self) -> Usage {
        let Some(start) = self.start.take() else {
            return Usage::default();
        };
        let now = self.now();
        let spent = Usage {
            time: (now.at - start.at).as_secs_f64(),
            processes: now.processes - start.processes,
            asked: now.asked.saturating_sub(start.asked),
            // A server that died has no time any more.
            server: (now.server - start.server).max(0.0),
            kernel: since(&start.kernel, &now.kernel),
            machine: now.machine - start.machine,
            polled: now.polled - start.polled,
            read: now.sectors.read.wrapping_sub(start.sectors.read),
            written: now.sectors.written.wrapping_sub(start.sectors.written),
        };
        self.sum.add(spent);
        spent
    }

    /// All that was spent.
    pub(crate) fn sum(&self) -> Usage {
        self.sum
    }

    fn now(&self) -> Start {
        let mut sectors = Sectors::default();
        for device in &self.devices {
            let own = device.sectors();
            sectors.read += own.read;
            sectors.written += own.written;
        }
        Start {
            at: Instant::now(),
            processes: own_time(),
            asked: own_writes(),
            server: self.servers.iter().filter_map(Process::time).sum(),
            kernel: kernel_threads(),
            machine: machine_time(),
            polled: polled(),
            sectors,
        }
    }
}
