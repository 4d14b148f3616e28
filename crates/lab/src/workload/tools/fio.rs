//! fio: phases over the same files, with histograms and one-second series.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{command, line_of, run};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use crate::model::{Latencies, Series};
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// fio.
pub(in super::super) struct Fio;

const PHASES: &[(&str, &str)] = &[
    ("write", "write"),
    ("rewrite", "write"),
    ("read", "read"),
    ("reread", "read"),
    ("random write", "randwrite"),
    ("random read", "randread"),
    ("mixed", "randrw"),
];

struct Plan<'a> {
    phases: Vec<(&'static str, &'static str)>,
    size: u64,
    block: u64,
    jobs: u64,
    depth: u64,
    fsync: u64,
    seconds: u64,
    compressible: u8,
    mix: u64,
    is_direct: bool,
    engine: &'static str,
    given: Given<'a>,
}

impl<'a> Plan<'a> {
    fn new(fio: &'a Fio, parameters: &'a Parameters) -> Result<Self, String> {
        let given = Given::new(fio, parameters)?;
        let phases: Result<Vec<_>, String> = given
            .text("phases")
            .split(',')
            .map(|name| {
                let found = PHASES.iter().find(|(known, _)| *known == name.trim());
                found.copied().ok_or_else(|| {
                    let known: Vec<&str> = PHASES.iter().map(|(known, _)| *known).collect();
                    format!("fio: phases: \"{name}\" is none of {}", known.join(", "))
                })
            })
            .collect();
        let plan = Self {
            phases: phases?,
            size: given.bytes("size", 4096, 1 << 44)?,
            block: given.bytes("block", 512, 1 << 30)?,
            jobs: given.number("jobs", 1, 1000)?,
            depth: given.number("depth", 1, 65_536)?,
            fsync: given.number("fsync", 0, 1 << 40)?,
            seconds: given.number("time", 0, 86_400)?,
            compressible: given.compressible()?,
            mix: given.number("read-share", 0, 100)?,
            is_direct: given.is_yes("direct")?,
            engine: given.choice("engine", &["psync", "libaio", "io_uring"])?,
            given,
        };
        if plan.block > plan.size / plan.jobs {
            return Err("fio: a block is larger than the file of a job".to_owned());
        }
        Ok(plan)
    }

    fn arguments(&self, phase: &str, seed: u64) -> Vec<String> {
        let mut arguments = vec![
            "--output-format=json+".to_owned(),
            "--name=lab".to_owned(),
            "--filename_format=io.$jobnum".to_owned(),
            format!("--size={}", self.size / self.jobs / self.block * self.block),
            format!("--bs={}", self.block),
            format!("--rw={phase}"),
            format!("--ioengine={}", self.engine),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.jobs),
            // Job processes would outlive a fio that is killed.
            "--thread".to_owned(),
            format!("--direct={}", u8::from(self.is_direct)),
            format!("--randseed={}", seed >> 1),
            "--allrandrepeat=1".to_owned(),
            // Btrfs does not compress a preallocated file, and an allocation is
            // not what a write phase measures.
            "--fallocate=none".to_owned(),
            "--invalidate=0".to_owned(),
            "--end_fsync=1".to_owned(),
            "--refill_buffers".to_owned(),
            "--group_reporting".to_owned(),
            "--log_avg_msec=1000".to_owned(),
            "--lat_percentiles=0".to_owned(),
        ];
        if self.compressible > 0 {
            // At 100 it would write zeros.
            let percent = self.compressible.min(99);
            arguments.push(format!("--buffer_compress_percentage={percent}"));
        }
        if self.fsync > 0 {
            arguments.push(format!("--fsync={}", self.fsync));
        }
        if phase == "randrw" {
            arguments.push(format!("--rwmixread={}", self.mix));
        }
        if self.seconds > 0 {
            arguments.push("--time_based".to_owned());
            arguments.push(format!("--runtime={}", self.seconds));
        }
        arguments
    }
}

impl Workload for Fio {
    fn name(&self) -> &'static str {
        "fio"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("fio", "fio")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            (
                "phases",
                "write,rewrite,read,reread",
                "in their order, of: write, rewrite, read, reread, random write, random read, mixed",
            ),
            ("size", "2g", "bytes of all files"),
            ("block", "16m", "bytes of an operation"),
            ("jobs", "1", "threads, each with a file of its own"),
            ("depth", "1", "operations at once of a thread (not psync)"),
            ("engine", "psync", "psync, libaio or io_uring"),
            ("direct", "no", "O_DIRECT"),
            (
                "fsync",
                "0",
                "an fsync after so many writes; 0 is none before the end",
            ),
            (
                "time",
                "0",
                "seconds of each phase; 0 is once over the files",
            ),
            ("read-share", "70", "per cent of reads in the phase mixed"),
            (
                "compressible",
                "0",
                "per cent that a compressor can take away",
            ),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let plan = Plan::new(self, parameters)?;
        let once = match plan.seconds {
            0 => plan.size / (100 << 20) + 1,
            seconds => seconds,
        };
        Ok(Demand {
            space: plan.size,
            memory: plan.jobs * (plan.block * plan.depth + (16 << 20)),
            time: Duration::from_secs(once * plan.phases.len() as u64),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        let plan = Plan::new(self, parameters)?;
        let mut figures = Figures::default();
        for (place, (name, mode)) in plan.phases.iter().enumerate() {
            ground.next_phase(name)?;
            let scratch = ground.scratch().join(format!("fio-{place}"));
            fs::create_dir(&scratch).map_err(|e| format!("make {}: {e}", scratch.display()))?;
            let mut fio = command("fio", None)?;
            fio.args(plan.arguments(mode, ground.seed().wrapping_add(place as u64)));
            fio.arg(format!("--directory={}", ground.directory().display()));
            fio.arg(format!(
                "--write_iops_log={}",
                scratch.join("log").display()
            ));
            fio.arg(format!("--output={}", scratch.join("json").display()));
            // Some of fio's own files go to the directory it stands in.
            fio.current_dir(&scratch);
            run(&format!("fio-{place}"), &mut fio, ground)?;
            let json = fs::read_to_string(scratch.join("json"))
                .map_err(|error| format!("fio left no result: {error}"))?;
            parse(name, &json, &mut figures)?;
            let series = read_logs(&scratch, plan.jobs)?;
            figures.series.extend(series.map(|values| Series {
                name: format!("{name} operations"),
                unit: "operations/s".to_owned(),
                step: 1.0,
                values,
            }));
            figures.fact(&format!("command of {name}"), line_of(&fio));
        }
        figures.fact("compressible", plan.given.text("compressible"));
        Ok(figures)
    }
}

/// One-second sums over all jobs of a phase; the first figure of a line is
/// the end of its second in milliseconds, the second operations per second.
fn read_logs(scratch: &Path, jobs: u64) -> Result<Option<Vec<f64>>, String> {
    let mut values: Vec<f64> = Vec::new();
    for job in 1..=jobs {
        let path = scratch.join(format!("log_iops.{job}.log"));
        let text = fs::read_to_string(&path)
            .map_err(|error| format!("fio left no series {}: {error}", path.display()))?;
        add_log(&text, &mut values);
    }
    Ok((!values.is_empty()).then_some(values))
}

fn add_log(text: &str, values: &mut Vec<f64>) {
    for line in text.lines() {
        let mut fields = line.split(',').map(str::trim);
        let time = fields.next().and_then(|field| field.parse::<f64>().ok());
        let rate = fields.next().and_then(|field| field.parse::<f64>().ok());
        let (Some(time), Some(rate)) = (time, rate) else {
            continue;
        };
        let second = (time / 1000.0).round() as usize;
        if !(1..=86_400).contains(&second) {
            continue;
        }
        if values.len() < second {
            values.resize(second, 0.0);
        }
        values[second - 1] += rate;
    }
}

/// Reads one phase of fio's JSON.
fn parse(phase: &str, json: &str, figures: &mut Figures) -> Result<(), String> {
    let told = |what: &str| format!("fio's result of {phase} has no {what}");
    let result: Value = serde_json::from_str(json)
        .map_err(|error| format!("fio's result of {phase} is no JSON: {error}"))?;
    let version = result["fio version"]
        .as_str()
        .ok_or_else(|| told("version"))?;
    figures.fact("tool", version);
    // With group reporting all threads are one.
    let job = &result["jobs"][0];
    if job["error"].as_i64() != Some(0) {
        return Err(format!("fio failed in {phase}: error {}", job["error"]));
    }
    let mut any = false;
    for direction in ["write", "read"] {
        let part = &job[direction];
        let count = part["total_ios"]
            .as_u64()
            .ok_or_else(|| told("total_ios"))?;
        if count == 0 {
            continue;
        }
        any = true;
        let name = match phase {
            "mixed" => format!("mixed {direction}"),
            _ => phase.to_owned(),
        };
        let speed = part["bw_bytes"].as_f64().ok_or_else(|| told("bw_bytes"))?;
        let rate = part["iops"].as_f64().ok_or_else(|| told("iops"))?;
        // For small random operations, their number is the headline.
        let is_random = phase == "mixed" || phase.starts_with("random");
        let bytes = more(&name, "bytes/s", speed);
        let operations = more(&format!("{name} operations"), "operations/s", rate);
        if is_random {
            figures.add(operations.headline());
            figures.add(bytes);
        } else {
            figures.add(bytes.headline());
            figures.add(operations);
        }
        if let Some(latencies) = bins(&name, &part["clat_ns"]) {
            figures.add_percentiles(&latencies);
            figures.latencies.push(latencies);
        }
        *figures.operations.get_or_insert(0) += count;
        if direction == "write" {
            let bytes = part["io_bytes"].as_u64().ok_or_else(|| told("io_bytes"))?;
            *figures.written.get_or_insert(0) += bytes;
        }
    }
    if !any {
        return Err(format!("fio did nothing in {phase}"));
    }
    if let Some(latencies) = bins(&format!("{phase} fsync"), &job["sync"]["lat_ns"]) {
        figures.add_percentiles(&latencies);
        figures.latencies.push(latencies);
    }
    let cpu = |name: &str| job[name].as_f64();
    if let (Some(user), Some(system)) = (cpu("usr_cpu"), cpu("sys_cpu")) {
        figures.add(less(
            &format!("{phase} CPU of the tool"),
            "CPU %",
            user + system,
        ));
    }
    Ok(())
}

fn bins(name: &str, part: &Value) -> Option<Latencies> {
    let mut bins: Vec<(f64, u64)> = part["bins"]
        .as_object()?
        .iter()
        .filter_map(|(value, count)| Some((value.parse::<f64>().ok()? / 1e9, count.as_u64()?)))
        .collect();
    bins.sort_by(|a, b| a.0.total_cmp(&b.0));
    if bins.is_empty() {
        return None;
    }
    let (upper, counts) = bins.into_iter().unzip();
    Some(Latencies {
        name: name.to_owned(),
        upper,
        counts,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::percentile;

    #[test]
    fn fio_3_33_is_understood() {
        let mut figures = Figures::default();
        parse("write", include_str!("golden/fio.json"), &mut figures).unwrap();
        assert_eq!(figures.facts["tool"], "fio-3.33");
        let write = &figures.metrics[0];
        assert_eq!(
            (write.name.as_str(), write.unit.as_str()),
            ("write", "bytes/s")
        );
        assert_eq!((write.value, write.headline), (972_592_231.0, true));
        assert_eq!(figures.written, Some(1_946_157_056));
        assert_eq!(figures.operations, Some(1856));
        let latencies = &figures.latencies[0];
        assert_eq!(latencies.counts.iter().sum::<u64>(), 1856);
        // fio's own percentiles, from the same bins.
        assert_eq!(percentile(latencies, 0.5), Some(222_208e-9));
        assert_eq!(percentile(latencies, 0.99), Some(8_355_840e-9));
    }

    #[test]
    fn series_are_summed_over_jobs() {
        let mut values = Vec::new();
        add_log("1004, 895, 1, 0, 0\n2001, 905, 1, 0, 0\n", &mut values);
        add_log("1000, 100, 1, 0, 0\n3003, 100, 1, 0, 0\n", &mut values);
        assert_eq!(values, [995.0, 905.0, 100.0]);
    }

    #[test]
    fn broken_results_are_errors() {
        let mut figures = Figures::default();
        for wrong in [
            "",
            "{}",
            r#"{"fio version": "fio-3.33", "jobs": [{"error": 28}]}"#,
        ] {
            assert!(parse("write", wrong, &mut figures).is_err(), "{wrong}");
        }
    }
}
