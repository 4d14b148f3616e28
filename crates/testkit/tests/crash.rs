//! Crashes at every flush. Each unflushed write is kept, lost or torn. After
//! each crash, everything that was acknowledged is found, nothing is found that
//! never existed, and the volume is sound.
//!
//! `BUTTERFS_CRASH_STATES` sets the number of states, `BUTTERFS_SEEDS=a..b` the
//! seeds of the random workloads, `BUTTERFS_CRASH_ONLY` names one workload.

#[path = "crash/canary.rs"]
mod canary;
#[path = "crash/invariant.rs"]
mod invariant;
#[path = "crash/mapped.rs"]
mod mapped;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/received.rs"]
mod received;
#[path = "crash/states.rs"]
mod states;
#[path = "crash/two_sessions.rs"]
mod two_sessions;
#[path = "crash/workloads.rs"]
mod workloads;
#[path = "crash/world.rs"]
mod world;

use butterfs::{BlockDevice, MemoryDevice};
use butterfs_check::{DataChecksums, NoProgress};
use butterfs_device::fault::{Fault, When};
use butterfs_device::record::{Action, Event};
use butterfs_device::{FaultDevice, Operation, RecordDevice};
use butterfs_format::features::Incompat;
use butterfs_format::superblock::{self, Superblock};
use butterfs_testkit::Random;
use butterfs_testkit::judge::{scratch_dir, unmount};
use invariant::Watch;
use model::{Content, Found, Model, Whole};
use states::State;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use workloads::WORKLOADS;
use world::{KINDS, Kind, World, empty_and_refill, look};

fn states_wanted() -> usize {
    std::env::var("BUTTERFS_CRASH_STATES").map_or(24_000, |text| text.parse().expect("a number"))
}

/// Our own check, with data checksums.
fn check(device: &MemoryDevice) -> Result<(), String> {
    let options = butterfs_check::Options {
        threads: 1,
        data: DataChecksums::Verify,
        ..butterfs_check::Options::default()
    };
    let shared: Arc<dyn BlockDevice> = Arc::new(device.snapshot());
    let report = butterfs_check::check(vec![shared], &options, &NoProgress)
        .map_err(|error| error.to_string())?;
    if report.is_exact() {
        return Ok(());
    }
    Err(format!("{:?}", report.faults))
}

/// Workloads that run at the same time on a volume of a kind.
struct Job {
    name: String,
    workloads: Vec<String>,
    kind: Kind,
    seed: u64,
}

/// What a run counts.
#[derive(Default)]
struct Tally {
    states: AtomicUsize,
    /// States of workloads that ran together.
    together: AtomicUsize,
    distinct: AtomicUsize,
    in_replay: AtomicUsize,
    by_kernel: AtomicUsize,
}

/// What a program did, and in which directory. A program that is alone has the
/// whole volume.
struct Actor {
    dir: String,
    model: Model,
}

/// The directory of a program that is not alone.
fn own_dir(number: usize) -> String {
    format!("t{number}/")
}

impl Actor {
    fn alone(model: Model) -> Self {
        Self {
            dir: String::new(),
            model,
        }
    }

    /// The part of a volume that is its own, with the directories of the top
    /// level.
    fn part(&self, found: &Found) -> Found {
        if self.dir.is_empty() {
            return found.clone();
        }
        let own = |path: &str| !path.contains('/') || path.starts_with(&self.dir);
        let paths: BTreeMap<_, _> = found
            .paths
            .iter()
            .filter(|(path, _)| own(path))
            .map(|(path, number)| (path.clone(), *number))
            .collect();
        let numbers: BTreeSet<_> = paths.values().collect();
        let files = found
            .files
            .iter()
            .filter(|(number, _)| numbers.contains(number))
            .map(|(number, content)| (*number, content.clone()))
            .collect();
        Found { paths, files }
    }
}

struct Judge<'a> {
    /// One state in this many is also crashed in its replay.
    replays_every: usize,
    actors: &'a [Actor],
    kind: Kind,
    tally: &'a Tally,
}

impl Judge<'_> {
    /// Opens a state and compares it with the model.
    fn state(&self, state: &State, random: &mut Random) -> Result<(), String> {
        let number = self.tally.states.fetch_add(1, Ordering::Relaxed);
        let device: Arc<MemoryDevice> = Arc::new(state.device.snapshot());
        let found = self.open(state.time, &device)?;
        check(&device)?;
        if number.is_multiple_of(16) {
            let (volume, _) = look(device.clone(), self.kind.options).map_err(|e| e.to_string())?;
            empty_and_refill(&volume, &found).map_err(|e| format!("emptying: {e}"))?;
            drop(volume);
            check(&device)?;
        }
        if number.is_multiple_of(self.replays_every) {
            self.in_replay(state, random)?;
        }
        if number.is_multiple_of(1500) {
            self.kernel(state, &found)?;
        }
        Ok(())
    }

    /// Compares what was found after a crash at `time` with what was done.
    fn judge(&self, time: usize, found: &Found) -> Result<(), String> {
        for actor in self.actors {
            let judged = actor.model.judge(time, &actor.part(found), self.whole());
            judged.map_err(|reason| format!("{}{reason}", actor.dir))?;
        }
        Ok(())
    }

    fn whole(&self) -> Whole {
        if self.kind.options.contains("nodatacow") {
            Whole::Sector
        } else {
            Whole::Block
        }
    }

    /// Replays, looks, and commits.
    fn open(&self, time: usize, device: &Arc<MemoryDevice>) -> Result<Found, String> {
        let shared: Arc<dyn BlockDevice> = device.clone();
        let (volume, found) = look(shared, self.kind.options).map_err(|e| e.to_string())?;
        self.judge(time, &found)?;
        if let [alone] = self.actors {
            received::judge(&volume, &alone.model, &found)?;
        }
        volume.close().map_err(|e| e.to_string())?;
        Ok(found)
    }

    /// Crashes in the replay, and replays again.
    fn in_replay(&self, state: &State, random: &mut Random) -> Result<(), String> {
        let recorded = Arc::new(RecordDevice::new(Arc::new(state.device.snapshot())));
        let shared: Arc<dyn BlockDevice> = recorded.clone();
        let (volume, _) = look(shared, self.kind.options).map_err(|e| e.to_string())?;
        let events = recorded.events();
        drop(volume);
        let mut failed = None;
        states::visit(&state.device, &events, random, 12, &mut |inner| {
            self.tally.in_replay.fetch_add(1, Ordering::Relaxed);
            let device = Arc::new(inner.device);
            let result = self.open(state.time, &device).and_then(|_| check(&device));
            if let Err(reason) = result {
                failed.get_or_insert(format!("crash in the replay, {}: {reason}", inner.what));
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// The kernel's replay gives the same files, and `btrfs check` finds no
    /// fault.
    fn kernel(&self, state: &State, ours: &Found) -> Result<(), String> {
        if !rustix::process::geteuid().is_root() {
            assert!(std::env::var_os("CI").is_none(), "in CI nothing is skipped");
            return Ok(());
        }
        let mut primary = vec![0; superblock::SIZE];
        let at = superblock::COPIES[0];
        let read = state.device.read_at(at, &mut primary);
        let parsed = Superblock::parse(&primary, at);
        let Some(parsed) = parsed.ok().filter(|_| read.is_ok()) else {
            // The kernel does not look for a mirror of the superblock by
            // itself.
            return Ok(());
        };
        self.tally.by_kernel.fetch_add(1, Ordering::Relaxed);
        let dir = scratch_dir();
        let image = dir.path().join("volume.img");
        state.device.save(&image).map_err(|e| e.to_string())?;
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).map_err(|e| e.to_string())?;
        let paths = [image.to_str().unwrap(), point.to_str().unwrap()];
        run("mount", &["-o", "loop", paths[0], paths[1]])?;
        let found = walk(&point);
        unmount(&point).map_err(|e| e.to_string())?;
        self.judge(state.time, &found)
            .map_err(|reason| format!("the kernel's replay: {reason}"))?;
        if found != *ours {
            return Err("the kernel's replay gives other files than ours".to_owned());
        }
        if parsed.incompat.contains(Incompat::SIMPLE_QUOTA) {
            // btrfs-progs 6.2 does not know it.
            return Ok(());
        }
        // The loop device may remain for a while. It is not mounted.
        run(
            "btrfs",
            &["check", "--force", "--check-data-csum", paths[0]],
        )
    }
}

fn run(program: &str, args: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(args).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{program} {args:?}: {text}"))
}

/// What a mounted tree shows.
fn walk(root: &Path) -> Found {
    use std::os::unix::fs::MetadataExt;
    let mut found = Found::default();
    let mut waiting = vec![(root.to_owned(), String::new())];
    while let Some((dir, subvolume)) = waiting.pop() {
        for entry in std::fs::read_dir(&dir).expect("a directory").flatten() {
            let path = entry.path();
            let meta = entry.metadata().expect("attributes");
            let name = path
                .strip_prefix(root)
                .expect("below")
                .display()
                .to_string();
            let subvolume = if meta.ino() == 256 {
                name.clone()
            } else {
                subvolume.clone()
            };
            let number = world::unique(&subvolume, meta.ino());
            found.paths.insert(name, number);
            if meta.is_dir() {
                waiting.push((path, subvolume));
                continue;
            }
            let mut value = vec![0; 4096];
            let length = rustix::fs::getxattr(&path, "user.crash", &mut value[..]).ok();
            let content = Content {
                data: std::fs::read(&path).expect("a file"),
                attribute: length.map(|length| value[..length].to_vec()),
            };
            found.files.insert(number, content);
        }
    }
    found
}

/// What happens to an operation that fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnError {
    /// No operation may fail.
    Panic,
    /// Its thread ends.
    End,
}

/// Runs workloads at the same time, each by a thread in a directory of its own.
fn run_together(kind: Kind, workloads: &[String]) -> (MemoryDevice, Vec<Actor>, Vec<Event>) {
    let mut world = World::new(kind);
    if let [alone] = workloads {
        world.run(alone);
        let (base, model, events) = world.crash();
        return (base, vec![Actor::alone(model)], events);
    }
    run_in(world, workloads, OnError::Panic, || ())
}

/// The same in an existing world. `begun` is called when its threads begin.
fn run_in(
    mut world: World,
    workloads: &[String],
    on_error: OnError,
    begun: impl FnOnce(),
) -> (MemoryDevice, Vec<Actor>, Vec<Event>) {
    for number in 0..workloads.len() {
        let dir = own_dir(number);
        world.run(&format!("mkdir {}", dir.trim_end_matches('/')));
    }
    world.run("sync");
    begun();
    let actors = std::thread::scope(|scope| {
        let start = |(number, workload): (usize, &String)| {
            let (mut beside, workload) = (world.beside(number as u64), workload.clone());
            scope.spawn(move || {
                match on_error {
                    OnError::Panic => beside.run(&workload),
                    OnError::End => drop(beside.try_run(&workload)),
                }
                Actor {
                    dir: own_dir(number),
                    model: beside.model,
                }
            })
        };
        let threads: Vec<_> = workloads.iter().enumerate().map(start).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended
            .map(|actor| actor.expect("it does not fail"))
            .collect()
    });
    let (base, _, events) = world.crash();
    (base, actors, events)
}

/// Runs workloads at the same time and judges their crash states.
fn sweep(job: &Job, budget: usize, tally: &Tally) {
    let Job {
        name,
        workloads,
        kind,
        seed,
    } = job;
    let (kind, seed) = (*kind, *seed);
    let workload = workloads.join("\nbeside: ");
    let (base, actors, events) = run_together(kind, workloads);
    let in_place = ["keep", "allocate", "zero"];
    let in_place = in_place.iter().any(|word| workload.contains(word));
    let watch = if in_place || kind.options.contains("nodatacow") {
        Watch::Metadata
    } else {
        Watch::All
    };
    if let Err(reason) = invariant::hold(&base, &events, watch) {
        panic!("{name} on {kind:?}: {reason}\nworkload: {workload}");
    }
    let judge = Judge {
        replays_every: if only().is_some() { 1 } else { 24 },
        actors: &actors,
        kind,
        tally,
    };
    let mut random = Random::new(seed);
    let mut inner = Random::new(seed + 1);
    let visited = states::visit(&base, &events, &mut random, budget, &mut |state| {
        if let Err(reason) = judge.state(&state, &mut inner) {
            panic!(
                "{name} on {kind:?}, seed {seed}, crash at event {} with {}:\n{reason}\nworkload: {workload}",
                state.time, state.what
            );
        }
    });
    tally
        .distinct
        .fetch_add(visited.distinct, Ordering::Relaxed);
    if actors.len() > 1 {
        tally.together.fetch_add(visited.all, Ordering::Relaxed);
    }
}

/// Random workloads: with three of eight seeds one runs alone, with the others
/// two to four run together.
fn random_workloads(seed: u64) -> Vec<String> {
    if seed % 8 < 3 {
        return vec![random_workload(seed, "")];
    }
    let threads = 2 + (seed % 3) as usize;
    let seed_of = |number: usize| seed * 8 + number as u64;
    let workload = |number| random_workload(seed_of(number), &own_dir(number));
    (0..threads).map(workload).collect()
}

/// What [`random_workload`] does in half of the workloads: mostly names change,
/// and files are fsynced.
const NAMES_MOSTLY: [u64; 20] = [
    0, 0, 1, 4, 4, 12, 12, 13, 13, 13, 13, 14, 14, 16, 16, 17, 17, 17, 20, 15,
];

/// A random workload, in a directory.
fn random_workload(seed: u64, dir: &str) -> String {
    let mut random = Random::new(seed);
    let mut out: Vec<String> = vec![format!("mkdir {dir}d"), "sync".into()];
    // Which file each name has.
    let mut all: BTreeMap<String, usize> = BTreeMap::new();
    let names = ["a", "b", "c", "d/a", "d/b", "d/c"].map(|name| format!("{dir}{name}"));
    let many_names = random.below(2) == 0;
    for step in 0..if many_names { 70 } else { 40 } {
        let name = random.pick(&names).clone();
        let there = all.contains_key(&name);
        let offset = random.below(60_000);
        let length = 1 + random.below(30_000);
        let what = match random.below(20) {
            roll if many_names => NAMES_MOSTLY[roll as usize],
            roll => roll,
        };
        match what {
            0..=3 if !there => {
                out.push(format!("create {name}"));
                all.insert(name, step);
            }
            4..=7 if there => out.push(format!("write {name} {offset} {length}")),
            8 if there => out.push(format!("truncate {name} {offset}")),
            9 if there => out.push(format!("punch {name} {offset} {length}")),
            10 if there => out.push(format!("keep {name} {offset} {length}")),
            11 if there => out.push(format!("attribute {name}")),
            12 if there => {
                out.push(format!("unlink {name}"));
                all.remove(&name);
            }
            13 if there => {
                let other = random.pick(&names).clone();
                if all.get(&other) != all.get(&name) {
                    out.push(format!("rename {name} {other}"));
                    if let Some(file) = all.remove(&name) {
                        all.insert(other, file);
                    }
                }
            }
            14 if there => {
                let other = random.pick(&names).clone();
                if !all.contains_key(&other) {
                    out.push(format!("link {name} {other}"));
                    all.insert(other, all[&name]);
                }
            }
            15 => out.push("sync".into()),
            16 if offset.is_multiple_of(2) => out.push(format!("fsyncdir {dir}d")),
            16 => out.push(format!("fsyncdir {}", dir.trim_end_matches('/'))),
            17..=19 if there => out.push(format!("fsync {name}")),
            20 if there => {
                let other = random.pick(&names).clone();
                if all.get(&other).is_some_and(|file| *file != all[&name]) {
                    out.push(format!("exchange {name} {other}"));
                    let file = all[&name];
                    let other_file = all.insert(other, file);
                    all.insert(name, other_file.expect("it is there"));
                }
            }
            _ => {}
        }
    }
    out.join("; ")
}

/// Runs `jobs` on two threads or as many as there are cores.
fn in_parallel(jobs: &[Job], budget: usize, tally: &Tally) {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    sweep(job, budget, tally);
                }
            });
        }
    });
}

/// The one workload that is asked for, if any.
fn only() -> Option<String> {
    std::env::var("BUTTERFS_CRASH_ONLY").ok()
}

fn fresh_seed() -> u64 {
    std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .map_or(1, |since| since.as_secs())
}

fn seeds() -> std::ops::Range<u64> {
    match std::env::var("BUTTERFS_SEEDS") {
        Ok(range) => {
            let (first, last) = range.split_once("..").expect("a range");
            first.parse().expect("a number")..last.parse().expect("a number")
        }
        Err(_) => {
            let fresh = fresh_seed();
            fresh..fresh + 40
        }
    }
}

#[test]
fn what_was_acknowledged_survives_every_crash() {
    assert!(WORKLOADS.len() >= 60);
    let mut jobs = Vec::new();
    for (at, (name, workload)) in WORKLOADS.iter().enumerate() {
        for (other, kind) in KINDS.iter().enumerate() {
            let big = workload.contains("fill");
            if !big || other == 0 {
                let seed = (at * 10 + other) as u64;
                jobs.push(Job {
                    name: (*name).to_owned(),
                    workloads: vec![(*workload).to_owned()],
                    kind: *kind,
                    seed,
                });
            }
        }
    }
    let seeds = seeds();
    println!(
        "random workloads: BUTTERFS_SEEDS={}..{}",
        seeds.start, seeds.end
    );
    for seed in seeds {
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        jobs.push(Job {
            name: format!("random {seed}"),
            workloads: random_workloads(seed),
            kind,
            seed,
        });
    }
    if let Some(only) = only() {
        jobs.retain(|job| job.name == only);
    }
    let tally = Tally::default();
    let started = std::time::Instant::now();
    in_parallel(&jobs, states_wanted() / jobs.len(), &tally);
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    println!(
        "{} workloads, {} states ({} of distinct content, {} of two to four threads), {} states of crashes in a replay, {} judged by the kernel, {:.0} s",
        jobs.len(),
        count(&tally.states),
        count(&tally.distinct),
        count(&tally.together),
        count(&tally.in_replay),
        count(&tally.by_kernel),
        started.elapsed().as_secs_f64()
    );
    let all = count(&tally.states) + count(&tally.in_replay);
    assert!(all * 10 >= states_wanted() * 8, "only {all} states");
}

/// A device that fails while several threads work. Each operation that failed
/// was either done or not, and nothing that was acknowledged before is lost.
#[test]
fn a_failing_device_takes_nothing_from_several_threads() {
    let tally = Tally::default();
    let (mut failed, all) = (0, seeds().step_by(3));
    for seed in all.clone() {
        let mut random = Random::new(seed);
        let kind = KINDS[(seed % KINDS.len() as u64) as usize];
        let base = world::blank(kind);
        let faulty = Arc::new(FaultDevice::new(Arc::new(base.snapshot()), seed));
        let world = World::on(kind, base, faulty.clone());
        // Reads are few: nodes are in memory.
        let (operation, after) = match random.below(5) {
            0 => (Operation::Read, random.below(10)),
            1 | 2 => (Operation::Flush, random.below(30)),
            _ => (Operation::Write, random.below(100)),
        };
        let workloads: Vec<String> = (0..3)
            .map(|number| random_workload(seed * 8 + number as u64, &own_dir(number)))
            .collect();
        let fault = Fault::Fail(operation, When::After(after));
        let (base, actors, events) =
            run_in(world, &workloads, OnError::End, || faulty.inject(fault));
        failed += usize::from(faulty.pending().is_empty());
        let judge = Judge {
            replays_every: 24,
            actors: &actors,
            kind,
            tally: &tally,
        };
        let mut inner = Random::new(seed + 1);
        states::visit(&base, &events, &mut random, 40, &mut |state| {
            if let Err(reason) = judge.state(&state, &mut inner) {
                panic!(
                    "seed {seed} on {kind:?}, {operation:?} failed after {after}, crash at event {} \
                     with {}:\n{reason}\n{}",
                    state.time,
                    state.what,
                    workloads.join("\nbeside: ")
                );
            }
        });
    }
    let states = tally.states.load(Ordering::Relaxed);
    let all = all.count();
    println!("{failed} of {all} failed, {states} states");
    assert!(failed * 4 > all, "only {failed} failed");
}

/// The invariant must notice a write to what is committed.
#[test]
fn a_write_to_a_committed_block_is_condemned() {
    let mut world = World::new(KINDS[0]);
    world.run("create a; write a 0 50000; sync; write a 0 50000; sync");
    let (base, _, mut events) = world.crash();
    assert_eq!(invariant::hold(&base, &events, Watch::All), Ok(()));
    // The same write once more, after its block is committed.
    let first = events
        .iter()
        .position(
            |event| matches!(&event.action, Action::Write { data, .. } if data.len() > 40_000),
        )
        .expect("the data are written");
    let again = events[first].clone();
    let commit = events
        .iter()
        .position(|event| matches!(&event.action, Action::Write { offset, .. } if *offset == superblock::COPIES[0]))
        .expect("a commit");
    assert!(commit > first);
    events.insert(commit + 1, again);
    assert!(invariant::hold(&base, &events, Watch::All).is_err());
}

/// The judge must notice what goes wrong without flushes.
#[test]
fn a_store_that_does_not_flush_is_condemned() {
    let kind = Kind {
        options: "nobarrier",
        ..KINDS[0]
    };
    let mut world = World::new(kind);
    world.run("create a; write a 0 5000; sync; append a 5000; fsync a; append a 5000; fsync a");
    let (base, model, events) = world.crash();
    let tally = Tally::default();
    let judge = Judge {
        replays_every: if only().is_some() { 1 } else { 24 },
        actors: &[Actor::alone(model)],
        kind,
        tally: &tally,
    };
    let mut random = Random::new(1);
    let mut inner = Random::new(2);
    let mut condemned = 0;
    states::visit(&base, &events, &mut random, 200, &mut |state| {
        condemned += usize::from(judge.state(&state, &mut inner).is_err());
    });
    assert!(condemned > 0, "no state was condemned");
}
