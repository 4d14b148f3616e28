//! Several mounts of one volume, where root mounts.
//!
//! Owns making them as the kernel's Btrfs does: the file system is one, from
//! its top level on, with one server; each mount shows the directory of a
//! subvolume and has its own flags. So what one mount changes the others see.
//!
//! A process that finds its volume served asks nobody for anything: with the
//! server's descriptor of /dev/fuse, which root may take, the kernel makes
//! another mount of the same file system. A block device needs no descriptor.
//!
//! Ordinary users have no such mounts: their one mount begins at its
//! subvolume.

use crate::facts::Facts;
use crate::fail::{Context, Done, Failure, fail};
use crate::mounts::Mount;
use butterfs::{Access, Filesystem, FsError, MountOptions, Subvolume, TreeId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, StatVfsMountFlags};
use rustix::mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

/// The attribute of a mount with the path, from the top level, of a
/// subvolume: of an id or `default`. Only servers that serve the top level
/// have it.
pub const PLACE: &str = "butterfs.place.";
const DEVICE: &str = "/dev/fuse";
/// Inode number of a subvolume's root, and the bits of a number.
const ROOT: u64 = 256;
const NUMBER: u64 = (1 << 40) - 1;

/// Where a subvolume is, from the top level.
pub fn path_from_top(files: &Filesystem, tree: TreeId) -> Result<PathBuf, FsError> {
    /// Subvolumes in one another, as elsewhere.
    const DEPTH_MAX: usize = 4096;
    let mut names = Vec::new();
    let mut at = tree;
    while at != TreeId::FS {
        let (dir, name) = files.subvolume_place(at)?;
        names.push(name);
        names.push(files.path_of(dir)?.ok_or(FsError::NotFound)?);
        at = dir.tree;
        if names.len() > 2 * DEPTH_MAX {
            return Err(FsError::LinkLoop);
        }
    }
    let mut path = PathBuf::from("/");
    path.extend(names.into_iter().rev().map(OsString::from_vec));
    Ok(path)
}

/// What is mounted at `point` shows the directory at `path` of it from now on.
pub fn narrow(point: &Path, path: &Path) -> Done {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() {
        return Ok(());
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(point, directory, Mode::empty()).context(point.display())?;
    // Names are users': none leads out of this mount.
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let wanted = rustix::fs::openat2(&top, below, directory, Mode::empty(), inside);
    let wanted = wanted.context(path.display())?;
    let inode = rustix::fs::fstat(&wanted).context(path.display())?.st_ino;
    if inode & NUMBER != ROOT {
        return fail(format!("{}: is no subvolume", path.display()));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&wanted, "", flags).context(path.display())?;
    // What is open keeps the mount.
    drop((top, wanted));
    rustix::mount::unmount(point, UnmountFlags::DETACH).context(point.display())?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&tree, "", CWD, point, flags).context(point.display())
}

/// Mounts a volume once more that is mounted; `None` where that cannot be: it
/// is not mounted here, or not by root.
pub fn join(
    (source, point): (&Path, &Path),
    options: &MountOptions,
    flags: MountFlags,
) -> Option<Done> {
    if !rustix::process::geteuid().is_root() || point.starts_with("/dev/fd") {
        return None;
    }
    let mounts = Mount::seen_by("self").into_iter();
    // Anybody may call a mount of his own by the name of this source.
    let of_source = |mount: &Mount| mount.is_ours() && mount.is_roots() && mount.source == source;
    let serves_all = |mount: &Mount| place_of(&mount.point, &Subvolume::Default).is_some();
    let there = mounts.filter(of_source).find(serves_all)?;
    Some(match place_of(&there.point, &options.subvolume) {
        Some(place) => mount_again(&there, (point, &place), options, flags),
        None => fail(format!("{}: there is no such subvolume", source.display())),
    })
}

/// Where a subvolume is, by the server of a mount.
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

/// Whether the server has the volume open for reading alone.
fn is_read_only(there: &Mount) -> Result<bool, Failure> {
    let in_effect = Facts::at(&there.point)?.options.unwrap_or_default();
    Ok(in_effect.split(',').next() == Some("ro"))
}

/// Errors where the server has the volume open for reading alone.
fn check_writable(there: &Mount) -> Done {
    if !is_read_only(there)? {
        return Ok(());
    }
    fail(format!(
        "{}: the volume was mounted with -o ro at {} and is open for reading only; unmount it \
         there first",
        there.source.display(),
        there.point.display()
    ))
}

fn mount_again(
    there: &Mount,
    (point, place): (&Path, &Path),
    options: &MountOptions,
    flags: MountFlags,
) -> Done {
    if options.access == Access::ReadWrite {
        check_writable(there)?;
    }
    let is_block = there.kind.starts_with("fuseblk");
    let device = match is_block {
        true => rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .context(DEVICE)?,
        false => connection_of(&there.point)?,
    };
    let mut data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other",
        device.as_raw_fd()
    );
    if is_block {
        data.push_str(",blksize=4096");
    }
    let data = std::ffi::CString::new(data).context("mount options")?;
    // Whether it can be written is the file system's, whether through this mount
    // its own.
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
    .context(point.display())?;
    if Mount::of_path(point).is_none_or(|made| made.device != there.device) {
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
        return fail(format!(
            "{}: what answered is not the server of this volume",
            there.source.display()
        ));
    }
    let done = narrow(point, place).and_then(|()| {
        let flags = flags | MountFlags::BIND;
        rustix::mount::mount_remount(point, flags, "").context(point.display())
    });
    if done.is_err() {
        // What could not be finished goes.
        let _ = rustix::mount::unmount(point, UnmountFlags::DETACH);
    }
    done
}

/// The process that serves a mount.
fn server_of(point: &Path) -> Option<Pid> {
    let name = crate::service::server_of(point)?;
    let address = SocketAddr::from_abstract_name(name).ok()?;
    let server = UnixStream::connect_addr(&address).ok()?;
    let peer = socket_peercred(&server).ok()?;
    // Anybody may listen where root's server does not.
    peer.uid.is_root().then_some(peer.pid)
}

/// The descriptor by which the server of a mount is connected to the kernel.
fn connection_of(point: &Path) -> Result<OwnedFd, Failure> {
    let Some(server) = server_of(point) else {
        return fail(format!(
            "{}: its server cannot be reached from here",
            point.display()
        ));
    };
    let process = pidfd_open(server, PidfdFlags::empty()).context("the server")?;
    let directory = format!("/proc/{}/fd", server.as_raw_nonzero());
    for entry in std::fs::read_dir(&directory).context("the server")? {
        let entry = entry.context("the server")?;
        let is_device = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.as_os_str().as_bytes() == DEVICE.as_bytes());
        let number = entry.file_name();
        let number = number.to_str().and_then(|text| text.parse().ok());
        if let (true, Some(number)) = (is_device, number) {
            return pidfd_getfd(&process, number, PidfdGetfdFlags::empty())
                .context("the server's connection");
        }
    }
    fail("the server has no connection to the kernel")
}

/// Makes all durable that was written to the volume mounted at `point`, also
/// what the kernel's cache has.
pub fn save(point: &Path) -> Done {
    let root = std::fs::File::open(point).context(point.display())?;
    rustix::fs::syncfs(&root).context(point.display())?;
    butterfs_kernel::sync(root.as_fd()).context(point.display())
}

/// Flags that a mount has now.
fn flags_of(point: &Path) -> Result<MountFlags, Failure> {
    let now = rustix::fs::statvfs(point).context(point.display())?.f_flag;
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

/// Changes the flags of a mount that `words` name; the others, and the volume's
/// options, stay as they are.
pub fn remount(point: &Path, words: &[&str]) -> Done {
    let point = point.canonicalize().context(point.display())?;
    let mount = Mount::of_path(&point).filter(|mount| mount.point == point && mount.is_ours());
    let Some(mount) = mount else {
        return fail(format!(
            "{}: nothing of ButterFS is mounted here",
            point.display()
        ));
    };
    let mut wanted = butterfs_fuse::mount::MountOptions {
        flags: flags_of(&point)?,
        ..butterfs_fuse::mount::MountOptions::default()
    };
    for word in words {
        if !wanted.apply_flag(word) {
            note!("butterfs: {word} is an option of the volume, which stays as it was mounted");
        }
    }
    let flags = wanted.flags;
    if words.contains(&"rw") {
        check_writable(&mount)?;
    }
    rustix::mount::mount_remount(&point, flags | MountFlags::BIND, "").context(point.display())?;
    if flags.contains(MountFlags::RDONLY) {
        save(&point)?;
    }
    Ok(())
}
