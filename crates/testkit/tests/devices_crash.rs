//! Crashes of volumes of several devices, with a device lost at the same time.
//!
//! Each device has a cache of its own, of which any unflushed part may be lost.
//! After each crash the volume is opened with all devices, and without each one
//! that it can do without. What was made durable is there, and a device that
//! was away is never believed afterwards.

use butterfs::{
    BlockDevice, Cleaner, Degraded, Error, MemberFault, MemoryDevice, OpenOptions, StoreError,
    Volume,
};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_check::{Fault as Damage, FaultCode, NoProgress, Options as CheckOptions};
use butterfs_device::FaultDevice;
use butterfs_device::Operation;
use butterfs_device::fault::{Fault, When};
use butterfs_device::record::{Action, Crash, Event, Fate, Position, Recording};
use butterfs_format::superblock::COPIES;
use butterfs_testkit::Capability;
use butterfs_testkit::content::content;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::random::Random;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

mod support;

use support::in_the_kernel::{InTheKernel, is_seen_whole, kernel_states};

const MIB: u64 = 1 << 20;

fn options(degraded: Degraded) -> OpenOptions {
    let mut options = OpenOptions {
        // Commits come only when the workload asks for them.
        commit_interval: Duration::from_secs(3600),
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    options.store.degraded = degraded;
    // Nodes are written before the commit where that is possible.
    options.store.left_to_commit = 0;
    options
}

fn shared(devices: &[MemoryDevice]) -> Vec<Arc<dyn BlockDevice>> {
    let copy = |device: &MemoryDevice| Arc::new(device.snapshot()) as Arc<dyn BlockDevice>;
    devices.iter().map(copy).collect()
}

fn length_of(file: u64) -> usize {
    [200, 5000, 70_000, 300_000][file as usize % 4]
}

/// A workload that was recorded.
struct Recorded {
    profile: ProfileChoice,
    trouble: Trouble,
    /// Of the workload.
    seed: u64,
    bases: Vec<MemoryDevice>,
    events: Vec<Event>,
    /// Files, and from which place on each is durable.
    promises: Vec<(u64, Position)>,
    /// How the devices came to be as they were at the beginning.
    before: String,
}

/// What happens to a device in the middle of the workload.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    None,
    /// This device fails at an operation of this kind, in the middle.
    Fails(usize, Operation),
}

/// How the first of two sessions ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FirstEnd {
    Crash,
    Kill,
}

fn record(
    (profile, count): (ProfileChoice, usize),
    features: &str,
    trouble: Trouble,
    seed: u64,
) -> Recorded {
    let fresh: Vec<Arc<dyn BlockDevice>> = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(160 * MIB)) as Arc<dyn BlockDevice>)
        .collect();
    let mut mkfs = MkfsOptions {
        node_size: 4096,
        data: Some(profile),
        metadata: Some(profile),
        ..MkfsOptions::default()
    };
    mkfs.features.change(features).unwrap();
    make_on(&fresh, &mkfs).unwrap();
    let bases: Vec<MemoryDevice> = fresh
        .iter()
        .map(|device| {
            let base = MemoryDevice::new(device.size());
            let mut bytes = vec![0; MIB as usize];
            for at in (0..device.size()).step_by(MIB as usize) {
                let at = butterfs_format::DeviceOffset(at);
                device.read_at(at, &mut bytes).unwrap();
                if bytes.iter().any(|byte| *byte != 0) {
                    base.write_at(at, &bytes).unwrap();
                }
            }
            base
        })
        .collect();
    let recording = Recording::new();
    let faulty: Vec<Arc<FaultDevice>> = bases
        .iter()
        .map(|base| Arc::new(FaultDevice::new(Arc::new(base.snapshot()), seed)))
        .collect();
    let devices = faulty
        .iter()
        .map(|device| Arc::new(recording.wrap(device.clone())) as Arc<dyn BlockDevice>);
    let volume = Volume::open_devices(devices.collect(), options(Degraded::Refused)).unwrap();
    let mut random = Random::new(seed);
    let trouble_at = |file, random: &mut Random| {
        if let (Trouble::Fails(device, operation), 12) = (trouble, file) {
            faulty[device].inject(Fault::Fail(operation, When::After(random.below(6))));
        }
    };
    let promises = work(&volume, &recording, 0..24, &mut random, trouble_at);
    // The volume is not closed, so nothing more is promised.
    volume.shut_down();
    drop(volume);
    Recorded {
        profile,
        trouble,
        seed,
        bases,
        events: recording.events(),
        promises,
        before: String::new(),
    }
}

/// Writes files, and makes them durable at times. `before_each` runs before each
/// file. Gives the files, and from which place on each is durable.
fn work(
    volume: &Volume,
    recording: &Recording,
    files: Range<u64>,
    random: &mut Random,
    before_each: impl Fn(u64, &mut Random),
) -> Vec<(u64, Position)> {
    let mut promises = Vec::new();
    let mut waiting = Vec::new();
    for file in files {
        before_each(file, random);
        let path = format!("/{file}");
        volume
            .write_file(path.as_bytes(), &content(file, length_of(file)))
            .unwrap();
        waiting.push(file);
        match random.below(4) {
            0 => volume.sync().unwrap(),
            1 | 2 => {
                let inode = volume
                    .files()
                    .inode(volume.resolve(path.as_bytes()).unwrap());
                volume.files().fsync(&inode.unwrap()).unwrap();
                waiting.retain(|other| *other == file);
            }
            _ => continue,
        }
        let now = recording.position();
        promises.extend(waiting.drain(..).map(|file| (file, now)));
    }
    promises
}

impl Recorded {
    fn assert_files(&self, volume: &Volume, at: Position, context: &str) {
        for (file, from) in &self.promises {
            if *from <= at {
                let found = volume.read_file(format!("/{file}").as_bytes());
                let found = found.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
                assert!(
                    found == content(*file, length_of(*file)),
                    "{context}: file {file}"
                );
            }
        }
    }

    fn context(&self, at: usize, seed: u64, lost: Option<usize>) -> String {
        format!(
            "{}{} on {}, {:?}, workload {}, crash before {at} with fates {seed}, lost {lost:?}",
            self.before,
            self.profile,
            self.bases.len(),
            self.trouble,
            self.seed
        )
    }

    fn is_superblock(&self, at: usize) -> bool {
        let action = &self.events[at].action;
        matches!(action, Action::Write { offset, .. } if COPIES.contains(offset))
    }

    /// The devices after a crash just before event `at`, with fates drawn from
    /// `seed`.
    fn after(&self, at: usize, seed: u64) -> Vec<MemoryDevice> {
        let mut random = Random::new(seed);
        let kind = random.below(4);
        let fate = |_: Position, event: &Event| match (kind, random.below(3)) {
            // Everything of one device, nothing of the others.
            (0, _) if event.device.0 == 0 => Fate::Kept,
            (0, _) => Fate::Lost,
            (1, _) if event.device.0 != 0 => Fate::Kept,
            (1, _) => Fate::Lost,
            (_, 0) => Fate::Lost,
            (_, 1) => Fate::Torn((0..64).map(|_| random.one_in(2)).collect()),
            _ => Fate::Kept,
        };
        let crash = Crash::new(&self.events, Position(at));
        crash.replay(&self.bases, fate).unwrap()
    }

    /// A second session on what is left when the first one ends just before event
    /// `at`: by a crash, with fates drawn from `seed`, or by a kill, which leaves
    /// its writes to the devices' caches.
    fn second(&self, at: usize, seed: u64, end: FirstEnd) -> Self {
        let context = format!("{}; then {end:?}", self.context(at, seed, None));
        let crash = Crash::new(&self.events, Position(at));
        let bases = match end {
            FirstEnd::Crash => self.after(at, seed),
            FirstEnd::Kill => crash.replay(&self.bases, |_, _| Fate::Lost).unwrap(),
        };
        let recording = Recording::new();
        let devices: Vec<Arc<dyn BlockDevice>> = shared(&bases)
            .into_iter()
            .map(|device| Arc::new(recording.wrap(device)) as Arc<dyn BlockDevice>)
            .collect();
        if end == FirstEnd::Kill {
            for position in crash.in_flight() {
                let event = &self.events[position.0];
                let device = &devices[event.device.0];
                match &event.action {
                    Action::Write { offset, data } => device.write_at(*offset, data).unwrap(),
                    Action::Discard(range) => device.discard(*range).unwrap(),
                    Action::Flush { .. } => {}
                }
            }
        }
        let volume = Volume::open_devices(devices, options(Degraded::Refused))
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        self.assert_files(&volume, Position(at), &context);
        let kept = self.promises.iter().filter(|(_, from)| from.0 <= at);
        let mut promises: Vec<_> = kept.map(|(file, _)| (*file, Position(0))).collect();
        let mut random = Random::new(seed);
        promises.extend(work(&volume, &recording, 100..112, &mut random, |_, _| ()));
        volume.shut_down();
        drop(volume);
        Self {
            profile: self.profile,
            trouble: Trouble::None,
            seed,
            bases,
            events: recording.events(),
            promises,
            before: format!("{context}; "),
        }
    }

    /// The kernel opens what the crash left, and goes on. Returns false if the
    /// kernel cannot see all of that.
    fn crash_in_the_kernel(&self, at: usize, seed: u64, lost: Option<usize>) -> bool {
        let context = self.context(at, seed, lost);
        let mut after = self.after(at, seed);
        if let Some(lost) = lost {
            after.remove(lost);
        }
        if !is_seen_whole(&after) {
            return false;
        }
        let has_parity = matches!(self.profile, ProfileChoice::Raid5 | ProfileChoice::Raid6);
        let options = match (lost, has_parity) {
            (None, _) => "noatime",
            (Some(_), false) => "noatime,degraded",
            // Linux 6.18 cannot write to all rows of parity then.
            (Some(_), true) => "ro,degraded",
        };
        let kernel = InTheKernel::mount(&after, options, &context);
        for (file, _) in self.promises.iter().filter(|(_, from)| from.0 <= at) {
            let found = std::fs::read(kernel.path().join(file.to_string()));
            let found = found.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
            let expected = content(*file, length_of(*file));
            assert!(found == expected, "{context}: file {file}");
        }
        if lost.is_none() {
            std::fs::write(kernel.path().join("after"), content(99, 300_000)).unwrap();
            kernel.scrub();
            kernel.end();
        } else if !has_parity {
            std::fs::write(kernel.path().join("after"), content(99, 300_000)).unwrap();
            kernel.btrfs("filesystem sync @");
        }
        true
    }

    /// Crashes just before event `at`, with fates drawn from `seed`.
    fn crash(&self, at: usize, seed: u64, lost: Option<usize>) {
        let context = self.context(at, seed, lost);
        let after = self.after(at, seed);
        let at = Position(at);
        let mut given = shared(&after);
        if let Some(lost) = lost {
            given.remove(lost);
        }
        // A device that the workload itself left out counts as away.
        let volume = Volume::open_devices(given.clone(), options(Degraded::Allowed))
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        self.assert_files(&volume, at, &context);
        volume.write_file(b"/after", b"after").unwrap();
        volume
            .close()
            .unwrap_or_else(|error| panic!("{context}: {error}"));
        drop(volume);
        let Some(lost) = lost else {
            self.check(given.clone(), &context);
            // A device that fell out just before the crash is up to date now.
            let volume = Volume::open_devices(given, options(Degraded::Allowed)).unwrap();
            return self.assert_files(&volume, at, &context);
        };
        // It comes back, as the crash left it.
        given.insert(lost, Arc::new(after[lost].snapshot()));
        let refused = Volume::open_devices(given.clone(), options(Degraded::Refused)).map(drop);
        assert!(
            matches!(
                refused,
                Err(Error::Store(StoreError::Members(MemberFault::Stale { .. })))
            ),
            "{context}: {refused:?}"
        );
        let volume = Volume::open_devices(given, options(Degraded::Allowed)).unwrap();
        assert_eq!(volume.read_file(b"/after").unwrap(), b"after", "{context}");
        self.assert_files(&volume, at, &context);
    }

    /// Our own check, if all devices take part. A device that fell out just
    /// before the crash is taken for one that the crash left behind. It lacks
    /// nodes, which are read from the other devices.
    fn check(&self, devices: Vec<Arc<dyn BlockDevice>>, context: &str) {
        let whole = Volume::open_devices(devices.clone(), options(Degraded::Refused));
        if whole.map(drop).is_err() {
            // A device fell out before the crash.
            return;
        }
        let report = butterfs_check::check(devices, &CheckOptions::default(), &NoProgress).unwrap();
        let fell_out = matches!(self.trouble, Trouble::Fails(..));
        let is_expected = |fault: &&Damage| fell_out && fault.code == FaultCode::NodeCopyDamaged;
        let faults = report.faults.iter().filter(|fault| !is_expected(fault));
        assert_eq!(
            faults.collect::<Vec<_>>(),
            Vec::<&Damage>::new(),
            "{context}"
        );
    }
}

/// Crashes of one workload: `states` of them, spread over all places.
fn run(profile: ProfileChoice, count: usize, trouble: Trouble, seed: u64, states: usize) {
    let recorded = record((profile, count), "", trouble, seed);
    run_recorded(&recorded, count, &mut Random::new(seed), states);
}

fn run_recorded(recorded: &Recorded, count: usize, random: &mut Random, states: usize) {
    let places = recorded.events.len() as u64 + 1;
    let left_out = match recorded.trouble {
        Trouble::None => None,
        Trouble::Fails(device, _) => Some(device),
    };
    for state in 0..states {
        let at = random.below(places) as usize;
        // A second loss is more than most profiles can take.
        let lost = match (state % 2, left_out) {
            (0, _) => None,
            (_, Some(device)) => Some(device),
            (_, None) if recorded.profile.tolerated() == 0 => None,
            (_, None) => Some(random.below(count as u64) as usize),
        };
        recorded.crash(at, random.bits(), lost);
    }
}

const LAYOUTS: [(ProfileChoice, usize); 7] = [
    (ProfileChoice::Raid5, 3),
    (ProfileChoice::Raid6, 4),
    (ProfileChoice::Raid1, 2),
    (ProfileChoice::Raid1, 3),
    (ProfileChoice::Raid1c3, 3),
    (ProfileChoice::Raid10, 4),
    (ProfileChoice::Raid0, 2),
];

#[test]
fn crashes_with_a_device_lost_at_the_same_time() {
    let mut states = 0;
    for (profile, count) in LAYOUTS {
        for seed in seeds(0..2) {
            run(profile, count, Trouble::None, seed, 60);
            states += 60;
        }
    }
    println!("{states} states");
}

/// A second session begins from what the first one's crash left, with
/// superblocks that differ, and crashes too, with a device lost in half of the
/// states.
#[test]
fn crashes_of_a_second_session() {
    let mut states = 0;
    for (profile, count) in LAYOUTS {
        for seed in seeds(0..1) {
            let first = record((profile, count), "", Trouble::None, seed);
            let mut random = Random::new(seed);
            // Mostly just after a write of a superblock.
            let places: Vec<usize> = (1..=first.events.len())
                .filter(|at| first.is_superblock(at - 1))
                .collect();
            for number in 0..8 {
                let end = match number % 4 {
                    3 => FirstEnd::Kill,
                    _ => FirstEnd::Crash,
                };
                let at = *random.pick(&places);
                let second = first.second(at, random.bits(), end);
                run_recorded(&second, count, &mut random, 12);
                states += 12;
            }
        }
    }
    println!("{states} states");
}

/// `BUTTERFS_KERNEL_STATES` is how many of each layout.
#[test]
fn the_kernel_goes_on_after_a_crash() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let (mut states, mut not_seen) = (0, 0);
    for (profile, count) in LAYOUTS {
        let seed = 100 + count as u64;
        // The installed btrfs check knows no block group tree.
        let recorded = record((profile, count), "^block-group-tree", Trouble::None, seed);
        let mut random = Random::new(seed);
        let places = recorded.events.len() as u64 + 1;
        let mut done = 0;
        while done < kernel_states(2) {
            let at = random.below(places) as usize;
            let lost = match (done % 2, profile.tolerated()) {
                (0, _) | (_, 0) => None,
                _ => Some(random.below(count as u64) as usize),
            };
            if recorded.crash_in_the_kernel(at, random.bits(), lost) {
                done += 1;
            } else {
                not_seen += 1;
            }
        }
        states += done;
    }
    println!("{states} states in the kernel; {not_seen} that it cannot see are left out");
}

#[test]
fn crashes_while_a_device_falls_out() {
    let mut states = 0;
    for (profile, count) in LAYOUTS {
        if profile.tolerated() == 0 {
            continue;
        }
        for operation in [Operation::Write, Operation::Flush] {
            for seed in seeds(0..2) {
                let device = seed as usize % count;
                run(profile, count, Trouble::Fails(device, operation), seed, 40);
                states += 40;
            }
        }
    }
    println!("{states} states");
}
