//! The mount namespace of a server that may be killed.
//!
//! Owns a descriptor of this process's mount namespace, which keeps the
//! namespace until the kernel has closed the process's files.
//!
//! A server may be the last process of its mount namespace (a container, a
//! service with private mounts), and may be killed. A process that exits gives
//! its namespace back after its files were put on a list of files to close, and
//! before they are closed. Without this descriptor, the last process of a
//! namespace thus unmounts what the namespace has while its connections are
//! still open, in `task_work_run`. A block mount sends DESTROY then and waits
//! for an answer, which nobody can give. The thread never ends. The lock of the
//! file system that it holds stops each sync(2) of the machine.
//!
//! With this descriptor, the namespace lives until the descriptor is closed.
//! What that unmounts goes on a new list, after the one with the connections.
//! Nothing waits for a connection that is closed. The kernel works from the last
//! descriptor to the first. So this one also has a smaller number than the
//! connections: they are closed when another thread of the process gives back
//! the namespace.
//!
//! Sources of the facts: `do_exit`, `task_work_run`, `mntput_no_expire` and
//! `fuse_conn_destroy` of the kernel; `make vm-kill` shows both the hang and its
//! absence.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags};

const OWN_NAMESPACE: &str = "/proc/self/ns/mnt";

/// Keeps the mount namespace until it is dropped, or until the process's files
/// are closed.
#[derive(Debug)]
pub(crate) struct Namespace(OwnedFd);

impl Namespace {
    /// Open this before the connection.
    pub(super) fn hold() -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(OWN_NAMESPACE, flags, Mode::empty())?))
    }

    /// The same connection by a descriptor that has a greater number than the
    /// one of the namespace.
    pub(super) fn place_above(&self, connection: OwnedFd) -> io::Result<OwnedFd> {
        above(connection, self.0.as_raw_fd())
    }
}

/// `descriptor` if its number is greater than `floor`, else a copy of it whose
/// number is.
pub(crate) fn above(descriptor: OwnedFd, floor: i32) -> io::Result<OwnedFd> {
    if descriptor.as_raw_fd() > floor {
        return Ok(descriptor);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, floor + 1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_come_after_the_namespace() {
        let low = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let namespace = Namespace::hold().unwrap();
        let high = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let own = namespace.0.as_raw_fd();
        for descriptor in [low, high] {
            let placed = namespace.place_above(descriptor).unwrap();
            assert!(placed.as_raw_fd() > own);
            let flags = rustix::io::fcntl_getfd(&placed).unwrap();
            assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        }
    }
}
