//! `butterfs umount`.
//!
//! A plain FUSE mount is gone before its server has written everything: this
//! command waits for the server's last word, and for the lock that it holds on
//! the source.

use crate::fail::{Context, Done, Failure, fail};
use crate::service::farewell::{End, Waiter};
use clap::Args;
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Between two looks at who else has the mount.
const LOOK: Duration = Duration::from_millis(500);

/// Unmounts and returns when everything is on the device.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs umount /mnt

Exit codes: 0 unmounted, and everything is on the device; 1 failed: files are open, another
mount namespace still has the mount, or something could not be written.")]
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
        let Some(mount) = Mount::at(&mountpoint)? else {
            return fail(format!("nothing is mounted at {}", mountpoint.display()));
        };
        if self.lazy {
            return self.unmount(&mountpoint);
        }
        // The mount tells where its server is while it is there.
        let waiter = Waiter::new(&mountpoint);
        self.unmount(&mountpoint)?;
        mount.wait_until_ended(waiter)
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

/// A mount, as the kernel's table has it.
struct Mount {
    /// `major:minor`, the same in all mount namespaces.
    device: Vec<u8>,
    source: PathBuf,
}

impl Mount {
    /// The last mount at `mountpoint`.
    fn at(mountpoint: &Path) -> Result<Option<Self>, Failure> {
        let table = std::fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
        let mut found = None;
        for line in table.split(|byte| *byte == b'\n') {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let dash = fields.iter().position(|field| *field == b"-");
            if let (Some(at), Some(dash)) = (fields.get(4), dash)
                && unescape(at) == mountpoint
                && let (Some(device), Some(source)) = (fields.get(2), fields.get(dash + 2))
            {
                found = Some(Self {
                    device: device.to_vec(),
                    source: unescape(source),
                });
            }
        }
        Ok(found)
    }

    /// Waits until the server has written everything and is gone.
    fn wait_until_ended(&self, mut waiter: Option<Waiter>) -> Done {
        // What is no file, was renamed or is gone shows no lock.
        let file = std::fs::File::open(&self.source).ok();
        let mut verdict = Ok(());
        loop {
            let time = LOOK;
            if let Some(server) = &mut waiter {
                if let End::Ended(done) = server.wait(time)? {
                    verdict = done;
                    waiter = None;
                    continue;
                }
            } else {
                let Some(file) = &file else {
                    return verdict;
                };
                match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
                    Ok(()) => return verdict,
                    Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(time / 50),
                    Err(rustix::io::Errno::INTR) => {}
                    Err(error) => return fail(format!("{}: {error}", self.source.display())),
                }
            }
            if let Some(holder) = self.holder() {
                return fail(format!(
                    "it is unmounted here, but {holder} has it in another mount namespace: its \
                     server goes on, and the volume stays in use until it is unmounted there too"
                ));
            }
        }
    }

    /// A process in another mount namespace that still has this mount.
    fn holder(&self) -> Option<String> {
        let mut seen = vec![std::fs::read_link("/proc/self/ns/mnt").ok()?];
        for process in std::fs::read_dir("/proc").ok()?.flatten() {
            let path = process.path();
            // What ends meanwhile, or belongs to others, cannot be looked at.
            let Ok(namespace) = std::fs::read_link(path.join("ns/mnt")) else {
                continue;
            };
            if seen.contains(&namespace) {
                continue;
            }
            seen.push(namespace);
            let table = std::fs::read(path.join("mountinfo")).unwrap_or_default();
            let mut lines = table.split(|byte| *byte == b'\n');
            if lines.any(|line| line.split(|byte| *byte == b' ').nth(2) == Some(&self.device)) {
                let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
                let number = process.file_name();
                return Some(format!(
                    "process {} ({})",
                    number.to_string_lossy(),
                    name.trim()
                ));
            }
        }
        None
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_unescaped() {
        assert_eq!(unescape(b"/a\\040b\\134c"), Path::new("/a b\\c"));
        assert_eq!(unescape(b"/a\\04"), Path::new("/a\\04"));
    }
}
