//! Processes by what /proc tells of them.

use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

/// A process. Its number alone may belong to another one by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it was started, in ticks since the machine was.
    pub started: u64,
}

/// Ticks of /proc in a second; the kernel's interface has 100 everywhere.
pub(crate) const TICKS: f64 = 100.0;

/// Fields of /proc/PID/stat from the third.
fn stat(pid: i32) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses, with any characters.
    let (_, rest) = text.rsplit_once(") ")?;
    Some(rest.split_whitespace().map(str::to_owned).collect())
}

fn field(fields: &[String], number: usize) -> u64 {
    let text = fields.get(number - 3);
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// CPU seconds of this process and of all its children that have ended.
pub(crate) fn own_time() -> f64 {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let fields = stat(pid).unwrap_or_default();
    (14..=17).map(|n| field(&fields, n)).sum::<u64>() as f64 / TICKS
}

/// Bytes that this process and all its children that have ended gave to
/// write(2) and its kin; the kernel does not count libaio's.
pub(crate) fn own_writes() -> u64 {
    let text = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

impl Process {
    /// The process of a number.
    pub(crate) fn of(pid: i32) -> Option<Self> {
        let fields = stat(pid)?;
        Some(Self {
            pid,
            started: field(&fields, 22),
        })
    }

    /// It is still there, and no zombie.
    pub(crate) fn is_alive(&self) -> bool {
        let Some(fields) = stat(self.pid) else {
            return false;
        };
        let ended = matches!(fields[0].as_str(), "Z" | "X");
        field(&fields, 22) == self.started && !(ended && self.is_alone())
    }

    /// No other thread of it is left. The first thread may end before others,
    /// which still hold its files.
    fn is_alone(&self) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.pid));
        tasks.map_or(true, |tasks| tasks.count() <= 1)
    }

    /// Its CPU seconds; None when it is gone.
    pub(crate) fn time(&self) -> Option<f64> {
        let fields = stat(self.pid)?;
        (field(&fields, 22) == self.started)
            .then(|| (14..=17).map(|n| field(&fields, n)).sum::<u64>() as f64 / TICKS)
    }

    /// Ends it: asks, then kills.
    pub(crate) fn end(&self, patience: Duration) -> Result<(), String> {
        for signal in [Signal::TERM, Signal::KILL] {
            let Some(pid) = Pid::from_raw(self.pid).filter(|_| self.is_alive()) else {
                return Ok(());
            };
            // It may have ended in between.
            let _ = kill_process(pid, signal);
            if wait_gone(&[*self], patience).is_ok() {
                return Ok(());
            }
        }
        Err(format!("process {} does not end", self.pid))
    }
}

/// Waits until none is there any more.
pub(crate) fn wait_gone(processes: &[Process], patience: Duration) -> Result<(), String> {
    let until = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    while let Some(process) = processes.iter().find(|process| process.is_alive()) {
        if Instant::now() > until {
            return Err(format!("process {} does not end", process.pid));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
    Ok(())
}

/// Ticks of a thread of the kernel; `None` if it is not one.
pub(crate) fn kernel_ticks(pid: i32) -> Option<u64> {
    /// The kernel's own parent of them.
    const KTHREADD: u64 = 2;
    let fields = stat(pid)?;
    (field(&fields, 4) == KTHREADD).then(|| field(&fields, 14) + field(&fields, 15))
}

/// All processes but this one.
pub(crate) fn others() -> Vec<i32> {
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let numbers = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|pid| *pid != own).collect()
}

/// Processes that serve a mount: their command line has its directory as an
/// argument.
pub(crate) fn serving(directory: &Path) -> Vec<Process> {
    let wanted = directory.as_os_str().as_encoded_bytes();
    let serves = |pid: &i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == wanted)
    };
    others()
        .into_iter()
        .filter(serves)
        .filter_map(Process::of)
        .collect()
}
