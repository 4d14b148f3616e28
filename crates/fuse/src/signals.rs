//! What happens when the process is asked to end: it unmounts, or does what the
//! program says.
//!
//! Owns the handlers of SIGINT, SIGTERM and SIGHUP while a guard lives. The
//! handler writes the signal's number into a pipe; a thread does the work,
//! because a handler may not.
#![allow(unsafe_code, reason = "signal handlers")]

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::JoinHandle;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::mount::{UnmountError, UnmountMode, Unmounter};

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];
/// No signal has this number.
const STOP: u8 = 0;

/// The pipe's writing end; handlers have no other way to reach it. -1 while
/// there is no guard.
static PIPE: AtomicI32 = AtomicI32::new(-1);

/// Handles signals until dropped, then restores what was before.
pub struct SignalGuard {
    before: Vec<(libc::c_int, libc::sigaction)>,
    thread: Option<JoinHandle<()>>,
    sender: OwnedFd,
}

/// Unmounts on SIGINT, SIGTERM and SIGHUP. If files are open, the mount goes
/// out of sight and is served until the last one closes.
///
/// Errors: EBUSY (`ResourceBusy`) while another guard lives.
pub fn unmount_on_signals(unmounter: Unmounter) -> io::Result<SignalGuard> {
    on_signals(move |_| unmount_or_detach(&unmounter))
}

/// Calls `act` with the number of each SIGINT, SIGTERM and SIGHUP, on a thread
/// of its own. Signals that are ignored stay ignored.
///
/// Errors: EBUSY (`ResourceBusy`) while another guard lives.
pub fn on_signals(mut act: impl FnMut(i32) + Send + 'static) -> io::Result<SignalGuard> {
    let (receiver, sender) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Only the handler must not block.
    rustix::fs::fcntl_setfl(&receiver, rustix::fs::OFlags::empty())?;
    let for_handler = rustix::io::fcntl_dupfd_cloexec(&sender, 0)?;
    if PIPE
        .compare_exchange(
            -1,
            for_handler.as_raw_fd(),
            Ordering::AcqRel,
            Ordering::Acquire,
        )
        .is_err()
    {
        return Err(io::ErrorKind::ResourceBusy.into());
    }
    // Stays open for good. A handler may have read its number just before the
    // guard ended, and the number must never name another file.
    let _ = for_handler.into_raw_fd();
    let thread = std::thread::Builder::new()
        .name("fuse-signals".into())
        .spawn(move || wait(&receiver, &mut act));
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => {
            PIPE.store(-1, Ordering::Release);
            return Err(error);
        }
    };
    let before = SIGNALS
        .iter()
        .filter_map(|signal| Some((*signal, install(*signal)?)))
        .collect();
    Ok(SignalGuard {
        before,
        thread: Some(thread),
        sender,
    })
}

impl Drop for SignalGuard {
    fn drop(&mut self) {
        for (signal, action) in &self.before {
            // SAFETY: `action` is what sigaction reported for this signal.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
        PIPE.store(-1, Ordering::Release);
        let _ = rustix::io::write(&self.sender, &[STOP]);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for SignalGuard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignalGuard").finish_non_exhaustive()
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    let pipe = PIPE.load(Ordering::Acquire);
    if pipe < 0 {
        return;
    }
    // The handled signals have small numbers.
    let byte = signal as u8;
    // SAFETY: write(2) is async-signal-safe, the buffer is one byte that lives
    // here, errno is put back for the code that was interrupted, and the
    // descriptor is never closed.
    unsafe {
        let errno = *libc::__errno_location();
        libc::write(pipe, (&raw const byte).cast(), 1);
        *libc::__errno_location() = errno;
    }
}

/// Installs the handler; `None` if the signal is ignored on purpose (nohup).
fn install(signal: libc::c_int) -> Option<libc::sigaction> {
    // SAFETY: all-zero is a valid sigaction (default action, empty mask); both
    // pointers are to values that live here, and the handler does only what a
    // handler may.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &raw mut before) != 0
            || before.sa_sigaction == libc::SIG_IGN
        {
            return None;
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        (libc::sigaction(signal, &raw const action, std::ptr::null_mut()) == 0).then_some(before)
    }
}

fn wait(receiver: &OwnedFd, act: &mut dyn FnMut(i32)) {
    let mut byte = [STOP];
    loop {
        match rustix::io::retry_on_intr(|| rustix::io::read(receiver, &mut byte)) {
            Ok(1) if byte[0] != STOP => act(byte[0].into()),
            _ => return,
        }
    }
}

/// Unmounts. A mount in use is taken out of sight, and served until its last
/// file closes. What fails is logged.
pub fn unmount_or_detach(unmounter: &Unmounter) {
    let done = match unmounter.unmount(UnmountMode::Normal) {
        Err(UnmountError::Busy(path)) => {
            tracing::warn!(path = %path.display(), "in use; serving until the last file closes");
            unmounter.unmount(UnmountMode::Lazy)
        }
        done => done,
    };
    if let Err(error) = done {
        tracing::error!(%error, "cannot unmount on a signal");
    }
}
