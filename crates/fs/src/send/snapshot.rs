//! One subvolume as a send sees it: a tree that does not change.
//!
//! Owns looking up inodes, their names, attributes and file extents, and the
//! paths of directories. Caches are bounded: a full cache is emptied.

use super::error::SendError;
use crate::FsError;
use crate::dir::Link;
use crate::file::extents::Found;
use crate::names::S_IFMT;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::inode::{ExtrefEntries, InodeItem, RefEntries};
use butterfs_format::item::root::{RootFlags, RootItem};
use butterfs_format::send_stream::SourceStamp;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, NodeRef, TreeId};
use butterfs_store::{KeptTree, Store};
use butterfs_tree::{Cursor, Node, NodeSource, TreeError};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

/// Looks at an item.
type Visit<'v> = &'v mut dyn FnMut(Key, &[u8]) -> Result<(), SendError>;
/// Name and value of an extended attribute.
pub(super) type Xattr = (Vec<u8>, Vec<u8>);

/// Entries of each cache.
const CACHED_MAX: usize = 1 << 16;
/// Greatest depth of directories; more means a loop.
const DEPTH_MAX: usize = 1 << 16;

/// Nodes of an open volume. Takes the engine's lock for one node at a time, so
/// that a long send delays nobody.
#[derive(Debug)]
pub(super) struct Nodes<'s>(pub &'s Store);

impl NodeSource for Nodes<'_> {
    fn node(&self, reference: NodeRef) -> Result<Arc<Node>, TreeError> {
        self.0.read().node(reference)
    }

    fn root(&self, tree: TreeId) -> Result<NodeRef, TreeError> {
        self.0.read().root(tree)
    }
}

/// What makes two inodes of two snapshots the same one. Numbers alone do not:
/// if the common origin of the snapshots is older, they may have given the same
/// number to different inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    generation: u64,
    /// Type bits of its mode.
    pub kind: u32,
    rdev: u64,
}

/// A subvolume that does not change.
#[derive(Debug)]
pub(super) struct Snapshot<'s> {
    nodes: &'s Nodes<'s>,
    _kept: KeptTree<'s>,
    pub tree: TreeId,
    pub root: NodeRef,
    pub item: RootItem,
    sector: u64,
    /// Name of each directory.
    homes: RefCell<FxHashMap<InodeNumber, Link>>,
    identities: RefCell<FxHashMap<InodeNumber, Option<Identity>>>,
}

impl<'s> Snapshot<'s> {
    pub fn open(nodes: &'s Nodes<'s>, tree: TreeId) -> Result<Self, SendError> {
        let kept = nodes.0.keep_tree(tree);
        let (state, sector) = {
            let engine = nodes.0.read();
            (engine.tree_state(tree)?, engine.sector_size())
        };
        if !tree.is_subvolume() {
            return Err(TreeError::NoSuchTree(tree).into());
        }
        if state.item.refs == 0 {
            return Err(SendError::Deleted(tree));
        }
        if !state.item.flags.contains(RootFlags::READONLY) {
            return Err(SendError::NotReadOnly(tree));
        }
        Ok(Self {
            nodes,
            _kept: kept,
            tree,
            root: state.root,
            item: state.item,
            sector,
            homes: RefCell::default(),
            identities: RefCell::default(),
        })
    }

    /// By what receivers know it.
    pub fn stamp(&self) -> SourceStamp {
        let item = &self.item;
        // A received subvolume is identified by what it is a copy of. So copies
        // of copies are known to be the same, also by whoever has the first
        // one.
        let (uuid, ctransid) = if item.received_uuid == [0; 16] {
            (item.uuid, item.ctransid)
        } else {
            (item.received_uuid, item.stransid)
        };
        SourceStamp { uuid, ctransid }
    }

    /// Bytes of a sector.
    pub const fn sector(&self) -> u64 {
        self.sector
    }

    pub fn id(&self, number: InodeNumber) -> InodeId {
        InodeId {
            tree: self.tree,
            number,
        }
    }

    pub fn damaged(&self, inode: InodeNumber, reason: &'static str) -> SendError {
        SendError::Damaged {
            tree: self.tree,
            inode,
            reason,
        }
    }

    fn bad(
        &self,
        number: InodeNumber,
        item: &'static str,
        error: &butterfs_format::ParseError,
    ) -> SendError {
        SendError::Fs(FsError::bad_item(self.id(number), item, error))
    }

    fn cursor(&self, key: &Key) -> Result<Cursor<'_, Nodes<'s>>, SendError> {
        let mut cursor = Cursor::at_root(self.nodes, self.root);
        cursor.seek(key)?;
        Ok(cursor)
    }

    /// Gives the items of `number` from `first` on, as long as their kinds are
    /// not beyond `last`.
    fn items(
        &self,
        number: InodeNumber,
        kinds: Range<ItemType>,
        visit: Visit<'_>,
    ) -> Result<(), SendError> {
        let mut cursor = self.cursor(&Key::new(number.get(), kinds.start, 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.objectid != number.get() || key.item_type >= kinds.end {
                break;
            }
            visit(key, data)?;
            cursor.next()?;
        }
        Ok(())
    }

    /// The inode's item. `None` also for an inode without names, which nobody
    /// can see in a snapshot.
    pub fn inode(&self, number: InodeNumber) -> Result<Option<InodeItem>, SendError> {
        let key = Key::new(number.get(), ItemType::INODE_ITEM, 0);
        let cursor = self.cursor(&key)?;
        let Some((found, data)) = cursor.item() else {
            return Ok(None);
        };
        if found != key {
            return Ok(None);
        }
        let item =
            InodeItem::parse(data).map_err(|error| self.bad(number, "inode item", &error))?;
        if item.size > crate::file::SIZE_MAX {
            return Err(self.damaged(number, "it is larger than any file can be"));
        }
        Ok((item.nlink > 0).then_some(item))
    }

    /// The inode's item, which must be there.
    pub fn get_inode(&self, number: InodeNumber) -> Result<InodeItem, SendError> {
        self.inode(number)?
            .ok_or_else(|| self.damaged(number, "it has names but no item"))
    }

    pub fn identity(&self, number: InodeNumber) -> Result<Option<Identity>, SendError> {
        if let Some(known) = self.identities.borrow().get(&number) {
            return Ok(*known);
        }
        let identity = self.inode(number)?.map(|item| Identity {
            generation: item.generation.get(),
            kind: item.mode & S_IFMT,
            rdev: item.rdev,
        });
        remember(&self.identities, number, identity);
        Ok(identity)
    }

    /// All names of an inode.
    pub fn links(&self, number: InodeNumber) -> Result<Vec<Link>, SendError> {
        let mut links = Vec::new();
        let kinds = ItemType::INODE_REF..ItemType(ItemType::INODE_EXTREF.0 + 1);
        self.items(number, kinds, &mut |key, data| {
            let bad = |error| self.bad(number, "name", &error);
            if key.item_type == ItemType::INODE_REF {
                for entry in RefEntries::new(data) {
                    let entry = entry.map_err(bad)?;
                    links.push(Link {
                        parent: InodeNumber(key.offset),
                        index: entry.index,
                        name: entry.name.to_vec(),
                    });
                }
            } else {
                for entry in ExtrefEntries::new(data) {
                    let entry = entry.map_err(bad)?;
                    links.push(Link {
                        parent: entry.parent,
                        index: entry.index,
                        name: entry.name.to_vec(),
                    });
                }
            }
            Ok(())
        })?;
        for link in &links {
            crate::dir::check_name(&link.name)
                .map_err(|_| self.damaged(number, "it has a name that cannot be"))?;
        }
        Ok(links)
    }

    /// The name of a directory that is not the root.
    pub fn home(&self, number: InodeNumber) -> Result<Link, SendError> {
        if let Some(home) = self.homes.borrow().get(&number) {
            return Ok(home.clone());
        }
        let home = self
            .links(number)?
            .into_iter()
            .next()
            .ok_or_else(|| self.damaged(number, "it is a directory without a name"))?;
        remember(&self.homes, number, home.clone());
        Ok(home)
    }

    /// Names from the root to the directory `number`. `over` may say that a
    /// directory is elsewhere.
    pub fn directory_path(
        &self,
        number: InodeNumber,
        over: &dyn Fn(InodeNumber) -> Option<Elsewhere>,
    ) -> Result<Vec<u8>, SendError> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        let mut at = number;
        while at != InodeNumber::ROOT {
            if names.len() > DEPTH_MAX {
                return Err(self.damaged(number, "its directories form a loop"));
            }
            match over(at) {
                Some(Elsewhere::InRoot(name)) => {
                    names.push(name);
                    break;
                }
                Some(Elsewhere::At(link)) => {
                    names.push(link.name);
                    at = link.parent;
                }
                None => {
                    let home = self.home(at)?;
                    names.push(home.name);
                    at = home.parent;
                }
            }
        }
        names.reverse();
        Ok(names.join(&b'/'))
    }

    /// Path of a name in a snapshot as it is.
    pub fn path(&self, link: &Link) -> Result<Vec<u8>, SendError> {
        let directory = self.directory_path(link.parent, &|_| None)?;
        Ok(join(&directory, &link.name))
    }

    /// Whether the directory has an entry of this name, which may be a
    /// subvolume.
    pub fn has_name(&self, directory: InodeNumber, name: &[u8]) -> Result<bool, SendError> {
        let key = Key::new(directory.get(), ItemType::DIR_ITEM, name_hash(name));
        let cursor = self.cursor(&key)?;
        let Some((found, data)) = cursor.item() else {
            return Ok(false);
        };
        if found != key {
            return Ok(false);
        }
        for entry in DirEntries::new(data) {
            let entry = entry.map_err(|error| self.bad(directory, "directory entry", &error))?;
            if entry.name == name {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Inodes that have entries in a directory, without nested subvolumes.
    pub fn children(&self, directory: InodeNumber) -> Result<Vec<InodeNumber>, SendError> {
        let mut children = Vec::new();
        let kinds = ItemType::DIR_INDEX..ItemType(ItemType::DIR_INDEX.0 + 1);
        self.items(directory, kinds, &mut |_, data| {
            for entry in DirEntries::new(data) {
                let entry =
                    entry.map_err(|error| self.bad(directory, "directory index", &error))?;
                if entry.location.item_type == ItemType::INODE_ITEM {
                    children.push(InodeNumber(entry.location.objectid));
                }
            }
            Ok(())
        })?;
        Ok(children)
    }

    /// Extended attributes, by name.
    pub fn xattrs(&self, number: InodeNumber) -> Result<Vec<Xattr>, SendError> {
        let mut all = Vec::new();
        let kinds = ItemType::XATTR_ITEM..ItemType(ItemType::XATTR_ITEM.0 + 1);
        self.items(number, kinds, &mut |_, data| {
            for entry in DirEntries::new(data) {
                let entry = entry.map_err(|error| self.bad(number, "attribute", &error))?;
                all.push((entry.name.to_vec(), entry.data.to_vec()));
            }
            Ok(())
        })?;
        all.sort();
        Ok(all)
    }

    /// A cursor over the file extents that overlap `range`.
    pub fn extents(
        &self,
        number: InodeNumber,
        range: &Range<u64>,
        visit: &mut dyn FnMut(Found) -> Result<Flow, SendError>,
    ) -> Result<(), SendError> {
        let first = Key::new(number.get(), ItemType::EXTENT_DATA, range.start);
        let mut cursor = self.cursor(&first)?;
        if cursor.key() != Some(first) {
            cursor.prev()?;
        }
        let mut last_end = 0;
        while let Some((key, data)) = cursor.item() {
            let wanted = (number.get(), ItemType::EXTENT_DATA);
            if (key.objectid, key.item_type) > wanted
                || ((key.objectid, key.item_type) == wanted && key.offset >= range.end)
            {
                break;
            }
            if (key.objectid, key.item_type) == wanted {
                let found =
                    Found::new(self.id(number), key, data, self.sector).map_err(SendError::fs)?;
                if found.start < last_end {
                    return Err(self.damaged(number, "its file extents overlap"));
                }
                last_end = found.end();
                if last_end > range.start && visit(found)? == Flow::Stop {
                    return Ok(());
                }
            }
            cursor.next()?;
        }
        Ok(())
    }

    /// Target of a symbolic link.
    pub fn target(&self, number: InodeNumber) -> Result<Vec<u8>, SendError> {
        let mut target = None;
        self.extents(number, &(0..1), &mut |found| {
            if let crate::file::extents::Body::Inline(data) = found.body
                && found.compression.is_none()
            {
                target = Some(data);
            }
            Ok(Flow::Stop)
        })?;
        target
            .filter(|target| !target.is_empty() && !target.contains(&0))
            .ok_or_else(|| self.damaged(number, "it is a link without a target"))
    }
}

/// Where a directory is that has already moved.
#[derive(Clone, Debug)]
pub(super) enum Elsewhere {
    /// In the root, under a temporary name of its own.
    InRoot(Vec<u8>),
    /// At its new place.
    At(Link),
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Continue,
    Stop,
}

/// `name` in `directory`.
pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() {
        return name.to_vec();
    }
    [directory, b"/", name].concat()
}

fn remember<V>(cache: &RefCell<FxHashMap<InodeNumber, V>>, number: InodeNumber, value: V) {
    let mut cache = cache.borrow_mut();
    if cache.len() >= CACHED_MAX {
        cache.clear();
    }
    cache.insert(number, value);
}
