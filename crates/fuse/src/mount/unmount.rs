//! Ending a mount.
//!
//! Owns the choice between umount(2) and the helper, and the care not to
//! unmount what someone else has mounted at the same place meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use super::helper::HELPER;
use super::{UnmountError, mountinfo};

/// How to treat files that are open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnmountMode {
    /// Refuse while any is.
    Normal,
    /// Take the mount out of sight now and end it when the last one closes.
    Lazy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Direct,
    Helper,
    External,
}

/// Unmounts one mount. Cheap to clone; usable from any thread but one that
/// serves requests.
#[derive(Clone, Debug)]
pub struct Unmounter {
    mount: Arc<Mount>,
}

#[derive(Debug)]
struct Mount {
    path: PathBuf,
    method: Method,
    device: Option<String>,
}

impl Unmounter {
    /// For what was just mounted at `path`.
    pub(super) fn new(path: PathBuf, method: Method) -> Self {
        let device = mountinfo::device_at(&path).ok().flatten();
        Self {
            mount: Arc::new(Mount {
                path,
                method,
                device,
            }),
        }
    }

    /// For a mount that someone else made.
    pub(super) fn external() -> Self {
        let mount = Mount {
            path: PathBuf::new(),
            method: Method::External,
            device: None,
        };
        Self {
            mount: Arc::new(mount),
        }
    }

    /// The mountpoint, absolute; `None` if someone else mounted.
    #[must_use]
    pub fn mountpoint(&self) -> Option<&Path> {
        (self.mount.method != Method::External).then_some(&self.mount.path)
    }

    /// The device number of the mount, `major:minor`, as `/proc/self/mountinfo`
    /// has it; `None` where it is not known.
    #[must_use]
    pub fn device_number(&self) -> Option<&str> {
        self.mount.device.as_deref()
    }

    /// Whether the mount is still in its place.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        let mount = &self.mount;
        let now = mountinfo::device_at(&mount.path).ok().flatten();
        mount.device.is_some() && now == mount.device
    }

    /// Unmounts. Success if it is unmounted already.
    pub fn unmount(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        let mount = &*self.mount;
        if mount.method == Method::External {
            return Err(UnmountError::External);
        }
        if let (Some(_), Ok(now)) = (&mount.device, mountinfo::device_at(&mount.path))
            && now != mount.device
        {
            return Ok(());
        }
        match mount.method {
            Method::Direct => unmount_directly(&mount.path, mode),
            _ => unmount_by_helper(&mount.path, mode),
        }
    }
}

fn unmount_directly(path: &Path, mode: UnmountMode) -> Result<(), UnmountError> {
    let flags = UnmountFlags::NOFOLLOW
        | match mode {
            UnmountMode::Normal => UnmountFlags::empty(),
            UnmountMode::Lazy => UnmountFlags::DETACH,
        };
    match rustix::mount::unmount(path, flags) {
        // EINVAL: someone was faster.
        Ok(()) | Err(Os::INVAL) => Ok(()),
        Err(Os::BUSY) => Err(UnmountError::Busy(path.into())),
        Err(Os::PERM) => Err(UnmountError::NotPermitted(path.into())),
        Err(error) => Err(UnmountError::Failed {
            path: path.into(),
            reason: error.to_string(),
        }),
    }
}

fn unmount_by_helper(path: &Path, mode: UnmountMode) -> Result<(), UnmountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if mode == UnmountMode::Lazy {
        command.arg("-z");
    }
    let output = command
        .arg("--")
        .arg(path)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| UnmountError::Failed {
            path: path.into(),
            reason: error.to_string(),
        })?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if reason.contains("busy") {
        return Err(UnmountError::Busy(path.into()));
    }
    Err(UnmountError::Failed {
        path: path.into(),
        reason,
    })
}
