//! Commands on volumes whose trees say anything, under good checksums. A
//! command may end with an error; it never panics, and always ends.
//!
//! The volumes, the mutations and the commands are those of the fuzz target
//! `commands`. `BUTTERFS_SEEDS=a..b` runs other mutations than the usual ones.

#[allow(
    dead_code,
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    reason = "shared with the fuzz targets"
)]
#[path = "../../../fuzz/src/commands.rs"]
mod commands;
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

use butterfs_device::{BlockDevice, MemoryDevice};
use butterfs_format::node::{HEADER_SIZE, ITEM_SIZE, POINTER_SIZE, field};
use butterfs_format::{ItemType, Key};
use butterfs_testkit::{Random, differential};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};
use tape::Tape;
use volume::{Base, WAYS, base, options};

/// Far above what any command on these volumes takes.
const TIME_MAX: Duration = Duration::from_secs(60);
/// Greatest number of bytes that decide for the mutations of one volume.
const TAPE_MAX: u64 = 48;
/// Commands that each mutated volume meets.
const COMMANDS: usize = 4;

/// Panics of all threads, also of those whose panics somebody catches.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Runs a command. Gives the number of its errors, or what went wrong.
fn run(which: usize, devices: &[Arc<MemoryDevice>], way: usize) -> Result<usize, String> {
    let begun = Instant::now();
    let before = PANICS.load(Ordering::SeqCst);
    let command = || commands::run(which, devices, &options(way));
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(command));
    let errors = result.map_err(|_| "it panicked".to_owned())?;
    if PANICS.load(Ordering::SeqCst) != before {
        return Err("a thread panicked".to_owned());
    }
    if begun.elapsed() > TIME_MAX / 20 {
        println!(
            "{} took {:?}",
            commands::ALL[which % commands::ALL.len()].0,
            begun.elapsed()
        );
    }
    match begun.elapsed() {
        took if took > TIME_MAX => Err(format!("it took {took:?}")),
        _ => Ok(errors),
    }
}

/// Counts panics from now on. While the guard lives, no other test runs whose
/// panics could be counted.
fn count_panics() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::SeqCst);
            usual(info);
        }));
    });
    guard
}

/// Devices with the same content, which can be changed by themselves.
fn copies(devices: &[Arc<MemoryDevice>]) -> Vec<Arc<MemoryDevice>> {
    let copy = |device: &Arc<MemoryDevice>| Arc::new(device.snapshot());
    devices.iter().map(copy).collect()
}

/// The bytes of a node.
fn bytes_of(base: &Base, which: usize) -> Vec<u8> {
    let mut bytes = vec![0; base.node_size];
    let at = base.nodes[which].copies[0];
    base.devices[at.device]
        .read_at(at.offset, &mut bytes)
        .unwrap();
    bytes
}

/// A copy of the volume with another node, under a good checksum.
fn with_node(base: &Base, which: usize, mut bytes: Vec<u8>) -> Vec<Arc<MemoryDevice>> {
    let devices = copies(&base.devices);
    base.checksum.seal_block(&mut bytes);
    for copy in &base.nodes[which].copies {
        devices[copy.device].write_at(copy.offset, &bytes).unwrap();
    }
    devices
}

/// The number of a command.
fn command(name: &str) -> usize {
    let mut names = commands::ALL.iter();
    names.position(|(other, _)| *other == name).unwrap()
}

/// The commands do their work where nothing is wrong, so that a panic in the
/// middle of one can be found.
#[test]
fn commands_succeed_on_whole_volumes() {
    let _alone = count_panics();
    let mut failed = Vec::new();
    for way in 0..WAYS {
        for (which, (name, _)) in commands::ALL.iter().enumerate() {
            let devices = copies(&base(way).devices);
            let ended = run(which, &devices, way);
            // It also asks for what does not fit some files.
            if ended != Ok(0) && *name != "rewrite" {
                failed.push(format!("{name} on volume {way}: {ended:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The first pointer of a branch stays, so that the branch is found; another one
/// leads to a node of another level.
#[test]
fn pointers_to_nodes_of_other_levels_end_a_balance_with_an_error() {
    let _alone = count_panics();
    let way = 1;
    let base = base(way);
    let branches: Vec<usize> = (0..base.nodes.len())
        .filter(|at| base.nodes[*at].node.level > 0)
        .collect();
    assert!(branches.len() > 3, "{} branches", branches.len());
    let mut failed = Vec::new();
    for (which, to) in branches
        .iter()
        .flat_map(|one| branches.iter().map(move |to| (one, to)))
    {
        let mut bytes = bytes_of(base, *which);
        let at = HEADER_SIZE + POINTER_SIZE + Key::SIZE;
        let target = base.nodes[*to].node;
        bytes[at..at + 8].copy_from_slice(&target.logical.get().to_le_bytes());
        let devices = with_node(base, *which, bytes);
        if let Err(reason) = run(command("balance"), &devices, way) {
            let from = base.nodes[*which].node;
            failed.push(format!("{from:?} to {target:?}: {reason}"));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// Extents that are no whole sectors, or end beyond their chunk or all addresses.
#[test]
fn extents_of_impossible_lengths_end_commands_with_an_error() {
    let _alone = count_panics();
    let way = 0;
    let base = base(way);
    let mut failed = Vec::new();
    let mut changed = 0;
    for which in 0..base.nodes.len() {
        let bytes = bytes_of(base, which);
        let is_of_extents = bytes[field::LEVEL] == 0 && bytes[field::OWNER] == 2;
        let count = u32::from_le_bytes(*bytes[field::ITEM_COUNT..].first_chunk().unwrap());
        let slots = (0..count as usize).map(|slot| HEADER_SIZE + slot * ITEM_SIZE + 8);
        let mut found = slots.filter(|at| bytes[*at] == ItemType::EXTENT_ITEM.0);
        let Some(at) = found.next_back().filter(|_| is_of_extents) else {
            continue;
        };
        for length in [0, 512, 4097, 1 << 40, u64::MAX - 4095] {
            let mut bytes = bytes.clone();
            bytes[at + 1..at + 9].copy_from_slice(&length.to_le_bytes());
            let devices = with_node(base, which, bytes);
            changed += 1;
            for name in ["balance", "scrub", "replace", "remove", "look"] {
                if let Err(reason) = run(command(name), &devices, way) {
                    failed.push(format!("{name}, {length} bytes: {reason}"));
                }
            }
        }
        break;
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(changed > 0);
}

#[test]
fn commands_on_mutated_volumes_never_panic() {
    let _alone = count_panics();
    let mut failed = Vec::new();
    let (mut opened, mut refused) = (0, 0);
    for seed in differential::seeds(0..24) {
        let mut random = Random::new(seed);
        let way = (seed % WAYS as u64) as usize;
        let length = 4 + random.below(TAPE_MAX);
        let bytes: Vec<u8> = (0..length).map(|_| random.bits() as u8).collect();
        let base = base(way);
        let mutated = copies(&base.devices);
        mutation::mutate(base, &mutated, &mut Tape::new(&bytes));
        let given = copies(&mutated).into_iter().map(|one| one as _).collect();
        match butterfs::Volume::open_devices(given, options(way)) {
            Ok(_) => opened += 1,
            Err(_) => {
                refused += 1;
                continue;
            }
        }
        for _ in 0..COMMANDS {
            let which = random.below(commands::ALL.len() as u64 * 4) as usize;
            let devices = copies(&mutated);
            if let Err(reason) = run(which, &devices, way) {
                let (name, _) = commands::ALL[which % commands::ALL.len()];
                failed.push(format!("seed {seed}, {name} ({which}): {reason}"));
            }
        }
    }
    println!(
        "{opened} opened, {refused} refused, {} failed",
        failed.len()
    );
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(opened > 0);
}
