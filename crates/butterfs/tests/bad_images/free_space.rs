//! Free-space trees that lie or cannot be read: `clear_cache` makes them anew
//! from the extent tree, as a whole or not at all.

use crate::common::*;
use butterfs::{Access, BlockDevice, MemoryDevice, OpenOptions, TreeId, Volume};
use butterfs_admin::mkfs::ProfileChoice::{Dup, Single};
use butterfs_admin::mkfs::{MkfsOptions, make};
use butterfs_device::record::{Crash, Fate, Position, RecordDevice};
use butterfs_format::features::CompatRo;
use butterfs_format::{ItemType, Key};
use butterfs_store::{FreeSpace, read_superblock};
use butterfs_testkit::Capability;
use butterfs_testkit::judge::{self, DataChecksums, KernelMount, Mode, scratch_dir};
use butterfs_tree::Cursor;
use std::sync::Arc;

const FREE: TreeId = TreeId::FREE_SPACE;

fn clearing() -> OpenOptions {
    let mut options = options(Access::ReadWrite);
    options.store.free_space = FreeSpace::Remade;
    options
}

fn clear(device: &Arc<MemoryDevice>) -> Volume {
    Volume::open_device(device.clone(), clearing()).unwrap()
}

/// Keys of the free-space tree.
fn keys(volume: &Volume) -> Vec<Key> {
    let engine = volume.files().store().read();
    let mut cursor = Cursor::seek_in(&*engine, FREE, &Key::MIN).unwrap();
    let mut all = Vec::new();
    while let Some(key) = cursor.key() {
        all.push(key);
        cursor.next().unwrap();
    }
    all
}

/// A free range that has a used one and then a free one behind it.
fn free_range(image: &Image) -> Key {
    let volume = open(&image.copy(), Access::ReadOnly).unwrap();
    let is_free = |key: &Key| key.item_type == ItemType::FREE_SPACE_EXTENT;
    let keys = keys(&volume);
    let mut pairs = keys.windows(2);
    let found =
        pairs.find(|pair| is_free(&pair[0]) && is_free(&pair[1]) && pair[0].offset > NODE as u64);
    found.unwrap()[0]
}

fn resize(image: &Image, device: &MemoryDevice, key: Key, by: i64) {
    let length = key.offset.checked_add_signed(by).unwrap();
    edit_item(
        image,
        device,
        FREE,
        |other, _| *other == key,
        |bytes, at, _| {
            put_u64(bytes, at + 9, length);
        },
    );
}

/// Damages that opening does not see.
fn damages(image: &Image) -> Vec<(&'static str, Arc<MemoryDevice>)> {
    let key = free_range(image);
    let nodes = image.nodes_of(FREE);
    let damaged = |change: &dyn Fn(&MemoryDevice)| {
        let device = image.copy();
        change(&device);
        device
    };
    let unreadable = |device: &MemoryDevice, place: &Place| {
        place.copies.iter().for_each(|copy| rot(device, *copy));
    };
    vec![
        (
            "used space is free",
            damaged(&|device| resize(image, device, key, NODE as i64)),
        ),
        (
            "free space is missing",
            damaged(&|device| resize(image, device, key, -(NODE as i64))),
        ),
        (
            "the root cannot be read",
            damaged(&|device| unreadable(device, &nodes[0])),
        ),
        (
            "a leaf cannot be read",
            damaged(&|device| unreadable(device, &nodes[nodes.len() - 1])),
        ),
        (
            "it is not valid",
            damaged(&|device| {
                edit_superblock(device, |superblock| {
                    superblock.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID;
                });
            }),
        ),
    ]
}

/// The volume is clean, for the kernel too, and stays clean.
fn judge_volume(device: &Arc<MemoryDevice>, image: &Image, what: &str) {
    let dir = scratch_dir();
    let path = dir.path().join("volume.img");
    device.save(&path).unwrap();
    judge::judge_image(&path, what);
    let volume = open(device, Access::ReadWrite).unwrap();
    for number in 0..300 {
        let name = format!("new {number}");
        volume.write_file(name.as_bytes(), &[7; 6000]).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    device.save(&path).unwrap();
    judge::judge_image(&path, what);
    if Capability::all_here(&Capability::KERNEL_MOUNT) {
        let mut mount = KernelMount::mount(&path, judge::Access::ReadWrite, "").unwrap();
        for (name, data) in &image.files {
            assert!(
                std::fs::read(mount.path().join(name)).unwrap() == *data,
                "{what}: {name}"
            );
        }
        std::fs::write(mount.path().join("by the kernel"), vec![9; 8 << 20]).unwrap();
        assert_eq!(mount.complaints(), Vec::<String>::new(), "{what}");
        mount.unmount().unwrap();
        judge::judge_image(&path, what);
    }
}

#[test]
fn a_damaged_free_space_tree_is_made_anew() {
    for profile in [Single, Dup] {
        let image = image(profile);
        let sound = keys(&open(&image.copy(), Access::ReadOnly).unwrap()).len();
        for (what, device) in damages(&image) {
            let dir = scratch_dir();
            let path = dir.path().join("damaged.img");
            device.save(&path).unwrap();
            let verdict = judge::btrfs_check(&path, Mode::Original, DataChecksums::Ignore);
            let harmless = what == "it is not valid";
            assert!(harmless || !verdict.clean, "{what}: {}", verdict.output);
            let before = read_superblock(&*device).unwrap().superblock.generation;
            let volume = clear(&device);
            let now = read_superblock(&*device).unwrap().superblock;
            assert_eq!(now.generation.get(), before.get() + 1, "{what}: one commit");
            assert!(now.has_valid_free_space_tree(), "{what}");
            assert!(keys(&volume).len().abs_diff(sound) < 20, "{what}");
            assert_eq!(read_all(&volume).unwrap(), image.files.len());
            volume.close().unwrap();
            drop(volume);
            judge_volume(&device, &image, what);
        }
    }
}

#[test]
fn nothing_is_made_anew_by_a_reader() {
    let image = image(Single);
    for (_, device) in damages(&image) {
        let before = device.snapshot();
        let mut options = clearing();
        options.store.access = Access::ReadOnly;
        let volume = Volume::open_device(device.clone(), options).unwrap();
        assert_eq!(read_all(&volume).unwrap(), image.files.len());
        drop(volume);
        assert_eq!(device.first_difference(&before), None);
    }
}

/// If it were believed, used space would count as free, and be overwritten.
#[test]
fn an_extent_tree_that_lies_is_not_believed() {
    let image = image(Single);
    // Not the first item of a leaf, because the node above would contradict it.
    let is_node = |key: &Key, data: &[u8]| {
        key.item_type == ItemType::METADATA_ITEM && data[25..33] == TreeId::FS.get().to_le_bytes()
    };
    let second = |kind: ItemType| {
        let mut seen = 0;
        move |key: &Key, data: &[u8]| {
            let is_wanted =
                key.item_type == kind && (kind == ItemType::EXTENT_ITEM || is_node(key, data));
            seen += usize::from(is_wanted);
            seen == 2
        }
    };
    let (node, data) = (
        second(ItemType::METADATA_ITEM),
        second(ItemType::EXTENT_ITEM),
    );
    let forget = |bytes: &mut [u8], at: usize, _: usize| bytes[at + 8] = 0xB0;
    let device = |change: &dyn Fn(&MemoryDevice)| {
        let device = image.copy();
        change(&device);
        device
    };
    let extents = TreeId::EXTENT;
    let lies = [
        device(&|device| edit_item(&image, device, extents, node, forget)),
        device(&|device| edit_item(&image, device, extents, data, forget)),
        device(&|device| {
            edit_item(&image, device, extents, node, |bytes, _, data| {
                put_u64(bytes, data + 25, FREE.get());
            });
        }),
    ];
    for device in lies {
        let before = device.snapshot();
        let Err(error) = Volume::open_device(device.clone(), clearing()) else {
            panic!("it is opened");
        };
        let text = one_sentence(&error);
        assert!(text.contains("butterfs check"), "{text}");
        assert_eq!(device.first_difference(&before), None);
        open(&device, Access::ReadWrite).unwrap();
    }
}

/// A mount that cannot be made as asked leaves the volume as it is.
#[test]
fn nothing_is_made_anew_for_a_subvolume_that_is_not_there() {
    let device = image(Single).copy();
    let before = device.snapshot();
    let mut options = clearing();
    options.subvolume = butterfs::Subvolume::Path(b"absent".into());
    assert!(Volume::open_device(device.clone(), options).is_err());
    assert_eq!(device.first_difference(&before), None);
}

/// Free space in many pieces takes less room as bitmaps.
#[test]
fn free_space_in_pieces_becomes_bitmaps() {
    let image = image(Single);
    let device = image.copy();
    let volume = open(&device, Access::ReadWrite).unwrap();
    for number in 0..3000 {
        let name = format!("piece {number}");
        volume.write_file(name.as_bytes(), &[5; 6000]).unwrap();
    }
    volume.sync().unwrap();
    let root = volume.files().root();
    for number in (0..3000).step_by(2) {
        let name = format!("piece {number}");
        volume.files().unlink(root, name.as_bytes()).unwrap();
    }
    volume.close().unwrap();
    let before = keys(&volume);
    drop(volume);
    let bitmaps = |keys: &[Key]| {
        let found = keys
            .iter()
            .filter(|key| key.item_type == ItemType::FREE_SPACE_BITMAP);
        found.count()
    };
    assert!(before.len() > 1000 && bitmaps(&before) == 0);
    let volume = clear(&device);
    let after = keys(&volume);
    assert!(after.len() < 200 && bitmaps(&after) > 3, "{}", after.len());
    volume.close().unwrap();
    drop(volume);
    judge_volume(&device, &image, "bitmaps");
}

/// If a fsync log waits, its replay and the new tree are one change.
#[test]
fn a_log_is_replayed_over_a_damaged_free_space_tree() {
    let image = image(Single);
    for (what, device) in damages(&image) {
        if what == "it is not valid" {
            continue;
        }
        // The log of the sound volume, in one that is damaged.
        let sound = image.copy();
        let volume = open(&sound, Access::ReadWrite).unwrap();
        volume.write_file(b"logged", &[3; 200_000]).unwrap();
        let id = volume.resolve(b"logged").unwrap();
        let inode = volume.files().inode(id).unwrap();
        volume.files().fsync(&inode).unwrap();
        let crashed = Arc::new(sound.snapshot());
        drop(volume);
        for place in image.nodes_of(FREE) {
            for copy in &place.copies {
                let bytes = read(&device, *copy, NODE);
                crashed.write_at(*copy, &bytes).unwrap();
            }
        }
        let superblock = read_superblock(&*crashed).unwrap().superblock;
        assert_ne!(superblock.log_root.get(), 0, "a log waits");
        let volume = clear(&crashed);
        assert!(
            volume.read_file(b"logged").unwrap() == [3; 200_000],
            "{what}"
        );
        volume.close().unwrap();
        drop(volume);
        judge_volume(&crashed, &image, what);
    }
}

/// At each moment the volume has the old tree or the new one.
#[test]
fn a_crash_leaves_the_old_tree_or_the_new_one() {
    let image = image(Single);
    let (_, damaged) = damages(&image).swap_remove(0);
    let record = Arc::new(RecordDevice::new(Arc::new(damaged.snapshot())));
    let volume = Volume::open_device(record.clone(), clearing()).unwrap();
    volume.close().unwrap();
    drop(volume);
    let events = record.events();
    let old = read_superblock(&*damaged).unwrap().superblock.generation;
    let mut seen = [0; 2];
    for at in 0..=events.len() {
        for fate in [Fate::Kept, Fate::Lost] {
            let crash = Crash::new(&events, Position(at));
            let devices = crash.replay(&[damaged.snapshot()], |_, _| fate.clone());
            let device = Arc::new(devices.unwrap().remove(0));
            let now = read_superblock(&*device).unwrap().superblock.generation;
            let new = usize::from(now > old);
            seen[new] += 1;
            let volume = match new {
                0 => clear(&device),
                _ => open(&device, Access::ReadWrite).unwrap(),
            };
            assert_eq!(read_all(&volume).unwrap(), image.files.len());
            volume.close().unwrap();
            drop(volume);
            if at % 4 == 0 {
                let dir = scratch_dir();
                let path = dir.path().join("crash.img");
                device.save(&path).unwrap();
                judge::judge_image(&path, "after a crash");
            }
        }
    }
    assert!(seen[0] > 3 && seen[1] > 3, "{seen:?}");
}

#[test]
fn an_old_cache_is_put_out_of_use() {
    let device = Arc::new(MemoryDevice::new(SIZE_MIB << 20));
    let mut mkfs = MkfsOptions::default();
    mkfs.features
        .change("^free-space-tree,^block-group-tree")
        .unwrap();
    make(&*device, &mkfs).unwrap();
    let generation = |device: &MemoryDevice| {
        let superblock = read_superblock(device).unwrap().superblock;
        (superblock.generation.get(), superblock.cache_generation)
    };
    let (before, _) = generation(&device);
    drop(clear(&device));
    assert_eq!(generation(&device).0, before, "there is nothing to do");
    edit_superblock(&device, |superblock| superblock.cache_generation = before);
    drop(clear(&device));
    assert_eq!(generation(&device), (before + 1, before));
    let dir = scratch_dir();
    let path = dir.path().join("old.img");
    device.save(&path).unwrap();
    judge::judge_image(&path, "an old cache");
}

/// As in the kernel, which leaves such a tree when it is stopped while it makes
/// it.
#[test]
fn a_tree_that_is_not_valid_is_made_anew_by_every_writer() {
    let image = image(Single);
    let sound = keys(&open(&image.copy(), Access::ReadOnly).unwrap()).len();
    let all = damages(&image);
    for (what, device) in all.iter().filter(|(what, _)| what.contains("missing")) {
        edit_superblock(device, |superblock| {
            superblock.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID;
        });
        let before = device.snapshot();
        drop(open(device, Access::ReadOnly).unwrap());
        assert_eq!(device.first_difference(&before), None);
        let volume = open(device, Access::ReadWrite).unwrap();
        assert!(keys(&volume).len().abs_diff(sound) < 20, "{what}");
        volume.write_file(b"new", &[3; 100_000]).unwrap();
        volume.close().unwrap();
        drop(volume);
        let now = read_superblock(&**device).unwrap().superblock;
        assert!(now.has_valid_free_space_tree(), "{what}");
        judge_volume(device, &image, what);
    }
}

#[test]
fn tuning_makes_a_tree_valid() {
    use butterfs_admin::tune::{Change, Ended, tune};
    let image = image(Single);
    let device = image.copy();
    edit_superblock(&device, |superblock| {
        superblock.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID;
    });
    let devices = [device.clone() as Arc<dyn BlockDevice>];
    let tuned = || {
        tune(&devices, Change::ToFreeSpaceTree, &mut |_: &_| {
            std::ops::ControlFlow::Continue(())
        })
    };
    assert_eq!(tuned().unwrap(), Ended::Changed);
    let now = read_superblock(&*device).unwrap().superblock;
    assert!(now.has_valid_free_space_tree());
    judge_volume(&device, &image, "tuned");
    assert_eq!(tuned().unwrap(), Ended::Already);
}
