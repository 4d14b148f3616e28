//! The three processes: the one that waits, the supervisor, and the program.
#![allow(
    unsafe_code,
    reason = "fork, signals, and what runs between fork and execve"
)]

use crate::answers::{Answers, Callers};
use crate::filter;
use crate::listener::{Listener, Privileges, install};
use crate::workers;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, kill_process, waitpid};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use thiserror::Error;

/// Set for the program and all that it starts.
const MARK: &str = "BUTTERFS_RUN";

/// Signals that the terminal sends to a program and to the two processes before
/// it alike, or that somebody sends to the first of them.
const SIGNALS: [i32; 10] = [
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
    libc::SIGHUP,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
];

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit code.
    Code(u8),
    /// By this signal.
    Signal(i32),
}

/// Why no program ran.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// The program cannot be started.
    #[error("{program}: {error}")]
    Program {
        /// Its name.
        program: String,
        /// Why.
        error: io::Error,
    },
    /// The kernel does not let this process watch calls.
    #[error(
        "this process may not watch system calls (seccomp with user notification: {0}); a container \
         has to allow that, or the programs run outside of it, or libbutterfs_preload.so has to be \
         installed beside butterfs"
    )]
    Refused(io::Error),
    /// A process, a pipe or the table of mounts.
    #[error("the program could not be watched: {0}")]
    System(#[from] io::Error),
    /// The supervisor ended before its program.
    #[error("the supervisor of the program ended before the program did")]
    Lost,
}

/// Whether this process runs under a supervisor already.
#[must_use]
pub fn is_supervised() -> bool {
    // The variable alone may have come by way of another process.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_filtered = status.lines().any(|line| line == "Seccomp:\t2");
    is_filtered && std::env::var_os(MARK).is_some()
}

/// What the supervisor tells the process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum News {
    /// The program runs in this process.
    Started(i32),
    /// Somebody stopped it.
    Stopped,
    Ended(End),
    /// It cannot be run: this error of the system.
    NotStarted(i32),
    Refused(i32),
    Failed(i32),
}

impl News {
    const SIZE: usize = 5;

    fn encode(self) -> [u8; Self::SIZE] {
        let (kind, value) = match self {
            Self::Started(process) => (0, process),
            Self::Stopped => (1, 0),
            Self::Ended(End::Code(code)) => (2, i32::from(code)),
            Self::Ended(End::Signal(signal)) => (3, signal),
            Self::NotStarted(error) => (4, error),
            Self::Refused(error) => (5, error),
            Self::Failed(error) => (6, error),
        };
        let [a, b, c, d] = value.to_ne_bytes();
        [kind, a, b, c, d]
    }

    fn parse([kind, a, b, c, d]: [u8; Self::SIZE]) -> Self {
        let value = i32::from_ne_bytes([a, b, c, d]);
        match kind {
            0 => Self::Started(value),
            1 => Self::Stopped,
            2 => Self::Ended(End::Code(u8::try_from(value).unwrap_or(u8::MAX))),
            3 => Self::Ended(End::Signal(value)),
            4 => Self::NotStarted(value),
            5 => Self::Refused(value),
            _ => Self::Failed(value),
        }
    }
}

/// Runs a program and waits for its end. Call it before the process has other
/// threads.
///
/// # Errors
/// See [`RunError`].
pub fn run(program: &OsStr, arguments: &[OsString]) -> Result<End, RunError> {
    verify_allowed()?;
    let (news, tell) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
    let signals = take_signals()?;
    // SAFETY: this process has no other thread that could hold a lock.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error().into()),
        0 => {
            drop((news, signals));
            supervise(program, arguments, File::from(tell));
            // SAFETY: ends the process without the destructors of the other one.
            unsafe { libc::_exit(0) }
        }
        _ => {
            drop(tell);
            // The program may unmount where it began.
            let _ = std::env::set_current_dir("/");
            close_all_but(&[news.as_raw_fd(), signals.as_raw_fd()]);
            wait(program, File::from(news), &signals)
        }
    }
}

/// Errors if the kernel does not let this process watch calls. A child tries, so
/// that this process stays as it is: its caller may do something else then.
fn verify_allowed() -> Result<(), RunError> {
    let filter = filter::program();
    // SAFETY: this process has no other thread that could hold a lock, and the
    // child makes system calls alone.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error().into()),
        0 => {
            let error = match install_any(&filter) {
                Ok(_) => 0,
                Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
            };
            // SAFETY: ends the child without the destructors of the other one.
            unsafe { libc::_exit(error) }
        }
        child => Pid::from_raw(child),
    };
    let waited = || waitpid(child, WaitOptions::empty());
    let ended = rustix::io::retry_on_intr(waited).map_err(io::Error::from)?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => Ok(()),
        error => Err(RunError::Refused(io::Error::from_raw_os_error(
            error.unwrap_or(libc::EIO),
        ))),
    }
}

/// Installs the filter, and gives up the right to gain rights if that is the
/// price. Between fork(2) and execve(2): it allocates nothing.
fn install_any(filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    install(filter, Privileges::CanBeGained).or_else(|error| match error.raw_os_error() {
        Some(libc::EACCES) => install(filter, Privileges::NeverGained),
        _ => Err(error),
    })
}

/// Takes signals again as this process did before [`run`].
pub fn accept_signals() {
    let set = set_of(&SIGNALS);
    // SAFETY: the kernel reads the set alone.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
}

fn set_of(signals: &[i32]) -> libc::sigset_t {
    // SAFETY: an all-zero set is valid, and both calls write to it alone.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        set
    }
}

/// Has signals wait in a descriptor.
fn take_signals() -> io::Result<OwnedFd> {
    let set = set_of(&SIGNALS);
    // SAFETY: the kernel reads the set alone.
    unsafe {
        if libc::sigprocmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC) {
            -1 => Err(io::Error::last_os_error()),
            descriptor => Ok(OwnedFd::from_raw_fd(descriptor)),
        }
    }
}

/// Passes signals on until the program has ended.
fn wait(program: &OsStr, mut news: File, signals: &OwnedFd) -> Result<End, RunError> {
    let mut process = None;
    loop {
        let mut waits = [
            PollFd::new(&news, PollFlags::IN),
            PollFd::new(signals, PollFlags::IN),
        ];
        // Signals wait until there is a program that can get them.
        let count = if process.is_some() { 2 } else { 1 };
        match poll(&mut waits[..count], None) {
            Err(Errno::INTR) => continue,
            Err(error) => return Err(io::Error::from(error).into()),
            Ok(_) => {}
        }
        // News first: nobody else has the program's number before its end was
        // read.
        if waits[0].revents().is_empty() {
            if let Some(process) = process {
                pass_on(signals, process)?;
            }
            continue;
        }
        let mut bytes = [0; News::SIZE];
        if news.read_exact(&mut bytes).is_err() {
            return Err(RunError::Lost);
        }
        match News::parse(bytes) {
            News::Started(number) => process = Pid::from_raw(number),
            News::Stopped => {
                // The shell sees the job stop.
                let _ = kill_process(getpid(), Signal::STOP);
            }
            News::Ended(end) => return Ok(end),
            News::NotStarted(error) => {
                return Err(RunError::Program {
                    program: program.display().to_string(),
                    error: io::Error::from_raw_os_error(error),
                });
            }
            News::Refused(error) => {
                return Err(RunError::Refused(io::Error::from_raw_os_error(error)));
            }
            News::Failed(error) => return Err(io::Error::from_raw_os_error(error).into()),
        }
    }
}

/// Sends a signal on to the program, unless the terminal sent it to both.
fn pass_on(signals: &OwnedFd, process: Pid) -> io::Result<()> {
    /// Bytes of `signalfd_siginfo`.
    const SIZE: usize = 128;
    let mut bytes = [0; SIZE];
    rustix::io::read(signals, &mut bytes)?;
    let field = |at: usize| {
        let bytes = bytes.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| i32::from_ne_bytes(*bytes))
    };
    let (signal, cause) = (field(0), field(8));
    if cause != libc::SI_KERNEL
        && let Some(signal) = Signal::from_named_raw(signal)
    {
        let _ = kill_process(process, signal);
    }
    Ok(())
}

/// The supervisor: starts the program and answers its calls.
fn supervise(program: &OsStr, arguments: &[OsString], mut tell: File) {
    let begun = begin(program, arguments, &mut tell);
    let (answers, listener, reaper) = match begun {
        Ok(begun) => begun,
        Err(news) => {
            let _ = tell.write_all(&news.encode());
            return;
        }
    };
    workers::serve(answers, listener);
    // The processes are gone; how the program ended may not be told yet.
    let _ = reaper.join();
}

fn failed(error: impl Into<io::Error>) -> News {
    News::Failed(error.into().raw_os_error().unwrap_or(libc::EIO))
}

fn begin(
    program: &OsStr,
    arguments: &[OsString],
    tell: &mut File,
) -> Result<(Answers, Arc<Listener>, JoinHandle<()>), News> {
    let waiter = getppid();
    // SAFETY: numbers alone. What the program leaves behind becomes a child of
    // this process, which may look into it then.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    let ignored = ignore_signals();
    let (own, other) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(failed)?;
    let mut command = Command::new(program);
    command.args(arguments).env(MARK, "1");
    let filter = filter::program();
    let prepare = move || -> io::Result<()> {
        // The command ignores the last one.
        for signal in ignored.iter().chain(&[libc::SIGXFSZ]) {
            // SAFETY: the default action.
            unsafe { libc::signal(*signal, libc::SIG_DFL) };
        }
        hand_over(&other, install_any(&filter))
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(prepare) };
    let spawned = command.spawn();
    // It has the other end of the socket.
    drop(command);
    let handed = take_over(&own);
    let listener = handed.as_ref().map(AsRawFd::as_raw_fd).unwrap_or(-1);
    close_all_but(&[own.as_raw_fd(), tell.as_raw_fd(), listener]);
    let child = match (spawned, &handed) {
        (Ok(child), _) => child,
        (Err(error), Ok(_)) => {
            return Err(News::NotStarted(error.raw_os_error().unwrap_or(libc::EIO)));
        }
        (Err(_), Err(refused)) => {
            return Err(News::Refused(refused.raw_os_error()));
        }
    };
    let process = i32::try_from(child.id()).unwrap_or(0);
    let listener = Arc::new(handed.map(Listener::new).map_err(failed)?);
    let answers = Answers::new(Callers::Stopped(Arc::clone(&listener))).map_err(failed)?;
    let _ = tell.write_all(&News::Started(process).encode());
    let mut tell = tell.try_clone().map_err(failed)?;
    let reaper = std::thread::Builder::new().spawn(move || reap(process, waiter, &mut tell));
    let reaper = reaper.map_err(failed)?;
    let_go();
    Ok((answers, listener, reaper))
}

/// Ignores signals; gives those that were not ignored before.
fn ignore_signals() -> Vec<i32> {
    let set = set_of(&SIGNALS);
    let not_ignored = SIGNALS.into_iter().filter(|signal| {
        // Otherwise the process could not be continued.
        *signal != libc::SIGCONT
            // SAFETY: SIG_IGN is an action for each of these.
            && unsafe { libc::signal(*signal, libc::SIG_IGN) } != libc::SIG_IGN
    });
    let not_ignored = not_ignored.collect();
    // SAFETY: the kernel reads the set alone.
    unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) };
    not_ignored
}

/// Gives the descriptor of a filter to the supervisor, or the error. Between
/// fork(2) and execve(2): it allocates nothing.
fn hand_over(socket: &OwnedFd, installed: io::Result<OwnedFd>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let error = match &installed {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    };
    let descriptors = installed.as_ref().map(|descriptor| [descriptor.as_fd()]);
    if let Ok(descriptors) = &descriptors {
        rights.push(SendAncillaryMessage::ScmRights(descriptors));
    }
    let bytes = error.to_ne_bytes();
    sendmsg(
        socket,
        &[IoSlice::new(&bytes)],
        &mut rights,
        SendFlags::NOSIGNAL,
    )?;
    installed.map(drop)
}

/// The descriptor that the child sent.
fn take_over(socket: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut bytes = [0; 4];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut rights,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    for message in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    match i32::from_ne_bytes(bytes) {
        0 => Err(Errno::IO),
        error => Err(Errno::from_raw_os_error(error)),
    }
}

/// Tells what becomes of the program, and takes the ends of all others that it
/// left behind.
fn reap(program: i32, waiter: Option<Pid>, tell: &mut File) {
    let how = WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    loop {
        let (process, status) = match waitpid(None, how) {
            Ok(Some(ended)) => ended,
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_) => return,
        };
        if process.as_raw_nonzero().get() != program {
            continue;
        }
        let news = if let Some(code) = status.exit_status() {
            News::Ended(End::Code(u8::try_from(code).unwrap_or(u8::MAX)))
        } else if let Some(signal) = status.terminating_signal() {
            News::Ended(End::Signal(signal))
        } else if status.stopped() {
            News::Stopped
        } else {
            // The process that waits stopped when the program did.
            if let Some(waiter) = waiter.filter(|waiter| getppid() == Some(*waiter)) {
                let _ = kill_process(waiter, Signal::CONT);
            }
            continue;
        };
        let _ = tell.write_all(&news.encode());
    }
}

/// Closes what was inherited beside the three streams: nobody else closes it, and
/// others may wait for that.
fn close_all_but(kept: &[RawFd]) {
    let Ok(all) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers = all
        .flatten()
        .filter_map(|one| one.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.collect();
    for number in numbers {
        if number > libc::STDERR_FILENO && !kept.contains(&number) {
            // SAFETY: nothing of this process owns the descriptor; the one of the
            // directory that was read is closed already.
            unsafe { libc::close(number) };
        }
    }
}

/// Holds nothing that others wait for: a pipe's end, a terminal, a directory.
fn let_go() {
    let _ = std::env::set_current_dir("/");
    if let Ok(null) = File::options().read(true).write(true).open("/dev/null") {
        for stream in [libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO] {
            // SAFETY: nothing of this process owns the numbers of the three streams.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_arrive_as_they_were_sent() {
        for news in [
            News::Started(4711),
            News::Stopped,
            News::Ended(End::Code(3)),
            News::Ended(End::Signal(15)),
            News::NotStarted(2),
            News::Refused(1),
            News::Failed(5),
        ] {
            assert_eq!(News::parse(news.encode()), news);
        }
    }
}
