//! Who is at the other end of a socket.
//!
//! The number of a process that a socket tells may belong to another process by
//! the time somebody looks. A descriptor of the process does not change hands.
#![allow(unsafe_code, reason = "a socket option that rustix does not have")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// `SO_PEERPIDFD` (since Linux 6.5), on all architectures but parisc and sparc.
const SO_PEERPIDFD: libc::c_int = 77;

/// `SO_PEERGROUPS` (since Linux 4.13), on the same architectures.
const SO_PEERGROUPS: libc::c_int = 59;

/// The process that connected a Unix socket, or that listens on it.
///
/// # Errors
/// ENOPROTOOPT before Linux 6.5. ESRCH or EINVAL, on some kernels, if the process
/// is gone.
pub fn peer_process(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut descriptor: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int, for which there is room; both
    // pointers are to values that live here.
    let done = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut descriptor).cast(),
            &raw mut length,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel made this descriptor for the caller, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// The supplementary groups that the process had when it connected a Unix socket.
///
/// # Errors
/// ENOPROTOOPT before Linux 4.13.
pub fn peer_groups(socket: impl AsFd) -> io::Result<Vec<u32>> {
    /// NGROUPS_MAX.
    const GROUPS_MAX: usize = 65_536;
    let mut room = 64;
    loop {
        let mut groups: Vec<libc::gid_t> = vec![0; room];
        let mut length = size_of_val(&groups[..]) as libc::socklen_t;
        // SAFETY: the option's value is an array of group numbers, for which
        // there are `length` bytes; both pointers are to values that live here.
        let done = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if done == 0 {
            groups.truncate(length as usize / size_of::<libc::gid_t>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::ERANGE) || room >= GROUPS_MAX {
            return Err(error);
        }
        room *= 8;
    }
}

/// Whether a process has not ended, so that its number is still its own.
///
/// # Errors
/// What poll(2) says.
pub fn is_running(process: impl AsFd) -> io::Result<bool> {
    let mut state = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
    let now = Timespec::default();
    rustix::io::retry_on_intr(|| poll(&mut state, Some(&now)))?;
    Ok(!state[0].revents().contains(PollFlags::IN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn this_process_is_its_own_peer() {
        let (one, _other) = UnixStream::pair().unwrap();
        match peer_process(&one) {
            Ok(process) => assert!(is_running(process).unwrap()),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENOPROTOOPT)),
        }
    }

    #[test]
    fn the_groups_of_a_peer_are_those_of_its_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = rustix::process::getgroups().unwrap();
        let own: Vec<u32> = own.into_iter().map(rustix::fs::Gid::as_raw).collect();
        assert_eq!(peer_groups(&one).unwrap(), own);
    }
}
