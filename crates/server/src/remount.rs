//! Changing what is mounted, without its server.

use crate::error::{About, ServerError};
use crate::join::check_writable;
use crate::mounts::Mount;
use rustix::fs::StatVfsMountFlags;
use rustix::mount::MountFlags;
use std::os::fd::AsFd;
use std::path::Path;

/// Makes durable everything that was written to the volume mounted at `point`,
/// also what is in the kernel's cache.
///
/// # Errors
/// What the file system says.
pub fn save(point: &Path) -> Result<(), ServerError> {
    let root = std::fs::File::open(point).at(point)?;
    butterfs_kernel::sync_any(root.as_fd()).at(point)
}

/// Flags that a mount has now.
fn flags_of(point: &Path) -> Result<MountFlags, ServerError> {
    let now = rustix::fs::statvfs(point).at(point)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let has = pairs.into_iter().filter(|(shown, _)| now.contains(*shown));
    Ok(has.fold(MountFlags::empty(), |sum, (_, flag)| sum | flag))
}

/// New flags for a mount.
#[derive(Debug)]
pub struct Remount<'w> {
    mount: Mount,
    words: &'w [&'w str],
    flags: MountFlags,
    ignored: Vec<&'w str>,
}

impl<'w> Remount<'w> {
    /// The flags that `words` name, for the mount at `point`. Other flags and
    /// the volume's options stay as they are.
    ///
    /// # Errors
    /// Nothing of ButterFS is mounted there.
    pub fn plan(point: &Path, words: &'w [&'w str]) -> Result<Self, ServerError> {
        let point = point.canonicalize().at(point)?;
        let mount = Mount::of_path(&point).filter(|mount| mount.point == point && mount.is_ours());
        let mount = mount.ok_or_else(|| ServerError::NotMounted(point.clone()))?;
        let mut wanted = butterfs_fuse::mount::MountOptions {
            flags: flags_of(&point)?,
            ..butterfs_fuse::mount::MountOptions::default()
        };
        let mut ignored = Vec::new();
        for word in words {
            if !wanted.apply_flag(word) {
                ignored.push(*word);
            }
        }
        Ok(Self {
            mount,
            words,
            flags: wanted.flags,
            ignored,
        })
    }

    /// Words that are options of the volume. The volume stays as it was
    /// mounted.
    #[must_use]
    pub fn ignored(&self) -> &[&'w str] {
        &self.ignored
    }

    /// Gives the mount these flags.
    ///
    /// # Errors
    /// The server has the volume open for reading only; the system refuses.
    pub fn apply(self) -> Result<(), ServerError> {
        let point = &self.mount.point;
        if self.words.contains(&"rw") {
            check_writable(&self.mount)?;
        }
        rustix::mount::mount_remount(point, self.flags | MountFlags::BIND, "").at(point)?;
        // A volume that is open for reading only has nothing to save.
        if self.flags.contains(MountFlags::RDONLY) && check_writable(&self.mount).is_ok() {
            save(point)?;
        }
        Ok(())
    }
}
