//! Runs programs so that FUSE mounts of ButterFS look to them as Btrfs.
//!
//! A filter (seccomp) stops a few system calls of the program and of all that it
//! starts: those that ask what a file or a file system is, that open a table of
//! mounts, and four requests of ioctl(2) that the kernel never passes to a FUSE
//! server. A supervisor answers them where they are about a mount of ButterFS,
//! and lets the kernel go on otherwise. Reads and writes are never stopped. No
//! rights are needed, and none are gained: the supervisor looks only at what the
//! caller may look at.
//!
//! Three processes take part. The first one waits and passes signals on; it ends
//! as the program ends. The second one is the supervisor. It ignores signals,
//! and ends when the last process under the filter is gone. The third one is the
//! program. So a daemon that the program leaves behind keeps its supervisor.
//!
//! Where the kernel lets nobody watch calls, a library that is loaded into
//! dynamic programs (the crate `preload`) gives the same answers
//! ([`InProcess`]).
//!
//! Owns the filter, the answers and the processes. The server of a mount owns
//! the facts.

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the numbers of system calls are known for x86_64 and aarch64");

mod answers;
mod bytes;
mod filter;
mod guise;
mod in_process;
mod listener;
mod mounts;
mod process;
mod sharing;
mod sysfs;
mod tables;
mod target;
mod workers;

pub use in_process::{InProcess, Reply};
pub use process::{End, RunError, accept_signals, is_supervised, run};
