//! `butterfs lab`: measures file systems side by side.
//!
//! Owns options and what is printed; all else is the crate `lab`.

mod choose;
mod run;
mod show;

use crate::fail::{Context, Done, Failure, fail};
use crate::sizes;
use butterfs_lab::catalogue::Catalogue;
use butterfs_lab::experiment::Experiment;
use butterfs_lab::filesystem::FileSystems;
use butterfs_lab::machine::Machine;
use butterfs_lab::plan::{Choice, Devices, Plan, plan};
use clap::{Args, Subcommand};
use run::Place;
use std::path::PathBuf;

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

/// File systems that are declared in files.
#[derive(Args, Debug, Default)]
struct Files {
    /// File with declarations of file systems; may be given again.
    #[arg(long = "file-systems", value_name = "FILE")]
    file_systems: Vec<PathBuf>,
}

/// An experiment, and how it is run.
#[derive(Args, Debug)]
struct Planned {
    /// Name of an experiment (`butterfs lab list`), or a file with one.
    experiment: String,
    /// Its size: small, big, or another that the experiment has.
    #[arg(long, default_value = "small")]
    scale: String,
    /// One block only: a screening, which decides nothing.
    #[arg(long, conflicts_with = "repeats")]
    quick: bool,
    /// Blocks: how often all is repeated.
    #[arg(long)]
    repeats: Option<u32>,
    /// Blocks of the cells on which none of its main conclusions stands.
    #[arg(long, value_name = "N")]
    others: Option<u32>,
    /// Seed of all random choices.
    #[arg(long)]
    seed: Option<u64>,
    /// Only this file system; may be given again.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Directory for the files behind the loop devices.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "device")]
    directory: Option<PathBuf>,
    /// Bytes of each of those files.
    #[arg(long, value_parser = sizes::parse, value_name = "SIZE")]
    device_size: Option<u64>,
    /// Block device to use instead; all that it holds is lost. May be given again.
    #[arg(long, value_name = "DEVICE")]
    device: Vec<PathBuf>,
    /// The content of this device may be lost.
    #[arg(long, value_name = "DEVICE")]
    i_mean_it: Vec<PathBuf>,
    #[command(flatten)]
    files: Files,
}

/// What this program and this machine have.
struct Here {
    file_systems: FileSystems,
    /// Files that were given, with their texts.
    given: Vec<(String, String)>,
    workloads: Catalogue,
    machine: Machine,
}

impl Here {
    fn new(given: Vec<(String, String)>) -> Result<Self, Failure> {
        let mut file_systems = FileSystems::shipped();
        for (file, text) in &given {
            file_systems.add(file, text)?;
        }
        Ok(Self {
            file_systems,
            given,
            workloads: Catalogue::shipped(),
            machine: Machine::here(),
        })
    }
}

impl Files {
    fn here(&self) -> Result<Here, Failure> {
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).context(path.display())?;
            Ok((path.display().to_string(), text))
        };
        let given: Result<Vec<_>, Failure> = self.file_systems.iter().map(read).collect();
        Here::new(given?)
    }
}

impl Planned {
    fn experiment(&self) -> Result<Experiment, Failure> {
        if let Some(shipped) = Experiment::shipped(&self.experiment) {
            return Ok(shipped?);
        }
        let text = match std::fs::read_to_string(&self.experiment) {
            Ok(text) => text,
            Err(error) => {
                let known: Vec<&str> = butterfs_lab::experiment::SHIPPED
                    .iter()
                    .map(|(name, _)| *name)
                    .collect();
                return fail(format!(
                    "{}: {error}; experiments that come with the program are {}",
                    self.experiment,
                    known.join(", ")
                ));
            }
        };
        Ok(Experiment::parse(&self.experiment, &text)?)
    }

    fn choice(&self) -> Choice {
        Choice {
            scale: self.scale.clone(),
            repeats: if self.quick { Some(1) } else { self.repeats },
            others: self.others,
            seed: self.seed,
            devices: if self.device.is_empty() {
                self.directory.clone().map(Devices::Files)
            } else {
                Some(Devices::Blocks(self.device.clone()))
            },
            device_size: self.device_size,
            only: self.only.clone(),
            i_mean_it: self.i_mean_it.clone(),
        }
    }

    fn plan(&self, here: &Here) -> Result<(Plan, Choice), Failure> {
        let choice = self.choice();
        let experiment = self.experiment()?;
        let plan = plan(
            &experiment,
            &choice,
            &here.file_systems,
            &here.workloads,
            &here.machine,
        )?;
        Ok((plan, choice))
    }
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
                fail("it cannot be run so")
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
