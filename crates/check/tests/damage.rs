//! Makes every kind of fault in a volume of the kernel; the check must report
//! the code of each. Also prints whether btrfs-progs reports the damage.

mod support;

use butterfs_check::FaultCode;
use butterfs_device::fault::{Fault, When};
use butterfs_device::{Access, DeviceRange, FaultDevice, FileDevice, Operation};
use butterfs_format::{ItemType, Key, Logical, TreeId};
use butterfs_testkit::judge::{DataChecksums, Mode, btrfs_check, mkfs_btrfs, scratch_dir};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use support::image::Image;
use support::{assert_clean, report, report_of, volume};

#[path = "damage/files.rs"]
mod files;
#[path = "damage/nodes.rs"]
mod nodes;
#[path = "damage/space.rs"]
mod space;

/// A damage of a volume.
pub struct Damage {
    /// The kind of fault that the check must report.
    pub code: FaultCode,
    /// Makes the damage.
    pub make: fn(&mut Image),
}

/// Makes a [`Damage`].
pub const fn damage(code: FaultCode, make: fn(&mut Image)) -> Damage {
    Damage { code, make }
}

/// Kinds that have their own test, and `NodeSize`, which no volume can show
/// because nodes are always read in their right size.
const ELSEWHERE: &[FaultCode] = &[
    FaultCode::NodeSize,
    FaultCode::SuperblocksDiffer,
    FaultCode::NodeUnreadable,
    FaultCode::DataUnreadable,
    FaultCode::DeviceMissing,
    FaultCode::ChunkLost,
    FaultCode::LogInvalid,
    FaultCode::LogOverlapsExtent,
    FaultCode::LogChecksumMissing,
    FaultCode::LogDataChecksum,
    FaultCode::FileExtentCompressed,
    FaultCode::SpaceCacheOverlapsExtent,
];

fn all() -> Vec<Damage> {
    let mut all = Vec::new();
    all.extend(nodes::all());
    all.extend(space::all());
    all.extend(files::all());
    all
}

#[test]
fn every_kind_has_a_damage() {
    let damages = all();
    for code in FaultCode::ALL {
        let tested = damages.iter().any(|damage| damage.code == *code);
        assert!(tested != ELSEWHERE.contains(code), "{code}");
    }
}

/// Makes the volume before any damage.
fn sound(path: &Path) {
    volume::make(path, &["-m", "dup"], "", volume::MIXTURE);
    let script = "btrfs -q quota enable . ; btrfs -q quota rescan -w . ; btrfs -q qgroup create 1/1 . ; btrfs -q qgroup assign 0/256 1/1 . || true; btrfs -q quota rescan -w . || true; sync";
    volume::change(path, "", script);
}

#[test]
fn every_damage_is_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let sound_path = dir.path().join("sound.img");
    sound(&sound_path);
    assert_clean(&report(&sound_path), "before the damage");
    let mut failed = Vec::new();
    for damage in all() {
        let path = dir.path().join("damaged.img");
        volume::sparse_copy(&sound_path, &path);
        (damage.make)(&mut Image::open(&path));
        let found = report(&path);
        let theirs = btrfs_check(&path, Mode::Original, DataChecksums::Verify);
        let also: Vec<_> = found.counts.keys().map(|code| code.name()).collect();
        println!(
            "{:<28} btrfs check: {:<7} all: {}",
            damage.code.name(),
            if theirs.clean { "silent" } else { "reports" },
            also.join(" ")
        );
        if damage.code == FaultCode::InodeLinks {
            let links = found.faults.iter().find(|fault| fault.code == damage.code);
            assert_eq!(links.and_then(|fault| fault.path.as_deref()), Some("/tiny"));
        }
        if !found.has(damage.code) {
            failed.push(format!(
                "{}: {:?} {:?}",
                damage.code,
                found.counts,
                found.faults.first()
            ));
        }
    }
    assert!(failed.is_empty(), "not reported:\n{}", failed.join("\n"));
}

#[test]
fn unreadable_nodes_and_data_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    sound(&path);
    let image = Image::open(&path);
    let (leaf, _, _) = image.leaf(butterfs_format::TreeId::FS, 0);
    let (sum, _) = image.first(
        butterfs_format::TreeId::CSUM,
        butterfs_format::ItemType::EXTENT_CSUM,
    );
    let places = [
        (leaf.logical, FaultCode::NodeUnreadable),
        (
            butterfs_format::Logical(sum.offset),
            FaultCode::DataUnreadable,
        ),
    ];
    for (logical, code) in places {
        let inner = FileDevice::open(&path, Access::ReadOnly).expect("the image opens");
        let device = FaultDevice::new(Arc::new(inner), 1);
        for copy in image.map.map(logical, 4096).expect("it is mapped").copies {
            let range = DeviceRange::new(copy.offset, 4096);
            device.inject(Fault::Fail(Operation::Read, When::Within(range)));
        }
        let found = report_of(Arc::new(device));
        assert!(found.has(code), "{code}: {:?}", found.counts);
    }
}

/// The code of a fault, and a change of a log's file extent that makes it, given
/// the address of a node.
type LogDamage = (FaultCode, fn(&mut [u8], u64));
/// Streams that do not unpack, of each kind. The leaf that holds them is whole.
#[test]
fn inline_data_that_do_not_unpack_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    let script = "for m in zlib lzo zstd; do touch $m; btrfs property set $m compression $m
        head -c 1900 /dev/zero | tr '\\0' x > $m; sync $m; done; sync";
    volume::make(&path, &[], "", script);
    assert_clean(&report(&path), "before the damage");
    for algorithm in 1..=3_u8 {
        let damaged = dir.path().join("damaged.img");
        volume::sparse_copy(&path, &damaged);
        let mut image = Image::open(&damaged);
        let is_it = |key: Key, data: &[u8]| {
            key.item_type == ItemType::EXTENT_DATA && data[20] == 0 && data[16] == algorithm
        };
        let (key, _) = image.find(TreeId::FS, is_it);
        image.update(TreeId::FS, key, |data| data[21..].fill(0xff));
        let found = report(&damaged);
        let count = found.counts.get(&FaultCode::FileExtentCompressed);
        assert_eq!(count, Some(&1), "{algorithm}: {:?}", found.counts);
    }
}

/// A volume on which the kernel ran `script`, which left a fsync log.
fn with_log(dir: &Path, script: &str) -> PathBuf {
    let (path, crashed) = (dir.join("v.img"), dir.join("crashed.img"));
    volume::make(&path, &[], "", volume::MIXTURE);
    volume::crash(&path, "commit=300", script, &crashed);
    assert_clean(&report(&crashed), "a volume with a log");
    crashed
}

#[test]
fn damaged_logs_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let script = "head -c 50000 /dev/urandom > logged; sync -d logged; sync logged; echo more >> d/file-5; sync d/file-5";
    let crashed = with_log(dir.path(), script);
    let extent = |image: &mut Image| {
        image.enter_log();
        let regular = |key: butterfs_format::Key, data: &[u8]| {
            key.item_type == butterfs_format::ItemType::EXTENT_DATA && data[20] == 1
        };
        image.find(butterfs_format::TreeId::LOG, regular).0
    };
    let damages: [LogDamage; 3] = [
        // Space further on, for which the log has no checksums.
        (FaultCode::LogChecksumMissing, |data, _| {
            let at: [u8; 8] = data[21..29].try_into().expect("eight bytes");
            let far = u64::from_le_bytes(at) + (1 << 20);
            data[21..29].copy_from_slice(&far.to_le_bytes());
        }),
        (FaultCode::LogInvalid, |data, _| data[20] = 9),
        (FaultCode::LogOverlapsExtent, |data, node| {
            data[21..29].copy_from_slice(&node.to_le_bytes());
        }),
    ];
    for (code, make) in damages {
        let damaged = dir.path().join("damaged.img");
        volume::sparse_copy(&crashed, &damaged);
        let mut image = Image::open(&damaged);
        assert_ne!(image.superblock.log_root.get(), 0, "there is a log");
        let key = extent(&mut image);
        let node = image.superblock.root.get();
        image.update(butterfs_format::TreeId::LOG, key, |data| make(data, node));
        let found = report(&damaged);
        assert!(found.has(code), "{code}: {:?}", found.counts);
    }
    // A checksum of the log, or the data, rotted.
    for at_data in [false, true] {
        let damaged = dir.path().join("damaged.img");
        volume::sparse_copy(&crashed, &damaged);
        let mut image = Image::open(&damaged);
        image.enter_log();
        let log = butterfs_format::TreeId::LOG;
        let (key, _) = image.first(log, ItemType::EXTENT_CSUM);
        match at_data {
            true => {
                let mut bytes = image.read(Logical(key.offset));
                bytes[9] ^= 1;
                image.write(Logical(key.offset), &bytes);
            }
            false => image.update(log, key, |data| data[0] ^= 1),
        }
        let found = report(&damaged);
        let code = FaultCode::LogDataChecksum;
        assert_eq!(found.counts.get(&code), Some(&1), "{:?}", found.counts);
        let fault = found.faults.iter().find(|fault| fault.code == code);
        let text = fault.expect("it is listed").to_string();
        assert!(text.contains("in subvolume 5"), "{text}");
    }
}

/// A change of the first item of a type in a log, or of its root item.
type LogItemDamage = (ItemType, fn(&mut [u8]));

/// The kernel then mounts the volume only without its log.
#[test]
fn items_of_a_log_that_the_kernel_refuses_are_reported() {
    if !volume::can_make() {
        return;
    }
    let dir = scratch_dir();
    let script = "echo logged > d/new; setfattr -n user.a -v b d/new; sync d/new";
    let crashed = with_log(dir.path(), script);
    let damages: [LogItemDamage; 6] = [
        (ItemType::INODE_REF, |data| data[8] = 255),
        (ItemType::INODE_ITEM, |data| data[52..56].fill(0)),
        (ItemType::INODE_ITEM, |data| data[5] = 0x10),
        (ItemType::INODE_ITEM, |data| data[66] = 0x10),
        (ItemType::XATTR_ITEM, |data| data[30] ^= 1),
        (ItemType::ROOT_ITEM, |data| data[210] = 0x80),
    ];
    let damaged = dir.path().join("damaged.img");
    for (item_type, make) in damages {
        volume::sparse_copy(&crashed, &damaged);
        let mut image = Image::open(&damaged);
        if item_type != ItemType::ROOT_ITEM {
            image.enter_log();
        }
        let (key, _) = image.first(TreeId::LOG, item_type);
        image.update(TreeId::LOG, key, make);
        drop(image);
        let report = report(&damaged);
        let found = report
            .faults
            .iter()
            .any(|f| f.code == FaultCode::LogInvalid);
        assert!(found, "{item_type:?}: {:?}", report.faults);
    }
    // A tree that has no files has no log.
    volume::sparse_copy(&crashed, &damaged);
    let mut image = Image::open(&damaged);
    let (key, _) = image.first(TreeId::LOG, ItemType::ROOT_ITEM);
    image.rekey(TreeId::LOG, key, Key::new(key.objectid, key.item_type, 7));
    drop(image);
    let report = report(&damaged);
    let found = report
        .faults
        .iter()
        .any(|f| f.code == FaultCode::LogInvalid);
    assert!(found, "{:?}", report.faults);
}

/// The kernel believes an old space cache whose sums are right.
#[test]
fn a_wrong_old_space_cache_is_reported() {
    if !volume::can_make() {
        return;
    }
    const PAGE: usize = 4096;
    let dir = scratch_dir();
    let path = dir.path().join("v.img");
    // Block groups of less than 100 MiB have no cache.
    mkfs_btrfs(&path, 4 << 30, &["-R", "^free-space-tree"]);
    let script = "for n in $(seq 40); do head -c 40000 /dev/urandom > $n; done; sync; rm ?";
    volume::change(&path, "space_cache=v1", script);
    assert_clean(&report(&path), "an old space cache");
    let image = Image::open(&path);
    assert_eq!(
        image.superblock.cache_generation,
        image.superblock.generation.get(),
        "the kernel wrote a cache"
    );
    let mut reported = 0;
    let caches = image.items(TreeId::ROOT).into_iter();
    let caches = caches.filter(|(key, _)| key.item_type == ItemType::MIN);
    for (header, data) in caches {
        let number = u64::from_le_bytes(data[..8].try_into().unwrap());
        let (_, extent) = image.find(TreeId::ROOT, |key, _| {
            key.objectid == number && key.item_type == ItemType::EXTENT_DATA
        });
        let word = |at: usize| u64::from_le_bytes(extent[at..at + 8].try_into().unwrap());
        let (disk, length) = (Logical(word(21)), word(45) as usize);
        let damaged = dir.path().join("damaged.img");
        volume::sparse_copy(&path, &damaged);
        let target = Image::open(&damaged);
        let mut page = target.read(disk)[..PAGE].to_vec();
        let sums = length / PAGE * 4;
        let word = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
        let entries: Vec<(usize, u64, u64)> = (sums + 8..PAGE - 17)
            .step_by(17)
            .take_while(|at| page[at + 16] == 1)
            .map(|at| (at, word(at), word(at) + word(at + 8)))
            .collect();
        let has_bitmaps = u64::from_le_bytes(data[33..41].try_into().unwrap()) > 0;
        // A free range begins at the used space that lies before it.
        let is_behind_used = |(_, start, _): &&(usize, u64, u64)| {
            *start > header.offset && entries.iter().all(|(_, _, end)| end != start)
        };
        let Some((at, start, _)) = entries
            .iter()
            .find(is_behind_used)
            .copied()
            .filter(|_| !has_bitmaps)
        else {
            continue;
        };
        page[at..at + 8].copy_from_slice(&(start - 4096).to_le_bytes());
        let sum = butterfs_format::checksum::crc32c(&page[sums..]);
        page[..4].copy_from_slice(&sum.to_le_bytes());
        target.write(disk, &page);
        drop(target);
        let report = report(&damaged);
        let code = FaultCode::SpaceCacheOverlapsExtent;
        assert!(
            report.faults.iter().any(|fault| fault.code == code),
            "the cache of {}: {:?}",
            header.offset,
            report.faults
        );
        reported += 1;
        // Without right sums, the kernel does not believe it.
        let target = Image::open(&damaged);
        page[0] ^= 1;
        target.write(disk, &page);
        drop(target);
        assert_clean(&support::report(&damaged), "a cache with a wrong sum");
    }
    assert!(reported > 0, "no cache has a range behind used space");
}
