//! What each stopped call is answered.
//!
//! Whatever is not about a mount of ButterFS goes on in the kernel, and so does
//! each call that would fail: the kernel then says why.

use crate::filter::{Call, call};
use crate::guise::{self, Numbers};
use crate::listener::{Answer, CloseOnExec, Listener, STATX, Stopped, statfs, statx};
use crate::mounts::{Device, Mounts};
use crate::sharing;
use crate::sysfs;
use crate::tables::{self, Table};
use crate::target::{Process, Target};
use butterfs_kernel::butterfs_mount::is_butterfs;
use butterfs_kernel::sync_any;
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::CString;
use std::io::{Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Who is answered.
#[derive(Debug)]
pub(crate) enum Callers {
    /// Processes under a filter, which wait.
    Stopped(Arc<Listener>),
    /// This process itself.
    Own,
}

/// What every answer needs.
#[derive(Debug)]
pub(crate) struct Answers {
    callers: Callers,
    mounts: Mounts,
    numbers: Numbers,
}

/// The file that a call is about, by a path of this process.
struct Asked {
    path: CString,
    flags: i32,
}

/// The lower half of an argument, as the kernel takes descriptors and flags.
pub(crate) fn int(argument: u64) -> i32 {
    let low = u32::try_from(argument & u64::from(u32::MAX)).unwrap_or(0);
    low.cast_signed()
}

impl Answers {
    /// # Errors
    /// The table of mounts cannot be read.
    pub(crate) fn new(callers: Callers) -> std::io::Result<Self> {
        Ok(Self {
            callers,
            mounts: Mounts::new()?,
            numbers: Numbers::default(),
        })
    }

    /// Whether the caller still waits: then its number is not another's.
    pub(crate) fn still_waits(&self, stopped: &Stopped) -> bool {
        match &self.callers {
            Callers::Stopped(listener) => listener.is_valid(stopped.id),
            Callers::Own => true,
        }
    }

    fn target(&self, stopped: &Stopped) -> Target {
        Target {
            thread: stopped.thread,
            process: match self.callers {
                Callers::Stopped(_) => Process::Other,
                Callers::Own => Process::Own,
            },
        }
    }

    /// The answer to a call; `None` if it is the kernel's.
    pub(crate) fn answer(&self, stopped: &Stopped) -> Option<Answer> {
        let target = self.target(stopped);
        let [first, second, third, fourth, fifth, _] = stopped.arguments;
        let call = call(stopped.number)?;
        match call {
            Call::Stat | Call::Lstat | Call::StatAt => {
                let (asked, room) = match call {
                    Call::Stat => (named(target, libc::AT_FDCWD, first, 0), second),
                    Call::Lstat => {
                        let flags = libc::AT_SYMLINK_NOFOLLOW;
                        (named(target, libc::AT_FDCWD, first, flags), second)
                    }
                    _ => (named(target, int(first), second, int(fourth)), third),
                };
                let facts = self.facts(target, &asked?, libc::STATX_BASIC_STATS)?;
                self.give(stopped, room, &guise::as_stat(&facts))
            }
            Call::Fstat => {
                let facts =
                    self.facts(target, &open(target, int(first))?, libc::STATX_BASIC_STATS)?;
                self.give(stopped, second, &guise::as_stat(&facts))
            }
            Call::Statx => {
                let asked = named(target, int(first), second, int(third))?;
                let mask = int(fourth).cast_unsigned();
                let facts = self.facts(target, &asked, mask | libc::STATX_INO)?;
                self.give(stopped, fifth, &facts)
            }
            Call::Statfs => {
                let asked = named(target, libc::AT_FDCWD, first, 0)?;
                self.volume(stopped, &asked, second)
            }
            Call::Fstatfs => self.volume(stopped, &open(target, int(first))?, second),
            Call::Open => self.table(target, first, int(second)),
            Call::OpenAt => self.table(target, second, int(third)),
            Call::OpenAt2 => {
                // `struct open_how` begins with the flags.
                let how = target.bytes(third, 8)?;
                let flags = u64::from_ne_bytes(*how.first_chunk()?);
                self.table(target, second, int(flags))
            }
            // Plain FUSE mounts are never told of these two.
            Call::Sync => {
                self.mounts.sync();
                None
            }
            Call::Syncfs => {
                let file = target.open_file(int(first))?;
                if !is_butterfs(file.as_fd()) {
                    return None;
                }
                Some(match sync_any(file.as_fd()) {
                    Ok(()) => Answer::Value(0),
                    Err(error) => Answer::Error(error),
                })
            }
            Call::Ioctl => sharing::answer(target, stopped, self),
        }
    }

    /// Whether files of a mount of ButterFS have this device number.
    pub(crate) fn is_ours(&self, device: Device) -> bool {
        self.mounts.find(device).is_some()
    }

    /// Facts of a file on a mount of ButterFS; `None` for others.
    fn facts(&self, target: Target, asked: &Asked, mask: u32) -> Option<[u8; STATX]> {
        let mut facts = statx(&asked.path, asked.flags, mask)?;
        // Cheap, and enough for nearly all files that are elsewhere.
        self.mounts.find(guise::device_of(&facts))?;
        let is_shown = target.is_like_us() && guise::show(&mut facts, &self.mounts, &self.numbers);
        is_shown.then_some(facts)
    }

    /// Writes an answer to the caller's memory.
    pub(crate) fn give(&self, stopped: &Stopped, room: u64, bytes: &[u8]) -> Option<Answer> {
        let target = self.target(stopped);
        let memory = target.memory()?;
        // If the caller waits now, this is its memory.
        let given = self.still_waits(stopped) && memory.write_all_at(bytes, room).is_ok();
        given.then_some(Answer::Value(0))
    }

    fn volume(&self, stopped: &Stopped, asked: &Asked, room: u64) -> Option<Answer> {
        let target = self.target(stopped);
        let plain = statx(&asked.path, asked.flags, libc::STATX_INO)?;
        let mount = self.mounts.find(guise::device_of(&plain))?;
        let facts = self.facts(target, asked, libc::STATX_INO)?;
        let mut answer = statfs(&asked.path)?;
        guise::show_volume(&mut answer, mount.shown()?, guise::tree_of(&facts));
        self.give(stopped, room, &answer)
    }

    /// The table of mounts, if that is what is opened and mounts of ButterFS are
    /// in it, or a file that the kernel has for its own mounts alone.
    fn table(&self, target: Target, path: u64, flags: i32) -> Option<Answer> {
        let path = target.path(path)?;
        let table = Table::named(&path);
        if table.is_none() && !path.starts_with(b"/sys/fs/btrfs/") {
            return None;
        }
        if flags & libc::O_ACCMODE != libc::O_RDONLY || flags & libc::O_PATH != 0 {
            return None;
        }
        if !target.is_like_us() {
            return None;
        }
        let content = match table {
            Some(table) => tables::content(&table, target.thread, &self.mounts)?,
            None => sysfs::content(&path, &self.mounts)?,
        };
        let file = memfd_create("mounts", MemfdFlags::CLOEXEC).ok()?;
        let mut file = std::fs::File::from(file);
        file.write_all(&content).ok()?;
        file.rewind().ok()?;
        let close = match flags & libc::O_CLOEXEC {
            0 => CloseOnExec::No,
            _ => CloseOnExec::Yes,
        };
        Some(Answer::Descriptor(file.into(), close))
    }
}

/// What a call names by a path, or with AT_EMPTY_PATH by a descriptor.
fn named(target: Target, directory: i32, path: u64, flags: i32) -> Option<Asked> {
    let takes_empty = flags & libc::AT_EMPTY_PATH != 0;
    let path = match (path, takes_empty) {
        // Since Linux 6.11 no path at all is an empty one.
        (0, true) => Vec::new(),
        _ => target.path(path)?,
    };
    if path.is_empty() {
        let path = takes_empty.then(|| target.host_directory(directory))?;
        return path.map(|path| Asked { path, flags: 0 });
    }
    Some(Asked {
        path: target.host_path(directory, &path)?,
        flags: flags & !libc::AT_EMPTY_PATH,
    })
}

/// What a call names by a descriptor.
fn open(target: Target, descriptor: i32) -> Option<Asked> {
    Some(Asked {
        path: target.host_file(descriptor)?,
        flags: 0,
    })
}
