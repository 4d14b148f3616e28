//! Normalised bars, as in dbench-2011: each system's median beside the best one
//! that keeps its promises.

use super::digest::{Cell, Digest, Experiment, MetricKind, Slice, durability_label};
use super::number::{quantity, ratio};
use super::page::{Page, escape};
use crate::model::{Better, Durability};
use crate::stats::{Estimate, Verdict, Word};
use std::collections::BTreeMap;

/// With more conditions than this, only the first, the middle and the last have
/// bars. The curves have all of them.
const SLICES_MAX: usize = 6;

/// How to read the bars, once for each experiment.
const KEY: &str = "<p class=\"soft key\">1 (the dotted line) is the best cell that keeps what was fsynced. Lines at the ends are \
confidence intervals of the median. Full bars keep their promises; striped ones (weak) may give back stale data that were not \
fsynced; hatched ones with a dashed edge (unsafe) may lose what was fsynced.</p>\n";

pub(super) fn write(experiment: &Experiment<'_>, digest: &Digest<'_>, page: &mut Page) {
    let mut explained = false;
    for metric in experiment.metrics.iter().filter(|metric| metric.headline) {
        let slices = chosen(&experiment.slices);
        let mut rows = String::new();
        for slice in &slices {
            slice_rows(experiment, slice, metric, digest, &mut rows);
        }
        if rows.is_empty() {
            continue;
        }
        page.heading(&format!("{}: beside the best", metric.name));
        let way = match metric.better {
            Better::Lower => {
                "less is better, and longer is better: a bar is the best median ÷ the cell's"
            }
            _ => "longer is better: a bar is the cell's median ÷ the best",
        };
        let left = if slices.len() < experiment.slices.len() {
            " Some of the conditions only; the curves and tables have all."
        } else {
            ""
        };
        if !explained {
            page.push(KEY);
            explained = true;
        }
        page.push(&format!(
            "<table class=\"bars\"><caption>{}, {way}.{left}</caption><tbody>{rows}</tbody></table>\n",
            escape(&metric.name)
        ));
    }
}

fn chosen(slices: &[Slice]) -> Vec<&Slice> {
    if slices.len() <= SLICES_MAX {
        return slices.iter().collect();
    }
    vec![
        &slices[0],
        &slices[slices.len() / 2],
        &slices[slices.len() - 1],
    ]
}

/// How good a value is beside another: 1 if they are equal, more if it is
/// better.
fn goodness(metric: &MetricKind, value: f64, best: f64) -> f64 {
    let (upper, lower) = match metric.better {
        Better::Lower => (best, value),
        _ => (value, best),
    };
    if lower == 0.0 { 1.0 } else { upper / lower }
}

fn slice_rows(
    experiment: &Experiment<'_>,
    slice: &Slice,
    metric: &MetricKind,
    digest: &Digest<'_>,
    rows: &mut String,
) {
    let medians: BTreeMap<usize, Estimate> = slice
        .cells
        .iter()
        .filter_map(|&index| Some((index, experiment.cells[index].median(&metric.name)?)))
        .collect();
    let safe = |index: &usize| experiment.cells[*index].durability != Durability::Unsafe;
    let order = |a: &f64, b: &f64| match metric.better {
        Better::Lower => b.total_cmp(a),
        _ => a.total_cmp(b),
    };
    let best_of = |only_safe: bool| {
        medians
            .iter()
            .filter(|(index, _)| !only_safe || safe(index))
            .map(|(_, median)| median.value)
            .max_by(order)
    };
    let Some(best) = best_of(true).or_else(|| best_of(false)) else {
        return;
    };
    let verdicts: BTreeMap<usize, Verdict> = experiment
        .verdicts(slice, metric, digest.seed())
        .into_iter()
        .collect();
    let longest = medians
        .values()
        .flat_map(|m| [m.value, m.interval.low, m.interval.high])
        .map(|value| goodness(metric, value, best))
        .fold(1.0, f64::max);
    if !slice.condition.is_empty() {
        rows.push_str(&format!(
            "<tr class=\"slice\"><th colspan=\"3\" scope=\"rowgroup\">{}</th></tr>\n",
            escape(&slice.condition)
        ));
    }
    for &index in &slice.cells {
        let cell = &experiment.cells[index];
        let says = match medians.get(&index) {
            Some(median) => {
                let said = match verdicts.get(&index) {
                    Some(verdict) => word(verdict, cell.durability),
                    None if slice.reference == Some(index) => {
                        "<span class=\"badge ref\">reference</span>".to_owned()
                    }
                    None => String::new(),
                };
                format!(
                    "<td class=\"bar\">{}</td><td class=\"says\"><strong>{}</strong> ({}) {said}</td>",
                    bar(metric, median, best, longest, cell.durability),
                    ratio(goodness(metric, median.value, best)),
                    escape(&quantity(median.value, &metric.unit)),
                )
            }
            None => format!("<td class=\"bar\" colspan=\"2\">{}</td>", losses(cell)),
        };
        let own = match cell.is_own() {
            true => " class=\"own\"",
            false => "",
        };
        rows.push_str(&format!(
            "<tr{own} data-durability=\"{}\"><th scope=\"row\">{}{}</th>{says}</tr>\n",
            durability_label(cell.durability),
            escape(&cell.system),
            badge(cell.durability),
        ));
    }
}

fn bar(
    metric: &MetricKind,
    median: &Estimate,
    best: f64,
    longest: f64,
    durability: Durability,
) -> String {
    // The longest bar has a hundred units. The rest is for the end of the
    // whisker.
    let place = |value: f64| 98.0 * goodness(metric, value, best) / longest;
    let class = match durability {
        Durability::Full => "bar-full",
        Durability::Weak => "bar-weak",
        Durability::Unsafe => "bar-unsafe",
    };
    let one = 98.0 / longest;
    let (a, b) = (place(median.interval.low), place(median.interval.high));
    format!(
        "<svg aria-hidden=\"true\"><rect class=\"{class}\" x=\"0\" y=\"18%\" width=\"{:.2}%\" height=\"64%\"/>\
         <line class=\"best\" x1=\"{one:.2}%\" x2=\"{one:.2}%\" y1=\"0\" y2=\"100%\"/>\
         <line class=\"whisker\" x1=\"{a:.2}%\" x2=\"{b:.2}%\" y1=\"50%\" y2=\"50%\"/>\
         <line class=\"whisker\" x1=\"{a:.2}%\" x2=\"{a:.2}%\" y1=\"32%\" y2=\"68%\"/>\
         <line class=\"whisker\" x1=\"{b:.2}%\" x2=\"{b:.2}%\" y1=\"32%\" y2=\"68%\"/></svg>",
        place(median.value)
    )
}

/// The word of a verdict, marked for readers with and without colour. Unsafe
/// cells never win without a mark.
pub(super) fn word(verdict: &Verdict, durability: Durability) -> String {
    let word = verdict.word.as_str();
    let screening = if verdict.screening {
        " (screening)"
    } else {
        ""
    };
    if verdict.word == Word::Better && durability == Durability::Unsafe {
        return format!("<span class=\"word but-unsafe\">{word}, but unsafe</span>");
    }
    format!("<span class=\"word {word}\">{word}{screening}</span>")
}

/// The mark of cells that promise less.
pub(super) fn badge(durability: Durability) -> String {
    match durability_label(durability) {
        "" => String::new(),
        label => format!(" <span class=\"badge {label}\">{label}</span>"),
    }
}

/// Why a cell has no figures, or lacks some.
pub(super) fn losses(cell: &Cell<'_>) -> String {
    let parts: Vec<String> = cell
        .losses()
        .into_iter()
        .map(|(state, reason, blocks)| {
            let passes = if blocks.len() == cell.passes.len() {
                String::new()
            } else {
                format!(" in {} of {} passes", blocks.len(), cell.passes.len())
            };
            format!(
                "<span class=\"badge lost\">{state}</span>{passes}: {}",
                escape(reason)
            )
        })
        .collect();
    if parts.is_empty() {
        "no figure".to_owned()
    } else {
        parts.join("; ")
    }
}
