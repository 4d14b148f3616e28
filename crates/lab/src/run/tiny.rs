//! Two workloads that need nothing: a small one for a first look and for tests,
//! and one that does nothing and shows what the harness itself costs.

use crate::model::{Better, Integrity, Latencies, Metric, Series};
use crate::stats::Random;
use crate::workload::{Demand, Figures, Ground, Parameters, Workload};
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Does nothing.
pub struct Nothing;

impl Workload for Nothing {
    fn name(&self) -> &'static str {
        "nothing"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[]
    }

    fn demand(&self, _: &Parameters) -> Result<Demand, String> {
        Ok(Demand::default())
    }

    fn run(&self, _: &Parameters, _: &mut dyn Ground) -> Result<Figures, String> {
        Ok(Figures::default())
    }
}

/// Creates, reads and deletes files of one size.
pub struct Tiny;

struct Plan {
    files: u64,
    size: u64,
    compressible: u64,
}

fn number(parameters: &Parameters, name: &str) -> Result<u64, String> {
    let known = Tiny.parameters().iter().find(|(known, ..)| *known == name);
    let default = known.map_or("0", |(_, default, _)| default);
    let text = parameters.get(name).map_or(default, String::as_str);
    crate::declaration::parse_size(text).ok_or_else(|| format!("{name} is a number, not {text}"))
}

fn plan(parameters: &Parameters) -> Result<Plan, String> {
    let plan = Plan {
        files: number(parameters, "files")?,
        size: number(parameters, "size")?,
        compressible: number(parameters, "compressible")?,
    };
    if plan.files == 0 || plan.size == 0 || plan.compressible > 100 {
        return Err("files and size are 1 or more, compressible is 0 to 100".to_owned());
    }
    Ok(plan)
}

/// Fills `bytes` with data of which `compressible` per cent compress: that
/// share of each block is one repeated letter, the rest is random.
fn scramble(bytes: &mut [u8], compressible: u64, random: &mut Random) {
    for block in bytes.chunks_mut(4096) {
        let zeros = block.len() as u64 * compressible / 100;
        let (plain, rest) = block.split_at_mut(usize::try_from(zeros).unwrap_or(0));
        plain.fill(b'b');
        for chunk in rest.chunks_mut(8) {
            let word = random.bits().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

impl Workload for Tiny {
    fn name(&self) -> &'static str {
        "tiny"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("files", "400", "number of files"),
            ("size", "64k", "bytes of each"),
            (
                "compressible",
                "0",
                "how much of the content compresses, in percent",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = plan(parameters)?;
        Ok(Demand {
            space: plan.files * (plan.size + 4096),
            memory: plan.size,
            time: Duration::from_millis(200 + plan.files / 2),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = plan(parameters)?;
        let mut random = Random::new(ground.seed());
        let mut bytes = vec![0; usize::try_from(plan.size).map_err(|e| e.to_string())?];
        let mut figures = Figures::default();
        let mut checks = Vec::new();
        let write = phase(&plan, "create", ground, &mut figures, |path, index| {
            scramble(&mut bytes, plan.compressible, &mut random);
            checks.push(sum(&bytes));
            let mut file = File::create(path)?;
            file.write_all(&bytes)?;
            if index % 16 == 0 {
                file.sync_data()?;
            }
            Ok(())
        })?;
        ground.next_phase("read")?;
        let mut wrong = Vec::new();
        let read = phase(&plan, "read", ground, &mut figures, |path, index| {
            bytes.clear();
            File::open(path)?.read_to_end(&mut bytes)?;
            if checks.get(index as usize) != Some(&sum(&bytes)) {
                wrong.push(path.display().to_string());
            }
            Ok(())
        })?;
        ground.next_phase("delete")?;
        let half = Plan {
            files: plan.files / 2,
            ..plan
        };
        let delete = phase(&half, "delete", ground, &mut figures, |path, _| {
            fs::remove_file(path)
        })?;
        let rate = |name: &str, count: u64, time: f64, headline| Metric {
            name: name.to_owned(),
            unit: "operations/s".to_owned(),
            value: count as f64 / time.max(1e-9),
            better: Better::Higher,
            headline,
        };
        figures.metrics = vec![
            rate("create", plan.files, write, true),
            rate("read", plan.files, read, true),
            rate("delete", half.files, delete, false),
        ];
        figures.integrity.push(Integrity {
            check: "content as it was written".to_owned(),
            passed: wrong.is_empty(),
            detail: wrong.into_iter().take(3).collect::<Vec<_>>().join(", "),
        });
        figures.written = Some(plan.files * plan.size);
        figures.operations = Some(plan.files * 2 + half.files);
        let line = format!(
            "files={} size={} compressible={}",
            plan.files, plan.size, plan.compressible
        );
        figures.facts.insert("tiny".to_owned(), line);
        Ok(figures)
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, step)
}

/// Does something with each file. Returns the seconds.
fn phase(
    plan: &Plan,
    name: &str,
    ground: &mut dyn Ground,
    figures: &mut Figures,
    mut step: impl FnMut(&Path, u64) -> std::io::Result<()>,
) -> Result<f64, String> {
    let path = |index: u64| -> PathBuf {
        ground
            .directory()
            .join(format!("d{}", index % 8))
            .join(format!("f{index}"))
    };
    for index in 0..8.min(plan.files) {
        let folder = ground.directory().join(format!("d{index}"));
        fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    }
    // Powers of the square root of two, from 1 µs.
    let upper: Vec<f64> = (0..60)
        .map(|n| 1e-6 * 2.0_f64.powf(f64::from(n) / 2.0))
        .collect();
    let mut counts = vec![0; upper.len()];
    let mut seconds = Vec::new();
    let start = Instant::now();
    for index in 0..plan.files {
        if index % 64 == 0 && ground.is_cancelled() {
            return Err("stopped".to_owned());
        }
        let path = path(index);
        let begun = Instant::now();
        step(&path, index).map_err(|error| format!("{name} {}: {error}", path.display()))?;
        let took = begun.elapsed().as_secs_f64();
        let bucket = upper
            .partition_point(|end| *end < took)
            .min(upper.len() - 1);
        counts[bucket] += 1;
        let second = start.elapsed().as_secs() as usize;
        if seconds.len() <= second {
            seconds.resize(second + 1, 0.0);
        }
        seconds[second] += 1.0;
    }
    figures.latencies.push(Latencies {
        name: name.to_owned(),
        upper,
        counts,
    });
    figures.series.push(Series {
        name: name.to_owned(),
        unit: "operations/s".to_owned(),
        step: 1.0,
        values: seconds,
    });
    Ok(start.elapsed().as_secs_f64())
}
