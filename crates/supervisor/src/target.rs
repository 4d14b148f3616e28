//! The thread that called: its memory, its descriptors, and where its paths
//! lead.
//!
//! What cannot be found out safely is left to the kernel: paths of a thread that
//! has another root directory, other mounts or other rights than the supervisor.

use crate::listener::{STATX, duplicate, read_memory, statx};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::CString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// PATH_MAX.
const PATH_MAX: usize = 4096;
/// Most paths are shorter.
const SHORT: usize = 256;
const PAGE: u64 = 4096;
/// Beginnings of paths that lead to a process's own files.
const OF_PROCESS: [&[u8]; 3] = [b"/proc/", b"/dev/fd", b"/dev/std"];
/// Lines of /proc/PID/status that say what a thread may do.
const RIGHTS: [&str; 4] = ["Uid:", "Gid:", "Groups:", "CapEff:"];
/// Offsets in `struct statx`.
const INODE: usize = 32;
const DEVICE: usize = 136;
const MOUNT: usize = 144;

/// Whose thread called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// That of this process itself.
    Own,
    /// That of a process under the filter.
    Other,
}

/// A thread whose call waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) thread: u32,
    pub(crate) process: Process,
}

/// What a thread may do, and in which user namespace; `who` is its number or
/// "self".
fn rights(who: &str) -> Option<String> {
    let status = std::fs::read_to_string(format!("/proc/{who}/status")).ok()?;
    let lines = status.lines();
    let lines = lines.filter(|line| RIGHTS.iter().any(|one| line.starts_with(one)));
    let mut all: Vec<&str> = lines.collect();
    let space = std::fs::read_link(format!("/proc/{who}/ns/user")).ok()?;
    let space = space.display().to_string();
    all.push(&space);
    Some(all.join("\n"))
}

/// Identity of a root directory: device, inode, and number of its mount.
fn root_of(who: &str) -> Option<[u8; 24]> {
    let path = CString::new(format!("/proc/{who}/root")).ok()?;
    let facts: [u8; STATX] = statx(&path, 0, libc::STATX_INO | libc::STATX_MNT_ID)?;
    let mut found = [0; 24];
    found[..8].copy_from_slice(facts.get(DEVICE..)?.first_chunk::<8>()?);
    found[8..16].copy_from_slice(facts.get(INODE..)?.first_chunk::<8>()?);
    found[16..].copy_from_slice(facts.get(MOUNT..)?.first_chunk::<8>()?);
    Some(found)
}

impl Target {
    /// Whether this process may look at what the thread may look at, and sees
    /// the same directories.
    pub(crate) fn is_like_us(self) -> bool {
        if self.process == Process::Own {
            return true;
        }
        static OWN_ROOT: OnceLock<Option<[u8; 24]>> = OnceLock::new();
        static OWN_RIGHTS: OnceLock<Option<String>> = OnceLock::new();
        let who = self.thread.to_string();
        let own = *OWN_ROOT.get_or_init(|| root_of("self"));
        if own.is_none() || root_of(&who) != own {
            return false;
        }
        // The kernel lets ordinary users look into processes of their own alone.
        if !rustix::process::geteuid().is_root() {
            return true;
        }
        let own = OWN_RIGHTS.get_or_init(|| rights("self"));
        own.is_some() && rights(&who) == *own
    }

    /// Bytes of its memory; `None` if not all can be read.
    pub(crate) fn bytes(self, address: u64, length: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        (self.read(address, &mut bytes) == length).then_some(bytes)
    }

    /// Reads its memory; gives how many bytes could be read.
    fn read(self, address: u64, buffer: &mut [u8]) -> usize {
        let read = read_memory(self.thread, address, buffer);
        if read > 0 || self.process == Process::Other {
            return read;
        }
        // Containers may forbid the call above, but not a process's own memory.
        let own = File::open("/proc/self/mem");
        own.and_then(|memory| memory.read_at(buffer, address))
            .unwrap_or(0)
    }

    /// Its memory, to be written to. It stays that of this process, whatever
    /// the number of the thread means later.
    pub(crate) fn memory(self) -> Option<File> {
        let path = match self.process {
            Process::Own => "/proc/self/mem".to_owned(),
            Process::Other => format!("/proc/{}/mem", self.thread),
        };
        File::options().write(true).open(path).ok()
    }

    /// A path that a call names, without the zero at its end. `None` if there is
    /// none that the kernel would take.
    pub(crate) fn path(self, address: u64) -> Option<Vec<u8>> {
        if address == 0 {
            return None;
        }
        let mut path = Vec::new();
        while path.len() < PATH_MAX {
            let at = address.checked_add(u64::try_from(path.len()).ok()?)?;
            // What lies behind the page need not be there.
            let to_page = usize::try_from(PAGE - at % PAGE).ok()?;
            let mut part = [0; SHORT];
            let part = part.get_mut(..to_page.min(SHORT))?;
            let read = self.read(at, part);
            let part = part.get(..read).filter(|part| !part.is_empty())?;
            match part.iter().position(|byte| *byte == 0) {
                Some(end) => {
                    path.extend_from_slice(part.get(..end)?);
                    return (path.len() < PATH_MAX).then_some(path);
                }
                None => path.extend_from_slice(part),
            }
        }
        None
    }

    /// A path of this process that leads where `path` of the thread leads, from
    /// one of its open directories (or AT_FDCWD).
    pub(crate) fn host_path(self, directory: i32, path: &[u8]) -> Option<CString> {
        if self.process == Process::Own && (directory == libc::AT_FDCWD || path.starts_with(b"/")) {
            return CString::new(path).ok();
        }
        if path.first() == Some(&b'/') {
            // What these lead to depends on the process that asks.
            if OF_PROCESS.iter().any(|one| path.starts_with(one)) {
                return None;
            }
            return CString::new(path).ok();
        }
        let mut whole = self.base(directory).into_bytes();
        whole.push(b'/');
        whole.extend_from_slice(path);
        CString::new(whole).ok()
    }

    /// A path of this process that leads to an open file of the thread.
    pub(crate) fn host_file(self, descriptor: i32) -> Option<CString> {
        let is_open = descriptor >= 0;
        is_open.then(|| CString::new(self.base(descriptor)).ok())?
    }

    /// The same, and with AT_FDCWD to its working directory.
    pub(crate) fn host_directory(self, directory: i32) -> Option<CString> {
        CString::new(self.base(directory)).ok()
    }

    fn base(self, descriptor: i32) -> String {
        let of = match self.process {
            Process::Own => "thread-self".to_owned(),
            Process::Other => self.thread.to_string(),
        };
        match descriptor {
            libc::AT_FDCWD => format!("/proc/{of}/cwd"),
            other => format!("/proc/{of}/fd/{other}"),
        }
    }

    /// A descriptor of the same open file.
    pub(crate) fn open_file(self, descriptor: i32) -> Option<OwnedFd> {
        if self.process == Process::Own {
            return duplicate(descriptor);
        }
        let open = |process: u32| {
            let process = Pid::from_raw(i32::try_from(process).ok()?)?;
            pidfd_open(process, PidfdFlags::empty()).ok()
        };
        // The kernel opens the first thread of a process alone.
        let process = open(self.thread).or_else(|| open(self.process_number()?))?;
        pidfd_getfd(process, descriptor, PidfdGetfdFlags::empty()).ok()
    }

    /// The process of the thread.
    fn process_number(self) -> Option<u32> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.thread)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
        line.trim().parse().ok()
    }
}
