//! The chunks of a volume whose chunk tree is lost come back as they were, in
//! each profile, or are named: never guessed.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_format::item::chunk::{BlockGroupFlags, Chunk};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{ChecksumType, DeviceOffset, Logical};
use butterfs_rescue::{
    ChunkDoubt, ChunkEvidence, ChunkRecovery, Patient, PatientOptions, ScanScope, Silent,
    recover_chunks,
};
use butterfs_testkit::content::content;
use butterfs_volume::{ChunkMap, Profile};
use std::collections::BTreeSet;
use std::sync::Arc;

use ProfileChoice as P;

const NODE: usize = 4096;
const CHUNK_TREE: u64 = 3;
const DEVICE_TREE: u64 = 4;

struct Made {
    devices: Vec<MemoryDevice>,
    truth: ChunkMap,
}

/// A volume on `count` devices of different sizes, so that the order of stripes
/// is not that of the devices.
fn made(data: P, metadata: P, count: u64, options: &str, sizes: &[usize]) -> Made {
    let devices: Vec<Arc<MemoryDevice>> = (0..count)
        .map(|number| Arc::new(MemoryDevice::new((512 + 64 * number) << 20)))
        .collect();
    let given: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|one| one.clone() as _).collect();
    let mkfs = MkfsOptions {
        node_size: NODE as u32,
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    make_on(&given, &mkfs).unwrap();
    let options = MountOptions::parse(options).unwrap().open_options();
    let volume = Volume::open_devices(given, options).unwrap();
    for (number, size) in sizes.iter().enumerate() {
        let bytes = content(number as u64, *size);
        volume.write_file(format!("/{number}"), &bytes).unwrap();
        volume.sync().unwrap();
    }
    let truth = ChunkMap::clone(&volume.files().store().space().map());
    volume.close().unwrap();
    drop(volume);
    Made {
        devices: devices.iter().map(|device| device.snapshot()).collect(),
        truth,
    }
}

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = vec![0; SIZE];
    device.read_at(COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, COPIES[0]).unwrap()
}

/// Zeroes all nodes of a tree, of all generations.
fn zero_tree(devices: &[MemoryDevice], tree: u64) {
    let fsid = superblock(&devices[0]).fsid;
    for device in devices {
        let mut bytes = vec![0; device.size() as usize];
        device.read_at(DeviceOffset(0), &mut bytes).unwrap();
        for (number, node) in bytes.chunks(NODE).enumerate() {
            if node[32..48] == fsid && node[88..96] == tree.to_le_bytes() {
                let at = (number * NODE) as u64;
                device.write_at(DeviceOffset(at), &[0; NODE]).unwrap();
            }
        }
    }
}

/// Makes the array of system chunks in all superblocks impossible.
fn damage_arrays(devices: &[MemoryDevice]) {
    for device in devices {
        for copy in COPIES.iter().filter(|copy| copy.get() < device.size()) {
            let mut bytes = vec![0; SIZE];
            device.read_at(*copy, &mut bytes).unwrap();
            bytes[0x32b..0x32b + 97].fill(0xff);
            ChecksumType::Crc32c.seal_block(&mut bytes);
            device.write_at(*copy, &bytes).unwrap();
        }
    }
}

fn recovered(devices: &[MemoryDevice]) -> ChunkRecovery {
    let given: Vec<Arc<dyn BlockDevice>> = devices
        .iter()
        .map(|one| Arc::new(one.snapshot()) as _)
        .collect();
    let mut patient = Patient::open(given, PatientOptions::default()).unwrap();
    assert!(patient.needs_scan(), "the chunk tree is whole");
    patient.scan(ScanScope::Everything, &Silent).unwrap();
    recover_chunks(&patient).unwrap()
}

/// Stripes as far as their order matters. A chunk for the chunk tree holds
/// nothing any more.
fn order(chunk: &Chunk) -> Vec<BTreeSet<(u64, u64)>> {
    let profile = Profile::from_flags(chunk.flags).unwrap();
    let count = chunk.stripes.len();
    let is_held = !chunk.flags.contains(BlockGroupFlags::SYSTEM);
    let width = match is_held && profile.is_striped() && profile.data_stripes(count) > 1 {
        true => profile.copies(),
        false => count,
    };
    let stripe = |one: &butterfs_format::item::chunk::Stripe| (one.device.get(), one.offset.get());
    let classes = chunk.stripes.chunks(width);
    classes
        .map(|class| class.iter().map(stripe).collect())
        .collect()
}

fn assert_same(recovery: &ChunkRecovery, truth: &ChunkMap, context: &str) {
    let found = &recovery.map;
    let places = |map: &ChunkMap| -> Vec<Logical> { map.iter().map(|(at, _)| at).collect() };
    assert_eq!(places(found), places(truth), "{context}");
    for ((at, one), (_, other)) in found.iter().zip(truth.iter()) {
        let facts = |chunk: &Chunk| (chunk.length, chunk.flags, chunk.sub_stripes, chunk.owner);
        assert_eq!(facts(one), facts(other), "{context} {at}");
        let own = recovery.found.iter().find(|found| found.logical == at);
        // Several orders are right where little lies in a chunk.
        if own.unwrap().evidence != ChunkEvidence::Everything {
            assert_eq!(order(one), order(other), "{context} {at}");
        }
        let uuids = |chunk: &Chunk| -> BTreeSet<_> {
            chunk
                .stripes
                .iter()
                .map(|one| (one.device, one.device_uuid))
                .collect()
        };
        assert_eq!(uuids(one), uuids(other), "{context} {at}");
    }
}

const FILES: [usize; 8] = [
    3000, 70_000, 400_000, 900_000, 8192, 200_000, 1_000_000, 65_536,
];

#[test]
fn every_profile_without_any_trace_of_a_chunk_item() {
    let kinds = [
        ("single", P::Single, P::Dup, 1),
        ("dup", P::Dup, P::Dup, 1),
        ("raid0", P::Raid0, P::Raid1, 3),
        ("raid0 metadata", P::Raid0, P::Raid0, 3),
        ("raid1", P::Raid1, P::Raid1, 2),
        ("raid1c3", P::Raid1c3, P::Raid1c4, 4),
        ("raid10", P::Raid10, P::Raid10, 4),
        ("raid10 of six", P::Raid10, P::Raid1, 6),
        ("raid5", P::Raid5, P::Raid1, 3),
        ("raid5 metadata", P::Raid5, P::Raid5, 4),
        ("raid6", P::Raid6, P::Raid6, 4),
    ];
    for (name, data, metadata, count) in kinds {
        let made = made(data, metadata, count, "rw", &FILES);
        zero_tree(&made.devices, CHUNK_TREE);
        // The superblock's array has chunk items of its own.
        damage_arrays(&made.devices);
        let found = recovered(&made.devices);
        assert!(found.is_whole(), "{name}: {:?}", found.lost);
        assert_same(&found, &made.truth, name);
        let of_items = found
            .found
            .iter()
            .filter(|one| one.evidence == ChunkEvidence::Item);
        assert_eq!(of_items.count(), 0, "{name}");
    }
}

#[test]
fn items_that_are_left_say_the_order() {
    let made = made(P::Raid10, P::Raid1, 4, "rw", &FILES);
    let root = superblock(&made.devices[0]).chunk_root;
    let places = made.truth.map(root, 1).unwrap().copies;
    for place in places {
        let device = &made.devices[(place.device.get() - 1) as usize];
        device.write_at(place.offset, &[0; NODE]).unwrap();
    }
    let found = recovered(&made.devices);
    assert!(found.is_whole(), "{:?}", found.lost);
    assert_same(&found, &made.truth, "the root alone");
    let system = found
        .found
        .iter()
        .find(|one| one.flags.contains(BlockGroupFlags::SYSTEM));
    assert_eq!(system.unwrap().evidence, ChunkEvidence::Item);
}

/// One row of RAID6: nodes and checksums tell the data, parity the rest.
#[test]
fn parity_tells_the_order_where_nothing_else_does() {
    let made = made(P::Raid6, P::Raid1, 4, "rw", &[130_000]);
    zero_tree(&made.devices, CHUNK_TREE);
    let found = recovered(&made.devices);
    assert!(found.is_whole(), "{:?}", found.lost);
    assert_same(&found, &made.truth, "raid6");
    let data = found
        .found
        .iter()
        .find(|one| one.flags.contains(BlockGroupFlags::DATA));
    assert_eq!(data.unwrap().evidence, ChunkEvidence::Parity);
}

#[test]
fn data_without_checksums_on_stripes_are_named_and_not_guessed() {
    let made = made(P::Raid0, P::Raid1, 3, "rw,nodatasum", &FILES);
    zero_tree(&made.devices, CHUNK_TREE);
    let found = recovered(&made.devices);
    assert!(!found.is_whole());
    let [lost] = &found.lost[..] else {
        panic!("{:?}", found.lost);
    };
    assert_eq!(lost.doubt, ChunkDoubt::Order);
    assert!(lost.flags.unwrap().contains(BlockGroupFlags::DATA));
    assert!(lost.held.used.unwrap() > 2_000_000);
    let names: Vec<&[u8]> = lost.held.files.iter().map(|(_, path)| &path[..]).collect();
    assert!(
        names.contains(&&b"2"[..]) && names.contains(&&b"6"[..]),
        "{names:?}"
    );
    // Metadata are certain all the same.
    assert!(found.found.len() >= 2);
}

#[test]
fn without_the_device_tree_nodes_say_where_they_lie() {
    let made = made(P::Single, P::Dup, 1, "rw", &FILES);
    let bare: Vec<MemoryDevice> = made.devices.iter().map(MemoryDevice::snapshot).collect();
    zero_tree(&bare, CHUNK_TREE);
    zero_tree(&bare, DEVICE_TREE);
    damage_arrays(&bare);
    let found = recovered(&bare);
    // Nothing says where data lie, nor the chunk tree of which no node is left.
    assert!(!found.is_whole() && found.is_complete);
    for lost in &found.lost {
        let flags = lost.flags.unwrap();
        assert!(!flags.contains(BlockGroupFlags::METADATA), "{lost:?}");
        assert_eq!(lost.doubt, ChunkDoubt::NoPlace);
    }
    let metadata = found
        .found
        .iter()
        .find(|one| one.flags.contains(BlockGroupFlags::METADATA));
    assert_eq!(metadata.unwrap().evidence, ChunkEvidence::Addresses);
    for (at, chunk) in found.map.iter() {
        let (_, truth) = made.truth.find(at).unwrap();
        assert_eq!(order(chunk), order(truth), "{at}");
    }
}

#[test]
fn a_device_that_is_missing_is_said() {
    let made = made(P::Raid1, P::Raid1, 3, "rw", &FILES);
    zero_tree(&made.devices, CHUNK_TREE);
    let found = recovered(&made.devices[..2]);
    assert!(!found.is_whole());
    let doubts: BTreeSet<ChunkDoubt> = found.lost.iter().map(|lost| lost.doubt).collect();
    assert_eq!(doubts, BTreeSet::from([ChunkDoubt::NoDevice]));
}
