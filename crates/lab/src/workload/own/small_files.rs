//! Many small files, as in bonnie++ and fs_mark, with data that are what they
//! claim to be.

use super::super::content::{Content, Version};
use super::super::crowd::{Stop, crowd};
use super::super::files::{Caching, Files};
use super::super::measure::{Recorder, less, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use super::rate_of;
use crate::stats::Random;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Small files.
pub(in super::super) struct SmallFiles;

const PHASES: &[&str] = &[
    "sequential create",
    "sequential stat",
    "sequential read",
    "sequential delete",
    "random create",
    "random stat",
    "random read",
    "random delete",
];

struct Plan {
    files: u64,
    size: u64,
    size_most: u64,
    directories: u64,
    threads: usize,
    sync: &'static str,
    phases: Vec<&'static str>,
    compressible: u8,
}

impl Plan {
    fn new(workload: &SmallFiles, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(workload, parameters)?;
        let phases: Result<Vec<_>, String> = given
            .text("phases")
            .split(',')
            .map(|name| {
                let found = PHASES.iter().copied().find(|known| *known == name.trim());
                found.ok_or_else(|| {
                    format!("files: phases: \"{name}\" is none of {}", PHASES.join(", "))
                })
            })
            .collect();
        let size = given.bytes("size", 0, 1 << 30)?;
        let plan = Self {
            files: given.number("files", 1, 1 << 30)?,
            size,
            size_most: given.bytes("size-most", 0, 1 << 30)?.max(size),
            directories: given.number("directories", 1, 1 << 20)?,
            threads: given.count("threads", 1, 1000)?,
            sync: given.choice("sync", &["none", "each", "end"])?,
            phases: phases?,
            compressible: given.compressible()?,
        };
        let mut is_there = false;
        for phase in &plan.phases {
            let makes = phase.ends_with("create");
            if makes == is_there {
                return Err(format!(
                    "files: phases: \"{phase}\" comes when the files are {}",
                    if is_there {
                        "there already"
                    } else {
                        "not there"
                    }
                ));
            }
            is_there = !phase.ends_with("delete");
        }
        Ok(plan)
    }

    fn size_of(&self, seed: u64, file: u64) -> u64 {
        let span = usize::try_from(self.size_most - self.size).unwrap_or(usize::MAX - 1);
        let mut random = Random::new(seed ^ file.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        self.size + random.below(span + 1) as u64
    }

    fn path_of(&self, seed: u64, file: u64, round: u64) -> String {
        // Names of a fixed length that do not sort as they were made.
        let mut random = Random::new(seed ^ 0xF11E ^ file ^ (round << 40));
        let name = random.bits() >> 24;
        format!("d{}/{name:010x}-{file:08x}", file % self.directories)
    }
}

impl Workload for SmallFiles {
    fn name(&self) -> &'static str {
        "files"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("files", "20000", "files of all threads"),
            ("size", "4k", "bytes of a file at least"),
            (
                "size-most",
                "0",
                "bytes at most, drawn evenly; 0 is all alike",
            ),
            ("directories", "16", "directories that hold them"),
            ("threads", "1", "threads"),
            (
                "sync",
                "none",
                "none; each (an fsync of each file); end (the file system, in the time of create)",
            ),
            (
                "phases",
                "sequential create,sequential stat,sequential read,sequential delete,\
                 random create,random stat,random read,random delete",
                "in their order; random is another order than that of making",
            ),
            (
                "compressible",
                "50",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn is_by_files(&self) -> bool {
        true
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let bytes = plan.files * (plan.size_most.next_multiple_of(4096) + 1024);
        Ok(Demand {
            space: bytes,
            memory: plan.files * 16 + plan.threads as u64 * plan.size_most + (16 << 20),
            time: Duration::from_secs(
                2 + plan.files * plan.phases.len() as u64 / 5000
                    + if plan.sync == "each" {
                        plan.files / 500
                    } else {
                        0
                    },
            ),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let seed = ground.seed();
        let content = Content::new(seed, plan.compressible);
        let mut figures = Figures::default();
        super::facts(&mut figures, "files", seed, plan.compressible);
        let mut round = 0;
        let mut checked = 0;
        let mut wrong = Vec::new();
        let files = ground.files();
        for directory in 0..plan.directories {
            files.mkdir(&format!("d{directory}"))?;
        }
        drop(files);
        let mut phases = plan.phases.clone();
        // Content is always checked once; a phase of its own when none reads.
        let has_read = phases.iter().any(|phase| phase.ends_with("read"));
        if !has_read && !phases.iter().any(|phase| phase.ends_with("delete")) {
            phases.push("check");
        }
        for (place, phase) in phases.iter().enumerate() {
            match *phase {
                "check" => ground.next_phase_aside(phase)?,
                phase => ground.next_phase(phase)?,
            }
            if phase.ends_with("create") {
                round += 1;
            }
            let pass = Pass {
                plan: &plan,
                content,
                seed,
                round,
                phase,
                order: order(&plan, phase.starts_with("random"), seed ^ place as u64),
                wrong: Mutex::default(),
            };
            let files = ground.files();
            let start = Instant::now();
            let mut threads = crowd(ground, plan.threads, |thread, stop| {
                pass.thread(thread, files.as_ref(), start, stop)
            })?;
            if phase.ends_with("create") && plan.sync == "end" {
                let began = Instant::now();
                files.sync()?;
                let took = began.elapsed();
                figures.add(less(&format!("{phase} sync"), "s", took.as_secs_f64()));
                for thread in &mut threads {
                    thread.busy += took;
                }
            }
            let all = Recorder::merged(start, &threads);
            if phase.ends_with("read") || *phase == "check" {
                checked += all.bytes;
                wrong.extend(pass.wrong.into_inner().unwrap_or_default());
            }
            if *phase == "check" {
                continue;
            }
            figures.add(more(phase, "operations/s", rate_of(&threads)).headline());
            let latencies = all.latencies(phase);
            figures.add_percentiles(&latencies);
            figures.latencies.push(latencies);
            figures.series.extend(all.series(phase, Instant::now()));
            *figures.operations.get_or_insert(0) += all.count;
            if phase.ends_with("create") {
                *figures.written.get_or_insert(0) += all.bytes;
            }
        }
        if has_read || phases.last() == Some(&"check") {
            figures.content(checked, &wrong);
        }
        Ok(figures)
    }
}

fn order(plan: &Plan, is_random: bool, seed: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..plan.files).collect();
    if is_random {
        let mut random = Random::new(seed);
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
    }
    order
}

struct Pass<'a> {
    plan: &'a Plan,
    content: Content,
    seed: u64,
    round: u64,
    phase: &'a str,
    order: Vec<u64>,
    wrong: Mutex<Vec<String>>,
}

impl Pass<'_> {
    fn thread(
        &self,
        thread: usize,
        files: &dyn Files,
        start: Instant,
        stop: &Stop,
    ) -> Result<Recorder, String> {
        let mut recorder = Recorder::new(start);
        let mut buffer = Vec::new();
        for file in self.order.iter().skip(thread).step_by(self.plan.threads) {
            if stop.is_asked() {
                break;
            }
            self.step(*file, files, &mut recorder, &mut buffer)?;
        }
        Ok(recorder)
    }

    fn step(
        &self,
        file: u64,
        files: &dyn Files,
        recorder: &mut Recorder,
        buffer: &mut Vec<u8>,
    ) -> Result<(), String> {
        let plan = self.plan;
        let path = plan.path_of(self.seed, file, self.round);
        let size = plan.size_of(self.seed, file);
        let version = Version {
            file,
            version: self.round,
        };
        let length = usize::try_from(size).map_err(|_| "a file is too large")?;
        let kind = self.phase.rsplit(' ').next().unwrap_or(self.phase);
        match kind {
            "create" => {
                buffer.resize(length, 0);
                self.content.fill(version, 0, buffer);
                recorder.time(size, || {
                    let open = files.create(&path, Caching::Cached)?;
                    if !buffer.is_empty() {
                        open.write_at(0, buffer)?;
                    }
                    match plan.sync {
                        "each" => open.fsync(),
                        _ => Ok(()),
                    }
                })
            }
            "stat" => {
                let found = recorder.time(0, || files.stat(&path))?;
                if found == size {
                    return Ok(());
                }
                Err(format!("{path} has {found} bytes, not {size}"))
            }
            "delete" => recorder.time(0, || files.unlink(&path)),
            _ => {
                // One more than there should be, to see the end.
                buffer.resize(length + 1, 0);
                let read = recorder.time(size, || {
                    files.open(&path, Caching::Cached)?.read_at(0, buffer)
                })?;
                let differs = self.content.first_difference(version, 0, &buffer[..read]);
                if differs.is_some() || read != length {
                    let place = differs.unwrap_or(read as u64);
                    if let Ok(mut wrong) = self.wrong.lock() {
                        wrong.push(format!("{path} at {place}"));
                    }
                }
                Ok(())
            }
        }
    }
}
