//! ButterFS beside kernel Btrfs: the same steps through the library, over FUSE
//! and in the kernel, in one run. Needs root.
//!
//! `butterfs-benches` measures every row; its options:
//!
//! ```text
//! quick             rows of metadata only, 3 repeats
//! durable           rows that wait for the device, and cold reads; ext4 and
//!                   XFS too
//! on=DEVICE         loop (the default), disk, delayed:WRITE:FLUSH in
//!                   microseconds, or memory; see medium.rs
//! seconds=N         how long steps run that repeat one thing, default 1
//! repeats=N         default 5
//! files=N mib=N     files of a step, MiB of the large file
//! transports=A,B    `butterfs mount -o transport=` (default uring,dev);
//!                   what the mount does not take is left out; other
//!                   options may follow: dev+writeback
//! wake=STATES       halting,polling: mounts with either; default as it is
//! json=FILE         where the figures go
//! against=FILE      figures to compare with
//! ```
//!
//! `butterfs-benches open [FILES]` measures the opening of a 1 TiB volume that
//! holds none, a tenth, and all of FILES (default 10000000). `butterfs-benches
//! fsync [SECONDS [DEVICE]]` measures for how long a second stays as good as
//! the others while several threads make data durable, on `loop` or another
//! DEVICE.
//! `butterfs-benches locks [MILLISECONDS]` measures what threads cost each
//! other in the library. `butterfs-benches scale [full] [NAMES]` measures what
//! operations cost on volumes a decade apart, `butterfs-benches small [FILES]`
//! many small files, `butterfs-benches tools [REPEATS]` scrub, balance and the
//! replacement and removal of devices, `butterfs-benches images [REPEATS]` the
//! image of a tree, `butterfs-benches stripes` several devices of a declared
//! rate. `butterfs-benches undo` removes what a killed run left.

mod fsync;
mod images;
mod locks;
mod medium;
mod open;
mod report;
mod scale;
mod small;
mod stripes;
mod subject;
mod suite;
mod tools;
mod volume;

use butterfs_lab::run::undo::{Made, Undo};
use butterfs_lab::wakeup::{self, Wake, WakeUp};
use medium::{Devices, KernelFileSystem, Medium};
use report::{Column, Run};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};
use subject::{Kind, NullServer, Subject};
use suite::{Rows, Scale};

/// What a run made and changed, noted for the next run if this one is killed.
const JOURNAL: &str = "/var/tmp/butterfs-bench.made";

fn run(program: &str, args: &[&str]) {
    let status = Command::new(program).args(args).status().unwrap();
    assert!(status.success(), "{program} {args:?}: {status}");
}

/// CPU seconds of the whole machine: what /proc/stat counts as busy, and what
/// idle processors polled.
fn busy_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<f64> = stat
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap())
        .collect();
    let idle = fields[3] + fields[4];
    (fields.iter().take(8).sum::<f64>() - idle) / 100.0 + wakeup::polled()
}

/// A MiB that does not compress.
fn noise() -> Vec<u8> {
    let mut seed = 9_u64;
    (0..1 << 20)
        .map(|_| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(7);
            (seed >> 56) as u8
        })
        .collect()
}

/// The tool that is measured.
fn program() -> String {
    std::env::var("BUTTERFS").unwrap_or_else(|_| "butterfs".into())
}

fn peak_memory_mib(process: &str) -> f64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM"))
        .unwrap();
    let kib: f64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024.0
}

/// What the words of the command line ask for.
struct Choice {
    medium: Medium,
    scale: Scale,
    repeats: usize,
    transports: Vec<String>,
    wakes: Vec<Option<Wake>>,
    json: Option<PathBuf>,
    against: Option<PathBuf>,
}

impl Choice {
    fn parse(words: &[String]) -> Result<Self, String> {
        let named = words.iter().find_map(|word| match word.as_str() {
            "quick" => Some(Rows::Quick),
            "durable" => Some(Rows::Durable),
            _ => None,
        });
        let rows = named.unwrap_or(Rows::All);
        let mut choice = Self {
            medium: Medium::Loop,
            scale: Scale {
                rows,
                files: 6000,
                mib: 256,
                time: Duration::from_secs(1),
                tree: PathBuf::new(),
                tree_files: 3000,
            },
            repeats: if rows == Rows::Quick { 3 } else { 5 },
            transports: vec!["uring".to_owned(), "dev".to_owned()],
            wakes: vec![None],
            json: None,
            against: None,
        };
        let options = words
            .iter()
            .filter(|word| *word != "quick" && *word != "durable");
        for word in options {
            let (name, value) = word.split_once('=').ok_or(format!("what is {word}?"))?;
            let number = || match value.parse() {
                Ok(number) if number > 0 => Ok(number),
                _ => Err(format!("{name} is a number, not {value}")),
            };
            match name {
                "repeats" => choice.repeats = number()?,
                "seconds" => choice.scale.time = Duration::from_secs(number()? as u64),
                "on" => {
                    choice.medium = Medium::parse(value).ok_or_else(|| {
                        format!("on is memory, loop, disk or delayed:WRITE:FLUSH, not {value}")
                    })?;
                }
                "files" => choice.scale.files = number()?,
                "mib" => choice.scale.mib = number()?,
                "transports" => {
                    choice.transports = value.split(',').map(str::to_owned).collect();
                }
                "wake" => {
                    let states = value.split(',').map(Wake::parse);
                    if !states.clone().all(|state| state.is_some()) {
                        return Err(format!("wake is halting or polling, not {value}"));
                    }
                    choice.wakes = states.collect();
                }
                "json" => choice.json = Some(value.into()),
                "against" => choice.against = Some(value.into()),
                _ => return Err(format!("there is no option {name}")),
            }
        }
        Ok(choice)
    }
}

/// Where a run works.
struct Ground {
    devices: Devices,
    point: PathBuf,
    program: String,
}

impl Ground {
    /// Makes it in a directory of `base`.
    fn prepare(base: &Path, medium: Medium, undo: &mut Undo) -> Result<Self, String> {
        let work = base.join(format!("butterfs-bench-{}", std::process::id()));
        undo.will_make(Made::Directory(work.clone()))?;
        let point = work.join("mnt");
        fs::create_dir_all(&point).map_err(|error| format!("{}: {error}", point.display()))?;
        let devices = Devices::make(medium, &work, undo)?;
        let place = point.to_str().unwrap_or_default().to_owned();
        undo.will_make(Made::Mount {
            directory: point.clone(),
            unmount: vec![vec!["umount".to_owned(), place]],
        })?;
        Ok(Self {
            devices,
            point,
            program: program(),
        })
    }

    fn subject(&self, name: &str, kind: Kind, wake: Option<Wake>) -> Subject {
        let state = wake.map(Wake::name);
        Subject {
            name: state.map_or(name.to_owned(), |state| format!("{name}, {state}")),
            kind,
            wake,
            device: self.devices.shared.clone(),
            point: self.point.clone(),
            program: self.program.clone(),
        }
    }

    fn kernel(&self, system: KernelFileSystem) -> Subject {
        self.subject(system.name(), Kind::Kernel(system), None)
    }

    /// The transports that a mount takes; "" if it has no choice.
    fn transports(&self, wanted: &[String]) -> Vec<String> {
        let (device, point) = (&self.devices.shared, &self.point);
        let taken = |option: &String| {
            let mut mount = Command::new(&self.program);
            mount.args(["mount", "-o", option]).arg(device).arg(point);
            let output = mount.output().unwrap();
            if output.status.success() {
                run(&self.program, &["umount", point.to_str().unwrap()]);
            } else {
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("left out: {option}: {}", said.trim());
            }
            output.status.success()
        };
        let options = wanted
            .iter()
            .map(|one| format!("transport={}", one.replace('+', ",")));
        let mut found: Vec<String> = options.filter(taken).collect();
        if found.is_empty() {
            found.push(String::new());
        }
        found
    }

    fn subjects(&self, choice: &Choice) -> Vec<Subject> {
        let mut all = vec![self.kernel(KernelFileSystem::Btrfs)];
        if choice.scale.rows == Rows::Durable {
            let others = [KernelFileSystem::Ext4, KernelFileSystem::Xfs];
            all.extend(others.map(|system| self.kernel(system)));
        }
        let on_file = |mut subject: Subject, file: &PathBuf| {
            subject.name += ", file";
            subject.device.clone_from(file);
            subject
        };
        let file = self.devices.file.as_ref();
        let library = || self.subject("library", Kind::Library, None);
        all.push(library());
        all.extend(file.map(|file| on_file(library(), file)));
        all[0].fresh();
        let transports = self.transports(&choice.transports);
        for wake in &choice.wakes {
            for option in &transports {
                let name = match option.strip_prefix("transport=") {
                    Some(transport) => format!("FUSE, {transport}"),
                    None => "FUSE".to_owned(),
                };
                let mount = || self.subject(&name, Kind::Fuse(option.clone()), *wake);
                all.push(mount());
                all.extend(file.map(|file| on_file(mount(), file)));
            }
            if choice.scale.rows == Rows::Durable {
                continue;
            }
            match NullServer::start(&self.point) {
                Some(null) => {
                    let kind = Kind::Null(Mutex::new(null));
                    all.push(self.subject("null server", kind, *wake));
                }
                None => eprintln!("left out: the null server, which is not built"),
            }
        }
        all
    }
}

/// What the machine does without us, because figures of a busy machine mean
/// nothing.
fn other_work() -> String {
    let (before, start) = (busy_seconds(), Instant::now());
    std::thread::sleep(Duration::from_secs(1));
    let busy = (busy_seconds() - before) / start.elapsed().as_secs_f64();
    if busy > 0.1 {
        eprintln!("the machine has other work: {busy:.2} CPU s/s; the figures will mean little");
    }
    format!("{busy:.2} CPU s/s")
}

/// Every subject in turn, again and again, so that disturbances of the machine
/// meet all of them.
fn measure(choice: &Choice, ground: &Ground, undo: &mut Undo) -> Result<Run, String> {
    let other_work = other_work();
    let columns = ground.subjects(choice).into_iter().map(|subject| {
        let column = Column {
            name: subject.name.clone(),
            wakes: subject.wakes(),
            wake_up: WakeUp::measure(),
            repeats: Vec::new(),
            peak: None,
        };
        (subject, column)
    });
    let mut columns: Vec<(Subject, Column)> = columns.collect();
    for repeat in 1..=choice.repeats {
        for (subject, column) in &mut columns {
            eprintln!("{}, {repeat} of {}", subject.name, choice.repeats);
            let height = undo.height();
            if let Some(wake) = subject.wake {
                undo.will_make(Made::Setting {
                    path: wakeup::SETTING.into(),
                    value: fs::read_to_string(wakeup::SETTING).map_err(|e| e.to_string())?,
                })?;
                wake.set()?;
            }
            if column.wakes {
                column.wake_up = WakeUp::measure();
            }
            let (samples, peak) = suite::measure(subject, &choice.scale);
            undo.to(height)?;
            column.repeats.push(samples);
            column.peak = column.peak.into_iter().chain(peak).reduce(f64::max);
        }
    }
    let library = peak_memory_mib("self");
    let facts = vec![
        (
            report::PROCESSORS,
            std::thread::available_parallelism()
                .map_or(1, usize::from)
                .to_string(),
        ),
        (
            report::KERNEL,
            fs::read_to_string("/proc/sys/kernel/osrelease")
                .unwrap_or_default()
                .trim()
                .to_owned(),
        ),
        (report::VOLUMES, choice.medium.described()),
        ("other work of the machine before the run", other_work),
        ("repeats", choice.repeats.to_string()),
        (report::FILES, choice.scale.files.to_string()),
        (report::LARGE, format!("{} MiB", choice.scale.mib)),
        (
            "peak memory of the library's process",
            format!("{library:.0} MiB"),
        ),
    ];
    let columns = columns.into_iter().map(|(_, column)| column).collect();
    Ok(Run { columns, facts })
}

/// After this, what an earlier run left is gone, and no other run is under way.
fn undo_stack() -> Result<(File, Undo), String> {
    let path = format!("{JOURNAL}.lock");
    let lock = File::create(&path).map_err(|error| format!("{path}: {error}"))?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)
        .map_err(|error| format!("another run is under way ({path}: {error})"))?;
    Ok((lock, Undo::begin(Path::new(JOURNAL))?))
}

fn suite(base: &Path, words: &[String]) -> Result<(), String> {
    let mut choice = Choice::parse(words)?;
    if let (Some(lack), true) = (wakeup::lack(), choice.wakes != [None]) {
        return Err(format!("wake cannot be chosen: {lack}"));
    }
    let (_lock, mut undo) = undo_stack()?;
    let ground = Ground::prepare(base, choice.medium, &mut undo)?;
    choice.scale.tree = ground.point.with_file_name("tree");
    suite::grow_tree(&choice.scale.tree, choice.scale.tree_files);
    let found = measure(&choice, &ground, &mut undo)?;
    undo.to(0)?;
    println!("{}", found.markdown());
    let new = found.json();
    let old = choice.against.and_then(|path| fs::read(path).ok());
    let old = old.and_then(|text| serde_json::from_slice(&text).ok());
    println!("{}", report::compare(&old.unwrap_or_default(), &new));
    if let Some(path) = choice.json {
        let text = serde_json::to_string_pretty(&new).map_err(|error| error.to_string())?;
        fs::write(&path, text + "\n").map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Runs `measure` where volumes lie on `medium`.
fn on(base: &Path, medium: Medium, measure: impl FnOnce(&Ground)) -> Result<(), String> {
    let (_lock, mut undo) = undo_stack()?;
    let ground = Ground::prepare(base, medium, &mut undo)?;
    println!("Volumes: {}.\n", medium.described());
    measure(&ground);
    undo.to(0)
}

/// The database's shape for `seconds` on every subject.
fn fsync(ground: &Ground, seconds: u64) {
    fsync::measure(
        &[
            ground.kernel(KernelFileSystem::Btrfs),
            ground.kernel(KernelFileSystem::Ext4),
            ground.subject("FUSE", Kind::Fuse(String::new()), None),
            ground.subject("library", Kind::Library, None),
        ],
        seconds,
    );
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |default| {
        let given = arguments.get(1);
        given.map_or(default, |text| text.parse().expect("a number"))
    };
    let base = if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    };
    match arguments.first().map(String::as_str) {
        Some("fsync") => {
            let medium = arguments
                .get(2)
                .map_or(Some(Medium::Loop), |text| Medium::parse(text));
            let medium = medium.ok_or(io::Error::other("which DEVICE?"))?;
            let seconds = number(60) as u64;
            let done = on(Path::new(base), medium, |ground| fsync(ground, seconds));
            done.map_err(io::Error::other)
        }
        Some("locks") => locks::measure(Path::new(base), number(400)),
        Some("scale") => scale::measure(Path::new(base), &arguments[1..]),
        Some("open") => open::measure(Path::new(base), number(10_000_000)),
        Some("small") => {
            let files = number(100_000);
            let done = on(Path::new(base), Medium::Loop, |ground| {
                let kernel = ground.kernel(KernelFileSystem::Btrfs);
                let library = ground.subject("library", Kind::Library, None);
                small::measure(&[kernel, library], files);
            });
            done.map_err(io::Error::other)
        }
        Some("stripes") => {
            stripes::measure(Path::new(base));
            Ok(())
        }
        Some("tools") => tools::measure(Path::new(base), number(3)),
        Some("images") => images::measure(Path::new(base), number(3)),
        Some("undo") => undo_stack().map(drop).map_err(io::Error::other),
        _ => suite(Path::new(base), &arguments).map_err(io::Error::other),
    }
}
