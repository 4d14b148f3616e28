//! Ending a mount.
//!
//! Owns the choice between umount(2) and the helper, and the care not to
//! unmount what someone else has mounted at the same place meanwhile.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use rustix::io::Errno as Os;
use rustix::mount::UnmountFlags;

use super::helper::HELPER;
use super::identity::Identity;
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
    /// Which mount it is, while it is known.
    own: Mutex<Option<Identity>>,
    connection: Weak<OwnedFd>,
    /// The kernel has said that no mount of the file system is left.
    is_gone: AtomicBool,
}

/// What is seen at the place of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// The mount.
    Own,
    /// Something that is mounted over it.
    Cover,
    /// Something else, or nothing.
    Other,
    /// Nobody knows which mount it is.
    Unknown,
}

impl Unmounter {
    /// For what was just mounted at `path`.
    pub(super) fn new(path: PathBuf, method: Method, connection: &Arc<OwnedFd>) -> Self {
        let own = Identity::at(&path);
        Self {
            mount: Arc::new(Mount {
                path,
                method,
                device: own.as_ref().map(|own| own.device.clone()),
                own: Mutex::new(own),
                connection: Arc::downgrade(connection),
                is_gone: AtomicBool::new(false),
            }),
        }
    }

    /// For a mount that someone else made.
    pub(super) fn external() -> Self {
        let mount = Mount {
            path: PathBuf::new(),
            method: Method::External,
            device: None,
            own: Mutex::new(None),
            connection: Weak::new(),
            is_gone: AtomicBool::new(false),
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

    /// Whether the mount is still in its place, and seen there.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        self.mount.seen() == Seen::Own
    }

    /// Whether the kernel still has a mount of the file system, with a
    /// connection that was not aborted. As long as it has, no other file system
    /// has its device number.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.mount.is_connected()
    }

    /// The program itself has put another mount of the same file system in this
    /// one's place, which is to be unmounted from now on.
    pub fn replaced(&self) {
        let now = Identity::at(&self.mount.path);
        let same = |now: &Identity| Some(&now.device) == self.mount.device.as_ref();
        if self.is_connected()
            && let Some(now) = now.filter(same)
        {
            *self.mount.own.lock() = Some(now);
        }
    }

    /// The kernel has said that no mount of the file system is left: what is at
    /// its place from now on belongs to others.
    pub(crate) fn set_gone(&self) {
        self.mount.is_gone.store(true, Ordering::Release);
    }

    /// Unmounts. Success if it is unmounted already.
    pub fn unmount(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        let mount = &*self.mount;
        if mount.method == Method::External {
            return Err(UnmountError::External);
        }
        match mount.seen() {
            Seen::Other => return Ok(()),
            Seen::Cover => return Err(UnmountError::Covered(mount.path.clone())),
            Seen::Own | Seen::Unknown => {}
        }
        match mount.method {
            Method::Direct => mount.unmount_directly(mode),
            _ => unmount_by_helper(&mount.path, mode),
        }
    }
}

impl Mount {
    fn is_connected(&self) -> bool {
        let Some(connection) = self.connection.upgrade() else {
            return false;
        };
        let mut state = [PollFd::from_borrowed_fd(connection.as_fd(), PollFlags::IN)];
        let now = Timespec::default();
        let polled = rustix::io::retry_on_intr(|| poll(&mut state, Some(&now)));
        polled.is_ok() && !state[0].revents().contains(PollFlags::ERR)
    }

    fn seen(&self) -> Seen {
        if self.is_gone.load(Ordering::Acquire) {
            return Seen::Other;
        }
        let own = self.own.lock();
        let Some(own) = &*own else {
            return Seen::Unknown;
        };
        match Identity::at(&self.path) {
            Some(seen) if own.is(&seen) => Seen::Own,
            // The number found there is this file system's if no other file
            // system can have it.
            Some(seen)
                if (seen.device != own.device || self.is_connected())
                    && mountinfo::is_at(&self.path, &own.device) =>
            {
                Seen::Cover
            }
            _ => Seen::Other,
        }
    }

    /// umount(2) knows only paths. Between the look at the path and a normal
    /// unmount, somebody could unmount this mount and mount another one; a lazy
    /// one names the mount itself.
    fn unmount_directly(&self, mode: UnmountMode) -> Result<(), UnmountError> {
        let own = self.own.lock().clone();
        let done = match (mode, own) {
            (UnmountMode::Normal, _) => rustix::mount::unmount(&self.path, UnmountFlags::NOFOLLOW),
            (UnmountMode::Lazy, Some(own)) => own.detach(&self.path),
            (UnmountMode::Lazy, None) => {
                let flags = UnmountFlags::NOFOLLOW | UnmountFlags::DETACH;
                rustix::mount::unmount(&self.path, flags)
            }
        };
        unmounted(&self.path, done)
    }
}

fn unmounted(path: &Path, done: rustix::io::Result<()>) -> Result<(), UnmountError> {
    match done {
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
