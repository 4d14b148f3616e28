//! Repairs of whole images whose metadata were made to lie: they end, without a
//! panic, in bounded memory.

use crate::meter::bounded;
use crate::mutation::mutate;
use crate::tape::Tape;
use crate::volume::{WAYS, base};
use butterfs_check::NoProgress;
use butterfs_repair::{Anew, Options, repair};
use std::sync::Arc;

/// Which volume, what is made anew, then the mutations.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let way = usize::from(tape.u8()) % WAYS;
    let base = base(way);
    let bits = tape.u8();
    bounded(192 << 20, || {
        let devices: Vec<_> = base
            .devices
            .iter()
            .map(|device| Arc::new(device.snapshot()))
            .collect();
        mutate(base, &devices, &mut tape);
        let mut options = Options {
            anew: Anew {
                extents: bits & 1 != 0,
                checksums: bits & 2 != 0,
                free_space: bits & 4 != 0,
                uuids: bits & 8 != 0,
                ..Anew::default()
            },
            memory_max: 32 << 20,
            ..Options::default()
        };
        options.check.threads = 1;
        options.check.memory_max = 32 << 20;
        options.check.faults_max = 10;
        let given = devices.iter().map(|one| one.clone() as _).collect();
        let _ = repair(given, &options, &NoProgress);
    });
}
