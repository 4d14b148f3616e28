//! Files come back from volumes of several devices in each profile: without any
//! superblock, without the chunk tree, and without a device where the profile
//! can do without one.

use butterfs::{BlockDevice, MemoryDevice, MountOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_rescue::{
    DirectoryTarget, Patient, PatientOptions, RestoreOptions, Restored, Silent, restore,
};
use butterfs_testkit::content::content;
use butterfs_testkit::judge::scratch_dir;
use std::path::Path;
use std::sync::Arc;

const FILES: u64 = 40;

fn bytes_of(file: u64) -> Vec<u8> {
    content(file, [3000, 70_000, 400_000][(file % 3) as usize])
}

/// What the files had an hour ago.
fn earlier(file: u64) -> Vec<u8> {
    content(file + FILES, [3000, 70_000, 400_000][(file % 3) as usize])
}

fn made(data: ProfileChoice, metadata: ProfileChoice, count: usize) -> Vec<MemoryDevice> {
    made_of(bytes_of, (data, metadata), count)
}

fn made_of(
    bytes: fn(u64) -> Vec<u8>,
    (data, metadata): (ProfileChoice, ProfileChoice),
    count: usize,
) -> Vec<MemoryDevice> {
    let devices: Vec<Arc<MemoryDevice>> = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(512 << 20)))
        .collect();
    let given: Vec<Arc<dyn BlockDevice>> = devices.iter().map(|one| one.clone() as _).collect();
    let mkfs = MkfsOptions {
        node_size: 4096,
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    make_on(&given, &mkfs).unwrap();
    let options = MountOptions::parse("rw").unwrap().open_options();
    let volume = Volume::open_devices(given, options).unwrap();
    for file in 0..FILES {
        volume.write_file(format!("/{file}"), &bytes(file)).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    devices.iter().map(|device| device.snapshot()).collect()
}

fn zero_superblocks(devices: &[MemoryDevice]) {
    for device in devices {
        for copy in COPIES.iter().filter(|copy| copy.get() < device.size()) {
            device.write_at(*copy, &[0; SIZE]).unwrap();
        }
    }
}

/// Zeroes the root of the chunk tree on all devices.
fn zero_chunk_root(devices: &[MemoryDevice]) {
    let mut bytes = vec![0; SIZE];
    devices[0].read_at(COPIES[0], &mut bytes).unwrap();
    let superblock = Superblock::parse(&bytes, COPIES[0]).unwrap();
    let given: Vec<Arc<dyn BlockDevice>> = devices
        .iter()
        .map(|one| Arc::new(one.snapshot()) as _)
        .collect();
    let options = MountOptions::parse("ro").unwrap().open_options();
    let volume = Volume::open_devices(given, options).unwrap();
    let space = volume.files().store().space();
    for copy in 0..space.copies(superblock.chunk_root) {
        let place = space.place(superblock.chunk_root, copy).unwrap();
        let device = &devices[(place.device.get() - 1) as usize];
        device.write_at(place.offset, &[0; 4096]).unwrap();
    }
}

fn count(folder: &Path, context: &str) -> u64 {
    let mut whole = 0;
    for file in 0..FILES {
        if let Ok(found) = std::fs::read(folder.join(file.to_string())) {
            assert!(found == bytes_of(file), "{context}: {file} is wrong");
            whole += 1;
        }
    }
    whole
}

fn bring_back(devices: &[MemoryDevice], context: &str) -> (u64, Restored) {
    let given: Vec<Arc<dyn BlockDevice>> = devices
        .iter()
        .map(|one| Arc::new(one.snapshot()) as _)
        .collect();
    let folder = scratch_dir();
    let mut target = DirectoryTarget::new(folder.path()).unwrap();
    let mut patient = Patient::open(given, PatientOptions::default()).unwrap();
    let options = RestoreOptions::default();
    let restored = restore(&mut patient, &mut target, &options, &Silent, &mut |_, _| {}).unwrap();
    (count(folder.path(), context), restored)
}

fn copy(devices: &[MemoryDevice]) -> Vec<MemoryDevice> {
    devices.iter().map(MemoryDevice::snapshot).collect()
}

#[test]
fn every_profile_comes_back() {
    use ProfileChoice as P;
    let kinds = [
        ("raid0", P::Raid0, P::Raid1, 3, false),
        ("raid1", P::Raid1, P::Raid1, 2, true),
        ("raid10", P::Raid10, P::Raid10, 4, true),
        ("raid5", P::Raid5, P::Raid1, 3, true),
        ("raid6", P::Raid6, P::Raid1c3, 4, true),
    ];
    for (name, data, metadata, count, spares_one) in kinds {
        let devices = made(data, metadata, count);
        let mut cases = vec![("whole", copy(&devices))];
        let bare = copy(&devices);
        zero_superblocks(&bare);
        cases.push(("no superblock", bare));
        let bare = copy(&devices);
        zero_chunk_root(&bare);
        cases.push(("no chunk tree", bare));
        let bare = copy(&devices);
        zero_chunk_root(&bare);
        zero_superblocks(&bare);
        cases.push(("neither", bare));
        if spares_one {
            let mut some = copy(&devices);
            some.remove(0);
            cases.push(("one device missing", some));
            let mut some = copy(&devices);
            some.pop();
            zero_superblocks(&some);
            cases.push(("one device missing, no superblock", some));
        }
        for (case, devices) in cases {
            let context = format!("{name}, {case}");
            let (whole, restored) = bring_back(&devices, &context);
            eprintln!("{context}: {whole} of {FILES}");
            assert!(whole == FILES, "{context}: {whole}, {restored:?}");
        }
    }
}

/// A device of RAID1 that is an hour old, in the place of a good one. Its nodes
/// have good checksums and older generations, its superblock opens.
#[test]
fn a_device_that_is_an_hour_old() {
    use ProfileChoice as P;
    for (name, data, metadata, count) in [
        ("raid1", P::Raid1, P::Raid1, 2),
        ("raid1c3", P::Raid1c3, P::Raid1c3, 3),
        ("raid10", P::Raid10, P::Raid10, 4),
        ("raid5", P::Raid5, P::Raid1, 3),
    ] {
        let before = made_of(earlier, (data, metadata), count);
        let devices: Vec<Arc<MemoryDevice>> =
            before.iter().map(|one| Arc::new(one.snapshot())).collect();
        let given = devices.iter().map(|one| one.clone() as _).collect();
        let options = MountOptions::parse("rw").unwrap().open_options();
        let volume = Volume::open_devices(given, options).unwrap();
        for round in 0..5 {
            for file in 0..FILES {
                let bytes = match round {
                    4 => bytes_of(file),
                    _ => earlier(file),
                };
                volume.write_file(format!("/{file}"), &bytes).unwrap();
            }
            volume.sync().unwrap();
        }
        volume.close().unwrap();
        drop(volume);
        for stale in [0, count - 1] {
            let mut all: Vec<MemoryDevice> = devices.iter().map(|one| one.snapshot()).collect();
            all[stale] = before[stale].snapshot();
            let mut cases = vec![("with superblocks", copy(&all))];
            zero_superblocks(&all);
            cases.push(("without superblocks", all));
            for (case, devices) in cases {
                let context = format!("{name}, device {stale} is old, {case}");
                let (whole, restored) = bring_back(&devices, &context);
                assert!(whole == FILES, "{context}: {whole}, {restored:?}");
            }
        }
    }
}
