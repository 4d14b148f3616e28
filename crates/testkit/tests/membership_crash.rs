//! Crashes and failing operations while devices are added, removed, replaced
//! and resized, and while block groups move and get another profile.
//!
//! After each of them the volume opens with any devices that are there, also
//! with those that it does not have yet or no longer has. Everything durable is
//! there, our own check finds nothing, and the same operation can be done again
//! and ends well.

use butterfs::{
    BlockDevice, Cleaner, Degraded, MemberState, MemoryDevice, OpenOptions, StoreError, Volume,
};
use butterfs_admin::balance::{self, BalanceError, Filter, Filters, Redundancy};
use butterfs_admin::devices::{self, Discard, Removal, ReplaceReads, Replaced};
use butterfs_admin::mkfs::{MkfsOptions, ProfileChoice, make_on};
use butterfs_admin::resize::{self, Size};
use butterfs_check::{NoProgress, Options as CheckOptions};
use butterfs_device::fault::{Fault, When};
use butterfs_device::record::{Crash, Event, Fate, Position, Recording};
use butterfs_device::{FaultDevice, Operation};
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_format::{DeviceId, DeviceOffset};
use butterfs_testkit::Capability;
use butterfs_testkit::content::content;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::random::Random;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

mod support;

use support::in_the_kernel::{InTheKernel, is_seen_whole, kernel_states};

const MIB: u64 = 1 << 20;

/// What happens to the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The spare is added.
    Add,
    /// The spare is added, and the first device is removed.
    Remove,
    /// The spare replaces the first device.
    Replace,
    /// The same, from the other devices.
    Rebuild,
    /// All block groups move.
    Balance,
    /// Data and metadata get another profile.
    Convert,
    /// The first device shrinks, and grows again.
    Resize,
}

impl Change {
    /// Whether the spare is a device of the volume at the end.
    fn takes_the_spare(self) -> bool {
        matches!(
            self,
            Self::Add | Self::Remove | Self::Replace | Self::Rebuild
        )
    }
}

const CHANGES: [Change; 7] = [
    Change::Add,
    Change::Remove,
    Change::Replace,
    Change::Rebuild,
    Change::Balance,
    Change::Convert,
    Change::Resize,
];

/// What a profile is converted to, in the words of a filter. The new profile
/// can lose at least as many devices.
fn converted(profile: ProfileChoice) -> &'static str {
    match profile {
        ProfileChoice::Single => "convert=dup",
        ProfileChoice::Raid0 => "convert=raid1",
        ProfileChoice::Raid1 => "convert=raid1,soft",
        ProfileChoice::Raid10 => "convert=raid5",
        ProfileChoice::Raid5 => "convert=raid1c3",
        _ => "convert=raid1",
    }
}

const LAYOUTS: [(ProfileChoice, usize); 6] = [
    (ProfileChoice::Single, 1),
    (ProfileChoice::Raid1, 2),
    (ProfileChoice::Raid10, 4),
    (ProfileChoice::Raid0, 2),
    (ProfileChoice::Raid5, 3),
    (ProfileChoice::Raid1c3, 3),
];

fn options() -> OpenOptions {
    let mut options = OpenOptions {
        commit_interval: Duration::from_secs(3600),
        cleaner: Cleaner::OnDemand,
        ..OpenOptions::default()
    };
    options.store.degraded = Degraded::Allowed;
    options
}

fn length_of(file: u64) -> usize {
    [200, 5000, 70_000, 300_000, 1_200_000][file as usize % 5]
}

fn shared(devices: &[MemoryDevice]) -> Vec<Arc<dyn BlockDevice>> {
    let copy = |device: &MemoryDevice| Arc::new(device.snapshot()) as Arc<dyn BlockDevice>;
    devices.iter().map(copy).collect()
}

/// A volume with files 0..12. The last device is a spare.
fn made(profile: ProfileChoice, count: usize, features: &str) -> Vec<MemoryDevice> {
    let fresh: Vec<Arc<MemoryDevice>> = (0..count)
        .map(|_| Arc::new(MemoryDevice::new(300 * MIB)))
        .collect();
    let given: Vec<Arc<dyn BlockDevice>> = fresh.iter().map(|one| one.clone() as _).collect();
    let metadata = match profile {
        ProfileChoice::Single => ProfileChoice::Dup,
        ProfileChoice::Raid0 => ProfileChoice::Raid1,
        other => other,
    };
    let mut mkfs = MkfsOptions {
        node_size: 4096,
        data: Some(profile),
        metadata: Some(metadata),
        ..MkfsOptions::default()
    };
    mkfs.features.change(features).unwrap();
    make_on(&given, &mkfs).unwrap();
    let volume = Volume::open_devices(given, options()).unwrap();
    for file in 0..12 {
        write(&volume, file);
    }
    volume.close().unwrap();
    let mut all: Vec<MemoryDevice> = fresh.iter().map(|device| device.snapshot()).collect();
    let spare = MemoryDevice::new(310 * MIB);
    // It held something else.
    for at in (0..310).step_by(10) {
        spare
            .write_at(DeviceOffset(at * MIB), &vec![0xa5; MIB as usize])
            .unwrap();
    }
    all.push(spare);
    all
}

fn write(volume: &Volume, file: u64) {
    let path = format!("/{file}");
    volume
        .write_file(path.as_bytes(), &content(file, length_of(file)))
        .unwrap();
}

fn fsync(volume: &Volume, file: u64) -> Result<(), butterfs::FsError> {
    let id = volume.resolve(format!("/{file}").as_bytes()).unwrap();
    let inode = volume.files().inode(id)?;
    volume.files().fsync(&inode)
}

fn assert_file(volume: &Volume, file: u64, context: &str) {
    let found = volume.read_file(format!("/{file}").as_bytes());
    let found = found.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
    assert!(
        found == content(file, length_of(file)),
        "{context}: file {file}"
    );
}

/// Balances, or goes on with a balance that a crash interrupted.
fn balanced(
    volume: &Volume,
    filters: &Filters,
    beside: &mut dyn FnMut(),
) -> Result<(), StoreError> {
    let store = volume.files().store();
    let watch = &mut |_: &balance::Progress| {
        beside();
        None
    };
    let done = match balance::waiting(store) {
        Ok(Some(_)) => balance::resume(store, watch),
        _ => balance::start(store, filters, Redundancy::MayShrink, watch),
    };
    match done {
        Ok((_, end)) => {
            assert_eq!(end, balance::End::Done);
            Ok(())
        }
        Err(BalanceError::Store(error)) => Err(error),
        // The profile lacks a device that fell out.
        Err(BalanceError::Profile(_)) if !is_whole(volume) => Ok(()),
        Err(error) => panic!("{error}"),
    }
}

/// Makes the change, and calls `beside` between its steps.
fn apply(
    volume: &Volume,
    (profile, change): (ProfileChoice, Change),
    spare: Arc<dyn BlockDevice>,
    beside: &mut dyn FnMut(),
) -> Result<(), StoreError> {
    let store = volume.files().store();
    let first = DeviceId(1);
    match change {
        Change::Add => devices::add(store, spare, Discard::Nothing).map(drop),
        Change::Remove => {
            devices::add(store, spare, Discard::Nothing)?;
            beside();
            let removed = devices::remove(store, first, &mut |_| {
                beside();
                ControlFlow::Continue(())
            })?;
            assert!(matches!(removed, Removal::Removed(_)));
            Ok(())
        }
        Change::Replace | Change::Rebuild => {
            let reads = match change {
                Change::Rebuild => ReplaceReads::OthersFirst,
                _ => ReplaceReads::Any,
            };
            let how = (reads, Discard::Nothing);
            let replaced = devices::replace(store, first, spare, how, &mut |_| {
                beside();
                ControlFlow::Continue(())
            })?;
            assert!(
                matches!(replaced, Replaced::Done { progress, .. } if progress.uncorrectable == 0)
            );
            Ok(())
        }
        Change::Balance => balanced(volume, &Filters::all(), beside),
        Change::Convert => {
            let filter = Filter::parse(converted(profile)).unwrap();
            let filters = Filters {
                data: Some(filter),
                metadata: Some(filter),
                system: Some(filter),
            };
            balanced(volume, &filters, beside)
        }
        // A device that fell out has no size to change.
        Change::Resize if !is_whole(volume) => Ok(()),
        Change::Resize => {
            let watch = &mut |_: &resize::Progress| {
                beside();
                ControlFlow::Continue(())
            };
            resize::resize(store, first, Size::Exactly(258 * MIB), watch)?;
            resize::resize(store, first, Size::Max, watch).map(drop)
        }
    }
}

/// The devices that the volume has, by their superblocks.
fn members(all: &[Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    let mut newest: BTreeMap<DeviceId, (u64, Arc<dyn BlockDevice>)> = BTreeMap::new();
    let mut generation = 0;
    for device in all {
        let mut bytes = vec![0; SIZE];
        device.read_at(COPIES[0], &mut bytes).unwrap();
        let Ok(superblock) = Superblock::parse(&bytes, COPIES[0]) else {
            continue;
        };
        let own = superblock.generation.get();
        generation = generation.max(own);
        newest.insert(superblock.device.id, (own, device.clone()));
    }
    let current = newest.into_values().filter(|(own, _)| *own == generation);
    current.map(|(_, device)| device).collect()
}

/// What the superblocks of all devices say, for messages.
fn generations(all: &[Arc<dyn BlockDevice>]) -> String {
    let mut text = String::new();
    for (index, device) in all.iter().enumerate() {
        for copy in COPIES {
            let mut bytes = vec![0; SIZE];
            if device.read_at(copy, &mut bytes).is_err() {
                continue;
            }
            let found = match Superblock::parse(&bytes, copy) {
                Ok(found) => format!("{} of {}", found.generation, found.device.id),
                Err(error) => error.to_string(),
            };
            text.push_str(&format!("\n{index} at {copy}: {found}"));
        }
    }
    text
}

/// The devices that can be given to a program that opens the volume. The spare
/// without a superblock is not one of them.
fn with_superblocks(all: &[Arc<dyn BlockDevice>]) -> Vec<Arc<dyn BlockDevice>> {
    // A torn superblock has a mirror.
    let has_one = |device: &&Arc<dyn BlockDevice>| {
        COPIES.into_iter().any(|copy| {
            let mut bytes = vec![0; SIZE];
            device.read_at(copy, &mut bytes).is_ok() && Superblock::parse(&bytes, copy).is_ok()
        })
    };
    all.iter().filter(has_one).cloned().collect()
}

fn is_whole(volume: &Volume) -> bool {
    let all = volume.devices();
    all.iter()
        .all(|device| device.state == MemberState::Present)
}

fn check(devices: Vec<Arc<dyn BlockDevice>>, context: &str) {
    let options = CheckOptions {
        data: butterfs_check::DataChecksums::Verify,
        ..CheckOptions::default()
    };
    let report = butterfs_check::check(devices, &options, &NoProgress)
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.is_exact(), "{context}: {:#?}", report.faults);
}

/// Opens what is left, and makes the same change again. The spare is used if it
/// is not one of the volume's devices.
fn go_on(
    all: &[Arc<dyn BlockDevice>],
    durable: &[u64],
    (profile, change): (ProfileChoice, Change),
    context: &str,
) {
    let volume = Volume::open_devices(with_superblocks(all), options()).unwrap_or_else(|error| {
        panic!("{context}: {error}: {}", generations(all));
    });
    for file in durable {
        assert_file(&volume, *file, context);
    }
    volume.write_file(b"/after", b"after").unwrap();
    let spare = all.last().unwrap();
    let whole = is_whole(&volume);
    let first = volume.devices()[0].item.id;
    volume.close().unwrap();
    drop(volume);
    let now = members(all);
    if whole {
        check(now.clone(), context);
    }
    if first != DeviceId(1) {
        // It is done, and the spare fell out just after that.
        return;
    }
    if now.iter().any(|device| Arc::ptr_eq(device, spare)) {
        return;
    }
    let volume = Volume::open_devices(now, options()).unwrap();
    let context = format!("{context}, again");
    apply(&volume, (profile, change), spare.clone(), &mut || {})
        .unwrap_or_else(|error| panic!("{context}: {error}"));
    volume.close().unwrap();
    drop(volume);
    let now = members(all);
    let has_it = now.iter().any(|device| Arc::ptr_eq(device, spare));
    assert_eq!(has_it, change.takes_the_spare(), "{context}");
    let volume = Volume::open_devices(now.clone(), options()).unwrap();
    for file in durable {
        assert_file(&volume, *file, &context);
    }
    let whole = is_whole(&volume);
    drop(volume);
    if whole {
        check(now, &context);
    }
}

/// A change that was recorded.
struct Recorded {
    profile: ProfileChoice,
    change: Change,
    bases: Vec<MemoryDevice>,
    events: Vec<Event>,
    promises: Vec<(u64, Position)>,
}

fn record(
    (profile, count): (ProfileChoice, usize),
    features: &str,
    change: Change,
    seed: u64,
) -> Recorded {
    let bases = made(profile, count, features);
    let recording = Recording::new();
    let mut given: Vec<Arc<dyn BlockDevice>> = shared(&bases)
        .into_iter()
        .map(|device| Arc::new(recording.wrap(device)) as _)
        .collect();
    let spare = given.pop().unwrap();
    let volume = Volume::open_devices(given, options()).unwrap();
    let mut promises: Vec<(u64, Position)> = (0..12).map(|file| (file, Position(0))).collect();
    let mut random = Random::new(seed);
    let mut next = 12;
    apply(&volume, (profile, change), spare, &mut || {
        if next >= 40 {
            return;
        }
        write(&volume, next);
        match random.below(3) {
            0 => volume.sync().unwrap(),
            1 => fsync(&volume, next).unwrap(),
            _ => {
                next += 1;
                return;
            }
        }
        promises.push((next, recording.position()));
        next += 1;
    })
    .unwrap();
    write(&volume, next);
    volume.sync().unwrap();
    promises.push((next, recording.position()));
    volume.shut_down();
    drop(volume);
    Recorded {
        profile,
        change,
        bases,
        events: recording.events(),
        promises,
    }
}

impl Recorded {
    fn context(&self, at: usize, seed: u64, lost: Option<usize>) -> String {
        format!(
            "{} {:?} at {at} of {}, seed {seed}, lost {lost:?}",
            self.profile,
            self.change,
            self.events.len()
        )
    }

    /// The devices after a crash just before event `at`.
    fn after(&self, at: usize, seed: u64) -> Vec<MemoryDevice> {
        let mut random = Random::new(seed);
        let kind = random.below(4);
        let one = random.below(self.bases.len() as u64) as usize;
        let fate = |_: Position, event: &Event| match (kind, random.below(3)) {
            // Everything of one device, nothing of the others, and the reverse.
            (0, _) if event.device.0 == one => Fate::Kept,
            (0, _) => Fate::Lost,
            (1, _) if event.device.0 == one => Fate::Lost,
            (1, _) => Fate::Kept,
            (_, 0) => Fate::Lost,
            (_, 1) => Fate::Torn((0..64).map(|_| random.one_in(2)).collect()),
            _ => Fate::Kept,
        };
        let crash = Crash::new(&self.events, Position(at));
        crash.replay(&self.bases, fate).unwrap()
    }

    fn durable(&self, at: usize) -> Vec<u64> {
        let own = self.promises.iter().filter(|(_, from)| from.0 <= at);
        own.map(|(file, _)| *file).collect()
    }

    fn crash(&self, at: usize, seed: u64, lost: Option<usize>) {
        let context = self.context(at, seed, lost);
        let mut all: Vec<Arc<dyn BlockDevice>> = self
            .after(at, seed)
            .into_iter()
            .map(|device| Arc::new(device) as _)
            .collect();
        if let Some(lost) = lost {
            all.remove(lost);
        }
        let durable = self.durable(at);
        match lost {
            None => go_on(&all, &durable, (self.profile, self.change), &context),
            Some(_) => {
                let volume = Volume::open_devices(with_superblocks(&all), options())
                    .unwrap_or_else(|error| panic!("{context}: {error}"));
                for file in &durable {
                    assert_file(&volume, *file, &context);
                }
                volume.write_file(b"/after", b"after").unwrap();
                volume.close().unwrap();
            }
        }
    }

    /// Crashes just before event `at`, goes on, and crashes again in that, twice.
    fn crash_again(&self, at: usize, seed: u64) {
        let context = self.context(at, seed, None);
        let bases = self.after(at, seed);
        let recording = Recording::new();
        let all: Vec<Arc<dyn BlockDevice>> = shared(&bases)
            .into_iter()
            .map(|device| Arc::new(recording.wrap(device)) as _)
            .collect();
        let durable = self.durable(at);
        let what = (self.profile, self.change);
        go_on(&all, &durable, what, &context);
        let second = Self {
            bases,
            events: recording.events(),
            promises: durable.iter().map(|file| (*file, Position(0))).collect(),
            ..*self
        };
        let mut random = Random::new(seed);
        for _ in 0..2 {
            // A crash soon after opening meets superblocks that differ.
            let places = second.events.len() as u64 + 1;
            let soon = random.one_in(2);
            let at = random.below(if soon { places.min(60) } else { places }) as usize;
            let seed = random.bits();
            let all = shared(&second.after(at, seed));
            let own = second.context(at, seed, None);
            go_on(&all, &durable, what, &format!("{context}; then {own}"));
        }
    }

    /// The same, but the kernel opens what the crash left, and the change is
    /// made again by btrfs-progs. Returns false if the kernel cannot see all of
    /// such a state.
    fn crash_in_the_kernel(&self, at: usize, seed: u64) -> bool {
        let context = self.context(at, seed, None);
        let after = self.after(at, seed);
        if !is_seen_whole(&after) {
            return false;
        }
        let kernel = InTheKernel::mount(&after, "noatime", &context);
        for file in self.durable(at) {
            let found = std::fs::read(kernel.path().join(file.to_string()));
            let found = found.unwrap_or_else(|error| panic!("{context}: file {file}: {error}"));
            let expected = content(file, length_of(file));
            assert!(found == expected, "{context}: file {file}");
        }
        std::fs::write(kernel.path().join("after"), b"after").unwrap();
        kernel.btrfs("filesystem sync @");
        let spare = after.len() - 1;
        if !kernel.has_device(spare) {
            kernel.wipe(spare);
        }
        let went_on = kernel.wait_for_balance();
        match self.change {
            Change::Balance | Change::Convert if went_on => {}
            Change::Balance => drop(kernel.btrfs("balance start --full-balance @")),
            Change::Convert => {
                let to = converted(self.profile);
                kernel.btrfs(&format!("balance start -f -d{to} -m{to} -s{to} @"));
            }
            Change::Resize => {
                kernel.btrfs("filesystem resize 1:258m @");
                kernel.btrfs("filesystem resize 1:max @");
            }
            // It had the spare when the power failed.
            _ if kernel.has_device(spare) => {}
            Change::Add => drop(kernel.btrfs(&format!("device add -f @{spare} @"))),
            Change::Remove => {
                kernel.btrfs(&format!("device add -f @{spare} @"));
                kernel.btrfs("device remove 1 @");
            }
            Change::Replace => drop(kernel.btrfs(&format!("replace start -B -f 1 @{spare} @"))),
            Change::Rebuild => {
                kernel.btrfs(&format!("replace start -B -r -f 1 @{spare} @"));
            }
        }
        assert_eq!(
            kernel.has_device(spare),
            self.change.takes_the_spare(),
            "{context}"
        );
        kernel.scrub();
        kernel.end();
        true
    }
}

fn run(profile: ProfileChoice, count: usize, change: Change, seed: u64, states: usize) -> usize {
    let recorded = record((profile, count), "", change, seed);
    let mut random = Random::new(seed);
    let places = recorded.events.len() as u64 + 1;
    for state in 0..states {
        let at = match state % 3 {
            // The superblocks come at its end.
            0 => places - 1 - random.below(places.min(80)),
            _ => random.below(places),
        };
        // One device more than the profile can lose would be too much, because
        // the spare and the first device may each have what the other lacks.
        let lost = match (state % 2, profile.tolerated()) {
            (0, _) | (_, 0) => None,
            (_, _) if count < 2 => None,
            _ => Some(1 + random.below(count as u64 - 1) as usize),
        };
        recorded.crash(at as usize, random.bits(), lost);
    }
    states
}

#[test]
fn crashes_leave_a_volume_with_the_device_or_without() {
    // The sweep asks for more.
    let each = if std::env::var_os("BUTTERFS_SEEDS").is_some() {
        40
    } else {
        15
    };
    let mut states = 0;
    for (profile, count) in LAYOUTS {
        for change in CHANGES {
            for seed in seeds(0..1) {
                states += run(profile, count, change, seed, each);
            }
        }
    }
    println!("{states} states");
}

/// A crash, and another one while the same change is made again.
#[test]
fn crashes_of_a_second_session() {
    let changes = [Change::Add, Change::Remove, Change::Replace, Change::Resize];
    let mut states = 0;
    for (profile, count) in LAYOUTS {
        for change in changes {
            for seed in seeds(0..1) {
                let recorded = record((profile, count), "", change, seed);
                let mut random = Random::new(seed);
                let places = recorded.events.len() as u64 + 1;
                let at = places - 1 - random.below(places.min(80));
                recorded.crash_again(at as usize, random.bits());
                states += 3;
            }
        }
    }
    println!("{states} states");
}

/// What a crash left goes on in the kernel. `BUTTERFS_KERNEL_STATES` is how many
/// of each layout and change.
#[test]
fn the_kernel_goes_on_after_a_crash() {
    if !Capability::all_here(&Capability::KERNEL_MOUNT) {
        return;
    }
    let each = kernel_states(1);
    let (mut states, mut not_seen) = (0, 0);
    for (index, (profile, count)) in LAYOUTS.into_iter().enumerate() {
        for change in CHANGES {
            let seed = 100 + index as u64;
            // The installed btrfs check knows no block group tree.
            let recorded = record((profile, count), "^block-group-tree", change, seed);
            let mut random = Random::new(seed);
            let places = recorded.events.len() as u64 + 1;
            let mut done = 0;
            while done < each {
                let at = match random.below(2) {
                    0 => places - 1 - random.below(places.min(80)),
                    _ => random.below(places),
                };
                if recorded.crash_in_the_kernel(at as usize, random.bits()) {
                    done += 1;
                } else {
                    not_seen += 1;
                }
            }
            states += done;
        }
    }
    println!("{states} states in the kernel; {not_seen} that it cannot see are left out");
}

/// Each write, flush and read of each device fails in turn, once.
#[test]
fn each_operation_may_fail() {
    for (profile, count) in LAYOUTS {
        let bases = made(profile, count, "");
        for change in CHANGES {
            for operation in [Operation::Write, Operation::Flush, Operation::Read] {
                for bad in 0..=count {
                    let failed = fail_each(&bases, profile, change, operation, bad);
                    assert!(failed < 3000);
                }
            }
        }
    }
}

/// Makes operations of device `bad` fail, one in each run. Returns about how
/// many operations a run has.
fn fail_each(
    bases: &[MemoryDevice],
    profile: ProfileChoice,
    change: Change,
    operation: Operation,
    bad: usize,
) -> u64 {
    let mut after = 0;
    loop {
        let context = format!("{profile} {change:?}: {operation:?} {after} of device {bad}");
        let memory: Vec<MemoryDevice> = bases.iter().map(MemoryDevice::snapshot).collect();
        let memory: Vec<Arc<MemoryDevice>> = memory.into_iter().map(Arc::new).collect();
        let all: Vec<Arc<dyn BlockDevice>> = memory.iter().map(|one| one.clone() as _).collect();
        let mut given = all.clone();
        let faulty = Arc::new(FaultDevice::new(given[bad].clone(), 1));
        given[bad] = faulty.clone();
        let spare = given.pop().unwrap();
        let volume = Volume::open_devices(given, options()).unwrap();
        faulty.inject(Fault::Fail(operation, When::After(after)));
        let mut durable: Vec<u64> = (0..12).collect();
        let mut next = 12;
        let done = apply(&volume, (profile, change), spare, &mut || {
            if next >= 16 {
                return;
            }
            let path = format!("/{next}");
            let written = volume.write_file(path.as_bytes(), &content(next, length_of(next)));
            if written.is_ok() && fsync(&volume, next).is_ok() {
                durable.push(next);
            }
            next += 1;
        });
        let is_over = !faulty.pending().is_empty();
        if is_over {
            done.unwrap_or_else(|error| panic!("{context}: {error}"));
        }
        faulty.clear();
        // What was reported as durable is durable, whether the volume goes on
        // or not.
        let crashed: Vec<Arc<dyn BlockDevice>> = memory
            .iter()
            .map(|device| Arc::new(device.snapshot()) as _)
            .collect();
        let what = (profile, change);
        go_on(&crashed, &durable, what, &format!("{context}, crashed"));
        let closed = volume.close();
        drop(volume);
        if closed.is_ok() {
            go_on(&all, &durable, what, &format!("{context}, closed"));
        }
        if is_over {
            return after;
        }
        // Each of the first operations, then fewer and fewer; BUTTERFS_EACH=1
        // takes all.
        after += match std::env::var_os("BUTTERFS_EACH") {
            Some(_) => 1,
            None => 1 + after / 4,
        };
    }
}
