//! Two sessions in a row, each of which ends badly. The second one begins from
//! what the crash of the first may have left, with copies of the superblock that
//! differ, or with writes that no flush has made durable (a program that was
//! killed). Then the power fails in the second session, too.
//!
//! `BUTTERFS_SESSION_STATES` sets the number of states, about, and so how many
//! of the seeds `BUTTERFS_SEEDS=a..b` are used.

use super::model::{Found, Model, Time};
use super::states::{self, State};
use super::world::{KINDS, Kind, World, look};
use super::{Actor, Judge, Tally, fresh_seed, random_workload, seeds};
use butterfs::{BlockDevice, MemoryDevice};
use butterfs_device::record::{Action, Event};
use butterfs_format::DeviceOffset;
use butterfs_format::superblock::{COPIES, SIZE, Superblock};
use butterfs_testkit::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// States of the first session from which a second one begins, for each seed.
const BEGINNINGS: usize = 10;
/// States of each seed, about.
const STATES: usize = 3000;

/// A session that was recorded.
struct Session {
    kind: Kind,
    base: MemoryDevice,
    model: Model,
    events: Vec<Event>,
}

/// How a second session begins.
struct Beginning {
    /// When the first session ended.
    time: Time,
    /// What the device has for certain.
    durable: MemoryDevice,
    /// Writes that no flush has made durable: the first session was killed, and
    /// the power was there all the time.
    waiting: Vec<Event>,
    what: String,
}

/// What was counted.
#[derive(Default)]
struct Counts {
    /// Second sessions.
    sessions: AtomicUsize,
    /// Those that began with copies of the superblock that differ.
    differing: AtomicUsize,
    /// Those that began after a kill.
    killed: AtomicUsize,
}

fn states_wanted() -> usize {
    std::env::var("BUTTERFS_SESSION_STATES").map_or(6000, |text| text.parse().expect("a number"))
}

/// Bytes of a device with three copies of the superblock. It takes only the
/// memory of what is written.
const LARGE: u64 = 257 << 30;

/// The kind of volume of a seed. Every third one lies on a large device.
fn kind_of(seed: u64) -> Kind {
    let kind = KINDS[(seed % KINDS.len() as u64) as usize];
    match seed.is_multiple_of(3) {
        true => Kind {
            device_bytes: LARGE,
            ..kind
        },
        false => kind,
    }
}

/// Whether the copies of the superblock are not all there, and of one commit.
fn copies_differ(device: &MemoryDevice) -> bool {
    let copy = |offset| {
        let mut bytes = vec![0; SIZE];
        device.read_at(offset, &mut bytes).expect("memory");
        let found = Superblock::parse(&bytes, offset).ok()?;
        Some((found.generation, found.log_root))
    };
    let fits = |offset: &&DeviceOffset| offset.get() + SIZE as u64 <= device.size();
    let mut mirrors = COPIES[1..].iter().filter(fits);
    let primary = copy(COPIES[0]);
    primary.is_none() || mirrors.any(|offset| copy(*offset) != primary)
}

/// A session on a blank volume. Every other one ends by closing the volume.
fn first_session(seed: u64, kind: Kind) -> Session {
    let mut world = World::new(kind);
    world.run(&random_workload(seed, ""));
    if seed.is_multiple_of(2) {
        world.volume.close().expect("closes");
        world.acknowledge_all();
    }
    let (base, model, events) = world.crash();
    Session {
        kind,
        base,
        model,
        events,
    }
}

impl Session {
    /// Some of the states that a crash may leave, most of them with copies of
    /// the superblock that differ, and some that a killed program leaves.
    fn beginnings(&self, random: &mut Random) -> Vec<Beginning> {
        let mut chosen: Vec<Beginning> = Vec::new();
        let mut plain: Vec<Beginning> = Vec::new();
        let (mut seen, mut seen_plain) = (0, 0);
        states::visit(
            &self.base,
            &self.events,
            random,
            600,
            &mut |state: State| {
                let (among, most, seen) = match copies_differ(&state.device) {
                    true => (&mut chosen, BEGINNINGS - 4, &mut seen),
                    false => (&mut plain, 2, &mut seen_plain),
                };
                *seen += 1;
                // Each of those that were seen is among the chosen ones with the
                // same chance.
                let mut place = Random::new(*seen ^ self.events.len() as u64 ^ 0x5eed);
                let at = place.below(*seen) as usize;
                let begins = || Beginning {
                    time: state.time,
                    durable: state.device.snapshot(),
                    waiting: Vec::new(),
                    what: state.what.clone(),
                };
                if among.len() < most {
                    among.push(begins());
                } else if at < most {
                    among[at] = begins();
                }
            },
        );
        chosen.append(&mut plain);
        for _ in 0..2 {
            chosen.push(self.killed(random));
        }
        chosen
    }

    /// The program is killed, mostly just after it wrote a superblock.
    fn killed(&self, random: &mut Random) -> Beginning {
        let is_superblock = |event: &Event| matches!(&event.action, Action::Write { offset, .. } if COPIES.contains(offset));
        let after: Vec<usize> = (1..=self.events.len())
            .filter(|at| is_superblock(&self.events[at - 1]))
            .collect();
        let time = match random.one_in(4) {
            true => random.below(self.events.len() as u64 + 1) as usize,
            false => *random.pick(&after),
        };
        let (durable, waiting) = states::cut(&self.base, &self.events, time);
        Beginning {
            time,
            durable,
            what: format!("killed, with {} writes under way", waiting.len()),
            waiting,
        }
    }

    fn judge_of<'j>(&self, actors: &'j [Actor], tally: &'j Tally) -> Judge<'j> {
        Judge {
            replays_every: 48,
            actors,
            kind: self.kind,
            tally,
        }
    }
}

/// What the second session does: it changes what it found, and makes more.
fn second_workload(seed: u64, found: &Found) -> String {
    let mut random = Random::new(seed);
    let mut out = Vec::new();
    // The very first commit may come before anything else is there.
    if random.one_in(2) {
        out.push("create s2first".to_owned());
        out.push("sync".to_owned());
    }
    let files = found
        .paths
        .iter()
        .filter(|(_, number)| found.files.contains_key(number));
    for (path, _) in files {
        match random.below(5) {
            0 => out.push(format!("unlink {path}")),
            1 => out.push(format!("append {path} {}", 1 + random.below(9000))),
            2 => out.push(format!("fsync {path}")),
            3 => out.push("sync".to_owned()),
            _ => {}
        }
    }
    out.push("mkdir s2".to_owned());
    let more = random_workload(seed, "s2/");
    out.extend(more.split("; ").take(26).map(str::to_owned));
    out.push("sync".to_owned());
    out.join("; ")
}

/// Runs a second session and judges what crashes in it may leave.
fn second_session(
    first: &Session,
    beginning: &Beginning,
    seed: u64,
    (tally, counts): (&Tally, &Counts),
) -> Result<(), String> {
    counts.sessions.fetch_add(1, Ordering::Relaxed);
    let all = beginning.durable.snapshot();
    for event in &beginning.waiting {
        states::keep(&all, event);
    }
    if copies_differ(&all) {
        counts.differing.fetch_add(1, Ordering::Relaxed);
    }
    if !beginning.waiting.is_empty() {
        counts.killed.fetch_add(1, Ordering::Relaxed);
    }
    let (volume, found) = look(Arc::new(all), first.kind.options)
        .map_err(|error| format!("the second session does not begin: {error}"))?;
    drop(volume);
    let firsts = [Actor::alone(first.model.clone())];
    let of_first = first.judge_of(&firsts, tally);
    of_first.judge(beginning.time, &found)?;
    let device = beginning.durable.snapshot();
    let world = World::after(first.kind, device, &beginning.waiting, Model::of(&found));
    let mut world = world.map_err(|error| format!("the second session: {error}"))?;
    let opened = world.now();
    let workload = second_workload(seed, &found);
    world
        .try_run(&workload)
        .map_err(|error| format!("the second session: {error}\n{workload}"))?;
    let (base, model, events) = world.crash();
    let seconds = [Actor::alone(model)];
    let of_second = first.judge_of(&seconds, tally);
    let mut random = Random::new(seed);
    let mut inner = Random::new(seed + 1);
    let mut failed = None;
    let budget = STATES / BEGINNINGS / 2;
    states::visit(&base, &events, &mut random, budget, &mut |state| {
        if failed.is_some() || state.time < beginning.waiting.len() {
            return;
        }
        // Before the volume is open, what the first session left may be lost.
        let is_opening = !beginning.waiting.is_empty() && state.time < opened;
        let judged = match is_opening {
            true => {
                let first = State {
                    time: beginning.time,
                    device: state.device.snapshot(),
                    what: String::new(),
                };
                of_first.state(&first, &mut inner)
            }
            false => of_second.state(&state, &mut inner),
        };
        if let Err(reason) = judged {
            let (time, what) = (state.time, &state.what);
            failed = Some(format!(
                "crash of the second session at event {time} (it opened at {opened}), {what}: \
                 {reason}\nsecond workload: {workload}"
            ));
        }
    });
    failed.map_or(Ok(()), Err)
}

/// All of one seed. Gives what is wrong with each session that failed.
fn sweep(seed: u64, tally: &Tally, counts: &Counts) -> Vec<String> {
    let kind = kind_of(seed);
    let first = first_session(seed, kind);
    let mut random = Random::new(seed);
    let mut failures = Vec::new();
    for (number, beginning) in (0..).zip(first.beginnings(&mut random)) {
        let own = seed.wrapping_mul(64) + number;
        if let Err(reason) = second_session(&first, &beginning, own, (tally, counts)) {
            failures.push(format!(
                "seed {seed} on {kind:?}, beginning {number} after a crash at event {} with {}:\n{reason}\
                 \nfirst workload: {}",
                beginning.time,
                beginning.what,
                random_workload(seed, "")
            ));
        }
    }
    failures
}

/// The seeds that are used.
fn own_seeds() -> std::ops::Range<u64> {
    let most = (states_wanted() / STATES).max(1) as u64;
    let first = match std::env::var("BUTTERFS_SEEDS") {
        Ok(_) => seeds(),
        Err(_) => fresh_seed()..u64::MAX,
    };
    first.start..first.end.min(first.start + most)
}

#[test]
fn a_second_session_survives_its_crash_too() {
    let seeds = own_seeds();
    println!("BUTTERFS_SEEDS={}..{}", seeds.start, seeds.end);
    let (tally, counts) = (Tally::default(), Counts::default());
    let started = std::time::Instant::now();
    let next = AtomicUsize::new(seeds.start as usize);
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let failures = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed) as u64;
                    if seed >= seeds.end {
                        break;
                    }
                    let failed = sweep(seed, &tally, &counts);
                    failures.lock().expect("no panic").extend(failed);
                }
            });
        }
    });
    let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
    println!(
        "{} second sessions ({} with superblocks that differ, {} after a kill), {} states, {} states of crashes in a replay, {} judged by the kernel, {:.0} s",
        count(&counts.sessions),
        count(&counts.differing),
        count(&counts.killed),
        count(&tally.states),
        count(&tally.in_replay),
        count(&tally.by_kernel),
        started.elapsed().as_secs_f64()
    );
    let failures = failures.into_inner().expect("no panic");
    assert!(
        failures.is_empty(),
        "{} of {} sessions failed; the first:\n{}",
        failures.len(),
        count(&counts.sessions),
        failures[0]
    );
    assert!(count(&counts.differing) * 3 > count(&counts.sessions));
    let expected = (seeds.end - seeds.start) as usize * STATES;
    assert!(count(&tally.states) * 2 > expected, "too few states");
}
