//! A whole new volume in memory: its nodes and its superblock.
//!
//! Pure. Some trees describe the addresses of all nodes, also of their own. So
//! planning repeats until the shapes of the trees stay the same. That takes two
//! or three rounds, because shapes only grow.

use super::MkfsError;
use super::layout::{self, ChunkLayout, NewDevice, PlannedChunk};
use super::options::{MkfsOptions, RootOwner};
use super::trees::{self, GENERATION, Identities, PlacedNode, RootOf};
use crate::pack::{Item, NodeForm, PlannedTree, Shape, item_max};
use butterfs_format::item::device::DeviceItem;
use butterfs_format::superblock::{BackupRoot, Superblock};
use butterfs_format::{Generation, Logical, NodeRef, TreeId};
use std::collections::BTreeMap;

/// The most rounds of planning. More mean a fault of this program.
const ROUNDS_MAX: usize = 8;

/// A planned volume.
#[derive(Debug)]
pub(super) struct NewVolume {
    /// Its chunks.
    pub(super) layout: ChunkLayout,
    /// All nodes, with their checksums.
    pub(super) nodes: Vec<BuiltNode>,
    /// Its superblock for the first device.
    pub(super) superblock: Superblock,
    /// The items of all devices, in the order of the devices.
    pub(super) devices: Vec<DeviceItem>,
}

/// A node ready to be written.
#[derive(Clone, Debug)]
pub(super) struct BuiltNode {
    pub(super) logical: Logical,
    pub(super) bytes: Vec<u8>,
}

/// Returns the nodes of a tree, for the extent tree.
fn placed(owner: TreeId, tree: &PlannedTree) -> impl Iterator<Item = PlacedNode> {
    let keys = tree.first_keys().into_iter();
    keys.zip(&tree.addresses)
        .map(move |((first_key, level), logical)| PlacedNode {
            owner,
            logical: *logical,
            first_key,
            level,
        })
}

type Trees = BTreeMap<TreeId, PlannedTree>;

/// Plans a volume on `devices`.
pub(super) fn plan(
    options: &MkfsOptions,
    ids: &Identities,
    devices: &[NewDevice],
) -> Result<NewVolume, MkfsError> {
    let profiles = options.profiles(devices.len())?;
    let layout = layout::plan(options, devices)?;
    let devices = trees::device_items(options, ids, &layout, devices);
    let form = NodeForm {
        node_size: options.node_size,
        checksum: options.checksum,
        fsid: ids.fsid,
        chunk_tree_uuid: ids.chunk_tree,
        generation: GENERATION,
    };
    let trees = settle(options, ids, &layout, &devices)?;
    let mut nodes = Vec::new();
    for (owner, tree) in &trees {
        tree.build(&form, *owner, |logical, bytes| {
            let bytes = bytes.to_vec();
            nodes.push(BuiltNode { logical, bytes });
            Ok::<_, MkfsError>(())
        })?;
    }
    let mut superblock = superblock(options, ids, &layout, &trees, &devices);
    superblock.incompat = options.incompat(profiles);
    Ok(NewVolume {
        layout,
        nodes,
        superblock,
        devices,
    })
}

/// Plans all trees until their shapes stay the same.
fn settle(
    options: &MkfsOptions,
    ids: &Identities,
    layout: &ChunkLayout,
    devices: &[DeviceItem],
) -> Result<Trees, MkfsError> {
    let mut trees = Trees::new();
    for owner in owners(options) {
        let shape = shape(&[], options.node_size)?;
        let tree = PlannedTree {
            shape,
            ..PlannedTree::default()
        };
        trees.insert(owner, tree);
    }
    for _ in 0..ROUNDS_MAX {
        place(&mut trees, layout, options.node_size)?;
        fill(&mut trees, options, ids, layout, devices);
        let mut stable = true;
        for tree in trees.values_mut() {
            let shape = shape(&tree.items, options.node_size)?;
            stable &= shape.nodes() == tree.shape.nodes();
            tree.shape = shape;
        }
        if stable {
            // In their old form, extent items contain the first keys of nodes.
            // All items are known now, so this fills in the right keys.
            fill(&mut trees, options, ids, layout, devices);
            return Ok(trees);
        }
    }
    Err(MkfsError::TreesTooLarge(options.node_size))
}

/// Returns the shape of the fewest nodes that hold the items. Fails if the tree
/// would have more than one branch.
fn shape(items: &[Item], node_size: u32) -> Result<Shape, MkfsError> {
    let too_large = items
        .iter()
        .any(|item| item.data.len() > item_max(node_size));
    let shape = Shape::of(items, node_size);
    if too_large || shape.root_level() > 1 {
        return Err(MkfsError::TreesTooLarge(node_size));
    }
    Ok(shape)
}

fn owners(options: &MkfsOptions) -> Vec<TreeId> {
    let mut owners = vec![
        TreeId::ROOT,
        TreeId::EXTENT,
        TreeId::CHUNK,
        TreeId::DEVICE,
        TreeId::FS,
        TreeId::CSUM,
        TreeId::UUID,
        TreeId::DATA_RELOC,
    ];
    if options.features.has_free_space_tree() {
        owners.push(TreeId::FREE_SPACE);
    }
    if options.features.has_block_group_tree() {
        owners.push(TreeId::BLOCK_GROUP);
    }
    owners
}

/// Gives every node an address.
fn place(trees: &mut Trees, layout: &ChunkLayout, node_size: u32) -> Result<(), MkfsError> {
    let mut system = Cursor::new(&layout.system, node_size);
    let mut metadata = Cursor::new(&layout.metadata, node_size);
    for (owner, tree) in trees {
        let cursor = match *owner {
            TreeId::CHUNK => &mut system,
            _ => &mut metadata,
        };
        let addresses = (0..tree.shape.nodes()).map(|_| cursor.next());
        tree.addresses = addresses
            .collect::<Option<_>>()
            .ok_or(MkfsError::TreesTooLarge(node_size))?;
    }
    Ok(())
}

/// Returns the addresses of a chunk one after the other, except those on
/// superblock copies.
struct Cursor<'l> {
    chunk: &'l PlannedChunk,
    node_size: u64,
    at: u64,
}

impl<'l> Cursor<'l> {
    fn new(chunk: &'l PlannedChunk, node_size: u32) -> Self {
        Self {
            chunk,
            node_size: u64::from(node_size),
            at: chunk.logical.get(),
        }
    }

    fn next(&mut self) -> Option<Logical> {
        let copies = self.chunk.superblocks();
        loop {
            let node = self.at..self.at + self.node_size;
            if node.end > self.chunk.range().end {
                return None;
            }
            let hit = copies
                .iter()
                .find(|copy| copy.start < node.end && node.start < copy.end);
            match hit {
                // A copy ends at a multiple of the greatest node size, so nodes
                // stay aligned.
                Some(copy) => self.at = copy.end,
                None => {
                    self.at = node.end;
                    return Some(Logical(node.start));
                }
            }
        }
    }
}

/// Makes the items of all trees from the addresses of their nodes.
fn fill(
    trees: &mut Trees,
    options: &MkfsOptions,
    ids: &Identities,
    layout: &ChunkLayout,
    devices: &[DeviceItem],
) {
    let nodes: Vec<PlacedNode> = trees
        .iter()
        .flat_map(|(owner, tree)| placed(*owner, tree))
        .collect();
    let roots: Vec<RootOf> = trees
        .iter()
        .filter(|(owner, _)| ![TreeId::ROOT, TreeId::CHUNK].contains(owner))
        .map(|(owner, tree)| RootOf {
            tree: *owner,
            logical: tree.root(GENERATION).logical,
            level: tree.root(GENERATION).level,
            nodes: tree.shape.nodes() as u64,
        })
        .collect();
    let has_group_tree = options.features.has_block_group_tree();
    for (owner, tree) in trees {
        let mut items = match *owner {
            TreeId::ROOT => trees::root_tree(options, ids, &roots),
            TreeId::EXTENT if has_group_tree => trees::extent_tree(options, &nodes),
            TreeId::EXTENT => {
                let mut items = trees::extent_tree(options, &nodes);
                items.extend(trees::block_groups(options, layout, &nodes));
                items
            }
            TreeId::CHUNK => trees::chunk_tree(devices, layout),
            TreeId::DEVICE => trees::device_tree(layout, ids),
            TreeId::FS => trees::subvolume(options, options.root_owner),
            TreeId::DATA_RELOC => trees::subvolume(options, RootOwner::default()),
            TreeId::UUID => trees::uuid_tree(ids),
            TreeId::FREE_SPACE => trees::free_space_tree(options, layout, &nodes),
            TreeId::BLOCK_GROUP => trees::block_groups(options, layout, &nodes),
            _ => Vec::new(),
        };
        items.sort_by_key(|item| item.key);
        tree.items = items;
    }
}

fn superblock(
    options: &MkfsOptions,
    ids: &Identities,
    layout: &ChunkLayout,
    trees: &Trees,
    devices: &[DeviceItem],
) -> Superblock {
    let total_bytes = devices.iter().map(|device| device.total_bytes).sum();
    let num_devices = devices.len() as u64;
    let root = |tree| {
        trees
            .get(&tree)
            .map_or(NO_NODE, |tree: &PlannedTree| tree.root(GENERATION))
    };
    let nodes: usize = trees.values().map(|tree| tree.shape.nodes()).sum();
    let bytes_used = nodes as u64 * u64::from(options.node_size);
    let chunk_root = root(TreeId::CHUNK);
    let tree_root = root(TreeId::ROOT);

    let mut superblock = Superblock::blank(ids.fsid, options.checksum);
    superblock.generation = GENERATION;
    superblock.root = tree_root.logical;
    superblock.root_level = tree_root.level;
    superblock.chunk_root = chunk_root.logical;
    superblock.chunk_root_level = chunk_root.level;
    superblock.chunk_root_generation = GENERATION;
    superblock.total_bytes = total_bytes;
    superblock.num_devices = num_devices;
    superblock.bytes_used = bytes_used;
    superblock.sector_size = options.sector_size;
    superblock.node_size = options.node_size;
    superblock.stripe_size = options.sector_size;
    superblock.compat_ro = options.compat_ro();
    superblock.device = devices[0].clone();
    superblock.label = options.label.clone().into_bytes();
    // All ones mean that no free-space cache (v1) was ever written.
    superblock.cache_generation = if options.features.has_free_space_tree() {
        0
    } else {
        u64::MAX
    };
    superblock.uuid_tree_generation = GENERATION;
    superblock.sys_chunks = vec![(layout.system.logical, layout.system.chunk.clone())];
    superblock.backup_roots[0] = BackupRoot {
        tree_root,
        chunk_root,
        extent_root: root(TreeId::EXTENT),
        fs_root: root(TreeId::FS),
        device_root: root(TreeId::DEVICE),
        csum_root: root(TreeId::CSUM),
        total_bytes,
        bytes_used,
        num_devices,
    };
    superblock
}

const NO_NODE: NodeRef = NodeRef {
    logical: Logical(0),
    generation: Generation(0),
    level: 0,
};
