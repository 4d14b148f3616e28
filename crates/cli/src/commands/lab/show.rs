//! What the lab shows: what there is, reports, comparisons.

use super::given::Here;
use super::run::Place;
use crate::fail::{Context, Done, Failure, fail};
use butterfs_lab::experiment::{Experiment, SHIPPED};
use butterfs_lab::machine::install_command;
use butterfs_lab::results::{Dump, Recorded, Results, from_json, pack, to_csv, to_json, unpack};
use clap::Args;
use std::path::{Path, PathBuf};

pub(super) fn list(here: &Here) -> Done {
    say!("Experiments");
    for (name, _) in SHIPPED {
        let Some(experiment) = Experiment::shipped(name) else {
            continue;
        };
        say!("  {name:<14} {}", experiment?.title);
    }
    say!("\nWorkloads");
    for workload in here.workloads.iter() {
        let lack = here.machine.lacks_workload(workload);
        let state = lack.map_or(String::new(), |lack| format!("unavailable: {lack}"));
        say!("  {:<14} {state}", workload.name());
        for (name, default, meaning) in workload.parameters() {
            let default = if default.is_empty() {
                "nothing"
            } else {
                default
            };
            say!("      {name} ({default}): {meaning}");
        }
    }
    say!("\nFile systems");
    for one in here.file_systems.iter() {
        let lack = here.machine.lacks_file_system(one);
        let state = lack.map_or(String::new(), |lack| format!(" — unavailable: {lack}"));
        say!("  {:<14} {}{state}", one.name, one.title);
    }
    Ok(())
}

pub(super) fn doctor(here: &Here) -> Done {
    let findings = here.machine.examine(&here.file_systems, &here.workloads);
    for finding in &findings {
        let mark = if finding.good { "ok     " } else { "MISSING" };
        say!("{mark} {}: {}", finding.what, finding.detail);
    }
    match install_command(&findings) {
        Some(command) => say!("\nWhat is missing is installed by\n  {command}"),
        None => say!("\nAll programs are there."),
    }
    Ok(())
}

/// Writes the report of a run.
#[derive(Args, Debug)]
pub(super) struct Report {
    #[command(flatten)]
    place: Place,
    /// Name of the run (default: the last).
    name: Option<String>,
    /// Write one HTML file that needs nothing else (default: NAME.html).
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    html: Option<Option<PathBuf>>,
    /// Write JSON ("-": standard output; a name that ends in .zst: compressed).
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Write figures as CSV.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    csv: Option<PathBuf>,
}

/// A run of a database, or of an exported file.
fn recorded(file: &Path, name: Option<&str>) -> Result<Recorded, Failure> {
    let show = file.display();
    match file.metadata() {
        Err(_) => return fail(format!("there is no {show}; --results names another file")),
        // Opening it would make a database of it.
        Ok(found) if found.len() == 0 => {
            return fail(format!("{show} is empty; --results names another file"));
        }
        Ok(_) => {}
    }
    let text = file.to_string_lossy();
    let all = if text.ends_with(".zst") {
        from_json(&unpack(&std::fs::read(file).context(&show)?)?)?.runs
    } else if text.ends_with(".json") {
        from_json(&std::fs::read_to_string(file).context(&show)?)?.runs
    } else {
        let results = Results::open(file)?;
        let names = results.runs()?;
        let chosen = match name {
            Some(name) => name.to_owned(),
            None => match names.last() {
                Some(last) => last.clone(),
                None => return fail(format!("{show} has no run")),
            },
        };
        if !names.contains(&chosen) {
            return fail(format!(
                "{show} has no run {chosen}; it has {}",
                names.join(", ")
            ));
        }
        return Ok(results.recorded(&chosen)?);
    };
    let names: Vec<String> = all.iter().map(|one| one.run.name.clone()).collect();
    let found = match name {
        Some(name) => all.into_iter().find(|one| one.run.name == name),
        None => all.into_iter().next_back(),
    };
    found.map_or_else(
        || {
            fail(format!(
                "{show} has no such run; it has {}",
                names.join(", ")
            ))
        },
        Ok,
    )
}

fn write(to: &Path, bytes: &[u8]) -> Done {
    if to == Path::new("-") {
        say!("{}", String::from_utf8_lossy(bytes).trim_end());
        return Ok(());
    }
    std::fs::write(to, bytes).context(to.display())?;
    say!("{}", to.display());
    Ok(())
}

impl Report {
    pub(super) fn run(self) -> Done {
        let found = recorded(&self.place.results, self.name.as_deref())?;
        let html = match self.html {
            Some(Some(path)) => Some(path),
            None if self.json.is_some() || self.csv.is_some() => None,
            _ => Some(format!("{}.html", found.run.name).into()),
        };
        if let Some(path) = html {
            write(&path, butterfs_lab::report::html(&found).as_bytes())?;
        }
        let dump = Dump::from(found);
        if let Some(path) = self.json {
            let text = to_json(&dump)?;
            if path.to_string_lossy().ends_with(".zst") {
                write(&path, &pack(&text)?)?;
            } else {
                write(&path, text.as_bytes())?;
            }
        }
        if let Some(path) = self.csv {
            write(&path, to_csv(&dump)?.as_bytes())?;
        }
        Ok(())
    }
}

/// Compares two runs.
#[derive(Args, Debug)]
#[command(
    after_help = "A run is FILE, whose last run is meant, or FILE:NAME; a file is a \
database of results or what `report --json` wrote."
)]
pub(super) struct Compare {
    /// The first run.
    first: String,
    /// The second run.
    second: String,
}

fn named(text: &str) -> Result<Recorded, Failure> {
    if Path::new(text).exists() {
        return recorded(Path::new(text), None);
    }
    match text.rsplit_once(':') {
        Some((file, name)) => recorded(Path::new(file), Some(name)),
        None => fail(format!(
            "there is no {text}; give FILE, or FILE:NAME for one run of it"
        )),
    }
}

impl Compare {
    pub(super) fn run(self) -> Done {
        let (first, second) = (named(&self.first)?, named(&self.second)?);
        let comparison = butterfs_lab::compare::compare(&first, &second);
        say!("{}", comparison.to_text().trim_end());
        Ok(())
    }
}
