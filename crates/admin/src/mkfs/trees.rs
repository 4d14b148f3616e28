//! The first content of each tree.

use super::{GENERATION, Group, Plan, leaf};
use butterfs_format::bytes::Writer;
use butterfs_format::checksum::name_hash;
use butterfs_format::features::Incompat;
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent};
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::inode::{InodeItem, RefEntry};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::NodeHeader;
use butterfs_format::{InodeNumber, ItemType, Key, Logical, TreeId};
use std::ops::Range;

type Items = Vec<(Key, Vec<u8>)>;

/// The sealed leaf of `tree`.
pub fn leaf(plan: &Plan, tree: TreeId, logical: Logical) -> Vec<u8> {
    let items = match tree {
        TreeId::CHUNK => chunk_tree(plan),
        TreeId::ROOT => root_tree(plan),
        TreeId::EXTENT => extent_tree(plan),
        TreeId::DEVICE => device_tree(plan),
        TreeId::FS | TreeId::DATA_RELOC => subvolume(plan),
        TreeId::FREE_SPACE => free_space_tree(plan),
        TreeId::BLOCK_GROUP => block_groups(plan),
        TreeId::UUID => uuid_tree(plan),
        _ => Vec::new(),
    };
    let header = NodeHeader {
        fsid: plan.fsid,
        logical,
        flags: 0,
        chunk_tree_uuid: plan.chunk_tree_uuid,
        generation: GENERATION,
        owner: tree,
        item_count: 0,
        level: 0,
    };
    let size = plan.options.node_size as usize;
    leaf::encode(header, items, size, plan.options.checksum)
}

fn chunk_tree(plan: &Plan) -> Items {
    let device = plan.device_item();
    let key = Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, device.id.get());
    let mut items = vec![(key, device.encode())];
    for group in &plan.groups {
        let key = Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, group.logical.get());
        items.push((key, group.chunk.encode()));
    }
    items
}

fn root_item(plan: &Plan, tree: TreeId) -> RootItem {
    let place = plan.place_of(tree);
    let files = matches!(tree, TreeId::FS | TreeId::DATA_RELOC);
    let mut item = RootItem {
        inode: InodeItem {
            generation: GENERATION,
            size: 3,
            nbytes: plan.options.node_size.into(),
            nlink: 1,
            mode: 0o040_755,
            ..InodeItem::default()
        },
        generation: GENERATION,
        root_dir: InodeNumber(if files { 256 } else { 0 }),
        logical: place.logical,
        bytes_used: plan.options.node_size.into(),
        refs: 1,
        level: 0,
        ..RootItem::default()
    };
    if tree == TreeId::FS {
        item.uuid = plan.subvolume_uuid;
        item.ctime = plan.options.time;
        item.otime = plan.options.time;
        item.ctransid = GENERATION;
    }
    item
}

fn root_tree(plan: &Plan) -> Items {
    let mut items = Items::new();
    for (tree, _) in &plan.trees {
        if !matches!(*tree, TreeId::ROOT | TreeId::CHUNK) {
            let key = Key::new(tree.get(), ItemType::ROOT_ITEM, 0);
            items.push((key, root_item(plan, *tree).encode()));
        }
    }
    let dir = TreeId::ROOT_TREE_DIR.get();
    let directory = InodeItem {
        generation: GENERATION,
        nbytes: plan.options.node_size.into(),
        ..root_directory(plan)
    };
    items.push((Key::new(dir, ItemType::INODE_ITEM, 0), directory.encode()));
    let name = |name| RefEntry { index: 0, name }.encode();
    items.push((Key::new(dir, ItemType::INODE_REF, dir), name(b"..")));
    items.push((
        Key::new(TreeId::FS.get(), ItemType::INODE_REF, dir),
        name(b"default"),
    ));
    let entry = DirEntry {
        location: Key::new(TreeId::FS.get(), ItemType::ROOT_ITEM, u64::MAX),
        generation: GENERATION,
        name: b"default",
        data: &[],
        kind: FileType::Directory,
    };
    let key = Key::new(dir, ItemType::DIR_ITEM, name_hash(b"default"));
    items.push((key, entry.encode()));
    items
}

fn root_directory(plan: &Plan) -> InodeItem {
    let time = plan.options.time;
    InodeItem {
        generation: GENERATION,
        transid: GENERATION,
        nbytes: plan.options.node_size.into(),
        nlink: 1,
        mode: 0o040_755,
        atime: time,
        ctime: time,
        mtime: time,
        otime: time,
        ..InodeItem::default()
    }
}

fn subvolume(plan: &Plan) -> Items {
    let root = InodeNumber::ROOT.get();
    let name = RefEntry {
        index: 0,
        name: b"..",
    };
    vec![
        (
            Key::new(root, ItemType::INODE_ITEM, 0),
            root_directory(plan).encode(),
        ),
        (Key::new(root, ItemType::INODE_REF, root), name.encode()),
    ]
}

fn extent_tree(plan: &Plan) -> Items {
    /// Flag of an extent that holds a node.
    const TREE_BLOCK: u64 = 2;
    let skinny = plan
        .options
        .features
        .incompat
        .contains(Incompat::SKINNY_METADATA);
    let mut items = Items::new();
    for (tree, logical) in &plan.trees {
        let mut w = Writer::default();
        w.u64(1).u64(GENERATION.get()).u64(TREE_BLOCK);
        let key = if skinny {
            Key::new(logical.get(), ItemType::METADATA_ITEM, 0)
        } else {
            // The first key of the node, and its level.
            w.bytes(&Key::MIN.to_bytes()).u8(0);
            let size = plan.options.node_size.into();
            Key::new(logical.get(), ItemType::EXTENT_ITEM, size)
        };
        w.u8(ItemType::TREE_BLOCK_REF.0).u64(tree.get());
        items.push((key, w.finish()));
    }
    if !plan.options.features.has_block_group_tree() {
        items.extend(block_groups(plan));
    }
    items
}

fn block_groups(plan: &Plan) -> Items {
    let item = |group: &Group| {
        let key = Key::new(
            group.logical.get(),
            ItemType::BLOCK_GROUP_ITEM,
            group.chunk.length,
        );
        let item = BlockGroupItem {
            used: group.used,
            chunk_objectid: CHUNK_OBJECTID,
            flags: group.chunk.flags,
        };
        (key, item.encode())
    };
    plan.groups.iter().map(item).collect()
}

fn device_tree(plan: &Plan) -> Items {
    /// Bytes of five error counters.
    const STATS: usize = 40;
    let mut items = vec![(Key::new(0, ItemType::PERSISTENT_ITEM, 1), vec![0; STATS])];
    for group in &plan.groups {
        let extent = DeviceExtent {
            chunk_tree: TreeId::CHUNK.get(),
            chunk_objectid: Chunk::OBJECT,
            chunk: group.logical,
            length: group.chunk.length,
            chunk_tree_uuid: plan.chunk_tree_uuid,
        };
        for stripe in &group.chunk.stripes {
            let key = Key::new(
                stripe.device.get(),
                ItemType::DEV_EXTENT,
                stripe.offset.get(),
            );
            items.push((key, extent.encode()));
        }
    }
    items
}

fn free_space_tree(plan: &Plan) -> Items {
    let size = u64::from(plan.options.node_size);
    let nodes: Vec<Range<u64>> = plan
        .trees
        .iter()
        .map(|(_, logical)| logical.get()..logical.get() + size)
        .collect();
    let mut items = Items::new();
    for group in &plan.groups {
        let free = group.free(&nodes);
        let mut w = Writer::default();
        w.u32(free.len() as u32).u32(0);
        let key = Key::new(
            group.logical.get(),
            ItemType::FREE_SPACE_INFO,
            group.chunk.length,
        );
        items.push((key, w.finish()));
        for range in free {
            let length = range.end - range.start;
            let key = Key::new(range.start, ItemType::FREE_SPACE_EXTENT, length);
            items.push((key, Vec::new()));
        }
    }
    items
}

fn uuid_tree(plan: &Plan) -> Items {
    let half = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let (first, second) = plan.subvolume_uuid.split_at(8);
    let key = Key::new(half(first), ItemType::UUID_SUBVOL, half(second));
    vec![(key, TreeId::FS.get().to_le_bytes().to_vec())]
}
