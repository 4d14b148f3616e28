//! Lies that a log can tell, each by hand.

use super::log_image::{LEVEL, LogImage};
use butterfs_format::node::{HEADER_SIZE, POINTER_SIZE};
use butterfs_format::{ItemType, Key, object};

pub type Lie = fn(&mut LogImage);

/// Fields of a file extent.
const RAM_BYTES: usize = 8;
const COMPRESSION: usize = 16;
const KIND: usize = 20;
const DISK: usize = 21;
const DISK_LENGTH: usize = 29;
const OFFSET: usize = 37;
const LENGTH: usize = 45;
/// Fields of an inode item.
const SIZE: usize = 16;
const BYTES: usize = 24;
const LINKS: usize = 40;
const MODE: usize = 52;
/// Fields of a root item.
const ROOT_LOGICAL: usize = 176;
const ROOT_LEVEL: usize = 238;

/// Object of root items of logs.
const LOGS: u64 = u64::MAX - 5;

fn get(data: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(*data[at..].first_chunk().expect("8 bytes"))
}

fn set(data: &mut [u8], at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn word(data: &mut [u8], at: usize, value: u32) {
    data[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Changes every item in the log of the top level that names an extent on the
/// device.
fn extents(image: &mut LogImage, change: impl Fn(&mut Key, &mut Vec<u8>)) {
    for (key, data) in &mut image.top().items {
        if key.item_type == ItemType::EXTENT_DATA && data[KIND] != 0 && get(data, DISK) != 0 {
            change(key, data);
        }
    }
    image.top().items.sort_by_key(|(key, _)| *key);
    image.top().items.dedup_by_key(|(key, _)| *key);
}

fn inode(image: &mut LogImage, change: impl Fn(&mut Vec<u8>)) {
    let file = image.numbers.file;
    for (key, data) in &mut image.top().items {
        if key.item_type == ItemType::INODE_ITEM && key.objectid == file {
            change(data);
        }
    }
}

fn reference(index: u64, name: &[u8]) -> Vec<u8> {
    let mut data = index.to_le_bytes().to_vec();
    data.extend((name.len() as u16).to_le_bytes());
    data.extend(name);
    data
}

fn entry(target: Key, kind: u8, name: &[u8]) -> Vec<u8> {
    let mut data = target.to_bytes().to_vec();
    data.extend(9_u64.to_le_bytes());
    data.extend(0_u16.to_le_bytes());
    data.extend((name.len() as u16).to_le_bytes());
    data.push(kind);
    data.extend(name);
    data
}

/// An item of a directory. The whole directory is logged.
fn directory(image: &mut LogImage, dir: u64, index: u64, data: Vec<u8>) {
    let (_, mut item) = image.top().find(ItemType::INODE_ITEM);
    word(&mut item, MODE, 0o040_755);
    set(&mut item, SIZE, 0);
    let leaf = image.top();
    leaf.put(Key::new(dir, ItemType::INODE_ITEM, 0), item);
    leaf.put(Key::new(dir, ItemType::DIR_INDEX, index), data);
    let log = Key::new(dir, ItemType::DIR_LOG_INDEX, 2);
    leaf.put(log, u64::MAX.to_le_bytes().to_vec());
}

fn inode_key(inode: u64) -> Key {
    Key::new(inode, ItemType::INODE_ITEM, 0)
}

fn name(image: &mut LogImage, parent: u64, index: u64, name: &[u8]) {
    let file = image.numbers.file;
    let key = Key::new(file, ItemType::INODE_REF, parent);
    image.top().put(key, reference(index, name));
}

/// Makes the leaf of log `at` a branch with these children.
fn branch(image: &mut LogImage, at: usize, level: u8, children: &[(Key, u64, u64)]) {
    let leaf = &mut image.leaves[at];
    let mut bytes = leaf.bytes.clone();
    bytes[HEADER_SIZE..].fill(0);
    word(&mut bytes, 96, children.len() as u32);
    bytes[LEVEL] = level;
    for (slot, (key, logical, generation)) in children.iter().enumerate() {
        let start = HEADER_SIZE + slot * POINTER_SIZE;
        bytes[start..start + 17].copy_from_slice(&key.to_bytes());
        set(&mut bytes, start + 17, *logical);
        set(&mut bytes, start + 25, *generation);
    }
    leaf.raw = Some(bytes);
    image.leaves[0].items[at - 1].1[ROOT_LEVEL] = level;
}

/// A pointer to the leaf of another log.
fn child(image: &LogImage, at: usize, key: Key) -> (Key, u64, u64) {
    let node = image.leaves[at].node;
    (key, node.logical.get(), node.generation.get())
}

pub const ALL: &[(&str, Lie)] = &[
    ("extents over one another, by a sector", |image| {
        let (_, first) = image.top().find(ItemType::EXTENT_DATA);
        let disk = get(&first, DISK);
        extents(image, |key, data| {
            if get(data, DISK) != disk {
                set(data, DISK, disk + 4096 * (1 + key.offset % 3));
            }
        });
    }),
    ("one extent with two lengths", |image| {
        let (_, first) = image.top().find(ItemType::EXTENT_DATA);
        let disk = get(&first, DISK);
        extents(image, |_, data| set(data, DISK, disk));
    }),
    ("one extent twice in a file", |image| {
        let mut all = image.top().items.clone().into_iter();
        let found = all.find(|(key, data)| {
            key.item_type == ItemType::EXTENT_DATA && data[KIND] == 1 && get(data, DISK) != 0
        });
        let (key, data) = found.expect("an extent");
        let again = Key {
            offset: 1 << 20,
            ..key
        };
        image.top().put(again, data);
    }),
    ("over the beginning of what is committed", |image| {
        let (disk, _) = image.committed;
        extents(image, |_, data| set(data, DISK, disk));
    }),
    ("within what is committed", |image| {
        let (disk, _) = image.committed;
        extents(image, |_, data| set(data, DISK, disk + 4096));
    }),
    ("over the end of what is committed", |image| {
        let (disk, length) = image.committed;
        extents(image, |_, data| set(data, DISK, disk + length - 4096));
    }),
    ("before what is committed, and into it", |image| {
        let (disk, length) = image.committed;
        extents(image, |_, data| {
            set(data, DISK, disk - 4096);
            set(data, DISK_LENGTH, length + 8192);
            set(data, RAM_BYTES, length + 8192);
        });
    }),
    ("what is committed, beyond its length", |image| {
        let (disk, length) = image.committed;
        extents(image, |_, data| {
            set(data, DISK, disk);
            set(data, DISK_LENGTH, length);
            set(data, OFFSET, length - 4096);
        });
    }),
    ("data in metadata", |image| {
        let metadata = image.metadata;
        extents(image, |_, data| set(data, DISK, metadata));
    }),
    ("data in the log", |image| {
        let at = image.leaves[1].node.logical.get();
        extents(image, |_, data| set(data, DISK, at));
    }),
    ("data nowhere", |image| {
        extents(image, |_, data| set(data, DISK, 1 << 50));
    }),
    ("data at the end of addresses", |image| {
        extents(image, |_, data| set(data, DISK, u64::MAX - 4095));
    }),
    ("data that are not aligned", |image| {
        extents(image, |_, data| {
            let disk = get(data, DISK);
            set(data, DISK, disk + 512);
        });
    }),
    ("no length on the device", |image| {
        extents(image, |_, data| set(data, DISK_LENGTH, 0))
    }),
    ("a huge length on the device", |image| {
        extents(image, |_, data| set(data, DISK_LENGTH, 1 << 62));
    }),
    ("no length", |image| {
        extents(image, |_, data| set(data, LENGTH, 0))
    }),
    ("a length beyond the extent", |image| {
        extents(image, |_, data| {
            let length = get(data, LENGTH);
            set(data, LENGTH, length + 8192);
        });
    }),
    ("a length of half a sector", |image| {
        extents(image, |_, data| set(data, LENGTH, 2048));
    }),
    ("an offset that overflows", |image| {
        extents(image, |_, data| set(data, OFFSET, u64::MAX - 4095));
    }),
    ("an extent beyond all files", |image| {
        extents(image, |key, _| key.offset = u64::MAX - 4095 - key.offset);
    }),
    ("an extent at the greatest size", |image| {
        extents(image, |key, _| key.offset = i64::MAX as u64 - 4095);
    }),
    ("an extent at an odd place", |image| {
        extents(image, |key, _| key.offset += 100);
    }),
    ("file extents over one another", |image| {
        extents(image, |key, _| key.offset = key.offset / 2 / 4096 * 4096);
    }),
    ("compressed data that claim gigabytes", |image| {
        extents(image, |_, data| {
            data[COMPRESSION] = 3;
            set(data, RAM_BYTES, 1 << 40);
        });
    }),
    ("an unknown compression", |image| {
        extents(image, |_, data| data[COMPRESSION] = 9)
    }),
    ("an unknown kind of extent", |image| {
        extents(image, |_, data| data[KIND] = 7)
    }),
    ("inline data in the middle", |image| {
        let file = image.numbers.file;
        let (_, mut data) = image.top().find(ItemType::EXTENT_DATA);
        data.truncate(DISK);
        data.extend([7; 100]);
        data[KIND] = 0;
        set(&mut data, RAM_BYTES, 100);
        image
            .top()
            .put(Key::new(file, ItemType::EXTENT_DATA, 8192), data);
    }),
    ("inline data that claim more", |image| {
        let file = image.numbers.file;
        let (_, mut data) = image.top().find(ItemType::EXTENT_DATA);
        data.truncate(DISK);
        data.extend([7; 100]);
        data[KIND] = 0;
        set(&mut data, RAM_BYTES, 1 << 33);
        image
            .top()
            .put(Key::new(file, ItemType::EXTENT_DATA, 0), data);
    }),
    ("extents of a directory", |image| {
        let dir = image.numbers.dir;
        let (key, data) = image.top().find(ItemType::EXTENT_DATA);
        image.top().put(
            Key {
                objectid: dir,
                ..key
            },
            data,
        );
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        let mut item = item.clone();
        word(&mut item, MODE, 0o040_755);
        image.top().put(inode_key(dir), item);
    }),
    ("extents of the tree's root", |image| {
        let (key, data) = image.top().find(ItemType::EXTENT_DATA);
        image.top().put(
            Key {
                objectid: 256,
                ..key
            },
            data,
        );
    }),
    ("extents of an inode that is not there", |image| {
        let (key, data) = image.top().find(ItemType::EXTENT_DATA);
        image.top().put(
            Key {
                objectid: 9999,
                ..key
            },
            data,
        );
    }),
    ("a size beyond all files", |image| {
        inode(image, |data| set(data, SIZE, u64::MAX))
    }),
    ("a size at the greatest", |image| {
        inode(image, |data| set(data, SIZE, i64::MAX as u64))
    }),
    ("absurd bytes", |image| {
        inode(image, |data| set(data, BYTES, u64::MAX))
    }),
    ("absurd links", |image| {
        inode(image, |data| word(data, LINKS, u32::MAX))
    }),
    ("no links", |image| {
        inode(image, |data| word(data, LINKS, 0))
    }),
    ("no type", |image| {
        inode(image, |data| word(data, MODE, 0o644))
    }),
    ("all types", |image| {
        inode(image, |data| word(data, MODE, 0o177_777))
    }),
    ("a file becomes a directory", |image| {
        inode(image, |data| word(data, MODE, 0o040_755))
    }),
    ("a file becomes a link", |image| {
        inode(image, |data| word(data, MODE, 0o120_777))
    }),
    ("a file becomes a device", |image| {
        inode(image, |data| word(data, MODE, 0o060_600))
    }),
    ("a generation of the future", |image| {
        inode(image, |data| set(data, 0, u64::MAX))
    }),
    ("unknown flags", |image| {
        inode(image, |data| set(data, 64, u64::MAX))
    }),
    ("a directory becomes a file", |image| {
        let dir = image.numbers.dir;
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(dir), item);
    }),
    ("the tree's root becomes a file", |image| {
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(256), item);
    }),
    ("an inode below all others", |image| {
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(3), item);
    }),
    ("an inode above all others", |image| {
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(u64::MAX - 300), item);
    }),
    ("an inode where orphans are", |image| {
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(u64::MAX - 4), item);
    }),
    ("an inode item with an offset", |image| {
        let file = image.numbers.file;
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image
            .top()
            .put(Key::new(file, ItemType::INODE_ITEM, 77), item);
    }),
    ("an inode without a name", |image| {
        let (_, item) = image.top().find(ItemType::INODE_ITEM);
        image.top().put(inode_key(5000), item);
    }),
    ("a name with a slash", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, b"up/../here");
    }),
    ("the name of the directory itself", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, b".");
    }),
    ("the name of the directory above", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, b"..");
    }),
    ("an empty name", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, b"");
    }),
    ("a name with a zero", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, b"a\0b");
    }),
    ("a name too long", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 70, &[b'x'; 300]);
    }),
    ("a name in a file", |image| {
        let other = image.numbers.other;
        name(image, other, 70, b"name");
    }),
    ("a name in itself", |image| {
        let file = image.numbers.file;
        name(image, file, 70, b"name");
    }),
    ("a name nowhere", |image| name(image, 7777, 70, b"name")),
    ("a name with the index of the dots", |image| {
        let dir = image.numbers.dir;
        name(image, dir, 0, b"name");
    }),
    ("a name with the last index", |image| {
        let dir = image.numbers.dir;
        name(image, dir, u64::MAX, b"name");
    }),
    ("the name of another file", |image| {
        name(image, 256, 70, b"other")
    }),
    ("the name of a directory", |image| {
        name(image, 256, 70, b"d")
    }),
    ("the name of a subvolume", |image| {
        name(image, 256, 70, b"S")
    }),
    ("the index of a subvolume", |image| {
        for index in 2..12 {
            name(image, 256, index, b"name");
        }
    }),
    ("two names with one index", |image| {
        let dir = image.numbers.dir;
        let file = image.numbers.file;
        let mut data = reference(70, b"one");
        data.extend(reference(70, b"two"));
        image
            .top()
            .put(Key::new(file, ItemType::INODE_REF, dir), data);
    }),
    ("one name twice", |image| {
        let dir = image.numbers.dir;
        let file = image.numbers.file;
        let mut data = reference(70, b"one");
        data.extend(reference(71, b"one"));
        image
            .top()
            .put(Key::new(file, ItemType::INODE_REF, dir), data);
    }),
    ("a name with a wrong hash", |image| {
        let (dir, file) = (image.numbers.dir, image.numbers.file);
        let mut data = dir.to_le_bytes().to_vec();
        data.extend(reference(70, b"name"));
        image
            .top()
            .put(Key::new(file, ItemType::INODE_EXTREF, 4711), data);
    }),
    ("a directory with two names", |image| {
        let inner = image.numbers.inner;
        let key = Key::new(inner, ItemType::INODE_REF, 256);
        image.top().put(key, reference(70, b"second way"));
    }),
    ("a directory in itself", |image| {
        let inner = image.numbers.inner;
        let key = Key::new(inner, ItemType::INODE_REF, inner);
        image.top().put(key, reference(70, b"loop"));
    }),
    ("a directory in its child", |image| {
        let (dir, inner) = (image.numbers.dir, image.numbers.inner);
        image.top().put(
            Key::new(dir, ItemType::INODE_REF, inner),
            reference(70, b"loop"),
        );
        image
            .top()
            .put(Key::new(dir, ItemType::INODE_REF, 256), reference(70, b"x"));
        image.top().items.retain(|(key, _)| {
            !(key.objectid == dir && key.item_type == ItemType::INODE_REF && key.offset == 256)
        });
    }),
    ("a name of the tree's root", |image| {
        let dir = image.numbers.dir;
        image.top().put(
            Key::new(256, ItemType::INODE_REF, dir),
            reference(70, b"root"),
        );
    }),
    ("an entry for nobody", |image| {
        let dir = image.numbers.dir;
        directory(image, dir, 70, entry(inode_key(9999), 1, b"nobody"));
    }),
    ("an entry for the directory itself", |image| {
        let dir = image.numbers.dir;
        directory(image, dir, 70, entry(inode_key(dir), 2, b"self"));
    }),
    ("an entry for the tree's root", |image| {
        let dir = image.numbers.dir;
        directory(image, dir, 70, entry(inode_key(256), 2, b"root"));
    }),
    ("an entry of another type", |image| {
        let (dir, other) = (image.numbers.dir, image.numbers.other);
        directory(image, dir, 70, entry(inode_key(other), 2, b"type"));
    }),
    ("an entry with a slash", |image| {
        let (dir, other) = (image.numbers.dir, image.numbers.other);
        directory(image, dir, 70, entry(inode_key(other), 1, b"a/b"));
    }),
    ("an entry for a subvolume", |image| {
        let (dir, tree) = (image.numbers.dir, image.subvolume);
        let key = Key::new(tree.get(), ItemType::ROOT_ITEM, u64::MAX);
        directory(image, dir, 70, entry(key, 2, b"subvolume"));
    }),
    ("a directory of which all is gone", |image| {
        let (_, mut item) = image.top().find(ItemType::INODE_ITEM);
        word(&mut item, MODE, 0o040_755);
        image.top().put(inode_key(256), item);
        let log = Key::new(256, ItemType::DIR_LOG_INDEX, 0);
        image.top().put(log, u64::MAX.to_le_bytes().to_vec());
    }),
    ("entries without their directory", |image| {
        let other = image.numbers.other;
        let data = entry(inode_key(other), 1, b"name");
        image
            .top()
            .put(Key::new(8888, ItemType::DIR_INDEX, 5), data);
    }),
    ("entries of a file", |image| {
        let (file, other) = (image.numbers.file, image.numbers.other);
        let data = entry(inode_key(other), 1, b"name");
        image
            .top()
            .put(Key::new(file, ItemType::DIR_INDEX, 5), data);
    }),
    ("a logged range that ends before it begins", |image| {
        let dir = image.numbers.dir;
        let log = Key::new(dir, ItemType::DIR_LOG_INDEX, 90);
        image.top().put(log, 3_u64.to_le_bytes().to_vec());
    }),
    ("an attribute with a wrong hash", |image| {
        image
            .top()
            .change(ItemType::XATTR_ITEM, |key, _| key.offset ^= 0x55);
    }),
    ("an attribute that is longer than its item", |image| {
        image.top().change(ItemType::XATTR_ITEM, |_, data| {
            data[25..27].copy_from_slice(&9000_u16.to_le_bytes());
        });
    }),
    ("an attribute without a name", |image| {
        image.top().change(ItemType::XATTR_ITEM, |_, data| {
            data[27..29].copy_from_slice(&0_u16.to_le_bytes());
        });
    }),
    ("attributes of nobody", |image| {
        let (key, data) = image.top().find(ItemType::XATTR_ITEM);
        image.top().put(
            Key {
                objectid: 6666,
                ..key
            },
            data,
        );
    }),
    ("checksums of everything", |image| {
        let (disk, _) = image.committed;
        let key = Key::new(object::EXTENT_CSUM, ItemType::EXTENT_CSUM, disk);
        image.top().put(key, vec![7; 800]);
    }),
    ("checksums at an odd place", |image| {
        image
            .top()
            .change(ItemType::EXTENT_CSUM, |key, _| key.offset += 512);
    }),
    ("checksums of half a sum", |image| {
        image.top().change(ItemType::EXTENT_CSUM, |_, data| {
            data.pop();
        });
    }),
    ("no checksums", |image| {
        let kept = |(key, _): &(Key, Vec<u8>)| key.item_type != ItemType::EXTENT_CSUM;
        image.top().items.retain(kept);
    }),
    ("items of no known type", |image| {
        let file = image.numbers.file;
        image
            .top()
            .put(Key::new(file, ItemType(201), 5), vec![1; 50]);
    }),
    ("items out of order", |image| image.top().items.reverse()),
    ("one tree for two subvolumes", |image| {
        let first = image.leaves[0].items[0].1.clone();
        image.leaves[0].items[1].1 = first;
    }),
    ("the log of the tree of extents", |image| {
        image.leaves[0].items[0].0 = Key::new(LOGS, ItemType::ROOT_ITEM, 2);
        image.leaves[0].items.sort_by_key(|(key, _)| *key);
    }),
    ("the log of the tree of roots", |image| {
        image.leaves[0].items[0].0.offset = 1;
    }),
    ("the log of the tree of chunks", |image| {
        image.leaves[0].items[0].0.offset = 3;
    }),
    ("the log of the tree of checksums", |image| {
        image.leaves[0].items[1].0.offset = 7;
        image.leaves[0].items.sort_by_key(|(key, _)| *key);
    }),
    ("the log of the tree of free space", |image| {
        image.leaves[0].items[1].0.offset = 10;
    }),
    ("the log of a subvolume that is not there", |image| {
        image.leaves[0].items[1].0.offset = 7777;
    }),
    ("the log of another subvolume", |image| {
        let own = image.leaves[0].items[0].0.offset;
        image.leaves[0].items[0].0.offset = image.leaves[0].items[1].0.offset;
        image.leaves[0].items[1].0.offset = own;
        image.leaves[0].items.sort_by_key(|(key, _)| *key);
    }),
    ("a log that is the tree of logs", |image| {
        let at = image.leaves[0].node.logical.get();
        set(&mut image.leaves[0].items[0].1, ROOT_LOGICAL, at);
    }),
    ("a log nowhere", |image| {
        set(&mut image.leaves[0].items[0].1, ROOT_LOGICAL, 1 << 50);
    }),
    ("a log that is committed", |image| {
        let metadata = image.metadata;
        set(&mut image.leaves[0].items[0].1, ROOT_LOGICAL, metadata);
    }),
    ("a log of level 9", |image| {
        image.leaves[0].items[0].1[ROOT_LEVEL] = 9
    }),
    ("a child twice", |image| {
        let first = image.leaves[2].items[0].0;
        let again = Key::new(1 << 40, ItemType::INODE_ITEM, 0);
        let children = [child(image, 2, first), child(image, 2, again)];
        image.leaves[0].items.truncate(1);
        branch(image, 1, 1, &children);
    }),
    ("a child of two logs", |image| {
        let first = image.leaves[2].items[0].0;
        let children = [child(image, 2, first)];
        branch(image, 1, 1, &children);
    }),
    ("a branch in itself", |image| {
        let children = [child(image, 1, Key::MIN)];
        branch(image, 1, 1, &children);
    }),
    ("a branch of level 0 in itself, twice", |image| {
        let second = Key::new(300, ItemType::INODE_ITEM, 0);
        let children = [child(image, 1, Key::MIN), child(image, 1, second)];
        branch(image, 1, 7, &children);
    }),
    ("a branch without children", |image| {
        branch(image, 1, 1, &[])
    }),
    ("a leaf without items", |image| image.top().items.clear()),
    ("a tree of logs without items", |image| {
        image.leaves[0].items.clear()
    }),
];
