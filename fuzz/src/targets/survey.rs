//! Recovery from images whose metadata were made to lie: survey, restore and
//! undelete. Devices may be missing, and superblocks be gone.

use crate::meter::bounded;
use crate::mutation::mutate;
use crate::recoveries;
use crate::tape::Tape;
use crate::volume::{WAYS, base};
use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::superblock::{COPIES, SIZE};
use std::sync::Arc;

/// Bytes that one input may take.
const MEMORY_MAX: usize = 512 << 20;

/// Runs one input.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let way = tape.below(WAYS);
    let how = tape.u8();
    let base = base(way);
    let devices: Vec<Arc<MemoryDevice>> = base
        .devices
        .iter()
        .map(|device| Arc::new(device.snapshot()))
        .collect();
    mutate(base, &devices, &mut tape);
    if how & 0x40 != 0 {
        for device in &devices {
            for copy in COPIES.iter().filter(|copy| copy.get() < device.size()) {
                device.write_at(*copy, &[0; SIZE]).expect("memory");
            }
        }
    }
    let mut given: Vec<Arc<dyn BlockDevice>> = Vec::new();
    for device in devices {
        given.push(device);
    }
    if how & 0x80 != 0 && given.len() > 1 {
        given.pop();
    }
    bounded(MEMORY_MAX, || recoveries::run(given, how));
}
