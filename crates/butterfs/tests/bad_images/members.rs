//! Volumes of several devices whose chunks or devices lie: a typed error in one
//! sentence, and no write to any of them.

use crate::common::*;
use butterfs::{Access, BlockDevice, Degraded, Error, MemoryDevice, StoreError, TreeId, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_format::item::chunk::BlockGroupFlags;
use butterfs_format::{ChecksumType, DeviceOffset, ItemType, Key};
use butterfs_testkit::content::content;
use butterfs_tree::NodeSource;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

type Memory = Vec<Arc<MemoryDevice>>;

fn open_with(
    memory: &[Arc<MemoryDevice>],
    access: Access,
    degraded: Degraded,
) -> Result<Volume, Error> {
    let mut options = options(access);
    options.store.degraded = degraded;
    let devices = memory.iter().map(|device| Arc::clone(device) as _);
    Volume::open_devices(devices.collect(), options)
}

fn made(data: ProfileChoice, count: usize) -> Memory {
    let memory: Memory = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(200 * MIB)))
        .collect();
    let mkfs = MkfsOptions {
        node_size: NODE as u32,
        data: Some(data),
        metadata: Some(ProfileChoice::Raid1),
        ..MkfsOptions::default()
    };
    let devices: Vec<_> = memory
        .iter()
        .map(|device| Arc::clone(device) as _)
        .collect();
    make_on(&devices, &mkfs).unwrap();
    let volume = open_with(&memory, Access::ReadWrite, Degraded::Refused).unwrap();
    for number in 0..20 {
        let path = format!("/{number}");
        volume
            .write_file(path.as_bytes(), &content(number, 90_000))
            .unwrap();
    }
    volume.close().unwrap();
    memory
}

fn copied(memory: &[Arc<MemoryDevice>]) -> Memory {
    let copies = memory.iter().map(|device| Arc::new(device.snapshot()));
    copies.collect()
}

/// Changes the first fitting item of the chunk tree on all its copies.
fn edit_chunk_tree(
    memory: &[Arc<MemoryDevice>],
    mut wanted: impl FnMut(&Key, &[u8]) -> bool,
    change: impl FnOnce(&mut [u8], usize, usize),
) {
    let volume = open_with(memory, Access::ReadOnly, Degraded::Refused).unwrap();
    let engine = volume.files().store().read();
    let root = engine.root(TreeId::CHUNK).unwrap();
    assert_eq!(root.level, 0, "one leaf has all");
    let places = engine
        .space()
        .map()
        .map(root.logical, NODE as u64)
        .unwrap()
        .copies;
    drop(engine);
    let device = |id: u64| &memory[id as usize - 1];
    let mut bytes = read(device(places[0].device.get()), places[0].offset, NODE);
    let (key, data) = item(&bytes, &mut wanted).expect("there is such an item");
    change(&mut bytes, key, data);
    ChecksumType::Crc32c.seal_block(&mut bytes);
    for place in places {
        device(place.device.get())
            .write_at(place.offset, &bytes)
            .unwrap();
    }
}

fn is_chunk(flags: BlockGroupFlags) -> impl FnMut(&Key, &[u8]) -> bool {
    move |key, data| {
        let found = data
            .get(24..32)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()));
        key.item_type == ItemType::CHUNK_ITEM
            && found.is_some_and(|found| BlockGroupFlags(found).contains(flags))
    }
}

fn is_device(id: u64) -> impl FnMut(&Key, &[u8]) -> bool {
    move |key, _| key.item_type == ItemType::DEV_ITEM && key.offset == id
}

/// Without `degraded`, the volume cannot be opened, and the error is one
/// sentence. With `degraded`, a volume that only claims that devices are
/// missing may be opened. Opening it for reading writes nothing.
#[track_caller]
fn assert_refused_all(memory: &[Arc<MemoryDevice>], what: &str) -> String {
    let before = copied(memory);
    let mut text = String::new();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        for degraded in [Degraded::Allowed, Degraded::Refused] {
            match open_with(memory, access, degraded) {
                Err(error) => {
                    text = one_sentence(&error);
                    let is_typed = match &error {
                        Error::Store(error) => !matches!(error, StoreError::Internal(_)),
                        _ => true,
                    };
                    assert!(is_typed, "{what}: {text}");
                }
                Ok(_) => assert_eq!(degraded, Degraded::Allowed, "{what} is opened"),
            }
        }
        for (device, before) in memory.iter().zip(&before) {
            if access == Access::ReadOnly {
                assert_eq!(device.first_difference(before), None, "{what}");
            }
        }
    }
    text
}

/// The same, but nothing may open it for writing, and nothing is written at
/// all.
#[track_caller]
fn assert_never_opened(memory: &[Arc<MemoryDevice>], what: &str) -> String {
    let before = copied(memory);
    let text = assert_refused_all(memory, what);
    for degraded in [Degraded::Allowed, Degraded::Refused] {
        let opened = open_with(memory, Access::ReadWrite, degraded);
        assert!(opened.is_err(), "{what} is opened");
    }
    for (device, before) in memory.iter().zip(&before) {
        assert_eq!(device.first_difference(before), None, "{what}: written");
    }
    text
}

/// Where the stripes lie in a chunk item, and the size of each, in bytes.
const STRIPES: usize = 48;
const STRIPE: usize = 32;

#[test]
fn chunks_that_lie_are_refused() {
    type Change = fn(&mut [u8], usize, usize);
    let changes: &[(&str, Change)] = &[
        ("a stripe beyond its device", |b, _, at| {
            put_u64(b, at + STRIPES + 8, 1 << 40)
        }),
        ("a stripe at the last byte", |b, _, at| {
            put_u64(b, at + STRIPES + 8, 200 * MIB - 65536)
        }),
        ("a stripe that overflows", |b, _, at| {
            put_u64(b, at + STRIPES + 8, u64::MAX - 65535)
        }),
        ("a stripe over another chunk", |b, _, at| {
            put_u64(b, at + STRIPES + 8, MIB)
        }),
        ("two stripes at one place", |b, _, at| {
            b.copy_within(at + STRIPES..at + STRIPES + STRIPE, at + STRIPES + STRIPE);
        }),
        ("a stripe of a device that is not there", |b, _, at| {
            put_u64(b, at + STRIPES, 99)
        }),
        ("a stripe of device 0", |b, _, at| {
            put_u64(b, at + STRIPES, 0)
        }),
        ("no stripes", |b, _, at| b[at + 44..at + 46].fill(0)),
        ("one stripe", |b, _, at| {
            b[at + 44..at + 46].copy_from_slice(&[1, 0])
        }),
        ("all stripes there are", |b, _, at| {
            b[at + 44..at + 46].fill(0xff)
        }),
        ("no bytes", |b, _, at| put_u64(b, at, 0)),
        ("all bytes there are", |b, _, at| put_u64(b, at, u64::MAX)),
        ("one byte more", |b, _, at| {
            let old = u64::from_le_bytes(b[at..at + 8].try_into().unwrap());
            put_u64(b, at, old + 1);
        }),
        ("stripes of 4 KiB", |b, _, at| put_u64(b, at + 16, 4096)),
        ("two profiles", |b, _, at| b[at + 24] |= 0b0111_1000),
        ("the logical address of another", |b, key, _| {
            put_u64(b, key + 9, 22 * MIB + 4096)
        }),
    ];
    for (profile, count) in [
        (ProfileChoice::Raid0, 2),
        (ProfileChoice::Raid1, 3),
        (ProfileChoice::Raid10, 4),
        (ProfileChoice::Raid5, 3),
        (ProfileChoice::Raid6, 4),
    ] {
        let whole = made(profile, count);
        for (what, change) in changes {
            let memory = copied(&whole);
            edit_chunk_tree(&memory, is_chunk(BlockGroupFlags::DATA), change);
            let text = assert_never_opened(&memory, &format!("{profile}: {what}"));
            assert!(text.len() > 20, "{profile} {what}: {text}");
        }
    }
}

#[test]
fn device_items_that_lie_are_refused() {
    type Change = fn(&mut [u8], usize, usize);
    let changes: &[(&str, Change)] = &[
        ("another number", |b, _, at| put_u64(b, at, 1)),
        ("more used than there are", |b, _, at| {
            put_u64(b, at + 16, u64::MAX)
        }),
        ("fewer bytes than are used", |b, _, at| {
            put_u64(b, at + 8, MIB)
        }),
        ("another UUID", |b, _, at| b[at + 66] ^= 1),
        ("no such item", |b, key, _| b[key + 8] += 1),
    ];
    let whole = made(ProfileChoice::Raid1, 3);
    for (what, change) in changes {
        let memory = copied(&whole);
        edit_chunk_tree(&memory, is_device(2), change);
        assert_never_opened(&memory, what);
    }
    let memory = copied(&whole);
    edit_chunk_tree(&memory, is_device(2), |b, _, at| {
        put_u64(b, at + 8, 1 << 60);
    });
    assert_only_read(&memory, "more bytes than it has");
}

/// It opens for reading alone, everything can be read from the other copies,
/// and nothing is written.
#[track_caller]
fn assert_only_read(memory: &[Arc<MemoryDevice>], what: &str) {
    let before = copied(memory);
    for degraded in [Degraded::Allowed, Degraded::Refused] {
        let error = open_with(memory, Access::ReadWrite, degraded).unwrap_err();
        let text = one_sentence(&error);
        assert!(text.contains("was cut short"), "{what}: {text}");
        let volume = open_with(memory, Access::ReadOnly, degraded).unwrap();
        for number in 0..20 {
            let path = format!("/{number}");
            let read = volume.read_file(path.as_bytes()).unwrap();
            assert!(read == content(number, 90_000), "{what}: {path}");
        }
    }
    for (device, before) in memory.iter().zip(&before) {
        assert_eq!(device.first_difference(before), None, "{what}: written");
    }
}

#[test]
fn members_that_do_not_fit_are_refused() {
    let whole = made(ProfileChoice::Raid1, 3);
    // Two devices with the same number.
    let memory = copied(&whole);
    edit_superblock(&memory[1], |superblock| {
        superblock.device.id = butterfs_format::DeviceId(1)
    });
    let text = assert_never_opened(&memory, "two of one number");
    assert!(text.contains("are both device 1"), "{text}");
    let memory = vec![
        whole[0].clone(),
        whole[1].clone(),
        whole[1].clone(),
        whole[2].clone(),
    ];
    let text = assert_never_opened(&copied(&memory), "one of them twice");
    assert!(text.contains("copy of the other"), "{text}");
    // A device of another volume, with the same number.
    let other = made(ProfileChoice::Raid1, 3);
    let memory = vec![whole[0].clone(), other[1].clone(), whole[2].clone()];
    assert_never_opened(&copied(&memory), "one of another volume");
    // Superblocks with a wrong number of devices.
    for count in [0, 1, 2, 4, u64::MAX] {
        let memory = copied(&whole);
        for device in &memory {
            edit_superblock(device, |superblock| superblock.num_devices = count);
        }
        for access in [Access::ReadOnly, Access::ReadWrite] {
            // The kernel believes the items. Opening the volume does not crash.
            if let Err(error) = open_with(&memory, access, Degraded::Refused) {
                one_sentence(&error);
            }
        }
    }
    // A member that was cut short.
    for length in [2, 40, 64, 150, 199] {
        let memory = copied(&whole);
        let cut = Arc::new(MemoryDevice::new(length * MIB));
        for at in 0..length {
            let at = DeviceOffset(at * MIB);
            cut.write_at(at, &read(&memory[1], at, MIB as usize))
                .unwrap();
        }
        let memory = vec![memory[0].clone(), cut, memory[2].clone()];
        assert_only_read(&memory, &format!("{length} MiB are left"));
    }
}
