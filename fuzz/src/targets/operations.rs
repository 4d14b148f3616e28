//! Operations on a small volume, beside the model.

#[allow(dead_code, reason = "shared with the tests of the test kit")]
#[path = "../../../crates/testkit/tests/support/apply.rs"]
mod apply;

use crate::meter::bounded;
use crate::tape::Tape;
use crate::volume::{empty, options};
use apply::apply_to_library;
use butterfs::Volume;
use butterfs_check::{NoProgress, Options, check};
use butterfs_device::MemoryDevice;
use butterfs_testkit::op::generate::Generator;
use butterfs_testkit::{Op, Oracle};
use std::sync::{Arc, OnceLock};

/// Operations of one input.
const OPERATIONS_MAX: usize = 120;

fn volumes(way: usize) -> Arc<MemoryDevice> {
    static EMPTY: [OnceLock<Arc<MemoryDevice>>; 4] = [const { OnceLock::new() }; 4];
    let device = EMPTY[way].get_or_init(|| empty(way, 1 << 30));
    Arc::new(device.snapshot())
}

/// The volume, then the bytes that decide for the generator.
pub fn run(data: &[u8]) {
    let mut tape = Tape::new(data);
    let way = usize::from(tape.u8()) % 4;
    let device = volumes(way);
    bounded(512 << 20, || {
        let open = || Volume::open_device(device.clone(), options(way)).expect("it opens");
        let mut volume = open();
        let mut oracle = Oracle::with_node_size(if way == 1 { 16384 } else { 4096 });
        let mut generator = Generator::from_tape(tape.rest());
        for _ in 0..OPERATIONS_MAX {
            if generator.tape_ended() {
                break;
            }
            let Some(op) = generator.next() else { break };
            if op == Op::Remount {
                volume.close().expect("it closes");
                drop(volume);
                volume = open();
                continue;
            }
            let expected = oracle.apply(&op);
            let found = apply_to_library(&op, &volume);
            assert_eq!(found, expected, "{op:?}");
        }
        volume.close().expect("it closes");
        drop(volume);
        let options = Options {
            threads: 1,
            ..Options::default()
        };
        let report = check(vec![device.clone()], &options, &NoProgress).expect("it is checked");
        assert!(report.is_clean(), "{:#?}", report.faults);
    });
}
