//! Where work on files begins: descriptors that the asking process sent.
//!
//! Owns what a descriptor proves: its sender could reach what it stands for.
//! Which inode of the volume that is, only the kernel says. Work stays below it,
//! and must be what a program could do there through the mount: nothing else may
//! be mounted below it, since programs see that instead.

use crate::error::ServerError;
use crate::mounts::Mount;
use crate::requests::Server;
use butterfs::{Filesystem, FsError, InodeId};
use rustix::fs::{AtFlags, StatVfsMountFlags, StatxFlags, fstatvfs, statx};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// Where a command on files begins.
#[derive(Debug)]
pub(super) struct Starts {
    /// The inodes, in the order of the descriptors.
    pub(super) inodes: Vec<InodeId>,
    /// One of the mounts through which they were reached is read-only.
    pub(super) is_read_only: bool,
}

impl Starts {
    /// What descriptors of a process stand for.
    pub(super) fn of(
        descriptors: &[OwnedFd],
        server: &Server,
        process: u32,
    ) -> Result<Self, ServerError> {
        let mut starts = Self {
            inodes: Vec::new(),
            is_read_only: false,
        };
        let theirs = Mount::seen_by(&process.to_string());
        for descriptor in descriptors {
            // The attributes that the kernel has. It may be the descriptor of
            // another file system, whose server never answers.
            let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
            let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let found = statx(descriptor, "", how, wanted)?;
            let device = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor);
            let is_known = StatxFlags::from_bits_retain(found.stx_mask).contains(wanted);
            if !is_known || !server.is_mounted_as(&device) {
                return Err(ServerError::OtherMount);
            }
            let inode = server.inode_shown_as(found.stx_ino);
            verify_nothing_below(server, inode, (found.stx_mnt_id, &theirs))?;
            // Another server's mount might never answer this. This one's does.
            let flags = fstatvfs(descriptor)?.f_flag;
            starts.is_read_only |= flags.contains(StatVfsMountFlags::RDONLY);
            starts.inodes.push(inode);
        }
        Ok(starts)
    }
}

/// Errors if something is mounted below an inode, for a process that has these
/// mounts, where it reaches the inode through the mount of this number.
fn verify_nothing_below(
    server: &Server,
    inode: InodeId,
    (number, mounts): (u64, &[Mount]),
) -> Result<(), ServerError> {
    let mount = mounts.iter().find(|mount| mount.id == number);
    let mount = mount.ok_or(ServerError::OtherMount)?;
    let mut above = mounts
        .iter()
        .filter(|other| other.parent == number)
        .peekable();
    let files = server.files();
    if above.peek().is_none() || !files.attributes(inode)?.is_directory() {
        return Ok(());
    }
    let start = path_from_root(files, inode)?;
    let is_below = |other: &Mount| {
        let below = other.point.strip_prefix(&mount.point);
        below.is_ok_and(|below| mount.root.join(below).starts_with(&start))
    };
    match above.any(is_below) {
        true => Err(ServerError::MountedBelow),
        false => Ok(()),
    }
}

/// Where a directory is, from the root of what is served.
fn path_from_root(files: &Filesystem, dir: InodeId) -> Result<PathBuf, FsError> {
    /// Greatest depth of nested subvolumes, as elsewhere.
    const DEPTH_MAX: usize = 4096;
    let mut names = Vec::new();
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        names.push(files.path_of(at)?.ok_or(FsError::NotFound)?);
        if at.tree == files.root().tree {
            let mut path = PathBuf::from("/");
            path.extend(names.into_iter().rev().map(OsString::from_vec));
            return Ok(path);
        }
        let (above, name) = files.subvolume_place(at.tree)?;
        names.push(name);
        at = above;
    }
    Err(FsError::LinkLoop)
}
