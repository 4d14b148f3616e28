//! Records, brought into experiments, conditions, systems and metrics.

use super::page::{Page, escape};
use super::words::in_words;
use crate::model::{Better, CellKey, CellRecord, Durability, Outcome};
use crate::published::SYSTEM_AXES;
use crate::results::Recorded;
use crate::stats::{self, Contrast, Estimate, Verdict, log_ratios};
use std::collections::{BTreeMap, BTreeSet};

/// A run, as the report needs it.
pub(super) struct Digest<'a> {
    pub(super) recorded: &'a Recorded,
    pub(super) experiments: Vec<Experiment<'a>>,
}

/// All cells of an experiment.
pub(super) struct Experiment<'a> {
    pub(super) name: String,
    /// Axes with one value. No label repeats them.
    constant: Vec<(String, String)>,
    /// Systems in alphabetical order, those without figures last.
    pub(super) systems: Vec<String>,
    pub(super) cells: Vec<Cell<'a>>,
    pub(super) slices: Vec<Slice>,
    pub(super) metrics: Vec<MetricKind>,
    marks: BTreeSet<&'a str>,
}

/// One cell with all its passes.
pub(super) struct Cell<'a> {
    pub(super) key: &'a CellKey,
    pub(super) system: String,
    /// Its place in [`Experiment::systems`].
    pub(super) system_index: usize,
    pub(super) condition: String,
    pub(super) durability: Durability,
    pub(super) passes: Vec<&'a CellRecord>,
}

/// Cells that differ only in their system, and the one with which the others
/// are compared; `None` if no cell has figures.
pub(super) struct Slice {
    pub(super) condition: String,
    pub(super) cells: Vec<usize>,
    pub(super) reference: Option<usize>,
}

/// A metric that cells of an experiment have.
#[derive(Clone, PartialEq)]
pub(super) struct MetricKind {
    pub(super) name: String,
    pub(super) unit: String,
    pub(super) better: Better,
    pub(super) headline: bool,
}

/// The weakest promise of several passes or cells.
pub(crate) fn weakest(promises: impl Iterator<Item = Durability>) -> Durability {
    promises.max().unwrap_or(Durability::Full)
}

/// What a durability means to a reader; empty for the full one.
pub(crate) fn durability_label(durability: Durability) -> &'static str {
    match durability {
        Durability::Full => "",
        Durability::Weak => "weak",
        Durability::Unsafe => "unsafe",
    }
}

/// The chosen axes of a key, as one label; "default" if all are empty.
pub(crate) fn label_of(key: &CellKey, chosen: impl Fn(&str) -> bool) -> String {
    let shown = key
        .0
        .iter()
        .filter(|(axis, value)| chosen(axis) && !value.is_empty());
    let (mut system, condition): (Vec<_>, Vec<_>) =
        shown.partition(|(axis, _)| SYSTEM_AXES.contains(&axis.as_str()));
    system.sort_by_key(|(axis, _)| *axis != "file-system");
    let words = |all: &[(&String, &String)]| -> Vec<String> {
        all.iter()
            .map(|(axis, value)| in_words(axis, value))
            .collect()
    };
    let (system, condition) = (words(&system).join(" "), words(&condition).join(", "));
    match (system.is_empty(), condition.is_empty()) {
        (true, true) => "default".to_owned(),
        (false, true) => system,
        (true, false) => condition,
        (false, false) => format!("{system}, {condition}"),
    }
}

impl<'a> Digest<'a> {
    pub(super) fn of(recorded: &'a Recorded) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&CellRecord>> = BTreeMap::new();
        for record in &recorded.cells {
            by_name.entry(&record.experiment).or_default().push(record);
        }
        Self {
            recorded,
            experiments: by_name
                .into_iter()
                .map(|(name, records)| Experiment::of(name, &records))
                .collect(),
        }
    }

    pub(super) fn seed(&self) -> u64 {
        self.recorded.run.seed
    }
}

impl Cell<'_> {
    /// Passes whose figures count.
    pub(super) fn done(&self) -> impl Iterator<Item = &CellRecord> {
        self.passes
            .iter()
            .copied()
            .filter(|record| record.outcome == Outcome::Done)
    }

    /// Values of a metric by block.
    pub(super) fn values(&self, metric: &str) -> BTreeMap<u32, f64> {
        self.done()
            .filter_map(|record| {
                let found = record.metrics.iter().find(|m| m.name == metric)?;
                Some((record.block, found.value))
            })
            .collect()
    }

    pub(super) fn median(&self, metric: &str) -> Option<Estimate> {
        let values: Vec<f64> = self.values(metric).into_values().collect();
        stats::median(&values)
    }

    /// Passes without figures: state, reason, blocks.
    pub(super) fn losses(&self) -> Vec<(&'static str, &str, Vec<u32>)> {
        let mut found: BTreeMap<(&'static str, &str), Vec<u32>> = BTreeMap::new();
        for record in &self.passes {
            let (state, reason) = match &record.outcome {
                Outcome::Done => continue,
                Outcome::Void(reason) => ("void", reason),
                Outcome::Failed(reason) => ("failed", reason),
                Outcome::Unavailable(reason) => ("unavailable", reason),
            };
            found.entry((state, reason)).or_default().push(record.block);
        }
        found
            .into_iter()
            .map(|((state, reason), blocks)| (state, reason, blocks))
            .collect()
    }

    /// It is ButterFS.
    pub(super) fn is_own(&self) -> bool {
        let file_system = self.key.0.get("file-system");
        file_system.is_some_and(|name| name.starts_with("butterfs"))
    }

    /// System and condition.
    pub(super) fn name(&self) -> String {
        if self.condition.is_empty() {
            self.system.clone()
        } else {
            format!("{}, {}", self.system, self.condition)
        }
    }
}

impl<'a> Experiment<'a> {
    fn of(name: &str, records: &[&'a CellRecord]) -> Self {
        let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        let mut by_key: BTreeMap<&CellKey, Vec<&'a CellRecord>> = BTreeMap::new();
        for record in records {
            by_key.entry(&record.cell).or_default().push(record);
        }
        for key in by_key.keys() {
            for (axis, value) in &key.0 {
                values.entry(axis).or_default().insert(value);
            }
        }
        // An axis that some cells lack does vary: it is there or not.
        let varies = |axis: &str| {
            values.get(axis).is_some_and(|set| set.len() > 1)
                || by_key.keys().any(|key| !key.0.contains_key(axis))
        };
        // A parameter that is equal in all cells of its workload says nothing.
        let of_workload = |key: &CellKey| key.0.get("workload").cloned();
        let mut by_workload: BTreeMap<_, Vec<&CellKey>> = BTreeMap::new();
        for key in by_key.keys() {
            by_workload.entry(of_workload(key)).or_default().push(key);
        }
        let tells = |key: &CellKey, axis: &str| {
            let alike = &by_workload[&of_workload(key)];
            axis == "workload"
                || alike
                    .iter()
                    .any(|other| other.0.get(axis) != key.0.get(axis))
        };
        let is_system = |axis: &str| SYSTEM_AXES.contains(&axis);
        let mut cells: Vec<Cell<'a>> = by_key
            .iter()
            .map(|(key, passes)| {
                let conditions = |axis: &str| !is_system(axis) && varies(axis) && tells(key, axis);
                let condition = label_of(key, conditions);
                let mut passes = passes.clone();
                passes.sort_by_key(|record| record.block);
                Cell {
                    key,
                    system: label_of(key, |axis| {
                        axis == "file-system" || is_system(axis) && varies(axis)
                    }),
                    system_index: 0,
                    condition: if condition == "default" {
                        String::new()
                    } else {
                        condition
                    },
                    durability: weakest(passes.iter().map(|record| record.durability)),
                    passes,
                }
            })
            .collect();
        // As numbers if an axis has numbers: 5 comes before 10.
        cells.sort_by_cached_key(|cell| (natural(&cell.condition), natural(&cell.system)));
        // Systems without any figure come last.
        let mut systems: Vec<String> = cells.iter().map(|cell| cell.system.clone()).collect();
        systems.sort_by_cached_key(|name| natural(name));
        systems.dedup();
        let measured = |name: &String| {
            let mut own = cells.iter().filter(|cell| cell.system == *name);
            own.any(|cell| cell.done().next().is_some())
        };
        systems.sort_by_key(|name| !measured(name));
        for cell in &mut cells {
            cell.system_index = systems.iter().position(|s| *s == cell.system).unwrap_or(0);
        }
        let mut slices: Vec<Slice> = Vec::new();
        for (index, cell) in cells.iter().enumerate() {
            match slices.last_mut() {
                Some(slice) if slice.condition == cell.condition => slice.cells.push(index),
                _ => slices.push(Slice {
                    condition: cell.condition.clone(),
                    cells: vec![index],
                    reference: None,
                }),
            }
        }
        for slice in &mut slices {
            slice.reference = reference(&cells, &slice.cells);
        }
        Self {
            name: name.to_owned(),
            constant: values
                .iter()
                .filter(|(axis, _)| !varies(axis))
                .filter_map(|(axis, set)| Some(((*axis).to_owned(), (*set.first()?).to_owned())))
                .collect(),
            metrics: metrics_of(records),
            marks: records
                .iter()
                .flat_map(|record| record.marks.iter().map(String::as_str))
                .collect(),
            systems,
            cells,
            slices,
        }
    }

    /// Verdicts of a slice's cells against its reference in a metric, each with
    /// its cell. They form one family.
    pub(super) fn verdicts(
        &self,
        slice: &Slice,
        metric: &MetricKind,
        seed: u64,
    ) -> Vec<(usize, Verdict)> {
        let Some(reference) = slice.reference else {
            return Vec::new();
        };
        let base = self.cells[reference].values(&metric.name);
        let mut subjects = Vec::new();
        let mut family = Vec::new();
        for &index in slice.cells.iter().filter(|&&index| index != reference) {
            let values = self.cells[index].values(&metric.name);
            let pairs: Vec<(f64, f64)> = values
                .iter()
                .filter_map(|(block, value)| Some((*value, *base.get(block)?)))
                .collect();
            if let Some(log_ratios) = log_ratios(&pairs)
                && !log_ratios.is_empty()
            {
                subjects.push(index);
                family.push(Contrast {
                    log_ratios,
                    better: metric.better,
                });
            }
        }
        subjects
            .into_iter()
            .zip(stats::judge(&family, seed))
            .collect()
    }

    /// What holds for all cells: constant axes and marks.
    pub(super) fn introduce(&self, page: &mut Page) {
        if !self.constant.is_empty() {
            let text: Vec<String> = self
                .constant
                .iter()
                .filter(|(_, value)| !value.is_empty())
                .map(|(axis, value)| in_words(axis, value))
                .collect();
            page.paragraph(&format!("In all cells: {}.", escape(&text.join(", "))));
        }
        for mark in &self.marks {
            page.paragraph(&format!(
                "<strong class=\"mark\">Note:</strong> {}.",
                escape(mark.trim_end_matches('.'))
            ));
        }
    }
}

/// Of the cells with figures: ext4's default, or else the control, or else a
/// default, or else ext4, or else the first that keeps its promises.
fn reference(cells: &[Cell<'_>], slice: &[usize]) -> Option<usize> {
    let rank = |cell: &Cell<'_>| {
        let first = cell.passes.first();
        let default = first.is_some_and(|record| record.default);
        let control = first.is_some_and(|record| record.control);
        let ext4 = cell
            .key
            .0
            .get("file-system")
            .is_some_and(|name| name == "ext4");
        match (default && ext4, control, default, cell.durability) {
            (true, ..) => 0,
            (_, true, ..) => 1,
            (_, _, true, _) => 2,
            (.., Durability::Full) if ext4 => 3,
            (.., Durability::Full) => 4,
            _ => 5,
        }
    };
    slice
        .iter()
        .copied()
        .filter(|&index| cells[index].done().next().is_some())
        .min_by_key(|&index| (rank(&cells[index]), index))
}

fn metrics_of(records: &[&CellRecord]) -> Vec<MetricKind> {
    let mut found: Vec<MetricKind> = Vec::new();
    let done = records
        .iter()
        .filter(|record| record.outcome == Outcome::Done);
    for metric in done.flat_map(|record| &record.metrics) {
        match found.iter_mut().find(|kind| kind.name == metric.name) {
            Some(kind) => kind.headline |= metric.headline,
            None => found.push(MetricKind {
                name: metric.name.clone(),
                unit: metric.unit.clone(),
                better: metric.better,
                headline: metric.headline,
            }),
        }
    }
    found
}

/// A key that sorts runs of digits as numbers.
fn natural(text: &str) -> Vec<(u64, String)> {
    let letters: Vec<char> = text.chars().collect();
    letters
        .chunk_by(|a, b| a.is_ascii_digit() == b.is_ascii_digit())
        .map(|chunk| {
            let chunk: String = chunk.iter().collect();
            (chunk.parse().unwrap_or(0), chunk)
        })
        .collect()
}
