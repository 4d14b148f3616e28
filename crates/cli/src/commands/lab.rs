//! `butterfs lab`: measures file systems side by side.
//!
//! Owns options and what is printed. Everything else is in the crate `lab`.

mod choose;
mod given;
mod run;
mod show;

use crate::fail::{Done, fail};
use clap::{Args, Subcommand};
use given::{Files, Planned};

/// Measures file systems side by side.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs lab list
  butterfs lab plan dbench-2011
  butterfs lab run smoke
  butterfs lab run mine.toml --scale small --results mine.sqlite
  butterfs lab resume
  butterfs lab report --html report.html
  butterfs lab compare before.sqlite after.sqlite

docs/lab.md says how experiments and file systems are written.")]
pub struct Lab {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List experiments, workloads and file systems, and what this machine can run.
    List(Files),
    /// Show what a run would do: cells, blocks, time, space.
    Plan(Planned),
    /// Run an experiment.
    Run(run::RunLab),
    /// Go on with a run that was stopped.
    Resume(run::Resume),
    /// Write the report of a run.
    Report(show::Report),
    /// Compare two runs.
    Compare(show::Compare),
    /// Say what is missing on this machine, and the command that installs it.
    Doctor(Files),
    /// Find a file system and its options for your workload.
    Choose(choose::Choose),
}

impl Lab {
    /// Runs it.
    pub fn run(self) -> Done {
        match self.what {
            What::List(files) => show::list(&files.here()?),
            What::Plan(planned) => {
                let here = planned.files.here()?;
                let (plan, _) = planned.plan(&here)?;
                say!("{}", plan.to_text().trim_end());
                if plan.problems.is_empty() {
                    return Ok(());
                }
                fail("the experiment cannot be run as it is; the lines above say what to change")
            }
            What::Run(run) => run.run(),
            What::Resume(resume) => resume.run(),
            What::Report(report) => report.run(),
            What::Compare(compare) => compare.run(),
            What::Doctor(files) => show::doctor(&files.here()?),
            What::Choose(choose) => choose.run(),
        }
    }
}
