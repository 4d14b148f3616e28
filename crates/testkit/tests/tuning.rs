//! Tuning. A change of a volume's form may be ended by a crash with torn
//! sectors, by a device that fails, or by request. Afterwards the volume is
//! usable in its old or its new form, or says that it is neither, and the same
//! change continues.

mod support;

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_admin::tune::{
    Change, Ended, Progress, Seeding, Stage, TuneError, read_superblock, tune,
};
use butterfs_check::{DataChecksums, FaultCode, NoProgress, Options, check};
use butterfs_device::fault::{Fault, When};
use butterfs_device::record::{Crash, Event, Fate, Position, Recording};
use butterfs_device::{FaultDevice, Operation};
use butterfs_format::ChecksumType;
use butterfs_format::features::Incompat;
use butterfs_format::superblock::SuperFlags;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::{self, Access, KernelMount, scratch_dir};
use butterfs_testkit::mounted_tree::MountedTree;
use butterfs_testkit::op::{OpPath, SnapshotAccess, Span};
use butterfs_testkit::{Capability, Manifest, Op, Random};
use std::ops::ControlFlow;
use std::sync::Arc;
use support::{LibraryTree, apply_to_library};

const SIZE: u64 = 160 << 20;
const UUID: [u8; 16] = [7; 16];

/// Every change, with the features that a volume must lack for it.
const CHANGES: [(Change, &[&str]); 8] = [
    (Change::Fsid(Some(UUID)), &[]),
    (Change::MetadataUuid(Some(UUID)), &[]),
    (Change::Checksum(ChecksumType::Sha256), &[]),
    (Change::Checksum(ChecksumType::Xxhash), &[]),
    (Change::ToBlockGroupTree, &["^block-group-tree"]),
    (Change::FromBlockGroupTree, &[]),
    (
        Change::ToFreeSpaceTree,
        &["^block-group-tree", "^free-space-tree"],
    ),
    (
        Change::Features(Incompat::NO_HOLES),
        &["^block-group-tree", "^no-holes"],
    ),
];

type Devices = Vec<Arc<dyn BlockDevice>>;

fn snapshots(of: &[MemoryDevice]) -> Devices {
    let copy = |device: &MemoryDevice| Arc::new(device.snapshot()) as Arc<dyn BlockDevice>;
    of.iter().map(copy).collect()
}

fn nobody(_: &Progress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A volume with shared and changed files, and what it holds.
struct Patient {
    devices: Vec<MemoryDevice>,
    expected: Manifest,
}

impl Patient {
    fn new(count: usize, features: &[&str], seed: u64) -> Self {
        let fresh = || Arc::new(MemoryDevice::new(SIZE));
        let devices: Vec<Arc<MemoryDevice>> = (0..count).map(|_| fresh()).collect();
        let shared: Devices = devices.iter().map(|one| Arc::clone(one) as _).collect();
        let mut options = MkfsOptions {
            node_size: 4096,
            metadata: Some(match count {
                1 => ProfileChoice::Dup,
                _ => ProfileChoice::Raid1,
            }),
            ..MkfsOptions::default()
        };
        for feature in features {
            options.features.change(feature).unwrap();
        }
        make_on(&shared, &options).unwrap();
        let volume = Volume::open_devices(shared, OpenOptions::default()).unwrap();
        fill(&volume, &mut Random::new(seed));
        let tree = LibraryTree(volume);
        let expected = Manifest::of(&tree).unwrap();
        tree.0.close().unwrap();
        let devices = devices.iter().map(|device| device.snapshot()).collect();
        Self { devices, expected }
    }

    /// It is usable and holds what it held.
    fn assert_good(&self, devices: &Devices, context: &str) {
        let volume = Volume::open_devices(devices.clone(), OpenOptions::default())
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        let tree = LibraryTree(volume);
        let found = Manifest::of(&tree).unwrap();
        found.assert_same(&self.expected, context);
        tree.0.close().unwrap();
        let options = Options {
            data: DataChecksums::Verify,
            threads: 1,
            ..Options::default()
        };
        let report = check(devices.clone(), &options, &NoProgress).unwrap();
        assert!(report.is_exact(), "{context}: {:#?}", report.faults);
    }

    /// Whatever its state, the change can be made, and nothing is lost.
    fn assert_goes_on(&self, devices: &Devices, change: Change, context: &str) {
        let opened = Volume::open_devices(devices.clone(), OpenOptions::default());
        let usable = opened.map(|volume| volume.close().unwrap()).is_ok();
        if usable {
            self.assert_good(devices, &format!("{context}, before"));
        }
        let ended = tune(devices, change, &mut nobody)
            .unwrap_or_else(|error| panic!("{context}, usable {usable}: {error}"));
        assert_ne!(ended, Ended::Halfway, "{context}");
        let superblock = read_superblock(&*devices[0]).unwrap();
        assert!(
            !superblock.flags.intersects(SuperFlags::CHANGING),
            "{context}"
        );
        self.assert_good(devices, &format!("{context}, after"));
    }
}

fn fill(volume: &Volume, random: &mut Random) {
    let path = |text: &str| OpPath(text.as_bytes().to_vec());
    let apply = |op: Op| {
        let _ = apply_to_library(&op, volume);
    };
    apply(Op::Subvolume {
        path: path("work"),
        mode: 0o755,
    });
    for turn in 0..6 {
        for _ in 0..25 {
            let file = path(&format!("work/f{}", random.below(20)));
            apply(Op::Write {
                path: file.clone(),
                span: Span {
                    offset: random.below(40) * 4096,
                    length: 1 + random.below(100_000),
                },
                seed: random.bits(),
            });
            if random.one_in(6) {
                apply(Op::Unlink { path: file });
            }
        }
        apply(Op::Snapshot {
            from: path("work"),
            to: path(&format!("s{turn}")),
            access: SnapshotAccess::ReadOnly,
        });
    }
    apply(Op::DeleteSubvolume { path: path("s2") });
    volume.files().clean_all().unwrap();
    volume.sync().unwrap();
}

#[test]
fn a_crash_at_any_step_loses_nothing() {
    let states = std::env::var("BUTTERFS_CRASH_STATES");
    let states: usize = states.map_or(30, |text| text.parse().expect("a number"));
    for (change, features) in CHANGES {
        for count in [1, 2] {
            for seed in seeds(0..1) {
                let patient = Patient::new(count, features, seed);
                let recording = Recording::new();
                let wrap = |device| Arc::new(recording.wrap(device)) as Arc<dyn BlockDevice>;
                let recorded: Devices = snapshots(&patient.devices).into_iter().map(wrap).collect();
                assert_eq!(
                    tune(&recorded, change, &mut nobody).unwrap(),
                    Ended::Changed
                );
                patient.assert_good(&recorded, &format!("{change:?}, {count} devices"));
                let events = recording.events();
                let mut random = Random::new(seed);
                for _ in 0..states {
                    let at = Position(random.below(events.len() as u64 + 1) as usize);
                    let kind = random.below(4);
                    let fate = |_: Position, event: &Event| match (kind, random.below(3)) {
                        (0, _) if event.device.0 == 0 => Fate::Kept,
                        (0, _) => Fate::Lost,
                        (1, _) if event.device.0 != 0 => Fate::Kept,
                        (1, _) => Fate::Lost,
                        (_, 0) => Fate::Lost,
                        (_, 1) => Fate::Torn((0..64).map(|_| random.one_in(2)).collect()),
                        _ => Fate::Kept,
                    };
                    let crash = Crash::new(&events, at);
                    let after = crash.replay(&patient.devices, fate).unwrap();
                    let context = format!("{change:?}, {count} devices, seed {seed}, {at:?}");
                    patient.assert_goes_on(&snapshots(&after), change, &context);
                }
            }
        }
    }
}

#[test]
fn a_device_that_fails_stops_a_change_and_it_goes_on() {
    for (change, features) in CHANGES {
        let patient = Patient::new(2, features, 5);
        for operation in [Operation::Write, Operation::Flush, Operation::Read] {
            for after in [0, 1, 2, 5, 9, 20, 60] {
                let whole = snapshots(&patient.devices);
                let failing = Arc::new(FaultDevice::new(Arc::clone(&whole[1]), after));
                failing.inject(Fault::Fail(operation, When::After(after)));
                let devices: Devices = vec![Arc::clone(&whole[0]), failing];
                let ended = tune(&devices, change, &mut nobody);
                let context = format!("{change:?}, {operation:?} after {after}: {ended:?}");
                // A write that failed is never a success.
                if matches!(ended, Ok(Ended::Changed | Ended::Already)) {
                    patient.assert_good(&whole, &context);
                }
                patient.assert_goes_on(&whole, change, &context);
            }
        }
    }
}

#[test]
fn a_wish_ends_a_change_and_it_goes_on() {
    for change in [
        Change::Fsid(Some(UUID)),
        Change::Checksum(ChecksumType::Blake2),
    ] {
        let patient = Patient::new(2, &[], 3);
        let mut halfway = 0;
        for calls in 0..8 {
            let devices = snapshots(&patient.devices);
            let mut left = calls;
            let ended = tune(&devices, change, &mut |_| {
                left -= 1;
                match left < 0 {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            let context = format!("{change:?} after {calls} calls: {ended:?}");
            if matches!(ended, Ok(Ended::Halfway)) {
                halfway += 1;
                let other = Change::Features(Incompat::EXTENDED_IREF);
                let refused = tune(&devices, other, &mut nobody);
                assert!(
                    matches!(refused, Err(TuneError::Unfinished(_))),
                    "{context}"
                );
                assert!(Volume::open_devices(devices.clone(), OpenOptions::default()).is_err());
                // That is all that is wrong.
                let options = Options::default();
                let report = check(devices.clone(), &options, &NoProgress).unwrap();
                let [fault] = &report.faults[..] else {
                    panic!("{context}: {:#?}", report.faults);
                };
                assert_eq!(fault.code, FaultCode::SuperblockField, "{context}");
            }
            patient.assert_goes_on(&devices, change, &context);
        }
        assert!(halfway > 0, "{change:?}: nothing was ended halfway");
    }
}

/// After each change, the kernel and the Btrfs tools find a good volume. In the
/// middle of one, they find none that they would mount.
#[test]
fn the_kernel_agrees() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let dir = scratch_dir();
    for (change, features) in CHANGES {
        let patient = Patient::new(1, features, 11);
        let image = dir.path().join("v.img");
        let device = Arc::new(patient.devices[0].snapshot());
        let devices: Devices = vec![Arc::clone(&device) as _];
        let _ = tune(
            &devices,
            change,
            &mut |progress| match progress.stage == Stage::Rewriting {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        );
        let halfway = read_superblock(&*devices[0]).unwrap();
        if halfway.flags.intersects(SuperFlags::CHANGING) {
            device.save(&image).unwrap();
            let mounted = KernelMount::mount(&image, Access::ReadOnly, "");
            assert!(mounted.is_err(), "{change:?}: the kernel mounts it halfway");
        }
        tune(&devices, change, &mut nobody).unwrap();
        device.save(&image).unwrap();
        let context = format!("{change:?}");
        judge::judge_image(&image, &context);
        let mut mount = KernelMount::mount(&image, Access::ReadWrite, "").unwrap();
        let found = Manifest::of(&MountedTree::new(mount.path())).unwrap();
        found.assert_same(&patient.expected, &context);
        mount.scrub().assert_clean(&context);
        assert_eq!(mount.unmount().unwrap(), Vec::<String>::new(), "{context}");
    }
}

#[test]
fn a_seed_changes_in_nothing_else() {
    let patient = Patient::new(1, &[], 1);
    let devices = snapshots(&patient.devices);
    let set = |change| tune(&devices, change, &mut nobody);
    assert_eq!(set(Change::Seeding(Seeding::On)).unwrap(), Ended::Changed);
    assert_eq!(set(Change::Seeding(Seeding::On)).unwrap(), Ended::Already);
    assert!(matches!(set(Change::Fsid(None)), Err(TuneError::Seed)));
    assert!(Volume::open_devices(devices.clone(), OpenOptions::default()).is_err());
    assert_eq!(set(Change::Seeding(Seeding::Off)).unwrap(), Ended::Changed);
    patient.assert_good(&devices, "no seed");
    assert_eq!(set(Change::MetadataUuid(None)).unwrap(), Ended::Changed);
    let refused = set(Change::Seeding(Seeding::On));
    assert!(matches!(refused, Err(TuneError::SeedWithMetadataUuid)));
}
