//! Judges from outside: btrfs-progs and the kernel.
//!
//! Owns running them and reading their verdicts. `tests/canary.rs` proves that
//! each of them can condemn.

mod check;
mod kernel_log;
mod kernel_mount;
mod mkfs;

pub use check::{DataChecksums, Mode, btrfs_check, judge_image};
pub use kernel_log::KernelLog;
pub use kernel_mount::{Access, KernelMount, Loop};
pub use mkfs::{mkfs_btrfs, scratch_dir};

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::process::Command;

/// What a judge said.
#[derive(Clone, Debug)]
#[must_use]
pub struct Verdict {
    /// It found nothing wrong.
    pub clean: bool,
    /// All that it printed.
    pub output: String,
}

impl Verdict {
    /// Fails unless it is clean.
    ///
    /// # Panics
    /// With all that the judge printed.
    pub fn assert_clean(&self, context: &str) {
        assert!(self.clean, "{context}: not clean:\n{}", self.output);
    }
}

/// Unmounts what the kernel has at `point`.
///
/// Asks the kernel itself. The program umount can fail after it unmounted, if
/// many of them want the table of mounts at once.
///
/// # Errors
/// It is still in use after some seconds, or nothing is mounted there.
pub fn unmount(point: &Path) -> io::Result<()> {
    let flags = rustix::mount::UnmountFlags::empty();
    unmount_patiently(|| Ok(rustix::mount::unmount(point, flags)?))
}

/// Tries for some seconds, because a program that another test is about to
/// start holds this test's open files until its exec.
pub(crate) fn unmount_patiently(unmount: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 0..100 {
        if unmount().is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(30));
    }
    unmount()
}

/// Runs a program to its end. Returns whether it succeeded, and everything that
/// it printed.
fn run<A: AsRef<OsStr>>(program: &str, args: impl IntoIterator<Item = A>) -> Verdict {
    match Command::new(program).args(args).output() {
        Ok(out) => Verdict {
            clean: out.status.success(),
            output: format!(
                "{}{}",
                String::from_utf8_lossy(&out.stdout),
                String::from_utf8_lossy(&out.stderr)
            ),
        },
        Err(error) => Verdict {
            clean: false,
            output: format!("{program} does not run: {error}"),
        },
    }
}
