//! FICLONE, FICLONERANGE, FIDEDUPERANGE, FIEMAP and BTRFS_IOC_BALANCE_CTL, which
//! never reach a FUSE server.
//!
//! The supervisor takes descriptors of the caller's open files, and asks the
//! server with requests of ButterFS' own ([`butterfs_kernel::butterfs_mount`]).
//!
//! Source: the manual pages ioctl_ficlonerange(2) and ioctl_fideduperange(2);
//! the kernel's documentation filesystems/fiemap.

use crate::answers::{Answers, int};
use crate::bytes::{half, put, word};
use crate::filter::{Request, request};
use crate::listener::{Answer, Stopped, write_back};
use crate::target::Target;
use butterfs_kernel::butterfs_mount::{self as mount, MappedExtent};
use butterfs_kernel::{CloneRequest, DedupeRequest, Deduped};
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use std::os::fd::AsFd;

/// Bytes of `struct file_clone_range`, `struct file_dedupe_range` and of each of
/// its targets, `struct fiemap` and each of its extents.
const CLONE: usize = 32;
const DEDUPE: usize = 24;
const DEDUPE_TARGET: usize = 32;
const FIEMAP: usize = 32;
const FIEMAP_EXTENT: usize = 56;
/// Targets for which the kernel has room: a page with the head.
const TARGETS_MAX: u64 = 127;
/// Bytes that one request compares at most, as in the kernel's Btrfs.
const DEDUPE_MAX: u64 = 16 << 20;
/// The ranges differ.
const DIFFERS: i32 = 1;

/// Who asks, while it waits for the answer.
struct Caller<'a> {
    target: Target,
    stopped: &'a Stopped,
    answers: &'a Answers,
}

/// Answers a request; `None` if it is about a file elsewhere, or from a thread
/// that may do less than this process.
pub(crate) fn answer(target: Target, stopped: &Stopped, answers: &Answers) -> Option<Answer> {
    let [file, number, argument, ..] = stopped.arguments;
    let request = request(number)?;
    let caller = Caller {
        target,
        stopped,
        answers,
    };
    let file = caller.open_file(int(file)).ok()?;
    if !mount::is_butterfs(file.as_fd()) || !target.is_like_us() {
        return None;
    }
    let done = match request {
        Request::Clone => caller.share(int(argument), &file, (0, 0, 0)),
        Request::CloneRange => caller.bytes(argument, CLONE).and_then(|range| {
            let span = (word(&range, 8), word(&range, 16), word(&range, 24));
            caller.share(int(word(&range, 0)), &file, span)
        }),
        Request::Dedupe => caller.dedupe(argument, &file),
        Request::Fiemap => caller.fiemap(argument, &file),
        Request::BalanceControl => control_balance(argument, &file),
    };
    Some(done.unwrap_or_else(Answer::Error))
}

/// BTRFS_IOC_BALANCE_CTL: pauses or cancels the balance.
fn control_balance(what: u64, file: &OwnedFd) -> Result<Answer, Errno> {
    match what {
        1 => mount::pause_balance(file.as_fd())?,
        2 => mount::cancel_balance(file.as_fd())?,
        _ => return Err(Errno::INVAL),
    }
    Ok(Answer::Value(0))
}

impl Caller<'_> {
    /// Fails if nobody waits any more: then the number of the thread may be
    /// another's, and so may be what was found by it.
    fn verify_waits(&self) -> Result<(), Errno> {
        match self.answers.still_waits(self.stopped) {
            true => Ok(()),
            false => Err(Errno::INTR),
        }
    }

    fn open_file(&self, descriptor: i32) -> Result<OwnedFd, Errno> {
        let file = self.target.open_file(descriptor).ok_or(Errno::BADF)?;
        self.verify_waits().map(|()| file)
    }

    fn bytes(&self, address: u64, length: usize) -> Result<Vec<u8>, Errno> {
        self.target.bytes(address, length).ok_or(Errno::FAULT)
    }

    fn give(&self, address: u64, bytes: &[u8]) -> Result<Answer, Errno> {
        let given = self.answers.give(self.stopped, address, bytes);
        given.ok_or(Errno::FAULT)
    }
}

/// What a descriptor may be used for.
fn access(file: &OwnedFd) -> Result<OFlags, Errno> {
    let flags = fcntl_getfl(file)?;
    match flags.contains(OFlags::PATH) {
        true => Err(Errno::BADF),
        false => Ok(flags),
    }
}

fn is_open_for(flags: OFlags, other: OFlags) -> bool {
    flags & OFlags::ACCMODE != other
}

/// Only regular files share data.
fn verify_regular(file: &OwnedFd) -> Result<(), Errno> {
    match FileType::from_raw_mode(fstat(file)?.st_mode) {
        FileType::RegularFile => Ok(()),
        FileType::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}

impl Caller<'_> {
    /// Shares a range: where in the source, how much (0: to its end), and where
    /// in the target.
    fn share(
        &self,
        source: i32,
        file: &OwnedFd,
        (from, length, to): (u64, u64, u64),
    ) -> Result<Answer, Errno> {
        let source = self.open_file(source)?;
        let (reads, writes) = (access(&source)?, access(file)?);
        if !is_open_for(reads, OFlags::WRONLY)
            || !is_open_for(writes, OFlags::RDONLY)
            || writes.contains(OFlags::APPEND)
        {
            return Err(Errno::BADF);
        }
        verify_regular(&source)?;
        verify_regular(file)?;
        if fstat(&source)?.st_dev != fstat(file)?.st_dev {
            return Err(Errno::XDEV);
        }
        let request = CloneRequest {
            source: source.as_fd(),
            source_offset: from,
            length,
            offset: to,
        };
        mount::clone_range(file.as_fd(), request).map(|_| Answer::Value(0))
    }

    fn dedupe(&self, argument: u64, source: &OwnedFd) -> Result<Answer, Errno> {
        let head = self.bytes(argument, DEDUPE)?;
        let count = u64::from(half(&head, 16) & 0xffff);
        if count > TARGETS_MAX {
            return Err(Errno::NOMEM);
        }
        // What is reserved has to be zero.
        if half(&head, 16) >> 16 != 0 || half(&head, 20) != 0 {
            return Err(Errno::INVAL);
        }
        if !is_open_for(access(source)?, OFlags::WRONLY) {
            return Err(Errno::INVAL);
        }
        verify_regular(source)?;
        let size = DEDUPE + DEDUPE_TARGET * usize::try_from(count).map_err(|_| Errno::NOMEM)?;
        let mut all = self.bytes(argument, size)?;
        let (offset, length) = (word(&all, 0), word(&all, 8));
        if offset.checked_add(length).is_none() {
            return Err(Errno::INVAL);
        }
        write_back(source.as_fd());
        let targets = all.get_mut(DEDUPE..).unwrap_or_default();
        for one in targets.chunks_exact_mut(DEDUPE_TARGET) {
            let shared = self.dedupe_one(one, (source, offset, length.min(DEDUPE_MAX)));
            let (bytes, status) = match shared {
                Ok(Deduped::Shared(bytes)) => (bytes, 0),
                Ok(Deduped::Differs) => (0, DIFFERS),
                Err(error) => (0, error.raw_os_error().saturating_neg()),
            };
            put(one, 16, &bytes.to_ne_bytes());
            put(one, 24, &status.to_ne_bytes());
        }
        self.give(argument, &all)
    }

    fn dedupe_one(
        &self,
        one: &[u8],
        (source, offset, length): (&OwnedFd, u64, u64),
    ) -> Result<Deduped, Errno> {
        if half(one, 28) != 0 {
            return Err(Errno::INVAL);
        }
        let file = self.open_file(int(word(one, 0)))?;
        verify_regular(&file)?;
        if fstat(source)?.st_dev != fstat(&file)?.st_dev {
            return Err(Errno::XDEV);
        }
        if length == 0 {
            return Ok(Deduped::Shared(0));
        }
        write_back(file.as_fd());
        mount::dedupe(DedupeRequest {
            source: source.as_fd(),
            source_offset: offset,
            length,
            target: file.as_fd(),
            target_offset: word(one, 8),
        })
    }

    fn fiemap(&self, argument: u64, file: &OwnedFd) -> Result<Answer, Errno> {
        const SYNC: u32 = 1;
        let mut head = self.bytes(argument, FIEMAP)?;
        let (start, length) = (word(&head, 0), word(&head, 8));
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let flags = half(&head, 16);
        if flags & !SYNC != 0 {
            put(&mut head, 16, &(flags & !SYNC).to_ne_bytes());
            self.give(argument, &head)?;
            return Err(Errno::BADR);
        }
        if flags & SYNC != 0 {
            write_back(file.as_fd());
        }
        let room = match half(&head, 24) {
            // The caller asks only how many there are.
            0 => None,
            room => usize::try_from(room).ok(),
        };
        let end = start.saturating_add(length);
        let (mut found, mut at) = (0_usize, start);
        let mut place = argument.saturating_add(FIEMAP as u64);
        while at < end && room != Some(found) {
            let extents = mount::mapped_extents(file.as_fd(), at..end)?;
            let Some(last) = extents.last() else {
                break;
            };
            let next = last.offset.saturating_add(last.length);
            if next <= at {
                return Err(Errno::IO);
            }
            at = next;
            let wanted = room.map_or(extents.len(), |room| extents.len().min(room - found));
            if room.is_some() {
                let bytes: Vec<u8> = extents.iter().take(wanted).flat_map(encoded).collect();
                self.give(place, &bytes)?;
                place = place.saturating_add(bytes.len() as u64);
            }
            self.verify_waits()?;
            found += wanted;
        }
        let found = u32::try_from(found).unwrap_or(u32::MAX);
        put(&mut head, 20, &found.to_ne_bytes());
        self.give(argument, &head)
    }
}

/// `struct fiemap_extent`.
fn encoded(extent: &MappedExtent) -> [u8; FIEMAP_EXTENT] {
    let mut bytes = [0; FIEMAP_EXTENT];
    put(&mut bytes, 0, &extent.offset.to_ne_bytes());
    put(&mut bytes, 8, &extent.logical.to_ne_bytes());
    put(&mut bytes, 16, &extent.length.to_ne_bytes());
    put(&mut bytes, 40, &extent.flags.to_ne_bytes());
    bytes
}
