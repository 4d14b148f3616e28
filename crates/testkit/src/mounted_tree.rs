//! A mounted directory as a [`TreeView`].

use crate::tree_view::{FileKind, Stat, Time, TreeView};
use rustix::fs::{CWD, lgetxattr, llistxattr};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What lies below a directory of a mounted file system. Mounts below it are
/// walked as well.
#[derive(Clone, Debug)]
pub struct MountedTree {
    root: PathBuf,
}

impl MountedTree {
    /// The tree below `root`.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }
}

fn kind_of(file_type: std::fs::FileType) -> FileKind {
    if file_type.is_dir() {
        FileKind::Directory
    } else if file_type.is_symlink() {
        FileKind::Symlink
    } else if file_type.is_fifo() {
        FileKind::Fifo
    } else if file_type.is_socket() {
        FileKind::Socket
    } else if file_type.is_char_device() {
        FileKind::CharDevice
    } else if file_type.is_block_device() {
        FileKind::BlockDevice
    } else {
        FileKind::Regular
    }
}

/// Greatest list of names and greatest value of extended attributes.
const XATTR_MAX: usize = 64 << 10;

impl TreeView for MountedTree {
    type Node = PathBuf;
    type Error = io::Error;

    fn root(&self) -> io::Result<PathBuf> {
        Ok(self.root.clone())
    }

    fn read_dir(&self, node: &PathBuf) -> io::Result<Vec<(Vec<u8>, PathBuf)>> {
        std::fs::read_dir(node)?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name().into_vec(), entry.path()))
            })
            .collect()
    }

    fn stat(&self, node: &PathBuf) -> io::Result<Stat> {
        let meta = std::fs::symlink_metadata(node)?;
        let device = rustix::fs::major(meta.rdev());
        Ok(Stat {
            // Each subvolume numbers its own inodes.
            inode: meta.ino().wrapping_add(meta.dev() << 40),
            kind: kind_of(meta.file_type()),
            mode: meta.mode() & 0o7777,
            uid: meta.uid(),
            gid: meta.gid(),
            device: (device, rustix::fs::minor(meta.rdev())),
            links: meta.nlink(),
            size: meta.size(),
            modified: Some(Time {
                seconds: meta.mtime(),
                nanoseconds: meta.mtime_nsec() as u32,
            }),
        })
    }

    fn read(&self, node: &PathBuf, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        std::fs::File::open(node)?.read_at(buffer, offset)
    }

    fn read_link(&self, node: &PathBuf) -> io::Result<Vec<u8>> {
        let target = rustix::fs::readlinkat(CWD, node, Vec::new())?;
        Ok(target.into_bytes())
    }

    fn xattrs(&self, node: &PathBuf) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut names = vec![0; XATTR_MAX];
        let length = llistxattr(node, &mut names[..])?;
        let mut value = vec![0; XATTR_MAX];
        names[..length]
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| {
                let length = lgetxattr(node, OsStr::from_bytes(name), &mut value[..])?;
                Ok((name.to_vec(), value[..length].to_vec()))
            })
            .collect()
    }
}
