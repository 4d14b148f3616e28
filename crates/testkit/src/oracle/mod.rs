//! A model of a file system in memory: what each operation must answer and
//! leave behind.
//!
//! Owns the inodes and the rules of the Linux VFS and Btrfs for a caller with
//! all rights and an empty umask. It knows only those times that were set. The
//! kernel's Btrfs judges the model (`tests/kernel.rs`) before the model judges
//! anything else.

mod acl;
mod inode;
mod names;
mod resolve;
mod sparse;
mod subvolumes;
mod transfer;
mod view;
mod xattr;

pub use acl::encode_acl;
pub use subvolumes::SubvolumePath;
pub use view::OracleError;

use crate::op::{EndOfFile, Op, OpPath, Span};
use crate::tree_view::FileKind;
use inode::{Body, Inode};
use resolve::Last;
use rustix::io::Errno;
use std::collections::BTreeMap;

/// Key of an inode in the model.
type Id = u64;

/// Bytes of a node before its items, and of an item besides its data.
const NODE_HEADER: usize = 101;
const ITEM_HEADER: usize = 25;

/// The root directory.
const ROOT: Id = 1;

/// The model.
#[derive(Clone, Debug)]
pub struct Oracle {
    inodes: BTreeMap<Id, Inode>,
    /// By their root directories; the root itself is not among them.
    subvolumes: BTreeMap<Id, subvolumes::Subvolume>,
    next: Id,
    /// Greatest data of an item.
    item_max: usize,
}

impl Default for Oracle {
    fn default() -> Self {
        Self::new()
    }
}

impl Oracle {
    /// An empty tree as mkfs.btrfs makes it.
    #[must_use]
    pub fn new() -> Self {
        Self::with_node_size(16384)
    }

    /// An empty tree of nodes of this size, which bounds extended attributes
    /// and symbolic links.
    #[must_use]
    pub fn with_node_size(bytes: u32) -> Self {
        let root = Inode::new(Body::directory(ROOT), 0o755);
        Self {
            inodes: [(ROOT, root)].into(),
            subvolumes: BTreeMap::new(),
            next: ROOT + 1,
            item_max: bytes as usize - NODE_HEADER - ITEM_HEADER,
        }
    }

    /// Does `op`.
    ///
    /// # Errors
    /// The error of the system call; nothing is changed then.
    pub fn apply(&mut self, op: &Op) -> Result<(), Errno> {
        match op {
            Op::Create { path, mode } => self.make(path, Body::file(), *mode),
            Op::Mkdir { path, mode } => self.make(path, Body::directory(ROOT), mode & 0o777),
            Op::Symlink { path, target } => self.symlink(path, &target.0),
            Op::Mknod { path, kind, mode } => self.make(path, Body::of_node(*kind), *mode),
            Op::LinkTmpfile {
                directory,
                path,
                mode,
                length,
                seed,
            } => self.link_tmpfile(directory, path, *mode, (*length, *seed)),
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, how } => self.rename(from, to, *how),
            Op::Write { path, span, seed } => {
                self.write(path, Some(span.offset), span.length, *seed)
            }
            Op::Append { path, length, seed } => self.write(path, None, *length, *seed),
            Op::Truncate { path, size } => {
                let inode = self.writable(path)?;
                inode.content_mut()?.resize(*size);
                inode.modified = None;
                Ok(())
            }
            Op::PunchHole { path, span } => self.clear(path, *span, EndOfFile::Keep),
            Op::ZeroRange { path, span, end } => self.clear(path, *span, *end),
            Op::Allocate { path, span, end } => {
                let inode = self.writable(path)?;
                check_span(*span)?;
                inode.content_mut()?.extend(span_end(*span, *end));
                inode.modified = None;
                Ok(())
            }
            Op::Clone {
                from,
                span,
                to,
                to_offset,
            } => self.clone_range(from, *span, to, *to_offset),
            Op::Copy {
                from,
                span,
                to,
                to_offset,
            } => self.copy_range(from, *span, to, *to_offset),
            Op::SetXattr {
                path,
                name,
                value,
                how,
            } => self.set_xattr(path, &name.0, &value.0, *how),
            Op::RemoveXattr { path, name } => self.remove_xattr(path, &name.0),
            Op::Chmod { path, mode } => {
                let id = self.find(path, Last::Follow)?;
                self.inode_mut(id).chmod(*mode);
                Ok(())
            }
            Op::Chown { path, uid, gid } => {
                let id = self.find(path, Last::Itself)?;
                self.inode_mut(id).chown(*uid, *gid);
                Ok(())
            }
            Op::SetModified { path, time } => {
                let id = self.find(path, Last::Itself)?;
                self.inode_mut(id).modified = Some(*time);
                Ok(())
            }
            Op::Fsync { path } => self.fsync(path),
            Op::Sync | Op::Remount => Ok(()),
            Op::Subvolume { path, mode } => self.make_subvolume(path, *mode),
            Op::Snapshot { from, to, access } => self.snapshot(from, to, *access),
            Op::DeleteSubvolume { path } => self.delete_subvolume(path),
            Op::SendReceive { from, parent, into } => {
                self.send_receive(from, parent.as_ref(), into)
            }
        }
    }

    /// All paths but the root's, with what each of them names.
    #[must_use]
    pub fn paths(&self) -> BTreeMap<Vec<u8>, FileKind> {
        let mut out = BTreeMap::new();
        let mut waiting = vec![(Vec::new(), ROOT)];
        while let Some((path, id)) = waiting.pop() {
            let Body::Directory { entries, .. } = &self.inode(id).body else {
                continue;
            };
            for (name, child) in entries {
                let mut below = path.clone();
                if !below.is_empty() {
                    below.push(b'/');
                }
                below.extend_from_slice(name);
                out.insert(below.clone(), self.inode(*child).body.kind());
                waiting.push((below, *child));
            }
        }
        out
    }

    /// Size of the regular file that `path` leads to.
    #[must_use]
    pub fn size_of(&self, path: &OpPath) -> Option<u64> {
        let id = self.find(path, Last::Follow).ok()?;
        self.inode(id).content().ok().map(|content| content.size())
    }

    fn inode(&self, id: Id) -> &Inode {
        &self.inodes[&id]
    }

    fn inode_mut(&mut self, id: Id) -> &mut Inode {
        self.inodes.get_mut(&id).expect("names lead to inodes")
    }

    /// The file that is opened when `path` is opened for writing.
    fn writable(&mut self, path: &OpPath) -> Result<&mut Inode, Errno> {
        let id = self.open_for_writing(path)?;
        Ok(self.inode_mut(id))
    }

    fn open_for_writing(&self, path: &OpPath) -> Result<Id, Errno> {
        let id = self.find(path, Last::Follow)?;
        match self.inode(id).body {
            Body::File(_) => self.check_access(id).map(|()| id),
            Body::Directory { .. } => Err(Errno::ISDIR),
            // A pipe that nobody reads, a socket, a device without driver.
            _ => Err(Errno::NXIO),
        }
    }

    fn open_for_reading(&self, path: &OpPath) -> Result<Id, Errno> {
        let id = self.find(path, Last::Follow)?;
        match self.inode(id).body {
            Body::File(_) | Body::Directory { .. } | Body::Fifo => Ok(id),
            _ => Err(Errno::NXIO),
        }
    }

    fn fsync(&self, path: &OpPath) -> Result<(), Errno> {
        let id = self.open_for_reading(path)?;
        match self.inode(id).body {
            Body::Fifo => Err(Errno::INVAL),
            _ => Ok(()),
        }
    }

    fn write(
        &mut self,
        path: &OpPath,
        offset: Option<u64>,
        length: u64,
        seed: u64,
    ) -> Result<(), Errno> {
        let inode = self.writable(path)?;
        if length > 0 {
            let data = crate::content::content(seed, length as usize);
            let content = inode.content_mut()?;
            content.write(offset.unwrap_or(content.size()), &data);
            inode.modified = None;
        }
        Ok(())
    }

    fn clear(&mut self, path: &OpPath, span: Span, end: EndOfFile) -> Result<(), Errno> {
        let inode = self.writable(path)?;
        check_span(span)?;
        let content = inode.content_mut()?;
        content.clear(span.offset, span.offset + span.length);
        content.extend(span_end(span, end));
        inode.modified = None;
        Ok(())
    }
}

fn check_span(span: Span) -> Result<(), Errno> {
    if span.length == 0 {
        return Err(Errno::INVAL);
    }
    Ok(())
}

/// The least size of a file after an allocation.
fn span_end(span: Span, end: EndOfFile) -> u64 {
    match end {
        EndOfFile::Extend => span.offset + span.length,
        EndOfFile::Keep => 0,
    }
}
