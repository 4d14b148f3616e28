//! The items of the first trees.
//!
//! Pure. Some trees do not depend on where nodes lie. The extent, block group and
//! free-space trees describe the addresses of all nodes, also of their own (see
//! `volume`).

use super::layout::{ChunkLayout, NewDevice, PlannedChunk};
use super::options::{MkfsOptions, RootOwner};
use crate::pack::Item;
use butterfs_format::bytes::Writer;
use butterfs_format::checksum::name_hash;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::inode::{InodeItem, RefEntry, Timespec};
use butterfs_format::item::root::RootItem;
use butterfs_format::packed::root_directory;
use butterfs_format::{
    Generation, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId, UuidBytes,
};
use butterfs_volume::stripe_length;
use std::ops::Range;

/// The generation of everything that mkfs writes.
pub(super) const GENERATION: Generation = Generation(1);

const DIRECTORY_MODE: u32 = 0o040_755;
/// Flag of an extent that holds a node.
const EXTENT_TREE_BLOCK: u64 = 1 << 1;

/// UUIDs of a new volume.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identities {
    pub(super) fsid: UuidBytes,
    pub(super) chunk_tree: UuidBytes,
    pub(super) top_level: UuidBytes,
}

/// A node, as the extent tree describes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlacedNode {
    pub(super) owner: TreeId,
    pub(super) logical: Logical,
    pub(super) first_key: Key,
    pub(super) level: u8,
}

fn directory(time: Timespec, node_size: u32) -> InodeItem {
    InodeItem {
        generation: GENERATION,
        nbytes: u64::from(node_size),
        nlink: 1,
        mode: DIRECTORY_MODE,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    }
}

/// Returns the items of a subvolume that has only an empty root directory of
/// `owner`.
pub(super) fn subvolume(options: &MkfsOptions, owner: RootOwner) -> Vec<Item> {
    let mut inode = directory(options.time, options.node_size);
    inode.nbytes = 0;
    inode.uid = owner.uid;
    inode.gid = owner.gid;
    root_directory(InodeNumber::ROOT.get(), &inode)
}

/// Returns the device items, for the chunk tree and the superblocks.
pub(super) fn device_items(
    options: &MkfsOptions,
    ids: &Identities,
    layout: &ChunkLayout,
    devices: &[NewDevice],
) -> Vec<DeviceItem> {
    let item = |device: &NewDevice| DeviceItem {
        id: device.id,
        total_bytes: device.total,
        bytes_used: layout.device_bytes(device.id),
        io_align: options.sector_size,
        io_width: options.sector_size,
        sector_size: options.sector_size,
        uuid: device.uuid,
        fsid: ids.fsid,
        ..DeviceItem::default()
    };
    devices.iter().map(item).collect()
}

/// Returns the chunk tree: devices and chunks.
pub(super) fn chunk_tree(devices: &[DeviceItem], layout: &ChunkLayout) -> Vec<Item> {
    let devices = devices.iter().map(|device| Item {
        key: Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, device.id.get()),
        data: device.encode(),
    });
    let chunks = layout.chunks().map(|planned| Item {
        key: Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, planned.logical.get()),
        data: planned.chunk.encode(),
    });
    devices.chain(chunks).collect()
}

/// Returns the device tree: the allocated ranges of the devices.
pub(super) fn device_tree(layout: &ChunkLayout, ids: &Identities) -> Vec<Item> {
    let mut items = Vec::new();
    for planned in layout.chunks() {
        let extent = DeviceExtent {
            chunk_tree: TreeId::CHUNK.get(),
            chunk_objectid: Chunk::OBJECT,
            chunk: planned.logical,
            length: stripe_length(&planned.chunk),
            chunk_tree_uuid: ids.chunk_tree,
        };
        items.extend(planned.chunk.stripes.iter().map(|stripe| Item {
            key: Key::new(
                stripe.device.get(),
                ItemType::DEV_EXTENT,
                stripe.offset.get(),
            ),
            data: extent.encode(),
        }));
    }
    items
}

/// Returns the UUID tree. It has only the UUID of the top-level subvolume.
pub(super) fn uuid_tree(ids: &Identities) -> Vec<Item> {
    let (low, high) = ids.top_level.split_at(8);
    let half = |bytes: &[u8]| {
        bytes
            .iter()
            .rev()
            .fold(0, |sum, b| sum << 8 | u64::from(*b))
    };
    vec![Item {
        key: Key::new(half(low), ItemType::UUID_SUBVOL, half(high)),
        data: TreeId::FS.get().to_le_bytes().to_vec(),
    }]
}

/// Returns the items of nodes in the extent tree, each with one reference.
pub(super) fn extent_tree(options: &MkfsOptions, nodes: &[PlacedNode]) -> Vec<Item> {
    let skinny = options.features.has_skinny_metadata();
    let item = |node: &PlacedNode| {
        let mut w = Writer::default();
        w.u64(1).u64(GENERATION.get()).u64(EXTENT_TREE_BLOCK);
        let logical = node.logical.get();
        let key = if skinny {
            Key::new(logical, ItemType::METADATA_ITEM, u64::from(node.level))
        } else {
            w.bytes(&node.first_key.to_bytes()).u8(node.level);
            Key::new(logical, ItemType::EXTENT_ITEM, u64::from(options.node_size))
        };
        w.u8(ItemType::TREE_BLOCK_REF.0).u64(node.owner.get());
        Item {
            key,
            data: w.finish(),
        }
    };
    nodes.iter().map(item).collect()
}

/// Returns the block group items, which say how much of each chunk is used.
pub(super) fn block_groups(
    options: &MkfsOptions,
    layout: &ChunkLayout,
    nodes: &[PlacedNode],
) -> Vec<Item> {
    let item = |planned: &PlannedChunk| {
        let inside = used_nodes(planned, nodes).count() as u64;
        let group = BlockGroupItem {
            used: inside * u64::from(options.node_size),
            chunk_objectid: CHUNK_OBJECTID,
            flags: planned.chunk.flags,
        };
        Item {
            key: Key::new(
                planned.logical.get(),
                ItemType::BLOCK_GROUP_ITEM,
                planned.chunk.length,
            ),
            data: group.encode(),
        }
    };
    layout.chunks().map(item).collect()
}

fn used_nodes<'n>(
    planned: &PlannedChunk,
    nodes: &'n [PlacedNode],
) -> impl Iterator<Item = &'n PlacedNode> {
    let range = planned.range();
    nodes
        .iter()
        .filter(move |node| range.contains(&node.logical.get()))
}

/// Returns the free-space tree: the free ranges of each block group. Superblock
/// copies count as free here. The kernel and ButterFS leave them out when they
/// load the tree.
pub(super) fn free_space_tree(
    options: &MkfsOptions,
    layout: &ChunkLayout,
    nodes: &[PlacedNode],
) -> Vec<Item> {
    let mut items = Vec::new();
    for planned in layout.chunks() {
        let free = free_ranges(options, planned, nodes);
        let mut info = Writer::default();
        // Flags 0 mean ranges instead of bitmaps.
        info.u32(free.len() as u32).u32(0);
        items.push(Item {
            key: Key::new(
                planned.logical.get(),
                ItemType::FREE_SPACE_INFO,
                planned.chunk.length,
            ),
            data: info.finish(),
        });
        items.extend(free.into_iter().map(|range| Item {
            key: Key::new(
                range.start,
                ItemType::FREE_SPACE_EXTENT,
                range.end - range.start,
            ),
            data: Vec::new(),
        }));
    }
    items
}

fn free_ranges(
    options: &MkfsOptions,
    planned: &PlannedChunk,
    nodes: &[PlacedNode],
) -> Vec<Range<u64>> {
    let mut used: Vec<u64> = used_nodes(planned, nodes)
        .map(|node| node.logical.get())
        .collect();
    used.sort_unstable();
    let mut free = Vec::new();
    let mut at = planned.logical.get();
    for start in used {
        if at < start {
            free.push(at..start);
        }
        at = start + u64::from(options.node_size);
    }
    if at < planned.range().end {
        free.push(at..planned.range().end);
    }
    free
}

/// Returns the tree of roots: the roots of the other trees, and the directory
/// that names the default subvolume.
pub(super) fn root_tree(options: &MkfsOptions, ids: &Identities, roots: &[RootOf]) -> Vec<Item> {
    let mut items: Vec<Item> = roots
        .iter()
        .map(|root| Item {
            key: Key::new(root.tree.get(), ItemType::ROOT_ITEM, 0),
            data: root_item(options, ids, root).encode(),
        })
        .collect();
    let object = TreeId::ROOT_TREE_DIR.get();
    let name = b"default";
    items.push(Item {
        key: Key::new(TreeId::FS.get(), ItemType::INODE_REF, object),
        data: RefEntry { index: 0, name }.encode(),
    });
    items.extend(root_directory(
        object,
        &directory(options.time, options.node_size),
    ));
    let entry = DirEntry {
        location: Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, u64::MAX),
        generation: Generation(0),
        name,
        data: &[],
        kind: FileType::Directory,
    };
    items.push(Item {
        key: Key::new(object, ItemType::DIR_ITEM, name_hash(name)),
        data: entry.encode(),
    });
    items.sort_by_key(|item| item.key);
    items
}

/// Where the root of a tree lies, and how many nodes the tree has.
#[derive(Clone, Copy, Debug)]
pub(super) struct RootOf {
    pub(super) tree: TreeId,
    pub(super) logical: Logical,
    pub(super) level: u8,
    pub(super) nodes: u64,
}

fn root_item(options: &MkfsOptions, ids: &Identities, root: &RootOf) -> RootItem {
    let node = NodeRef {
        logical: root.logical,
        generation: GENERATION,
        level: root.level,
    };
    let holds_files = root.tree == TreeId::FS || root.tree == TreeId::DATA_RELOC;
    let mut item = RootItem::of_new_tree(node, root.nodes, options.node_size);
    if holds_files {
        item.root_dir = InodeNumber::ROOT;
    }
    if root.tree == TreeId::FS {
        item.vouch_for_flags();
        item.uuid = ids.top_level;
        item.ctime = options.time;
        item.otime = options.time;
    }
    item
}

#[cfg(test)]
mod tests {
    use super::*;
    use butterfs_format::features::Incompat;

    /// Btrfs check and the kernel read this key but do not compare it with the
    /// node.
    #[test]
    fn long_extent_items_name_the_first_key() {
        let mut options = MkfsOptions::default();
        options.features.incompat -= Incompat::SKINNY_METADATA;
        let first_key = Key::new(7, ItemType::INODE_ITEM, 9);
        let node = PlacedNode {
            owner: TreeId::FS,
            logical: Logical(1 << 20),
            first_key,
            level: 1,
        };
        let items = extent_tree(&options, &[node]);
        let key = Key::new(1 << 20, ItemType::EXTENT_ITEM, 16384);
        assert_eq!(items[0].key, key);
        assert_eq!(items[0].data[24..41], first_key.to_bytes());
        assert_eq!(items[0].data[41], 1);
        assert_eq!(items[0].data.len(), 51);
    }
}
