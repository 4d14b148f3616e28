//! Numbers that lie: one number of any item, header or superblock is changed
//! and the checksum made anew. Then comes a command that writes. What could be
//! read before, and was right, can be read afterwards, except for what the
//! command itself changes. Or the command is refused. Nothing panics.
//!
//! `BUTTERFS_SEEDS=a..b` runs other lies than the usual ones;
//! `BUTTERFS_COMMAND=name` runs only one command.

#[path = "sealed/base.rs"]
mod base;
#[path = "sealed/commands.rs"]
mod commands;
#[path = "sealed/counts.rs"]
mod counts;
#[path = "sealed/lie.rs"]
mod lie;
#[path = "sealed/manifest.rs"]
mod manifest;
#[path = "sealed/memory.rs"]
mod memory;

use base::{Base, SIZE, WAYS, base, given, options};
use butterfs::{Access, Error, MemoryDevice, OpenOptions, Volume};
use butterfs_device::BlockDevice;
use butterfs_fs::FsError;
use butterfs_store::{Discard, LogPolicy};
use butterfs_testkit::Random;
use commands::{ALL, Command, Touched, Work, World};
use counts::COUNTS;
use lie::{Lie, Number};
use manifest::Manifest;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many lies the usual run tells.
const SEEDS: std::ops::Range<u64> = 0..120;
/// Far above what any run takes.
const TIME_MAX: Duration = Duration::from_secs(60);

fn seeds_or(usual: std::ops::Range<u64>) -> std::ops::Range<u64> {
    let given = std::env::var("BUTTERFS_SEEDS").ok().and_then(|word| {
        let (first, last) = word.split_once("..")?;
        Some(first.parse().ok()?..last.parse().ok()?)
    });
    given.unwrap_or(usual)
}

/// Where threads of this process panicked.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // The other tests run at the same time.
        let others = [
            "commands_keep_what_they_do_not_change",
            "no_count_alone_decides",
            "memory::a_lie_with_little_memory",
        ];
        if std::thread::current()
            .name()
            .is_some_and(|name| others.contains(&name))
        {
            return usual(info);
        }
        let place = info.location().map(ToString::to_string);
        let text = format!("{} at {}", info, place.unwrap_or_default());
        PANICS.lock().expect("a list").push(text.replace('\n', " "));
    }));
}

fn take_panics() -> Vec<String> {
    std::mem::take(&mut *PANICS.lock().expect("a list"))
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The volume cannot even be read.
    Unreadable,
    /// The volume was not opened for writing.
    NotOpened,
    Refused,
    Done,
}

struct Judged {
    end: End,
    why: String,
    lost: Vec<String>,
}

impl Judged {
    const fn unreadable() -> Self {
        Self {
            end: End::Unreadable,
            why: String::new(),
            lost: Vec::new(),
        }
    }
}

/// What a user can read, who does what an error says.
fn read(devices: &[Arc<dyn BlockDevice>]) -> Result<Manifest, Error> {
    let mut options = options();
    options.store.access = Access::ReadOnly;
    let volume = match Volume::open_devices(devices.to_vec(), options.clone()) {
        Err(Error::Fs(FsError::NotReplayed(_))) => {
            options.store.log = LogPolicy::Ignore;
            Volume::open_devices(devices.to_vec(), options)?
        }
        opened => opened?,
    };
    Ok(Manifest::of(&volume))
}

/// Runs a command on `world`, then uses free space.
fn work(
    command: &Command,
    world: &mut World<'_>,
    seed: u64,
    mut options: OpenOptions,
) -> (End, String) {
    if seed.is_multiple_of(2) {
        options.store.discard = Discard::On;
    }
    let mut done = (End::Done, String::new());
    match command.work {
        Work::Closed(run) => {
            if let Err(error) = run(world) {
                done = (End::Refused, error.to_string());
            }
        }
        Work::Opening(change) => change(&mut options),
        Work::Open(_) => {}
    }
    let again = options.clone();
    let volume = match Volume::open_devices(world.devices.clone(), options) {
        Ok(volume) => volume,
        Err(error) => return (End::NotOpened, error.to_string()),
    };
    if let Work::Open(run) = command.work
        && let Err(error) = run(&volume, world)
    {
        done = (End::Refused, error.to_string());
    }
    commands::use_free_space(&volume, seed);
    if let Err(error) = volume.close()
        && done.0 == End::Done
    {
        done = (End::Refused, error.to_string());
    }
    drop(volume);
    // What the command left is believed by the next session.
    if seed.is_multiple_of(3)
        && let Ok(volume) = Volume::open_devices(world.devices.clone(), again)
    {
        commands::use_free_space(&volume, seed);
        let _ = volume.close();
    }
    done
}

fn judge(base: &Base, devices: Vec<Arc<MemoryDevice>>, command: &Command, seed: u64) -> Judged {
    let spare = || Arc::new(MemoryDevice::new(SIZE)) as Arc<dyn BlockDevice>;
    let mut world = World {
        way: base.way,
        stream: &base.stream,
        devices: given(&devices),
        spare: &spare,
    };
    let Ok(before) = read(&world.devices) else {
        return Judged::unreadable();
    };
    let (end, why) = work(command, &mut world, seed, options());
    let lost = losses(base, &before, &world.devices, command);
    Judged { end, why, lost }
}

/// What of `before` is lost.
fn losses(
    base: &Base,
    before: &Manifest,
    devices: &[Arc<dyn BlockDevice>],
    command: &Command,
) -> Vec<String> {
    match read(devices) {
        Ok(after) => after.lost(before, &base.manifest, command.touched),
        Err(error) => vec![format!("it does not open any more: {error}")],
    }
}

/// A lie about a volume.
struct Told {
    base: &'static Base,
    devices: Vec<Arc<MemoryDevice>>,
    lie: Lie,
    command: &'static Command,
}

fn tell(seed: u64, only: Option<&str>) -> Told {
    let mut random = Random::new(seed ^ 0x5ea1_ed00);
    let base = base(random.below(WAYS as u64) as usize);
    let devices: Vec<_> = base
        .devices
        .iter()
        .map(|device| Arc::new(device.snapshot()))
        .collect();
    let chosen = &ALL[random.below(ALL.len() as u64) as usize];
    Told {
        base,
        lie: lie::tell(base, &devices, &mut random),
        devices,
        command: only.map_or(chosen, named),
    }
}

/// A lie, then a command.
fn run(seed: u64, only: Option<&str>) -> (Lie, &'static Command, usize, Judged) {
    let Told {
        base,
        devices,
        lie,
        command,
    } = tell(seed, only);
    let judged = catch_unwind(AssertUnwindSafe(|| judge(base, devices, command, seed)));
    let mut judged = judged.unwrap_or_else(|_| Judged {
        end: End::Done,
        why: String::new(),
        lost: Vec::new(),
    });
    judged.lost.extend(take_panics());
    (lie, command, base.way, judged)
}

/// What a command changes is a loss if it is not said to change it.
#[test]
fn the_judge_notices_losses() {
    let base = base(0);
    for (name, what) in [
        ("write", "other bytes"),
        ("truncate", "behind the end"),
        ("rm -r", "is gone"),
        ("chmod", "other attributes"),
        ("setfattr", "another text"),
    ] {
        let command = Command {
            touched: Touched::Names(&[]),
            ..*named(name)
        };
        let devices = base.devices.iter().map(|one| Arc::new(one.snapshot()));
        let judged = judge(base, devices.collect(), &command, 1);
        let found = judged.lost.iter().any(|lost| lost.contains(what));
        assert!(found, "{name}: {:?}", judged.lost.first());
    }
}

/// Without a lie, every command does what it should and nothing is lost.
#[test]
fn commands_keep_what_they_do_not_change() {
    let mut ends = Vec::new();
    for way in 0..WAYS {
        let base = base(way);
        for (turn, command) in ALL.iter().enumerate() {
            // One way each, except for the first one.
            if way != 0 && turn % (WAYS - 1) != way - 1 {
                continue;
            }
            let devices = base.devices.iter().map(|one| Arc::new(one.snapshot()));
            let begun = Instant::now();
            let mut judged = judge(base, devices.collect(), command, turn as u64);
            let context = format!("{} on {}", command.name, base::name(way));
            println!("{context}: {:?}", begun.elapsed());
            judged.lost.truncate(5);
            assert_eq!(judged.lost, Vec::<String>::new(), "{context}");
            let needs_quotas = command.name.starts_with("quota") && !base::has_quotas(way);
            if judged.end != End::Done && !needs_quotas {
                ends.push(format!("{context}: {:?} {}", judged.end, judged.why));
            }
        }
    }
    assert_eq!(ends, Vec::<String>::new());
}

/// A command by its name.
fn named(name: &str) -> &'static Command {
    let found = ALL.iter().find(|command| command.name == name);
    found.expect("there is such a command")
}

/// Counts that lie, and the commands that would free, overwrite or remove
/// something because of them.
#[test]
fn no_count_alone_decides() {
    let mut bad = Vec::new();
    for (number, names) in COUNTS {
        let mut all = 0;
        for (turn, name) in names.iter().enumerate() {
            let way = turn % WAYS;
            let base = base(way);
            let devices = base.devices.iter().map(|one| Arc::new(one.snapshot()));
            let devices: Vec<_> = devices.collect();
            let changed = lie::change_all(base, &devices, number);
            all += changed;
            if changed == 0 {
                continue;
            }
            let mut judged = judge(base, devices, named(name), turn as u64);
            if !judged.lost.is_empty() {
                judged.lost.truncate(3);
                bad.push(format!(
                    "{name} on {}, where {}: {:?} {}: {:?}",
                    base::name(way),
                    number.what,
                    judged.end,
                    judged.why,
                    judged.lost
                ));
            }
        }
        assert!(all > 0, "no volume has what counts: {}", number.what);
    }
    assert!(bad.is_empty(), "{bad:#?}");
}

/// What our own check finds.
fn faults(devices: &[Arc<MemoryDevice>]) -> Vec<String> {
    let options = butterfs_check::Options {
        threads: 1,
        ..butterfs_check::Options::default()
    };
    let report = butterfs_check::check(given(devices), &options, &butterfs_check::NoProgress);
    let report = report.expect("it is checked");
    report.faults.iter().map(ToString::to_string).collect()
}

/// Opens a volume for writing, makes a file, and closes it.
fn session(devices: &[Arc<MemoryDevice>]) {
    let volume = Volume::open_devices(given(devices), options()).expect("it opens");
    volume.write_file("a new file", b"new").expect("a file");
    volume.close().expect("it closes");
}

/// Counts that are known to be wrong are right after a session, by our own
/// check.
#[test]
fn wrong_counts_are_corrected() {
    for way in 0..WAYS {
        let base = base(way);
        let copy = || -> Vec<_> {
            let copies = base.devices.iter().map(|one| Arc::new(one.snapshot()));
            copies.collect()
        };
        let context = base::name(way);
        let sound = copy();
        session(&sound);
        assert_eq!(faults(&sound), Vec::<String>::new(), "{context}");
        for by in [4096, 1 << 40, 0_u64.wrapping_sub(8192)] {
            let devices = copy();
            lie::change_sum(base, &devices, by);
            assert_ne!(faults(&devices), Vec::<String>::new(), "{context}: sum");
            session(&devices);
            assert_eq!(faults(&devices), Vec::<String>::new(), "{context}: sum");
        }
        let of_space = ["count nothing", "counts nothing"];
        let is_of_space = |number: &Number| of_space.iter().any(|end| number.what.ends_with(end));
        for (number, _) in COUNTS.iter().filter(|(number, _)| is_of_space(number)) {
            let devices = copy();
            lie::change_all(base, &devices, number);
            let context = format!("{context}: {}", number.what);
            assert_ne!(faults(&devices), Vec::<String>::new(), "{context}");
            session(&devices);
            assert_eq!(faults(&devices), Vec::<String>::new(), "{context}");
        }
    }
}

#[test]
fn a_lie_costs_nothing_else() {
    let only = std::env::var("BUTTERFS_COMMAND").ok();
    for way in 0..WAYS {
        base(way);
    }
    note_panics();
    let mut ends: BTreeMap<End, u64> = BTreeMap::new();
    let mut bad = Vec::new();
    let seeds = seeds_or(SEEDS);
    for seed in seeds.clone() {
        let begun = Instant::now();
        let (lie, command, way, mut judged) = run(seed, only.as_deref());
        if begun.elapsed() > TIME_MAX {
            judged.lost.push(format!("it took {:?}", begun.elapsed()));
        }
        *ends.entry(judged.end).or_default() += 1;
        if std::env::var_os("BUTTERFS_VERBOSE").is_some() {
            println!(
                "{seed}: {} {way}: {lie}: {:?} {} ({:?})",
                command.name,
                judged.end,
                judged.why,
                begun.elapsed()
            );
        }
        if !judged.lost.is_empty() {
            let lines = judged.lost.len();
            judged.lost.truncate(5);
            let text = format!(
                "seed {seed}: {} on {}: {lie}: {:?} {}: {lines} lost: {:#?}",
                command.name,
                base::name(way),
                judged.end,
                judged.why,
                judged.lost
            );
            println!("{text}");
            bad.push(text);
        }
    }
    let _ = std::panic::take_hook();
    println!(
        "{} lies: {ends:?}, {} with a loss",
        seeds.clone().count(),
        bad.len()
    );
    assert!(
        bad.is_empty(),
        "{} of {} lies cost something",
        bad.len(),
        seeds.count()
    );
}
