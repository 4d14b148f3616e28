//! The same answers, for calls of this process itself: where the kernel lets
//! nobody watch calls, a library that is loaded into the program asks here.
//!
//! Owns nothing but the way in. What each call is answered is in `answers`.

use crate::answers::{Answers, Callers};
use crate::listener::{Answer, CloseOnExec, Stopped};
use std::io;
use std::os::fd::OwnedFd;

/// Answers to calls of this process about mounts of ButterFS.
#[derive(Debug)]
pub struct InProcess(Answers);

/// What a call returns.
#[derive(Debug)]
pub enum Reply {
    /// This value.
    Value(i64),
    /// This error, as errno has it.
    Error(i32),
    /// A new descriptor, which execve(2) closes.
    Descriptor(OwnedFd),
    /// A new descriptor that execve(2) leaves open. It is still marked to be
    /// closed.
    DescriptorToKeep(OwnedFd),
}

impl InProcess {
    /// Reads the table of mounts.
    ///
    /// # Errors
    /// There is no /proc.
    pub fn new() -> io::Result<Self> {
        Answers::new(Callers::Own).map(Self)
    }

    /// Whether files of a mount of ButterFS have this device number.
    #[must_use]
    pub fn is_ours(&self, major: u32, minor: u32) -> bool {
        self.0.is_ours((major, minor))
    }

    /// The answer to a system call of this thread, by its number and arguments;
    /// `None` if the kernel's answer is right. It is for calls that the kernel
    /// carries out without an error, and for requests of ioctl(2).
    #[must_use]
    pub fn answer(&self, number: i64, arguments: [u64; 6]) -> Option<Reply> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let stopped = Stopped {
            id: 0,
            thread: u32::try_from(thread).ok()?,
            number: i32::try_from(number).ok()?,
            arguments,
        };
        Some(match self.0.answer(&stopped)? {
            Answer::Continue => return None,
            Answer::Value(value) => Reply::Value(value),
            Answer::Error(error) => Reply::Error(error.raw_os_error()),
            Answer::Descriptor(file, CloseOnExec::Yes) => Reply::Descriptor(file),
            Answer::Descriptor(file, CloseOnExec::No) => Reply::DescriptorToKeep(file),
        })
    }
}
