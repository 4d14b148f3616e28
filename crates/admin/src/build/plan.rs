//! The trees of an image, and its superblock.
//!
//! Pure, except for the last step, which writes. Some trees describe where the
//! nodes of all trees lie, also their own. So planning repeats until the shapes
//! of the trees stay the same.

use super::data::{Data, SECTOR};
use super::items::GENERATION;
use super::space::{DEVICE, Placed, Space};
use super::subvolumes::{Plan, Planned};
use super::{BuildError, BuildOptions, Identities, NODE_SIZE};
use crate::pack::{Item, NodeForm, PlannedTree, Shape};
use butterfs_format::checksum::name_hash;
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::block_group::{BlockGroupItem, CHUNK_OBJECTID};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::item::csum;
use butterfs_format::item::device::{DEVICES_OBJECT, DeviceExtent, DeviceItem};
use butterfs_format::item::dir::{DirEntry, FileType};
use butterfs_format::item::extent::{ExtentFlags, ExtentHeader, ExtentItem};
use butterfs_format::item::extent_ref::ExtentRef;
use butterfs_format::item::free_space::{FreeSpaceFlags, FreeSpaceInfo};
use butterfs_format::item::inode::{InodeItem, RefEntry};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::uuid;
use butterfs_format::packed::root_directory;
use butterfs_format::superblock::{BackupRoot, COPIES, SIZE, Superblock};
use butterfs_format::{
    Generation, InodeNumber, ItemType, Key, Logical, NodeRef, TreeId, UuidBytes,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// The most rounds of planning. More mean a fault of this program.
const ROUNDS_MAX: usize = 16;
/// Room for free nodes in an image, so that the kernel can write to it, delete
/// files and enlarge it.
const SPARE_NODES: u64 = 256;
/// The most references of a data extent in its item. Each other reference has its
/// own item.
const INLINE_REFS_MAX: usize = 16;

/// Everything from which the trees of an image are made.
pub(super) struct Trees<'a> {
    pub(super) options: &'a BuildOptions,
    pub(super) ids: &'a Identities,
    pub(super) plan: &'a Plan,
    pub(super) data: &'a Data,
    pub(super) refs: Vec<Vec<ExtentRef>>,
    /// The space with its system and data chunks.
    pub(super) space: Space,
}

/// What was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    pub(super) total: u64,
    pub(super) used: u64,
}

impl Trees<'_> {
    /// Plans all trees and writes them, and then the superblocks.
    pub(super) fn write(
        self,
        image: &File,
        files: Vec<(TreeId, Vec<Item>)>,
    ) -> Result<Written, BuildError> {
        let fixed = self.fixed(files);
        let (trees, space) = self.settle(fixed)?;
        let total = self.total(&space)?;
        let form = NodeForm {
            node_size: NODE_SIZE,
            checksum: self.options.checksum,
            fsid: self.ids.fsid,
            chunk_tree_uuid: self.ids.chunk_tree,
            generation: GENERATION,
        };
        let io = || BuildError::io("the image");
        image.set_len(total).map_err(io())?;
        for (owner, tree) in &trees {
            tree.build(&form, *owner, |logical, bytes| {
                let chunk = space.chunk_of(logical);
                chunk
                    .places(logical.get())
                    .try_for_each(|at| image.write_all_at(bytes, at))
                    .map_err(io())
            })?;
        }
        image.sync_data().map_err(io())?;
        let superblock = self.superblock(&trees, &space, total);
        for copy in COPIES {
            if copy.get() + SIZE as u64 <= total {
                let bytes = superblock.encode(copy);
                image.write_all_at(&bytes, copy.get()).map_err(io())?;
            }
        }
        image.sync_all().map_err(io())?;
        Ok(Written {
            total,
            used: superblock.bytes_used,
        })
    }

    fn total(&self, space: &Space) -> Result<u64, BuildError> {
        let needed = space.device_end();
        match self.options.size {
            None => Ok(needed),
            Some(wanted) => {
                let total = wanted - wanted % SECTOR as u64;
                if total < needed {
                    return Err(BuildError::TooSmall { needed, wanted });
                }
                Ok(total)
            }
        }
    }

    /// Returns the trees that do not depend on where nodes lie.
    fn fixed(&self, files: Vec<(TreeId, Vec<Item>)>) -> BTreeMap<TreeId, Vec<Item>> {
        let mut trees: BTreeMap<TreeId, Vec<Item>> = files.into_iter().collect();
        trees.insert(TreeId::CSUM, self.sums());
        trees.insert(TreeId::UUID, self.uuids());
        trees.insert(TreeId::DATA_RELOC, self.empty_directory());
        trees
    }

    fn sums(&self) -> Vec<Item> {
        let checksum = self.options.checksum;
        let most = csum::entries_max(NODE_SIZE, checksum);
        let mut items = Vec::new();
        for run in &self.data.sums {
            let mut start = run.start;
            for sums in run.sums.chunks(most * checksum.size()) {
                items.push(Item {
                    key: csum::key(Logical(start)),
                    data: sums.to_vec(),
                });
                start += csum::entries(sums.len(), checksum) * SECTOR as u64;
            }
        }
        items
    }

    fn uuids(&self) -> Vec<Item> {
        let all = self.plan.subvolumes.iter();
        let mut items: Vec<Item> = all
            .map(|subvolume| Item {
                key: uuid::key(&self.ids.of(subvolume.tree), ItemType::UUID_SUBVOL),
                data: uuid::encode(&[subvolume.tree]),
            })
            .collect();
        items.sort_by_key(|item| item.key);
        items
    }

    fn directory_item(&self) -> InodeItem {
        InodeItem {
            generation: GENERATION,
            nlink: 1,
            mode: 0o040_755,
            atime: self.options.time,
            ctime: self.options.time,
            mtime: self.options.time,
            otime: self.options.time,
            ..InodeItem::default()
        }
    }

    fn empty_directory(&self) -> Vec<Item> {
        root_directory(InodeNumber::ROOT.get(), &self.directory_item())
    }

    /// Repeats planning until the shapes of all trees stay the same.
    fn settle(
        &self,
        fixed: BTreeMap<TreeId, Vec<Item>>,
    ) -> Result<(BTreeMap<TreeId, PlannedTree>, Space), BuildError> {
        let data_items = self.data_extents();
        let mut trees: BTreeMap<TreeId, PlannedTree> = BTreeMap::new();
        let moving = [
            TreeId::ROOT,
            TreeId::EXTENT,
            TreeId::CHUNK,
            TreeId::DEVICE,
            TreeId::FREE_SPACE,
            TreeId::BLOCK_GROUP,
        ];
        for (owner, items) in fixed {
            let shape = Shape::of(&items, NODE_SIZE);
            let tree = PlannedTree {
                items,
                shape,
                addresses: Vec::new(),
            };
            trees.insert(owner, tree);
        }
        for owner in moving {
            let shape = match owner {
                TreeId::EXTENT => Shape::of(&data_items, NODE_SIZE),
                _ => Shape::of(&[], NODE_SIZE),
            };
            let tree = PlannedTree {
                shape,
                ..PlannedTree::default()
            };
            trees.insert(owner, tree);
        }
        for _ in 0..ROUNDS_MAX {
            let space = self.place(&mut trees)?;
            let described = self.describe(&trees, &space, &data_items);
            let mut is_stable = true;
            for (owner, items) in described {
                let shape = Shape::of(&items, NODE_SIZE);
                let Some(tree) = trees.get_mut(&owner) else {
                    continue;
                };
                is_stable &= shape.nodes() == tree.shape.nodes()
                    && shape.root_level() == tree.shape.root_level();
                tree.shape = shape;
                tree.items = items;
            }
            if is_stable {
                return Ok((trees, space));
            }
        }
        Err(BuildError::NotSettled)
    }

    /// Adds chunks for the nodes and gives every node an address.
    fn place(&self, trees: &mut BTreeMap<TreeId, PlannedTree>) -> Result<Space, BuildError> {
        let node_size = u64::from(NODE_SIZE);
        let mut space = self.space.clone();
        let others = trees.iter().filter(|(owner, _)| **owner != TreeId::CHUNK);
        let nodes: u64 = others.map(|(_, tree)| tree.shape.nodes() as u64).sum();
        // The spare nodes also make up for the room of superblock copies.
        space.add_metadata((nodes + SPARE_NODES) * node_size);
        for (owner, tree) in trees {
            let kind = match *owner {
                TreeId::CHUNK => BlockGroupFlags::SYSTEM,
                _ => BlockGroupFlags::METADATA,
            };
            tree.addresses = (0..tree.shape.nodes())
                .map(|_| space.allocate_node(kind, node_size))
                .collect::<Option<_>>()
                .ok_or(BuildError::NotSettled)?;
        }
        Ok(space)
    }

    /// Returns the items of the trees that say where everything lies.
    fn describe(
        &self,
        trees: &BTreeMap<TreeId, PlannedTree>,
        space: &Space,
        data_items: &[Item],
    ) -> Vec<(TreeId, Vec<Item>)> {
        let mut nodes: Vec<(u64, TreeId, u8)> = Vec::new();
        for (owner, tree) in trees {
            let levels = tree.shape.levels().zip(&tree.addresses);
            nodes.extend(levels.map(|(level, logical)| (logical.get(), *owner, level)));
        }
        nodes.sort_unstable();
        let used = self.used(space, &nodes);
        vec![
            (TreeId::ROOT, self.root_tree(trees)),
            (TreeId::EXTENT, extent_tree(&nodes, data_items)),
            (TreeId::CHUNK, self.chunk_tree(space)),
            (TreeId::DEVICE, self.device_tree(space)),
            (TreeId::FREE_SPACE, free_space_tree(space, &used)),
            (TreeId::BLOCK_GROUP, block_groups(space, &used)),
        ]
    }

    /// Returns the items of all data extents with their references.
    fn data_extents(&self) -> Vec<Item> {
        let mut items = Vec::new();
        for (extent, refs) in self.data.extents.iter().zip(&self.refs) {
            let mut refs = refs.clone();
            refs.sort_by_key(|one| std::cmp::Reverse(one.order()));
            let keyed = refs.split_off(refs.len().min(INLINE_REFS_MAX));
            let count = (refs.len() + keyed.len()) as u64;
            let item = ExtentItem {
                header: ExtentHeader {
                    refs: count,
                    generation: GENERATION,
                    flags: ExtentFlags::DATA,
                    tree_block: None,
                },
                inline: refs,
            };
            let at = extent.logical;
            items.push(Item {
                key: Key::new(at.get(), ItemType::EXTENT_ITEM, extent.length),
                data: item.encode(),
            });
            let mut taken = BTreeMap::new();
            for one in keyed {
                // References with the same hash get the next free offset.
                let mut key = one.key(at);
                while taken.contains_key(&key) {
                    key.offset = key.offset.wrapping_add(1);
                }
                taken.insert(key, one.encode_keyed());
            }
            items.extend(taken.into_iter().map(|(key, data)| Item { key, data }));
        }
        items.sort_by_key(|item| item.key);
        items
    }

    /// Returns the used ranges of each chunk, sorted.
    fn used(&self, space: &Space, nodes: &[(u64, TreeId, u8)]) -> Vec<Vec<Range<u64>>> {
        let mut all: Vec<Range<u64>> = self
            .data
            .extents
            .iter()
            .map(|extent| extent.logical.get()..extent.logical.get() + extent.length)
            .collect();
        let node_size = u64::from(NODE_SIZE);
        all.extend(nodes.iter().map(|(at, ..)| *at..*at + node_size));
        all.sort_by_key(|range| range.start);
        let mut used = vec![Vec::new(); space.chunks.len()];
        let mut number = 0;
        for range in all {
            while range.start >= space.chunks[number].range().end {
                number += 1;
            }
            used[number].push(range);
        }
        used
    }

    fn root_item(&self, tree: TreeId, planned: &PlannedTree) -> RootItem {
        let root = planned.root(GENERATION);
        let nodes = planned.shape.nodes() as u64;
        let mut item = RootItem::of_new_tree(root, nodes, NODE_SIZE);
        if tree == TreeId::DATA_RELOC {
            item.root_dir = InodeNumber::ROOT;
        }
        let mut all = self.plan.subvolumes.iter();
        if let Some(subvolume) = all.find(|subvolume| subvolume.tree == tree) {
            item.root_dir = InodeNumber::ROOT;
            item.vouch_for_flags();
            item.flags = subvolume.flags;
            item.uuid = self.ids.of(tree);
            item.parent_uuid = subvolume
                .snapshot_of
                .map_or([0; 16], |source| self.ids.of(source));
            item.ctime = self.options.time;
            item.otime = self.options.time;
            if tree != TreeId::FS {
                item.ctransid = GENERATION;
                item.otransid = GENERATION;
            }
        }
        item
    }

    fn root_tree(&self, trees: &BTreeMap<TreeId, PlannedTree>) -> Vec<Item> {
        let mut items: Vec<Item> = trees
            .iter()
            .filter(|(owner, _)| ![TreeId::ROOT, TreeId::CHUNK].contains(owner))
            .map(|(owner, tree)| Item {
                key: Key::new(owner.get(), ItemType::ROOT_ITEM, 0),
                data: self.root_item(*owner, tree).encode(),
            })
            .collect();
        items.extend(self.plan.subvolumes.iter().flat_map(hanging));
        let object = TreeId::ROOT_TREE_DIR.get();
        let name = b"default";
        items.push(Item {
            key: Key::new(TreeId::FS.get(), ItemType::INODE_REF, object),
            data: RefEntry { index: 0, name }.encode(),
        });
        let mut directory = self.directory_item();
        directory.nbytes = u64::from(NODE_SIZE);
        items.extend(root_directory(object, &directory));
        let entry = DirEntry {
            location: Key::new(self.plan.default.get(), ItemType::ROOT_ITEM, u64::MAX),
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

    fn device_item(&self, space: &Space) -> DeviceItem {
        let end = space.device_end();
        DeviceItem {
            id: DEVICE,
            total_bytes: self
                .options
                .size
                .map_or(end, |size| size - size % SECTOR as u64),
            bytes_used: space.device_bytes(),
            io_align: SECTOR as u32,
            io_width: SECTOR as u32,
            sector_size: SECTOR as u32,
            uuid: self.ids.device,
            fsid: self.ids.fsid,
            ..DeviceItem::default()
        }
    }

    fn chunk_tree(&self, space: &Space) -> Vec<Item> {
        let device = Item {
            key: Key::new(DEVICES_OBJECT, ItemType::DEV_ITEM, DEVICE.get()),
            data: self.device_item(space).encode(),
        };
        let chunks = space.chunks.iter().map(|chunk| Item {
            key: Key::new(Chunk::OBJECT, ItemType::CHUNK_ITEM, chunk.logical),
            data: chunk.chunk(self.ids.device, SECTOR as u32).encode(),
        });
        std::iter::once(device).chain(chunks).collect()
    }

    fn device_tree(&self, space: &Space) -> Vec<Item> {
        let mut items = Vec::new();
        for chunk in &space.chunks {
            let extent = DeviceExtent {
                chunk_tree: TreeId::CHUNK.get(),
                chunk_objectid: Chunk::OBJECT,
                chunk: Logical(chunk.logical),
                length: chunk.length,
                chunk_tree_uuid: self.ids.chunk_tree,
            };
            items.extend(chunk.places(chunk.logical).map(|at| Item {
                key: Key::new(DEVICE.get(), ItemType::DEV_EXTENT, at),
                data: extent.encode(),
            }));
        }
        items
    }

    fn superblock(
        &self,
        trees: &BTreeMap<TreeId, PlannedTree>,
        space: &Space,
        total: u64,
    ) -> Superblock {
        let root = |tree| {
            trees
                .get(&tree)
                .map_or(NO_NODE, |tree: &PlannedTree| tree.root(GENERATION))
        };
        let nodes: u64 = trees.values().map(|tree| tree.shape.nodes() as u64).sum();
        let data: u64 = self.data.extents.iter().map(|extent| extent.length).sum();
        let used = nodes * u64::from(NODE_SIZE) + data;
        let (chunk_root, tree_root) = (root(TreeId::CHUNK), root(TreeId::ROOT));
        let mut superblock = Superblock::blank(self.ids.fsid, self.options.checksum);
        superblock.generation = GENERATION;
        superblock.root = tree_root.logical;
        superblock.root_level = tree_root.level;
        superblock.chunk_root = chunk_root.logical;
        superblock.chunk_root_level = chunk_root.level;
        superblock.chunk_root_generation = GENERATION;
        superblock.total_bytes = total;
        superblock.bytes_used = used;
        superblock.sector_size = SECTOR as u32;
        superblock.node_size = NODE_SIZE;
        superblock.stripe_size = SECTOR as u32;
        superblock.incompat = self.incompat();
        superblock.compat_ro = CompatRo::FREE_SPACE_TREE
            | CompatRo::FREE_SPACE_TREE_VALID
            | CompatRo::BLOCK_GROUP_TREE;
        superblock.device = self.device_item(space);
        superblock.label = self.options.label.clone().into_bytes();
        superblock.uuid_tree_generation = GENERATION;
        superblock.sys_chunks = space
            .chunks
            .iter()
            .filter(|chunk| chunk.flags.contains(BlockGroupFlags::SYSTEM))
            .map(|chunk| {
                let item = chunk.chunk(self.ids.device, SECTOR as u32);
                (Logical(chunk.logical), item)
            })
            .collect();
        superblock.backup_roots[0] = BackupRoot {
            tree_root,
            chunk_root,
            extent_root: root(TreeId::EXTENT),
            fs_root: root(TreeId::FS),
            device_root: root(TreeId::DEVICE),
            csum_root: root(TreeId::CSUM),
            total_bytes: total,
            bytes_used: used,
            num_devices: 1,
        };
        superblock
    }

    fn incompat(&self) -> Incompat {
        use butterfs_format::compression::Algorithm;
        let mut bits = Incompat::MIXED_BACKREF
            | Incompat::BIG_METADATA
            | Incompat::EXTENDED_IREF
            | Incompat::SKINNY_METADATA
            | Incompat::NO_HOLES;
        match self.options.compression.map(|method| method.algorithm) {
            Some(Algorithm::Zstd) => bits |= Incompat::COMPRESS_ZSTD,
            Some(Algorithm::Lzo) => bits |= Incompat::COMPRESS_LZO,
            Some(Algorithm::Zlib) | None => {}
        }
        if self.plan.default != TreeId::FS {
            bits |= Incompat::DEFAULT_SUBVOL;
        }
        bits
    }
}

impl Identities {
    /// Returns the UUID of a subvolume.
    fn of(&self, tree: TreeId) -> UuidBytes {
        self.subvolumes.get(&tree).copied().unwrap_or_default()
    }
}

/// Returns the items that link a subvolume and its parent, in both directions.
fn hanging(subvolume: &Planned) -> Vec<Item> {
    let Some(hangs) = &subvolume.hangs else {
        return Vec::new();
    };
    let (parent, child) = (hangs.parent.get(), subvolume.tree.get());
    let reference = RootRef {
        directory: hangs.directory,
        index: hangs.index,
        name: &hangs.name,
    };
    vec![
        Item {
            key: Key::new(parent, ItemType::ROOT_REF, child),
            data: reference.encode(),
        },
        Item {
            key: Key::new(child, ItemType::ROOT_BACKREF, parent),
            data: reference.encode(),
        },
    ]
}

/// Returns the items of the extent tree: those of data and one for each node.
fn extent_tree(nodes: &[(u64, TreeId, u8)], data_items: &[Item]) -> Vec<Item> {
    let mut items = data_items.to_vec();
    items.extend(nodes.iter().map(|(at, owner, level)| {
        let item = ExtentItem {
            header: ExtentHeader {
                refs: 1,
                generation: GENERATION,
                flags: ExtentFlags::TREE_BLOCK,
                tree_block: None,
            },
            inline: vec![ExtentRef::TreeBlock { root: *owner }],
        };
        Item {
            key: Key::new(*at, ItemType::METADATA_ITEM, u64::from(*level)),
            data: item.encode(),
        }
    }));
    items.sort_by_key(|item| item.key);
    items
}

/// Returns the block group items, which say how much of each chunk is used.
fn block_groups(space: &Space, used: &[Vec<Range<u64>>]) -> Vec<Item> {
    let item = |(chunk, used): (&Placed, &Vec<Range<u64>>)| {
        let group = BlockGroupItem {
            used: used.iter().map(|range| range.end - range.start).sum(),
            chunk_objectid: CHUNK_OBJECTID,
            flags: chunk.flags,
        };
        Item {
            key: Key::new(chunk.logical, ItemType::BLOCK_GROUP_ITEM, chunk.length),
            data: group.encode(),
        }
    };
    space.chunks.iter().zip(used).map(item).collect()
}

/// Returns the free-space tree: the free ranges of each chunk. Superblock copies
/// count as free here. The kernel and ButterFS leave them out when they load the
/// tree.
fn free_space_tree(space: &Space, used: &[Vec<Range<u64>>]) -> Vec<Item> {
    let mut items = Vec::new();
    for (chunk, used) in space.chunks.iter().zip(used) {
        let mut free: Vec<Range<u64>> = Vec::new();
        let mut at = chunk.logical;
        for range in used {
            if at < range.start {
                free.push(at..range.start);
            }
            at = range.end;
        }
        if at < chunk.range().end {
            free.push(at..chunk.range().end);
        }
        let info = FreeSpaceInfo {
            extents: free.len() as u32,
            flags: FreeSpaceFlags::default(),
        };
        items.push(Item {
            key: Key::new(chunk.logical, ItemType::FREE_SPACE_INFO, chunk.length),
            data: info.encode(),
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

const NO_NODE: NodeRef = NodeRef {
    logical: Logical(0),
    generation: Generation(0),
    level: 0,
};
