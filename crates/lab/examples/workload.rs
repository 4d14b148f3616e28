//! Runs a workload in a directory and prints its figures:
//! `cargo run -p butterfs-lab --example workload -- NAME DIRECTORY key=value...`

use butterfs_lab::stats::percentile;
use butterfs_lab::workload::{self, Ground, Parameters};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

struct Here {
    directory: PathBuf,
    scratch: PathBuf,
    seed: u64,
}

impl Ground for Here {
    fn directory(&self) -> &Path {
        &self.directory
    }

    fn scratch(&self) -> &Path {
        &self.scratch
    }

    fn seed(&self) -> u64 {
        self.seed
    }

    fn next_phase(&mut self, name: &str) -> Result<(), String> {
        eprintln!("phase: {name}");
        self.files().sync()
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut arguments = std::env::args().skip(1);
    let (Some(name), Some(directory)) = (arguments.next(), arguments.next()) else {
        let names: Vec<&str> = workload::all().iter().map(|one| one.name()).collect();
        return Err(format!(
            "usage: workload NAME DIRECTORY [seed=N] [key=value...]; NAME is one of {}",
            names.join(", ")
        ));
    };
    let workload = workload::find(&name).ok_or_else(|| format!("there is no workload {name}"))?;
    let mut parameters = Parameters::new();
    let mut seed = 1;
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("{argument} is not key=value"))?;
        if key == "seed" {
            seed = value.parse().map_err(|_| format!("seed {value}"))?;
        } else {
            parameters.insert(key.to_owned(), value.to_owned());
        }
    }
    let demand = workload.demand(&parameters)?;
    eprintln!(
        "at most {} MiB, about {} s",
        demand.space >> 20,
        demand.time.as_secs()
    );
    let scratch = std::env::temp_dir().join(format!("lab-workload-{}", std::process::id()));
    std::fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
    let directory = std::fs::canonicalize(&directory).map_err(|e| format!("{directory}: {e}"))?;
    let mut here = Here {
        directory,
        scratch: scratch.clone(),
        seed,
    };
    let figures = workload.run(&parameters, &mut here);
    let _ = std::fs::remove_dir_all(&scratch);
    let figures = figures?;
    for metric in &figures.metrics {
        let star = if metric.headline { "*" } else { " " };
        println!(
            "{star} {:<44} {:>16.6} {}",
            metric.name, metric.value, metric.unit
        );
    }
    for series in &figures.series {
        println!(
            "series {} ({}): {:?}",
            series.name, series.unit, series.values
        );
    }
    for latencies in &figures.latencies {
        let at = |share| percentile(latencies, share).unwrap_or(0.0) * 1e3;
        println!(
            "latency {}: p50 {:.3} p99 {:.3} p99.9 {:.3} ms of {}",
            latencies.name,
            at(0.5),
            at(0.99),
            at(0.999),
            latencies.counts.iter().sum::<u64>()
        );
    }
    for check in &figures.integrity {
        let word = if check.passed { "passed" } else { "FAILED" };
        println!("{} {word}: {}", check.check, check.detail);
    }
    for mark in &figures.marks {
        println!("mark: {mark}");
    }
    for (name, value) in &figures.facts {
        println!("{name}: {value}");
    }
    println!(
        "operations {:?}, written {:?}",
        figures.operations, figures.written
    );
    Ok(())
}
