//! Volumes of several devices in memory: what is refused, what goes on without
//! a device, and what is believed of a device that comes back.

use butterfs::{
    Access, BlockDevice, DataCow, Degraded, Error, MemberFault, MemberState, MemoryDevice,
    OpenOptions, StoreError, Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_device::fault::{Fault, When};
use butterfs_device::{FaultDevice, FileDevice, Operation};
use butterfs_testkit::content::content;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

type Memory = Vec<Arc<MemoryDevice>>;

fn options(access: Access, degraded: Degraded) -> OpenOptions {
    let mut options = OpenOptions::default();
    options.store.access = access;
    options.store.degraded = degraded;
    options
}

fn made(data: ProfileChoice, metadata: ProfileChoice, sizes: &[u64]) -> Memory {
    let memory: Memory = sizes
        .iter()
        .map(|size| Arc::new(MemoryDevice::new(size * MIB)))
        .collect();
    let mkfs = MkfsOptions {
        data: Some(data),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    make_on(&devices(&memory), &mkfs).unwrap();
    memory
}

fn devices(memory: &[Arc<MemoryDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    memory
        .iter()
        .map(|device| Arc::clone(device) as _)
        .collect()
}

fn copied(memory: &[Arc<MemoryDevice>]) -> Memory {
    memory
        .iter()
        .map(|device| Arc::new(device.snapshot()))
        .collect()
}

fn open(memory: &[Arc<MemoryDevice>], degraded: Degraded) -> Result<Volume, Error> {
    Volume::open_devices(devices(memory), options(Access::ReadWrite, degraded))
}

fn write_files(volume: &Volume, names: std::ops::Range<u64>) {
    for number in names {
        let data = content(number, [100, 5000, 300_000, 1_500_000][number as usize % 4]);
        volume
            .write_file(format!("/{number}").as_bytes(), &data)
            .unwrap();
    }
}

fn assert_files(volume: &Volume, names: std::ops::Range<u64>) {
    for number in names {
        let data = content(number, [100, 5000, 300_000, 1_500_000][number as usize % 4]);
        let found = volume.read_file(format!("/{number}").as_bytes());
        assert!(found.unwrap() == data, "file {number}");
    }
}

fn fault(result: Result<Volume, Error>) -> MemberFault {
    match result.map(drop) {
        Err(Error::Store(StoreError::Members(fault))) => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_profile_is_written_and_read_in_any_order_of_devices() {
    for profile in ProfileChoice::ALL {
        let memory = made(profile, profile, &[500, 300, 400, 300]);
        let volume = open(&memory, Degraded::Refused).unwrap();
        write_files(&volume, 0..40);
        volume.close().unwrap();
        drop(volume);
        let mut turned = memory.clone();
        turned.reverse();
        let volume = open(&turned, Degraded::Refused).unwrap();
        assert_files(&volume, 0..40);
        // More than one chunk.
        write_files(&volume, 40..120);
        volume.close().unwrap();
        drop(volume);
        let volume = open(&memory, Degraded::Refused).unwrap();
        assert_files(&volume, 0..120);
        let facts = volume.devices();
        assert_eq!(facts.len(), 4);
        for (device, memory) in facts.iter().zip(&memory) {
            assert_eq!(device.state, MemberState::Present);
            assert_eq!(device.item.total_bytes, memory.size());
            assert_eq!(device.stats, [0; 5]);
        }
        let used: u64 = facts.iter().map(|device| device.item.bytes_used).sum();
        assert_eq!(volume.usage().device_allocated, used, "{profile}");
    }
}

#[test]
fn wrong_sets_of_devices_are_named() {
    let one = made(ProfileChoice::Raid1, ProfileChoice::Raid1, &[200, 200]);
    let other = made(ProfileChoice::Raid1, ProfileChoice::Raid1, &[200, 200]);
    let missing = fault(open(&one[..1], Degraded::Refused));
    assert!(matches!(&missing, MemberFault::Missing(ids) if ids[0].0.get() == 2));
    assert!(missing.to_string().contains("device 2 (UUID"), "{missing}");
    let mixed = [Arc::clone(&one[0]), Arc::clone(&other[1])];
    assert!(matches!(
        fault(open(&mixed, Degraded::Allowed)),
        MemberFault::Foreign { .. }
    ));
    let twice = [Arc::clone(&one[0]), Arc::new(one[0].snapshot())];
    assert!(matches!(
        fault(open(&twice, Degraded::Allowed)),
        MemberFault::Twice { id, .. } if id.get() == 1
    ));
    let before = copied(&one);
    for degraded in [Degraded::Refused, Degraded::Allowed] {
        let none = Volume::open_devices(Vec::new(), options(Access::ReadOnly, degraded));
        assert_eq!(fault(none), MemberFault::None);
    }
    for (device, before) in one.iter().zip(&before) {
        assert_eq!(device.first_difference(before), None, "nothing was written");
    }
}

#[test]
fn a_degraded_volume_goes_on_and_what_comes_back_is_not_believed() {
    for (profile, sizes) in [
        (ProfileChoice::Raid1, &[300, 300][..]),
        (ProfileChoice::Raid1, &[300, 300, 300]),
        (ProfileChoice::Raid1c3, &[300, 300, 300]),
        (ProfileChoice::Raid10, &[300, 300, 300, 300]),
        (ProfileChoice::Raid5, &[300, 300, 300]),
        (ProfileChoice::Raid6, &[300, 300, 300]),
    ] {
        let memory = made(profile, profile, sizes);
        let volume = open(&memory, Degraded::Refused).unwrap();
        write_files(&volume, 0..20);
        volume.close().unwrap();
        drop(volume);
        for gone in 0..memory.len() {
            let memory = copied(&memory);
            let mut left = memory.clone();
            let away = left.remove(gone);
            assert!(matches!(
                fault(open(&left, Degraded::Refused)),
                MemberFault::Missing(_)
            ));
            let volume = open(&left, Degraded::Allowed).unwrap();
            assert_files(&volume, 0..20);
            write_files(&volume, 20..30);
            volume.write_file(b"/0", b"new").unwrap();
            volume.close().unwrap();
            drop(volume);
            // A single commit is enough to tell.
            let stale = fault(open(&memory, Degraded::Refused));
            assert!(
                matches!(&stale, MemberFault::Stale { found, newest, .. } if newest.get() - found.get() > 1),
                "{stale}"
            );
            let before = away.snapshot();
            let volume = open(&memory, Degraded::Allowed).unwrap();
            let state = &volume.devices()[gone].state;
            assert_eq!(*state, MemberState::Stale);
            assert_eq!(volume.read_file(b"/0").unwrap(), b"new");
            assert_files(&volume, 1..30);
            volume.close().unwrap();
            assert_eq!(away.first_difference(&before), None, "it is not written");
        }
    }
}

#[test]
fn too_many_missing_devices_are_read_where_that_is_possible_and_not_written() {
    let memory = made(ProfileChoice::Single, ProfileChoice::Raid1, &[300, 300]);
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 0..8);
    volume.close().unwrap();
    drop(volume);
    let chunks = [0, 1].map(|left| open(&memory[left..=left], Degraded::Allowed).is_ok());
    assert_eq!(
        chunks.iter().filter(|ok| !**ok).count(),
        1,
        "the device with the data chunk is needed"
    );
    let lost = chunks.iter().position(|ok| !*ok).unwrap();
    let read_only = options(Access::ReadOnly, Degraded::Allowed);
    let volume = Volume::open_devices(devices(&memory[lost..=lost]), read_only).unwrap();
    assert!(volume.read_file(b"/0").is_ok(), "inline");
    assert!(volume.read_file(b"/2").is_err());
}

/// A device that fails in the middle, at any write or flush.
#[test]
fn a_device_that_fails_in_the_middle_costs_nothing() {
    for operation in [Operation::Write, Operation::Flush] {
        for after in [0, 1, 2, 5, 9, 12] {
            let memory = made(ProfileChoice::Raid1, ProfileChoice::Raid1, &[300, 300]);
            let faulty = Arc::new(FaultDevice::new(memory[1].clone(), 1));
            let given: Vec<Arc<dyn BlockDevice>> = vec![memory[0].clone(), faulty.clone()];
            let volume =
                Volume::open_devices(given, options(Access::ReadWrite, Degraded::Refused)).unwrap();
            write_files(&volume, 0..6);
            volume.sync().unwrap();
            faulty.inject(Fault::Fail(operation, When::After(after)));
            for round in 1..8 {
                write_files(&volume, round * 6..round * 6 + 6);
                volume.sync().unwrap();
                // What was acknowledged is there with one device, and the other
                // device is never believed.
                let crashed = copied(&memory);
                let left = open(&crashed[..1], Degraded::Allowed).unwrap();
                assert_files(&left, 0..round * 6 + 6);
                drop(left);
                let whole = open(&copied(&memory), Degraded::Allowed).unwrap();
                assert_files(&whole, 0..round * 6 + 6);
            }
            let state = volume.devices()[1].state;
            assert_eq!(state, MemberState::Failing, "{operation:?} {after}");
            assert!(volume.is_writable());
            volume.close().unwrap();
            drop(volume);
            let stale = fault(open(&memory, Degraded::Refused));
            assert!(matches!(stale, MemberFault::Stale { .. }), "{stale}");
        }
    }
}

/// A crash between the superblocks of two devices: no device is called stale.
/// As a balance does that still moves data when its volume is closed.
#[test]
fn a_write_after_the_close_says_so_and_blames_no_device() {
    let folder = tempfile::tempdir().unwrap();
    let devices: Vec<Arc<dyn BlockDevice>> = ["one", "two"]
        .iter()
        .map(|name| FileDevice::create(&folder.path().join(name), 300 * MIB))
        .map(|device| Arc::new(device.unwrap()) as _)
        .collect();
    // Without a device, such a volume would go on with the other one.
    let mkfs = MkfsOptions {
        data: Some(ProfileChoice::Raid1),
        metadata: Some(ProfileChoice::Raid1),
        ..MkfsOptions::default()
    };
    make_on(&devices, &mkfs).unwrap();
    let options = options(Access::ReadWrite, Degraded::Refused);
    let volume = Volume::open_devices(devices, options).unwrap();
    volume.write_file("/file", &[1; 100_000]).unwrap();
    volume.sync().unwrap();
    let file = volume
        .files()
        .inode(volume.resolve("/file").unwrap())
        .unwrap();
    let map = volume.files().extent_map(&file, 0..u64::MAX, 10).unwrap();
    let place = map[0].logical.unwrap();
    let store = Arc::clone(volume.files().store());
    volume.close().unwrap();
    let refused = store.space().write(place, &[2; 4096]).unwrap_err();
    assert!(matches!(StoreError::from(refused), StoreError::Closed));
    assert_eq!(store.space().losses(), 0);
}

#[test]
fn one_commit_behind_is_a_crash() {
    let memory = made(ProfileChoice::Raid1, ProfileChoice::Raid1, &[200, 200]);
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 0..4);
    volume.close().unwrap();
    drop(volume);
    // The superblocks of device 2 from before a commit, everything else from
    // after it.
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 4..8);
    let first = butterfs_format::superblock::COPIES;
    let before: Vec<Vec<u8>> = first[..2]
        .iter()
        .map(|offset| {
            let mut bytes = vec![0; 4096];
            memory[1].read_at(*offset, &mut bytes).unwrap();
            bytes
        })
        .collect();
    volume.commit().unwrap();
    for (offset, bytes) in first.iter().zip(&before) {
        memory[1].write_at(*offset, bytes).unwrap();
    }
    volume.shut_down();
    drop(volume);
    let volume = open(&memory, Degraded::Refused).unwrap();
    assert!(
        volume
            .devices()
            .iter()
            .all(|d| d.state == MemberState::Present)
    );
    assert_files(&volume, 0..4);
    volume.close().unwrap();
    drop(volume);
    let volume = open(&memory, Degraded::Refused).unwrap();
    assert_files(&volume, 0..4);
}

/// A device that was away for one commit, or a copy of it from before: its data
/// without checksums are old, and nothing but the other device tells.
#[test]
fn data_without_checksums_of_a_device_one_commit_behind() {
    const LENGTH: usize = 3_000_000;
    for (profile, count) in [
        (ProfileChoice::Raid1, 2),
        (ProfileChoice::Raid10, 4),
        (ProfileChoice::Raid1c3, 3),
    ] {
        let memory = made(profile, profile, &vec![300; count]);
        let mut in_place = options(Access::ReadWrite, Degraded::Refused);
        in_place.files.data_cow = DataCow::Off;
        let volume = Volume::open_devices(devices(&memory), in_place.clone()).unwrap();
        volume.write_file(b"bare", &content(1, LENGTH)).unwrap();
        volume.close().unwrap();
        drop(volume);
        let volume = Volume::open_devices(devices(&memory), in_place.clone()).unwrap();
        let before: Vec<_> = memory.iter().map(|device| device.snapshot()).collect();
        let id = volume.resolve(b"bare").unwrap();
        let file = volume.files().inode(id).unwrap();
        volume.write_at(&file, 0, &content(2, LENGTH)).unwrap();
        volume.files().flush_inode(&file).unwrap();
        volume.commit().unwrap();
        volume.shut_down();
        drop((file, volume));
        for (away, old) in before.iter().enumerate() {
            let mut memory = copied(&memory);
            memory[away] = Arc::new(old.snapshot());
            let volume = open(&memory, Degraded::Refused).unwrap();
            volume.write_file(b"another", b"x").unwrap();
            volume.close().unwrap();
            drop(volume);
            // Now the devices count as equal, and each is read alone.
            for without in 0..memory.len() {
                let mut rest = copied(&memory);
                rest.remove(without);
                let readable = options(Access::ReadOnly, Degraded::Allowed);
                let volume = Volume::open_devices(devices(&rest), readable).unwrap();
                let read = volume.read_file(b"bare").unwrap();
                assert!(read == content(2, LENGTH), "{profile}, {away}, {without}");
            }
        }
    }
}

#[test]
fn rot_on_one_device_is_healed_from_the_other() {
    for profile in [
        ProfileChoice::Raid1,
        ProfileChoice::Raid10,
        ProfileChoice::Raid1c3,
        ProfileChoice::Raid5,
        ProfileChoice::Raid6,
    ] {
        let memory = made(profile, profile, &[300, 300, 300, 300]);
        let volume = open(&memory, Degraded::Refused).unwrap();
        write_files(&volume, 0..24);
        volume.close().unwrap();
        drop(volume);
        for rotten in 0..memory.len() {
            let memory = copied(&memory);
            // All of the device behind its first superblock.
            let rot = vec![0x5a; 16 * MIB as usize];
            for at in [MIB, 17 * MIB, 33 * MIB, 65 * MIB, 81 * MIB, 97 * MIB] {
                let offset = butterfs_format::DeviceOffset(at);
                memory[rotten].write_at(offset, &rot).unwrap();
            }
            let volume = open(&memory, Degraded::Refused).unwrap();
            assert_files(&volume, 0..24);
            volume.close().unwrap();
        }
    }
}

#[test]
fn members_that_are_not_whole_or_not_of_the_volume_are_refused() {
    let memory = made(ProfileChoice::Raid1, ProfileChoice::Raid1, &[200, 200]);
    // Cut short.
    let short = Arc::new(MemoryDevice::new(150 * MIB));
    let mut bytes = vec![0; MIB as usize];
    for at in (0..150 * MIB).step_by(MIB as usize) {
        let at = butterfs_format::DeviceOffset(at);
        memory[1].read_at(at, &mut bytes).unwrap();
        short.write_at(at, &bytes).unwrap();
    }
    let before = short.snapshot();
    let cut = open(
        &[Arc::clone(&memory[0]), Arc::clone(&short)],
        Degraded::Allowed,
    );
    let cut = cut.map(drop).unwrap_err().to_string();
    assert!(cut.contains("device 2 of the volume, has"), "{cut}");
    assert!(cut.contains("it was cut short"), "{cut}");
    assert_eq!(short.first_difference(&before), None);
    // A third device of a volume that has two.
    let fsid = Some([7; 16]);
    let made_as = |sizes: &[u64]| {
        let memory: Memory = sizes
            .iter()
            .map(|size| Arc::new(MemoryDevice::new(size * MIB)))
            .collect();
        let mkfs = MkfsOptions {
            fsid,
            ..MkfsOptions::default()
        };
        make_on(&devices(&memory), &mkfs).unwrap();
        memory
    };
    let (two, three) = (made_as(&[200, 200]), made_as(&[200, 200, 200]));
    // It is left out, as by the kernel, because a crash may leave such a device
    // when one is added or removed.
    let before = three[2].snapshot();
    let extra = [
        Arc::clone(&two[0]),
        Arc::clone(&two[1]),
        Arc::clone(&three[2]),
    ];
    let volume = open(&extra, Degraded::Refused).unwrap();
    assert_eq!(volume.devices().len(), 2);
    volume.write_file(b"/one", b"one").unwrap();
    volume.close().unwrap();
    drop(volume);
    assert_eq!(three[2].first_difference(&before), None);
    // A device with the number of another one, but its own UUID, does not
    // belong to the volume either.
    let two = made_as(&[200, 200]);
    let exchanged = [Arc::clone(&two[0]), Arc::clone(&three[1])];
    let missing = fault(open(&exchanged, Degraded::Refused));
    assert!(matches!(&missing, MemberFault::Missing(ids) if ids[0].0.get() == 2));
    // Of two that are the same device, the newer one counts.
    let older = Arc::new(two[1].snapshot());
    let volume = open(&two, Degraded::Refused).unwrap();
    volume.write_file(b"/one", b"one").unwrap();
    volume.close().unwrap();
    drop(volume);
    let all = [Arc::clone(&older), Arc::clone(&two[0]), Arc::clone(&two[1])];
    let volume = open(&all, Degraded::Refused).unwrap();
    assert_eq!(volume.read_file(b"/one").unwrap(), b"one");
}

/// In each round another single operation of one device fails, also while the
/// volume is opened. No caller sees an error, and all content is right.
fn each_operation_may_fail(profile: ProfileChoice, sizes: &[u64]) {
    const OPERATIONS_MAX: u64 = 2000;
    let memory = made(profile, profile, sizes);
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 0..4);
    volume.close().unwrap();
    drop(volume);
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        let mut hits = 0;
        for bad in 0..sizes.len() {
            let mut after = 0;
            loop {
                let memory = copied(&memory);
                let faulty = Arc::new(FaultDevice::new(memory[bad].clone(), 1));
                faulty.inject(Fault::Fail(operation, When::After(after)));
                let mut given = devices(&memory);
                given[bad] = faulty.clone();
                let options = options(Access::ReadWrite, Degraded::Refused);
                let context = format!("{profile:?}: {operation:?} {after} of device {bad}");
                let volume = Volume::open_devices(given, options)
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                assert_files(&volume, 0..4);
                write_files(&volume, 4..6);
                let id = volume.resolve(b"/5").unwrap();
                let inode = volume.files().inode(id).unwrap();
                let synced = volume.files().fsync(&inode);
                synced.unwrap_or_else(|error| panic!("{context}: {error}"));
                let crashed = copied(&memory);
                volume
                    .close()
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                drop(volume);
                assert_files(&open(&memory, Degraded::Allowed).unwrap(), 0..6);
                let crashed = open(&crashed, Degraded::Allowed).unwrap();
                assert_files(&crashed, 0..4);
                assert_files(&crashed, 5..6);
                drop(crashed);
                if !faulty.pending().is_empty() {
                    break;
                }
                after += 1;
                assert!(after < OPERATIONS_MAX, "{context}");
            }
            hits += after;
        }
        let least = 3 * sizes.len() as u64;
        assert!(hits >= least, "{profile:?}: {operation:?}: {hits}");
    }
}

#[test]
fn each_operation_of_a_mirror_may_fail() {
    each_operation_may_fail(ProfileChoice::Raid1, &[200, 200]);
    each_operation_may_fail(ProfileChoice::Raid1c3, &[200, 200, 200]);
}

#[test]
fn each_operation_of_striped_mirrors_may_fail() {
    each_operation_may_fail(ProfileChoice::Raid10, &[200, 200, 200, 200]);
}

#[test]
fn each_operation_of_a_row_with_parity_may_fail() {
    each_operation_may_fail(ProfileChoice::Raid5, &[200, 200, 200]);
    each_operation_may_fail(ProfileChoice::Raid6, &[200, 200, 200, 200]);
}

/// Data without a second copy: a failed operation is reported, with the device.
/// All content that is read is right, and what was acknowledged is there.
#[test]
fn each_operation_of_stripes_without_copies_is_right_or_told() {
    const OPERATIONS_MAX: u64 = 2000;
    let memory = made(ProfileChoice::Raid0, ProfileChoice::Raid1, &[200, 200]);
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 0..4);
    volume.close().unwrap();
    drop(volume);
    for operation in [Operation::Read, Operation::Write, Operation::Flush] {
        let mut told = 0;
        for bad in 0..2 {
            let place = format!("device {}", bad + 1);
            let mut after = 0;
            loop {
                let memory = copied(&memory);
                let faulty = Arc::new(FaultDevice::new(memory[bad].clone(), 1));
                faulty.inject(Fault::Fail(operation, When::After(after)));
                let mut given = devices(&memory);
                given[bad] = faulty.clone();
                let context = format!("{operation:?} {after} of {place}");
                let before = told;
                let options = options(Access::ReadWrite, Degraded::Refused);
                let volume = match Volume::open_devices(given, options) {
                    Ok(volume) => volume,
                    // Opening for writing flushes what it found.
                    Err(error) => {
                        assert_eq!(operation, Operation::Flush, "{context}: {error}");
                        told += 1;
                        assert_files(&open(&memory, Degraded::Refused).unwrap(), 0..4);
                        after += 1;
                        continue;
                    }
                };
                for number in 0..4 {
                    let path = format!("/{number}");
                    if let Err(error) = volume.read_file(path.as_bytes()) {
                        let text = error.to_string();
                        assert_eq!(operation, Operation::Read, "{context}: {text}");
                        assert!(text.contains(&place), "{context}: {text}");
                        told += 1;
                    }
                }
                // The fault comes once.
                assert_files(&volume, 0..4);
                write_files(&volume, 4..6);
                let id = volume.resolve(b"/5").unwrap();
                let inode = volume.files().inode(id).unwrap();
                let first = volume.files().fsync(&inode);
                let acknowledged = first.is_ok();
                if let Err(error) = first {
                    assert_ne!(operation, Operation::Read, "{context}: {error}");
                    told += 1;
                }
                let crashed = copied(&memory);
                if let Err(error) = volume.close() {
                    assert_ne!(operation, Operation::Read, "{context}: {error}");
                    told += 1;
                }
                let failed = volume.failure().is_some();
                drop(volume);
                let again = open(&memory, Degraded::Allowed).unwrap();
                assert_files(&again, 0..4);
                if acknowledged {
                    assert_files(&again, 5..6);
                    assert_files(&open(&crashed, Degraded::Allowed).unwrap(), 5..6);
                }
                if told == before && !failed {
                    assert_files(&again, 4..6);
                }
                drop(again);
                if !faulty.pending().is_empty() {
                    break;
                }
                after += 1;
                assert!(after < OPERATIONS_MAX, "{context}");
            }
            assert!(after > 2, "{operation:?}: {after}");
        }
        // A read that fails once is tried again.
        assert_eq!(told > 0, operation != Operation::Read, "{operation:?}");
    }
}

/// What lies on a device that cannot be read gives an error that names the file
/// and the device. The rest is read.
#[test]
fn a_device_of_stripes_that_cannot_be_read_is_named() {
    let memory = made(ProfileChoice::Raid0, ProfileChoice::Raid1, &[200, 200]);
    let volume = open(&memory, Degraded::Refused).unwrap();
    write_files(&volume, 0..4);
    volume.close().unwrap();
    drop(volume);
    for bad in 0..2 {
        let memory = copied(&memory);
        let faulty = Arc::new(FaultDevice::new(memory[bad].clone(), 1));
        let mut given = devices(&memory);
        given[bad] = faulty.clone();
        let options = options(Access::ReadWrite, Degraded::Refused);
        let volume = Volume::open_devices(given, options).unwrap();
        faulty.inject(Fault::Fail(Operation::Read, When::Always));
        assert_files(&volume, 0..1);
        let error = volume.read_file(b"/3").unwrap_err();
        assert!(matches!(error, Error::At { .. }), "{error:?}");
        let text = error.to_string();
        let place = format!("device {}", bad + 1);
        assert!(text.contains("/3") && text.contains(&place), "{text}");
        faulty.clear();
        assert_files(&volume, 0..4);
    }
}
