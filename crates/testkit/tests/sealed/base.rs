//! The volumes about which something lies, made once by each process.
//!
//! Each has files of all kinds, subvolumes, a snapshot, shared extents, files
//! without copy-on-write, preallocated space, hard links, an orphan, a deleted
//! subvolume that is half freed, and quotas. In the subvolume `sub`, the
//! directory `v` has the victims of commands. They share extents and leaves with
//! files that no command may change.

use super::manifest::Manifest;
use butterfs::{
    Cleaner, CloneSpan, FallocateMode, InodeFlags, InodeId, MemoryDevice, NewInode, OpenOptions,
    Owner, SetMode, SnapshotAccess, Subvolume, TreeId, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make, make_on};
use butterfs_device::BlockDevice;
use butterfs_format::item::root::RootItem;
use butterfs_format::{ChecksumType, DeviceOffset, ItemType, Key, NodeRef};
use butterfs_store::{Engine, QuotaMode};
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Bytes of each device.
pub const SIZE: u64 = 400 << 20;

/// How many volumes there are.
pub const WAYS: usize = 4;

/// A copy of a node on one of the devices.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    pub device: usize,
    pub offset: DeviceOffset,
}

/// A node and where its copies lie.
#[derive(Clone, Debug)]
pub struct Place {
    pub tree: TreeId,
    pub copies: Vec<Spot>,
}

/// An item of a leaf.
#[derive(Clone, Copy, Debug)]
pub struct Item {
    /// Number of its leaf.
    pub node: usize,
    pub slot: usize,
    pub key: Key,
}

/// A volume with all its nodes.
pub struct Base {
    pub way: usize,
    pub devices: Vec<Arc<MemoryDevice>>,
    pub nodes: Vec<Place>,
    /// All items of leaves, those of one type side by side.
    pub types: Vec<Vec<Item>>,
    pub node_size: usize,
    pub checksum: ChecksumType,
    /// What can be read.
    pub manifest: Manifest,
    /// A stream of the snapshot.
    pub stream: Vec<u8>,
}

/// Options for volumes in memory. Nothing happens in the background.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions {
        subvolume: Subvolume::Id(TreeId::FS.get()),
        commit_interval: Duration::from_secs(3600),
        commit_when_quiet: None,
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    options.files.threads = 1;
    options.files.buffer_bytes = 8 << 20;
    options.store.cache_bytes = 16 << 20;
    options
}

pub fn base(way: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; WAYS] = [const { OnceLock::new() }; WAYS];
    BASES[way].get_or_init(|| make_base(way))
}

/// What a way of making volumes is called.
pub fn name(way: usize) -> &'static str {
    [
        "4 KiB nodes, quotas",
        "16 KiB nodes",
        "no free-space tree",
        "two devices, quotas",
    ][way]
}

/// Whether a way of making volumes has quotas.
pub fn has_quotas(way: usize) -> bool {
    way.is_multiple_of(3)
}

fn empty(way: usize) -> Vec<Arc<MemoryDevice>> {
    let mut mkfs = MkfsOptions {
        node_size: if way == 1 { 16384 } else { 4096 },
        fsid: Some([1; 16]),
        ..MkfsOptions::default()
    };
    if way == 2 {
        mkfs.features
            .change("^free-space-tree,^block-group-tree,^no-holes")
            .expect("features");
        mkfs.metadata = Some(ProfileChoice::Single);
    }
    let count = if way == 3 { 2 } else { 1 };
    let devices: Vec<_> = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(SIZE)))
        .collect();
    if way == 3 {
        mkfs.data = Some(ProfileChoice::Single);
        mkfs.metadata = Some(ProfileChoice::Raid1);
        let given: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|one| one.clone() as _).collect();
        make_on(&given, &mkfs).expect("a volume");
    } else {
        mkfs.device_uuid = Some([2; 16]);
        make(&*devices[0], &mkfs).expect("a volume");
    }
    devices
}

/// Opens a volume on devices in memory.
pub fn given(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    devices.iter().map(|one| one.clone() as _).collect()
}

fn make_base(way: usize) -> Base {
    let devices = empty(way);
    let open = || Volume::open_devices(given(&devices), options()).expect("it opens");
    let volume = open();
    fill(&volume);
    volume.close().expect("it closes");
    drop(volume);
    let volume = open();
    share(&volume);
    if has_quotas(way) {
        let enabled = volume.files().enable_quotas(
            QuotaMode::Full,
            &butterfs::du::Limits::default(),
            &mut |_| ControlFlow::Continue(()),
        );
        enabled.expect("quotas");
    }
    let mut stream = Vec::new();
    volume.send("snap", &mut stream).expect("a stream");
    leave_unfinished(&volume);
    volume.sync().expect("it commits");
    let copies: Vec<_> = devices
        .iter()
        .map(|device| Arc::new(device.snapshot()))
        .collect();
    let engine = volume.files().store().read();
    let (nodes, types) = all_nodes(&engine);
    let mut read_only = options();
    read_only.store.access = butterfs::Access::ReadOnly;
    let reader = Volume::open_devices(given(&copies), read_only).expect("it opens");
    let base = Base {
        way,
        nodes,
        types,
        node_size: engine.node_size(),
        checksum: engine.superblock().checksum_type,
        manifest: Manifest::of(&reader),
        devices: copies,
        stream,
    };
    drop(engine);
    assert!(
        base.manifest.files() > 90,
        "{} files",
        base.manifest.files()
    );
    assert!(base.nodes.len() > 20, "{} nodes", base.nodes.len());
    base
}

fn create(volume: &Volume, directory: InodeId, name: &str, data: &[u8]) -> InodeId {
    let files = volume.files();
    let new = NewInode::new(0o100_644, Owner::default());
    let inode = files
        .create(directory, name.as_bytes(), &new)
        .expect("a file");
    volume.write_at(&inode, 0, data).expect("data");
    inode.id
}

/// A file without copy-on-write.
fn create_nodatacow(volume: &Volume, directory: InodeId, name: &str, data: &[u8]) {
    let files = volume.files();
    let new = NewInode::new(0o100_644, Owner::default());
    let inode = files
        .create(directory, name.as_bytes(), &new)
        .expect("a file");
    let wanted = InodeFlags::NODATACOW | InodeFlags::NODATASUM;
    files.set_flags(&inode, wanted).expect("no copy-on-write");
    volume.write_at(&inode, 0, data).expect("data");
}

fn fill(volume: &Volume) {
    volume.create_subvolume("sub").expect("a subvolume");
    volume.create_subvolume("gone").expect("a subvolume");
    volume.create_subvolume("doomed").expect("a subvolume");
    let mut seed = 1;
    for directory in ["keep", "sub/v", "sub/keep", "gone/d", "doomed/d"] {
        let id = volume.create_dir(directory).expect("a directory");
        for file in 0..16_usize {
            seed += 4;
            let length = [0, 100, 1900, 5000, 12_288, 40_000, 140_000, 300_000][file % 8];
            create(volume, id, &format!("f{file}"), &content(seed, length));
        }
        for number in 0..2 {
            let name = format!("nocow{number}");
            create_nodatacow(volume, id, &name, &content(seed + number, 90_000));
        }
    }
    // More than one chunk of data, the first of them full.
    let keep = volume.resolve("keep").expect("it is there");
    for number in 0..3 {
        create(
            volume,
            keep,
            &format!("large{number}"),
            &content(4 * number, 3 << 20),
        );
    }
    let v = volume.resolve("sub/v").expect("it is there");
    let equal = content(400, 200_000);
    create(volume, v, "equal0", &equal);
    create(volume, v, "equal1", &equal);
    let fragmented = create(volume, v, "fragmented", &content(8, 4096));
    let inode = volume.files().inode(fragmented).expect("it is there");
    for turn in 1..24_u64 {
        volume
            .write_at(&inode, turn * 4096, &content(turn, 4096))
            .expect("data");
        volume.files().flush_inode(&inode).expect("it is written");
    }
    let many = volume.create_dir("sub/v/many").expect("a directory");
    for number in 0..60 {
        create(
            volume,
            many,
            &format!("a small file {number}"),
            &content(number, 50),
        );
    }
    volume
        .symlink("../keep/f3", "sub/v/link")
        .expect("a symbolic link");
    volume.sync().expect("it commits");
}

/// Lets files share extents and names; makes holes and preallocated space.
fn share(volume: &Volume) {
    let files = volume.files();
    let file = |path: &str| {
        let id = volume.resolve(path).expect("a file");
        files.inode(id).expect("a file")
    };
    volume
        .snapshot("sub", "snap", SnapshotAccess::ReadOnly)
        .expect("a snapshot");
    volume
        .snapshot("sub", "writable", SnapshotAccess::ReadWrite)
        .expect("a snapshot");
    volume
        .snapshot("doomed", "doomed-snap", SnapshotAccess::ReadOnly)
        .expect("a snapshot");
    for name in ["f5", "f6", "f7", "nocow0"] {
        let from = format!("sub/v/{name}");
        volume
            .reflink(&from[..], &format!("sub/keep/shared-{name}")[..])
            .expect("a reflink");
        volume
            .reflink(&from[..], &format!("keep/shared-{name}")[..])
            .expect("a reflink");
    }
    for number in 0..2 {
        volume
            .hard_link("sub/v/f12", &format!("sub/keep/hard{number}")[..])
            .expect("a hard link");
    }
    volume
        .hard_link("sub/v/f4", "sub/keep/hard-f4")
        .expect("a hard link");
    for number in 0..30 {
        let name = format!("sub/keep/a long name of the same file {number:0>50}");
        volume
            .hard_link("sub/v/f13", &name[..])
            .expect("a hard link");
    }
    let holes = file("sub/keep/f7");
    files
        .fallocate(&holes, FallocateMode::PunchHole, 20_480, 40_960)
        .expect("a hole");
    for path in ["sub/v/f8", "sub/keep/f8"] {
        let inode = file(path);
        files
            .fallocate(&inode, FallocateMode::Allocate, 0, 256 << 10)
            .expect("space");
        volume
            .write_at(&inode, 65_536, &content(3, 9000))
            .expect("data");
    }
    files
        .clone_range(&file("sub/v/f8"), &file("keep/f8"), CloneSpan::default())
        .expect("a reflink");
    // Data behind references by parent.
    volume
        .write_at(&file("sub/v/f6"), 8192, &content(9, 20_000))
        .expect("data");
    volume
        .write_at(&file("writable/v/f14"), 8192, &content(9, 20_000))
        .expect("data");
    let keep = volume.resolve("keep").expect("keep");
    let directory = files.inode(keep).expect("keep");
    let set = files.set_xattr(&directory, b"btrfs.compression", b"zstd", SetMode::Any);
    set.expect("a property");
    create(volume, keep, "packed", &content(6, 300_000));
    for path in ["sub/v/f9", "keep/f9"] {
        let inode = file(path);
        for (name, length) in [("user.small", 10), ("user.large", 2000)] {
            let set = files.set_xattr(&inode, name.as_bytes(), &content(7, length), SetMode::Any);
            set.expect("an attribute");
        }
    }
    volume.sync().expect("it commits");
}

/// Leaves an orphan and a subvolume that is half freed.
fn leave_unfinished(volume: &Volume) {
    let files = volume.files();
    let orphan = volume.resolve("sub/v/f15").expect("a file");
    let inode = files.inode(orphan).expect("a file");
    files.pin(&inode);
    volume.remove_file("sub/v/f15").expect("a name less");
    let gone = volume.resolve("gone/d").expect("a directory");
    for number in 0..900 {
        create(volume, gone, &format!("one of many {number}"), b"inline");
    }
    volume.sync().expect("it commits");
    volume.delete_subvolume("gone").expect("it is deleted");
    volume.sync().expect("it commits");
    files.clean().expect("a step");
}

fn all_nodes(engine: &Engine) -> (Vec<Place>, Vec<Vec<Item>>) {
    let map = engine.space().map();
    let mut waiting: Vec<(TreeId, NodeRef)> = [TreeId::ROOT, TreeId::CHUNK]
        .map(|tree| (tree, engine.root(tree).expect("a root")))
        .to_vec();
    let mut found: Vec<Place> = Vec::new();
    let mut items: std::collections::BTreeMap<u8, Vec<Item>> = Default::default();
    let mut seen = std::collections::BTreeSet::new();
    while let Some((tree, next)) = waiting.pop() {
        if !seen.insert(next.logical) {
            continue;
        }
        let node = engine.node(next).expect("a good node");
        let mapping = map.map(next.logical, 4096).expect("it maps");
        let number = found.len();
        found.push(Place {
            tree,
            copies: mapping
                .copies
                .iter()
                .map(|place| Spot {
                    device: place.device.get() as usize - 1,
                    offset: place.offset,
                })
                .collect(),
        });
        for slot in 0..node.len() {
            let key = node.key(slot);
            if !node.is_leaf() {
                waiting.push((tree, node.child(slot)));
                continue;
            }
            items.entry(key.item_type.0).or_default().push(Item {
                node: number,
                slot,
                key,
            });
            if key.item_type == ItemType::ROOT_ITEM {
                let item = RootItem::parse(node.data(slot)).expect("a root item");
                waiting.push((
                    TreeId(key.objectid),
                    NodeRef {
                        logical: item.logical,
                        generation: item.generation,
                        level: item.level,
                    },
                ));
            }
        }
    }
    (found, items.into_values().collect())
}
