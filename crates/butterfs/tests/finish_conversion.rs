//! The end of a conversion from ext4: power may fail at any moment.

use butterfs::check::{DataChecksums, FaultCode, NoProgress, Options, check};
use butterfs::{BlockDevice, MemoryDevice, Method, OpenOptions, Volume};
use butterfs_convert::{Unwatched, convert};
use butterfs_device::record::{Crash, Fate, Position, Recording, SECTOR};
use butterfs_format::DeviceOffset;
use butterfs_format::compression::Algorithm;
use butterfs_testkit::differential::seeds;
use butterfs_testkit::judge::scratch_dir;
use butterfs_testkit::{Capability, Random, run_script};
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;

/// With room for a second copy of the superblock.
const SIZE: u64 = 80 << 20;
const SCRIPT: &str = "mkdir -p a/b; for i in $(seq 60); do seq $i 2999 > a/b/$i; done; \
                      ln -s x l; ln a/b/9 n; seq 1 300000 > large; head -c 999999 /dev/urandom > r";

fn converted() -> MemoryDevice {
    let directory = scratch_dir();
    let (files, image) = (
        directory.path().join("files"),
        directory.path().join("image"),
    );
    fs::create_dir(&files).unwrap();
    run_script(&files, SCRIPT);
    fs::File::create(&image).unwrap().set_len(SIZE).unwrap();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-N", "512", "-d"])
        .args([&files, &image])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");
    let bytes = fs::read(&image).unwrap();
    let device = Arc::new(MemoryDevice::new(SIZE));
    for (at, block) in (0..).step_by(4096).zip(bytes.chunks(4096)) {
        if block.iter().any(|byte| *byte != 0) {
            device.write_at(DeviceOffset(at), block).unwrap();
        }
    }
    let shared: Arc<dyn BlockDevice> = device.clone();
    convert(&shared, &butterfs_convert::Options::default(), &Unwatched).unwrap();
    device.snapshot()
}

/// Every file below `a` and beside it, with its content.
fn content(device: &MemoryDevice, context: &str) -> BTreeMap<String, Vec<u8>> {
    let options = OpenOptions::default();
    let volume = Volume::open_device(Arc::new(device.snapshot()), options);
    let volume = volume.unwrap_or_else(|error| panic!("{context}: {error}"));
    let mut found = BTreeMap::new();
    for name in (1..61).map(|number| format!("/a/b/{number}")) {
        found.insert(name.clone(), volume.read_file(&name).expect(context));
    }
    for name in ["/n", "/large", "/r"] {
        found.insert(name.to_owned(), volume.read_file(name).expect(context));
    }
    volume.close().expect(context);
    found
}

fn assert_clean(device: &MemoryDevice, context: &str) {
    let options = Options {
        data: DataChecksums::Verify,
        threads: 1,
        ..Options::default()
    };
    let report = check(vec![Arc::new(device.snapshot())], &options, &NoProgress);
    let mut faults = report.expect(context).faults;
    // A torn copy of the superblock is made anew by whoever opens the volume.
    faults.retain(|fault| fault.code != FaultCode::SuperblockCopyInvalid);
    assert!(faults.is_empty(), "{context}: {faults:#?}");
}

#[test]
fn each_moment_of_finish_is_whole() {
    if !Capability::all_here(&[Capability::Program("mke2fs")]) {
        return;
    }
    let base = converted();
    let before = content(&base, "converted");
    let device = Arc::new(base.snapshot());
    let recording = Recording::new();
    let recorded: Arc<dyn BlockDevice> = Arc::new(recording.wrap(device.clone()));
    let volume = Volume::open_device(recorded, OpenOptions::default()).unwrap();
    let zstd = Method {
        algorithm: Algorithm::Zstd,
        level: Algorithm::Zstd.default_level(),
    };
    let mut unchanged = 0;
    volume
        .finish_conversion(Some(zstd), &mut |_| unchanged += 1)
        .unwrap();
    volume.close().unwrap();
    assert_eq!(unchanged, 0);
    assert_clean(&device, "finished");
    assert_eq!(content(&device, "finished"), before);

    let (events, bases) = (recording.events(), [base]);
    for seed in seeds(0..40) {
        let mut random = Random::new(seed);
        let at = random.below(events.len() as u64 + 1) as usize;
        let crash = Crash::new(&events, Position(at));
        let left = crash.replay(&bases, |_, event| match random.below(3) {
            0 => Fate::Kept,
            1 => Fate::Lost,
            _ => {
                let butterfs_device::record::Action::Write { data, .. } = &event.action else {
                    return Fate::Kept;
                };
                let sectors = data.len().div_ceil(SECTOR);
                Fate::Torn((0..sectors).map(|_| random.one_in(2)).collect())
            }
        });
        let left = left.unwrap();
        let context = format!("seed {seed} at {at} of {}", events.len());
        assert_clean(&left[0], &context);
        assert_eq!(content(&left[0], &context), before, "{context}");
    }
}
