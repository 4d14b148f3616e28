//! Faults that the harness must find: it is run first, and a run that does not
//! find them stops everything.

use crate::meter::bounded;

/// A panic behind a comparison that only feedback gets past; too much memory;
/// no end.
pub fn run(data: &[u8]) {
    bounded(16 << 20, || match data {
        b"memory" => drop(vec![1_u8; 64 << 20]),
        b"forever" => loop {
            std::hint::black_box(());
        },
        [b'B', b'u', b't', b't', ..] => panic!("the canary was found"),
        _ => {}
    });
}
