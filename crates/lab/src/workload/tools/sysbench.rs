//! What sysbench 1.0 prints, for the workloads that use it.

use super::super::Figures;
use super::super::measure::less;
use crate::model::{Latencies, Series};

/// The number after a label ("total number of events:").
pub(super) fn after(text: &str, label: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(label))?;
    let word = line.split_whitespace().next()?;
    word.trim_end_matches(['s', ',']).parse().ok()
}

/// "transactions:   2497   (827.08 per sec.)": the count and the rate.
pub(super) fn counted(text: &str, label: &str) -> Option<(u64, f64)> {
    let line = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(label))?;
    let mut words = line.split_whitespace();
    let count = words.next()?.parse().ok()?;
    let rate = words.next()?.trim_start_matches('(').parse().ok()?;
    Some((count, rate))
}

/// The version in its first line.
pub(super) fn version_of(text: &str) -> String {
    let line = text.lines().find(|line| line.starts_with("sysbench "));
    line.unwrap_or("sysbench of an unknown version").to_owned()
}

/// The histogram, in milliseconds; small values repeat, rounded.
pub(super) fn histogram(text: &str, name: &str) -> Option<Latencies> {
    let table = text.split_once("Latency histogram")?.1;
    let mut upper: Vec<f64> = Vec::new();
    let mut counts: Vec<u64> = Vec::new();
    for line in table.lines().skip(2) {
        let Some((value, rest)) = line.split_once('|') else {
            break;
        };
        let value = value.trim().parse::<f64>().ok()? / 1e3;
        let count = rest.split_whitespace().last()?.parse().ok()?;
        match (upper.last(), counts.last_mut()) {
            (Some(last), Some(sum)) if *last == value => *sum += count,
            _ => {
                upper.push(value);
                counts.push(count);
            }
        }
    }
    (!upper.is_empty()).then(|| Latencies {
        name: name.to_owned(),
        upper,
        counts,
    })
}

/// One-second reports: `value_of` reads a figure from the words of a line.
pub(super) fn series(
    text: &str,
    name: &str,
    unit: &str,
    value_of: impl Fn(&[&str]) -> Option<f64>,
) -> Option<Series> {
    let lines = text.lines().filter(|line| line.starts_with("[ "));
    let values: Vec<f64> = lines
        .filter_map(|line| value_of(&line.split_whitespace().collect::<Vec<_>>()))
        .collect();
    (!values.is_empty()).then(|| Series {
        name: name.to_owned(),
        unit: unit.to_owned(),
        step: 1.0,
        values,
    })
}

/// The word after another, as a number.
pub(super) fn word_after(words: &[&str], label: &str) -> Option<f64> {
    let place = words.iter().position(|word| *word == label)?;
    words.get(place + 1)?.trim_end_matches("/s").parse().ok()
}

/// Adds the distribution and its percentiles, `p95` by itself, too.
pub(super) fn add_histogram(text: &str, name: &str, figures: &mut Figures) {
    if let Some(latencies) = histogram(text, name) {
        if let Some(p95) = crate::stats::percentile(&latencies, 0.95) {
            figures.add(less("p95", "s", p95).headline());
        }
        figures.add_percentiles(&latencies);
        figures.latencies.push(latencies);
    }
    if let Some(longest) = after(text, "max:") {
        figures.add(less(&format!("{name} longest latency"), "s", longest / 1e3));
    }
}
