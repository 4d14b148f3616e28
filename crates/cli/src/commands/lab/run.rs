//! `butterfs lab run` and `resume`: progress, and Ctrl-C.

use super::given::{Here, Planned};
use crate::fail::{Context, Done, Failure, fail};
use butterfs_lab::model::{CellRecord, Outcome};
use butterfs_lab::plan::show_time;
use butterfs_lab::run::{Ended, Event, Job, Lab, stopped};
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Where results are.
#[derive(Args, Debug)]
pub(super) struct Place {
    /// Database of results.
    #[arg(long, default_value = "lab.sqlite", value_name = "FILE")]
    pub(super) results: PathBuf,
}

/// Runs an experiment.
#[derive(Args, Debug)]
pub(super) struct RunLab {
    #[command(flatten)]
    planned: Planned,
    #[command(flatten)]
    place: Place,
    /// Name of the run in the results (default: the experiment's, with a number).
    #[arg(long)]
    name: Option<String>,
}

/// Goes on with a run that was stopped.
#[derive(Args, Debug)]
pub(super) struct Resume {
    #[command(flatten)]
    place: Place,
    /// Name of the run (default: the last).
    name: Option<String>,
}

/// Set by the first Ctrl-C.
pub(super) fn cancel() -> Result<Arc<AtomicBool>, Failure> {
    let flag = Arc::new(AtomicBool::new(false));
    let shared = Arc::clone(&flag);
    ctrlc::set_handler(move || {
        if !shared.swap(true, Ordering::Relaxed) {
            note!("stopping: what was made goes away first");
        }
    })
    .context("signals")?;
    Ok(flag)
}

/// A name that the results do not have yet.
pub(super) fn free_name(results: &Path, wanted: &str) -> Result<String, Failure> {
    if !results.exists() {
        return Ok(wanted.to_owned());
    }
    let there = butterfs_lab::results::Results::open(results)?.runs()?;
    let mut name = wanted.to_owned();
    let mut number = 2;
    while there.contains(&name) {
        name = format!("{wanted}-{number}");
        number += 1;
    }
    Ok(name)
}

/// Prints what happens.
pub(super) fn watch(event: Event<'_>) {
    match event {
        Event::Begins(what) => note!("{what}"),
        Event::Pass {
            number,
            of,
            block,
            cell,
            left,
        } => note!(
            "[{number}/{of}] block {block}: {}; {} left",
            cell.name(),
            show_time(left)
        ),
        Event::Done(record) => {
            if let Some(line) = line_of(record) {
                note!("    {line}");
            }
        }
    }
}

fn line_of(record: &CellRecord) -> Option<String> {
    match &record.outcome {
        Outcome::Done => {
            let headline = record.metrics.iter().filter(|metric| metric.headline);
            let figures: Vec<String> = headline
                .map(|metric| format!("{} {:.4} {}", metric.name, Short(metric.value), metric.unit))
                .collect();
            Some(format!("{:.1} s: {}", record.duration, figures.join(", ")))
        }
        Outcome::Void(reason) => Some(format!("void: {reason}")),
        Outcome::Failed(reason) => Some(format!("failed: {reason}")),
        // The plan and the report tell them.
        Outcome::Unavailable(_) => None,
    }
}

/// A number with three digits that count.
struct Short(f64);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let digits = match self.0.abs() {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            value if value >= 1.0 => 2,
            _ => 4,
        };
        write!(f, "{:.*}", digits, self.0)
    }
}

pub(super) fn butterfs() -> Result<PathBuf, Failure> {
    std::env::current_exe().context("the program itself")
}

fn ended(ended: Ended, job: &Job) -> Done {
    match ended {
        Ended::Complete => {
            say!(
                "run {} is in {}; `butterfs lab report --results {} {}` shows it",
                job.name,
                job.results.display(),
                job.results.display(),
                job.name
            );
            Ok(())
        }
        Ended::Stopped => fail(format!(
            "stopped; `butterfs lab resume --results {}` goes on",
            job.results.display()
        )),
    }
}

impl RunLab {
    pub(super) fn run(self) -> Done {
        let here = self.planned.files.here()?;
        let (plan, choice) = self.planned.plan(&here)?;
        let name = match self.name {
            Some(name) => name,
            None => free_name(&self.place.results, &plan.experiment.name)?,
        };
        for note in &plan.notes {
            note!("note: {note}");
        }
        note!(
            "{}: {} passes, about {}",
            plan.experiment.name,
            plan.passes(),
            show_time(plan.time())
        );
        let job = Job {
            results: self.place.results,
            name,
            butterfs: butterfs()?,
        };
        let cancel = cancel()?;
        let lab = lab(&here, &cancel);
        ended(lab.run(&plan, &choice, &job, &mut watch)?, &job)
    }
}

pub(super) fn lab<'a>(here: &'a Here, cancel: &'a AtomicBool) -> Lab<'a> {
    Lab {
        file_systems: &here.file_systems,
        given: &here.given,
        workloads: &here.workloads,
        machine: &here.machine,
        cancel,
    }
}

impl Resume {
    pub(super) fn run(self) -> Done {
        let found = stopped(&self.place.results, self.name.as_deref())?;
        let here = Here::new(found.given.clone())?;
        let job = Job {
            results: self.place.results,
            name: found.run.name.clone(),
            butterfs: butterfs()?,
        };
        let cancel = cancel()?;
        let lab = lab(&here, &cancel);
        ended(lab.resume(&found, &job, &mut watch)?, &job)
    }
}
