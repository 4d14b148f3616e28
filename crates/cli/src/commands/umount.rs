//! `butterfs umount`.
//!
//! A plain FUSE mount is gone before its server has written everything: the
//! server holds a lock on the source, and this command waits for it.

use crate::fail::{Context, Done, Failure, fail};
use crate::mounts::Mount;
use clap::Args;
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Unmounts and returns when everything is on the device.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs umount /mnt

Exit codes: 0 unmounted, 1 failed (for example because files are open).")]
pub struct Umount {
    /// Take it out of sight now although files are open; does not wait.
    #[arg(short, long)]
    lazy: bool,
    /// Where it is mounted.
    mountpoint: PathBuf,
}

impl Umount {
    /// Runs it.
    pub fn run(self) -> Done {
        // A server that died leaves a mountpoint that cannot be looked at.
        let mountpoint = std::fs::canonicalize(&self.mountpoint)
            .or_else(|_| std::path::absolute(&self.mountpoint))
            .context(self.mountpoint.display())?;
        let Some(source) = source_of(&mountpoint)? else {
            return fail(format!("nothing is mounted at {}", mountpoint.display()));
        };
        self.unmount(&mountpoint)?;
        // Its server goes on where it has other mounts.
        let others = Mount::seen_by("self");
        let is_other =
            |mount: &Mount| mount.is_ours() && mount.is_roots() && mount.source == source;
        if !self.lazy && !others.iter().any(is_other) {
            wait_until_released(&source)?;
        }
        Ok(())
    }

    fn unmount(&self, mountpoint: &Path) -> Done {
        let mut flags = UnmountFlags::NOFOLLOW;
        if self.lazy {
            flags |= UnmountFlags::DETACH;
        }
        match rustix::mount::unmount(mountpoint, flags) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::BUSY) => {
                return fail(format!(
                    "{} is in use; `fuser -vm {0}` shows by whom",
                    mountpoint.display()
                ));
            }
            Err(rustix::io::Errno::PERM) => {}
            Err(error) => return fail(format!("{}: {error}", mountpoint.display())),
        }
        let mut helper = Command::new("fusermount3");
        helper.arg("-u");
        if self.lazy {
            helper.arg("-z");
        }
        let output = helper.arg("--").arg(mountpoint).output();
        let output = output.context("fusermount3 (install the package fuse3)")?;
        if output.status.success() {
            return Ok(());
        }
        fail(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

/// The source of the last mount at `mountpoint`.
fn source_of(mountpoint: &Path) -> Result<Option<PathBuf>, Failure> {
    let table = std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    let mut source = None;
    for line in table.split(|byte| *byte == b'\n') {
        let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
        let dash = fields.iter().position(|field| *field == b"-");
        if let (Some(at), Some(dash)) = (fields.get(4), dash)
            && unescape(at) == mountpoint
        {
            source = fields.get(dash + 2).map(|source| unescape(source));
        }
    }
    Ok(source)
}

/// Octal escapes (`\040`) of the kernel's mount table.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = field;
    while let Some((first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| *first == b'\\');
        let value = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match value {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// Waits until no server holds `source`.
fn wait_until_released(source: &Path) -> Done {
    // What is no file, or gone, has nobody to wait for.
    let Ok(file) = std::fs::File::open(source) else {
        return Ok(());
    };
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockShared))
        .context(source.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\04"), Path::new("/a\\04"));
    }
}
