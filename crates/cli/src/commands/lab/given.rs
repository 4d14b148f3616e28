//! What the commands of the lab get: experiments, file systems, and what this
//! program and this machine have.

use crate::fail::{Context, Failure, fail};
use crate::sizes;
use butterfs_lab::catalogue::Catalogue;
use butterfs_lab::experiment::Experiment;
use butterfs_lab::filesystem::FileSystems;
use butterfs_lab::machine::Machine;
use butterfs_lab::plan::{Choice, Devices, Plan, plan};
use clap::Args;
use std::path::PathBuf;

/// File systems that are declared in files.
#[derive(Args, Debug, Default)]
pub(super) struct Files {
    /// File with declarations of file systems; may be given again.
    #[arg(long = "file-systems", value_name = "FILE")]
    pub(super) file_systems: Vec<PathBuf>,
}

/// An experiment, and how it is run.
#[derive(Args, Debug)]
pub(super) struct Planned {
    /// Name of an experiment (`butterfs lab list`), or a file with one.
    pub(super) experiment: String,
    /// Its size: small, big, or another that the experiment has.
    #[arg(long, default_value = "small")]
    pub(super) scale: String,
    /// One block only: a screening, which decides nothing.
    #[arg(long, conflicts_with = "repeats")]
    pub(super) quick: bool,
    /// Blocks: how often all is repeated.
    #[arg(long)]
    pub(super) repeats: Option<u32>,
    /// Blocks of the cells on which none of its main conclusions stands.
    #[arg(long, value_name = "N")]
    pub(super) others: Option<u32>,
    /// Seed of all random choices.
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Only this file system; may be given again.
    #[arg(long, value_name = "NAME")]
    pub(super) only: Vec<String>,
    /// Directory for the files behind the loop devices.
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "device")]
    pub(super) directory: Option<PathBuf>,
    /// Bytes of each of those files.
    #[arg(long, value_parser = sizes::parse, value_name = "SIZE")]
    pub(super) device_size: Option<u64>,
    /// Block device to use instead; all that it holds is lost. May be given again.
    #[arg(long, value_name = "DEVICE")]
    pub(super) device: Vec<PathBuf>,
    /// The content of this device may be lost.
    #[arg(long, value_name = "DEVICE")]
    pub(super) i_mean_it: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) files: Files,
}

/// What this program and this machine have.
pub(super) struct Here {
    pub(super) file_systems: FileSystems,
    /// Files that were given, with their texts.
    pub(super) given: Vec<(String, String)>,
    pub(super) workloads: Catalogue,
    pub(super) machine: Machine,
}

impl Here {
    pub(super) fn new(given: Vec<(String, String)>) -> Result<Self, Failure> {
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
    pub(super) fn here(&self) -> Result<Here, Failure> {
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).context(path.display())?;
            Ok((path.display().to_string(), text))
        };
        let given: Result<Vec<_>, Failure> = self.file_systems.iter().map(read).collect();
        Here::new(given?)
    }
}

impl Planned {
    pub(super) fn experiment(&self) -> Result<Experiment, Failure> {
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

    pub(super) fn choice(&self) -> Choice {
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

    pub(super) fn plan(&self, here: &Here) -> Result<(Plan, Choice), Failure> {
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
