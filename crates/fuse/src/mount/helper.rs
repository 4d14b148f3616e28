//! Mounting through fusermount3, and adopting inherited descriptors.
//!
//! Owns the conversation with the helper: it gets a socket, mounts, and sends
//! the device's descriptor back over it.
#![allow(unsafe_code, reason = "descriptors that come by number")]

use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::{Child, Command, Stdio};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};

use super::direct::Target;
use super::unmount::Method;
use super::{Connected, MountError, MountKind, MountOptions};

/// The helper's name, looked up in PATH.
pub(super) const HELPER: &str = "fusermount3";

/// A helper that unmounts when its socket closes.
pub(crate) struct Guardian {
    socket: Option<OwnedFd>,
    child: Child,
}

impl Drop for Guardian {
    fn drop(&mut self) {
        drop(self.socket.take());
        let _ = self.child.wait();
    }
}

pub(super) fn mount(options: &MountOptions, target: &Target) -> Result<Connected, MountError> {
    if options.kind != MountKind::Plain {
        return Err(MountError::Option(
            "for a block device needs root; mount as root or plainly",
        ));
    }
    let (ours, theirs) = socketpair(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )
    .map_err(|error| MountError::HelperFailed(error.into()))?;
    // The socket goes as standard input: a descriptor that is inherited by
    // design needs no window in which it could leak into another child.
    let mut child = Command::new(HELPER)
        .arg("-o")
        .arg(options.helper_argument())
        .arg("--")
        .arg(&target.path)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(spawn_error)?;
    match receive_descriptor(ours.as_fd()) {
        Ok(Some(device)) => {
            let guardian = if options.auto_unmount {
                // The helper lives on, and nobody reads its messages.
                drop(child.stderr.take());
                Some(Guardian {
                    socket: Some(ours),
                    child,
                })
            } else {
                let _ = child.wait();
                None
            };
            Ok(Connected {
                device,
                place: Some((target.path.clone(), Method::Helper)),
                guardian,
            })
        }
        Ok(None) => Err(refusal(complaint(child))),
        Err(error) => {
            let _ = child.kill();
            let _ = child.wait();
            Err(MountError::HelperFailed(error))
        }
    }
}

fn spawn_error(error: io::Error) -> MountError {
    if error.kind() == io::ErrorKind::NotFound {
        MountError::HelperMissing
    } else {
        MountError::HelperFailed(error)
    }
}

/// The helper opens the device with the user's own rights.
fn refusal(complaint: String) -> MountError {
    if complaint.contains("/dev/fuse: Permission denied") {
        MountError::DeviceDenied
    } else {
        MountError::Helper(complaint)
    }
}

/// What the helper printed, on one line.
fn complaint(mut child: Child) -> String {
    let mut text = String::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4096).read_to_string(&mut text);
    }
    let _ = child.wait();
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_start_matches("fusermount3: ").trim())
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() {
        "no reason given".to_owned()
    } else {
        lines.join("; ")
    }
}

/// The descriptor, or `None` if the helper closed the socket without one.
fn receive_descriptor(socket: rustix::fd::BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0; 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        )
    })?;
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptor)
}

/// Takes over a descriptor inherited by number, after checking that it is one.
pub(super) fn adopt(number: i32) -> Result<OwnedFd, MountError> {
    // SAFETY: `number` comes from the path `/dev/fd/N`, by which the program
    // that started this one hands the descriptor over for good, so nothing else
    // here owns it. The next call only reads flags. A number that is not a
    // descriptor is given up without being closed.
    let device = unsafe { OwnedFd::from_raw_fd(number) };
    if let Err(error) = rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC) {
        std::mem::forget(device);
        return Err(MountError::Device(error.into()));
    }
    Ok(device)
}
