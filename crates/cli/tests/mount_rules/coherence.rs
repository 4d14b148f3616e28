//! What one process has written, another one reads, by any combination of ways:
//! buffered, direct, mapped, asynchronous. The kernel's Btrfs runs the same
//! test.

use super::io::{Way, Worker, Written};
use super::support::{Bench, can_mount};
use std::path::Path;

const SIZE: usize = 128 << 10;
const SECTOR: usize = 4096;

/// A generator of numbers that a seed repeats.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        // Numbers and shifts: xorshift64.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// A range of the file. It consists of whole sectors if direct I/O wants
    /// that.
    fn range(&mut self, access: &str) -> (usize, usize) {
        let unit = if access.is_empty() { 1 } else { SECTOR };
        let units = SIZE / unit;
        let at = self.below(units);
        let length = 1 + self.below((units - at).min(16 * SECTOR / unit));
        (at * unit, length * unit)
    }

    fn access(&mut self, way: Way) -> &'static str {
        match way {
            Way::Mapped => "",
            _ => self.pick(&["", "+DIRECT"]),
        }
    }
}

fn processes_agree(directory: &Path, seed: u64, rounds: usize) {
    let (Some(one), Some(other)) = (Worker::start(), Worker::start()) else {
        return;
    };
    let mut workers = [one, other];
    let ways = workers[0].ways(directory);
    let path = directory.join("file");
    let mut random = Random(seed);
    let mut model = vec![0; SIZE];
    std::fs::write(&path, &model).expect("a file");
    for round in 0..rounds {
        let way = random.pick(&ways);
        let access = random.access(way);
        let (offset, length) = random.range(access);
        let flags = format!("RDWR{access}");
        let written = Written {
            way,
            flags: &flags,
            rwf: "0",
            offset,
            length,
            byte: random.below(256) as u8,
            sync: "none",
        };
        let writer = random.below(2);
        workers[writer].ask_write(written, &path);
        // Reads during the write see either state. What they leave in the page
        // cache must not outlive the write.
        workers[1 - writer].ask_read(Way::Psync, "RDWR", (0, SIZE), &path);
        workers[1 - writer].answer().expect("a read");
        if let Err(errno) = workers[writer].answer() {
            panic!("seed {seed}, round {round}: {written:?}: errno {errno}");
        }
        model[offset..offset + length].fill(written.byte);
        for reader in &mut workers {
            let way = random.pick(&ways);
            let access = random.access(way);
            let (at, length) = random.range(access);
            let found = reader.read(way, &format!("RDWR{access}"), (at, length), &path);
            let found = found.expect("a read");
            let wrong = found
                .iter()
                .zip(&model[at..at + length])
                .position(|(found, expected)| found != expected);
            assert_eq!(
                wrong.map(|wrong| at + wrong),
                None,
                "seed {seed}, round {round}: {written:?}, then {way:?}{access} of {length} at {at}"
            );
        }
    }
}

fn seeds() -> std::ops::RangeInclusive<u64> {
    let given = std::env::var("BUTTERFS_SEEDS").ok();
    let given = given.and_then(|text| {
        let (first, last) = text.split_once("..")?;
        Some(first.parse().ok()?..=last.parse().ok()?)
    });
    given.unwrap_or(1..=2)
}

#[test]
fn processes_agree_on_what_a_file_holds() {
    const ROUNDS: usize = 120;
    if !can_mount() {
        return;
    }
    for options in ["rw", "writeback"] {
        let bench = Bench::new();
        let mounted = bench.mount(options);
        for seed in seeds() {
            processes_agree(&bench.path("mnt"), seed, ROUNDS);
        }
        bench.run(&["umount", "mnt"]);
        drop(mounted);
        bench.check();
    }
    let bench = Bench::new();
    bench.with_kernel(|root| processes_agree(root, 1, ROUNDS));
}
