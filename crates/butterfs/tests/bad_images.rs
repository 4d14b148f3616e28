//! Images that are cut, rotten or lie. The result is a typed error in one
//! sentence, or the good copy if there is one, and never a panic, a hang or a
//! write that was not asked for.

mod common;
#[path = "bad_images/free_space.rs"]
mod free_space;
#[path = "bad_images/members.rs"]
mod members;
#[path = "bad_images/mirrors.rs"]
mod mirrors;
#[path = "bad_images/space.rs"]
mod space;
#[path = "bad_images/unfinished.rs"]
mod unfinished;
#[path = "bad_images/wrong_copies.rs"]
mod wrong_copies;

use butterfs::{
    Access, BlockDevice, DeviceError, Error, FileDevice, FsError, MemoryDevice, OpenOptions,
    SnapshotAccess, StoreError, TreeId, Volume,
};
use butterfs_admin::mkfs::ProfileChoice::{Dup, Single};
use butterfs_format::features::{CompatRo, Incompat};
use butterfs_format::item::file_extent::{FileExtent, FileExtentBody};
use butterfs_format::node::{HEADER_SIZE, field};
use butterfs_format::superblock::COPIES;
use butterfs_format::{DeviceOffset, Generation, ItemType, Key, Logical};
use butterfs_store::read_superblock;
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, KernelMount, scratch_dir};
use butterfs_tree::{Cursor, NodeFault, NodeSource, TreeError};
use common::*;
use std::sync::Arc;

#[test]
fn files_cut_short_are_refused() {
    let image = image(Dup);
    let dir = scratch_dir();
    let path = dir.path().join("cut.img");
    let whole = image.device.size();
    let lengths = [
        1,
        4095,
        64 << 10,
        (64 << 10) + 4095,
        68 << 10,
        1 << 20,
        5 << 20,
        64 << 20,
        (64 << 20) + 4096,
        whole / 2,
        whole - 4096,
        whole - 1,
    ];
    for length in lengths {
        image.device.save(&path).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(length).unwrap();
        let before = MemoryDevice::load(&path).unwrap();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = match Volume::open(&path, options(access)) {
                Err(error) => error,
                // What is left of it can be read.
                Ok(volume) if access == Access::ReadOnly && length >= 64 << 20 => {
                    drop(volume);
                    continue;
                }
                Ok(_) => panic!("{length} bytes are opened"),
            };
            let text = one_sentence(&error);
            assert!(text.contains("cut.img"), "{length}: {text}");
        }
        let after = MemoryDevice::load(&path).unwrap();
        assert_eq!(after.size(), length);
        assert_eq!(after.first_difference(&before), None);
    }
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "").unwrap();
    one_sentence(&Volume::open(&empty, OpenOptions::default()).unwrap_err());
    let missing = Volume::open(dir.path().join("missing"), OpenOptions::default());
    one_sentence(&missing.unwrap_err());
    one_sentence(&Volume::open(dir.path(), OpenOptions::default()).unwrap_err());
}

#[test]
fn what_is_no_volume_is_refused() {
    for fill in [0_u8, 0xff, 0x5a] {
        let device = MemoryDevice::new(200 << 20);
        device
            .write_at(DeviceOffset(0), &vec![fill; 1 << 20])
            .unwrap();
        let text = assert_refused(&Arc::new(device));
        assert!(text.contains("no Btrfs volume"), "{text}");
    }
    let image = image(Dup);
    let device = image.copy();
    for copy in &COPIES[..2] {
        let magic = DeviceOffset(copy.get() + 64);
        device.write_at(magic, b"_BHRfS_X").unwrap();
    }
    let text = assert_refused(&device);
    assert!(text.contains("magic"), "{text}");
}

/// Of a node that changed in memory the device has only what was there before.
#[test]
fn a_changed_node_of_another_level_is_not_looked_for_on_the_device() {
    let device = image(Single).copy();
    let volume = open(&device, Access::ReadWrite).unwrap();
    volume.write_file(b"new", b"content").unwrap();
    let engine = volume.files().store().read();
    let root = engine.root(TreeId::FS).unwrap();
    let found = engine.node_at(root.logical, Some(root.level)).unwrap();
    assert_eq!(found.generation(), engine.generation());
    // What an earlier commit has left in its place is as good as any node.
    let other = engine.root(TreeId::CHUNK).unwrap();
    let map = engine.space().map();
    let place = |at| map.map(at, NODE as u64).unwrap().copies[0].offset;
    let mut bytes = read(&device, place(other.logical), NODE);
    put_u64(&mut bytes, field::LOGICAL, root.logical.get());
    butterfs_format::ChecksumType::Crc32c.seal_block(&mut bytes);
    device.write_at(place(root.logical), &bytes).unwrap();
    let level = Some(other.level);
    assert_ne!(level, Some(root.level));
    let error = engine.node_at(root.logical, level).unwrap_err();
    assert!(
        matches!(
            &error,
            StoreError::Tree(TreeError::Corrupt {
                fault: NodeFault::Level,
                ..
            })
        ),
        "{error:?}"
    );
}

#[test]
fn a_mirror_stands_in_for_a_damaged_superblock() {
    let image = image(Dup);
    let device = image.copy();
    rot(&device, COPIES[0]);
    let found = read_superblock(&*device).unwrap();
    assert_eq!(found.damaged.len(), 1, "it is said");
    assert!(found.damaged[0].contains("65536"), "{:?}", found.damaged);
    let before = device.snapshot();
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
    drop(volume);
    assert_eq!(device.first_difference(&before), None);
    // The next commit makes it good.
    let volume = open(&device, Access::ReadWrite).unwrap();
    volume.write_file(b"new", b"content").unwrap();
    volume.close().unwrap();
    drop(volume);
    assert!(read_superblock(&*device).unwrap().damaged.is_empty());

    for copy in &COPIES[..2] {
        rot(&device, *copy);
    }
    let text = assert_refused(&device);
    assert!(
        text.contains("65536") && text.contains("67108864"),
        "{text}"
    );
}

/// The bytes of a node or sector are equal on two devices.
#[track_caller]
fn assert_same(a: &MemoryDevice, b: &MemoryDevice, at: DeviceOffset, what: &str) {
    assert!(read(a, at, 4096) == read(b, at, 4096), "{what}: {at}");
}

#[test]
fn a_rotten_node_is_healed_from_its_copy() {
    let image = image(Dup);
    let pristine = image.copy();
    for copy in 0..2 {
        let device = image.copy();
        for place in &image.nodes {
            assert_eq!(place.copies.len(), 2);
            rot(&device, place.copies[copy]);
        }
        let rotten = device.snapshot();
        let volume = open(&device, Access::ReadOnly).unwrap();
        assert_eq!(read_all(&volume).unwrap(), image.files.len());
        read_nodes(&volume, &image.nodes);
        drop(volume);
        let difference = device.first_difference(&rotten);
        assert_eq!(difference, None, "reading alone changes nothing");
        let volume = open(&device, Access::ReadWrite).unwrap();
        assert_eq!(read_all(&volume).unwrap(), image.files.len());
        read_nodes(&volume, &image.nodes);
        drop(volume);
        if copy == 0 {
            for place in &image.nodes {
                assert_same(&device, &pristine, place.copies[0], "it is rewritten");
            }
        }
    }
}

#[test]
fn a_rotten_node_without_a_copy_is_an_error() {
    let image = image(Single);
    let mut refused = 0;
    for place in &image.nodes {
        let device = image.copy();
        rot(&device, place.copies[0]);
        let before = device.snapshot();
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = match open(&device, access) {
                Ok(volume) => {
                    let error = read_all(&volume).err();
                    if let Some(Error::At { error, .. } | Error::Fs(error)) = &error {
                        assert_eq!(error.errno(), 5, "{error}");
                    }
                    error
                }
                Err(error) => {
                    refused += 1;
                    Some(error)
                }
            };
            let Some(error) = error else {
                // Nothing that was asked for needs this node.
                continue;
            };
            let text = one_sentence(&error);
            assert!(text.contains(&named(place.node.logical)), "{text}");
            assert!(text.contains("checksum"), "{text}");
        }
        // At most, a commit counts the errors and changes nothing else.
        assert_same(&device, &before, place.copies[0], "it is left alone");
    }
    assert!(refused > 0);
}

/// Where the data of a file lie.
fn data_place(volume: &Volume, path: &str) -> (Logical, Vec<DeviceOffset>) {
    let id = volume.resolve(path.as_bytes()).unwrap();
    let engine = volume.files().store().read();
    let first = Key::new(id.number.get(), ItemType::EXTENT_DATA, 0);
    let cursor = Cursor::seek_in(&*engine, TreeId::FS, &first).unwrap();
    let extent = FileExtent::parse(cursor.data()).unwrap();
    let FileExtentBody::Regular(place) = extent.body else {
        panic!("{path} is inline");
    };
    let mapping = engine.space().map().map(place.disk, 4096).unwrap();
    let copies = mapping.copies.iter().map(|copy| copy.offset).collect();
    (place.disk, copies)
}

#[test]
fn rotten_data_name_the_place_or_are_healed() {
    const PATH: &str = "dir/file 2";
    for (profile, copies) in [(Single, 1), (Dup, 2)] {
        let image = image(profile);
        let device = image.copy();
        let volume = open(&device, Access::ReadOnly).unwrap();
        let (logical, places) = data_place(&volume, PATH);
        drop(volume);
        assert_eq!(places.len(), copies);
        rot(&device, places[0]);
        let rotten = device.snapshot();
        let volume = open(&device, Access::ReadWrite).unwrap();
        let read = volume.read_file(PATH.as_bytes());
        if copies == 2 {
            assert!(read.unwrap() == image.files[2].1);
            drop(volume);
            assert_same(&device, &image.copy(), places[0], "it is rewritten");
            continue;
        }
        let error = read.unwrap_err();
        let text = one_sentence(&error);
        assert!(text.contains(&named(logical)), "{text}");
        let offset = format!("device 1 offset {}", places[0]);
        assert!(text.contains(&offset), "{text}");
        assert!(text.contains("checksum"), "{text}");
        assert!(matches!(
            &error,
            Error::At { error, .. } | Error::Fs(error) if error.errno() == 5
        ));
        assert!(text.contains(PATH), "the path is named: {text}");
        // What is whole can still be read.
        assert!(volume.read_file(b"dir/file 5").unwrap() == image.files[5].1);
        drop(volume);
        assert_same(&device, &rotten, places[0], "it is left alone");
    }
}

#[test]
fn trees_that_loop_end() {
    let image = image(Dup);
    let nodes = image.nodes_of(TreeId::FS);
    let root = &nodes[0];
    assert!(root.node.level > 0, "the tree has branches");
    // A branch that points to itself.
    let device = image.copy();
    edit(&device, root, |bytes| {
        put_u64(bytes, HEADER_SIZE + 17, root.node.logical.get());
        put_u64(bytes, HEADER_SIZE + 25, root.node.generation.get());
    });
    let volume = open(&device, Access::ReadOnly);
    let error = volume.and_then(|volume| read_all(&volume)).unwrap_err();
    one_sentence(&error);

    // A branch of the extent tree that points to itself; its nodes are counted
    // when the volume is opened for writing.
    let device = image.copy();
    let volume = open(&device, Access::ReadWrite).unwrap();
    volume.write_file(b"scattered", b"").unwrap();
    let inode = volume.resolve(b"scattered").unwrap();
    let inode = volume.files().inode(inode).unwrap();
    for number in 0..8000 {
        volume
            .files()
            .write(&inode, number * 8192, &[7; 4096])
            .unwrap();
    }
    drop(inode);
    volume
        .snapshot("/", "/snapshot", SnapshotAccess::ReadOnly)
        .unwrap();
    volume.close().unwrap();
    let nodes = all_nodes(&volume);
    drop(volume);
    let of_extents = |place: &&Place| place.tree == TreeId::EXTENT;
    let root = nodes.iter().find(of_extents).unwrap();
    assert!(root.node.level > 1, "the tree has branches of branches");
    edit(&device, root, |bytes| {
        put_u64(bytes, HEADER_SIZE + 17, root.node.logical.get());
        put_u64(bytes, HEADER_SIZE + 25, root.node.generation.get());
    });
    let opened = open(&device, Access::ReadWrite);
    if let Ok(volume) = opened {
        assert!(read_all(&volume).unwrap() > image.files.len());
    }

    // A directory that holds the root directory.
    let device = image.copy();
    let volume = open(&device, Access::ReadOnly).unwrap();
    let dir = volume.resolve(b"dir").unwrap();
    let sub = volume.resolve(b"dir/sub").unwrap();
    drop(volume);
    for item_type in [ItemType::DIR_ITEM, ItemType::DIR_INDEX] {
        let is_entry = |key: &Key, data: &[u8]| {
            key.objectid == dir.number.get()
                && key.item_type == item_type
                && data[..8] == sub.number.get().to_le_bytes()
        };
        edit_item(&image, &device, TreeId::FS, is_entry, |bytes, _, data| {
            put_u64(bytes, data, 256);
        });
    }
    let volume = open(&device, Access::ReadWrite).unwrap();
    let text = one_sentence(&read_all(&volume).unwrap_err());
    assert!(text.contains("second name"), "{text}");
}

/// Nothing in the numbers of simple quotas tells that somebody wrote without
/// them. So nobody does.
#[test]
fn simple_quotas_that_cannot_be_read_refuse_writers() {
    let image = image(Dup);
    let device = image.copy();
    let volume = open(&device, Access::ReadWrite).unwrap();
    let enabled = volume.files().enable_quotas(
        butterfs_store::QuotaMode::Simple,
        &butterfs_fs::subvolume::du::Limits::default(),
        &mut |_| std::ops::ControlFlow::Continue(()),
    );
    enabled.unwrap();
    volume.close().unwrap();
    let nodes = all_nodes(&volume);
    drop(volume);
    let of_quotas = |place: &&Place| place.tree == TreeId::QUOTA;
    let leaf = nodes.iter().find(of_quotas).expect("a tree of one leaf");
    let whole = device.snapshot();
    leaf.copies.iter().for_each(|copy| rot(&device, *copy));
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
    drop(volume);
    let before = device.snapshot();
    let error = open(&device, Access::ReadWrite).unwrap_err();
    let text = one_sentence(&error);
    assert!(text.contains("simple quotas"), "{text}");
    assert_eq!(device.first_difference(&before), None);
    // It could not be read for a while alone.
    let volume = open(&Arc::new(whole), Access::ReadWrite).unwrap();
    volume.write_file(b"new", b"content").unwrap();
    volume.close().unwrap();
}

#[test]
fn impossible_items_are_refused() {
    let image = image(Dup);
    let leaf = |place: &&Place| place.node.level == 0;
    let nodes = image.nodes_of(TreeId::FS);
    let place = nodes.iter().find(leaf).unwrap();
    let faults = [
        // Data of the first item outside of the leaf.
        (HEADER_SIZE + 17, u32::MAX, NodeFault::ItemRange),
        (HEADER_SIZE + 21, u32::MAX, NodeFault::ItemRange),
        (96, u32::MAX, NodeFault::ItemCount),
    ];
    for (at, value, expected) in faults {
        let device = image.copy();
        edit(&device, place, |bytes| {
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        });
        let volume = open(&device, Access::ReadOnly).unwrap();
        let error = read_all(&volume).unwrap_err();
        one_sentence(&error);
        let (Error::At { error, .. } | Error::Fs(error)) = &error else {
            panic!("{error}");
        };
        let FsError::Store(StoreError::Tree(TreeError::Corrupt { logical, fault })) = error else {
            panic!("{error}");
        };
        assert_eq!((*logical, *fault), (place.node.logical, expected));
    }
}

/// Damages a node. The arguments: its bytes, the offset of the item's
/// descriptor, the offset of its data.
type Change = dyn Fn(&mut [u8], usize, usize);

#[test]
fn impossible_chunks_are_refused() {
    let image = image(Single);
    // The superblock lists the system chunk too.
    let is_chunk =
        |key: &Key, data: &[u8]| key.item_type == ItemType::CHUNK_ITEM && data[24] & 2 == 0;
    let changes: [(&str, &Change); 5] = [
        // The stripe: beyond the device, over another's, elsewhere.
        ("beyond", &|bytes, _, data| {
            put_u64(bytes, data + 56, 1 << 40)
        }),
        ("overflow", &|bytes, _, data| {
            put_u64(bytes, data + 56, u64::MAX - 4095);
        }),
        ("length", &|bytes, _, data| put_u64(bytes, data, 1 << 62)),
        ("empty", &|bytes, _, data| put_u64(bytes, data, 0)),
        ("profile", &|bytes, _, data| {
            put_u64(bytes, data + 24, 0x18 | 1)
        }),
    ];
    for (what, change) in changes {
        let device = image.copy();
        edit_item(&image, &device, TreeId::CHUNK, is_chunk, change);
        let text = assert_refused(&device);
        assert!(
            text.contains("chunk") || text.contains("profile"),
            "{what}: {text}"
        );
    }
    // Two chunks on one range of the device.
    let device = image.copy();
    let mut first = None;
    edit_item(
        &image,
        &device,
        TreeId::CHUNK,
        is_chunk,
        |bytes, _, data| {
            first = Some(bytes[data + 56..data + 64].to_vec());
        },
    );
    let mut count = 0;
    let second = |key: &Key, data: &[u8]| {
        count += usize::from(is_chunk(key, data));
        count == 2
    };
    edit_item(&image, &device, TreeId::CHUNK, second, |bytes, _, data| {
        bytes[data + 56..data + 64].copy_from_slice(&first.unwrap());
    });
    let text = assert_refused(&device);
    assert!(text.contains("chunk"), "{text}");
}

#[test]
fn other_volumes_nodes_and_unknown_features_are_refused() {
    let image = image(Dup);
    let device = image.copy();
    edit_superblock(&device, |superblock| {
        superblock.fsid = [9; 16];
        superblock.device.fsid = [9; 16];
    });
    let text = assert_refused(&device);
    assert!(text.contains("another volume"), "{text}");

    let device = image.copy();
    edit_superblock(&device, |superblock| {
        superblock.incompat |= Incompat(1 << 40);
    });
    let text = assert_refused(&device);
    assert!(text.contains("does not know"), "{text}");

    let device = image.copy();
    edit_superblock(&device, |superblock| {
        superblock.compat_ro |= CompatRo(1 << 40);
    });
    let before = device.snapshot();
    let error = open(&device, Access::ReadWrite).unwrap_err();
    let text = one_sentence(&error);
    assert!(text.contains("-o ro"), "{text}");
    let volume = open(&device, Access::ReadOnly).unwrap();
    assert_eq!(read_all(&volume).unwrap(), image.files.len());
    drop(volume);
    assert_eq!(device.first_difference(&before), None);

    // The greatest possible generation, after which there is none.
    let device = image.copy();
    edit_superblock(&device, |superblock| {
        superblock.generation = Generation(u64::MAX);
    });
    assert_refused(&device);
}

#[test]
fn a_second_opener_is_refused() {
    let image = image(Dup);
    let dir = scratch_dir();
    let path = dir.path().join("shared.img");
    image.device.save(&path).unwrap();
    let first = Volume::open(&path, OpenOptions::default()).unwrap();
    for options in [OpenOptions::default(), OpenOptions::read_only()] {
        let error = Volume::open(&path, options).unwrap_err();
        assert!(
            matches!(error, Error::Device(DeviceError::Busy { .. })),
            "{error}"
        );
        one_sentence(&error);
    }
    first.close().unwrap();
    drop(first);
    Volume::open(&path, OpenOptions::default()).unwrap();
}

#[test]
fn what_the_kernel_has_mounted_is_refused() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let image = image(Dup);
    let dir = scratch_dir();
    let path = dir.path().join("mounted.img");
    image.device.save(&path).unwrap();
    let mount = KernelMount::mount(&path, judge::Access::ReadWrite, "").unwrap();
    for target in [&path, mount.device()] {
        let error = Volume::open(target, OpenOptions::default()).unwrap_err();
        assert!(
            matches!(error, Error::Device(DeviceError::Busy { .. })),
            "{error}"
        );
        one_sentence(&error);
        assert!(FileDevice::open(target, Access::ReadWrite).is_err());
    }
    std::fs::write(mount.path().join("by the kernel"), "works").unwrap();
    assert_eq!(mount.unmount().unwrap(), Vec::<String>::new());
    let volume = Volume::open(&path, OpenOptions::default()).unwrap();
    assert_eq!(volume.read_file(b"by the kernel").unwrap(), b"works");
}
