//! Making an image of the metadata of a volume that may be damaged.
//!
//! Only the superblock and the chunks that it holds are trusted. Every node is
//! verified by its pointer. A node that cannot be read is noted and left out.

use super::ImageError;
use super::clusters::{ClusterWriter, Item, Level, RUN_MAX};
use super::sanitize::{Names, Sanitizer};
use butterfs_device::BlockDevice;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::root::RootItem;
use butterfs_format::superblock::{COPIES, SuperFlags, Superblock};
use butterfs_format::{Generation, ItemType, Key, Logical, NodeRef, TreeId};
use butterfs_store::read_superblock;
use butterfs_tree::{Expected, Headers, Node, VolumeIdentity};
use butterfs_volume::{ChunkMap, LogicalSpace, OnDamage, ReadAs};
use rayon::prelude::*;
use std::collections::{BTreeMap, HashSet};
use std::io::Write;
use std::sync::Arc;

/// Runs that are read and packed together.
const RUNS_AT_ONCE: usize = 128;
/// Flag of extents that are nodes.
const TREE_BLOCK: u64 = 2;
/// Object of the root items of fsync logs.
const LOG_OBJECT: u64 = (-6_i64).cast_unsigned();

/// Options of an image.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageOptions {
    /// Level of compression, 0 (none) to 9.
    pub level: u8,
    /// What happens to names.
    pub names: Names,
    /// How nodes are found.
    pub walk: Walk,
}

/// How nodes are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Walk {
    /// By the items of the extent tree.
    #[default]
    ExtentTree,
    /// From the roots of all trees down; for a damaged extent tree.
    Trees,
}

/// A node that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// Its address.
    pub logical: Logical,
    /// Its level. If it is a branch, the nodes below it are missing too, unless
    /// they are found in another way.
    pub level: u8,
}

/// What an image holds.
#[derive(Clone, Debug, Default)]
pub struct Made {
    /// Nodes in it.
    pub nodes: u64,
    /// Nodes that could not be read, sorted by address.
    pub unreadable: Vec<Unreadable>,
    /// Number of names for which no other name with the same hash was found.
    pub without_collision: u64,
}

/// Makes an image of the volume on `devices`. Devices may be missing. Returns
/// what the image holds, and `out`.
///
/// # Errors
/// - [`ImageError::Store`] if a device has no good superblock.
/// - [`ImageError::Devices`] if no device was given.
/// - [`ImageError::Volume`] if the chunks in the superblock contradict each other.
/// - [`ImageError::Io`] if the image cannot be written.
///
/// Other damage of the volume is no error.
pub fn make<W: Write>(
    devices: &[Arc<dyn BlockDevice>],
    options: &ImageOptions,
    out: W,
) -> Result<(Made, W), ImageError> {
    let mut patient = Patient::open(devices)?;
    patient.load_chunks();
    let nodes = patient.find_nodes(options.walk);
    let level = Level(options.level);
    let sanitizer = Sanitizer::new(options.names);
    let mut writer = ClusterWriter::new(out, level);
    let [first, ..] = COPIES;
    writer.add(Item {
        at: first.get(),
        bytes: level.pack(patient.superblock.encode(first))?,
    })?;
    let mut made = Made::default();
    for runs in runs_of(&nodes, patient.identity.node_size).chunks(RUNS_AT_ONCE) {
        let packed: Vec<_> = runs
            .par_iter()
            .map(|run| patient.pack(run, &sanitizer, level))
            .collect();
        for result in packed {
            let (items, missing, count) = result?;
            made.nodes += count;
            made.unreadable.extend(missing);
            for item in items {
                writer.add(item)?;
            }
        }
    }
    made.unreadable.append(&mut patient.unreadable);
    made.unreadable
        .sort_unstable_by_key(|node| node.logical.get());
    made.unreadable.dedup_by_key(|node| node.logical);
    made.without_collision = sanitizer.without_collision();
    Ok((made, writer.finish()?))
}

/// Splits nodes into runs of consecutive nodes that fit in one item.
fn runs_of(nodes: &BTreeMap<u64, Sought>, node_size: usize) -> Vec<Vec<Sought>> {
    let mut runs: Vec<Vec<Sought>> = Vec::new();
    for node in nodes.values() {
        let follows = runs.last_mut().filter(|run| {
            let last = run.last().map(|last| last.logical.get());
            last.map(|last| last + node_size as u64) == Some(node.logical.get())
                && (run.len() + 1) * node_size <= RUN_MAX
        });
        match follows {
            Some(run) => run.push(*node),
            None => runs.push(vec![*node]),
        }
    }
    runs
}

/// A node to read, as its pointer or its extent item describes it.
#[derive(Clone, Copy, Debug)]
struct Sought {
    logical: Logical,
    generation: Option<Generation>,
    level: u8,
}

impl From<NodeRef> for Sought {
    fn from(node: NodeRef) -> Self {
        Self {
            logical: node.logical,
            generation: Some(node.generation),
            level: node.level,
        }
    }
}

type Packed = (Vec<Item>, Vec<Unreadable>, u64);

struct Patient {
    superblock: Superblock,
    space: LogicalSpace,
    identity: VolumeIdentity,
    unreadable: Vec<Unreadable>,
}

impl Patient {
    fn open(devices: &[Arc<dyn BlockDevice>]) -> Result<Self, ImageError> {
        let mut members = Vec::new();
        let mut newest: Option<Superblock> = None;
        for device in devices {
            let found = read_superblock(&**device)?.superblock;
            let own = newest.as_ref().map_or(found.fsid, |one| one.fsid);
            if found.flags.contains(SuperFlags::SEEDING) && found.fsid != own {
                // An image has the nodes of one volume, so seeds are left out.
                continue;
            }
            members.push((found.device.id, Arc::clone(device)));
            if newest
                .as_ref()
                .is_none_or(|one| one.generation < found.generation)
            {
                newest = Some(found);
            }
        }
        let Some(superblock) = newest else {
            return Err(ImageError::Devices {
                volume: 1,
                given: 0,
            });
        };
        let mut map = ChunkMap::default();
        for (logical, chunk) in &superblock.sys_chunks {
            map.insert(*logical, chunk.clone())?;
        }
        let identity = VolumeIdentity {
            fsid: superblock.node_fsid(),
            node_size: superblock.node_size as usize,
            sector_size: superblock.sector_size.into(),
            checksum: superblock.checksum_type,
            headers: Headers::Agree,
        };
        Ok(Self {
            space: LogicalSpace::new(members, map, OnDamage::Leave),
            superblock,
            identity,
            unreadable: Vec::new(),
        })
    }

    fn read(&self, node: Sought) -> Option<Node> {
        let expected = Expected {
            logical: node.logical,
            generation: node.generation,
            level: Some(node.level),
        };
        let mut buffer = vec![0; self.identity.node_size];
        let mut good = None;
        let verify = &mut |bytes: &[u8]| {
            good = Node::verify(bytes.into(), &self.identity, expected).ok();
            good.is_some()
        };
        let read = self
            .space
            .read_verified_as(ReadAs::Former, node.logical, &mut buffer, verify);
        read.ok().and(good)
    }

    /// Calls `visit` with every readable node below a root, each once.
    fn walk(&mut self, root: Sought, seen: &mut HashSet<u64>, visit: &mut dyn FnMut(&Node)) {
        let mut waiting = vec![root];
        while let Some(sought) = waiting.pop() {
            if !seen.insert(sought.logical.get()) {
                continue;
            }
            let Some(node) = self.read(sought) else {
                self.unreadable.push(Unreadable {
                    logical: sought.logical,
                    level: sought.level,
                });
                continue;
            };
            visit(&node);
            if !node.is_leaf() {
                waiting.extend((0..node.len()).map(|slot| Sought::from(node.child(slot))));
            }
        }
    }

    const fn chunk_root(&self) -> Sought {
        Sought {
            logical: self.superblock.chunk_root,
            generation: Some(self.superblock.chunk_root_generation),
            level: self.superblock.chunk_root_level,
        }
    }

    /// Loads the chunks, as far as the chunk tree can be read.
    fn load_chunks(&mut self) {
        let mut map = (*self.space.map()).clone();
        let root = self.chunk_root();
        self.walk(root, &mut HashSet::new(), &mut |node| {
            for (key, data) in items_of(node) {
                if key.item_type == ItemType::CHUNK_ITEM
                    && let Ok(chunk) = Chunk::parse(data)
                {
                    // If two chunks contradict each other, the first is kept.
                    let _ = map.insert(Logical(key.offset), chunk);
                }
            }
        });
        self.space.set_map(map);
        self.unreadable.clear();
    }

    fn find_nodes(&mut self, walk: Walk) -> BTreeMap<u64, Sought> {
        let mut seen = HashSet::new();
        let mut nodes: BTreeMap<u64, Sought> = BTreeMap::new();
        let mut roots: Vec<(TreeId, Sought)> = Vec::new();
        let top = [
            self.chunk_root(),
            Sought {
                logical: self.superblock.root,
                generation: Some(self.superblock.generation),
                level: self.superblock.root_level,
            },
        ];
        for root in top {
            self.walk(root, &mut seen, &mut |node| {
                add(&mut nodes, node);
                roots.extend(roots_in(node));
            });
        }
        if self.superblock.log_root.get() != 0 {
            let log = Sought {
                logical: self.superblock.log_root,
                generation: None,
                level: self.superblock.log_root_level,
            };
            let mut logs = Vec::new();
            self.walk(log, &mut seen, &mut |node| {
                add(&mut nodes, node);
                logs.extend(roots_in(node));
            });
            for (_, root) in logs {
                self.walk(root, &mut seen, &mut |node| add(&mut nodes, node));
            }
        }
        for (tree, root) in roots {
            if walk == Walk::Trees || tree == TreeId::EXTENT {
                self.walk(root, &mut seen, &mut |node| {
                    add(&mut nodes, node);
                    if walk == Walk::ExtentTree {
                        for (key, data) in items_of(node) {
                            if let Some(found) = node_of_extent(key, data) {
                                nodes.entry(found.logical.get()).or_insert(found);
                            }
                        }
                    }
                });
            }
        }
        nodes
    }

    /// Reads the nodes of a run and packs what can be read.
    fn pack(
        &self,
        run: &[Sought],
        sanitizer: &Sanitizer,
        level: Level,
    ) -> Result<Packed, ImageError> {
        let (mut items, mut missing, mut count): Packed = (Vec::new(), Vec::new(), 0);
        let mut open: Option<Item> = None;
        for sought in run {
            let Some(mut node) = self.read(*sought) else {
                missing.push(Unreadable {
                    logical: sought.logical,
                    level: sought.level,
                });
                items.extend(open.take());
                continue;
            };
            if sanitizer.clean(&mut node) {
                self.identity.checksum.seal_block(node.bytes_mut());
            }
            count += 1;
            let item = open.get_or_insert_with(|| Item {
                at: sought.logical.get(),
                bytes: Vec::new(),
            });
            item.bytes.extend_from_slice(node.bytes());
        }
        items.extend(open);
        for item in &mut items {
            item.bytes = level.pack(std::mem::take(&mut item.bytes))?;
        }
        Ok((items, missing, count))
    }
}

fn add(nodes: &mut BTreeMap<u64, Sought>, node: &Node) {
    let reference = node.reference();
    nodes.insert(reference.logical.get(), reference.into());
}

fn items_of(node: &Node) -> impl Iterator<Item = (Key, &[u8])> {
    let slots = if node.is_leaf() { node.len() } else { 0 };
    (0..slots).map(|slot| (node.key(slot), node.data(slot)))
}

fn roots_in(node: &Node) -> Vec<(TreeId, Sought)> {
    let roots = items_of(node).filter(|(key, _)| key.item_type == ItemType::ROOT_ITEM);
    roots
        .filter_map(|(key, data)| {
            let item = RootItem::parse(data).ok()?;
            let is_log = key.objectid == LOG_OBJECT;
            let root = Sought {
                logical: item.logical,
                generation: (!is_log).then_some(item.generation),
                level: item.level,
            };
            Some((TreeId(key.objectid), root))
        })
        .collect()
}

/// Returns the node that an extent item describes; `None` for other items.
fn node_of_extent(key: Key, data: &[u8]) -> Option<Sought> {
    let number = |at: usize| {
        let bytes = data.get(at..at + 8)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    };
    let level = match key.item_type {
        ItemType::METADATA_ITEM => u8::try_from(key.offset).ok()?,
        ItemType::EXTENT_ITEM if number(16)? & TREE_BLOCK != 0 => *data.get(24 + Key::SIZE)?,
        _ => return None,
    };
    Some(Sought {
        logical: Logical(key.objectid),
        generation: Some(Generation(number(8)?)),
        level,
    })
}
