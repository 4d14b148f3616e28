//! Runs a plan: block by block, pass by pass, into a database of results.
//!
//! Owns devices, mounts, processes and limits during a run, and removes them
//! all at its end, however it ends (see [`undo`]). A pass is stored as a whole.
//! A run that was stopped continues with the first pass that is not stored.

mod cell;
mod command;
pub(crate) mod device;
mod effective;
mod ground;
mod integrity;
mod manifest;
pub mod memory_cap;
mod meter;
mod mounted;
mod mounts;
mod open_loop;
mod process;
mod tiny;
pub mod undo;

pub use process::Process;
pub use tiny::{Nothing, Tiny};

use crate::catalogue::Catalogue;
use crate::declaration::show_size;
use crate::experiment::Experiment;
use crate::filesystem::FileSystems;
use crate::machine::{Machine, version};
use crate::model::{CellRecord, Outcome, Run};
use crate::plan::{Cell, Choice, Devices, Plan, plan};
use crate::results::{Pass, Results};
use crate::wakeup::WakeUp;
use cell::{Bench, Turn, now};
use device::Device;
use mounted::Folders;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use undo::{Made, Undo};

/// What is to be run, and where its results go.
#[derive(Clone, Debug)]
pub struct Job {
    /// Database of results.
    pub results: PathBuf,
    /// Name of the run in it.
    pub name: String,
    /// The program `butterfs`, with which ButterFS is mounted.
    pub butterfs: PathBuf,
}

/// What happens, for whoever watches.
#[derive(Debug)]
pub enum Event<'a> {
    /// Something that takes a while begins.
    Begins(String),
    /// A pass begins.
    Pass {
        /// Its number, from 1.
        number: usize,
        /// How many there are.
        of: usize,
        /// Block, from 1.
        block: u32,
        /// The cell.
        cell: &'a Cell,
        /// Time that is left, as far as it is known.
        left: Duration,
    },
    /// A pass is in the results.
    Done(&'a CellRecord),
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All passes are in the results.
    Complete,
    /// Somebody stopped it; `resume` continues it.
    Stopped,
}

/// Facts that `resume` needs.
const TOPIC: &str = "run";
const CHOICE: &str = "choice";
const FILES: &str = "file systems";

/// Everything that a run needs to know, beside its plan.
pub struct Lab<'a> {
    /// File systems.
    pub file_systems: &'a FileSystems,
    /// Files of file systems that somebody gave, with their texts.
    pub given: &'a [(String, String)],
    /// Workloads.
    pub workloads: &'a Catalogue,
    /// This machine.
    pub machine: &'a Machine,
    /// Somebody wants it to stop.
    pub cancel: &'a AtomicBool,
}

/// A run in a database, with its plan and what made it.
#[derive(Debug)]
pub struct Stopped {
    /// The run.
    pub run: Run,
    /// How it is run.
    pub choice: Choice,
    /// Files of file systems that were given.
    pub given: Vec<(String, String)>,
}

/// A run that was stopped.
///
/// # Errors
/// There is none of the name, or it was not made by this program.
pub fn stopped(results: &Path, name: Option<&str>) -> Result<Stopped, String> {
    if !results.exists() {
        return Err(format!("there is no {}", results.display()));
    }
    let results = Results::open(results).map_err(|error| error.to_string())?;
    let names = results.runs().map_err(|error| error.to_string())?;
    let name = match name {
        Some(name) => name,
        None => names.last().ok_or("it has no run")?,
    };
    let run = results.run(name).map_err(|error| error.to_string())?;
    let fact = |topic: &str, name: &str| run.manifest.facts.get(topic)?.get(name).cloned();
    let choice = fact(TOPIC, CHOICE).ok_or("the run does not say how it was made")?;
    let choice = serde_json::from_str(&choice).map_err(|error| format!("its choice: {error}"))?;
    let given = run.manifest.facts.get(FILES).cloned().unwrap_or_default();
    Ok(Stopped {
        choice,
        given: given.into_iter().collect(),
        run,
    })
}

/// A lock that lasts as long as the process, so that no other process works on
/// these results.
fn claim(results: &Path) -> Result<File, String> {
    let path = beside(results, "lock");
    let at = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let file = File::create(&path).map_err(|error| at(&error))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
        rustix::io::Errno::WOULDBLOCK => {
            format!("a run into {} is under way", results.display())
        }
        error => at(&error),
    })?;
    Ok(file)
}

fn beside(results: &Path, what: &str) -> PathBuf {
    let mut name = results.as_os_str().to_owned();
    name.push(format!(".{what}"));
    name.into()
}

impl Lab<'_> {
    /// Runs a plan as a new run.
    ///
    /// # Errors
    /// Why it cannot be run, or failed as a whole. What goes wrong in single
    /// cells is in the results.
    pub fn run(
        &self,
        plan: &Plan,
        choice: &Choice,
        job: &Job,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Ended, String> {
        if !plan.problems.is_empty() {
            return Err(plan.problems.join("; "));
        }
        let lock = claim(&job.results)?;
        let mut undo = Undo::begin(&beside(&job.results, "made"))?;
        let mut results = Results::open(&job.results).map_err(|error| error.to_string())?;
        if results.run(&job.name).is_ok() {
            return Err(format!(
                "{} has a run {} already; --name gives this one another name",
                job.results.display(),
                job.name
            ));
        }
        let mut manifest =
            manifest::manifest(plan, self.machine, self.file_systems, self.workloads);
        let text = serde_json::to_string(choice).map_err(|error| error.to_string())?;
        let own = manifest.facts.entry(TOPIC.to_owned()).or_default();
        own.insert(CHOICE.to_owned(), text);
        own.insert("scale".to_owned(), plan.scale.name.clone());
        if !self.given.is_empty() {
            manifest
                .facts
                .insert(FILES.to_owned(), self.given.iter().cloned().collect());
        }
        let wake_up = WakeUp::measure();
        watch(Event::Begins(format!("waking a processor takes {wake_up}")));
        watch(Event::Begins("measuring the idle machine".to_owned()));
        let idle = meter::Idle::measure(Duration::from_millis(1500));
        let ground = self.break_ground(plan, &mut undo, watch)?;
        manifest::of_devices(plan, &ground.devices, &mut manifest);
        let harness = manifest.facts.entry("harness".to_owned()).or_default();
        let rest = format!(
            "{:.3} CPU s/s, {:.3} of them by the kernel's threads{}",
            idle.machine,
            idle.kernel,
            if idle.is_quiet() {
                ""
            } else {
                "; the machine has other work"
            }
        );
        harness.insert("idle machine".to_owned(), rest);
        harness.insert("program".to_owned(), version(&job.butterfs));
        let bench = self.bench(plan, &ground, job, idle);
        harness.extend(overhead(&bench, &mut undo)?);
        results
            .add_run(&Run {
                name: job.name.clone(),
                experiment: plan.experiment.text.clone(),
                seed: plan.seed,
                blocks: u32::try_from(plan.blocks.len()).unwrap_or(u32::MAX),
                started: now(),
                manifest,
            })
            .map_err(|error| error.to_string())?;
        let ended = passes(&bench, &mut results, &job.name, &mut undo, watch)?;
        undo.to(0)?;
        drop(lock);
        let _ = fs::remove_file(beside(&job.results, "lock"));
        Ok(ended)
    }

    /// Goes on with a run that was stopped.
    ///
    /// # Errors
    /// As [`Lab::run`].
    pub fn resume(
        &self,
        stopped: &Stopped,
        job: &Job,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<Ended, String> {
        let lock = claim(&job.results)?;
        let journal = beside(&job.results, "made");
        let left = Undo::left(&journal)?.len();
        if left > 0 {
            watch(Event::Begins(format!(
                "taking away {left} things that the stopped run left"
            )));
        }
        let mut undo = Undo::begin(&journal)?;
        let run = &stopped.run;
        let experiment = Experiment::parse("the run's experiment", &run.experiment)
            .map_err(|mistake| mistake.to_string())?;
        let mut choice = stopped.choice.clone();
        choice.seed = Some(run.seed);
        let plan = plan(
            &experiment,
            &choice,
            self.file_systems,
            self.workloads,
            self.machine,
        )
        .map_err(|mistake| mistake.to_string())?;
        if !plan.problems.is_empty() {
            return Err(plan.problems.join("; "));
        }
        let mut results = Results::open(&job.results).map_err(|error| error.to_string())?;
        watch(Event::Begins("measuring the idle machine".to_owned()));
        let idle = meter::Idle::measure(Duration::from_millis(1500));
        let ground = self.break_ground(&plan, &mut undo, watch)?;
        let bench = self.bench(&plan, &ground, job, idle);
        let ended = passes(&bench, &mut results, &run.name, &mut undo, watch)?;
        undo.to(0)?;
        drop(lock);
        let _ = fs::remove_file(beside(&job.results, "lock"));
        Ok(ended)
    }

    fn bench<'a>(
        &'a self,
        plan: &'a Plan,
        ground: &'a BrokenGround,
        job: &'a Job,
        idle: meter::Idle,
    ) -> Bench<'a> {
        Bench {
            plan,
            file_systems: self.file_systems,
            workloads: self.workloads,
            machine: self.machine,
            devices: &ground.devices,
            folders: &ground.folders,
            butterfs: &job.butterfs,
            idle,
            cancel: self.cancel,
        }
    }

    /// Makes directories and devices.
    fn break_ground(
        &self,
        plan: &Plan,
        undo: &mut Undo,
        watch: &mut dyn FnMut(Event<'_>),
    ) -> Result<BrokenGround, String> {
        let parent = match &plan.devices {
            Devices::Files(path) => path.clone(),
            Devices::Blocks(_) => "/var/tmp".into(),
        };
        let parent = fs::canonicalize(&parent).map_err(|e| format!("{}: {e}", parent.display()))?;
        let top = parent.join(format!("butterfs-lab-{}", std::process::id()));
        if top.exists() {
            return Err(format!("{} is there already", top.display()));
        }
        undo.will_make(Made::Directory(top.clone()))?;
        let folders = Folders {
            mount: top.join("mount"),
            under: top.join("under"),
            links: top.join("links"),
            scratch: top.join("scratch"),
            top,
        };
        for folder in [
            &folders.mount,
            &folders.under,
            &folders.links,
            &folders.scratch,
        ] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let mut devices = Vec::new();
        for number in 0..plan.device_count() {
            if self.cancel.load(Ordering::Relaxed) {
                return Err("stopped".to_owned());
            }
            let device = match &plan.devices {
                Devices::Blocks(paths) => Device {
                    path: paths[number].clone(),
                    file: None,
                },
                Devices::Files(_) => {
                    let size = plan.scale.device_size;
                    watch(Event::Begins(format!(
                        "writing a device of {}",
                        show_size(size)
                    )));
                    let file = folders.top.join(format!("device{number}"));
                    Device::make(&file, size, undo, plan.seed + number as u64)?
                }
            };
            let link = folders.links.join(format!("device{number}"));
            std::os::unix::fs::symlink(&device.path, &link)
                .map_err(|e| format!("{}: {e}", link.display()))?;
            devices.push(device);
        }
        Ok(BrokenGround { folders, devices })
    }
}

struct BrokenGround {
    folders: Folders,
    devices: Vec<Device>,
}

/// What the harness itself costs: passes over a workload that does nothing, on
/// the control's file system.
fn overhead(bench: &Bench<'_>, undo: &mut Undo) -> Result<Vec<(String, String)>, String> {
    let able = |cell: &&Cell| cell.lack.is_none();
    let cells = &bench.plan.cells;
    let control = cells.iter().find(|cell| cell.control).filter(able);
    let Some(control) = control.or_else(|| cells.iter().find(able)) else {
        return Ok(Vec::new());
    };
    let mut nothing = control.clone();
    "nothing".clone_into(&mut nothing.workload);
    nothing.parameters.clear();
    nothing.cache = crate::plan::Cache::Warm;
    let turn = Turn { block: 0, place: 0 };
    let Some(record) = bench.pass(&nothing, turn, undo)? else {
        return Ok(Vec::new());
    };
    let metric = |name: &str| {
        let found = record.metrics.iter().find(|metric| metric.name == name);
        found.map_or("not known".to_owned(), |metric| {
            format!("{:.3} {}", metric.value, metric.unit)
        })
    };
    Ok(vec![
        (
            "a pass that does nothing".to_owned(),
            match &record.outcome {
                Outcome::Done => format!("{:.2} s on {}", record.duration, nothing.file_system),
                Outcome::Void(why) | Outcome::Failed(why) | Outcome::Unavailable(why) => {
                    why.clone()
                }
            },
        ),
        ("CPU charged to nothing".to_owned(), metric("CPU")),
    ])
}

fn passes(
    bench: &Bench<'_>,
    results: &mut Results,
    name: &str,
    undo: &mut Undo,
    watch: &mut dyn FnMut(Event<'_>),
) -> Result<Ended, String> {
    let there = results.passes(name).map_err(|error| error.to_string())?;
    let plan = bench.plan;
    let mut waiting = Vec::new();
    for (block, order) in plan.blocks.iter().enumerate() {
        for (place, &index) in order.iter().enumerate() {
            let cell = &plan.cells[index];
            let block = u32::try_from(block).unwrap_or(u32::MAX);
            let pass = Pass {
                block,
                experiment: plan.experiment.name.clone(),
                cell: cell.key.clone(),
            };
            if !there.contains(&pass) {
                let place = u32::try_from(place).unwrap_or(u32::MAX);
                waiting.push((cell, Turn { block, place }));
            }
        }
    }
    let guess = |cell: &Cell| (cell.demand.time + Duration::from_secs(4)).as_secs_f64();
    let able: Vec<&Cell> = waiting
        .iter()
        .map(|(cell, _)| *cell)
        .filter(|c| c.lack.is_none())
        .collect();
    let of = able.len();
    let mut left: f64 = able.iter().map(|cell| guess(cell)).sum();
    // How long passes take, compared with the estimate.
    let (mut took, mut guessed) = (0.0, 0.0);
    let mut number = 0;
    for (cell, turn) in waiting {
        if bench.cancel.load(Ordering::Relaxed) {
            return Ok(Ended::Stopped);
        }
        if cell.lack.is_none() {
            number += 1;
            let factor = if guessed > 0.0 { took / guessed } else { 1.0 };
            watch(Event::Pass {
                number,
                of,
                block: turn.block + 1,
                cell,
                left: Duration::from_secs_f64((left * factor).max(0.0)),
            });
        }
        let begun = Instant::now();
        let resolved = open_loop::resolve(cell, results, name)?;
        let Some(record) = bench.pass(&resolved, turn, undo)? else {
            return Ok(Ended::Stopped);
        };
        if cell.lack.is_none() {
            took += begun.elapsed().as_secs_f64();
            guessed += guess(cell);
            left -= guess(cell);
        }
        results
            .add_cell(name, &record)
            .map_err(|error| error.to_string())?;
        watch(Event::Done(&record));
    }
    Ok(Ended::Complete)
}
