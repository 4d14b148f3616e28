//! Why mounting or unmounting failed, and what to do about it.
//!
//! Owns the messages: each says in one sentence what to do next.

use std::io;
use std::path::PathBuf;

/// Mounting failed.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no FUSE device.
    #[error("/dev/fuse does not exist; load the module with `modprobe fuse`")]
    DeviceMissing,
    /// The device may not be opened.
    #[error(
        "/dev/fuse may not be opened; run as root, or let users open it with `chmod 666 /dev/fuse`"
    )]
    DeviceDenied,
    /// The device failed otherwise.
    #[error("/dev/fuse cannot be opened ({0}); check the device and its permissions")]
    Device(#[source] io::Error),
    /// Without its mount namespace, a block mount could hang when it is killed.
    #[error(
        "/proc/self/ns/mnt cannot be opened ({0}); mount /proc, or mount plainly, without the block device"
    )]
    Namespace(#[source] io::Error),
    /// The helper is not installed.
    #[error("fusermount3 was not found; install the package fuse3 or mount as root")]
    HelperMissing,
    /// The helper refused.
    #[error("fusermount3 refused: {0}; correct what it names and mount again")]
    Helper(String),
    /// The conversation with the helper failed.
    #[error("fusermount3 cannot be used ({0}); check that it is installed set-user-id root")]
    HelperFailed(#[source] io::Error),
    /// The mountpoint does not exist.
    #[error("{} does not exist; create the directory first", .0.display())]
    MountpointMissing(PathBuf),
    /// The mountpoint is not a directory.
    #[error("{} is not a directory; name one to mount on", .0.display())]
    NotADirectory(PathBuf),
    /// A FUSE mount whose server is gone covers the mountpoint.
    #[error("{path} is a FUSE mount whose server is gone; run `umount -l {path}` first", path = .0.display())]
    Stale(PathBuf),
    /// The mountpoint cannot be examined.
    #[error("{} cannot be examined ({source}); check the permissions on its path", .path.display())]
    Mountpoint {
        /// The mountpoint.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Something is in the way.
    #[error("{} or the device is in use; unmount what uses it and try again", .0.display())]
    Busy(PathBuf),
    /// This process may not mount.
    #[error("mounting on {} is not permitted; run as root or install the package fuse3", .0.display())]
    NotPermitted(PathBuf),
    /// An option cannot be used this way.
    #[error("mount option {0}")]
    Option(&'static str),
    /// The kernel refused.
    #[error("mounting on {} failed ({source}); see `dmesg` for the kernel's reason", .path.display())]
    Kernel {
        /// The mountpoint.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Unmounting failed.
#[derive(Debug, thiserror::Error)]
pub enum UnmountError {
    /// Files are open, or something is mounted below.
    #[error("{} is in use; close what is open below it or unmount lazily", .0.display())]
    Busy(PathBuf),
    /// Someone else mounted it and passed the descriptor on.
    #[error("the file system was mounted by another program; unmount it from there")]
    External,
    /// Something else is mounted over it.
    #[error("{} is covered by another mount; unmount that first", .0.display())]
    Covered(PathBuf),
    /// This process may not unmount.
    #[error("unmounting {} is not permitted; run as root or as the user who mounted", .0.display())]
    NotPermitted(PathBuf),
    /// It failed otherwise.
    #[error("unmounting {} failed: {reason}; try `umount -l`", .path.display())]
    Failed {
        /// The mountpoint.
        path: PathBuf,
        /// What the system or the helper said.
        reason: String,
    },
}
