//! A device that fails: each read, write and flush in turn, once and for good;
//! writes that are lost or go elsewhere; bits that flip. Never a panic, never
//! wrong data. What was acknowledged is there, or damage is reported.

#[path = "crash/mapped.rs"]
mod mapped;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/received.rs"]
mod received;
#[path = "crash/world.rs"]
mod world;

use butterfs::{BlockDevice, MemoryDevice};
use butterfs_device::fault::{Fault, Rot, When};
use butterfs_device::{DeviceRange, FaultDevice, Operation};
use butterfs_format::DeviceOffset;
use model::Whole;
use std::sync::Arc;
use world::{KINDS, Kind, World, blank, look};

const WORKLOADS: [&str; 5] = [
    "create a; write a 0 50000; fsync a; append a 5000; fsync a; sync; unlink a; sync",
    "mkdir d; create d/a; write d/a 0 200000; sync; write d/a 0 100000; fsync d/a; rename d/a b; sync",
    "create a; write a 0 20000; sync; truncate a 100; create b; clone a b; fsync b; punch a 0 50; fsync a",
    "create a; write a 0 9000; sync; create t; write t 0 9000; fsync t; rename t a; fsyncdir; attribute a; fsync a",
    "create a; keep a 0 100000; sync; write a 0 4096; fsync a; write a 8192 4096; fsync a; sync",
];
/// Operations of one kind that a run may have. A loop that never ends is a
/// fault.
const OPERATIONS_MAX: u64 = 3000;

fn run(kind: Kind, workload: &str, fault: Fault) -> (Arc<MemoryDevice>, model::Model, bool) {
    let base = blank(kind);
    let memory = Arc::new(base.snapshot());
    let faulty = Arc::new(FaultDevice::new(memory.clone(), 7));
    let under: Arc<dyn BlockDevice> = faulty.clone();
    let mut world = World::on(kind, base, under);
    faulty.inject(fault);
    let _ = world.try_run(workload);
    let hit = faulty.pending().is_empty() || matches!(fault, Fault::Fail(_, When::Always));
    let (_, model, _) = world.crash();
    (memory, model, hit)
}

/// What was acknowledged must be there.
fn judge_promise(
    memory: &Arc<MemoryDevice>,
    model: &model::Model,
    kind: Kind,
) -> Result<(), String> {
    let (volume, found) = look(memory.clone(), kind.options).map_err(|e| e.to_string())?;
    model.judge(usize::MAX, &found, Whole::Block)?;
    volume.close().map_err(|e| e.to_string())
}

#[test]
fn failing_operations_lose_nothing_that_was_acknowledged() {
    let mut runs = 0;
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let kind = KINDS[at % 3];
        for operation in [Operation::Write, Operation::Flush, Operation::Read] {
            for number in 0..OPERATIONS_MAX {
                let fault = Fault::Fail(operation, When::After(number));
                let (memory, model, hit) = run(kind, workload, fault);
                runs += 1;
                if let Err(reason) = judge_promise(&memory, &model, kind) {
                    panic!("{workload}: {operation:?} {number} fails: {reason}");
                }
                if !hit {
                    break;
                }
                assert!(number + 1 < OPERATIONS_MAX, "{workload} does not end");
            }
        }
    }
    println!("{runs} runs");
    assert!(runs > 100);
}

/// The fsync of a file reports a write of its data that failed. The data stay
/// in memory, and the next fsync writes them elsewhere.
#[test]
fn data_that_could_not_be_written_are_written_again() {
    for kind in &KINDS[..3] {
        let base = blank(*kind);
        let memory = Arc::new(base.snapshot());
        let faulty = Arc::new(FaultDevice::new(memory.clone(), 7));
        let under: Arc<dyn BlockDevice> = faulty.clone();
        let mut world = World::on(*kind, base, under);
        world.run("create a; create b; sync; write a 0 50000; write b 0 50000");
        faulty.inject(Fault::Fail(Operation::Write, When::After(0)));
        assert!(world.try_run("fsync a").is_err(), "it was not written");
        assert!(faulty.pending().is_empty(), "the fault came");
        assert_eq!(world.volume.failure(), None);
        world.run("fsync a; fsync b; sync");
        let (_, model, _) = world.crash();
        judge_promise(&memory, &model, *kind).expect("all that was acknowledged");
    }
}

/// Errors are allowed. Content that never existed is not.
fn judge_honesty(
    memory: &Arc<MemoryDevice>,
    model: &model::Model,
    kind: Kind,
) -> Result<bool, String> {
    match look(memory.clone(), kind.options) {
        Ok((volume, found)) => {
            // Before any acknowledgement, everything that ever existed is
            // allowed.
            let known = found.files.iter().all(|(number, content)| {
                model
                    .files
                    .get(number)
                    .is_some_and(|history| history.ever(&content.data))
            });
            drop(volume);
            if known {
                Ok(true)
            } else {
                Err("content that never was".to_owned())
            }
        }
        Err(_) => Ok(false),
    }
}

#[test]
fn writes_that_are_lost_or_go_elsewhere_are_reported() {
    let (mut runs, mut served) = (0, 0);
    for (at, workload) in WORKLOADS.iter().enumerate() {
        let kind = KINDS[at % 3];
        for elsewhere in [
            None,
            Some(DeviceOffset(30 << 20)),
            Some(DeviceOffset(70 << 20)),
        ] {
            for number in 0..OPERATIONS_MAX {
                let when = When::After(number);
                let fault = match elsewhere {
                    None => Fault::LoseWrite(when),
                    Some(offset) => Fault::MisdirectWrite(when, offset),
                };
                let (memory, model, hit) = run(kind, workload, fault);
                runs += 1;
                match judge_honesty(&memory, &model, kind) {
                    Ok(whole) => served += usize::from(whole),
                    Err(reason) => panic!("{workload}: {fault:?}: {reason}"),
                }
                if !hit {
                    break;
                }
            }
        }
    }
    println!("{runs} runs, {served} with all files readable");
    assert!(runs > 100 && served > runs / 4, "{served} of {runs}");
}

#[test]
fn flipped_bits_are_healed_or_reported() {
    let kind = KINDS[0];
    let mut world = World::new(kind);
    world.run("mkdir d; create d/a; write d/a 0 200000; create b; write b 0 3000; create c; write c 0 100; sync");
    let memory = world.under();
    let (_, model, _) = world.crash();
    let (mut runs, mut served) = (0, 0);
    // Where something lies: metadata twice, data once, superblocks.
    for start in (0..128 << 20_u64).step_by(4096) {
        let mut bytes = vec![0; 4096];
        memory
            .read_at(DeviceOffset(start), &mut bytes)
            .expect("memory");
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        let copy = Arc::new(memory.snapshot());
        let faulty = Arc::new(FaultDevice::new(copy, start));
        let range = DeviceRange {
            start: DeviceOffset(start),
            length: 4096,
        };
        faulty.inject(Fault::FlipBits(range, Rot::UntilWritten));
        runs += 1;
        if let Ok((volume, found)) = look(faulty, kind.options) {
            if let Err(reason) = model.judge(usize::MAX, &found, Whole::Block) {
                panic!("bits flipped at {start}: {reason}");
            }
            served += 1;
            volume.close().expect("the healed volume is kept");
        }
    }
    println!("{runs} places, {served} healed");
    // Data have one copy: 51 sectors of them cannot be healed.
    assert!(runs > 60 && served >= runs - 60, "{served} of {runs}");
}
