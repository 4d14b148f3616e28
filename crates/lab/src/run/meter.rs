//! What a cell costs while it is measured: time, CPU, sectors.
//!
//! CPU of a file system is spent in three places: in the processes of the
//! workload, in the process that serves it, and in the kernel's own threads.
//! The whole machine's time, less what it spends when idle, has all three.

use super::device::{Device, Sectors};
use super::process::{Process, TICKS, own_time};
use std::fs;
use std::time::{Duration, Instant};

/// What was spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Usage {
    /// Seconds.
    pub(crate) time: f64,
    /// CPU seconds of the workload's processes.
    pub(crate) processes: f64,
    /// CPU seconds of the process that serves the file system.
    pub(crate) server: f64,
    /// CPU seconds of the whole machine.
    pub(crate) machine: f64,
    /// Sectors of all devices.
    pub(crate) read: u64,
    pub(crate) written: u64,
}

impl Usage {
    fn add(&mut self, other: Self) {
        self.time += other.time;
        self.processes += other.processes;
        self.server += other.server;
        self.machine += other.machine;
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

/// CPU seconds that the machine spends in a second while nothing is measured.
pub(crate) fn idle_rate(time: Duration) -> f64 {
    let (before, start) = (machine_time(), Instant::now());
    std::thread::sleep(time);
    (machine_time() - before) / start.elapsed().as_secs_f64()
}

struct Start {
    at: Instant,
    processes: f64,
    server: f64,
    machine: f64,
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

    /// Goes on; what serves the file system may be another process now.
    pub(crate) fn on(&mut self, servers: &[Process]) {
        self.servers = servers.to_vec();
        self.start = Some(self.now());
    }

    /// Stops; gives what was spent since it went on.
    pub(crate) fn off(&mut self) -> Usage {
        let Some(start) = self.start.take() else {
            return Usage::default();
        };
        let now = self.now();
        let spent = Usage {
            time: (now.at - start.at).as_secs_f64(),
            processes: now.processes - start.processes,
            // A server that died has no time any more.
            server: (now.server - start.server).max(0.0),
            machine: now.machine - start.machine,
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
            server: self.servers.iter().filter_map(Process::time).sum(),
            machine: machine_time(),
            sectors,
        }
    }
}
