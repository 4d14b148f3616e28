//! The file or device that holds a volume, opened to be served.

use crate::error::ServerError;
use crate::mounts::Mount;
use butterfs::{Access, FileDevice};
use butterfs_device::holder::is_same_storage;
use butterfs_device::{DeviceError, Holder};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Opens the device. A server whose mount is gone holds its volume until
/// everything is written; this waits for such a server.
pub(crate) fn open_source(source: &Path, access: Access) -> Result<FileDevice, DeviceError> {
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Between a lock that is refused and the look for its holder, the holder
    /// may have ended.
    const NOBODY: Duration = Duration::from_secs(1);
    let started = Instant::now();
    loop {
        let opened = match access {
            Access::ReadWrite => FileDevice::open_durable(source, access),
            Access::ReadOnly => FileDevice::open(source, access),
        };
        let error = match opened {
            Ok(_)
                if access == Access::ReadOnly
                    && let Some(holder) = kernel_that_writes(source) =>
            {
                return Err(DeviceError::Busy {
                    device: source.display().to_string(),
                    holder,
                });
            }
            Ok(opened) => {
                if opened.is_block_device() {
                    wait_for_ending_servers(source, PATIENCE.saturating_sub(started.elapsed()));
                }
                return Ok(opened);
            }
            Err(error) => error,
        };
        let left = PATIENCE.saturating_sub(started.elapsed());
        let try_again = match &error {
            DeviceError::Busy {
                holder: Holder::Process { pid, .. },
                ..
            } => !left.is_zero() && is_ending(*pid, source) && wait_for_end(*pid),
            DeviceError::Busy {
                holder: Holder::Unknown,
                ..
            } if started.elapsed() < NOBODY => {
                std::thread::sleep(Duration::from_millis(20));
                true
            }
            _ => false,
        };
        if !try_again {
            return Err(error);
        }
    }
}

/// The mount by which the kernel changes a volume that is to be served for
/// reading. The kernel overwrites what its commits free, while a server would
/// still read it.
fn kernel_that_writes(source: &Path) -> Option<Holder> {
    let holder = Holder::of(source)?;
    let mut innermost = &holder;
    while let Holder::Loop { holder, .. } = innermost {
        innermost = holder;
    }
    let Holder::Mount(point) = innermost else {
        return None;
    };
    let mut mounts = Mount::seen_by("self").into_iter();
    mounts
        .any(|mount| mount.point == *point && mount.is_written_by_kernel())
        .then_some(holder)
}

/// True for the server of a volume that is mounted nowhere.
fn is_ending(pid: u32, source: &Path) -> bool {
    let line = match std::fs::read(format!("/proc/{pid}/cmdline")) {
        // A process that exits gives up its memory, and its command line with
        // it, before its files.
        Ok(line) if line.is_empty() => return true,
        Ok(line) => line,
        Err(error) => return error.kind() == std::io::ErrorKind::NotFound,
    };
    let serves = line.split(|byte| *byte == 0).nth(1) == Some(b"mount");
    let mounts = Mount::seen_by(&pid.to_string());
    let is_here = |mount: &Mount| mount.is_ours() && is_same_storage(&mount.source, source);
    // An empty list means that this process may not look.
    serves && !mounts.is_empty() && !mounts.iter().any(is_here)
}

/// Waits for servers of earlier mounts of a block device, which the kernel took
/// from them when it was unmounted. This process has the device now, so no
/// further server comes. What an ending server does to its mount it must have
/// done before another mount is there.
fn wait_for_ending_servers(device: &Path, patience: Duration) {
    let Ok(number) = device.metadata().map(|facts| facts.rdev()) else {
        return;
    };
    let started = Instant::now();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let others = numbers.filter(|pid| *pid != std::process::id());
    for pid in others.filter(|pid| has_open(*pid, number)) {
        while has_open(pid, number) && is_ending(pid, device) && started.elapsed() < patience {
            if !wait_for_end(pid) {
                break;
            }
        }
    }
}

/// Whether a process has the block device with this number open, as far as it
/// can be seen. No file system is asked, because one that another server serves
/// may not answer.
fn has_open(pid: u32, number: u64) -> bool {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd"));
    let wanted = (rustix::fs::major(number), rustix::fs::minor(number));
    files.into_iter().flatten().flatten().any(|file| {
        let known = AtFlags::STATX_DONT_SYNC;
        let facts = rustix::fs::statx(CWD, file.path(), known, StatxFlags::TYPE);
        facts.is_ok_and(|facts| {
            FileType::from_raw_mode(facts.stx_mode.into()) == FileType::BlockDevice
                && (facts.stx_rdev_major, facts.stx_rdev_minor) == wanted
        })
    })
}

/// Waits for the end of a process, for a while; false if that is not possible.
fn wait_for_end(pid: u32) -> bool {
    const WHILE: Timespec = Timespec {
        tv_sec: 0,
        tv_nsec: 100_000_000,
    };
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else {
        return false;
    };
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
        return true;
    };
    let mut ends = [PollFd::new(&process, PollFlags::IN)];
    rustix::event::poll(&mut ends, Some(&WHILE)).is_ok()
}

/// Errors if the limit on file sizes is smaller than a volume that is to be
/// written.
pub(crate) fn check_file_size_limit(source: &Path, access: Access) -> Result<(), ServerError> {
    let limit = getrlimit(Resource::Fsize).current;
    let size = match source.metadata() {
        Ok(facts) if facts.is_file() && access == Access::ReadWrite => facts.len(),
        _ => 0,
    };
    match limit {
        Some(limit) if size > limit => Err(ServerError::FileSizeLimit {
            source_path: source.to_owned(),
            size,
            limit,
        }),
        _ => Ok(()),
    }
}

/// Lifts the limit on file sizes: the size of a volume has nothing to do with
/// the shell's limit. A limit that the process may not raise stays.
pub(crate) fn lift_file_size_limit() {
    let now = getrlimit(Resource::Fsize);
    let wanted = [
        Rlimit {
            current: None,
            maximum: None,
        },
        Rlimit {
            current: now.maximum,
            ..now
        },
    ];
    let lifted = wanted
        .into_iter()
        .any(|limit| setrlimit(Resource::Fsize, limit).is_ok());
    if !lifted {
        tracing::debug!("the limit on file sizes stays");
    }
}
