//! The library's view of an unmounted volume.

use butterfs_device::{Access, FileDevice};
use butterfs_format::{InodeId, TreeId};
use butterfs_fs::error::FsError;
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::tree_view::{FileKind, Named, Stat, Time, TreeView, Xattr};
use std::path::Path;
use std::sync::Arc;

/// A volume, seen from its top-level subvolume.
pub struct LibraryTree(pub Filesystem);

impl LibraryTree {
    /// Opens the image.
    pub fn open(image: &Path, access: Access, options: Options) -> Self {
        let device = FileDevice::open(image, access).unwrap();
        let store = Store::open(Arc::new(device), &OpenOptions::default()).unwrap();
        Self(Filesystem::new(Arc::new(store), TreeId::FS, options))
    }
}

impl TreeView for LibraryTree {
    type Node = InodeId;
    type Error = FsError;

    fn root(&self) -> Result<InodeId, FsError> {
        Ok(self.0.root())
    }

    fn read_dir(&self, node: &InodeId) -> Result<Vec<Named<InodeId>>, FsError> {
        let mut out = Vec::new();
        self.0.read_dir(*node, 0, &mut |entry| {
            if !matches!(&entry.name[..], b"." | b"..") {
                out.push((entry.name, entry.target.inode));
            }
            true
        })?;
        Ok(out)
    }

    fn stat(&self, node: &InodeId) -> Result<Stat, FsError> {
        let attributes = self.0.attributes(*node)?;
        Ok(Stat {
            inode: attributes.id.number.get(),
            kind: match attributes.mode >> 12 {
                0o04 => FileKind::Directory,
                0o12 => FileKind::Symlink,
                0o01 => FileKind::Fifo,
                0o14 => FileKind::Socket,
                0o02 => FileKind::CharDevice,
                0o06 => FileKind::BlockDevice,
                _ => FileKind::Regular,
            },
            mode: attributes.mode & 0o7777,
            uid: attributes.uid,
            gid: attributes.gid,
            // As the disk has it.
            device: (
                (attributes.rdev >> 20) as u32,
                (attributes.rdev & 0xf_ffff) as u32,
            ),
            links: attributes.nlink.into(),
            size: attributes.size,
            modified: Some(Time {
                seconds: attributes.mtime.seconds,
                nanoseconds: attributes.mtime.nanoseconds,
            }),
        })
    }

    fn read(&self, node: &InodeId, offset: u64, buffer: &mut [u8]) -> Result<usize, FsError> {
        self.0.read(&*self.0.inode(*node)?, offset, buffer)
    }

    fn read_link(&self, node: &InodeId) -> Result<Vec<u8>, FsError> {
        self.0.read_link(*node)
    }

    fn xattrs(&self, node: &InodeId) -> Result<Vec<Xattr>, FsError> {
        let names = self.0.list_xattrs(*node)?;
        let with_value = |name: Vec<u8>| Ok((name.clone(), self.0.get_xattr(*node, &name)?));
        names.into_iter().map(with_value).collect()
    }
}
