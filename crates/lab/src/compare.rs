//! Two runs side by side: what differs between the places where they were made,
//! then each cell and metric that both have.
//!
//! Blocks of different runs are not pairs. So a ratio is that of two medians,
//! and its interval comes from all pairs of values (Hodges-Lehmann for two
//! samples, exact from the distribution of the Mann-Whitney statistic).

use crate::model::{Better, CellKey, Durability, Outcome};
use crate::report::{durability_label, label_of, quantity, ratio};
use crate::results::Recorded;
use crate::stats::{Sample, Verdict, judge_samples};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// A fact on which the manifests differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Group and name ("kernel: release").
    pub fact: String,
    /// In the first run; `None` if it does not say.
    pub first: Option<String>,
    /// In the second.
    pub second: Option<String>,
}

/// A metric of a cell that both runs have.
#[derive(Clone, Debug, PartialEq)]
pub struct Compared {
    /// Experiment.
    pub experiment: String,
    /// Cell.
    pub cell: CellKey,
    /// What it promises: the weaker of both.
    pub durability: Durability,
    /// Metric.
    pub metric: String,
    /// Its unit.
    pub unit: String,
    /// Median in the first run.
    pub first: f64,
    /// Median in the second.
    pub second: f64,
    /// second ÷ first: whether the second is better.
    pub verdict: Verdict,
}

/// The result of comparing two runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// Names of the runs.
    pub names: (String, String),
    /// Where the manifests differ.
    pub differences: Vec<Difference>,
    /// Metrics of cells that both have.
    pub compared: Vec<Compared>,
    /// Cells that have figures only in the first run.
    pub only_first: Vec<(String, CellKey)>,
    /// Cells that have figures only in the second.
    pub only_second: Vec<(String, CellKey)>,
}

type Place = (String, CellKey);

struct CellFigures {
    durability: Durability,
    metrics: BTreeMap<String, (String, Better, Vec<f64>)>,
}

/// Compares the second run with the first. All metrics with the same name in an
/// experiment form a family.
pub fn compare(first: &Recorded, second: &Recorded) -> Comparison {
    let (a, b) = (figures(first), figures(second));
    let mut families: BTreeMap<(String, String), Vec<(CellKey, Sample)>> = BTreeMap::new();
    for (place, one) in &a {
        let Some(other) = b.get(place) else { continue };
        for (name, (_, better, values)) in &one.metrics {
            let Some((_, _, others)) = other.metrics.get(name) else {
                continue;
            };
            if *better == Better::Neither {
                continue;
            }
            let sample = Sample {
                first: others.clone(),
                second: values.clone(),
                better: *better,
            };
            families
                .entry((place.0.clone(), name.clone()))
                .or_default()
                .push((place.1.clone(), sample));
        }
    }
    let mut compared = Vec::new();
    for ((experiment, metric), family) in families {
        let samples: Vec<Sample> = family.iter().map(|(_, sample)| sample.clone()).collect();
        for ((cell, sample), verdict) in family.into_iter().zip(judge_samples(&samples)) {
            let place = (experiment.clone(), cell);
            let median =
                |values: &[f64]| crate::stats::median(values).map_or(f64::NAN, |m| m.value);
            let (one, other) = (&a[&place], &b[&place]);
            compared.push(Compared {
                durability: one.durability.max(other.durability),
                unit: one.metrics[&metric].0.clone(),
                first: median(&sample.second),
                second: median(&sample.first),
                experiment: place.0,
                cell: place.1,
                metric: metric.clone(),
                verdict,
            });
        }
    }
    compared.sort_by(|x, y| (&x.experiment, &x.cell).cmp(&(&y.experiment, &y.cell)));
    let only = |one: &BTreeMap<Place, CellFigures>, other: &BTreeMap<Place, CellFigures>| {
        one.keys()
            .filter(|place| !other.contains_key(*place))
            .cloned()
            .collect()
    };
    Comparison {
        names: (first.run.name.clone(), second.run.name.clone()),
        differences: differences(first, second),
        compared,
        only_first: only(&a, &b),
        only_second: only(&b, &a),
    }
}

fn figures(recorded: &Recorded) -> BTreeMap<Place, CellFigures> {
    let mut found: BTreeMap<Place, CellFigures> = BTreeMap::new();
    for record in recorded
        .cells
        .iter()
        .filter(|record| record.outcome == Outcome::Done)
    {
        let cell = found
            .entry((record.experiment.clone(), record.cell.clone()))
            .or_insert_with(|| CellFigures {
                durability: record.durability,
                metrics: BTreeMap::new(),
            });
        cell.durability = cell.durability.max(record.durability);
        for metric in &record.metrics {
            let kept = cell
                .metrics
                .entry(metric.name.clone())
                .or_insert_with(|| (metric.unit.clone(), metric.better, Vec::new()));
            kept.2.push(metric.value);
        }
    }
    found
}

fn differences(first: &Recorded, second: &Recorded) -> Vec<Difference> {
    let flat = |recorded: &Recorded| -> BTreeMap<String, String> {
        let facts = &recorded.run.manifest.facts;
        let mut all: BTreeMap<String, String> = facts
            .iter()
            .flat_map(|(topic, facts)| {
                facts
                    .iter()
                    .map(move |(name, value)| (format!("{topic}: {name}"), value.clone()))
            })
            .collect();
        all.insert(
            "experiment file".to_owned(),
            recorded.run.experiment.clone(),
        );
        all
    };
    let (a, b) = (flat(first), flat(second));
    let names: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name))
        .map(|name| Difference {
            fact: name.clone(),
            first: a.get(name).cloned(),
            second: b.get(name).cloned(),
        })
        .collect()
}

impl Comparison {
    /// The comparison as text for a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        // Writing to a String does not fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let (first, second) = (&self.names.0, &self.names.1);
        if self.differences.is_empty() {
            writeln!(out, "{first} and {second} were made alike.")?;
        } else {
            writeln!(out, "Where {first} and {second} differ:")?;
            for difference in &self.differences {
                let one = |value: &Option<String>| match value {
                    Some(value) if value.contains('\n') => {
                        format!("{} lines", value.lines().count())
                    }
                    Some(value) => value.clone(),
                    None => "(not said)".to_owned(),
                };
                writeln!(
                    out,
                    "  {}: {} | {}",
                    difference.fact,
                    one(&difference.first),
                    one(&difference.second)
                )?;
            }
        }
        let mut shown = "";
        for one in &self.compared {
            if shown != one.experiment {
                writeln!(out, "\n{} ({second} against {first})", one.experiment)?;
                shown = &one.experiment;
            }
            let mark = match durability_label(one.durability) {
                "" => String::new(),
                label => format!(" [{label}]"),
            };
            let (value, interval) = one.verdict.ratio.map_or_else(
                || ("no ratio".to_owned(), String::new()),
                |r| {
                    let span =
                        format!(" ({} to {})", ratio(r.interval.low), ratio(r.interval.high));
                    (format!("{} times", ratio(r.value)), span)
                },
            );
            let screening = if one.verdict.screening {
                ", screening"
            } else {
                ""
            };
            writeln!(
                out,
                "  {}{mark}, {}: {} -> {}, {value}{interval}: {}{screening}",
                label_of(&one.cell, |_| true),
                one.metric,
                quantity(one.first, &one.unit),
                quantity(one.second, &one.unit),
                one.verdict.word.as_str(),
            )?;
        }
        for (name, only) in [(first, &self.only_first), (second, &self.only_second)] {
            if !only.is_empty() {
                writeln!(out, "\nOnly {name} has figures of:")?;
                for (experiment, cell) in only {
                    writeln!(out, "  {experiment}: {}", label_of(cell, |_| true))?;
                }
            }
        }
        Ok(())
    }
}
