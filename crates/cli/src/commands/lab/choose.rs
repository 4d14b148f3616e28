//! `butterfs lab choose`: three questions, the least that can tell, an answer.

use super::given::Here;
use super::run::{Place, butterfs, cancel, free_name, lab, watch};
use crate::fail::{Context, Done, Failure, fail};
use butterfs_lab::choose::{Answers, CONTENTS, Candidate, KINDS, NEEDS, advise, finalists};
use butterfs_lab::experiment::Experiment;
use butterfs_lab::model::CellRecord;
use butterfs_lab::plan::{Choice, Devices, plan};
use butterfs_lab::results::Results;
use butterfs_lab::run::{Ended, Job};
use butterfs_lab::stats::least_blocks;
use clap::Args;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

/// Finds a file system and its options for your workload.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  butterfs lab choose
  butterfs lab choose --kind database --need nothing --content yes")]
pub(super) struct Choose {
    #[command(flatten)]
    place: Place,
    /// What the workload is like: database, small-files, large-files, web or shared.
    #[arg(long, value_parser = names(KINDS))]
    kind: Option<String>,
    /// What the file system must have: nothing, checksums or snapshots.
    #[arg(long, value_parser = names(NEEDS))]
    need: Option<String>,
    /// Whether the data compress: yes or no.
    #[arg(long, value_parser = names(CONTENTS))]
    content: Option<String>,
    /// Directory on the disk that is to be used; files are made there.
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
}

fn names(table: &'static [(&str, &str)]) -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(table.iter().map(|(name, _)| *name))
}

fn ask(
    question: &str,
    table: &[(&str, &str)],
    given: Option<String>,
    option: &str,
) -> Result<String, Failure> {
    if let Some(given) = given {
        return Ok(given);
    }
    if !std::io::stdin().is_terminal() {
        return fail(format!("{question} --{option} answers it"));
    }
    loop {
        say!("{question}");
        for (number, (_, meaning)) in table.iter().enumerate() {
            say!("  {} {meaning}", number + 1);
        }
        let mut line = String::new();
        if std::io::stdin()
            .lock()
            .read_line(&mut line)
            .context("the answer")?
            == 0
        {
            return fail("no answer");
        }
        let number = line.trim().parse::<usize>().ok();
        let chosen = table
            .iter()
            .enumerate()
            .find(|(index, (name, _))| number == Some(index + 1) || *name == line.trim());
        match chosen {
            Some((_, (name, _))) => return Ok((*name).to_owned()),
            None => say!("a number from 1 to {}", table.len()),
        }
    }
}

impl Choose {
    pub(super) fn run(self) -> Done {
        let answers = Answers {
            kind: ask(
                "What is the workload like?",
                KINDS,
                self.kind.clone(),
                "kind",
            )?,
            need: ask(
                "What must the file system have?",
                NEEDS,
                self.need.clone(),
                "need",
            )?,
            content: ask(
                "Do the data compress?",
                CONTENTS,
                self.content.clone(),
                "content",
            )?,
        };
        let here = Here::new(Vec::new())?;
        let flag = cancel()?;
        let candidates = answers.candidates();
        say!("First each of {} candidates once.", candidates.len());
        let first = self.stage(&here, &flag, &answers, &candidates, false)?;
        let left = finalists(&first);
        if left.len() < 2 {
            return fail(
                "fewer than two candidates can be run here; `butterfs lab doctor` says why",
            );
        }
        say!(
            "Then the best {} until a difference can be told.",
            left.len()
        );
        let second = self.stage(&here, &flag, &answers, &left, true)?;
        match advise(&second, 1) {
            Some(advice) => say!("\n{}", advice.text.trim_end()),
            None => return fail("no candidate gave figures"),
        }
        Ok(())
    }

    fn stage(
        &self,
        here: &Here,
        flag: &AtomicBool,
        answers: &Answers,
        candidates: &[Candidate],
        decide: bool,
    ) -> Result<Vec<CellRecord>, Failure> {
        let text = answers.experiment(candidates, &here.workloads);
        let experiment = Experiment::parse("choose", &text)?;
        let mut choice = Choice {
            devices: Some(Devices::Files(self.directory.clone())),
            ..Choice::default()
        };
        let make = |choice: &Choice| {
            plan(
                &experiment,
                choice,
                &here.file_systems,
                &here.workloads,
                &here.machine,
            )
        };
        let mut planned = make(&choice)?;
        if decide {
            let able = planned
                .cells
                .iter()
                .filter(|cell| cell.lack.is_none())
                .count();
            let blocks = least_blocks(able.saturating_sub(1).max(1));
            choice.repeats = Some(u32::try_from(blocks).context("blocks")?);
            planned = make(&choice)?;
        }
        let job = Job {
            name: free_name(&self.place.results, "choose")?,
            results: self.place.results.clone(),
            butterfs: butterfs()?,
        };
        let ended = lab(here, flag).run(&planned, &choice, &job, &mut watch)?;
        if ended == Ended::Stopped {
            return fail("stopped");
        }
        Ok(Results::open(&job.results)?.cells(&job.name)?)
    }
}
