//! Commits of overlays and their undos, cut short at every place.
//!
//! Whatever a crash leaves of the writes that were not flushed, the same command
//! ends what it began, and the other one gives the other state: byte for byte
//! what the devices held before, or what the overlay shows.

use butterfs::{BlockDevice, MemoryDevice, OpenOptions, Volume};
use butterfs_admin::mkfs::{MkfsOptions, make_on};
use butterfs_device::record::{Crash, Fate, Position, Recording};
use butterfs_device::{OverlayFile, OverlayPurpose};
use butterfs_format::DeviceOffset;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_repair::overlay::{self, PatientError};
use butterfs_repair::transfer::{TransferError, commit, undo};
use butterfs_testkit::random::Random;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const ROOM: u64 = 1 << 30;

type Devices = Vec<Arc<dyn BlockDevice>>;

fn shared(devices: &[MemoryDevice]) -> Devices {
    let share = |device: &MemoryDevice| Arc::new(device.snapshot()) as Arc<dyn BlockDevice>;
    devices.iter().map(share).collect()
}

/// A volume, an overlay with changes of it, and what the overlay shows.
struct Made {
    before: Vec<MemoryDevice>,
    overlay: MemoryDevice,
    after: Vec<MemoryDevice>,
}

fn write(volume: &Volume, name: &str, bytes: usize) {
    volume.write_file(name, &vec![bytes as u8; bytes]).unwrap();
}

fn made(count: usize) -> Made {
    let before: Vec<MemoryDevice> = (0..count)
        .map(|number| MemoryDevice::new(130 * MIB + number as u64 * MIB))
        .collect();
    let options = MkfsOptions {
        node_size: 4096,
        ..MkfsOptions::default()
    };
    let memory: Vec<Arc<MemoryDevice>> =
        before.iter().map(|one| Arc::new(one.snapshot())).collect();
    let given: Devices = memory.iter().map(|one| one.clone() as _).collect();
    make_on(&given, &options).unwrap();
    let volume = Volume::open_devices(given, OpenOptions::default()).unwrap();
    write(&volume, "old", 70_000);
    volume.close().unwrap();
    let before: Vec<MemoryDevice> = memory.iter().map(|one| one.snapshot()).collect();

    let backing = Arc::new(MemoryDevice::new(ROOM));
    let devices = shared(&before);
    let header = overlay::header_over(&devices).unwrap();
    let file = Arc::new(OverlayFile::create(backing.clone(), header).unwrap());
    let laid = overlay::over(&file, devices).unwrap();
    let volume = Volume::open_devices(laid.clone(), OpenOptions::default()).unwrap();
    // Several commits, so that blocks of the first are used again.
    for round in 0..4 {
        write(&volume, &format!("new{round}"), 30_000 + round);
        volume.remove_file("old").ok();
        volume.sync().unwrap();
    }
    volume.close().unwrap();
    let after = laid.iter().map(|device| {
        let copy = MemoryDevice::new(device.size());
        let mut buffer = vec![0; MIB as usize];
        for at in (0..device.size()).step_by(buffer.len()) {
            let part = &mut buffer[..(device.size() - at).min(MIB) as usize];
            device.read_at(DeviceOffset(at), part).unwrap();
            if part.iter().any(|byte| *byte != 0) {
                copy.write_at(DeviceOffset(at), part).unwrap();
            }
        }
        copy
    });
    Made {
        after: after.collect(),
        before,
        overlay: backing.snapshot(),
    }
}

fn same(found: &[MemoryDevice], wanted: &[MemoryDevice]) -> bool {
    let mut pairs = found.iter().zip(wanted);
    pairs.all(|(found, wanted)| found.first_difference(wanted).is_none())
}

fn overlay_file(made: &Made) -> OverlayFile {
    OverlayFile::open(Arc::new(made.overlay.snapshot())).unwrap()
}

/// Devices and the undo file; each shared with whoever writes to it.
struct State {
    devices: Vec<Arc<MemoryDevice>>,
    undo: Arc<MemoryDevice>,
}

impl State {
    fn of(all: &[MemoryDevice]) -> Self {
        let share = |one: &MemoryDevice| Arc::new(one.snapshot());
        let (undo, devices) = all.split_last().unwrap();
        Self {
            devices: devices.iter().map(share).collect(),
            undo: share(undo),
        }
    }

    fn given(&self) -> Devices {
        self.devices.iter().map(|one| one.clone() as _).collect()
    }

    fn now(&self) -> Vec<MemoryDevice> {
        self.devices.iter().map(|one| one.snapshot()).collect()
    }

    fn all(&self) -> Vec<MemoryDevice> {
        let mut all = self.now();
        all.push(self.undo.snapshot());
        all
    }

    fn commit(&self, made: &Made) -> Result<(), TransferError> {
        commit(&overlay_file(made), &self.given(), self.undo.clone()).map(drop)
    }

    fn undo(&self) -> Result<(), TransferError> {
        undo(&OverlayFile::open(self.undo.clone())?, &self.given()).map(drop)
    }
}

/// Records what `run` does to devices and undo file.
fn recorded(
    state: &State,
    run: impl FnOnce(&Devices, Arc<dyn BlockDevice>),
) -> (Recording, Vec<MemoryDevice>) {
    let bases = state.all();
    let recording = Recording::new();
    let wrap = |one: &Arc<MemoryDevice>| {
        let recorded = recording.wrap(Arc::new(one.snapshot()));
        Arc::new(recorded) as Arc<dyn BlockDevice>
    };
    let devices: Devices = state.devices.iter().map(wrap).collect();
    run(&devices, wrap(&state.undo));
    (recording, bases)
}

fn states() -> usize {
    let wanted = std::env::var("BUTTERFS_CRASH_STATES").ok();
    wanted.map_or(200, |wanted| wanted.parse().expect("a number of states"))
}

/// Calls `each` with what crashes leave: each prefix once with everything and
/// once with nothing in flight, then random ones.
fn crashes(
    recording: &Recording,
    bases: &[MemoryDevice],
    count: usize,
    mut each: impl FnMut(&State),
) {
    let events = recording.events();
    let mut random = Random::new(35);
    for number in 0..count {
        let end = match number % 2 {
            0 => (number / 2 * 7919) % (events.len() + 1),
            _ => random.below(events.len() as u64 + 1) as usize,
        };
        let crash = Crash::new(&events, Position(end));
        let kind = random.below(4);
        let after = crash.replay(bases, |_, event| match (kind, random.below(3)) {
            (0, _) => Fate::Kept,
            (1, _) => Fate::Lost,
            (_, 0) => Fate::Kept,
            (_, 1) => Fate::Lost,
            _ => {
                let sectors = match &event.action {
                    butterfs_device::record::Action::Write { data, .. } => data.len().div_ceil(512),
                    _ => 0,
                };
                Fate::Torn((0..sectors).map(|_| random.below(2) == 0).collect())
            }
        });
        each(&State::of(&after.unwrap()));
    }
}

fn check_crashes(count: usize) {
    let made = made(count);
    let fresh = || {
        let mut all: Vec<MemoryDevice> = made.before.iter().map(MemoryDevice::snapshot).collect();
        all.push(MemoryDevice::new(ROOM));
        State::of(&all)
    };
    let begin = fresh();
    let (recording, bases) = recorded(&begin, |devices, undo| {
        commit(&overlay_file(&made), devices, undo).unwrap();
    });
    let (mut begun, mut not_begun) = (0, 0);
    crashes(&recording, &bases, states() / 2, |state| {
        let again = State::of(&state.all());
        again.commit(&made).unwrap();
        assert!(same(&again.now(), &made.after), "a commit goes on");
        again.undo().unwrap();
        assert!(same(&again.now(), &made.before), "it can be undone");
        match state.undo() {
            Ok(()) => begun += 1,
            // Without an undo file nothing was written.
            Err(_) => not_begun += 1,
        }
        assert!(same(&state.now(), &made.before), "a commit is undone");
    });
    assert!(begun > 0 && not_begun > 0, "{begun} {not_begun}");

    let done = fresh();
    done.commit(&made).unwrap();
    let (recording, bases) = recorded(&done, |devices, file| {
        undo(&OverlayFile::open(file).unwrap(), devices).unwrap();
    });
    crashes(&recording, &bases, states() / 2, |state| {
        let again = State::of(&state.all());
        again.undo().unwrap();
        assert!(same(&again.now(), &made.before), "an undo goes on");
        state.commit(&made).unwrap();
        assert!(same(&state.now(), &made.after), "it is committed after all");
    });
}

#[test]
fn a_commit_of_one_device_survives_crashes() {
    check_crashes(1);
}

#[test]
fn a_commit_of_two_devices_survives_crashes() {
    check_crashes(2);
}

#[test]
fn nobody_opens_a_volume_that_is_half_written() {
    let made = made(1);
    let mut all: Vec<MemoryDevice> = made.before.iter().map(MemoryDevice::snapshot).collect();
    all.push(MemoryDevice::new(ROOM));
    let state = State::of(&all);
    let (recording, bases) = recorded(&state, |devices, undo| {
        commit(&overlay_file(&made), devices, undo).unwrap();
    });
    let events = recording.events();
    let mut marked = 0;
    for end in 0..=events.len() {
        let crash = Crash::new(&events, Position(end));
        let after = crash.replay(&bases, |_, _| Fate::Kept).unwrap();
        let state = State::of(&after);
        let primary = COPIES[0];
        let mut bytes = vec![0; SIZE];
        state.devices[0].read_at(primary, &mut bytes).unwrap();
        let is_old = same(&state.now(), &made.before);
        let is_new = same(&state.now(), &made.after);
        let superblock = Superblock::parse(&bytes, primary).unwrap();
        let known = butterfs_format::superblock::SuperFlags::SUPPORTED;
        if !superblock.flags.without(known).is_empty() {
            marked += 1;
            let opened = Volume::open_devices(state.given(), OpenOptions::default());
            assert!(opened.is_err(), "a volume with the mark was opened");
            let laid = overlay::over(&Arc::new(overlay_file(&made)), state.given());
            assert!(
                matches!(laid, Err(PatientError::CutShort { .. })),
                "{laid:?}"
            );
        } else {
            // Mirrors of the superblock follow the primary one.
            let only_mirrors = superblock.generation.get() > 0;
            assert!(is_old || is_new || only_mirrors);
        }
    }
    assert!(marked > 10);
}

#[test]
fn others_volumes_are_refused() {
    let made = made(1);
    let mut all: Vec<MemoryDevice> = made.before.iter().map(MemoryDevice::snapshot).collect();
    all.push(MemoryDevice::new(ROOM));
    let state = State::of(&all);
    // The volume goes on without the overlay.
    let volume = Volume::open_devices(state.given(), OpenOptions::default()).unwrap();
    write(&volume, "somebody else's", 10);
    volume.close().unwrap();
    let now = state.now();
    let file = Arc::new(overlay_file(&made));
    let laid = overlay::over(&file, state.given());
    assert!(
        matches!(laid, Err(PatientError::OtherPatient { .. })),
        "{laid:?}"
    );
    assert!(matches!(
        state.commit(&made),
        Err(TransferError::Changed { .. })
    ));
    assert!(same(&state.now(), &now));

    let state = State::of(&all);
    state.commit(&made).unwrap();
    let volume = Volume::open_devices(state.given(), OpenOptions::default()).unwrap();
    write(&volume, "after the commit", 10);
    volume.close().unwrap();
    let now = state.now();
    assert!(matches!(state.undo(), Err(TransferError::Changed { .. })));
    assert!(matches!(
        state.commit(&made),
        Err(TransferError::Changed { .. })
    ));
    assert!(same(&state.now(), &now));

    let undo_file = OverlayFile::open(state.undo.clone()).unwrap();
    assert_eq!(undo_file.header().purpose, OverlayPurpose::Undo);
    let laid = overlay::over(&Arc::new(undo_file), state.given());
    assert!(matches!(laid, Err(PatientError::IsUndo(_))), "{laid:?}");
}
