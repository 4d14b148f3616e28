//! The library as a tree to walk and to change.
#![allow(dead_code, unused_imports, reason = "each test uses a part")]

mod apply;
pub mod in_the_kernel;
pub mod several;

pub use apply::apply_to_library;

use butterfs::{
    Access, FileDevice, Filesystem, FsError, InodeId, MountOptions, OpenOptions, Options, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make};
use butterfs_format::ChecksumType;
use butterfs_testkit::tree_view::{FileKind, Named, Stat, Time, TreeView, Xattr};
use std::path::Path;
use std::sync::Arc;

/// A volume, seen from its top-level subvolume.
pub struct LibraryTree(pub Volume);

impl LibraryTree {
    /// Opens the image.
    pub fn open(image: &Path, access: Access, files: Options) -> Self {
        let mut options = OpenOptions {
            files,
            ..OpenOptions::default()
        };
        options.store.access = access;
        Self(Volume::open(image, options).unwrap())
    }

    /// Opens the image with mount options.
    pub fn mount(image: &Path, options: &str) -> Self {
        let options = MountOptions::parse(options).unwrap();
        Self(Volume::open(image, options.open_options()).unwrap())
    }

    /// Its files.
    pub fn files(&self) -> &Arc<Filesystem> {
        self.0.files()
    }
}

impl TreeView for LibraryTree {
    type Node = InodeId;
    type Error = FsError;

    fn root(&self) -> Result<InodeId, FsError> {
        Ok(self.files().root())
    }

    fn read_dir(&self, node: &InodeId) -> Result<Vec<Named<InodeId>>, FsError> {
        let mut out = Vec::new();
        self.files().read_dir(*node, 0, &mut |entry| {
            if !matches!(&entry.name[..], b"." | b"..") {
                out.push((entry.name, entry.target.inode));
            }
            true
        })?;
        Ok(out)
    }

    fn stat(&self, node: &InodeId) -> Result<Stat, FsError> {
        let attributes = self.files().attributes(*node)?;
        Ok(Stat {
            // Each subvolume numbers its own inodes.
            inode: attributes.id.number.get() + (attributes.id.tree.get() << 40),
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
        self.files()
            .read(&*self.files().inode(*node)?, offset, buffer)
    }

    fn read_link(&self, node: &InodeId) -> Result<Vec<u8>, FsError> {
        self.files().read_link(*node)
    }

    fn xattrs(&self, node: &InodeId) -> Result<Vec<Xattr>, FsError> {
        let names = self.files().list_xattrs(*node)?;
        let with_value = |name: Vec<u8>| Ok((name.clone(), self.files().get_xattr(*node, &name)?));
        names.into_iter().map(with_value).collect()
    }
}

/// Makes a volume in a new file. `choices` are features (`^` switches one
/// off), `csum=`, `data=` and `metadata=`, separated by commas.
pub fn mkfs(image: &Path, size: u64, node_size: u32, choices: &str) {
    let mut options = MkfsOptions {
        node_size,
        ..MkfsOptions::default()
    };
    let profile = |name: &str| match name {
        "dup" => ProfileChoice::Dup,
        "single" => ProfileChoice::Single,
        other => panic!("no profile: {other}"),
    };
    for choice in choices.split(',') {
        match choice.split_once('=') {
            Some(("csum", name)) => {
                options.checksum = ChecksumType::from_name(name).expect("a checksum");
            }
            Some(("data", name)) => options.data = Some(profile(name)),
            Some(("metadata", name)) => options.metadata = Some(profile(name)),
            _ => options.features.change(choice).expect("a feature"),
        }
    }
    let device = FileDevice::create(image, size).expect("the image can be created");
    make(&device, &options).expect("a volume is made");
}
