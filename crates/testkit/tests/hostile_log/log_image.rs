//! A volume with fsync logs whose items can be changed.

use butterfs::{
    BlockDevice, FallocateMode, MemoryDevice, NewInode, OpenOptions, Owner, SetMode, TreeId, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_format::item::root::RootItem;
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE};
use butterfs_format::{ChecksumType, DeviceOffset, ItemType, Key, NodeRef};
use butterfs_store::{Engine, LogPolicy};
use butterfs_testkit::Random;
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
use std::sync::Arc;

/// Where the number of items lies, and the level.
const ITEM_COUNT: usize = 96;
pub const LEVEL: usize = 100;

pub type Items = Vec<(Key, Vec<u8>)>;

/// A leaf of a log.
#[derive(Clone)]
pub struct Leaf {
    /// Its address.
    pub node: NodeRef,
    /// Its bytes, as they were.
    pub bytes: Vec<u8>,
    copies: Vec<DeviceOffset>,
    /// The items that it shall have.
    pub items: Items,
    /// The whole block, if it is no longer a leaf.
    pub raw: Option<Vec<u8>>,
}

impl Leaf {
    fn load(engine: &Engine, node: NodeRef) -> Self {
        let loaded = engine.node(node).expect("a good node");
        assert!(loaded.is_leaf(), "logs are one leaf");
        let mapping = engine.space().map().map(node.logical, 4096);
        let copies = mapping.expect("it maps").copies;
        Self {
            node,
            bytes: loaded.bytes().to_vec(),
            copies: copies.iter().map(|copy| copy.offset).collect(),
            items: (0..loaded.len())
                .map(|slot| (loaded.key(slot), loaded.data(slot).to_vec()))
                .collect(),
            raw: None,
        }
    }

    /// Its bytes with its items, in the given order.
    fn encode(&self) -> Option<Vec<u8>> {
        if let Some(raw) = &self.raw {
            return Some(raw.clone());
        }
        let mut bytes = self.bytes.clone();
        bytes[HEADER_SIZE..].fill(0);
        let mut end = bytes.len() - HEADER_SIZE;
        for (slot, (key, data)) in self.items.iter().enumerate() {
            end = end.checked_sub(data.len())?;
            let at = HEADER_SIZE + slot * ITEM_SIZE;
            if at + ITEM_SIZE > HEADER_SIZE + end {
                return None;
            }
            bytes[at..at + Key::SIZE].copy_from_slice(&key.to_bytes());
            bytes[at + 17..at + 21].copy_from_slice(&(end as u32).to_le_bytes());
            bytes[at + 21..at + 25].copy_from_slice(&(data.len() as u32).to_le_bytes());
            bytes[HEADER_SIZE + end..HEADER_SIZE + end + data.len()].copy_from_slice(data);
        }
        let count = self.items.len() as u32;
        bytes[ITEM_COUNT..ITEM_COUNT + 4].copy_from_slice(&count.to_le_bytes());
        Some(bytes)
    }

    /// The items of a type.
    pub fn find(&self, item_type: ItemType) -> (Key, Vec<u8>) {
        let found = self
            .items
            .iter()
            .find(|(key, _)| key.item_type == item_type);
        found.expect("the log has such an item").clone()
    }

    /// Changes the first item of a type.
    pub fn change(&mut self, item_type: ItemType, change: impl FnOnce(&mut Key, &mut Vec<u8>)) {
        let mut items = self.items.iter_mut();
        let found = items.find(|(key, _)| key.item_type == item_type);
        let (key, data) = found.expect("the log has such an item");
        change(key, data);
        self.items.sort_by_key(|(key, _)| *key);
    }

    /// Adds an item, or replaces the one with its key.
    pub fn put(&mut self, key: Key, data: Vec<u8>) {
        self.items.retain(|(other, _)| *other != key);
        self.items.push((key, data));
        self.items.sort_by_key(|(key, _)| *key);
    }
}

/// A volume with logs of two subvolumes.
#[derive(Clone)]
pub struct LogImage {
    device: Arc<MemoryDevice>,
    checksum: ChecksumType,
    /// The roots of logs, the log of the top level, the log of `S`.
    pub leaves: Vec<Leaf>,
    /// The subvolume `S`.
    pub subvolume: TreeId,
    /// Inodes of the top level.
    pub numbers: Numbers,
    /// A data extent that the last commit has, with its length.
    pub committed: (u64, u64),
    /// Start of a block group of metadata.
    pub metadata: u64,
}

/// Inodes of the top level about which logs lie.
#[derive(Clone, Copy)]
pub struct Numbers {
    /// Directory `d`, with a file and a directory in it.
    pub dir: u64,
    /// `d/inner`.
    pub inner: u64,
    /// File with committed and logged extents.
    pub file: u64,
    /// File that the log does not name.
    pub other: u64,
}

fn options(log: LogPolicy) -> OpenOptions {
    let mut options = OpenOptions {
        commit_interval: std::time::Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    options.store.log = log;
    options
}

impl LogImage {
    pub fn new(node_size: u32) -> Self {
        let device = Arc::new(MemoryDevice::new(160 << 20));
        let mut mkfs = MkfsOptions {
            node_size,
            ..MkfsOptions::default()
        };
        // Debian's btrfs check does not know it.
        mkfs.features
            .change("^block-group-tree")
            .expect("a feature");
        make(&*device, &mkfs).expect("mkfs");
        let shared: Arc<dyn BlockDevice> = device.clone();
        let volume = Volume::open_device(shared, options(LogPolicy::Replay)).expect("it opens");
        let numbers = fill(&volume);
        let device = Arc::new(device.snapshot());
        drop(volume);
        let shared: Arc<dyn BlockDevice> =
            Arc::new(butterfs_device::ReadOnlyDevice::new(device.clone()));
        let mut look = OpenOptions::read_only();
        look.store.log = LogPolicy::Ignore;
        let volume = Volume::open_device(shared, look).expect("it opens");
        let engine = volume.files().store().read();
        let superblock = engine.superblock();
        let roots = Leaf::load(
            &engine,
            NodeRef {
                logical: superblock.log_root,
                generation: butterfs_format::Generation(superblock.generation.get() + 1),
                level: superblock.log_root_level,
            },
        );
        let mut leaves = vec![roots];
        for (_, data) in leaves[0].items.clone() {
            let item = RootItem::parse(&data).expect("a root item");
            let node = NodeRef {
                logical: item.logical,
                generation: item.generation,
                level: item.level,
            };
            leaves.push(Leaf::load(&engine, node));
        }
        assert_eq!(leaves.len(), 3, "logs of two subvolumes");
        let subvolume = TreeId(leaves[0].items[1].0.offset);
        let committed = first_extent(&engine, numbers.other);
        let group = |wanted: u64| {
            let mut groups = engine.groups();
            let found = groups.find(|group| group.flags.0 & wanted != 0);
            found.expect("a block group").start.get()
        };
        let metadata = group(4);
        Self {
            checksum: superblock.checksum_type,
            device: device.clone(),
            leaves,
            subvolume,
            numbers,
            committed,
            metadata,
        }
    }

    /// The volume with the given leaves.
    pub fn device(&self) -> MemoryDevice {
        let device = self.device.snapshot();
        for leaf in &self.leaves {
            // What does not fit stays as it was.
            let mut bytes = leaf.encode().unwrap_or_else(|| leaf.bytes.clone());
            self.checksum.seal_block(&mut bytes);
            for copy in &leaf.copies {
                device.write_at(*copy, &bytes).expect("memory");
            }
        }
        device
    }

    /// The log of the top level.
    pub fn top(&mut self) -> &mut Leaf {
        &mut self.leaves[1]
    }

    /// Changes items at random: bytes, keys, whole items.
    pub fn mutate(&mut self, random: &mut Random) {
        for _ in 0..=random.below(3) {
            let which = [0, 1, 1, 1, 2][random.below(5) as usize];
            let leaf = &mut self.leaves[which];
            let at = random.below(leaf.items.len() as u64) as usize;
            match random.below(9) {
                0..=3 => flip(&mut leaf.items[at].1, random),
                4 => {
                    let mut key = leaf.items[at].0.to_bytes().to_vec();
                    flip(&mut key, random);
                    let key = Key::from_bytes(key.first_chunk().expect("a key"));
                    leaf.items[at].0 = key;
                }
                5 => {
                    leaf.items.remove(at);
                }
                6 => {
                    let length = leaf.items[at].1.len() as u64;
                    leaf.items[at].1.truncate(random.below(length + 1) as usize);
                }
                7 => {
                    // An item of another place, with the data of this one.
                    let other = random.below(leaf.items.len() as u64) as usize;
                    let data = leaf.items[at].1.clone();
                    leaf.items[other].1 = data;
                }
                _ => {
                    let (mut key, data) = leaf.items[at].clone();
                    match random.below(3) {
                        0 => key.objectid = 256 + random.below(14),
                        1 => key.offset = random.below(40) * 4096,
                        _ => key.offset = random.below(300),
                    }
                    leaf.put(key, data);
                }
            }
            if leaf.items.is_empty() {
                return;
            }
            if !random.one_in(8) {
                leaf.items.sort_by_key(|(key, _)| *key);
                leaf.items.dedup_by_key(|(key, _)| *key);
            }
        }
    }
}

/// Changes some bytes to what is likely to hurt.
fn flip(data: &mut [u8], random: &mut Random) {
    if data.is_empty() {
        return;
    }
    let at = random.below(data.len() as u64) as usize;
    match random.below(5) {
        0 => data[at] = 0xff,
        1 => data[at] = 0,
        2 => data[at] ^= 1 << random.below(8),
        3 => data[at] = random.below(256) as u8,
        _ => {
            // A number of eight bytes grows by some sectors.
            let at = at.min(data.len().saturating_sub(8));
            if let Some(field) = data[at..].first_chunk_mut::<8>() {
                let sum = u64::from_le_bytes(*field).wrapping_add(4096 * random.below(9));
                *field = sum.to_le_bytes();
            }
        }
    }
}

fn first_extent(engine: &Engine, inode: u64) -> (u64, u64) {
    let key = Key::new(inode, ItemType::EXTENT_DATA, 0);
    let found = butterfs_tree::find(engine, TreeId::FS, &key).expect("it is read");
    let (leaf, slot) = found.expect("it has an extent");
    let data = leaf.data(slot);
    let number = |at: usize| u64::from_le_bytes(*data[at..].first_chunk().expect("8 bytes"));
    (number(21), number(29))
}

fn fill(volume: &Volume) -> Numbers {
    let files = volume.files();
    let root = files.root();
    let new = NewInode::new(0o100_644, Owner::default());
    let dir = volume.create_dir(b"d").expect("a directory");
    let inner = volume.create_dir(b"d/inner").expect("a directory");
    let make = |parent, name: &[u8]| files.create(parent, name, &new).expect("a file");
    let (file, other) = (make(dir, b"file"), make(root, b"other"));
    let leaf = make(inner, b"leaf");
    volume
        .write_at(&file, 0, &content(4, 60_000))
        .expect("data");
    volume
        .write_at(&other, 0, &content(8, 90_000))
        .expect("data");
    volume.write_at(&leaf, 0, &content(12, 500)).expect("data");
    files
        .set_xattr(&file, b"user.old", b"value", SetMode::Any)
        .expect("an attribute");
    files.link(file.id, root, b"linked").expect("a name");
    let tree = files
        .create_subvolume(root, b"S", &NewInode::new(0o040_755, Owner::default()))
        .expect("a subvolume");
    let below = butterfs::InodeId {
        tree,
        number: butterfs_format::InodeNumber::ROOT,
    };
    let second = make(below, b"second");
    volume
        .write_at(&second, 0, &content(3, 30_000))
        .expect("data");
    volume.sync().expect("a commit");
    // From here on all is in logs.
    volume
        .write_at(&file, 8192, &content(4, 20_000))
        .expect("data");
    volume
        .write_at(&file, 70_000, &content(8, 9000))
        .expect("data");
    files
        .fallocate(&file, FallocateMode::AllocateKeepSize, 200_704, 65_536)
        .expect("space");
    files
        .set_xattr(&file, b"user.new", b"another", SetMode::Any)
        .expect("an attribute");
    let fresh = make(dir, b"fresh");
    volume.write_at(&fresh, 0, &content(4, 300)).expect("data");
    files.link(fresh.id, root, b"fresh too").expect("a name");
    volume
        .write_at(&second, 4096, &content(4, 9000))
        .expect("data");
    for inode in [&file, &fresh, &second] {
        files.fsync(inode).expect("a log");
    }
    Numbers {
        dir: dir.number.get(),
        inner: inner.number.get(),
        file: file.id.number.get(),
        other: other.id.number.get(),
    }
}
