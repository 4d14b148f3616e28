//! Volumes that grow from a seed: nothing is ever written to it, and it must be
//! there, as it was.

use butterfs::devices::{self as admin, Discard, Removal};
use butterfs::{BlockDevice, Error, MemberFault, MemoryDevice, OpenOptions, StoreError, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_admin::tune::{Change, Seeding, tune};
use butterfs_check::{FaultCode, NoProgress, check};
use butterfs_device::fault::{Fault, When};
use butterfs_device::{DeviceRange, FaultDevice, Operation, ReadOnlyDevice, WindowDevice};
use butterfs_format::features::CompatRo;
use butterfs_format::superblock::COPIES;
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_store::read_superblock;
use butterfs_testkit::content::content;
use std::ops::ControlFlow;
use std::sync::Arc;

const MIB: u64 = 1 << 20;

fn memory(mib: u64) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::new(mib * MIB))
}

fn set_seeding(device: &Arc<MemoryDevice>, seeding: Seeding) {
    let devices: Vec<Arc<dyn BlockDevice>> = vec![device.clone()];
    let watch = &mut |_: &_| ControlFlow::Continue(());
    tune(&devices, Change::Seeding(seeding), watch).unwrap();
}

fn write_files(volume: &Volume, names: std::ops::Range<u64>) {
    for number in names {
        let data = content(number, [100, 5000, 300_000, 1_500_000][number as usize % 4]);
        let name = format!("/{number}");
        volume.write_file(name.as_bytes(), &data).unwrap();
    }
}

fn assert_files(volume: &Volume, names: std::ops::Range<u64>) {
    for number in names {
        let data = content(number, [100, 5000, 300_000, 1_500_000][number as usize % 4]);
        let found = volume.read_file(format!("/{number}").as_bytes());
        assert!(found.unwrap() == data, "file {number}");
    }
}

/// A seed with files.
fn seed() -> Arc<MemoryDevice> {
    let device = memory(400);
    let mkfs = MkfsOptions {
        data: Some(ProfileChoice::Single),
        metadata: Some(ProfileChoice::Dup),
        ..MkfsOptions::default()
    };
    make_on(&[device.clone() as Arc<dyn BlockDevice>], &mkfs).unwrap();
    let volume = Volume::open_devices(vec![device.clone()], OpenOptions::default()).unwrap();
    write_files(&volume, 0..24);
    volume.close().unwrap();
    drop(volume);
    set_seeding(&device, Seeding::On);
    device
}

/// A seed as it is given to volumes: every write to it fails.
fn given(seed: &Arc<MemoryDevice>) -> Arc<dyn BlockDevice> {
    Arc::new(ReadOnlyDevice::new(seed.clone()))
}

fn open(devices: &[Arc<dyn BlockDevice>]) -> Result<Volume, Error> {
    Volume::open_devices(devices.to_vec(), OpenOptions::default())
}

fn fault(result: Result<Volume, Error>) -> MemberFault {
    match result.map(drop) {
        Err(Error::Store(StoreError::Members(fault))) => fault,
        other => panic!("{other:?}"),
    }
}

fn assert_clean(devices: &[Arc<dyn BlockDevice>]) {
    let options = butterfs_check::Options::default();
    let report = check(devices.to_vec(), &options, &NoProgress).unwrap();
    assert_eq!(report.faults.len(), 0, "{:?}", report.faults);
}

fn is_same(one: &MemoryDevice, other: &MemoryDevice) -> bool {
    let piece = |device: &MemoryDevice, at: u64| {
        let mut bytes = vec![0; MIB as usize];
        device.read_at(DeviceOffset(at * MIB), &mut bytes).unwrap();
        bytes
    };
    (0..one.size() / MIB).all(|at| piece(one, at) == piece(other, at))
}

fn sprout(seed: &Arc<MemoryDevice>, own: &Arc<MemoryDevice>) -> DeviceId {
    admin::sprout(vec![given(seed)], own.clone(), Discard::Whole).unwrap()
}

#[test]
fn a_seed_that_was_cut_short_is_a_fault() {
    let (seed, own) = (seed(), memory(600));
    sprout(&seed, &own);
    let range = DeviceRange::new(DeviceOffset(0), seed.size() - 4096);
    let short = WindowDevice::new(given(&seed), range).unwrap();
    let options = butterfs_check::Options::default();
    let report = check(vec![own, Arc::new(short)], &options, &NoProgress).unwrap();
    let codes: Vec<_> = report.faults.iter().map(|fault| fault.code).collect();
    assert_eq!(codes, [FaultCode::DeviceSize], "{:?}", report.faults);
}

#[test]
fn a_volume_grows_and_its_seed_stays() {
    let seed = seed();
    let before = seed.snapshot();
    let own = memory(600);
    assert_eq!(sprout(&seed, &own), DeviceId(2));
    let both = [own.clone() as Arc<dyn BlockDevice>, given(&seed)];
    assert_clean(&both);
    let volume = open(&both).unwrap();
    assert_files(&volume, 0..24);
    assert_ne!(volume.superblock().fsid, {
        read_superblock(&*seed).unwrap().superblock.fsid
    });
    // Written over, cut, removed, cloned and new.
    write_files(&volume, 0..4);
    write_files(&volume, 100..140);
    for number in 4..8 {
        volume.remove_file(format!("/{number}").as_bytes()).unwrap();
    }
    volume.close().unwrap();
    drop(volume);
    assert_clean(&both);
    assert!(is_same(&before, &seed), "the seed changed");

    // In any order, and with a device that has no part in the volume.
    let stranger = self::seed();
    let three = [
        given(&stranger),
        given(&seed),
        own.clone() as Arc<dyn BlockDevice>,
    ];
    let volume = open(&three).unwrap();
    assert_files(&volume, 8..24);
    assert_files(&volume, 100..140);
    volume.close().unwrap();
    drop(volume);

    // Without it.
    let gone = fault(open(&both[..1]));
    assert!(
        matches!(&gone, MemberFault::Missing(all) if all.len() == 1),
        "{gone}"
    );

    // A seed that moves to the volume's own devices is needed no more.
    let volume = open(&both).unwrap();
    let watch = &mut |_: &_| ControlFlow::Continue(());
    let store = volume.files().store();
    let removed = admin::remove(store, DeviceId(1), watch).unwrap();
    assert!(matches!(removed, Removal::Removed(_)));
    volume.close().unwrap();
    drop(volume);
    assert_clean(&both[..1]);
    let volume = open(&both[..1]).unwrap();
    assert_files(&volume, 8..24);
    assert_files(&volume, 100..140);
    write_files(&volume, 200..220);
    volume.close().unwrap();
    assert!(is_same(&before, &seed), "the seed changed");
}

/// The new volume makes the free-space tree anew.
#[test]
fn a_volume_grows_from_a_seed_whose_free_space_tree_is_not_valid() {
    let seed = seed();
    let mut superblock = read_superblock(&*seed).unwrap().superblock;
    superblock.compat_ro -= CompatRo::FREE_SPACE_TREE_VALID;
    for copy in COPIES.into_iter().filter(|copy| copy.get() < seed.size()) {
        seed.write_at(copy, &superblock.encode(copy)).unwrap();
    }
    let own = memory(600);
    sprout(&seed, &own);
    let both = [own.clone() as Arc<dyn BlockDevice>, given(&seed)];
    let volume = open(&both).unwrap();
    assert_files(&volume, 0..24);
    write_files(&volume, 100..140);
    volume.close().unwrap();
    drop(volume);
    assert!(
        read_superblock(&*own)
            .unwrap()
            .superblock
            .has_valid_free_space_tree()
    );
    assert_clean(&both);
}

#[test]
fn a_seed_that_changed_is_refused() {
    let seed = seed();
    let unchanged = Arc::new(seed.snapshot());
    let own = memory(500);
    sprout(&seed, &own);
    set_seeding(&seed, Seeding::Off);
    let volume = open(&[seed.clone() as Arc<dyn BlockDevice>]).unwrap();
    write_files(&volume, 50..54);
    volume.close().unwrap();
    drop(volume);
    set_seeding(&seed, Seeding::On);
    let own: Arc<dyn BlockDevice> = own;
    let changed = fault(open(&[own.clone(), given(&seed)]));
    assert!(
        matches!(changed, MemberFault::SeedChanged { .. }),
        "{changed}"
    );
    // Of two copies, the one that did not change is taken.
    let volume = open(&[own.clone(), given(&seed), given(&unchanged)]).unwrap();
    assert_files(&volume, 0..24);
    volume.close().unwrap();
}

#[test]
fn seeds_have_seeds() {
    let first = seed();
    let second = memory(500);
    sprout(&first, &second);
    let volume = open(&[second.clone(), given(&first)]).unwrap();
    write_files(&volume, 30..40);
    volume.close().unwrap();
    drop(volume);
    let both: Vec<Arc<dyn BlockDevice>> = vec![second.clone(), given(&first)];
    let watch = &mut |_: &_| ControlFlow::Continue(());
    tune(&both, Change::Seeding(Seeding::On), watch).unwrap();
    let before = second.snapshot();
    let third = memory(500);
    let id = admin::sprout(
        vec![given(&second), given(&first)],
        third.clone(),
        Discard::Whole,
    );
    assert_eq!(id.unwrap(), DeviceId(3));
    let all: Vec<Arc<dyn BlockDevice>> = vec![third, given(&first), given(&second)];
    assert_clean(&all);
    let volume = open(&all).unwrap();
    assert_files(&volume, 0..24);
    assert_files(&volume, 30..40);
    write_files(&volume, 60..80);
    volume.close().unwrap();
    drop(volume);
    assert_clean(&all);
    assert!(is_same(&before, &second), "the second seed changed");
}

/// If any write or flush fails while a volume is made, making it fails, and the
/// device holds no volume or a whole one.
#[test]
fn a_volume_that_is_not_made_whole_is_none() {
    let seed = seed();
    for operation in [Operation::Write, Operation::Flush] {
        let mut failed = 0_u64;
        loop {
            let own = memory(300);
            let faulty = Arc::new(FaultDevice::new(own.clone(), 1));
            faulty.inject(Fault::Fail(operation, When::After(failed)));
            let made = admin::sprout(vec![given(&seed)], faulty.clone(), Discard::Nothing);
            if !faulty.pending().is_empty() {
                made.unwrap();
                assert!(failed > 3, "{operation:?}");
                break;
            }
            assert!(made.is_err(), "{operation:?} {failed}");
            // The mirrors of the superblock come after all else, so after a
            // crash here the volume is whole, too.
            if read_superblock(&*own).is_ok() {
                let both = [own.clone() as Arc<dyn BlockDevice>, given(&seed)];
                let volume = open(&both).unwrap();
                assert_files(&volume, 0..24);
                // The copies that were not written come with the next commit.
                write_files(&volume, 90..91);
                volume.close().unwrap();
                drop(volume);
                assert_clean(&both);
            }
            failed += 1;
        }
    }
}

#[test]
fn what_is_no_seed_is_not_grown_from() {
    let device = seed();
    set_seeding(&device, Seeding::Off);
    let own = memory(300);
    let refused = admin::sprout(vec![given(&device)], own.clone(), Discard::Whole);
    assert!(
        matches!(refused, Err(StoreError::Unsupported { .. })),
        "{refused:?}"
    );
    let small = memory(8);
    set_seeding(&device, Seeding::On);
    assert!(admin::sprout(vec![given(&device)], small, Discard::Whole).is_err());
    // A seed alone is read and not written.
    let options = OpenOptions::read_only();
    let volume = Volume::open_devices(vec![given(&device)], options).unwrap();
    assert_files(&volume, 0..24);
    assert!(open(&[given(&device)]).is_err());
}
