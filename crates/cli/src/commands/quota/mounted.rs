//! Quotas of a mounted volume, by requests to its file system: ButterFS or the
//! kernel's Btrfs.

use crate::commands::subvolume::site::open_directory;
use crate::fail::{Failure, fail};
use butterfs::quota::{GroupId, QuotaItems};
use butterfs::{InodeNumber, TreeId};
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::{ItemType, Key};
use butterfs_kernel::{self as kernel, FoundItem};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// A directory below a mountpoint.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    directory: File,
}

impl Mounted {
    /// Opens it.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            path: path.to_owned(),
            directory: open_directory(path)?,
        })
    }

    /// Asks the file system. `what` names the subject of an error.
    pub fn ask<T>(
        &self,
        what: &str,
        request: impl FnOnce(BorrowedFd<'_>) -> Result<T, Errno>,
    ) -> Result<T, Failure> {
        request(self.directory.as_fd()).map_err(|error| self.said(what, error))
    }

    fn said(&self, what: &str, error: Errno) -> Failure {
        let path = self.path.display();
        let reason = match error {
            Errno::NOTTY | Errno::OPNOTSUPP => {
                "is on no Btrfs; name a path on a mounted one, or the file or device of a volume"
                    .to_owned()
            }
            Errno::NOTCONN => "quotas are not enabled (`butterfs quota enable` does it), or the server of the mount is gone (unmount it, and mount the volume again)".to_owned(),
            Errno::PERM => {
                "not permitted: root, or who runs the mount, may do it (and the mount must be \
                 allowed to read this program's memory)"
                    .to_owned()
            }
            Errno::NOENT => format!("{what}: there is no such group or relation"),
            Errno::EXIST => format!("{what}: exists already"),
            Errno::BUSY => format!(
                "{what}: it has members, its subvolume exists (or, to create the group, does \
                 not), or others reach what that allocated"
            ),
            Errno::INVAL => format!("{what}: not possible in this mode, or wrong levels"),
            Errno::INPROGRESS => "a count is under way; wait for it".to_owned(),
            other => format!("{what}: {}", std::io::Error::from(other)),
        };
        Failure(format!("{path}: {reason}"))
    }

    fn items(&self, tree: TreeId, range: (Key, Key)) -> Result<Option<Vec<FoundItem>>, Failure> {
        match kernel::search_tree(self.directory.as_fd(), tree, range) {
            Ok(items) => Ok(Some(items)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(self.said("reading trees", error)),
        }
    }

    /// Groups and status; `None` if quotas are off.
    pub fn quotas(&self) -> Result<Option<QuotaItems>, Failure> {
        let Some(items) = self.items(TreeId::QUOTA, (Key::MIN, Key::MAX))? else {
            return Ok(None);
        };
        let mut quotas = QuotaItems::default();
        for (key, data) in items {
            let added = quotas.add(key, &data);
            added.map_err(|error| Failure(format!("{}: {error}", self.path.display())))?;
        }
        Ok(quotas.status.is_some().then_some(quotas))
    }

    /// Paths of all subvolumes, from the top level. The path of the top level
    /// is empty.
    pub fn paths(&self) -> Result<BTreeMap<GroupId, Vec<u8>>, Failure> {
        let first = Key::new(TreeId::FIRST_SUBVOLUME.get(), ItemType::ROOT_BACKREF, 0);
        let last = TreeId::LAST_SUBVOLUME.get();
        let last = Key::new(last, ItemType::ROOT_BACKREF, u64::MAX);
        let items = self.items(TreeId::ROOT, (first, last))?.unwrap_or_default();
        let mut above = BTreeMap::new();
        for (key, data) in items {
            if key.item_type != ItemType::ROOT_BACKREF {
                continue;
            }
            let Ok(place) = RootRef::parse(&data) else {
                continue;
            };
            let parent = TreeId(key.offset);
            let mut name = self.directory(parent, place.directory)?;
            name.extend_from_slice(place.name);
            above.insert(TreeId(key.objectid), (parent, name));
        }
        let mut paths = BTreeMap::from([(GroupId::of_tree(TreeId::FS), Vec::new())]);
        for tree in above.keys() {
            if let Some(path) = path_of(*tree, &above) {
                paths.insert(GroupId::of_tree(*tree), path);
            }
        }
        Ok(paths)
    }

    fn directory(&self, tree: TreeId, directory: InodeNumber) -> Result<Vec<u8>, Failure> {
        self.ask("paths of directories", |file| {
            kernel::directory_path(file, tree, directory)
        })
    }

    /// Counts all groups anew.
    pub fn rescan(&self) -> Result<(), Failure> {
        match kernel::start_rescan(self.directory.as_fd()) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(Errno::INVAL) => {
                return fail(format!(
                    "{}: simple quotas are always right: there is nothing to scan",
                    self.path.display()
                ));
            }
            Err(error) => return Err(self.said("counting", error)),
        }
        self.ask("counting", kernel::wait_for_rescan)
    }
}

/// Path of a subvolume by the names above it; `None` if they lead nowhere.
fn path_of(tree: TreeId, above: &BTreeMap<TreeId, (TreeId, Vec<u8>)>) -> Option<Vec<u8>> {
    let mut names = Vec::new();
    let mut at = tree;
    while at != TreeId::FS {
        let (parent, name) = above.get(&at)?;
        if names.len() > above.len() {
            return None;
        }
        names.push(name.as_slice());
        at = *parent;
    }
    names.reverse();
    Some(names.join(&b'/'))
}
