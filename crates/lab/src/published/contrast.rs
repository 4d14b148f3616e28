//! From records to within-block log-ratios of two kinds of cells.

use super::{CONCURRENCY, SYSTEM_AXES};
use crate::model::{Better, CellRecord, Outcome};
use crate::stats::{Contrast, Law, Point, PowerLaw, coefficient_of_variation, log_ratios};
use std::collections::BTreeMap;

/// Which cells are meant: an axis must have the value. "" means that the axis
/// is missing or empty. A system axis that is not named must be missing or
/// empty too, so that a claim about the default is not judged with tuned cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern(pub Vec<(&'static str, String)>);

impl Pattern {
    /// The defaults of a file system.
    pub fn system(name: &str) -> Self {
        Self(vec![("file-system", name.to_owned())])
    }

    /// The same with one more axis.
    #[must_use]
    pub fn with(mut self, axis: &'static str, value: impl Into<String>) -> Self {
        self.0.push((axis, value.into()));
        self
    }

    /// The record is of such a cell.
    pub fn matches(&self, record: &CellRecord) -> bool {
        let named = |axis: &str| self.0.iter().any(|(name, _)| *name == axis);
        let value = |axis: &str| record.cell.0.get(axis).map_or("", String::as_str);
        self.0.iter().all(|(axis, wanted)| value(axis) == wanted)
            && SYSTEM_AXES.iter().all(|axis| {
                named(axis) || matches!(value(axis), "" | "default") || plain(axis, value(axis))
            })
    }
}

/// One device, with its profile, counts as the default.
fn plain(axis: &str, value: &str) -> bool {
    match axis {
        "devices" => value == "1",
        "profile" => value == "single",
        _ => false,
    }
}

/// Which quantity of cells is compared.
#[derive(Clone, Debug, PartialEq)]
pub enum Quantity {
    /// The metric whose name contains one of these. One that begins with "="
    /// must be the whole name.
    Metric(&'static [&'static str]),
    /// The coefficient of variation of its one-second series of throughput.
    Variation,
    /// The exponent of the power law over the concurrency, stated as the ratio
    /// of the fitted throughput at the highest concurrency to that at the
    /// lowest. There is no second cell.
    Growth {
        /// The metric.
        metric: &'static [&'static str],
        /// Lowest concurrency that counts.
        from: f64,
    },
}

impl Quantity {
    fn of(&self, record: &CellRecord) -> Option<(f64, Better)> {
        match self {
            Self::Metric(names) | Self::Growth { metric: names, .. } => record
                .metrics
                .iter()
                .find(|metric| names.iter().any(|name| named(&metric.name, name)))
                .map(|metric| (metric.value, metric.better)),
            Self::Variation => record
                .series
                .first()
                .and_then(|series| coefficient_of_variation(&series.values))
                .map(|value| (value, Better::Lower)),
        }
    }
}

fn named(metric: &str, wanted: &str) -> bool {
    let metric = metric.to_lowercase();
    let words = metric
        .split(['_', '-', ',', ' '])
        .filter(|word| !word.is_empty());
    let metric = words.collect::<Vec<_>>().join(" ");
    match wanted.strip_prefix('=') {
        Some(whole) => metric == whole,
        None => metric.contains(wanted),
    }
}

/// subject ÷ reference in each block. Pairs agree in every axis that neither
/// pattern names and that is not a system axis. Several pairs of a block are
/// averaged. Records must come from one experiment. `None` if no block has
/// both.
pub(super) fn contrast(
    records: &[&CellRecord],
    subject: &Pattern,
    reference: &Pattern,
    quantity: &Quantity,
) -> Option<Contrast> {
    let axes: Vec<&str> = subject
        .0
        .iter()
        .chain(&reference.0)
        .map(|(a, _)| *a)
        .collect();
    let rest = |record: &CellRecord| -> BTreeMap<String, String> {
        let free = |axis: &str| !axes.contains(&axis) && !SYSTEM_AXES.contains(&axis);
        let kept = record.cell.0.iter().filter(|(axis, _)| free(axis));
        kept.map(|(k, v)| (k.clone(), v.clone())).collect()
    };
    let done = |pattern: &Pattern| -> BTreeMap<(u32, BTreeMap<String, String>), (f64, Better)> {
        records
            .iter()
            .filter(|record| record.outcome == Outcome::Done && pattern.matches(record))
            .filter_map(|record| Some(((record.block, rest(record)), quantity.of(record)?)))
            .collect()
    };
    let second = done(reference);
    let mut blocks: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    let mut way = Better::Neither;
    for (place, (value, better)) in done(subject) {
        let Some((other, _)) = second.get(&place) else {
            continue;
        };
        blocks
            .entry(place.0)
            .or_default()
            .extend(log_ratios(&[(value, *other)])?);
        way = better;
    }
    let mean = |values: &Vec<f64>| values.iter().sum::<f64>() / values.len() as f64;
    (!blocks.is_empty()).then(|| Contrast {
        log_ratios: blocks.values().map(mean).collect(),
        better: way,
    })
}

/// The growth of one kind of cell over the concurrency, block by block; see
/// [`Quantity::Growth`].
pub(super) fn growth(
    records: &[&CellRecord],
    subject: &Pattern,
    quantity: &Quantity,
    from: f64,
) -> Option<Contrast> {
    let mut blocks: BTreeMap<u32, Vec<Point>> = BTreeMap::new();
    let mut way = Better::Neither;
    for record in records {
        let level = record
            .cell
            .0
            .get(CONCURRENCY)
            .and_then(|v| v.parse::<f64>().ok());
        let (Some(concurrency), Some((throughput, better))) = (level, quantity.of(record)) else {
            continue;
        };
        if record.outcome == Outcome::Done
            && subject.matches(record)
            && concurrency >= from
            && throughput > 0.0
        {
            way = better;
            blocks.entry(record.block).or_default().push(Point {
                block: record.block,
                concurrency,
                throughput,
            });
        }
    }
    let ratios: Vec<f64> = blocks
        .values()
        .filter(|points| points.len() >= 3)
        .filter_map(|points| {
            let law = PowerLaw::fit(points)?;
            let levels = points.iter().map(|p| p.concurrency);
            let lowest = levels.clone().fold(f64::INFINITY, f64::min);
            let highest = levels.fold(0.0, f64::max);
            Some(law.b * (highest / lowest).ln())
        })
        .collect();
    (!ratios.is_empty()).then_some(Contrast {
        log_ratios: ratios,
        better: way,
    })
}
