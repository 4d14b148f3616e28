//! `butterfs umount`.
//!
//! A plain FUSE mount is gone before its server has written everything. So this
//! command waits for the server's last word, and for the lock that the server
//! holds on the source.

use crate::fail::{Context, Done, fail};
use crate::patience;
use butterfs_server::{End, Mount, Waiter};
use clap::Args;
use rustix::fs::FlockOperation;
use rustix::mount::UnmountFlags;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The pause between two looks at who else has the mount.
const LOOK: Duration = Duration::from_millis(500);

/// Unmounts and returns when everything is on the device.
#[derive(Args, Debug)]
#[command(after_help = "Example:
  butterfs umount /mnt

Exit codes: 0 unmounted, and everything is on the device; 1 failed: files are open, another
mount namespace still has the mount, or something could not be written.")]
pub struct Umount {
    /// Detach the mount now even if files are open; does not wait.
    #[arg(short, long)]
    lazy: bool,
    /// Where it is mounted.
    mountpoint: PathBuf,
}

impl Umount {
    /// Runs it.
    pub fn run(self) -> Done {
        patience::asking(&self.mountpoint, || self.end())
    }

    fn end(&self) -> Done {
        // A server that died leaves a mountpoint that cannot be looked at.
        let mountpoint = std::fs::canonicalize(&self.mountpoint)
            .or_else(|_| std::path::absolute(&self.mountpoint))
            .context(self.mountpoint.display())?;
        let mounts = Mount::seen_by("self");
        let mut here = mounts.into_iter().filter(|mount| mount.point == mountpoint);
        let Some(mount) = here.next_back() else {
            return fail(format!("nothing is mounted at {}", mountpoint.display()));
        };
        if self.lazy {
            return self.unmount(&mountpoint);
        }
        // As long as the mount exists, it tells where its server is.
        let waiter = Waiter::new(&mountpoint);
        let is_silent = waiter.is_none() && mount.is_ours();
        let others = others_of(&mount);
        self.unmount(&mountpoint)?;
        // A mount that somebody made since then belongs to another server,
        // though it may have the same device number.
        let left = others_of(&mount).into_iter();
        let mut left = left.filter(|other| others.iter().any(|known| known.id == other.id));
        if let Some(other) = left.next() {
            // The server goes on, because it has other mounts.
            return Ok(butterfs_server::save(&other.point)?);
        }
        wait_until_ended(&mount, waiter)?;
        if is_silent {
            return fail(
                "it is unmounted, but its server died or could not be asked: changes since the \
                 last commit may be lost",
            );
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
            Err(rustix::io::Errno::BUSY) => return fail(in_use(mountpoint)),
            Err(rustix::io::Errno::PERM) => {}
            Err(error) => return fail(format!("{}: {error}", mountpoint.display())),
        }
        let mut helper = Command::new("fusermount3");
        // Its words are looked at.
        helper.env("LC_ALL", "C").arg("-u");
        if self.lazy {
            helper.arg("-z");
        }
        let output = helper.arg("--").arg(mountpoint).output();
        let output = output.context("fusermount3 (install the package fuse3)")?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        if words.contains("resource busy") {
            return fail(in_use(mountpoint));
        }
        let mount = Mount::of_path(mountpoint);
        let user = mount.and_then(|mount| mount.user());
        match user.filter(|user| *user != rustix::process::geteuid().as_raw()) {
            Some(user) => fail(format!(
                "{}: mounted by another user (number {user}); that user or root can unmount it",
                mountpoint.display()
            )),
            None => fail(words.trim()),
        }
    }
}

/// Other mounts of the same file system that are seen here.
fn others_of(mount: &Mount) -> Vec<Mount> {
    let is_other = |other: &Mount| other.device == mount.device && other.id != mount.id;
    Mount::seen_by("self")
        .into_iter()
        .filter(is_other)
        .collect()
}

fn in_use(mountpoint: &Path) -> String {
    format!(
        "{} is in use; `fuser -vm {0}` shows by whom",
        mountpoint.display()
    )
}

/// Waits until the server has written everything and has ended.
fn wait_until_ended(mount: &Mount, mut waiter: Option<Waiter>) -> Done {
    // What is not a file, was renamed or is gone shows no lock.
    let file = std::fs::File::open(&mount.source).ok();
    let mut verdict = Ok(());
    loop {
        let time = LOOK;
        if let Some(server) = &mut waiter {
            if let End::Ended(done) = server.wait(time)? {
                verdict = done.map_err(Into::into);
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
                Err(error) => return fail(format!("{}: {error}", mount.source.display())),
            }
        }
        if let Some(holder) = holder(mount) {
            return fail(format!(
                "it is unmounted here, but {holder} has it in another mount namespace: its \
                 server goes on, and the volume stays in use until it is unmounted there too"
            ));
        }
    }
}

/// A process in another mount namespace that still has this mount.
fn holder(mount: &Mount) -> Option<String> {
    let mut seen = vec![std::fs::read_link("/proc/self/ns/mnt").ok()?];
    for process in std::fs::read_dir("/proc").ok()?.flatten() {
        let path = process.path();
        // A process that ends meanwhile, or belongs to another user, cannot be
        // looked at.
        let Ok(namespace) = std::fs::read_link(path.join("ns/mnt")) else {
            continue;
        };
        if seen.contains(&namespace) {
            continue;
        }
        seen.push(namespace);
        let number = process.file_name();
        let number = number.to_string_lossy();
        let mounts = Mount::seen_by(&number);
        if mounts.iter().any(|other| other.device == mount.device) {
            let name = std::fs::read_to_string(path.join("comm")).unwrap_or_default();
            return Some(format!("process {number} ({})", name.trim()));
        }
    }
    None
}
