//! PostMark 1.5: small files of a mail server.

use super::super::measure::{less, more};
use super::super::parameters::Given;
use super::super::program::{command, line_of, run};
use super::super::{Demand, Figures, Ground, Parameters, Workload};
use std::fs;
use std::time::Duration;

/// PostMark.
pub(in super::super) struct Postmark;

impl Workload for Postmark {
    fn name(&self) -> &'static str {
        "postmark"
    }

    fn programs(&self) -> &'static [(&'static str, &'static str)] {
        &[("postmark", "postmark")]
    }

    fn parameters(&self) -> &'static [(&'static str, &'static str, &'static str)] {
        &[
            ("files", "20000", "files at the start"),
            ("transactions", "100000", "transactions"),
            ("size", "500", "bytes of a file at least"),
            ("size-most", "10000", "bytes of a file at most"),
            ("directories", "1", "directories that hold them"),
        ]
    }

    fn demand(&self, parameters: &Parameters) -> Result<Demand, String> {
        let given = Given::new(self, parameters)?;
        let files = given.number("files", 1, 1 << 30)?;
        let transactions = given.number("transactions", 1, 1 << 30)?;
        let least = given.bytes("size", 1, 1 << 30)?;
        let most = given.bytes("size-most", 1, 1 << 30)?;
        given.number("directories", 1, 1 << 20)?;
        if most < least {
            return Err(format!(
                "postmark: size-most = {most} is less than size = {least}"
            ));
        }
        Ok(Demand {
            space: (files + transactions / 2) * (most.next_multiple_of(4096) + 1024),
            memory: (files + transactions) * 64 + (16 << 20),
            time: Duration::from_secs(2 + (files * 2 + transactions) / 2000),
        })
    }

    fn run(&self, parameters: &Parameters, ground: &mut dyn Ground) -> Result<Figures, String> {
        self.demand(parameters)?;
        let given = Given::new(self, parameters)?;
        ground.next_phase("transactions")?;
        let directories = given.number("directories", 1, 1 << 20)?;
        let script = format!(
            "set location {}\nset seed {}\nset number {}\nset transactions {}\n\
             set size {} {}\nset subdirectories {}\nrun\nquit\n",
            ground.directory().display(),
            // The tool reads an int.
            ground.seed() % 0x7FFF_FFFE + 1,
            given.text("files"),
            given.text("transactions"),
            given.bytes("size", 1, 1 << 30)?,
            given.bytes("size-most", 1, 1 << 30)?,
            // With 0, all files lie in the location itself.
            if directories == 1 { 0 } else { directories },
        );
        let path = ground.scratch().join("postmark.cfg");
        fs::write(&path, &script).map_err(|error| format!("write {}: {error}", path.display()))?;
        let mut postmark = command("postmark", None)?;
        postmark.arg(&path);
        let output = run("postmark", &mut postmark, ground)?;
        let mut figures = parse(&output.text)?;
        figures.fact("command", line_of(&postmark));
        figures.fact("script", script.replace('\n', "; "));
        figures.mark("the tool's files are parts of one text, which repeats from file to file");
        figures.mark("the tool tells time in whole seconds; the runner's time is finer");
        Ok(figures)
    }
}

/// Reads the tool's summary.
fn parse(text: &str) -> Result<Figures, String> {
    let told = |what: &str| format!("postmark printed no {what}: {text}");
    let line = |label: &str| {
        let found = text.lines().find(|line| line.contains(label));
        found.map(str::trim).ok_or_else(|| told(label))
    };
    let first = |label: &str| -> Result<f64, String> {
        let word = line(label)?.split_whitespace().next().unwrap_or_default();
        word.parse().map_err(|_| told(label))
    };
    let per_second = |label: &str| -> Result<f64, String> {
        let line = line(label)?;
        let inside = line.rsplit_once('(').map_or("", |(_, inside)| inside);
        let word = inside.split_whitespace().next().unwrap_or_default();
        word.parse().map_err(|_| told(label))
    };
    let mut figures = Figures::default();
    let version = line("PostMark v")?.split(':').next().unwrap_or_default();
    figures.fact("tool", version.trim());
    figures.add(
        more(
            "transactions",
            "transactions/s",
            per_second("of transactions")?,
        )
        .headline(),
    );
    figures.add(less("total", "s", first("seconds total")?));
    for (label, name) in [("Creation alone", "create"), ("Deletion alone", "delete")] {
        figures.add(more(name, "files/s", per_second(label)?));
    }
    let count = ["created (", "read (", "appended (", "deleted ("].map(first);
    let mut operations = 0.0;
    for one in count {
        operations += one?;
    }
    figures.operations = Some(operations as u64);
    // "2.82 megabytes written", or bytes, or kilobytes: powers of 1024.
    let written = line(" written (")?;
    let mut words = written.split_whitespace();
    let number: f64 = words
        .next()
        .and_then(|n| n.parse().ok())
        .ok_or_else(|| told("written"))?;
    let factor = match words.next() {
        Some("bytes") => 1.0,
        Some("kilobytes") => 1024.0,
        Some("megabytes") => 1024.0 * 1024.0,
        Some("gigabytes") => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(told("unit of what was written")),
    };
    figures.written = Some((number * factor) as u64);
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_postmark_is_understood() {
        let figures = parse(include_str!("golden/postmark.txt")).unwrap();
        assert_eq!(figures.facts["tool"], "PostMark v1.51");
        let value = |name: &str| figures.value(name);
        assert_eq!(value("transactions"), 500.0);
        assert_eq!(value("create"), 200.0);
        assert_eq!(value("delete"), 236.0);
        assert_eq!(figures.operations, Some(468 + 236 + 263 + 468));
        assert_eq!(figures.written, Some((2.82 * 1_048_576.0) as u64));
    }

    #[test]
    fn a_postmark_that_failed_is_an_error() {
        assert!(parse("PostMark v1.51 : 8/14/01\nError: cannot open").is_err());
    }
}
