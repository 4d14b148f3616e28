//! File size × record size × write, rewrite, read, reread and random access, as
//! in iozone, with data that are what they claim to be.

use super::super::content::{Content, Version};
use super::super::crowd::crowd;
use super::super::files::{Aligned, Caching};
use super::super::measure::{Recorder, more};
use super::super::parameters::Given;
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::stats::Random;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The grid.
pub(in super::super) struct Grid;

const PHASES: &[&str] = &[
    "write",
    "rewrite",
    "read",
    "reread",
    "random read",
    "random write",
];

struct Plan {
    sizes: Vec<u64>,
    records: Vec<u64>,
    phases: Vec<&'static str>,
    compressible: u8,
    caching: Caching,
    is_synced: bool,
}

impl Plan {
    fn new(grid: &Grid, parameters: &Parameters) -> Result<Self, String> {
        let given = Given::new(grid, parameters)?;
        let phases: Result<Vec<_>, String> = given
            .text("phases")
            .split(',')
            .map(|name| {
                let found = PHASES.iter().copied().find(|known| *known == name.trim());
                found.ok_or_else(|| {
                    format!("grid: phases: \"{name}\" is none of {}", PHASES.join(", "))
                })
            })
            .collect();
        let plan = Self {
            sizes: given.sizes("size", 4096, 1 << 44)?,
            records: given.sizes("record", 512, 1 << 28)?,
            phases: phases?,
            compressible: given.compressible()?,
            caching: match given.is_yes("direct")? {
                true => Caching::Direct,
                false => Caching::Cached,
            },
            is_synced: given.is_yes("fsync")?,
        };
        if plan.phases.first() != Some(&"write") {
            return Err("grid: phases must begin with write, which makes the file".to_owned());
        }
        for record in &plan.records {
            if plan.caching == Caching::Direct && record % 4096 != 0 {
                return Err(format!(
                    "grid: record = {record} is no multiple of 4096, as direct wants"
                ));
            }
            if let Some(size) = plan.sizes.iter().find(|size| *size % record != 0) {
                return Err(format!(
                    "grid: size = {size} is no multiple of record = {record}"
                ));
            }
        }
        Ok(plan)
    }
}

impl Workload for Grid {
    fn name(&self) -> &'static str {
        "grid"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            (
                "size",
                "2g",
                "bytes of the file; or several, divided by commas",
            ),
            ("record", "16m", "bytes of an operation; or several"),
            (
                "phases",
                "write,rewrite,read,reread",
                "in their order, of: write, rewrite, read, reread, random read, random write",
            ),
            (
                "fsync",
                "yes",
                "an fsync at the end of writes is part of their time",
            ),
            ("direct", "no", "O_DIRECT"),
            (
                "compressible",
                "0",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn is_by_files(&self) -> bool {
        true
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let bytes: u64 = plan.sizes.iter().sum::<u64>() * plan.records.len() as u64;
        Ok(Demand {
            space: plan.sizes.iter().copied().max().unwrap_or(0),
            memory: plan.records.iter().copied().max().unwrap_or(0) * 2 + (16 << 20),
            time: Duration::from_secs(1 + bytes / (100 << 20) * (plan.phases.len() as u64 + 1)),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let mut figures = Figures::default();
        super::facts(&mut figures, "grid", ground.seed(), plan.compressible);
        let cells: Vec<(u64, u64)> = plan
            .sizes
            .iter()
            .flat_map(|size| plan.records.iter().map(|record| (*size, *record)))
            .collect();
        for (index, (size, record)) in cells.iter().enumerate() {
            let cell = Cell {
                plan: &plan,
                name: format!("grid-{index}"),
                suffix: match cells.len() {
                    1 => String::new(),
                    _ => format!(" {} by {}", short(*size), short(*record)),
                },
                file: index as u64,
                size: *size,
                record: *record,
            };
            cell.run(ground, &mut figures)?;
            if index + 1 < cells.len() {
                ground.files().unlink(&cell.name)?;
            } else {
                figures.keep.push(PathBuf::from(&cell.name));
            }
        }
        Ok(figures)
    }
}

fn short(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{}g", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}m", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}k", bytes >> 10),
        _ => bytes.to_string(),
    }
}

struct Cell<'a> {
    plan: &'a Plan,
    name: String,
    suffix: String,
    file: u64,
    size: u64,
    record: u64,
}

impl Cell<'_> {
    fn run(&self, ground: &mut dyn Ground, figures: &mut Figures) -> Result<(), String> {
        let content = Content::new(ground.seed(), self.plan.compressible);
        let mut version = Version {
            file: self.file,
            version: 0,
        };
        for (place, phase) in self.plan.phases.iter().enumerate() {
            let name = format!("{phase}{}", self.suffix);
            ground.next_phase(&name)?;
            let is_write = phase.ends_with("write");
            if is_write && place > 0 {
                version.version += 1;
            }
            let seed = ground.seed() ^ (self.file << 8) ^ place as u64;
            let order = self.order(phase.starts_with("random"), seed);
            let start = Instant::now();
            let recorder = self.pass(ground, content, version, &order, is_write)?;
            let speed = recorder.speed();
            figures.add(more(&name, "bytes/s", speed).headline());
            let operations = more(
                &format!("{name} operations"),
                "operations/s",
                recorder.rate(),
            );
            figures.add(operations);
            let latencies = recorder.latencies(&name);
            figures.add_percentiles(&latencies);
            figures.latencies.push(latencies);
            figures
                .series
                .extend(recorder.series(&name, Instant::now()));
            *figures.operations.get_or_insert(0) += recorder.count;
            if is_write {
                *figures.written.get_or_insert(0) += self.size;
            }
            let seconds = start.elapsed().as_secs_f64();
            figures.fact(&format!("seconds of {name}"), format!("{seconds:.3}"));
        }
        ground.next_phase_aside(&format!("check{}", self.suffix))?;
        let wrong = self.check(ground, content, version)?;
        figures.content(self.size, &wrong);
        Ok(())
    }

    /// Records of the file, each once.
    fn order(&self, is_random: bool, seed: u64) -> Vec<u64> {
        let mut order: Vec<u64> = (0..self.size / self.record).collect();
        if is_random {
            let mut random = Random::new(seed);
            for last in (1..order.len()).rev() {
                order.swap(last, random.below(last + 1));
            }
        }
        order
    }

    fn pass(
        &self,
        ground: &dyn Ground,
        content: Content,
        version: Version,
        order: &[u64],
        is_write: bool,
    ) -> Result<Recorder, String> {
        let files = ground.files();
        let length = usize::try_from(self.record).map_err(|_| "a record is too large")?;
        let mut results = crowd(ground, 1, |_, stop| {
            let start = Instant::now();
            let mut recorder = Recorder::new(start);
            let mut memory = Aligned::new(length);
            let opened = Instant::now();
            let file = if is_write && version.version == 0 {
                files.create(&self.name, self.plan.caching)?
            } else {
                files.open(&self.name, self.plan.caching)?
            };
            recorder.busy += opened.elapsed();
            for record in order {
                if stop.is_asked() {
                    return Ok(recorder);
                }
                let offset = record * self.record;
                let bytes = memory.bytes();
                if is_write {
                    content.fill(version, offset, bytes);
                    recorder.time(self.record, || file.write_at(offset, bytes))?;
                } else {
                    let read = recorder.time(self.record, || file.read_at(offset, bytes))?;
                    if read != length {
                        return Err(format!(
                            "read {} at {offset}: {read} bytes of {length}",
                            self.name
                        ));
                    }
                }
            }
            let closing = Instant::now();
            if is_write && self.plan.is_synced {
                file.fsync()?;
            }
            drop(file);
            recorder.busy += closing.elapsed();
            Ok(recorder)
        })?;
        results.pop().ok_or_else(|| "nothing ran".to_owned())
    }

    fn check(
        &self,
        ground: &dyn Ground,
        content: Content,
        version: Version,
    ) -> Result<Vec<String>, String> {
        let files = ground.files();
        let mut results = crowd(ground, 1, |_, stop| {
            let mut wrong = Vec::new();
            let file = files.open(&self.name, Caching::Cached)?;
            let mut buffer = vec![0; 1 << 20];
            let mut offset = 0;
            while offset < self.size && !stop.is_asked() {
                let length = (self.size - offset).min(buffer.len() as u64);
                let part = &mut buffer[..length as usize];
                let read = file.read_at(offset, part)?;
                let differs = content.first_difference(version, offset, &part[..read]);
                if let Some(place) = differs {
                    wrong.push(format!("{} at {place}", self.name));
                } else if read < part.len() {
                    wrong.push(format!("{} ends at {}", self.name, offset + read as u64));
                }
                offset += length;
            }
            Ok(wrong)
        })?;
        Ok(results.pop().unwrap_or_default())
    }
}
