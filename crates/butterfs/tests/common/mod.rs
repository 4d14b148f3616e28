//! Volumes in memory, and ways to damage them that checksums do not reveal.
#![allow(dead_code, reason = "each test uses a part")]

use butterfs::{Access, BlockDevice, Error, MemoryDevice, OpenOptions, TreeId, Volume, Walk};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{ChecksumType, DeviceOffset, ItemType, Key, Logical, NodeRef};
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
use std::sync::Arc;

/// Bytes of a volume.
pub const SIZE_MIB: u64 = 256;
/// Bytes of a node.
pub const NODE: usize = 4096;

/// A node and where its copies lie.
#[derive(Clone, Debug)]
pub struct Place {
    pub tree: TreeId,
    pub node: NodeRef,
    pub copies: Vec<DeviceOffset>,
}

/// A volume that no test changes: each takes a copy.
pub struct Image {
    pub device: MemoryDevice,
    pub nodes: Vec<Place>,
    /// Files with their content.
    pub files: Vec<(String, Vec<u8>)>,
}

pub fn options(access: Access) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.store.access = access;
    options
}

pub fn open(device: &Arc<MemoryDevice>, access: Access) -> Result<Volume, Error> {
    Volume::open_device(device.clone(), options(access))
}

/// A volume of several levels of nodes, with its files.
pub fn image(profile: ProfileChoice) -> Image {
    let device = Arc::new(MemoryDevice::new(SIZE_MIB << 20));
    let mkfs = MkfsOptions {
        node_size: NODE as u32,
        data: Some(profile),
        metadata: Some(profile),
        ..MkfsOptions::default()
    };
    make(&*device, &mkfs).unwrap();
    let volume = open(&device, Access::ReadWrite).unwrap();
    let mut files = Vec::new();
    volume.create_dir(b"dir").unwrap();
    volume.create_dir(b"dir/sub").unwrap();
    for number in 0..150 {
        let path = format!("dir/file {number}");
        let data = content(number, [100, 3000, 9000][number as usize % 3]);
        volume.write_file(path.as_bytes(), &data).unwrap();
        files.push((path, data));
    }
    volume.close().unwrap();
    let nodes = all_nodes(&volume);
    drop(volume);
    let device = device.snapshot();
    Image {
        device,
        nodes,
        files,
    }
}

impl Image {
    pub fn copy(&self) -> Arc<MemoryDevice> {
        Arc::new(self.device.snapshot())
    }

    /// The places of the nodes of `tree`, the root first.
    pub fn nodes_of(&self, tree: TreeId) -> Vec<Place> {
        let of = self.nodes.iter().filter(|place| place.tree == tree);
        of.cloned().collect()
    }
}

/// Every node of the committed trees, roots before what is below.
pub fn all_nodes(volume: &Volume) -> Vec<Place> {
    let engine = volume.files().store().read();
    let map = engine.space().map();
    let start = |tree| (tree, engine.root(tree).unwrap());
    let mut waiting = vec![start(TreeId::ROOT), start(TreeId::CHUNK)];
    let mut found = Vec::new();
    while let Some((tree, next)) = waiting.pop() {
        let node = engine.node(next).unwrap();
        let mapping = map.map(next.logical, NODE as u64).unwrap();
        found.push(Place {
            tree,
            node: next,
            copies: mapping.copies.iter().map(|copy| copy.offset).collect(),
        });
        for slot in 0..node.len() {
            if !node.is_leaf() {
                waiting.push((tree, node.child(slot)));
            } else if node.key(slot).item_type == ItemType::ROOT_ITEM {
                let item = RootItem::parse(node.data(slot)).unwrap();
                let root = NodeRef {
                    logical: item.logical,
                    generation: item.generation,
                    level: item.level,
                };
                waiting.push((TreeId(node.key(slot).objectid), root));
            }
        }
    }
    found
}

pub fn read(device: &MemoryDevice, at: DeviceOffset, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

/// Rot: a few bytes change, the checksum does not.
pub fn rot(device: &MemoryDevice, at: DeviceOffset) {
    let at = DeviceOffset(at.get() + 1000);
    let mut bytes = read(device, at, 8);
    bytes.iter_mut().for_each(|byte| *byte ^= 0x55);
    device.write_at(at, &bytes).unwrap();
}

/// Changes all copies of a node, with the right checksum.
pub fn edit(device: &MemoryDevice, place: &Place, change: impl FnOnce(&mut [u8])) {
    let mut bytes = read(device, place.copies[0], NODE);
    change(&mut bytes);
    ChecksumType::Crc32c.seal_block(&mut bytes);
    for copy in &place.copies {
        device.write_at(*copy, &bytes).unwrap();
    }
}

/// Changes all copies of the superblock, with the right checksums.
pub fn edit_superblock(device: &MemoryDevice, change: impl FnOnce(&mut Superblock)) {
    let bytes = read(device, COPIES[0], SIZE);
    let mut superblock = Superblock::parse(&bytes, COPIES[0]).unwrap();
    change(&mut superblock);
    for copy in COPIES {
        if copy.get() + SIZE as u64 <= device.size() {
            device.write_at(copy, &superblock.encode(copy)).unwrap();
        }
    }
}

/// Where the descriptor and the data of an item lie in a leaf.
pub fn item(bytes: &[u8], mut wanted: impl FnMut(&Key, &[u8]) -> bool) -> Option<(usize, usize)> {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    (0..word(96)).find_map(|slot| {
        let at = HEADER_SIZE + slot * ITEM_SIZE;
        let key = Key::from_bytes(bytes[at..at + Key::SIZE].try_into().unwrap());
        let start = HEADER_SIZE + word(at + Key::SIZE);
        let data = &bytes[start..start + word(at + Key::SIZE + 4)];
        wanted(&key, data).then_some((at, start))
    })
}

/// Changes one item: `change` gets the leaf, and where descriptor and data lie.
pub fn edit_item(
    image: &Image,
    device: &MemoryDevice,
    tree: TreeId,
    mut wanted: impl FnMut(&Key, &[u8]) -> bool,
    change: impl FnOnce(&mut [u8], usize, usize),
) {
    for place in image.nodes_of(tree) {
        if place.node.level > 0 {
            continue;
        }
        let bytes = read(device, place.copies[0], NODE);
        if let Some((at, data)) = item(&bytes, &mut wanted) {
            edit(device, &place, |bytes| change(bytes, at, data));
            return;
        }
    }
    panic!("no such item");
}

pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Walks everything and reads every file; the first error.
pub fn read_all(volume: &Volume) -> Result<usize, Error> {
    let mut paths = Vec::new();
    volume.walk::<Error>(volume.files().root(), &mut |entry| {
        assert!(paths.len() < 10_000, "a walk without end");
        if !entry.attributes.is_directory() {
            paths.push(entry.path.clone());
        }
        Ok(Walk::Enter)
    })?;
    for path in &paths {
        volume.read_file(path)?;
    }
    Ok(paths.len())
}

/// Reads every node of the volume.
pub fn read_nodes(volume: &Volume, nodes: &[Place]) {
    let engine = volume.files().store().read();
    for place in nodes {
        engine.node(place.node).unwrap();
    }
}

/// Asserts that an error says in one sentence what is wrong, and is no internal
/// error.
#[track_caller]
pub fn one_sentence(error: &Error) -> String {
    let text = error.to_string();
    assert!(text.len() > 20 && !text.contains('\n'), "{text:?}");
    assert!(!text.contains("internal error"), "{text}");
    text
}

/// Opening fails for reading and for writing, and writes nothing.
#[track_caller]
pub fn assert_refused(device: &Arc<MemoryDevice>) -> String {
    let before = device.snapshot();
    let mut text = String::new();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let Err(error) = open(device, access) else {
            panic!("it is opened");
        };
        text = one_sentence(&error);
    }
    assert_eq!(device.first_difference(&before), None, "nothing is written");
    text
}

/// A logical address as text, for looking it up in messages.
pub fn named(logical: Logical) -> String {
    format!("logical {logical}")
}
