//! Repairs of volumes whose trees say anything, under good checksums. A repair
//! may be refused; it never panics, always ends, and a second one does nothing.
//!
//! The volumes and the mutations are those of the fuzz targets.
//! `BUTTERFS_SEEDS=a..b` runs other mutations than the usual ones.

// What the shared file of the fuzz targets uses.
extern crate butterfs_store as _;

#[allow(dead_code, clippy::all, reason = "shared with the fuzz targets")]
#[path = "../../../fuzz/src/mutation.rs"]
mod mutation;
#[allow(dead_code, clippy::all, reason = "shared with the fuzz targets")]
#[path = "../../../fuzz/src/tape.rs"]
mod tape;
#[allow(dead_code, clippy::all, reason = "shared with the fuzz targets")]
#[path = "../../../fuzz/src/volume.rs"]
mod volume;

use butterfs_check::NoProgress;
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_repair::{Options, repair};
use butterfs_testkit::differential::seeds;
use butterfs_testkit::random::Random;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tape::Tape;
use volume::{WAYS, base};

/// Far above what any repair of these volumes takes.
const TIME_MAX: Duration = Duration::from_secs(60);

#[test]
fn repairs_of_hostile_volumes_end() {
    let (mut refused, mut clean, mut left) = (0, 0, 0);
    for seed in seeds(0..60) {
        let mut random = Random::new(seed);
        let base = base(seed as usize % WAYS);
        let devices: Vec<Arc<MemoryDevice>> = base
            .devices
            .iter()
            .map(|one| Arc::new(one.snapshot()))
            .collect();
        let bytes: Vec<u8> = (0..random.below(48)).map(|_| random.bits() as u8).collect();
        mutation::mutate(base, &devices, &mut Tape::new(&bytes));
        let given = || {
            devices
                .iter()
                .map(|one| one.clone() as Arc<dyn BlockDevice>)
                .collect()
        };
        let mut options = Options::default();
        options.check.threads = 1;
        options.check.faults_max = 3;
        // Half of the repairs have to write nodes out in the middle of edits.
        if seed % 2 == 0 {
            options.cache_bytes = 0;
        }
        let begin = Instant::now();
        match repair(given(), &options, &NoProgress) {
            Ok(outcome) if outcome.after.is_clean() => clean += 1,
            Ok(outcome) => {
                left += 1;
                println!("seed {seed}: left {:?}", outcome.after.counts);
                for fault in &outcome.after.faults {
                    println!("    {fault}");
                }
                for step in &outcome.steps {
                    println!("    {step}");
                }
            }
            Err(error) => {
                refused += 1;
                println!("seed {seed}: {error}");
                continue;
            }
        }
        let now: Vec<MemoryDevice> = devices.iter().map(|one| one.snapshot()).collect();
        let again = repair(given(), &options, &NoProgress).expect("it was repaired before");
        for (device, now) in devices.iter().zip(&now) {
            let difference = device.first_difference(now);
            assert!(
                difference.is_none(),
                "seed {seed}: a second repair: {:?}",
                again.steps
            );
        }
        assert!(
            begin.elapsed() < TIME_MAX,
            "seed {seed} took {:?}",
            begin.elapsed()
        );
    }
    println!("{clean} clean, {left} with faults left, {refused} refused");
    assert!(clean > 0);
}
