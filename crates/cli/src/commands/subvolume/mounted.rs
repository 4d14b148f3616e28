//! Subvolumes of a mounted volume, by searches of its tree of roots: ButterFS
//! or the kernel's Btrfs. Only for root.

use super::site::{open_directory, said};
use crate::fail::{Done, Failure, fail};
use butterfs::TreeId;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{ItemType, Key};
use butterfs_kernel::{self as kernel, FoundItem};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Greatest depth of nested subvolumes; more means a loop.
const DEPTH_MAX: usize = 4096;

/// A directory below a mountpoint.
#[derive(Debug)]
pub struct MountedRoots {
    path: PathBuf,
    directory: File,
}

impl MountedRoots {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            path: path.to_owned(),
            directory: open_directory(path)?,
        })
    }

    /// Brings changes into the trees: a commit.
    pub fn commit(&self) -> Done {
        let done = kernel::sync(self.directory.as_fd());
        done.map_err(|error| said(&self.path.display(), error))
    }

    /// Items of the tree of roots.
    fn items(&self, range: (Key, Key)) -> Result<Vec<FoundItem>, Failure> {
        use rustix::io::Errno;
        match kernel::search_tree(self.directory.as_fd(), TreeId::ROOT, range) {
            Err(Errno::PERM) => fail(format!(
                "{}: not permitted: root, or who runs the mount, may look at its subvolumes",
                self.path.display()
            )),
            found => found.map_err(|error| said(&self.path.display(), error)),
        }
    }

    /// The subvolume that is mounted if none is named.
    pub fn default(&self) -> Result<TreeId, Failure> {
        let name = b"default";
        let key = Key::new(
            TreeId::ROOT_TREE_DIR.get(),
            ItemType::DIR_ITEM,
            name_hash(name),
        );
        for (_, data) in self.items((key, key))? {
            for entry in DirEntries::new(&data) {
                let entry = entry?;
                if entry.name == name {
                    return Ok(TreeId(entry.location.objectid));
                }
            }
        }
        Ok(TreeId::FS)
    }

    /// Subvolumes that exist or are being deleted, with their root items.
    pub fn all(&self) -> Result<Vec<(TreeId, RootItem)>, Failure> {
        let first = Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, 0);
        let last = Key::new(TreeId::LAST_SUBVOLUME.get(), ItemType::ROOT_ITEM, u64::MAX);
        let mut all = Vec::new();
        for (key, data) in self.items((first, last))? {
            let tree = TreeId(key.objectid);
            if key.item_type == ItemType::ROOT_ITEM && tree.is_subvolume() {
                all.push((tree, RootItem::parse(&data)?));
            }
        }
        Ok(all)
    }

    /// The subvolume that holds `tree`, and the path of `tree` from the top
    /// level; `None` if no subvolume holds it.
    pub fn place(&self, tree: TreeId) -> Result<Option<(TreeId, Vec<u8>)>, Failure> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let (mut at, mut parent) = (tree, None);
        while at != TreeId::FS {
            let first = Key::new(at.get(), ItemType::ROOT_BACKREF, 0);
            let last = Key::new(at.get(), ItemType::ROOT_BACKREF, u64::MAX);
            let found = self.items((first, last))?;
            let Some((key, data)) = found.first() else {
                return Ok(None);
            };
            let reference = RootRef::parse(data)?;
            let above = TreeId(key.offset);
            let directory =
                kernel::directory_path(self.directory.as_fd(), above, reference.directory)
                    .map_err(|error| said(&self.path.display(), error))?;
            names.push([&directory[..], reference.name].concat());
            parent = parent.or(Some(above));
            at = above;
            if names.len() > DEPTH_MAX {
                return Ok(None);
            }
        }
        names.reverse();
        Ok(parent.map(|parent| (parent, names.join(&b'/'))))
    }
}
