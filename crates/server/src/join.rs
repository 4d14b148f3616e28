//! Several mounts of one volume, if root mounts.
//!
//! Owns making them as the kernel's Btrfs does: there is one file system, from
//! its top level on, with one server. Each mount shows the directory of a
//! subvolume and has its own flags. So changes through one mount are visible in
//! the others.
//!
//! A process that finds its volume served asks the server for nothing. It takes
//! the server's descriptor of /dev/fuse, which root may do. With that, the
//! kernel makes another mount of the same file system. A block device needs no
//! descriptor.
//!
//! Ordinary users have no such mounts: their one mount begins at its
//! subvolume.

use crate::attributes::{PLACE, server_of};
use crate::error::{About, ServerError};
use crate::facts::Facts;
use crate::mounts::Mount;
use crate::place::narrow;
use crate::service::process_behind;
use butterfs::{Access, MountOptions, Subvolume};
use butterfs_fuse::mount::detach;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Pid, PidfdGetfdFlags, pidfd_getfd};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

const DEVICE: &str = "/dev/fuse";
/// Mounts a mounted volume once more. `None` if that is not possible: it is not
/// mounted here, or not by root.
pub(crate) fn join(
    (source, point): (&Path, &Path),
    options: &MountOptions,
    flags: MountFlags,
) -> Option<Result<(), ServerError>> {
    if !rustix::process::geteuid().is_root() || point.starts_with("/dev/fd") {
        return None;
    }
    let mounts = Mount::seen_by("self").into_iter();
    // Any user may give this source name to a mount of his own.
    let of_source = |mount: &Mount| mount.is_ours() && mount.is_roots() && mount.source == source;
    let serves_all = |mount: &Mount| place_of(&mount.point, &Subvolume::Default).is_some();
    let there = mounts.filter(of_source).find(serves_all)?;
    if part_of(&there) != options.part.option() {
        // Another volume on the same device.
        return None;
    }
    match place_of(&there.point, &options.subvolume) {
        Some(place) => mount_again(&there, (point, &place), options, flags).transpose(),
        None => Some(Err(ServerError::NoSubvolume(source.to_owned()))),
    }
}

/// Where a subvolume is, as the server of a mount says.
fn place_of(point: &Path, subvolume: &Subvolume) -> Option<PathBuf> {
    let which = match subvolume {
        Subvolume::Path(path) => {
            return Some(Path::new("/").join(OsString::from_vec(path.clone())));
        }
        Subvolume::Id(id) => id.to_string(),
        Subvolume::Default => "default".to_owned(),
    };
    let mut path = vec![0; 64 << 10];
    let name = format!("{PLACE}{which}");
    let length = rustix::fs::getxattr(point, name, &mut path[..]).ok()?;
    path.truncate(length);
    Some(OsString::from_vec(path).into())
}

/// The mount option that says which part of its device a mount shows.
fn part_of(there: &Mount) -> Option<String> {
    let in_effect = Facts::of_mount(&there.point).ok()?.options?;
    let is_part = |word: &&str| word.starts_with("partition=") || word.starts_with("offset=");
    in_effect.split(',').find(is_part).map(str::to_owned)
}

/// Whether the server has the volume open only for reading.
fn is_read_only(there: &Mount) -> Result<bool, ServerError> {
    let in_effect = Facts::of_mount(&there.point)?.options.unwrap_or_default();
    Ok(in_effect.split(',').next() == Some("ro"))
}

/// Errors if the server has the volume open only for reading.
pub(crate) fn check_writable(there: &Mount) -> Result<(), ServerError> {
    if !is_read_only(there)? {
        return Ok(());
    }
    Err(ServerError::OpenReadOnly {
        source_path: there.source.clone(),
        mount: there.point.clone(),
    })
}

/// `None` if the server has ended meanwhile.
fn mount_again(
    there: &Mount,
    (point, place): (&Path, &Path),
    options: &MountOptions,
    flags: MountFlags,
) -> Result<Option<()>, ServerError> {
    if options.access == Access::ReadWrite {
        check_writable(there)?;
    }
    let is_block = there.kind.starts_with("fuseblk");
    let device = match is_block {
        true => {
            rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).about(DEVICE)?
        }
        false => connection_of(&there.point)?,
    };
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    if is_block {
        data.push_str(",blksize=4096");
    }
    let data = std::ffi::CString::new(data).about("mount options")?;
    // The file system decides whether it can be written, and each mount decides
    // for itself whether it can be written through this mount.
    let shared = match is_read_only(there)? {
        true => flags | MountFlags::RDONLY,
        false => flags - MountFlags::RDONLY,
    };
    rustix::mount::mount(
        &there.source,
        point,
        &there.kind[..],
        shared,
        data.as_c_str(),
    )
    .at(point)?;
    // It names this mount whatever happens to the path.
    let top = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(point, top, Mode::empty()).at(point)?;
    let give_up = || {
        let _ = detach(top.as_fd());
    };
    // If the served file system is gone, the kernel made a new one with the same
    // device number, and waits for this process to serve it.
    if is_block && is_served_by(&device)? {
        give_up();
        return Ok(None);
    }
    if Mount::of_path(point).is_none_or(|made| made.device != there.device) {
        give_up();
        return Err(ServerError::OtherServer(there.source.clone()));
    }
    drop(top);
    let done = narrow(point, place).and_then(|()| {
        let flags = flags | MountFlags::BIND;
        rustix::mount::mount_remount(point, flags, "").at(point)
    });
    if done.is_err() {
        // Remove a mount that could not be finished.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    }
    done.map(Some)
}

/// Whether the kernel has taken this descriptor of /dev/fuse as the connection
/// to a server.
fn is_served_by(device: &OwnedFd) -> Result<bool, ServerError> {
    let mut state = [PollFd::new(device, PollFlags::IN)];
    let now = Timespec::default();
    rustix::io::retry_on_intr(|| poll(&mut state, Some(&now))).about(DEVICE)?;
    Ok(!state[0].revents().contains(PollFlags::ERR))
}

/// The process that serves a mount: its number and a descriptor.
fn process_of(point: &Path) -> Option<(Pid, OwnedFd)> {
    let name = server_of(point)?;
    let address = SocketAddr::from_abstract_name(name).ok()?;
    let server = UnixStream::connect_addr(&address).ok()?;
    let (peer, process) = process_behind(&server)?;
    // Any user may listen on a name on which root's server does not.
    peer.uid.is_root().then_some((peer.pid, process))
}

/// The descriptor by which the server of a mount is connected to the kernel.
fn connection_of(point: &Path) -> Result<OwnedFd, ServerError> {
    let Some((server, process)) = process_of(point) else {
        return Err(ServerError::OutOfReach(point.to_owned()));
    };
    let directory = format!("/proc/{}/fd", server.as_raw_nonzero());
    for entry in std::fs::read_dir(&directory).about("the server")? {
        let entry = entry.about("the server")?;
        let is_device = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str().as_bytes() == DEVICE.as_bytes());
        let number = entry.file_name();
        let number = number.to_str().and_then(|text| text.parse().ok());
        if let (true, Some(number)) = (is_device, number) {
            return pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
                .about("the server's connection");
        }
    }
    Err(ServerError::NoConnection)
}
