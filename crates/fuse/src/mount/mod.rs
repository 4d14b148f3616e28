//! Mounting and unmounting.
//!
//! Owns the three ways to a connection: mount(2) as root, the helper
//! fusermount3 for everyone else, and a descriptor that someone else mounted.
//! Owns no protocol: what comes out is a descriptor on which the kernel waits
//! for an answer to INIT.

mod direct;
mod error;
mod helper;
mod identity;
mod mountinfo;
mod namespace;
mod options;
mod unmount;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use error::{MountError, UnmountError};
pub(crate) use helper::Guardian;
pub use identity::{detach, is_on_top};
pub(crate) use namespace::{Namespace, above};
pub use options::{Allow, MountFlags, MountKind, MountOptions, PermissionChecks};
use unmount::Method;
pub use unmount::{UnmountMode, Unmounter};

/// A connection and the way to end it.
pub(crate) struct Mounted {
    pub(crate) device: Arc<OwnedFd>,
    pub(crate) unmounter: Unmounter,
    /// Outlives the connection; `None` only for plain mounts, which do without.
    pub(crate) namespace: Option<Namespace>,
    /// Unmounts when this process dies; ends when dropped.
    pub(crate) guardian: Option<Guardian>,
}

/// Mounts at `mountpoint`, or adopts it if it is `/dev/fd/N`.
pub(crate) fn mount(options: &MountOptions, mountpoint: &Path) -> Result<Mounted, MountError> {
    let namespace = match Namespace::hold() {
        Ok(namespace) => Some(namespace),
        Err(error) if options.kind == MountKind::Plain => {
            tracing::debug!(%error, "the mount namespace is not held");
            None
        }
        Err(error) => return Err(MountError::Namespace(error)),
    };
    let Connected {
        device,
        place,
        guardian,
    } = connect(options, mountpoint)?;
    let device = match &namespace {
        Some(namespace) => namespace.place_above(device).map_err(MountError::Device)?,
        None => device,
    };
    let device = Arc::new(device);
    let unmounter = match place {
        Some((path, method)) => Unmounter::new(path, method, &device),
        None => Unmounter::external(),
    };
    Ok(Mounted {
        device,
        unmounter,
        namespace,
        guardian,
    })
}

/// A connection that was made.
struct Connected {
    device: OwnedFd,
    /// Where it is mounted and how; `None` if someone else mounted.
    place: Option<(PathBuf, Method)>,
    guardian: Option<Guardian>,
}

fn connect(options: &MountOptions, mountpoint: &Path) -> Result<Connected, MountError> {
    if let Some(number) = inherited_descriptor(mountpoint) {
        return Ok(Connected {
            device: helper::adopt(number)?,
            place: None,
            guardian: None,
        });
    }
    let target = direct::Target::examine(mountpoint)?;
    if rustix::process::geteuid().is_root() {
        match direct::mount(options, &target) {
            // Root of a container without the right to mount.
            Err(MountError::NotPermitted(_)) => helper::mount(options, &target),
            mounted => mounted,
        }
    } else {
        helper::mount(options, &target)
    }
}

/// The number in `/dev/fd/N`.
fn inherited_descriptor(mountpoint: &Path) -> Option<i32> {
    let number = mountpoint.to_str()?.strip_prefix("/dev/fd/")?;
    number.parse().ok().filter(|number| *number >= 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_recognized() {
        assert_eq!(inherited_descriptor(Path::new("/dev/fd/7")), Some(7));
        for other in ["/dev/fd/", "/dev/fd/-1", "/dev/fd/7/x", "/mnt"] {
            assert_eq!(inherited_descriptor(Path::new(other)), None, "{other}");
        }
    }
}
