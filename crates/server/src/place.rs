//! Where subvolumes are, and mounts that show one of them.

use crate::error::{About, ServerError};
use butterfs::{Filesystem, FsError, TreeId};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::{MoveMountFlags, OpenTreeFlags};
use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Inode number of a subvolume's root, and the bits of a number.
const ROOT: u64 = 256;
const NUMBER: u64 = (1 << 40) - 1;

/// Where a subvolume is, from the top level.
pub(crate) fn path_from_top(files: &Filesystem, tree: TreeId) -> Result<PathBuf, FsError> {
    /// Greatest depth of nested subvolumes, as elsewhere.
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

/// Makes the mount at `point` show only its directory at `path`.
pub(crate) fn narrow(point: &Path, path: &Path) -> Result<(), ServerError> {
    let below = path.strip_prefix("/").unwrap_or(path);
    if below.as_os_str().is_empty() {
        return Ok(());
    }
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let top = rustix::fs::open(point, directory, Mode::empty()).at(point)?;
    // Users choose the names. None of them leads out of this mount.
    let inside = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let wanted = rustix::fs::openat2(&top, below, directory, Mode::empty(), inside);
    let wanted = wanted.at(path)?;
    let inode = rustix::fs::fstat(&wanted).at(path)?.st_ino;
    if inode & NUMBER != ROOT {
        return Err(ServerError::NoSubvolumeRoot(path.to_owned()));
    }
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = rustix::mount::open_tree(&wanted, "", flags).at(path)?;
    butterfs_fuse::mount::detach(top.as_fd()).at(point)?;
    // What is open keeps the mount.
    drop((top, wanted));
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    rustix::mount::move_mount(&tree, "", CWD, point, flags).at(point)
}
