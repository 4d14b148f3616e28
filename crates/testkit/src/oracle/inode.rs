//! One inode of the model.

use super::sparse::Sparse;
use super::{Id, acl};
use crate::op::NodeKind;
use crate::tree_view::{FileKind, Time};
use rustix::io::Errno;
use std::collections::BTreeMap;

pub const SETUID: u32 = 0o4000;
pub const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// What an inode is made of.
#[derive(Clone, Debug)]
pub enum Body {
    File(Sparse),
    Directory {
        entries: BTreeMap<Vec<u8>, Id>,
        parent: Id,
    },
    Symlink(Vec<u8>),
    Fifo,
    Socket,
    CharDevice(u32, u32),
    BlockDevice(u32, u32),
}

impl Body {
    pub fn file() -> Self {
        Self::File(Sparse::default())
    }

    pub const fn directory(parent: Id) -> Self {
        Self::Directory {
            entries: BTreeMap::new(),
            parent,
        }
    }

    pub fn of_node(kind: NodeKind) -> Self {
        match kind {
            NodeKind::Regular => Self::file(),
            NodeKind::Fifo => Self::Fifo,
            NodeKind::Socket => Self::Socket,
            NodeKind::CharDevice(major, minor) => Self::CharDevice(major, minor),
            NodeKind::BlockDevice(major, minor) => Self::BlockDevice(major, minor),
        }
    }

    pub const fn kind(&self) -> FileKind {
        match self {
            Self::File(_) => FileKind::Regular,
            Self::Directory { .. } => FileKind::Directory,
            Self::Symlink(_) => FileKind::Symlink,
            Self::Fifo => FileKind::Fifo,
            Self::Socket => FileKind::Socket,
            Self::CharDevice(..) => FileKind::CharDevice,
            Self::BlockDevice(..) => FileKind::BlockDevice,
        }
    }
}

/// An inode.
#[derive(Clone, Debug)]
pub struct Inode {
    pub body: Body,
    /// Permissions with setuid, setgid and sticky.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Root directory of its subvolume.
    pub tree: Id,
    /// Names; a directory has one.
    pub links: u64,
    /// ACLs among them.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Known only when it was set.
    pub modified: Option<Time>,
}

impl Inode {
    pub const fn new(body: Body, mode: u32) -> Self {
        Self {
            body,
            mode,
            uid: 0,
            gid: 0,
            tree: super::ROOT,
            links: 1,
            xattrs: BTreeMap::new(),
            modified: None,
        }
    }

    pub const fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory { .. })
    }

    pub const fn is_symlink(&self) -> bool {
        matches!(self.body, Body::Symlink(_))
    }

    pub fn content(&self) -> Result<&Sparse, Errno> {
        match &self.body {
            Body::File(content) => Ok(content),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub fn content_mut(&mut self) -> Result<&mut Sparse, Errno> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Directory { .. } => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Btrfs counts each name twice: by name and by index.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File(content) => content.size(),
            Body::Directory { entries, .. } => {
                entries.keys().map(|name| 2 * name.len() as u64).sum()
            }
            Body::Symlink(target) => target.len() as u64,
            _ => 0,
        }
    }

    /// Changes the mode, and the access ACL with it.
    pub fn chmod(&mut self, mode: u32) {
        self.mode = mode;
        if let Some(value) = self.xattrs.get_mut(acl::ACCESS) {
            *value = acl::with_mode(value, mode);
        }
    }

    /// A new owner must not get the old owner's rights by executing the file,
    /// even if nothing changes.
    pub fn chown(&mut self, uid: Option<u32>, gid: Option<u32>) {
        self.uid = uid.unwrap_or(self.uid);
        self.gid = gid.unwrap_or(self.gid);
        if !self.is_directory() {
            self.mode &= !SETUID;
            if self.mode & GROUP_EXECUTE != 0 {
                self.mode &= !SETGID;
            }
        }
    }
}
