//! The edge of each rule: the last value that is good, and the first one that is
//! not. Where `btrfs check` knows the rule, it must say the same.

mod support;

use butterfs_check::{FaultCode, Report};
use butterfs_device::{Access, FileDevice};
use butterfs_format::checksum::crc32c_raw;
use butterfs_format::features::CompatRo;
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_fs::names::{NewInode, Owner, S_IFDIR};
use butterfs_fs::{Filesystem, Options};
use butterfs_store::{OpenOptions, Store};
use butterfs_testkit::capability::Capability;
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, scratch_dir};
use butterfs_testkit::run_script;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::image::Image;
use support::{assert_clean, report, volume};

const FS: TreeId = TreeId::FS;
const FREE: TreeId = TreeId::FREE_SPACE;
const EXTENT: TreeId = TreeId::EXTENT;

/// A sound volume, and a place for changed copies of it.
struct Sound {
    path: PathBuf,
    changed: PathBuf,
}

impl Sound {
    fn new(dir: &Path, options: &str, script: &str) -> Self {
        let path = dir.join("sound.img");
        volume::make(&path, &[], options, script);
        assert_clean(&report(&path), "before any change");
        let changed = dir.join("changed.img");
        Self { path, changed }
    }

    /// Changes a copy of the volume and checks it.
    fn with(&self, change: impl FnOnce(&mut Image)) -> Report {
        volume::sparse_copy(&self.path, &self.changed);
        change(&mut Image::open(&self.changed));
        report(&self.changed)
    }

    /// Whether `btrfs check` finds the changed copy clean.
    fn theirs_is_clean(&self) -> bool {
        btrfs_check(&self.changed, Mode::Original, DataChecksums::Verify).clean
    }
}

/// Whether a fault of this kind has these words.
fn says(report: &Report, code: FaultCode, words: &str) -> bool {
    let mut faults = report.faults.iter();
    faults.any(|fault| fault.code == code && fault.to_string().contains(words))
}

/// Returns the item of a name: its DIR_ITEM or DIR_INDEX, by `item_type`.
fn entry(image: &Image, name: &str, item_type: ItemType) -> (Key, Vec<u8>) {
    image.find(FS, |key, data| {
        key.item_type == item_type && data.get(30..) == Some(name.as_bytes())
    })
}

/// Returns the number of the inode of a name.
fn number(image: &Image, name: &str) -> u64 {
    let (_, data) = entry(image, name, ItemType::DIR_INDEX);
    u64::from_le_bytes(data[..8].try_into().unwrap())
}

/// Returns the first file extent of a name.
fn extent(image: &Image, name: &str) -> (Key, Vec<u8>) {
    let number = number(image, name);
    image.find(FS, |key, _| {
        key.objectid == number && key.item_type == ItemType::EXTENT_DATA
    })
}

fn put(data: &mut [u8], at: usize, value: u64) {
    data[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// Replaces an item by another one, which may have another key and length.
fn replace(image: &mut Image, tree: TreeId, old: Key, new: Key, data: &[u8]) {
    image.remove(tree, old);
    image.insert(tree, new, data);
}

/// Whether the report has only faults of this kind. mkfs.btrfs leaves orphans in
/// the free-space tree.
fn has_only(report: &Report, code: FaultCode) -> bool {
    let mut codes = report.counts.keys();
    codes.all(|found| [code, FaultCode::FreeSpaceOrphan].contains(found))
}

/// Returns the key of a free range in a block group.
fn free_range(image: &Image) -> Key {
    let (key, _) = image.find(FREE, |key, _| {
        key.item_type == ItemType::FREE_SPACE_EXTENT
            && key.offset > 1 << 20
            && image.map.find(Logical(key.objectid)).is_some()
    });
    key
}

#[test]
fn free_ranges_that_touch_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let script = "head -c 100000 /dev/urandom > a";
    let sound = Sound::new(dir.path(), "", script);
    let split = |image: &mut Image| {
        let free = free_range(image);
        let mut items = image.items(FREE).into_iter();
        let info = items.rfind(|(key, _)| {
            key.item_type == ItemType::FREE_SPACE_INFO && key.objectid <= free.objectid
        });
        let (info, _) = info.unwrap();
        let half = (free.offset / 2) & !4095;
        let [mut first, mut second] = [free; 2];
        first.offset = half;
        second.objectid += half;
        second.offset -= half;
        image.rekey(FREE, free, first);
        image.insert(FREE, second, &[]);
        image.update(FREE, info, |data| data[0] += 1);
    };
    let found = sound.with(split);
    let words = "touches the free range before it";
    assert!(
        says(&found, FaultCode::FreeSpaceInvalid, words),
        "{found:?}"
    );
    assert!(has_only(&found, FaultCode::FreeSpaceInvalid), "{found:?}");
    assert!(!sound.theirs_is_clean());
}

/// A tree that nobody believes is no damage, but the check says so. Its content
/// is compared none the less.
#[test]
fn a_free_space_tree_without_its_mark_is_a_warning() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "head -c 100000 /dev/urandom > a");
    let unmark = |image: &mut Image| {
        image.superblock(|s| s.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID);
    };
    let found = sound.with(unmark);
    assert!(found.has(FaultCode::FreeSpaceNotValid), "{found:?}");
    assert!(found.is_clean(), "{:?}", found.counts);
    assert!(sound.theirs_is_clean());
    let found = sound.with(|image| {
        unmark(image);
        let key = free_range(image);
        let mut short = key;
        short.offset -= 4096;
        image.rekey(FREE, key, short);
    });
    assert!(found.has(FaultCode::FreeSpaceNotValid), "{found:?}");
    assert!(found.has(FaultCode::FreeSpaceMissing), "{found:?}");
    assert!(!sound.theirs_is_clean());
}

/// The hash of a data reference.
fn hash(root: u64, inode: u64, offset: u64) -> u64 {
    let high = crc32c_raw(u32::MAX, &root.to_le_bytes());
    let low = crc32c_raw(u32::MAX, &inode.to_le_bytes());
    let low = crc32c_raw(low, &offset.to_le_bytes());
    (u64::from(high) << 31) ^ u64::from(low)
}

/// Gives the only reference to the data of a file an item of its own, `by` away
/// from the place of its hash.
fn key_reference(image: &mut Image, name: &str, by: i64) {
    let (file, data) = extent(image, name);
    let at = u64::from_le_bytes(data[21..29].try_into().unwrap());
    let (key, data) = image.find(EXTENT, |key, _| {
        key.objectid == at && key.item_type == ItemType::EXTENT_ITEM
    });
    assert_eq!(data.len(), 53, "it has one reference, by a file");
    let place = hash(FS.get(), file.objectid, file.offset).wrapping_add_signed(by);
    replace(image, EXTENT, key, key, &data[..24]);
    let key = Key::new(at, ItemType::EXTENT_DATA_REF, place);
    image.insert(EXTENT, key, &data[25..]);
}

#[test]
fn a_reference_before_its_hash_is_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "head -c 100000 /dev/urandom > a");
    // Another reference may have taken the key of the hash.
    for by in [0, 1] {
        let found = sound.with(|image| key_reference(image, "a", by));
        assert_clean(&found, "a reference at its hash or behind it");
    }
    let found = sound.with(|image| key_reference(image, "a", -1));
    assert!(has_only(&found, FaultCode::ExtentItemInvalid), "{found:?}");
    let words = "before its hash";
    assert!(
        says(&found, FaultCode::ExtentItemInvalid, words),
        "{found:?}"
    );
}

fn open(path: &Path) -> Filesystem {
    let device = FileDevice::open(path, Access::ReadWrite).expect("the image opens");
    let store = Store::open(Arc::new(device), &OpenOptions::default()).expect("it opens");
    Filesystem::new(Arc::new(store), FS, Options::default())
}

/// The reference is found when it is dropped, wherever it lies.
#[test]
fn a_reference_before_its_hash_can_be_dropped() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let script = "head -c 100000 /dev/urandom > a; echo kept > b";
    let sound = Sound::new(dir.path(), "", script);
    for by in [-1, -(1 << 20), 1 << 20] {
        sound.with(|image| key_reference(image, "a", by));
        let fs = open(&sound.changed);
        fs.unlink(fs.root(), b"a").expect("it can be removed");
        fs.sync_all().expect("commit");
        drop(fs);
        let found = report(&sound.changed);
        assert!(found.faults.is_empty(), "{by}: {:?}", found.faults);
        assert!(sound.theirs_is_clean(), "{by}");
    }
}

/// Files of sizes around those of a sector, of all kinds of compression.
#[test]
fn inline_data_of_the_kernel_are_clean() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let script = r#"
for n in 1 2047 2048 2049 4090 4094 4095 4096 4097; do
  head -c $n /dev/zero > zeros-$n; head -c $n /dev/urandom > random-$n
  seq 100000 200000 | head -c $n > text-$n; base64 -w0 /dev/urandom | head -c $n > half-$n
done 2> /dev/null
ln -s $(head -c 4090 /dev/zero | tr '\0' x | sed 's/x\{200\}/&\//g' | head -c 4095) long; sync
for n in 4095 4096; do truncate -s $((n + 10)) text-$n; truncate -s $n text-$n; done
"#;
    let inline = |path: &Path| {
        let items = Image::open(path).items(FS);
        let lengths = items.into_iter().filter_map(|(key, data)| {
            let is_inline = key.item_type == ItemType::EXTENT_DATA && data[20] == 0;
            is_inline.then(|| (data[16], data.len() - 21, data[8..16].to_vec()))
        });
        lengths.collect::<Vec<_>>()
    };
    let mut longest = 0;
    let mut whole_sectors = 0;
    for most in [2048, 4095, 4096] {
        for compression in [
            "",
            ",compress-force=zlib",
            ",compress-force=lzo",
            ",compress-force=zstd",
        ] {
            let options = format!("max_inline={most}{compression}");
            volume::make(&path, &[], &options, script);
            assert_clean(&report(&path), &options);
            btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean(&options);
            for (kind, stored, ram) in inline(&path) {
                longest = longest.max(stored);
                whole_sectors += usize::from(kind != 0 && ram == 4096_u64.to_le_bytes());
            }
            std::fs::remove_file(&path).expect("the image can be removed");
        }
    }
    assert_eq!(longest, 4095);
    assert!(whole_sectors > 0, "a compressed sector was inline");
}

#[test]
fn inline_data_that_are_too_long_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let script = "head -c 3000 /dev/zero > zeros; echo tiny > tiny";
    let sound = Sound::new(dir.path(), "compress-force=zstd", script);
    // Stored bytes, decompressed bytes.
    let cases = [
        ("tiny", 4095, 4095),
        ("tiny", 4096, 4096),
        ("zeros", 0, 4096),
        ("zeros", 0, 4097),
        ("zeros", 4095, 4096),
        ("zeros", 4096, 4096),
    ];
    for (name, stored, bytes) in cases {
        let found = sound.with(|image| {
            let (key, mut data) = extent(image, name);
            assert_eq!(data[16] == 0, name == "tiny", "{name} is compressed or not");
            put(&mut data, 8, bytes);
            data.resize(data.len().max(21 + stored), b'A');
            replace(image, FS, key, key, &data);
            let inode = Key::new(key.objectid, ItemType::INODE_ITEM, 0);
            image.update(FS, inode, |item| {
                put(item, 16, bytes);
                put(item, 24, bytes);
            });
        });
        let is_good = stored < 4096 && bytes <= 4096;
        let what = format!("{name}, {stored}, {bytes}: {:?}", found.faults);
        assert_eq!(!found.has(FaultCode::FileExtentInline), is_good, "{what}");
        assert_eq!(sound.theirs_is_clean(), is_good, "{what}");
    }
}

/// Gives a file without content another number.
fn renumber(image: &mut Image, name: &str, new: u64) {
    let old = number(image, name);
    for item_type in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
        let (key, _) = entry(image, name, item_type);
        image.update(FS, key, |data| put(data, 0, new));
    }
    let items = image.items(FS).into_iter();
    for (key, data) in items.filter(|(key, _)| key.objectid == old) {
        replace(
            image,
            FS,
            key,
            Key::new(new, key.item_type, key.offset),
            &data,
        );
    }
}

#[test]
fn reserved_numbers_of_inodes_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "touch empty");
    let last = u64::MAX - 255;
    for good in [last - 1, last] {
        let found = sound.with(|image| renumber(image, "empty", good));
        assert_clean(&found, &good.to_string());
        assert!(sound.theirs_is_clean(), "{good}");
    }
    for reserved in [255, last + 1, u64::MAX - 1] {
        let found = sound.with(|image| renumber(image, "empty", reserved));
        let words = format!("{reserved} is reserved");
        assert!(says(&found, FaultCode::ItemUnexpected, &words), "{found:?}");
        assert!(
            !says(&found, FaultCode::NameReferenceMissing, ""),
            "{found:?}"
        );
    }
}

#[test]
fn impossible_indexes_of_a_directory_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "touch empty");
    let set_index = |image: &mut Image, index: u64| {
        let inode = number(image, "empty");
        let (key, data) = entry(image, "empty", ItemType::DIR_INDEX);
        replace(
            image,
            FS,
            key,
            Key {
                offset: index,
                ..key
            },
            &data,
        );
        let own = Key::new(inode, ItemType::INODE_REF, key.objectid);
        image.update(FS, own, |data| put(data, 0, index));
    };
    let end = 1 << 62;
    let found = sound.with(|image| set_index(image, end - 2));
    assert_clean(&found, "the last index");
    for index in [end - 1, end, u64::MAX - 1, u64::MAX] {
        let found = sound.with(|image| set_index(image, index));
        let words = format!("its index {index} is too great");
        assert!(says(&found, FaultCode::NameInvalid, &words), "{found:?}");
        assert!(has_only(&found, FaultCode::NameInvalid), "{found:?}");
    }
}

/// What opening for use does with a number that it does not need.
#[test]
fn a_volume_with_too_many_used_bytes_can_be_checked_and_written() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "echo content > file");
    for more in [1, u64::MAX - (1 << 40)] {
        let found = sound.with(|image| {
            image.superblock(|s| s.bytes_used = s.total_bytes + more);
        });
        let words = "bytes are used";
        assert!(says(&found, FaultCode::SuperblockField, words), "{found:?}");
        assert!(found.has(FaultCode::SuperblockBytesUsed), "{found:?}");
        let fs = open(&sound.changed);
        fs.unlink(fs.root(), b"file").expect("it can be removed");
        fs.sync_all().expect("commit");
        drop(fs);
        let found = report(&sound.changed);
        assert!(found.faults.is_empty(), "{more}: {:?}", found.faults);
        assert!(sound.theirs_is_clean(), "{more}");
    }
}

/// The kernel refuses the volume, or the node with this item.
#[test]
fn numbers_of_subvolumes_end() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "btrfs -q subvolume create sub");
    let point_to = |image: &mut Image, tree: u64| {
        for item_type in [ItemType::DIR_INDEX, ItemType::DIR_ITEM] {
            let (key, _) = entry(image, "sub", item_type);
            image.update(FS, key, |data| put(data, 0, tree));
        }
    };
    for tree in [TreeId::EXTENT.get(), 255, 1 << 48, u64::MAX - 255] {
        let found = sound.with(|image| point_to(image, tree));
        let words = format!("points to ({tree} ROOT_ITEM");
        assert!(says(&found, FaultCode::NameInvalid, &words), "{found:?}");
    }
    let found = sound.with(|image| point_to(image, (1 << 48) - 1));
    assert!(!found.has(FaultCode::NameInvalid), "{found:?}");
    for (tree, is_good) in [((1 << 48) - 1, true), (1 << 48, false)] {
        let found = sound.with(|image| {
            let (key, data) = image.find(TreeId::ROOT, |key, _| {
                key.item_type == ItemType::ROOT_ITEM && key.objectid == 256
            });
            let key = Key::new(tree, key.item_type, key.offset);
            image.insert(TreeId::ROOT, key, &data);
        });
        let reported = says(&found, FaultCode::RootInvalid, "no tree has number");
        assert_eq!(reported, !is_good, "{found:?}");
    }
}

/// The kernel refuses a node with such an inode.
#[test]
fn inodes_that_the_tree_of_roots_cannot_have_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "echo content > file");
    let insert = |image: &mut Image, number: u64| {
        let (key, data) = image.first(TreeId::ROOT, ItemType::INODE_ITEM);
        image.insert(TreeId::ROOT, Key::new(number, key.item_type, 0), &data);
    };
    // Files of an old space cache, and the inode cache of old kernels.
    for good in [256, u64::MAX - 255, u64::MAX - 11] {
        let found = sound.with(|image| insert(image, good));
        assert_clean(&found, &good.to_string());
    }
    for bad in [1, 255, u64::MAX - 254] {
        let found = sound.with(|image| insert(image, bad));
        let words = format!("no inode of the tree of roots has number {bad}");
        assert!(says(&found, FaultCode::InodeInvalid, &words), "{found:?}");
    }
}

/// btrfs-convert stores the longest target in an extent of a whole sector.
#[test]
fn long_links_of_btrfs_convert_are_clean() {
    let needed = ["btrfs-convert", "mkfs.ext4", "btrfs"].map(Capability::Program);
    if !Capability::all_here(&needed) {
        return;
    }
    let dir = scratch_dir();
    let script = r#"
mkdir source; part=$(head -c 200 /dev/zero | tr '\0' x)/
for n in 100 4094 4095; do
  ln -s "$(for i in $(seq 21); do printf %s "$part"; done | head -c $n)" source/link-$n
done
truncate -s 300M v.img; mkfs.ext4 -q -F -b 4096 -d source v.img
btrfs-convert v.img > /dev/null 2>&1
"#;
    run_script(dir.path(), script);
    let path = dir.path().join("v.img");
    btrfs_check(&path, Mode::Original, DataChecksums::Verify).assert_clean("converted");
    assert_clean(&report(&path), "converted");
    let mut image = Image::open(&path);
    let inode = Key::new(number(&image, "link-4095"), ItemType::INODE_ITEM, 0);
    image.update(FS, inode, |item| put(item, 16, 4097));
    drop(image);
    assert!(report(&path).has(FaultCode::InodeSize));
}

/// A new subvolume never gets a number that the kernel refuses.
#[test]
fn the_last_number_of_a_subvolume_is_given_and_none_after_it() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound = Sound::new(dir.path(), "", "btrfs -q subvolume create sub");
    // Any item with the number before the last one.
    let last = (1 << 48) - 1;
    sound.with(|image| {
        let key = Key::new(last - 1, ItemType::PERSISTENT_ITEM, 0);
        image.insert(TreeId::ROOT, key, &[0; 8]);
    });
    let fs = open(&sound.changed);
    let new = NewInode::new(S_IFDIR | 0o755, Owner::default());
    let made = fs.create_subvolume(fs.root(), b"last", &new);
    assert_eq!(made.expect("the last number is free"), TreeId(last));
    assert!(fs.create_subvolume(fs.root(), b"none", &new).is_err());
}
