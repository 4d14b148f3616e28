//! mount(2) as root.
//!
//! Owns the examination of the mountpoint and the translation of the kernel's
//! errors.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno as Os;

use super::options::KernelData;
use super::unmount::Method;
use super::{Connected, MountError, MountOptions};
use crate::transport::DEVICE_PATH;

/// A directory fit to be mounted on.
pub(super) struct Target {
    /// Absolute, without symbolic links.
    pub(super) path: PathBuf,
    root_mode: u32,
}

impl Target {
    pub(super) fn examine(mountpoint: &Path) -> Result<Self, MountError> {
        let refused = |error: Os| match error {
            Os::NOENT => MountError::MountpointMissing(mountpoint.into()),
            Os::NOTDIR => MountError::NotADirectory(mountpoint.into()),
            // Other errors mean that its queues of io_uring are ending.
            Os::NOTCONN | Os::CANCELED | Os::CONNABORTED => MountError::Stale(mountpoint.into()),
            other => MountError::Mountpoint {
                path: mountpoint.into(),
                source: other.into(),
            },
        };
        let stat = rustix::fs::stat(mountpoint).map_err(refused)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
            return Err(MountError::NotADirectory(mountpoint.into()));
        }
        let path = mountpoint
            .canonicalize()
            .map_err(|source| MountError::Mountpoint {
                path: mountpoint.into(),
                source,
            })?;
        Ok(Self {
            path,
            root_mode: stat.st_mode,
        })
    }
}

pub(super) fn mount(options: &MountOptions, target: &Target) -> Result<Connected, MountError> {
    if options.auto_unmount {
        return Err(MountError::Option(
            "auto_unmount needs fusermount3; mount as an ordinary user or leave it out",
        ));
    }
    let device = open_device()?;
    let data = options.kernel_data(&KernelData {
        descriptor: device.as_raw_fd(),
        root_mode: target.root_mode,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
    });
    let data = CString::new(data).map_err(|_| MountError::Option("contains a NUL; remove it"))?;
    rustix::mount::mount(
        options.source.as_str(),
        &target.path,
        options.kernel_type().as_str(),
        options.flags,
        data.as_c_str(),
    )
    .map_err(|error| match error {
        Os::PERM | Os::ACCESS => MountError::NotPermitted(target.path.clone()),
        Os::BUSY => MountError::Busy(target.path.clone()),
        other => MountError::Kernel {
            path: target.path.clone(),
            source: other.into(),
        },
    })?;
    Ok(Connected {
        device,
        place: Some((target.path.clone(), Method::Direct)),
        guardian: None,
    })
}

fn open_device() -> Result<OwnedFd, MountError> {
    rustix::fs::open(DEVICE_PATH, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(|error| {
        match error {
            Os::NOENT | Os::NODEV | Os::NXIO => MountError::DeviceMissing,
            Os::PERM | Os::ACCESS => MountError::DeviceDenied,
            other => MountError::Device(other.into()),
        }
    })
}
