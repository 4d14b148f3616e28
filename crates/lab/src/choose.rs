//! Which file system, and with which options, suits somebody's workload, found
//! with as few blocks as can decide it.
//!
//! One block of all candidates leaves out the slow ones. The few that are left
//! then get as many blocks as decide between them. The verdicts come from
//! [`crate::stats`]. A candidate that promises less than full durability never
//! wins.

use crate::catalogue::Catalogue;
use crate::model::{Better, CellKey, CellRecord, Durability, Outcome};
use crate::published::SYSTEM_AXES;
use crate::report::label_of;
use crate::stats::{Contrast, Word, judge, median};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// What the workload is like.
pub const KINDS: &[(&str, &str)] = &[
    ("database", "a database: small random writes, each durable"),
    ("small-files", "many small files: mail, sources, caches"),
    ("large-files", "large files: media, images, archives"),
    ("web", "a web server: many small reads by many clients"),
    ("shared", "a file server: a mixture, by several clients"),
];

/// What the file system must have.
pub const NEEDS: &[(&str, &str)] = &[
    ("nothing", "nothing special"),
    ("checksums", "checksums of data"),
    ("snapshots", "snapshots"),
];

/// Whether the data compress.
pub const CONTENTS: &[(&str, &str)] = &[
    ("yes", "they compress: text, tables, sources"),
    ("no", "they do not: pictures, films, encrypted data"),
];

/// Candidates that stay after the first block.
pub const FINALISTS: usize = 4;

/// Answers to the three questions, each a name of its table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// One of [`KINDS`].
    pub kind: String,
    /// One of [`NEEDS`].
    pub need: String,
    /// One of [`CONTENTS`].
    pub content: String,
}

/// A file system with options.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Candidate {
    /// File system.
    pub file_system: String,
    /// Mount options.
    pub mount: String,
}

impl Candidate {
    /// In words.
    pub fn name(&self) -> String {
        match self.mount.as_str() {
            "" => format!("{} with its defaults", self.file_system),
            mount => format!("{} with -o {mount}", self.file_system),
        }
    }

    /// The candidate of a cell.
    pub fn of(key: &CellKey) -> Self {
        let get = |axis: &str| key.0.get(axis).cloned().unwrap_or_default();
        Self {
            file_system: get("file-system"),
            mount: get("mount"),
        }
    }
}

impl Answers {
    /// The candidates that fit these answers.
    pub fn candidates(&self) -> Vec<Candidate> {
        let mut found = Vec::new();
        let mut add = |file_system: &str, mount: &str| {
            found.push(Candidate {
                file_system: file_system.to_owned(),
                mount: mount.to_owned(),
            });
        };
        if self.need == "nothing" {
            add("ext4", "");
            add("xfs", "");
        }
        for name in ["btrfs", "butterfs"] {
            add(name, "");
            if self.content == "yes" {
                add(name, "compress=zstd:1");
            }
            // nodatacow turns checksums off.
            if self.kind == "database" && self.need != "checksums" {
                add(name, "nodatacow");
            }
        }
        found
    }

    /// The experiment that compares some candidates.
    pub fn experiment(&self, candidates: &[Candidate], workloads: &Catalogue) -> String {
        let (workload, parameters) = match self.kind.as_str() {
            "database" => ("transactions", "size = \"256m\", time = 8"),
            "small-files" => ("files", "files = 10000"),
            "large-files" => ("grid", "size = \"256m\", record = \"1m\""),
            "web" => ("http", "rates = \"500\", time = 8"),
            _ => ("dbench", "time = 8"),
        };
        // A build without this workload uses `tiny`.
        let (workload, parameters) = match workloads.get(workload) {
            Some(_) => (workload, parameters),
            None if self.kind == "large-files" => ("tiny", "files = 48, size = \"4m\""),
            None => ("tiny", "files = 2000, size = \"8k\""),
        };
        let compressible = match (workload, self.content.as_str()) {
            ("dbench", _) => "",
            (_, "yes") => "compressible = 50\n",
            _ => "compressible = 0\n",
        };
        let mut text = format!(
            "name = \"choose\"\ntitle = \"{} that {}, with {}\"\nrepeats = 1\n\n\
             [scale.small]\ndevice-size = \"1G\"\ndevice = \"file\"\nsettle = 0.2\n",
            self.kind,
            if self.content == "yes" {
                "compress"
            } else {
                "do not compress"
            },
            self.need,
        );
        for candidate in candidates {
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "\n[[cells]]\nfile-system = \"{}\"\nmount = \"{}\"\nworkload = \"{workload}\"\n{compressible}parameters = {{ {parameters} }}\n",
                candidate.file_system, candidate.mount
            );
        }
        text
    }
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The best candidate.
    pub best: Candidate,
    /// Others that are equivalent to it, or that the blocks cannot tell from
    /// it.
    pub others: Vec<(Candidate, Word)>,
    /// All of it in sentences.
    pub text: String,
}

/// Logarithms of how much better one pass is than another, as the mean over
/// their headline metrics.
fn gain(subject: &CellRecord, reference: &CellRecord) -> Option<f64> {
    let mut logs = Vec::new();
    for metric in subject.metrics.iter().filter(|metric| metric.headline) {
        let other = reference
            .metrics
            .iter()
            .find(|other| other.name == metric.name)?;
        if metric.value <= 0.0 || other.value <= 0.0 {
            continue;
        }
        let log = (metric.value / other.value).ln();
        match metric.better {
            Better::Higher => logs.push(log),
            Better::Lower => logs.push(-log),
            Better::Neither => {}
        }
    }
    (!logs.is_empty()).then(|| logs.iter().sum::<f64>() / logs.len() as f64)
}

type Passes<'a> = BTreeMap<Candidate, BTreeMap<u32, &'a CellRecord>>;

fn passes(records: &[CellRecord]) -> Passes<'_> {
    let mut found: Passes<'_> = BTreeMap::new();
    for record in records {
        if record.outcome == Outcome::Done {
            let own = found.entry(Candidate::of(&record.cell)).or_default();
            own.insert(record.block, record);
        }
    }
    found
}

/// Candidates by their median gain over one of them, the best first.
fn ranked(passes: &Passes<'_>) -> Vec<Candidate> {
    let Some(base) = passes.values().next() else {
        return Vec::new();
    };
    let mut found: Vec<(f64, &Candidate)> = passes
        .iter()
        .filter_map(|(candidate, own)| {
            let gains = own
                .iter()
                .filter_map(|(block, pass)| gain(pass, base.get(block)?));
            let gains: Vec<f64> = gains.collect();
            Some((median(&gains)?.value, candidate))
        })
        .collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
        .into_iter()
        .map(|(_, candidate)| candidate.clone())
        .collect()
}

/// Those that stay after the first block.
pub fn finalists(records: &[CellRecord]) -> Vec<Candidate> {
    let mut found = ranked(&passes(records));
    found.truncate(FINALISTS);
    found
}

/// Candidates without any figure, and why.
pub fn without_figures(records: &[CellRecord]) -> BTreeMap<Candidate, String> {
    let measured = passes(records);
    let mut found = BTreeMap::new();
    for record in records {
        let candidate = Candidate::of(&record.cell);
        if let Outcome::Void(why) | Outcome::Failed(why) | Outcome::Unavailable(why) =
            &record.outcome
            && !measured.contains_key(&candidate)
        {
            found.insert(candidate, why.clone());
        }
    }
    found
}

/// What the records say; `None` if no candidate has figures.
pub fn advise(records: &[CellRecord], seed: u64) -> Option<Advice> {
    let all = passes(records);
    let full = |candidate: &Candidate| {
        all[candidate]
            .values()
            .all(|record| record.durability == Durability::Full)
    };
    let order = ranked(&all);
    let best = order
        .iter()
        .find(|one| full(one))
        .or(order.first())?
        .clone();
    let base = &all[&best];
    let rest: Vec<&Candidate> = order.iter().filter(|one| **one != best).collect();
    let family: Vec<Contrast> = rest
        .iter()
        .map(|candidate| Contrast {
            log_ratios: all[*candidate]
                .iter()
                .filter_map(|(block, pass)| gain(base.get(block)?, pass))
                .collect(),
            better: Better::Higher,
        })
        .collect();
    let verdicts = judge(&family, seed);
    let mut text = format!("Take {}.\n", best.name());
    if rest.is_empty() {
        text.push_str("It is the only candidate with figures here.\n");
    }
    let mut others = Vec::new();
    for (candidate, verdict) in rest.into_iter().zip(&verdicts) {
        let speed = verdict.ratio.as_ref().map_or("?".to_owned(), |ratio| {
            format!(
                "{} times its speed ({} to {})",
                crate::report::ratio(ratio.value),
                crate::report::ratio(ratio.interval.low),
                crate::report::ratio(ratio.interval.high)
            )
        });
        let note = if full(candidate) {
            ""
        } else {
            " (which promises less of your data)"
        };
        let said = match verdict.word {
            Word::Better => "faster than",
            Word::Worse => "slower than",
            Word::Equivalent => "equivalent to",
            Word::Undecided => "not told from",
        };
        let _ = writeln!(
            text,
            "It is {said} {}{note}: {speed}, {} block{}, p = {:.3}.",
            candidate.name(),
            verdict.blocks,
            if verdict.blocks == 1 { "" } else { "s" },
            verdict.p_adjusted
        );
        if verdict.word != Word::Better {
            others.push((candidate.clone(), verdict.word));
        }
    }
    let conditions: BTreeSet<String> = records
        .iter()
        .map(|record| label_of(&record.cell, |axis| !SYSTEM_AXES.contains(&axis)))
        .collect();
    let conditions: Vec<String> = conditions.into_iter().collect();
    let _ = writeln!(
        text,
        "That was measured with {}, on this machine.",
        conditions.join("; ")
    );
    Some(Advice { best, others, text })
}
