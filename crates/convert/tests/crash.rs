//! Power cuts: each prefix of the writes of a conversion and of the way back,
//! with any of the writes that were not flushed lost, reordered or torn. The
//! device then holds the old file system or the new one, whole. Where the one
//! write that decides was torn itself, the same command ends what was begun.

mod support;

use butterfs_check::FaultCode;
use butterfs_convert::{Unwatched, convert, rollback};
use butterfs_device::record::{Action, Crash, Event, Fate, Position, Recording, SECTOR};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::DeviceOffset;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::{Random, run_script};
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use support::{MIB, can_mount, faults, judge_device, mke2fs, options};

const PLACE: DeviceOffset = COPIES[0];

struct Old {
    device: MemoryDevice,
    /// Bytes that the old file system uses, but its superblock.
    used: Vec<Range<u64>>,
}

fn made(arguments: &[&str], size: u64) -> Old {
    let directory = scratch_dir();
    let image = directory.path().join("image");
    let files = directory.path().join("files");
    fs::create_dir(&files).unwrap();
    run_script(
        &files,
        "mkdir -p a/b; for i in $(seq 60); do seq $i 999 > a/b/$i; done; ln -s x l",
    );
    let all = [arguments, &["-d", files.to_str().unwrap()]].concat();
    mke2fs(&image, size, &all);
    let bytes = fs::read(&image).unwrap();
    let device = MemoryDevice::new(bytes.len() as u64);
    for (number, chunk) in bytes.chunks(4096).enumerate() {
        if chunk.iter().any(|byte| *byte != 0) {
            let at = DeviceOffset(number as u64 * 4096);
            device.write_at(at, chunk).unwrap();
        }
    }
    let ext4 = butterfs_ext4::FileSystem::open(bytes).unwrap();
    let superblock = ext4.superblock();
    let block = superblock.block_size();
    let mut used: Vec<Range<u64>> = Vec::new();
    for group in 0..superblock.groups() {
        let ranges = ext4.used_blocks_of(group).unwrap();
        used.extend(ranges.iter().map(|one| one.start * block..one.end * block));
    }
    Old { device, used }
}

fn has_new(device: &MemoryDevice) -> bool {
    let mut bytes = vec![0; SIZE];
    device.read_at(PLACE, &mut bytes).unwrap();
    Superblock::parse(&bytes, PLACE).is_ok()
}

impl Old {
    fn is_whole(&self, device: &MemoryDevice) -> bool {
        self.used.iter().all(|range| {
            let length = (range.end - range.start) as usize;
            let (mut before, mut now) = (vec![0; length], vec![0; length]);
            let at = DeviceOffset(range.start);
            self.device.read_at(at, &mut before).unwrap();
            device.read_at(at, &mut now).unwrap();
            before == now
        })
    }

    /// What a crash left is one of both, whole. `ends` gives what the command
    /// that was cut short leaves when it is run again.
    fn judge(
        &self,
        device: &MemoryDevice,
        ends: &dyn Fn(Arc<dyn BlockDevice>),
        context: &str,
    ) -> (bool, bool) {
        let own = Arc::new(device.snapshot());
        if has_new(device) {
            // Other copies of the superblock are written later, or given back
            // to the old file system before. A mount reads the first one.
            let mut faults = faults(own);
            faults.retain(|fault| fault.code != FaultCode::SuperblockCopyInvalid);
            assert!(faults.is_empty(), "{context}: {faults:#?}");
            return (true, false);
        }
        if self.is_whole(device) {
            return (false, false);
        }
        ends(own.clone());
        if has_new(&own) {
            judge_device(own, context);
            return (true, true);
        }
        assert!(self.is_whole(&own), "{context}: neither of both is whole");
        (false, true)
    }
}

/// Judges crash states of a recording. Returns how many were judged, and in how
/// many of them the deciding write was torn.
fn states(
    (old, base): (&Old, &MemoryDevice),
    events: &[Event],
    ends: &dyn Fn(Arc<dyn BlockDevice>),
    context: &str,
) -> (usize, usize) {
    let bases = [base.snapshot()];
    let (mut judged, mut torn) = (0, 0);
    let mut judge = |device: &MemoryDevice, context: &str| {
        let (_, was_torn) = old.judge(device, ends, context);
        judged += 1;
        torn += usize::from(was_torn);
    };
    for at in 0..=events.len() {
        let crash = Crash::new(events, Position(at));
        let all = crash.replay(&bases, |_, _| Fate::Kept).unwrap();
        judge(&all[0], &format!("{context}, all before event {at}"));
        // The last event alone, torn at each of its sectors.
        if let Some(last) = at.checked_sub(1)
            && let Action::Write { data, offset } = &events[last].action
            && *offset == PLACE
        {
            for sectors in 1..data.len() / SECTOR {
                for first in [true, false] {
                    let part = |number| (number < sectors) == first;
                    let kept = (0..data.len() / SECTOR).map(part).collect::<Vec<bool>>();
                    let left = crash.replay(&bases, |position, _| match position.0 == last {
                        true => Fate::Torn(kept.clone()),
                        false => Fate::Kept,
                    });
                    judge(&left.unwrap()[0], &format!("{context}, torn {kept:?}"));
                }
            }
        }
    }
    for seed in seeds(0..60) {
        let mut random = Random::new(seed);
        let at = random.below(events.len() as u64 + 1) as usize;
        let crash = Crash::new(events, Position(at));
        let left = crash.replay(&bases, |_, event| match random.below(3) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            _ => {
                let Action::Write { data, .. } = &event.action else {
                    return Fate::Kept;
                };
                let sectors = data.len().div_ceil(SECTOR);
                Fate::Torn((0..sectors).map(|_| random.one_in(2)).collect())
            }
        });
        judge(
            &left.unwrap()[0],
            &format!("{context}, seed {seed} at {at}"),
        );
    }
    (judged, torn)
}

fn crash(arguments: &[&str], size: u64) {
    if !can_mount() {
        return;
    }
    let old = made(arguments, size);
    let device = Arc::new(old.device.snapshot());
    let recording = Recording::new();
    let recorded: Arc<dyn BlockDevice> = Arc::new(recording.wrap(device.clone()));
    convert(&recorded, &options(), &Unwatched).unwrap();
    judge_device(device.clone(), "converted");
    let again = |device: Arc<dyn BlockDevice>| {
        convert(&device, &options(), &Unwatched).unwrap();
    };
    let context = format!("{arguments:?}");
    let forward = states((&old, &old.device), &recording.events(), &again, &context);

    // One of both is whole after a second run, too, and nothing else.
    let new = device.snapshot();
    recording.clear();
    rollback(&recorded, &Unwatched).unwrap();
    assert!(old.is_whole(&device));
    assert_eq!(old.device.first_difference(&device), None);
    let again = |device: Arc<dyn BlockDevice>| {
        rollback(&device, &Unwatched).unwrap();
    };
    let context = format!("{arguments:?}, back");
    let back = states((&old, &new), &recording.events(), &again, &context);
    println!("{arguments:?}: states, torn: {forward:?} forward, {back:?} back");
}

#[test]
fn descriptors_at_the_place_that_decides() {
    crash(
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-N",
            "512",
            "-O",
            "^has_journal",
        ],
        16 * MIB,
    );
}

#[test]
fn inodes_at_the_place_that_decides() {
    let features = "^has_journal,^resize_inode";
    crash(
        &["-t", "ext4", "-b", "4096", "-N", "4096", "-O", features],
        16 * MIB,
    );
}

#[test]
fn small_blocks() {
    crash(&["-t", "ext2", "-b", "1024", "-N", "512"], 12 * MIB);
}

#[test]
fn copies_of_the_superblock() {
    crash(&["-t", "ext4", "-b", "4096", "-N", "512"], 80 * MIB);
}

/// A conversion that was cut short after it had decided is ended by the same
/// command, unless somebody used the old file system since.
#[test]
fn between_both_superblocks() {
    if !can_mount() {
        return;
    }
    let old = made(&["-t", "ext4", "-N", "512"], 32 * MIB);
    let device = Arc::new(old.device.snapshot());
    let shared: Arc<dyn BlockDevice> = device.clone();
    convert(&shared, &options(), &Unwatched).unwrap();
    let done = device.snapshot();
    let mut superblock = vec![0; 1024];
    let place = DeviceOffset(1024);
    old.device.read_at(place, &mut superblock).unwrap();
    device.write_at(place, &superblock).unwrap();
    let ended = convert(&shared, &options(), &Unwatched).unwrap();
    assert!(ended.was_begun);
    assert_eq!(done.first_difference(&device), None);
    superblock[0x34] ^= 1;
    device.write_at(place, &superblock).unwrap();
    let error = convert(&shared, &options(), &Unwatched).unwrap_err();
    assert!(error.to_string().contains("wipefs"), "{error}");
}
