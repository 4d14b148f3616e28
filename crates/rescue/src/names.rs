//! The directories and names of a subvolume.
//!
//! Names of files are where the files are: an inode lists its own names. This
//! keeps what that does not give: the directories, names of inodes that lost
//! their own list, and names whose inode is lost.
//!
//! Memory: about 100 bytes for each directory and its extended attributes, and as much for each name that
//! damage parted from its inode.

use crate::inodes::{InodeKind, each_inode, is_inode};
use crate::nodes::Nodes;
use crate::plan::{Plan, Seen};
use crate::ranges::NumberSet;
use butterfs_format::item::dir::{DirEntries, FileType};
use butterfs_format::item::inode::InodeItem;
use butterfs_format::{InodeNumber, ItemType, TreeId};
use rustc_hash::FxHashMap;
use std::convert::Infallible;

/// Directories above one another, at most.
const DEPTH_MAX: usize = 4096;
/// Where files are put whose directory is not known.
pub(crate) const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Where a directory is, and its attributes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Directory {
    pub(crate) name: Option<(InodeNumber, Vec<u8>)>,
    pub(crate) item: Option<Box<InodeItem>>,
    /// Extended attributes.
    pub(crate) xattrs: Box<[(Vec<u8>, Vec<u8>)]>,
}

/// A name whose inode is lost.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LostName {
    pub(crate) parent: InodeNumber,
    pub(crate) name: Vec<u8>,
    pub(crate) inode: InodeNumber,
}

/// The names of a subvolume.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    pub(crate) directories: FxHashMap<InodeNumber, Directory>,
    /// Names of inodes that do not list any themselves.
    pub(crate) others: FxHashMap<InodeNumber, Vec<(InodeNumber, Vec<u8>)>>,
    pub(crate) lost: Vec<LostName>,
    /// Directory and name of the subvolumes in it.
    pub(crate) subvolumes: FxHashMap<TreeId, (InodeNumber, Vec<u8>)>,
    /// Regular files and their bytes.
    pub(crate) files: u64,
    pub(crate) bytes: u64,
}

impl Names {
    /// Reads them all.
    pub(crate) fn load(plan: &Plan, nodes: &Nodes) -> Self {
        let mut names = Self::default();
        let mut seen = NumberSet::default();
        let done: Result<(), Infallible> = each_inode(plan, nodes, |inode| {
            if inode.item.is_none() {
                if inode.names.is_empty() && !inode.extents.is_empty() {
                    names.others.entry(inode.number).or_default();
                }
                if !inode.extents.is_empty() {
                    seen.insert(inode.number.get());
                }
                return Ok(());
            }
            seen.insert(inode.number.get());
            let kind = inode.kind();
            if kind == InodeKind::Directory {
                let directory = Directory {
                    name: inode.names.into_iter().next(),
                    item: inode.item.map(Box::new),
                    xattrs: inode.xattrs.into_boxed_slice(),
                };
                names.directories.insert(inode.number, directory);
                return Ok(());
            }
            if inode.names.is_empty() {
                names.others.entry(inode.number).or_default();
            }
            if let Some(item) = inode.item.filter(|_| kind == InodeKind::File) {
                names.files = names.files.saturating_add(1);
                names.bytes = names.bytes.saturating_add(item.size);
            }
            Ok(())
        });
        let Ok(()) = done;
        names.take_entries(plan, nodes, &seen);
        names
    }

    /// Takes from directory entries what inodes do not say.
    fn take_entries(&mut self, plan: &Plan, nodes: &Nodes, seen: &NumberSet) {
        let done: Result<(), Infallible> = plan.each(nodes, |item| {
            let Seen::Item { key, data, .. } = item else {
                return Ok(());
            };
            let is_entry = [ItemType::DIR_INDEX, ItemType::DIR_ITEM].contains(&key.item_type);
            if !is_entry || !is_inode(key.objectid) {
                return Ok(());
            }
            let parent = InodeNumber(key.objectid);
            for entry in DirEntries::new(data).flatten() {
                let target = entry.location;
                let name = (parent, entry.name.to_vec());
                if target.item_type == ItemType::ROOT_ITEM {
                    let tree = TreeId(target.objectid);
                    self.subvolumes.entry(tree).or_insert(name);
                    continue;
                }
                let inode = InodeNumber(target.objectid);
                if target.item_type != ItemType::INODE_ITEM || !is_inode(inode.get()) {
                    continue;
                }
                if entry.kind == FileType::Directory {
                    let directory = self.directories.entry(inode).or_default();
                    directory.name.get_or_insert(name);
                } else if let Some(known) = self.others.get_mut(&inode) {
                    if !known.contains(&name) {
                        known.push(name);
                    }
                } else if !seen.contains(inode.get()) {
                    self.lost.push(LostName {
                        parent,
                        name: name.1,
                        inode,
                    });
                }
            }
            Ok(())
        });
        let Ok(()) = done;
        self.lost.sort_unstable();
        self.lost.dedup();
    }

    /// Names from the subvolume's root to a directory. If a directory on the
    /// way is lost, they begin in [`LOST_AND_FOUND`].
    pub(crate) fn path_of(&self, directory: InodeNumber, tree: TreeId) -> Vec<Vec<u8>> {
        let mut path = Vec::new();
        let mut at = directory;
        for _ in 0..DEPTH_MAX {
            if at == InodeNumber::ROOT {
                path.reverse();
                return path;
            }
            let Some((parent, name)) = self.directories.get(&at).and_then(|d| d.name.clone())
            else {
                break;
            };
            path.push(safe(&name, at));
            at = parent;
        }
        path.truncate(DEPTH_MAX.saturating_sub(1));
        path.push(format!("{tree}-{at}").into_bytes());
        path.push(LOST_AND_FOUND.to_vec());
        path.reverse();
        path
    }

    /// All paths of an inode that has these names.
    pub(crate) fn paths(
        &self,
        inode: InodeNumber,
        names: &[(InodeNumber, Vec<u8>)],
        tree: TreeId,
    ) -> Vec<Vec<Vec<u8>>> {
        let own = match names.is_empty() {
            true => self.others.get(&inode).map(Vec::as_slice),
            false => Some(names),
        };
        let paths = own.unwrap_or_default().iter().map(|(parent, name)| {
            let mut path = self.path_of(*parent, tree);
            path.push(safe(name, inode));
            path
        });
        let mut paths: Vec<_> = paths.collect();
        if paths.is_empty() {
            let name = format!("{tree}-{inode}").into_bytes();
            paths.push(vec![LOST_AND_FOUND.to_vec(), name]);
        }
        paths
    }
}

/// A name that stays in its directory.
pub(crate) fn safe(name: &[u8], inode: InodeNumber) -> Vec<u8> {
    let is_bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.contains(&b'/')
        || name.contains(&0);
    match is_bad {
        true => format!("inode-{inode}").into_bytes(),
        false => name.to_vec(),
    }
}
