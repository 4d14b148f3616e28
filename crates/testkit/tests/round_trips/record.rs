//! Every field of a volume's items and superblock, in words that two volumes
//! with the same history have in common.
//!
//! What is about extents and free space is in [`super::space`].
//!
//! Addresses of extents and nodes are left out, since each allocator chooses its
//! own. Generations, times and UUIDs become what they mean: the part of the
//! history, or whose UUID it is.

use super::space::record_space;
use butterfs::Volume;
use butterfs_format::item::block_group::BlockGroupItem;
use butterfs_format::item::chunk::Chunk;
use butterfs_format::item::device::{DeviceExtent, DeviceItem};
use butterfs_format::item::dir::DirEntries;
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::item::inode::{InodeItem, Timespec};
use butterfs_format::item::qgroup::{QgroupInfo, QgroupLimit, QgroupStatus};
use butterfs_format::item::root::RootItem;
use butterfs_format::item::root_ref::RootRef;
use butterfs_format::item::state::DeviceStats;
use butterfs_format::item::uuid;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{Generation, ItemType, Key, TreeId, UuidBytes};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Values by item and field.
pub type Record = BTreeMap<(String, String), String>;

/// When the parts of a history began, and the generation with which each ended.
#[derive(Default)]
pub struct Parts(pub Vec<(Timespec, Generation)>);

impl Parts {
    pub fn generation(&self, generation: Generation) -> String {
        if generation.get() == 0 {
            return "0".to_owned();
        }
        let part = self.0.iter().position(|(_, end)| generation <= *end);
        part.map_or("later".to_owned(), |part| format!("part {part}"))
    }

    fn time(&self, time: Timespec) -> String {
        let first = self.0.first().map_or(0, |(begin, _)| begin.seconds);
        if time.seconds < first - 3600 {
            // Nobody took it from a clock.
            return format!("{}.{:09}", time.seconds, time.nanoseconds);
        }
        let part = self.0.iter().rposition(|(begin, _)| *begin <= time);
        part.map_or("before".to_owned(), |part| format!("part {part}"))
    }
}

/// Writes down the fields of `$item` that are plain numbers.
macro_rules! plain {
    ($to:expr, $item:expr, $($field:ident),+ $(,)?) => {
        $($to.put(stringify!($field), format!("{:?}", $item.$field));)+
    };
}

/// Writes fields of one item down.
pub struct Fields<'r> {
    record: &'r mut Record,
    item: String,
}

impl<'r> Fields<'r> {
    pub const fn of(record: &'r mut Record, item: String) -> Self {
        Self { record, item }
    }

    pub fn put(&mut self, field: &str, value: impl ToString) {
        let key = (self.item.clone(), field.to_owned());
        self.record.insert(key, value.to_string());
    }
}

struct Recorder<'p> {
    parts: &'p Parts,
    uuids: BTreeMap<UuidBytes, String>,
    record: Record,
}

/// The superblock of an image, as bytes and as values.
pub fn superblock(image: &Path) -> (Vec<u8>, Superblock) {
    let file = std::fs::File::open(image).unwrap();
    let mut bytes = vec![0; SIZE];
    file.read_exact_at(&mut bytes, COPIES[0].get()).unwrap();
    let superblock = Superblock::parse(&bytes, COPIES[0]).unwrap();
    (bytes, superblock)
}

/// Everything in the volume on `images`.
pub fn record(images: &[PathBuf], parts: &Parts) -> Record {
    let options = butterfs::MountOptions::parse("ro").unwrap().open_options();
    let volume = Volume::open_all(images, options).unwrap();
    let mut recorder = Recorder {
        parts,
        uuids: BTreeMap::from([([0; 16], "0".to_owned())]),
        record: Record::new(),
    };
    let superblocks: Vec<_> = images.iter().map(|image| superblock(image)).collect();
    recorder.name_uuids(&volume, &superblocks);
    for (_, superblock) in &superblocks[1..] {
        let item = format!("superblock.device {}", superblock.device.id);
        recorder.device(item, &superblock.device);
    }
    let (bytes, superblock) = &superblocks[0];
    recorder.superblock(&volume, superblock, bytes);
    let mut trees = vec![TreeId::CHUNK, TreeId::ROOT];
    trees.extend(roots(&volume).into_iter().map(|(tree, _)| tree));
    for tree in trees {
        if tree != TreeId::EXTENT && tree != TreeId::CSUM && tree != TreeId::FREE_SPACE {
            items(&volume, tree, |key, data| recorder.item(tree, key, data));
        }
    }
    record_space(&volume, parts, &mut recorder.record);
    volume.close().unwrap();
    recorder.record
}

pub fn items(volume: &Volume, tree: TreeId, mut visit: impl FnMut(Key, &[u8])) {
    let trees = volume.trees();
    let visited = trees.items_from(tree, &Key::MIN, &mut |item| {
        visit(item.key, item.data);
        ControlFlow::Continue(())
    });
    visited.unwrap();
}

fn roots(volume: &Volume) -> Vec<(TreeId, RootItem)> {
    let mut roots = Vec::new();
    items(volume, TreeId::ROOT, |key, data| {
        if key.item_type == ItemType::ROOT_ITEM {
            roots.push((TreeId(key.objectid), RootItem::parse(data).unwrap()));
        }
    });
    roots
}

impl Recorder<'_> {
    fn name_uuids(&mut self, volume: &Volume, superblocks: &[(Vec<u8>, Superblock)]) {
        let trees = volume.trees();
        let root = trees.root(TreeId::FS).unwrap();
        let node = trees.node_at(root.logical).unwrap();
        let header = butterfs_format::node::NodeHeader::parse(node.bytes()).unwrap();
        let mut name = |uuid, text: String| {
            self.uuids.entry(uuid).or_insert(text);
        };
        for (_, superblock) in superblocks {
            let device = &superblock.device;
            name(superblock.fsid, "the volume's".to_owned());
            name(device.uuid, format!("that of device {}", device.id));
        }
        name(header.chunk_tree_uuid, "the chunk tree's".to_owned());
        drop(trees);
        for (tree, item) in roots(volume) {
            name(item.uuid, format!("that of {tree}"));
        }
    }

    fn uuid(&self, uuid: &UuidBytes) -> String {
        let known = self.uuids.get(uuid).cloned();
        known.unwrap_or_else(|| format!("{uuid:02x?}"))
    }

    fn fields(&mut self, item: String) -> Fields<'_> {
        Fields::of(&mut self.record, item)
    }

    fn superblock(&mut self, volume: &Volume, of: &Superblock, bytes: &[u8]) {
        let parts = self.parts;
        let uuids = [self.uuid(&of.fsid), self.uuid(&of.metadata_uuid)];
        let mut to = self.fields("superblock".to_owned());
        plain!(
            to,
            of,
            own_offset,
            flags,
            root_dir,
            num_devices,
            total_bytes,
            sector_size,
            node_size,
            stripe_size,
            compat,
            compat_ro,
            incompat,
            checksum_type,
            root_level,
            chunk_root_level,
            log_root,
            log_root_level,
            label,
            cache_generation
        );
        to.put("fsid", &uuids[0]);
        to.put("metadata_uuid", &uuids[1]);
        to.put("generation", parts.generation(of.generation));
        to.put(
            "chunk_root_generation",
            parts.generation(of.chunk_root_generation),
        );
        let uuid_tree_is_right = of.uuid_tree_generation == of.generation;
        to.put("uuid_tree_generation is generation", uuid_tree_is_right);
        to.put("log_root_transid", format!("{:?}", &bytes[0x68..0x70]));
        // Behind the UUID of metadata: what newer formats use.
        let filled = |bytes: &[u8]| bytes.iter().filter(|byte| **byte != 0).count();
        to.put("reserved", filled(&bytes[0x24b..0x32b]));
        to.put("behind the backup roots", filled(&bytes[0xdcb..]));
        let used: u64 = {
            let mut used = 0;
            let tree = match of.has_block_group_tree() {
                true => TreeId::BLOCK_GROUP,
                false => TreeId::EXTENT,
            };
            items(volume, tree, |key, data| {
                if key.item_type == ItemType::BLOCK_GROUP_ITEM {
                    used += BlockGroupItem::parse(data).unwrap().used;
                }
            });
            used
        };
        to.put("bytes_used is the sum", used == of.bytes_used);
        self.backups(volume, of);
        let device = of.device.clone();
        self.device("superblock.device".to_owned(), &device);
        for (_, chunk) in &of.sys_chunks {
            self.chunk(
                format!("superblock.chunk of {}", chunk.flags.describe()),
                chunk,
            );
        }
    }

    /// The newest backup is that of the commit; the others are of the commits
    /// before.
    fn backups(&mut self, volume: &Volume, of: &Superblock) {
        let mut backups = of.backup_roots.to_vec();
        backups.sort_by_key(|backup| std::cmp::Reverse(backup.tree_root.generation));
        let roots: BTreeMap<TreeId, RootItem> = roots(volume).into_iter().collect();
        for (age, backup) in backups.iter().enumerate() {
            let mut to = self.fields(format!("superblock.backup {age}"));
            plain!(to, backup, total_bytes, num_devices);
            if age > 0 {
                to.put("is there", backup.tree_root.generation.get() > 0);
                continue;
            }
            to.put("bytes_used", backup.bytes_used == of.bytes_used);
            let root = backup.tree_root;
            let same = (root.logical, root.generation) == (of.root, of.generation);
            to.put("tree_root", same && root.level == of.root_level);
            let root = backup.chunk_root;
            let same = (root.logical, root.generation) == (of.chunk_root, of.chunk_root_generation);
            to.put("chunk_root", same && root.level == of.chunk_root_level);
            for (name, tree, root) in [
                ("extent_root", TreeId::EXTENT, backup.extent_root),
                ("fs_root", TreeId::FS, backup.fs_root),
                ("device_root", TreeId::DEVICE, backup.device_root),
                ("csum_root", TreeId::CSUM, backup.csum_root),
            ] {
                let item = &roots[&tree];
                let same = (root.logical, root.generation) == (item.logical, item.generation);
                to.put(name, same && root.level == item.level);
            }
        }
    }

    fn device(&mut self, item: String, of: &DeviceItem) {
        let uuids = [self.uuid(&of.uuid), self.uuid(&of.fsid)];
        let mut to = self.fields(item);
        plain!(
            to,
            of,
            id,
            total_bytes,
            bytes_used,
            io_align,
            io_width,
            sector_size,
            device_type,
            generation,
            start_offset,
            group,
            seek_speed,
            bandwidth
        );
        to.put("uuid", &uuids[0]);
        to.put("fsid", &uuids[1]);
    }

    fn chunk(&mut self, item: String, of: &Chunk) {
        let stripes: Vec<String> = of
            .stripes
            .iter()
            .map(|stripe| format!("{} {}", stripe.device, self.uuid(&stripe.device_uuid)))
            .collect();
        let mut to = self.fields(item);
        plain!(
            to,
            of,
            length,
            owner,
            stripe_length,
            flags,
            io_align,
            io_width,
            sector_size,
            sub_stripes
        );
        to.put("stripes", stripes.join(", "));
    }

    fn inode(&mut self, item: String, of: &InodeItem) {
        let parts = self.parts;
        let mut to = self.fields(item);
        plain!(
            to,
            of,
            size,
            nbytes,
            block_group,
            nlink,
            uid,
            gid,
            mode,
            rdev,
            flags,
            sequence,
            reserved
        );
        to.put("generation", parts.generation(of.generation));
        to.put("transid", parts.generation(of.transid));
        for (name, time) in [
            ("atime", of.atime),
            ("ctime", of.ctime),
            ("mtime", of.mtime),
            ("otime", of.otime),
        ] {
            to.put(name, parts.time(time));
        }
    }

    fn root_item(&mut self, tree: TreeId, of: &RootItem) {
        let item = format!("root {tree}");
        // The inode in it is of no part of the history.
        let inode = &of.inode;
        let mut to = self.fields(format!("{item}.inode"));
        plain!(
            to,
            inode,
            generation,
            transid,
            size,
            nbytes,
            block_group,
            nlink,
            uid,
            gid,
            mode,
            rdev,
            flags,
            sequence,
            reserved,
            atime,
            ctime,
            mtime,
            otime
        );
        let uuids = [&of.uuid, &of.parent_uuid, &of.received_uuid].map(|uuid| self.uuid(uuid));
        let parts = self.parts;
        let mut to = self.fields(item);
        plain!(
            to,
            of,
            root_dir,
            byte_limit,
            flags,
            refs,
            drop_progress,
            drop_level,
            level,
            reserved
        );
        to.put(
            "generation_v2 is generation",
            of.generation == of.generation_v2,
        );
        let levels = u64::from(of.level) + 1;
        to.put(
            "bytes_used",
            of.bytes_used >= levels && of.bytes_used < 1 << 30,
        );
        if of.level == 0 {
            to.put("bytes_used of a leaf", of.bytes_used);
        }
        for (name, generation) in [
            ("generation", of.generation),
            ("last_snapshot", of.last_snapshot),
            ("ctransid", of.ctransid),
            ("otransid", of.otransid),
            ("stransid", of.stransid),
            ("rtransid", of.rtransid),
        ] {
            to.put(name, parts.generation(generation));
        }
        to.put("ctransid is otransid", of.ctransid == of.otransid);
        for (name, time) in [
            ("ctime", of.ctime),
            ("otime", of.otime),
            ("stime", of.stime),
            ("rtime", of.rtime),
        ] {
            to.put(name, parts.time(time));
        }
        for (name, uuid) in ["uuid", "parent_uuid", "received_uuid"].iter().zip(uuids) {
            to.put(name, uuid);
        }
    }

    fn file_extent(&mut self, item: String, of: &FileExtent<'_>) {
        let parts = self.parts;
        let mut to = self.fields(item);
        plain!(to, of, ram_bytes, compression, encryption, other_encoding);
        to.put("generation", parts.generation(of.generation));
        match of.body {
            FileExtentBody::Inline(data) => to.put("inline", data.len()),
            FileExtentBody::Regular(place) | FileExtentBody::Prealloc(place) => {
                let kind = match of.body {
                    FileExtentBody::Prealloc(_) => "preallocated",
                    _ => "regular",
                };
                to.put("kind", kind);
                to.put("is hole", place.disk.get() == 0);
                to.put("disk length", place.disk_length);
                to.put("offset", place.offset);
                to.put("length", place.length);
            }
        }
    }

    fn entries(&mut self, item: String, data: &[u8]) {
        let parts = self.parts;
        for entry in DirEntries::new(data) {
            let entry = entry.unwrap();
            let name = entry.name.escape_ascii();
            let location = match entry.location.item_type {
                // The offset of a snapshot's key is a generation.
                ItemType::ROOT_ITEM if entry.location.offset != u64::MAX => {
                    Key::new(entry.location.objectid, ItemType::ROOT_ITEM, 0)
                }
                _ => entry.location,
            };
            let mut to = self.fields(format!("{item} {name}"));
            to.put("location", location);
            to.put("generation", parts.generation(entry.generation));
            to.put("kind", format!("{:?}", entry.kind));
            to.put("data", entry.data.escape_ascii());
        }
    }

    fn item(&mut self, tree: TreeId, key: Key, data: &[u8]) {
        let item = format!("{tree} {key}");
        match key.item_type {
            ItemType::ROOT_ITEM => {
                self.root_item(TreeId(key.objectid), &RootItem::parse(data).unwrap());
            }
            ItemType::ROOT_REF | ItemType::ROOT_BACKREF => {
                let of = RootRef::parse(data).unwrap();
                let mut to = self.fields(item);
                plain!(to, of, directory, index);
                to.put("name", of.name.escape_ascii());
            }
            ItemType::INODE_ITEM => self.inode(item, &InodeItem::parse(data).unwrap()),
            ItemType::DIR_ITEM | ItemType::DIR_INDEX | ItemType::XATTR_ITEM => {
                self.entries(item, data);
            }
            ItemType::EXTENT_DATA => self.file_extent(item, &FileExtent::parse(data).unwrap()),
            ItemType::CHUNK_ITEM => {
                // Chunks lie elsewhere.
                let chunk = Chunk::parse(data).unwrap();
                self.chunk(format!("chunk of {}", chunk.flags.describe()), &chunk);
            }
            ItemType::DEV_ITEM => self.device(item, &DeviceItem::parse(data).unwrap()),
            ItemType::DEV_EXTENT => {
                let of = DeviceExtent::parse(data).unwrap();
                let uuid = self.uuid(&of.chunk_tree_uuid);
                let mut to = self.fields("device extent".to_owned());
                plain!(to, of, chunk_tree, chunk_objectid);
                to.put("chunk_tree_uuid", uuid);
            }
            ItemType::BLOCK_GROUP_ITEM => {
                let of = BlockGroupItem::parse(data).unwrap();
                let mut to = self.fields(format!("block group {}", of.flags.describe()));
                plain!(to, of, chunk_objectid);
            }
            ItemType::PERSISTENT_ITEM if tree == TreeId::DEVICE => {
                let stats = DeviceStats::parse(data).unwrap();
                self.fields(item).put("counters", format!("{stats:?}"));
            }
            ItemType::UUID_SUBVOL | ItemType::UUID_RECEIVED_SUBVOL => {
                let uuid = self.uuid(&uuid::uuid_of(&key));
                let kind = key.item_type;
                let trees = uuid::parse(data).unwrap();
                self.fields(format!("{kind:?} {uuid}"))
                    .put("trees", format!("{trees:?}"));
            }
            ItemType::QGROUP_STATUS => {
                let of = QgroupStatus::parse(data).unwrap();
                let generation = self.parts.generation(of.generation);
                let mut to = self.fields(item);
                plain!(to, of, version, flags, rescan);
                to.put("generation", generation);
            }
            ItemType::QGROUP_INFO => {
                let of = QgroupInfo::parse(data).unwrap();
                let generation = self.parts.generation(of.generation);
                let mut to = self.fields(item);
                plain!(
                    to,
                    of,
                    referenced,
                    referenced_compressed,
                    exclusive,
                    exclusive_compressed
                );
                to.put("generation", generation);
            }
            ItemType::QGROUP_LIMIT => {
                let of = QgroupLimit::parse(data).unwrap();
                let mut to = self.fields(item);
                to.put("all", format!("{of:?}"));
            }
            _ => self.fields(item).put("data", data.escape_ascii()),
        }
    }
}
