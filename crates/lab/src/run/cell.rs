//! One pass over one cell: devices, file system, workload, checks.

use super::device::Device;
use super::effective;
use super::ground::{CellGround, WORK};
use super::integrity::{Content, content};
use super::meter::{Idle, Meter, Usage};
use super::mounted::{Folders, Mounted};
use super::open_loop;
use super::undo::{Made, Undo};
use crate::catalogue::Catalogue;
use crate::declaration::show_size;
use crate::filesystem::{FileSystem, FileSystems};
use crate::machine::Machine;
use crate::model::{Better, CellRecord, Effective, Integrity, Metric, Outcome};
use crate::plan::{Cache, Cell, Plan};
use crate::stats::Random;
use crate::wakeup::{self, WakeUp};
use crate::workload::Figures;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Everything that a pass needs.
pub(crate) struct Bench<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) file_systems: &'a FileSystems,
    pub(crate) workloads: &'a Catalogue,
    pub(crate) machine: &'a Machine,
    pub(crate) devices: &'a [Device],
    pub(crate) folders: &'a Folders,
    pub(crate) butterfs: &'a Path,
    /// CPU time that is spent while nothing is measured.
    pub(crate) idle: Idle,
    pub(crate) cancel: &'a AtomicBool,
}

/// A pass in the order of its run.
#[derive(Clone, Copy)]
pub(crate) struct Turn {
    pub(crate) block: u32,
    pub(crate) place: u32,
}

/// Seconds since the epoch.
pub(crate) fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

impl Bench<'_> {
    /// Makes a pass; `None` if it was cancelled. Whatever happens, afterwards
    /// nothing is mounted and no process is left.
    ///
    /// # Errors
    /// The machine could not be brought back to its earlier state.
    pub(crate) fn pass(
        &self,
        cell: &Cell,
        turn: Turn,
        undo: &mut Undo,
    ) -> Result<Option<CellRecord>, String> {
        let started = now();
        let begun = Instant::now();
        let mut record = CellRecord {
            experiment: self.plan.experiment.name.clone(),
            cell: cell.key.clone(),
            control: cell.control,
            default: cell.default,
            block: turn.block,
            place: turn.place,
            started,
            duration: 0.0,
            outcome: Outcome::Done,
            durability: cell.durability,
            effective: Vec::new(),
            metrics: Vec::new(),
            series: Vec::new(),
            latencies: Vec::new(),
            integrity: Vec::new(),
            marks: Vec::new(),
            workload: std::collections::BTreeMap::new(),
        };
        if let Some(lack) = &cell.lack {
            record.outcome = Outcome::Unavailable(lack.clone());
            return Ok(Some(record));
        }
        let height = undo.height();
        let result = self.measure(cell, turn, undo, &mut record);
        let undone = undo.to(height);
        record.duration = begun.elapsed().as_secs_f64();
        undone?;
        if self.cancel.load(Ordering::Relaxed) {
            return Ok(None);
        }
        record.outcome = match result {
            Err(reason) => Outcome::Failed(reason),
            Ok(()) => judge(&record),
        };
        if !matches!(record.outcome, Outcome::Done | Outcome::Void(_)) {
            // Figures of a pass that did not end mean nothing.
            record.metrics.clear();
            record.series.clear();
            record.latencies.clear();
        }
        Ok(Some(record))
    }

    fn measure(
        &self,
        cell: &Cell,
        turn: Turn,
        undo: &mut Undo,
        record: &mut CellRecord,
    ) -> Result<(), String> {
        let missing = || format!("there is no file system {}", cell.file_system);
        let file_system = self
            .file_systems
            .get(&cell.file_system)
            .ok_or_else(missing)?;
        let workload = self
            .workloads
            .get(&cell.workload)
            .ok_or_else(|| format!("there is no workload {}", cell.workload))?;
        let seed = self.seed(cell, turn);
        let devices = &self.devices[..cell.devices];
        self.prepare_devices(cell, devices, seed, &mut record.marks)?;
        self.cap(cell, undo, record)?;
        wake_as_asked(cell, undo, record)?;
        let mut mounted = self.made(cell, file_system, devices, undo)?;
        mounted.mount(undo)?;
        let work = mounted.directory().join(WORK);
        fs::create_dir(&work).map_err(|error| format!("{}: {error}", work.display()))?;
        clear(&self.folders.scratch)?;
        record.effective.extend(effective::of_mount(
            cell,
            file_system,
            devices,
            mounted.directory(),
        ));
        record.effective.extend(open_loop::effective(cell));
        if !file_system.library {
            let direct = effective::direct_io(cell, workload, mounted.directory(), devices);
            record.effective.extend(direct);
        }
        mounted.sync()?;
        let before = used(mounted.directory());
        mounted.open_library(undo)?;
        std::thread::sleep(Duration::from_secs_f64(self.plan.scale.settle));

        let mut meter = Meter::new(devices);
        meter.on(mounted.servers());
        let parts = (&mut mounted, &mut *undo, &mut meter);
        let mut ground = CellGround::new(parts, self.folders, (cell.cache, seed), self.cancel);
        let run = std::panic::AssertUnwindSafe(|| workload.run(&cell.parameters, &mut ground));
        let result = std::panic::catch_unwind(run)
            .unwrap_or_else(|_| Err(format!("the workload {} panicked", cell.workload)));
        let ended = ground.end_phase();
        let cold = std::mem::take(&mut ground.cold);
        if mounted.lost_server() {
            return Err(format!(
                "the server of {} died during the workload",
                cell.file_system
            ));
        }
        let figures = result?;
        ended?;
        let usage = meter.sum();
        mounted.close_library(undo)?;
        let taken = used(mounted.directory()).saturating_sub(before);
        record.effective.extend(cache_of(cell, &cold));
        let found = verify(&figures, &mut mounted, undo, record)?;
        record.effective.extend(effective::profile(
            cell,
            file_system.probe,
            mounted.directory(),
        ));
        record
            .effective
            .extend(effective::compression(cell, &found, taken));
        record.integrity.extend(mounted.check(true));
        mounted.unmount(undo)?;
        record.integrity.extend(mounted.check(false));
        mounted.end_daemon()?;
        self.take_figures(figures, usage, (found.bytes, taken), record);
        record.workload.insert("seed".to_owned(), seed.to_string());
        Ok(())
    }

    /// Equal for all systems of a block in one condition, so that they get
    /// equal work.
    fn seed(&self, cell: &Cell, turn: Turn) -> u64 {
        let text = cell.condition();
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3);
        let hash = text.bytes().fold(0xCBF2_9CE4_8422_2325, step);
        Random::new(self.plan.seed ^ hash ^ u64::from(turn.block).rotate_left(32)).bits()
    }

    fn prepare_devices(
        &self,
        cell: &Cell,
        devices: &[Device],
        seed: u64,
        marks: &mut Vec<String>,
    ) -> Result<(), String> {
        for device in devices {
            if device.freshen(seed)? {
                marks.push(
                    "an earlier cell discarded parts of the device; they were written anew"
                        .to_owned(),
                );
            }
            if !cell.scheduler.is_empty() {
                device.schedule(&cell.scheduler)?;
            } else if device.file.is_some() {
                // An earlier cell may have chosen another one. Kernels without
                // the setting have only one.
                let _ = device.schedule("none");
            }
        }
        if self.plan.in_memory() {
            marks.push("the device is in memory".to_owned());
        }
        if devices.iter().any(Device::compresses) {
            marks.push("the device is in memory and compresses what it holds (zram)".to_owned());
        }
        Ok(())
    }

    /// Caps memory as the scale and the cell ask for.
    fn cap(&self, cell: &Cell, undo: &mut Undo, record: &mut CellRecord) -> Result<(), String> {
        let half = (cell.demand.space / 2 + cell.demand.memory).max(96 << 20);
        let bytes = match (cell.cache, self.plan.scale.memory) {
            (Cache::Capped, Some(memory)) => half.min(memory),
            (Cache::Capped, None) => half,
            (_, Some(memory)) => memory,
            (_, None) => return Ok(()),
        };
        let requested = show_size(bytes);
        match &self.machine.cap {
            Ok(controller) => {
                let limit = controller.cap(bytes, undo)?;
                record.effective.push(Effective {
                    name: "memory".to_owned(),
                    requested,
                    effective: show_size(limit),
                    // Limits are whole pages.
                    agrees: limit.abs_diff(bytes) < 1 << 16,
                });
            }
            Err(why) => record
                .marks
                .push(format!("memory was not capped at {requested}: {why}")),
        }
        Ok(())
    }

    /// Makes the file system, with the history that the cell asks for.
    fn made<'a>(
        &self,
        cell: &Cell,
        file_system: &'a FileSystem,
        devices: &[Device],
        undo: &mut Undo,
    ) -> Result<Mounted<'a>, String>
    where
        Self: 'a,
    {
        let mut mkfs = cell.mkfs.clone();
        if !cell.profile.is_empty() {
            let option = file_system
                .profile_option
                .replace("{profile}", &cell.profile);
            mkfs = format!("{option} {mkfs}");
        }
        let mount = |file_system, mkfs, options: &str| {
            let given = (mkfs, options.to_owned(), self.butterfs.to_owned());
            Mounted::new(file_system, self.folders, devices, given)
        };
        let mut mounted = mount(file_system, mkfs, &cell.mount);
        let Some(history) = file_system.history(&cell.history) else {
            mounted.make(undo)?;
            return Ok(mounted);
        };
        let tree = self.folders.mount.join("tree");
        let size = self.plan.scale.device_size / 16;
        if let Some(through) = &history.through {
            let lack = || format!("there is no file system {through}");
            let other = self.file_systems.get(through).ok_or_else(lack)?;
            let mut first = mount(other, history.through_mkfs.clone(), "");
            first.make(undo)?;
            first.mount(undo)?;
            grow(&tree, size, self.plan.seed)?;
            first.unmount(undo)?;
        } else {
            mounted.make(undo)?;
            mounted.mount(undo)?;
            mounted.run_all(&history.before)?;
            grow(&tree, size, self.plan.seed)?;
            mounted.sync()?;
            mounted.run_all(&history.mounted)?;
            mounted.unmount(undo)?;
        }
        mounted.run_all(&history.unmounted)?;
        Ok(mounted)
    }

    fn take_figures(
        &self,
        figures: Figures,
        usage: Usage,
        (bytes, taken): (u64, u64),
        record: &mut CellRecord,
    ) {
        let mut costs = Vec::new();
        let mut cost = |name: &str, unit: &str, value: f64| {
            if value.is_finite() {
                costs.push(Metric {
                    name: name.to_owned(),
                    unit: unit.to_owned(),
                    value,
                    better: Better::Lower,
                    headline: false,
                });
            }
        };
        // Clocks have ticks, so what is left may be less than nothing.
        let kernel = (usage.kernel - self.idle.kernel * usage.time).max(0.0);
        let charged = usage.processes + usage.server + kernel + usage.polled;
        cost("CPU", "CPU s", charged);
        cost("CPU of the server", "CPU s", usage.server);
        cost("CPU of kernel threads", "CPU s", kernel);
        cost("CPU of polling", "CPU s", usage.polled);
        if self.idle.is_quiet() {
            let machine = (usage.machine - self.idle.machine * usage.time).max(0.0);
            cost("CPU of the machine", "CPU s", machine + usage.polled);
        }
        if let Some(operations) = figures.operations.filter(|count| *count > 0) {
            cost(
                "CPU per operation",
                "CPU s/operation",
                charged / operations as f64,
            );
        }
        let written = figures.written.unwrap_or(usage.asked);
        if written > 0 {
            let gib = written as f64 / f64::from(1 << 30);
            cost("CPU per GiB", "CPU s/GiB", charged / gib);
            let sectors = usage.written as f64 * 512.0;
            cost("write amplification", "ratio", sectors / written as f64);
        }
        if bytes > 0 && taken > 0 {
            cost("space amplification", "ratio", taken as f64 / bytes as f64);
        }
        record.metrics.extend(figures.metrics);
        record.metrics.extend(costs);
        record.series.extend(figures.series);
        record.latencies.extend(figures.latencies);
        record.marks.extend(figures.marks);
        record.workload.extend(figures.facts);
    }
}

/// Makes idle processors halt or poll, as the cell asks, until the pass ends.
/// Notes what waking one costs then.
fn wake_as_asked(cell: &Cell, undo: &mut Undo, record: &mut CellRecord) -> Result<(), String> {
    if let Some(wake) = cell.wake {
        undo.will_make(Made::Setting {
            path: wakeup::SETTING.into(),
            value: crate::machine::read(wakeup::SETTING),
        })?;
        wake.set()?;
    }
    let found = WakeUp::measure();
    let polls = found.poll.map(|time| time.as_nanos());
    record.effective.push(Effective {
        name: "waking a processor".to_owned(),
        requested: cell.wake.map_or("", wakeup::Wake::name).to_owned(),
        agrees: cell
            .wake
            .is_none_or(|wake| polls == Some(wake.nanoseconds().into())),
        effective: found.to_string(),
    });
    if let Some(cost) = found.cost {
        record.metrics.push(Metric {
            name: "waking a processor".to_owned(),
            unit: "s".to_owned(),
            value: cost.as_secs_f64(),
            better: Better::Neither,
            headline: false,
        });
    }
    Ok(())
}

/// The workload's own checks, and its content before unmounting and after it.
fn verify(
    figures: &Figures,
    mounted: &mut Mounted<'_>,
    undo: &mut Undo,
    record: &mut CellRecord,
) -> Result<Content, String> {
    record.integrity.extend(figures.integrity.iter().cloned());
    let work = mounted.directory().join(WORK);
    let before = content(&work, &figures.keep)?;
    mounted.unmount(undo)?;
    mounted.mount(undo)?;
    let after = content(&work, &figures.keep);
    let detail = match &after {
        Ok(after) if *after == before => {
            format!("{} files, {}", before.files, show_size(before.bytes))
        }
        Ok(after) => format!(
            "{} files with {} before, {} with {} after; the hash was {}, is {}",
            before.files,
            before.bytes,
            after.files,
            after.bytes,
            &before.hash[..12],
            &after.hash[..12]
        ),
        Err(error) => error.clone(),
    };
    record.integrity.push(Integrity {
        check: "content after a new mount".to_owned(),
        passed: after.as_ref() == Ok(&before),
        detail,
    });
    Ok(before)
}

/// Whether the reads of the phases prove a cold cache. The first of several
/// phases finds an empty file system, which the mount itself may have read
/// completely.
fn is_cold(phases: &[(String, u64)]) -> bool {
    let proving = match phases {
        [_, later @ ..] if !later.is_empty() => later,
        all => all,
    };
    !proving.is_empty() && proving.iter().all(|(_, sectors)| *sectors > 0)
}

/// What a cold cache read from the devices.
fn cache_of(cell: &Cell, cold: &[(String, u64)]) -> Option<Effective> {
    if cell.cache != Cache::Cold {
        return None;
    }
    let read: Vec<String> = cold
        .iter()
        .map(|(phase, sectors)| format!("{phase} read {}", show_size(sectors * 512)))
        .collect();
    Some(Effective {
        name: "cache".to_owned(),
        requested: "cold".to_owned(),
        agrees: is_cold(cold),
        effective: if cold.is_empty() {
            "the workload has only one phase, which reads nothing old".to_owned()
        } else {
            format!("from the device: {}", read.join(", "))
        },
    })
}

/// Whether its figures count.
fn judge(record: &CellRecord) -> Outcome {
    if let Some(bad) = record.integrity.iter().find(|check| !check.passed) {
        return Outcome::Void(format!("{}: {}", bad.check, bad.detail));
    }
    if let Some(bad) = record.effective.iter().find(|one| !one.agrees) {
        return Outcome::Void(format!(
            "{} was {:?}, not {:?}",
            bad.name, bad.effective, bad.requested
        ));
    }
    Outcome::Done
}

/// Bytes in use.
fn used(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |found| {
        found.f_blocks.saturating_sub(found.f_bfree) * found.f_frsize
    })
}

fn clear(directory: &Path) -> Result<(), String> {
    let at = |error: std::io::Error| format!("{}: {error}", directory.display());
    if directory.exists() {
        fs::remove_dir_all(directory).map_err(at)?;
    }
    fs::create_dir_all(directory).map_err(at)
}

/// A tree of files like sources, of about this many bytes.
fn grow(tree: &Path, size: u64, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut left = size;
    let mut number = 0_u64;
    while left > 0 {
        let folder: PathBuf = tree.join(format!("d{}", number / 40));
        let at = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(&folder).map_err(at)?;
        let length = 512 << random.below(9);
        let words: Vec<u8> = (0..length / 4)
            .flat_map(|_| format!("{:03} ", random.below(1000)).into_bytes())
            .collect();
        fs::write(folder.join(format!("f{number}")), &words).map_err(at)?;
        left = left.saturating_sub(words.len() as u64);
        number += 1;
    }
    Ok(())
}
