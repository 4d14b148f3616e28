//! The volumes that images are mutated from: small ones with all that
//! ButterFS writes, made anew in memory by each process. The same program
//! makes the same nodes in the same order, but for times.

use butterfs::du::Limits;
use butterfs::quota::QuotaMode;
use butterfs::{
    Compress, FallocateMode, Filesystem, InodeId, NewInode, OpenOptions, Owner, SetMode,
    SnapshotAccess, TreeId, Volume,
};
use butterfs_admin::balance::{self, Filters, Redundancy};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make, make_on};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::compression::{Algorithm, Level};
use butterfs_format::item::root::RootItem;
use butterfs_format::{ChecksumType, DeviceOffset, ItemType, Logical, NodeRef, Physical};
use butterfs_store::Engine;
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A place on one of the devices.
#[derive(Clone, Copy, Debug)]
pub struct Spot {
    /// Which of them.
    pub device: usize,
    /// Where on it.
    pub offset: DeviceOffset,
}

/// A node and where its copies lie.
#[derive(Clone, Debug)]
pub struct Place {
    /// What points to it.
    pub node: NodeRef,
    /// Its copies.
    pub copies: Vec<Spot>,
}

/// A volume, with all its nodes.
#[derive(Debug)]
pub struct Base {
    /// The devices, not to be changed, by their numbers.
    pub devices: Vec<Arc<MemoryDevice>>,
    /// Every node, trees of the superblock first.
    pub nodes: Vec<Place>,
    /// Bytes of a node.
    pub node_size: usize,
    /// Checksum of nodes.
    pub checksum: ChecksumType,
    /// Where data lie.
    pub data: Vec<Spot>,
}

/// Options for volumes in memory.
#[must_use]
pub fn options(way: usize) -> OpenOptions {
    let mut options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        ..OpenOptions::default()
    };
    options.files.threads = 1;
    options.files.buffer_bytes = 4 << 20;
    options.store.cache_bytes = 4 << 20;
    options.files.compress = match way {
        0 => Compress::Force(Algorithm::Zstd, Level(3)),
        1 => Compress::Force(Algorithm::Lzo, Level(0)),
        _ => Compress::Off,
    };
    options
}

/// How many volumes there are; the last ones have several devices.
pub const WAYS: usize = 6;

/// The volumes, each made when it is first asked for.
pub fn base(way: usize) -> &'static Base {
    static BASES: [OnceLock<Base>; WAYS] = [const { OnceLock::new() }; WAYS];
    BASES[way].get_or_init(|| make_base(way))
}

/// An empty volume on several devices in memory: stripes with mirrored metadata,
/// or parity with three copies of the metadata.
fn several(way: usize, size: u64) -> Vec<Arc<MemoryDevice>> {
    let (data, metadata, count) = match way {
        4 => (ProfileChoice::Raid0, ProfileChoice::Raid1, 2),
        _ => (ProfileChoice::Raid5, ProfileChoice::Raid1c3, 3),
    };
    let mkfs = MkfsOptions {
        node_size: 4096,
        fsid: Some([1; 16]),
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    let devices: Vec<_> = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(size)))
        .collect();
    let given: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|one| one.clone() as _).collect();
    make_on(&given, &mkfs).expect("a volume");
    devices
}

/// An empty volume in memory.
#[must_use]
pub fn empty(way: usize, size: u64) -> Arc<MemoryDevice> {
    let mut mkfs = MkfsOptions {
        label: "fuzz".to_owned(),
        node_size: if way == 1 { 16384 } else { 4096 },
        fsid: Some([1; 16]),
        device_uuid: Some([2; 16]),
        ..MkfsOptions::default()
    };
    let features = match way {
        2 => {
            mkfs.checksum = ChecksumType::Xxhash;
            mkfs.metadata = Some(ProfileChoice::Single);
            "^block-group-tree,^no-holes"
        }
        3 => "^free-space-tree,^block-group-tree,^skinny-metadata",
        _ => "",
    };
    mkfs.features.change(features).expect("features");
    let device = Arc::new(MemoryDevice::new(size));
    make(&*device, &mkfs).expect("a volume");
    device
}

fn make_base(way: usize) -> Base {
    let devices = match way {
        0..4 => vec![empty(way, 160 << 20)],
        _ => several(way, 160 << 20),
    };
    let given = || devices.iter().map(|one| one.clone() as _).collect();
    let open = || Volume::open_devices(given(), options(way)).expect("it opens");
    let volume = open();
    fill(&volume);
    volume.close().expect("it closes");
    drop(volume);
    let volume = open();
    change(&volume);
    share(&volume, way);
    volume.sync().expect("it commits");
    if way == 0 {
        // The last changes are in the fsync log alone.
        let files = volume.files();
        let new = NewInode::new(0o100_644, Owner::default());
        let inode = files.create(files.root(), b"logged", &new).expect("a file");
        volume.write_at(&inode, 0, &content(3, 9000)).expect("data");
        files.fsync(&inode).expect("a log");
        let old = volume.resolve(b"d3/f1").expect("a file");
        let old = files.inode(old).expect("a file");
        volume.write_at(&old, 5000, b"changed").expect("data");
        files.fsync(&old).expect("a log");
    }
    let copies = devices.iter().map(|device| Arc::new(device.snapshot()));
    let engine = volume.files().store().read();
    let base = Base {
        nodes: all_nodes(&engine),
        node_size: engine.node_size(),
        checksum: engine.superblock().checksum_type,
        data: data_places(&engine),
        devices: copies.collect(),
    };
    drop(engine);
    assert!(base.nodes.len() > 12, "{} nodes", base.nodes.len());
    base
}

fn fill(volume: &Volume) {
    let files = volume.files();
    let root = files.root();
    for directory in 0..4_u8 {
        let name = format!("d{directory}");
        let id = volume.create_dir(name.as_bytes()).expect("a directory");
        for file in 0..12_usize {
            let new = NewInode::new(0o100_644, Owner::default());
            let name = format!("f{file}");
            let inode = files.create(id, name.as_bytes(), &new).expect("a file");
            let length = [0, 100, 1900, 5000, 40_000, 140_000][file % 6];
            let data = content(file as u64, length);
            volume.write_at(&inode, 0, &data).expect("data");
        }
    }
    let new = NewInode::symlink(b"d0/f3", Owner::default());
    files.create(root, b"link", &new).expect("a link");
    let linked = volume.resolve(b"d1/f4").expect("a file");
    for number in 0..40 {
        let name = format!("a name of the same file {number:0>60}");
        files.link(linked, root, name.as_bytes()).expect("a name");
    }
    attributes(files, linked);
    for name in [&b"fifo"[..], b"socket", b"device"] {
        let mode = match name {
            b"fifo" => 0o010_644,
            b"socket" => 0o140_644,
            _ => 0o060_600,
        };
        let new = NewInode::new(mode, Owner::default());
        files.create(root, name, &new).expect("a node");
    }
}

fn attributes(files: &Filesystem, id: InodeId) {
    let inode = files.inode(id).expect("an inode");
    for (name, length) in [("user.small", 10), ("user.large", 3000)] {
        let value = content(7, length);
        let set = files.set_xattr(&inode, name.as_bytes(), &value, SetMode::Any);
        set.expect("an attribute");
    }
    let acl: Vec<u8> = [2_u32, 0x0007_0001, !0, 0x0005_0004, !0, 0x0005_0020, !0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let set = files.set_xattr(&inode, b"system.posix_acl_access", &acl, SetMode::Any);
    set.expect("an ACL");
}

/// Makes holes, shared and preallocated extents, an orphan.
fn change(volume: &Volume) {
    let files = volume.files();
    let file = |path: &[u8]| {
        let id = volume.resolve(path).expect("a file");
        files.inode(id).expect("a file")
    };
    let big = file(b"d0/f5");
    let punch = FallocateMode::PunchHole;
    files
        .fallocate(&big, punch, 20_000, 30_000)
        .expect("a hole");
    let other = file(b"d0/f0");
    let keep = FallocateMode::AllocateKeepSize;
    files.fallocate(&other, keep, 0, 1 << 20).expect("space");
    volume
        .write_at(&other, 8192, &content(1, 9000))
        .expect("data");
    let copy = file(b"d1/f0");
    files
        .copy_range((&big, 65536), (&copy, 4096), 40_000)
        .expect("a copy");
    files
        .unlink(volume.resolve(b"d2").expect("d2"), b"f4")
        .expect("a name less");
    let root = files.root();
    let orphan = file(b"d2/f5");
    files.pin(&orphan);
    let d2 = volume.resolve(b"d2").expect("d2");
    files.unlink(d2, b"f5").expect("a name less");
    files.lookup(root, b"link").expect("the link");
}

/// Makes snapshots that share nodes and data, quota groups on two of the
/// volumes, and references by parent on those that are balanced.
fn share(volume: &Volume, way: usize) {
    let files = volume.files();
    volume.create_subvolume("work").expect("a subvolume");
    for number in 0..90_usize {
        let path = format!("work/a file with a name that takes space {number:0>60}");
        let length = [700, 9000, 0, 40_000][number % 4];
        let data = content(number as u64, length);
        volume.write_file(&path, &data).expect("a file");
    }
    let first = volume.snapshot("work", "s1", SnapshotAccess::ReadOnly);
    first.expect("a snapshot");
    for number in (0..90_usize).step_by(7) {
        let path = format!("work/a file with a name that takes space {number:0>60}");
        volume.write_file(&path, b"changed").expect("a file");
    }
    let big = volume.resolve("d0/f5").expect("a file");
    let big = files.inode(big).expect("a file");
    let copy = volume.create_file("work/shared").expect("a file");
    drop(copy);
    let copy = volume.resolve("work/shared").expect("a file");
    let copy = files.inode(copy).expect("a file");
    files
        .copy_range((&big, 0), (&copy, 0), 60_000)
        .expect("a copy");
    let second = volume.snapshot("work", "s2", SnapshotAccess::ReadOnly);
    second.expect("a snapshot");
    volume.remove_file("work/shared").expect("a name less");
    if way == 2 || way == 5 {
        let limits = Limits::default();
        let quotas =
            files.enable_quotas(QuotaMode::Full, &limits, &mut |_| ControlFlow::Continue(()));
        quotas.expect("quotas");
    }
    if way % 2 == 1 {
        let store = files.store();
        let moved = balance::start(store, &Filters::all(), Redundancy::MayShrink, &mut |_| None);
        moved.expect("a balance");
        volume
            .write_file("work/after the balance", &content(5, 5000))
            .expect("a file");
    }
}

/// Every node that the committed trees, and the fsync log, reach.
fn all_nodes(engine: &Engine) -> Vec<Place> {
    let map = engine.space().map();
    let mut trees = vec![TreeId::ROOT, TreeId::CHUNK];
    let mut waiting: Vec<NodeRef> = Vec::new();
    let mut found = Vec::new();
    while let Some(next) = waiting.pop().or_else(|| {
        let tree = trees.pop()?;
        Some(engine.root(tree).expect("a root"))
    }) {
        let node = engine.node(next).expect("a good node");
        let mapping = map.map(next.logical, 4096).expect("it maps");
        found.push(Place {
            node: next,
            copies: mapping.copies.iter().map(spot).collect(),
        });
        for slot in 0..node.len() {
            if !node.is_leaf() {
                waiting.push(node.child(slot));
            } else if node.key(slot).item_type == ItemType::ROOT_ITEM {
                let item = RootItem::parse(node.data(slot)).expect("a root item");
                waiting.push(NodeRef {
                    logical: item.logical,
                    generation: item.generation,
                    level: item.level,
                });
            }
        }
    }
    found
}

/// The first device has the number 1.
fn spot(place: &Physical) -> Spot {
    Spot {
        device: place.device.get() as usize - 1,
        offset: place.offset,
    }
}

fn data_places(engine: &Engine) -> Vec<Spot> {
    let map = engine.space().map();
    let data = engine.chunks().filter(|(_, chunk)| chunk.flags.0 & 1 != 0);
    data.flat_map(|(start, _)| {
        let mapping = map.map(Logical(start.get()), 4096).expect("it maps");
        mapping.copies.iter().map(spot).collect::<Vec<_>>()
    })
    .collect()
}
