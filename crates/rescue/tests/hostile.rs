//! Survey, restore and undelete of volumes whose metadata say anything, under
//! good checksums, and of volumes of several devices without superblocks. None
//! panics, and each ends.
//!
//! The volumes and the mutations are those of the fuzz target `survey`.
//! `BUTTERFS_SEEDS=a..b` runs other mutations than the usual ones.

#[allow(
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = "shared with the fuzz targets"
)]
#[path = "../../../fuzz/src/mutation.rs"]
mod mutation;
#[allow(
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = "shared with the fuzz targets"
)]
#[path = "../../../fuzz/src/recoveries.rs"]
mod recoveries;
#[allow(
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = "shared with the fuzz targets"
)]
#[path = "../../../fuzz/src/tape.rs"]
mod tape;
#[allow(
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = "shared with the fuzz targets"
)]
#[path = "../../../fuzz/src/volume.rs"]
mod volume;

// What makes the volumes uses it.
extern crate butterfs_store as _;

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::superblock::{COPIES, SIZE};
use butterfs_testkit::{Random, differential};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tape::Tape;
use volume::{WAYS, base};

/// Far above what recovery takes on these volumes.
const TIME_MAX: Duration = Duration::from_secs(60);

fn copies(way: usize) -> Vec<Arc<MemoryDevice>> {
    let devices = base(way).devices.iter();
    devices.map(|device| Arc::new(device.snapshot())).collect()
}

fn given(devices: Vec<Arc<MemoryDevice>>) -> Vec<Arc<dyn BlockDevice>> {
    devices.into_iter().map(|one| one as _).collect()
}

fn zero_superblocks(devices: &[Arc<MemoryDevice>]) {
    for device in devices {
        for copy in COPIES.iter().filter(|copy| copy.get() < device.size()) {
            device.write_at(*copy, &[0; SIZE]).unwrap();
        }
    }
}

#[test]
fn mutated_volumes_end_with_files_or_an_error() {
    let mut found = 0;
    for seed in differential::seeds(0..30) {
        let mut random = Random::new(seed);
        let way = (seed % WAYS as u64) as usize;
        let length = 4 + random.below(48);
        let bytes: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
        let devices = copies(way);
        mutation::mutate(base(way), &devices, &mut Tape::new(&bytes));
        if seed % 3 == 0 {
            zero_superblocks(&devices);
        }
        let begun = Instant::now();
        found += recoveries::run(given(devices), random.bits() as u8);
        let took = begun.elapsed();
        assert!(took < TIME_MAX, "seed {seed} took {took:?}");
        if took > TIME_MAX / 20 {
            println!("seed {seed} took {took:?}");
        }
    }
    assert!(found > 0);
}

#[test]
fn random_bytes_are_no_volume() {
    let device = MemoryDevice::new(16 << 20);
    let mut random = Random::new(1);
    let mut bytes = vec![0; 1 << 20];
    for at in (0..device.size()).step_by(bytes.len()) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&random.bits().to_le_bytes());
        }
        // Every place looks like a node.
        for place in bytes.chunks_mut(512) {
            place[56..64].copy_from_slice(&(1_u64 | 1 << 56).to_le_bytes());
            place[100] = 0;
        }
        device
            .write_at(butterfs_format::DeviceOffset(at), &bytes)
            .unwrap();
    }
    let begun = Instant::now();
    assert_eq!(recoveries::run(given(vec![Arc::new(device)]), 0), 0);
    assert!(begun.elapsed() < TIME_MAX, "{:?}", begun.elapsed());
}
