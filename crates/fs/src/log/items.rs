//! A log as it lies on the device: its nodes and items, and what items say.

use crate::dir::Link;
use crate::error::FsError;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{ExtrefEntries, RefEntries};
use butterfs_format::item::root::RootItem;
use butterfs_format::{InodeId, InodeNumber, ItemType, Key, NodeRef, TreeId};
use butterfs_store::{Engine, ItemFault, bad_item, corrupt_item};
use butterfs_tree::{NodeSource, TreeError};
use std::ops::Range;

/// Nodes of all logs together. More cannot be held in memory (8 GiB of nodes of
/// 16 KiB), and no generation has more.
const NODES_MAX: usize = 1 << 19;

/// The log of one subvolume.
pub(super) struct LogItems {
    /// Subvolume.
    pub tree: TreeId,
    /// Its items, ascending.
    pub items: Vec<(Key, Vec<u8>)>,
    /// Blocks of its nodes; for the first log also those of the tree of log
    /// roots.
    blocks: Vec<Range<u64>>,
}

impl LogItems {
    /// Reads all logs below the tree of their roots.
    pub fn read_all(engine: &Engine, root: NodeRef) -> Result<Vec<Self>, FsError> {
        let mut roots = Self {
            tree: TreeId::LOG,
            items: Vec::new(),
            blocks: Vec::new(),
        };
        roots.read(engine, root)?;
        let mut logs = Vec::new();
        for (key, data) in &roots.items {
            if key.item_type != ItemType::ROOT_ITEM || key.objectid != TreeId::LOG.get() {
                continue;
            }
            let item = RootItem::parse(data)
                .map_err(|error| FsError::from(bad_item(TreeId::LOG, *key, &error)))?;
            let mut log = Self {
                tree: TreeId(key.offset),
                items: Vec::new(),
                blocks: Vec::new(),
            };
            log.read(engine, item.root())?;
            logs.push(log);
        }
        roots.items.clear();
        logs.insert(0, roots);
        Ok(logs)
    }

    fn read(&mut self, engine: &Engine, root: NodeRef) -> Result<(), FsError> {
        let size = engine.node_size() as u64;
        let mut waiting = vec![root];
        while let Some(reference) = waiting.pop() {
            let node = engine.node(reference)?;
            let start = reference.logical.get();
            self.blocks.push(start..start + size);
            if self.blocks.len() > NODES_MAX {
                return Err(TreeError::TooHigh(TreeId::LOG).into());
            }
            if node.is_leaf() {
                for slot in 0..node.len() {
                    self.items.push((node.key(slot), node.data(slot).to_vec()));
                }
            } else {
                // The first child is visited first.
                waiting.extend((0..node.len()).rev().map(|slot| node.child(slot)));
            }
        }
        let sorted = self.items.windows(2).all(|pair| pair[0].0 < pair[1].0);
        if !sorted {
            let first = self.items.first().map_or(Key::MIN, |(key, _)| *key);
            return Err(corrupt_item(TreeId::LOG, first, ItemFault::LogOrder).into());
        }
        Ok(())
    }

    /// Blocks of its nodes.
    pub fn blocks(&self) -> &[Range<u64>] {
        &self.blocks
    }

    /// The item with a key.
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        let at = self.items.binary_search_by_key(key, |(key, _)| *key).ok()?;
        self.items.get(at).map(|(_, data)| &data[..])
    }

    /// Number of its nodes.
    pub fn nodes(&self) -> usize {
        self.blocks.len()
    }

    /// Keeps the log's blocks, and the data that only the log names, from being
    /// given out.
    pub fn pin(&self, engine: &mut Engine) -> Result<(), FsError> {
        for block in &self.blocks {
            engine.space_map_mut().pin_for_replay(block)?;
        }
        for (key, data) in &self.items {
            if key.item_type != ItemType::EXTENT_DATA {
                continue;
            }
            let id = InodeId {
                tree: self.tree,
                number: InodeNumber(key.objectid),
            };
            let extent = FileExtent::parse(data)
                .map_err(|error| FsError::bad_item(id, "logged file extent", &error))?;
            if let FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) = extent.body
                && place.disk.get() != 0
            {
                let extent = crate::file::extents::extent_of(&place);
                if !engine.has_data_extent(extent)? {
                    let start = place.disk.get();
                    let end = start.checked_add(place.disk_length);
                    let end = end.ok_or(FsError::TooBig)?;
                    engine.space_map_mut().pin_for_replay(&(start..end))?;
                }
            }
        }
        Ok(())
    }
}

/// Names in an INODE_REF or INODE_EXTREF item.
pub(super) fn parse_links(id: InodeId, key: Key, data: &[u8]) -> Result<Vec<Link>, FsError> {
    let bad = |error| FsError::bad_item(id, "name", &error);
    if key.item_type == ItemType::INODE_REF {
        return RefEntries::new(data)
            .map(|entry| {
                let entry = entry.map_err(bad)?;
                Ok(Link {
                    parent: InodeNumber(key.offset),
                    index: entry.index,
                    name: entry.name.to_vec(),
                })
            })
            .collect();
    }
    ExtrefEntries::new(data)
        .map(|entry| {
            let entry = entry.map_err(bad)?;
            Ok(Link {
                parent: entry.parent,
                index: entry.index,
                name: entry.name.to_vec(),
            })
        })
        .collect()
}

/// The items of one log, ascending.
pub(super) struct Log<'a>(pub &'a [(Key, Vec<u8>)]);

impl Log<'_> {
    pub fn get(&self, key: &Key) -> Option<&[u8]> {
        let at = self.0.binary_search_by_key(key, |(key, _)| *key).ok()?;
        self.0.get(at).map(|(_, data)| &data[..])
    }

    /// Items from `first` on.
    pub fn from(&self, first: Key) -> impl Iterator<Item = (Key, &[u8])> {
        let at = self.0.partition_point(|(key, _)| *key < first);
        self.0
            .get(at..)
            .unwrap_or_default()
            .iter()
            .map(|(key, data)| (*key, &data[..]))
    }

    pub fn of(&self, object: u64, kind: ItemType) -> impl Iterator<Item = (Key, &[u8])> {
        self.from(Key::new(object, kind, 0))
            .take_while(move |(key, _)| key.objectid == object && key.item_type == kind)
    }

    /// Whether the log has an inode's own side of a name.
    pub fn has_reference(&self, inode: InodeNumber, link: &Link) -> bool {
        let key = Key::new(inode.get(), ItemType::INODE_REF, link.parent.get());
        let plain = self.get(&key).is_some_and(|data| {
            RefEntries::new(data)
                .flatten()
                .any(|entry| entry.name == link.name)
        });
        plain
            || self
                .of(inode.get(), ItemType::INODE_EXTREF)
                .any(|(_, data)| {
                    ExtrefEntries::new(data)
                        .flatten()
                        .any(|entry| entry.parent == link.parent && entry.name == link.name)
                })
    }
}
