//! Commands on a whole volume whose trees were mutated, with good checksums.

use crate::commands;
use crate::meter::bounded;
use crate::mutation::mutate;
use crate::tape::Tape;
use crate::volume::{WAYS, base, options};
use std::sync::Arc;

/// Which volume, which command, then the mutations.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let base = base(usize::from(tape.u8()) % WAYS);
    let which = usize::from(tape.u8());
    bounded(512 << 20, || {
        let devices: Vec<_> = base
            .devices
            .iter()
            .map(|device| Arc::new(device.snapshot()))
            .collect();
        mutate(base, &devices, &mut tape);
        let _errors = commands::run(which, &devices, &options(2));
    });
}
