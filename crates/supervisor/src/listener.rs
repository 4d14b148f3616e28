//! The kernel's side of stopped calls: installing the filter, receiving calls
//! and answering them, and the memory of who called.
#![allow(
    unsafe_code,
    reason = "requests of seccomp, and memory of other processes"
)]

use crate::bytes::{half, word};
use libc::{c_int, c_long, sock_filter, sock_fprog};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use std::ffi::CStr;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const MAGIC: u8 = b'!';
/// Bytes of `seccomp_notif`, `seccomp_notif_resp` and `seccomp_notif_addfd`.
const RECEIVED: usize = 80;
const ANSWER: usize = 24;
const RECEIVE: Opcode = opcode::read_write::<[u8; RECEIVED]>(MAGIC, 0);
const SEND: Opcode = opcode::read_write::<[u8; ANSWER]>(MAGIC, 1);
const IS_VALID: Opcode = opcode::write::<u64>(MAGIC, 2);
const ADD: Opcode = opcode::write::<[u8; ANSWER]>(MAGIC, 3);
const SET_FLAGS: Opcode = opcode::write::<u64>(MAGIC, 4);

/// The call goes on as if nobody had stopped it.
const CONTINUE: u32 = 1;
/// The descriptor that is added answers the call.
const ADD_ANSWERS: u32 = 1 << 1;

/// A call that waits for its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopped {
    pub(crate) id: u64,
    /// The thread that called, as this process numbers it.
    pub(crate) thread: u32,
    pub(crate) number: i32,
    pub(crate) arguments: [u64; 6],
}

/// What a call gets.
#[derive(Debug)]
pub(crate) enum Answer {
    /// What the kernel says.
    Continue,
    /// This value.
    Value(i64),
    /// This error.
    Error(Errno),
    /// A descriptor of this file, closed by execve(2) or not.
    Descriptor(OwnedFd, CloseOnExec),
}

/// Whether execve(2) closes a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseOnExec {
    Yes,
    No,
}

/// Where calls of all processes under one filter arrive.
#[derive(Debug)]
pub(crate) struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Puts a filter on the calling thread and on all that it will start. For the
/// child between fork(2) and execve(2): it allocates nothing.
///
/// # Errors
/// EBUSY if such a filter is there already; EPERM, ENOSYS where a container
/// forbids it.
pub(crate) fn install(program: &[sock_filter], gain: Privileges) -> io::Result<OwnedFd> {
    /// Threads of Go programs signal each other all the time; a call that was
    /// received must not be begun again for each of these signals.
    const WAIT_KILLABLE: c_long = 1 << 5;
    const NEW_LISTENER: c_long = 1 << 3;
    const SET_MODE_FILTER: c_long = 1;
    let program = sock_fprog {
        len: u16::try_from(program.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
        filter: program.as_ptr().cast_mut(),
    };
    if gain == Privileges::NeverGained {
        // SAFETY: this call takes numbers alone.
        if unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    for flags in [NEW_LISTENER | WAIT_KILLABLE, NEW_LISTENER] {
        // SAFETY: the kernel reads the program, which outlives the call.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &program) };
        if let Ok(descriptor) = c_int::try_from(descriptor)
            && descriptor >= 0
        {
            // SAFETY: the kernel made this descriptor for the caller.
            return Ok(unsafe { OwnedFd::from_raw_fd(descriptor) });
        }
        let error = io::Error::last_os_error();
        // Kernels before 5.19 do not know the second flag.
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
    }
    Err(io::Error::last_os_error())
}

/// Whether programs that run may get more rights than they have (sudo).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Privileges {
    /// Only root may install a filter without giving that up.
    CanBeGained,
    /// What everybody else has to say first.
    NeverGained,
}

impl Listener {
    /// The listener of a filter, with quick switches between caller and answer
    /// where the kernel has them.
    pub(crate) fn new(descriptor: OwnedFd) -> Self {
        const SYNC_WAKE_UP: u64 = 1;
        // SAFETY: the request reads one u64. Kernels before 6.6 do not know it.
        let _ = unsafe { ioctl(&descriptor, Setter::<SET_FLAGS, u64>::new(SYNC_WAKE_UP)) };
        Self(descriptor)
    }

    /// Waits for the next call.
    ///
    /// # Errors
    /// ENOENT if the caller died before its call was received.
    pub(crate) fn receive(&self) -> Result<Stopped, Errno> {
        let mut bytes = [0_u8; RECEIVED];
        // SAFETY: the request writes exactly the 80 bytes that its number has.
        unsafe { ioctl(&self.0, Updater::<RECEIVE, _>::new(&mut bytes))? };
        let mut arguments = [0; 6];
        for (which, argument) in arguments.iter_mut().enumerate() {
            *argument = word(&bytes, 32 + 8 * which);
        }
        Ok(Stopped {
            id: word(&bytes, 0),
            thread: half(&bytes, 8),
            number: half(&bytes, 16).cast_signed(),
            arguments,
        })
    }

    /// Whether the caller still waits: then its number is not another's.
    pub(crate) fn is_valid(&self, id: u64) -> bool {
        // SAFETY: the request reads one u64.
        let ask = || unsafe { ioctl(&self.0, Setter::<IS_VALID, u64>::new(id)) };
        rustix::io::retry_on_intr(ask).is_ok()
    }

    /// Answers a call. A caller that died needs none.
    pub(crate) fn answer(&self, id: u64, answer: Answer) {
        let (value, error, flags) = match answer {
            Answer::Continue => (0, 0, CONTINUE),
            Answer::Value(value) => (value, 0, 0),
            Answer::Error(error) => (0, error.raw_os_error().saturating_neg(), 0),
            Answer::Descriptor(file, close) => return self.add(id, &file, close),
        };
        let mut bytes = [0_u8; ANSWER];
        bytes[..8].copy_from_slice(&id.to_ne_bytes());
        bytes[8..16].copy_from_slice(&value.to_ne_bytes());
        bytes[16..20].copy_from_slice(&error.to_ne_bytes());
        bytes[20..].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: the request reads and writes exactly 24 bytes.
        let send = || unsafe { ioctl(&self.0, Updater::<SEND, _>::new(&mut bytes)) };
        // An answer that is lost is a caller that hangs.
        let _ = rustix::io::retry_on_intr(send);
    }

    fn add(&self, id: u64, file: &OwnedFd, close: CloseOnExec) {
        let source = u32::try_from(file.as_raw_fd()).unwrap_or(u32::MAX);
        let flags = match close {
            CloseOnExec::Yes => libc::O_CLOEXEC.cast_unsigned(),
            CloseOnExec::No => 0,
        };
        let mut bytes = [0_u8; ANSWER];
        bytes[..8].copy_from_slice(&id.to_ne_bytes());
        bytes[8..12].copy_from_slice(&ADD_ANSWERS.to_ne_bytes());
        bytes[12..16].copy_from_slice(&source.to_ne_bytes());
        bytes[20..].copy_from_slice(&flags.to_ne_bytes());
        // SAFETY: the request reads exactly 24 bytes.
        let added = unsafe { ioctl(&self.0, Setter::<ADD, [u8; ANSWER]>::new(bytes)) };
        // The caller may have no descriptor left, and kernels before 5.14 cannot
        // answer with one.
        if added.is_err() {
            self.answer(id, Answer::Continue);
        }
    }
}

fn part(bytes: *mut u8, length: usize) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.cast(),
        iov_len: length,
    }
}

fn thread_number(thread: u32) -> libc::pid_t {
    libc::pid_t::try_from(thread).unwrap_or(-1)
}

/// Reads memory of a thread; gives how many bytes could be read.
pub(crate) fn read_memory(thread: u32, address: u64, buffer: &mut [u8]) -> usize {
    let Ok(address) = usize::try_from(address) else {
        return 0;
    };
    let own = part(buffer.as_mut_ptr(), buffer.len());
    let other = part(std::ptr::with_exposed_provenance_mut(address), buffer.len());
    // SAFETY: the kernel writes to `buffer` alone, at most its length.
    let done = unsafe { libc::process_vm_readv(thread_number(thread), &own, 1, &other, 1, 0) };
    usize::try_from(done).unwrap_or(0)
}

/// Another descriptor of an open file of this process.
pub(crate) fn duplicate(descriptor: c_int) -> Option<OwnedFd> {
    // SAFETY: numbers alone.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: the kernel made this descriptor for the caller.
    (copy >= 0).then(|| unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Brings what the kernel holds of a file to its file system, without waiting
/// for a device.
pub(crate) fn write_back(file: BorrowedFd<'_>) {
    const ALL: libc::c_uint = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: numbers alone. An error comes again where the data are used.
    unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, ALL) };
}

/// Bytes of `struct statx`.
pub(crate) const STATX: usize = 256;
/// Bytes of `struct statfs` of 64-bit architectures.
pub(crate) const STATFS: usize = 120;

/// statx(2) as the kernel answers it.
pub(crate) fn statx(path: &CStr, flags: c_int, mask: u32) -> Option<[u8; STATX]> {
    const { assert!(size_of::<libc::statx>() == STATX) };
    let mut facts = [0_u8; STATX];
    let flags = flags | libc::AT_NO_AUTOMOUNT;
    // SAFETY: the kernel writes 256 bytes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_statx,
            c_long::from(libc::AT_FDCWD),
            path.as_ptr(),
            c_long::from(flags),
            c_long::from(mask),
            facts.as_mut_ptr(),
        )
    };
    (done == 0).then_some(facts)
}

/// statfs(2) as the kernel answers it.
pub(crate) fn statfs(path: &CStr) -> Option<[u8; STATFS]> {
    const { assert!(size_of::<libc::statfs>() == STATFS) };
    let mut facts = [0_u8; STATFS];
    // SAFETY: the kernel writes 120 bytes.
    let done = unsafe { libc::syscall(libc::SYS_statfs, path.as_ptr(), facts.as_mut_ptr()) };
    (done == 0).then_some(facts)
}
