//! `butterfs lab choose`: asks three questions, measures the least that can
//! tell, gives an answer.

use super::given::Here;
use super::run::{Place, butterfs, cancel, free_name, lab, watch};
use crate::fail::{Context, Done, Failure, fail};
use butterfs_lab::choose::{
    Answers, CONTENTS, Candidate, FINALISTS, KINDS, NEEDS, advise, finalists, without_figures,
};
use butterfs_lab::experiment::Experiment;
use butterfs_lab::model::CellRecord;
use butterfs_lab::plan::{Choice, Devices, Plan, plan, show_time};
use butterfs_lab::results::Results;
use butterfs_lab::run::{Ended, Event, Job};
use butterfs_lab::stats::least_blocks;
use clap::Args;
use std::io::{BufRead as _, IsTerminal as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

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
    /// Do not ask before taking longer than announced.
    #[arg(short, long)]
    yes: bool,
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
            return fail(
                "there was no answer; run it in a terminal, or answer by options (see --help)",
            );
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
        let mut work = Work {
            choose: &self,
            here: &here,
            flag: &flag,
            answers: &answers,
            begun: Instant::now(),
            promised: Duration::ZERO,
            asked: false,
        };
        // The finalists are not known yet. The same number of the first ones
        // costs the same.
        let few = &candidates[..candidates.len().min(FINALISTS)];
        work.promised = work.planned(&candidates, Stage::Screen)?.0.time()
            + work.planned(few, Stage::Decide)?.0.time();
        say!(
            "About {} in all. First each of {} candidates once.",
            show_time(work.promised),
            candidates.len()
        );
        let first = work.stage(&candidates, Stage::Screen);
        let left = finalists(&first.records);
        if left.len() < 2 || first.trouble.is_some() {
            return first.answer();
        }
        say!(
            "Then the best {} until a difference can be told.",
            left.len()
        );
        let second = work.stage(&left, Stage::Decide);
        match advise(&second.records, 1) {
            Some(_) => second.answer(),
            // The first round's result is better than nothing.
            None => Known {
                records: first.records,
                trouble: second.trouble,
            }
            .answer(),
        }
    }

    /// Whether to go on with something that takes longer than was said.
    fn goes_on(&self, question: &str) -> bool {
        if self.yes {
            return true;
        }
        if !std::io::stdin().is_terminal() {
            note!("{question}; --yes goes on");
            return false;
        }
        note!("{question}. Go on? [y/N]");
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        read.is_ok() && matches!(line.trim(), "y" | "Y" | "yes")
    }
}

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Each candidate once.
    Screen,
    /// As many blocks as decide.
    Decide,
}

/// What is known, and why it is not more.
struct Known {
    records: Vec<CellRecord>,
    trouble: Option<String>,
}

impl Known {
    /// The answer, or why there is none.
    fn answer(self) -> Done {
        let mut lost = String::new();
        for (candidate, reason) in without_figures(&self.records) {
            lost.push_str(&format!("\n{} has no figures: {reason}", candidate.name()));
        }
        if let Some(trouble) = &self.trouble {
            lost.push_str(&format!("\nIt is known no better, because {trouble}"));
        }
        match advise(&self.records, 1) {
            Some(advice) => {
                say!("\n{}{lost}", advice.text.trim_end());
                Ok(())
            }
            None => fail(format!(
                "no candidate gave figures{lost}\n`butterfs lab doctor` says what is missing here"
            )),
        }
    }
}

/// A choice under way.
struct Work<'w> {
    choose: &'w Choose,
    here: &'w Here,
    flag: &'w AtomicBool,
    answers: &'w Answers,
    begun: Instant,
    /// How long it was said to take.
    promised: Duration,
    /// Somebody was asked whether it may take longer.
    asked: bool,
}

impl Work<'_> {
    fn planned(&self, candidates: &[Candidate], stage: Stage) -> Result<(Plan, Choice), Failure> {
        let text = self.answers.experiment(candidates, &self.here.workloads);
        let experiment = Experiment::parse("choose", &text)?;
        let mut choice = Choice {
            devices: Some(Devices::Files(self.choose.directory.clone())),
            ..Choice::default()
        };
        let make = |choice: &Choice| {
            let Here {
                file_systems,
                workloads,
                machine,
                ..
            } = self.here;
            plan(&experiment, choice, file_systems, workloads, machine)
        };
        let mut planned = make(&choice)?;
        if stage == Stage::Decide {
            let able = planned.cells.iter().filter(|cell| cell.lack.is_none());
            let blocks = least_blocks(able.count().saturating_sub(1).max(1));
            choice.repeats = Some(u32::try_from(blocks).context("blocks")?);
            planned = make(&choice)?;
        }
        Ok((planned, choice))
    }

    /// Runs a stage. If something ends it early (a device that is in use,
    /// Ctrl-C), it keeps what it has measured.
    fn stage(&mut self, candidates: &[Candidate], stage: Stage) -> Known {
        let mut records = Vec::new();
        let trouble = self.run(candidates, stage, &mut records).err();
        Known {
            records,
            trouble: trouble.map(|failure| failure.0),
        }
    }

    fn run(
        &mut self,
        candidates: &[Candidate],
        stage: Stage,
        records: &mut Vec<CellRecord>,
    ) -> Done {
        let (planned, choice) = self.planned(candidates, stage)?;
        let results = &self.choose.place.results;
        let job = Job {
            name: free_name(results, "choose")?,
            results: results.clone(),
            butterfs: butterfs()?,
        };
        let (here, flag) = (self.here, self.flag);
        let ended = lab(here, flag).run(&planned, &choice, &job, &mut |event| {
            if let Event::Pass { left, .. } = &event
                && !self.asked
            {
                let takes = self.begun.elapsed() + *left;
                if takes > self.promised + self.promised / 4 {
                    self.asked = true;
                    let question = format!(
                        "it will take {} in all, not {} as was said",
                        show_time(takes),
                        show_time(self.promised)
                    );
                    if !self.choose.goes_on(&question) {
                        flag.store(true, Ordering::Relaxed);
                    }
                }
            }
            watch(event);
        });
        // Also for a run that failed: each pass that was made is there.
        if job.results.exists()
            && let Ok(there) = Results::open(&job.results)
            && let Ok(found) = there.cells(&job.name)
        {
            *records = found;
        }
        match ended? {
            Ended::Complete => Ok(()),
            Ended::Stopped => fail("it was stopped"),
        }
    }
}
