//! What this machine can do, and how a test says that it cannot run.

use std::path::Path;
use std::process::Command;

/// Something that a test needs from the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// The superuser.
    Root,
    /// Loop devices.
    Loop,
    /// Btrfs in the kernel.
    KernelBtrfs,
    /// `/dev/fuse`.
    Fuse,
    /// A program in `PATH`.
    Program(&'static str),
}

impl Capability {
    /// Everything that a test needs to mount volumes with the kernel.
    pub const KERNEL_MOUNT: [Self; 4] = [
        Self::Root,
        Self::Loop,
        Self::KernelBtrfs,
        Self::Program("mkfs.btrfs"),
    ];

    /// Whether it is here.
    #[must_use]
    pub fn is_here(self) -> bool {
        match self {
            Self::Root => rustix::process::geteuid().is_root(),
            Self::Loop => Path::new("/dev/loop-control").exists(),
            Self::KernelBtrfs => {
                knows_btrfs()
                    || (Self::Root.is_here()
                        && Command::new("modprobe").arg("btrfs").output().is_ok()
                        && knows_btrfs())
            }
            Self::Fuse => std::fs::File::options()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .is_ok(),
            Self::Program(name) => std::env::var_os("PATH").is_some_and(|path| {
                std::env::split_paths(&path).any(|dir| dir.join(name).exists())
            }),
        }
    }

    /// True if all of `needed` are here. Otherwise says what is missing, as
    /// [`skip`] does.
    #[must_use]
    pub fn all_here(needed: &[Self]) -> bool {
        match needed.iter().find(|capability| !capability.is_here()) {
            Some(missing) => {
                skip(&format!("this machine lacks {missing:?}"));
                false
            }
            None => true,
        }
    }
}

fn knows_btrfs() -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|list| list.contains("\tbtrfs\n"))
}

/// Says in one line that a test is skipped. In CI, no test may be skipped.
///
/// # Panics
/// When `CI` is set in the environment.
pub fn skip(reason: &str) {
    assert!(
        std::env::var_os("CI").is_none(),
        "skipped in CI, where nothing may be: {reason}"
    );
    eprintln!("skipped: {reason}");
}
