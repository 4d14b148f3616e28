//! The items of a subvolume's tree.
//!
//! Pure: makes sorted items from numbered inodes and the places of their
//! content. Also gathers the references to data, for the extent tree.

use super::BuildError;
use super::content::Contents;
use super::data::{Data, Stored};
use super::model::{Body, FileTree, Node};
use super::subvolumes::{NameOf, NumberedInode, Planned, Target};
use crate::pack::{Item, item_max};
use butterfs_format::checksum::{extref_hash, name_hash};
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::file_extent::{ExtentPlace, FileExtent, FileExtentBody};
use butterfs_format::item::inode::{ExtrefEntry, InodeItem, LINKS_MAX, RefEntry, Timespec};
use butterfs_format::{FileOffset, Generation, InodeNumber, ItemType, Key, TreeId};
use std::collections::BTreeMap;

/// The generation of everything in an image.
pub(super) const GENERATION: Generation = Generation(1);
/// The most bytes of names of an inode in one directory that its INODE_REF item
/// holds. Other names are in INODE_EXTREF items.
const REFS_MAX: usize = 2048;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;
const S_IFLNK: u32 = 0o120_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFBLK: u32 = 0o060_000;
const S_IFIFO: u32 = 0o010_000;

/// Makes the items of all subvolumes.
pub(super) struct ItemMaker<'a> {
    pub(super) data: &'a Data,
    pub(super) contents: &'a Contents,
    pub(super) node_size: u32,
    /// The latest time; later ones are replaced by it.
    pub(super) latest: Option<Timespec>,
    /// References to each data extent.
    pub(super) refs: Vec<Vec<ExtentRef>>,
}

impl ItemMaker<'_> {
    /// Returns the items of a subvolume, sorted.
    pub(super) fn subvolume(
        &mut self,
        planned: &Planned,
        files: &FileTree,
    ) -> Result<Vec<Item>, BuildError> {
        let mut items = Vec::new();
        for inode in &planned.inodes {
            self.inode(planned.tree, inode, files, &mut items)?;
        }
        items.sort_by_key(|item| item.key);
        Ok(items)
    }

    fn inode(
        &mut self,
        tree: TreeId,
        inode: &NumberedInode,
        files: &FileTree,
        items: &mut Vec<Item>,
    ) -> Result<(), BuildError> {
        let node = files.node(inode.node);
        let number = inode.number;
        let mut item = self.blank(node);
        item.nlink = links(inode)?;
        let object = number.get();
        match &node.body {
            Body::Directory(_) => {
                item.nlink = 1;
                item.size = inode.children.iter().map(|c| 2 * c.name.len() as u64).sum();
                self.names(inode, files, items)?;
            }
            Body::File(content) => {
                item.size = self.contents.size(*content);
                let id = Contents::index(*content);
                match &self.data.stored[id] {
                    Some(Stored::Inline(bytes)) => {
                        item.nbytes = bytes.len() as u64;
                        if !bytes.is_empty() {
                            items.push(inline(object, bytes));
                        }
                    }
                    Some(Stored::Pieces(_)) => {
                        item.nbytes = self.pieces(tree, number, id, items);
                    }
                    None => unreachable!("all content was written"),
                }
            }
            Body::Symlink(target) => {
                item.size = target.len() as u64;
                item.nbytes = item.size;
                items.push(inline(object, target));
            }
            Body::CharDevice(device) | Body::BlockDevice(device) => item.rdev = *device,
            Body::Fifo => {}
        }
        items.push(Item {
            key: Key::new(object, ItemType::INODE_ITEM, 0),
            data: item.encode(),
        });
        self.attributes(object, node, inode, items)?;
        self.references(inode, items)
    }

    fn blank(&self, node: &Node) -> InodeItem {
        let metadata = &node.metadata;
        let kind = match node.body {
            Body::Directory(_) => S_IFDIR,
            Body::File(_) => S_IFREG,
            Body::Symlink(_) => S_IFLNK,
            Body::CharDevice(_) => S_IFCHR,
            Body::BlockDevice(_) => S_IFBLK,
            Body::Fifo => S_IFIFO,
        };
        // The permissions of a symbolic link mean nothing. Linux sets them all.
        let permissions = match node.body {
            Body::Symlink(_) => 0o777,
            _ => metadata.permissions,
        };
        let time = self
            .latest
            .map_or(metadata.mtime, |latest| metadata.mtime.min(latest));
        InodeItem {
            generation: GENERATION,
            transid: GENERATION,
            mode: kind | permissions,
            uid: metadata.uid,
            gid: metadata.gid,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            ..InodeItem::default()
        }
    }

    /// Adds the file extents of a file, and returns the bytes of its data.
    fn pieces(
        &mut self,
        tree: TreeId,
        inode: InodeNumber,
        content: usize,
        items: &mut Vec<Item>,
    ) -> u64 {
        let Some(Stored::Pieces(pieces)) = &self.data.stored[content] else {
            return 0;
        };
        let mut bytes = 0;
        for piece in pieces {
            let extent = &self.data.extents[piece.extent];
            let file_extent = FileExtent {
                generation: GENERATION,
                ram_bytes: piece.length,
                compression: piece.compression,
                encryption: 0,
                other_encoding: 0,
                body: FileExtentBody::Regular(ExtentPlace {
                    disk: extent.logical,
                    disk_length: extent.length,
                    offset: 0,
                    length: piece.length,
                }),
            };
            items.push(Item {
                key: Key::new(inode.get(), ItemType::EXTENT_DATA, piece.start),
                data: file_extent.encode(),
            });
            self.refs[piece.extent].push(ExtentRef::Data {
                root: tree,
                inode,
                offset: FileOffset(piece.start),
                count: 1,
            });
            bytes += piece.length;
        }
        bytes
    }

    fn attributes(
        &self,
        object: u64,
        node: &Node,
        inode: &NumberedInode,
        items: &mut Vec<Item>,
    ) -> Result<(), BuildError> {
        let mut by_hash: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (name, value) in &node.metadata.attributes {
            let entry = DirEntry {
                location: Key::MIN,
                generation: GENERATION,
                name,
                data: value,
                kind: FileType::Xattr,
            };
            let data = by_hash.entry(name_hash(name)).or_default();
            data.extend(entry.encode());
            if data.len() > item_max(self.node_size) || value.len() > usize::from(u16::MAX) {
                let shown = inode.names.first().map(|name| name.name.clone());
                return Err(BuildError::AttributeTooLarge {
                    path: String::from_utf8_lossy(&shown.unwrap_or_default()).into_owned(),
                    name: String::from_utf8_lossy(name).into_owned(),
                });
            }
        }
        items.extend(by_hash.into_iter().map(|(hash, data)| Item {
            key: Key::new(object, ItemType::XATTR_ITEM, hash),
            data,
        }));
        Ok(())
    }

    /// Adds the entries of a directory, by hash and by index.
    fn names(
        &self,
        inode: &NumberedInode,
        files: &FileTree,
        items: &mut Vec<Item>,
    ) -> Result<(), BuildError> {
        let object = inode.number.get();
        let mut by_hash: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for child in &inode.children {
            let (location, kind) = match child.target {
                Target::Inode(node, number) => (
                    Key::new(number.get(), ItemType::INODE_ITEM, 0),
                    kind_of(&files.node(node).body),
                ),
                Target::Subvolume(tree) => (
                    Key::new(tree.get(), ItemType::ROOT_ITEM, u64::MAX),
                    FileType::Directory,
                ),
            };
            let entry = DirEntry {
                location,
                generation: GENERATION,
                name: &child.name,
                data: &[],
                kind,
            };
            let data = entry.encode();
            items.push(Item {
                key: Key::new(object, ItemType::DIR_INDEX, child.index),
                data: data.clone(),
            });
            let same = by_hash.entry(name_hash(&child.name)).or_default();
            same.extend(data);
            self.fits(same, &child.name)?;
        }
        items.extend(by_hash.into_iter().map(|(hash, data)| Item {
            key: Key::new(object, ItemType::DIR_ITEM, hash),
            data,
        }));
        Ok(())
    }

    /// Refuses entries of names with one hash that are larger than an item.
    fn fits(&self, same: &[u8], name: &[u8]) -> Result<(), BuildError> {
        if same.len() <= item_max(self.node_size) {
            return Ok(());
        }
        Err(BuildError::Path {
            path: String::from_utf8_lossy(name).into_owned(),
            reason: "too many names beside this one have the same hash, and Btrfs cannot hold \
                     them all; leave some out or rename them",
        })
    }

    /// Adds an inode's own records of its names.
    fn references(&self, inode: &NumberedInode, items: &mut Vec<Item>) -> Result<(), BuildError> {
        let object = inode.number.get();
        if inode.number == InodeNumber::ROOT {
            let entry = RefEntry {
                index: 0,
                name: b"..",
            };
            items.push(Item {
                key: Key::new(object, ItemType::INODE_REF, object),
                data: entry.encode(),
            });
            return Ok(());
        }
        let mut by_parent: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let mut others: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for NameOf {
            parent,
            index,
            name,
        } in &inode.names
        {
            let entry = RefEntry {
                index: *index,
                name,
            };
            let here = by_parent.entry(parent.get()).or_default();
            if here.len() + entry.encode().len() <= REFS_MAX {
                here.extend(entry.encode());
                continue;
            }
            let entry = ExtrefEntry {
                parent: *parent,
                index: *index,
                name,
            };
            let same = others.entry(extref_hash(*parent, name)).or_default();
            same.extend(entry.encode());
            self.fits(same, name)?;
        }
        items.extend(by_parent.into_iter().map(|(parent, data)| Item {
            key: Key::new(object, ItemType::INODE_REF, parent),
            data,
        }));
        items.extend(others.into_iter().map(|(hash, data)| Item {
            key: Key::new(object, ItemType::INODE_EXTREF, hash),
            data,
        }));
        Ok(())
    }
}

/// The number of an inode's names. With more than LINKS_MAX neither a link nor
/// a stream of the kernel's could be received.
fn links(inode: &NumberedInode) -> Result<u32, BuildError> {
    let links = u32::try_from(inode.names.len()).ok();
    links
        .filter(|links| *links <= LINKS_MAX)
        .ok_or_else(|| BuildError::TooManyLinks {
            path: inode.names.first().map_or_else(String::new, |name| {
                String::from_utf8_lossy(&name.name).into_owned()
            }),
            names: inode.names.len(),
            most: LINKS_MAX,
        })
}

const fn kind_of(body: &Body) -> FileType {
    match body {
        Body::Directory(_) => FileType::Directory,
        Body::File(_) => FileType::Regular,
        Body::Symlink(_) => FileType::Symlink,
        Body::CharDevice(_) => FileType::CharDevice,
        Body::BlockDevice(_) => FileType::BlockDevice,
        Body::Fifo => FileType::Fifo,
    }
}

fn inline(object: u64, bytes: &[u8]) -> Item {
    Item {
        key: Key::new(object, ItemType::EXTENT_DATA, 0),
        data: FileExtent::inline(GENERATION, bytes).encode(),
    }
}
