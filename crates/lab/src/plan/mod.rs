//! What a run will do, before anything is touched: cells, the order of each
//! block, time, space and memory.
//!
//! Owns the way from axes to cells. Equal experiments, scales and seeds give
//! equal plans, so a run that was stopped continues with the same one.

mod cells;
mod show;

pub(crate) use cells::condition_of;
pub use show::show_time;

use crate::catalogue::Catalogue;
use crate::declaration::Mistake;
use crate::experiment::{Experiment, Scale};
use crate::filesystem::FileSystems;
use crate::machine::{Machine, free_space};
use crate::model::{CellKey, Durability};
use crate::stats::{Random, least_blocks};
use crate::wakeup::Wake;
use crate::workload::{Demand, Parameters};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Where the devices of a run are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Devices {
    /// Loop devices over files in this directory.
    Files(PathBuf),
    /// These block devices. All of their content is lost.
    Blocks(Vec<PathBuf>),
}

/// How an experiment is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// Name of the scale.
    pub scale: String,
    /// Blocks, if not as the experiment says.
    pub repeats: Option<u32>,
    /// Blocks of cells on which no main conclusion rests, if not as the
    /// experiment says.
    #[serde(default)]
    pub others: Option<u32>,
    /// Seed, if not as the experiment says.
    pub seed: Option<u64>,
    /// Devices, if not as the scale says.
    pub devices: Option<Devices>,
    /// Bytes of each device, if not as the scale says.
    pub device_size: Option<u64>,
    /// Only these file systems.
    pub only: Vec<String>,
    /// Block devices whose content may be lost.
    pub i_mean_it: Vec<PathBuf>,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            scale: "small".to_owned(),
            repeats: None,
            others: None,
            seed: None,
            devices: None,
            device_size: None,
            only: Vec::new(),
            i_mean_it: Vec::new(),
        }
    }
}

impl Choice {
    /// The options of `butterfs lab run` that choose the same.
    pub fn arguments(&self) -> String {
        let mut words = vec![format!("--scale {}", self.scale)];
        let mut number = |option: &str, value: Option<u64>| {
            if let Some(value) = value {
                words.push(format!("--{option} {value}"));
            }
        };
        number("repeats", self.repeats.map(u64::from));
        number("others", self.others.map(u64::from));
        number("seed", self.seed);
        number("device-size", self.device_size);
        words.extend(self.only.iter().map(|name| format!("--only {name}")));
        match &self.devices {
            None => {}
            Some(Devices::Files(path)) => words.push(format!("--directory {}", path.display())),
            Some(Devices::Blocks(paths)) => {
                let named = paths
                    .iter()
                    .map(|path| format!("--device {}", path.display()));
                words.extend(named);
            }
        }
        words.join(" ")
    }
}

/// State of the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// As the workload leaves it.
    #[default]
    Warm,
    /// Each phase begins without anything in memory.
    Cold,
    /// Memory is capped, page cache included.
    Capped,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Its axes.
    pub key: CellKey,
    /// File system.
    pub file_system: String,
    /// Options of mkfs, without those of the profile.
    pub mkfs: String,
    /// Mount options.
    pub mount: String,
    /// Devices.
    pub devices: usize,
    /// Profile over the devices; "" for the default.
    pub profile: String,
    /// Scheduler; "" for the default.
    pub scheduler: String,
    /// State of the page cache.
    pub cache: Cache,
    /// What idle processors do; `None` for their usual behaviour.
    pub wake: Option<Wake>,
    /// What the file system went through before; "" for nothing.
    pub history: String,
    /// Workload.
    pub workload: String,
    /// Its parameters.
    pub parameters: Parameters,
    /// It is the control.
    pub control: bool,
    /// It has no options but defaults.
    pub default: bool,
    /// A main conclusion rests on it.
    pub headline: bool,
    /// What it promises.
    pub durability: Durability,
    /// Only blocks with a number below this have it.
    pub repeats: u32,
    /// Why this machine cannot run it.
    pub lack: Option<String>,
    /// Transactions arrive at this share of the slowest system's throughput, if
    /// the rate is in per cent.
    pub share: Option<f64>,
    /// What a pass needs.
    pub demand: Demand,
}

/// Parameter of workloads that can run as an open loop: the rate of arrivals.
pub(crate) const RATE: &str = "rate";

/// What a run will do.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Experiment.
    pub experiment: Experiment,
    /// Its size.
    pub scale: Scale,
    /// Where the devices are.
    pub devices: Devices,
    /// Seed of all random choices.
    pub seed: u64,
    /// All cells.
    pub cells: Vec<Cell>,
    /// For each block, places of its cells in `cells`, in the order in which
    /// they are run.
    pub blocks: Vec<Vec<usize>>,
    /// Why it cannot be run at all.
    pub problems: Vec<String>,
    /// What a reader should know before the run.
    pub notes: Vec<String>,
}

/// Time that a pass takes in addition to its workload: devices, mkfs, checks.
const OVERHEAD: Duration = Duration::from_secs(4);

/// Makes the plan.
///
/// # Errors
/// A word of the experiment that means nothing, with its line.
pub fn plan(
    experiment: &Experiment,
    choice: &Choice,
    file_systems: &FileSystems,
    workloads: &Catalogue,
    machine: &Machine,
) -> Result<Plan, Mistake> {
    let mut scale = experiment.scale(&choice.scale).cloned().ok_or_else(|| {
        let known = experiment.scales.iter().map(|scale| scale.name.as_str());
        let hint = crate::declaration::nearest(&choice.scale, known);
        Mistake {
            file: format!("{}.toml", experiment.name),
            line: 1,
            what: format!("there is no scale {}{hint}", choice.scale),
        }
    })?;
    if let Some(size) = choice.device_size {
        scale.device_size = size;
    }
    let devices = choice.devices.clone().unwrap_or_else(|| {
        Devices::Files(match scale.device {
            crate::experiment::DeviceKind::Memory => "/dev/shm".into(),
            crate::experiment::DeviceKind::File => "/var/tmp".into(),
        })
    });
    let repeats = choice
        .repeats
        .or(scale.repeats)
        .unwrap_or(experiment.repeats);
    let seed = choice.seed.unwrap_or(experiment.seed);
    let mut cells = cells::cells(&cells::Sources {
        experiment,
        scale: &scale,
        file_systems,
        workloads,
        machine,
        only: &choice.only,
    })?;
    for cell in &mut cells {
        // The run has no blocks beyond those asked for.
        cell.repeats = cell.repeats.min(repeats);
        if choice.repeats.is_some() {
            cell.repeats = repeats;
        }
        if let Some(others) = choice.others.filter(|_| !cell.headline) {
            cell.repeats = cell.repeats.min(others);
        }
    }
    let mut plan = Plan {
        blocks: blocks(&cells, repeats, seed),
        experiment: experiment.clone(),
        scale,
        devices,
        seed,
        cells,
        problems: Vec::new(),
        notes: Vec::new(),
    };
    plan.examine(machine, choice);
    Ok(plan)
}

/// The order of each block: a permutation drawn only from the seed and the
/// block's number, so that a run with more blocks has the same first ones.
fn blocks(cells: &[Cell], repeats: u32, seed: u64) -> Vec<Vec<usize>> {
    (0..repeats)
        .map(|block| {
            let mut order: Vec<usize> = (0..cells.len())
                .filter(|&index| block < cells[index].repeats)
                .collect();
            let mut random = Random::new(seed ^ (u64::from(block) + 1).wrapping_mul(0x9E37_79B9));
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last + 1));
            }
            if block == 0 {
                // A rate that is a share needs the throughput of other cells of
                // this block.
                order.sort_by_key(|&index| cells[index].share.is_some());
            }
            order
        })
        .collect()
}

impl Plan {
    /// Passes that will be run.
    pub fn passes(&self) -> usize {
        let count = |block: &Vec<usize>| {
            let able = block.iter().filter(|&&c| self.cells[c].lack.is_none());
            able.count()
        };
        self.blocks.iter().map(count).sum()
    }

    /// Time that it will take, roughly.
    pub fn time(&self) -> Duration {
        let settle = Duration::from_secs_f64(self.scale.settle);
        self.blocks
            .iter()
            .flatten()
            .map(|&cell| &self.cells[cell])
            .filter(|cell| cell.lack.is_none())
            .map(|cell| cell.demand.time + OVERHEAD + settle)
            .sum()
    }

    /// Devices that it needs at once.
    pub fn device_count(&self) -> usize {
        let able = self.cells.iter().filter(|cell| cell.lack.is_none());
        able.map(|cell| cell.devices).max().unwrap_or(1)
    }

    /// Bytes that its devices take.
    pub fn space(&self) -> u64 {
        self.scale.device_size * self.device_count() as u64
    }

    /// Bytes of memory that it needs, devices in memory included.
    pub fn memory(&self) -> u64 {
        let most = self.cells.iter().map(|cell| cell.demand.memory).max();
        most.unwrap_or(0) + if self.in_memory() { self.space() } else { 0 }
    }

    /// The devices' bytes are in memory.
    pub fn in_memory(&self) -> bool {
        match &self.devices {
            Devices::Files(path) => is_tmpfs(path),
            Devices::Blocks(_) => false,
        }
    }

    fn examine(&mut self, machine: &Machine, choice: &Choice) {
        let mut problems = Vec::new();
        let mut notes = Vec::new();
        if !machine.root {
            problems.push("it needs root: devices, mounts, caches".to_owned());
        }
        match &self.devices {
            Devices::Files(path) => match free_space(path) {
                None => problems.push(format!("there is no directory {}", path.display())),
                Some(free) if free < self.space() + (64 << 20) => problems.push(format!(
                    "{} has {} free; the devices take {} ({} of {})",
                    path.display(),
                    crate::declaration::show_size(free),
                    crate::declaration::show_size(self.space()),
                    self.device_count(),
                    crate::declaration::show_size(self.scale.device_size),
                )),
                Some(_) => {}
            },
            Devices::Blocks(paths) => {
                problems.extend(crate::run::device::refuse(paths, &choice.i_mean_it));
                if paths.len() < self.device_count() {
                    problems.push(format!(
                        "{} devices are needed, {} are given",
                        self.device_count(),
                        paths.len()
                    ));
                }
            }
        }
        if self.memory() > machine.memory_available {
            problems.push(format!(
                "it needs {} of memory; {} are free",
                crate::declaration::show_size(self.memory()),
                crate::declaration::show_size(machine.memory_available)
            ));
        }
        // A quarter is left to the file system itself.
        let size = self.scale.device_size;
        for cell in &self.cells {
            let copies = match cell.profile.as_str() {
                "dup" | "raid1" | "raid10" => 2,
                "raid1c3" => 3,
                "raid1c4" => 4,
                _ => 1,
            };
            let room = size / 4 * 3 * cell.devices as u64 / copies;
            if let Some(closed) = cell.closed_condition() {
                let mut all = self.cells.iter().filter(|other| other.lack.is_none());
                if cell.lack.is_none() && all.all(|other| other.condition() != closed) {
                    problems.push(format!(
                        "{}: no cell with {RATE} 0 tells what its rate is a share of",
                        cell.name()
                    ));
                }
            }
            if cell.lack.is_none() && cell.demand.space > room {
                problems.push(format!(
                    "{}: the workload writes {}, the file system has about {}",
                    cell.name(),
                    crate::declaration::show_size(cell.demand.space),
                    crate::declaration::show_size(room)
                ));
            }
        }
        if self.passes() == 0 {
            problems.push("this machine can run none of the cells".to_owned());
        }
        notes.extend(self.too_few_blocks());
        if let (Some(_), Err(why)) = (self.scale.memory, &machine.cap) {
            notes.push(format!("memory will not be capped: {why}"));
        }
        if self.in_memory() {
            notes.push("the devices are in memory: what a disk costs is not seen".to_owned());
        }
        self.problems = problems;
        self.notes = notes;
    }

    /// Families of comparisons with too few blocks for any verdict.
    fn too_few_blocks(&self) -> Vec<String> {
        use std::collections::BTreeMap;
        let deciding = u32::try_from(crate::stats::DECIDING_BLOCKS).unwrap_or(u32::MAX);
        // Cells that are only screened do not belong to the family of the
        // others.
        let mut families: BTreeMap<(String, bool), (usize, u32)> = BTreeMap::new();
        let most = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        for cell in self.cells.iter().filter(|cell| cell.lack.is_none()) {
            let blocks = cell.repeats.min(most);
            let family = families
                .entry((cell.condition(), blocks < deciding))
                .or_insert((0, blocks));
            family.0 += 1;
            family.1 = family.1.min(blocks);
        }
        let mut least: BTreeMap<(usize, u32), usize> = BTreeMap::new();
        for (cells, blocks) in families.into_values() {
            let comparisons = cells.saturating_sub(1);
            if comparisons > 0 && (blocks as usize) < least_blocks(comparisons) {
                *least.entry((comparisons, blocks)).or_default() += 1;
            }
        }
        least
            .into_iter()
            .map(|((comparisons, blocks), conditions)| {
                let word = if blocks < deciding { "a screening" } else { "too few" };
                format!(
                    "{blocks} blocks are {word} for {comparisons} comparisons at once (in {conditions} conditions): \
                     {} would decide",
                    least_blocks(comparisons)
                )
            })
            .collect()
    }
}

/// A directory is in memory.
fn is_tmpfs(path: &std::path::Path) -> bool {
    const TMPFS: i64 = 0x0102_1994;
    rustix::fs::statfs(path).is_ok_and(|found| found.f_type == TMPFS)
}
