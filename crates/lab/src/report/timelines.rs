//! One-second series: what a mean hides.

use super::bars::badge;
use super::chart::{Axis, Chart, POINTS_MIN, Spacing};
use super::digest::{Cell, Experiment, durability_label};
use super::number::{Scale, significant};
use super::page::{Page, escape};
use crate::model::Series;
use crate::stats::{coefficient_of_variation, longest_stall, median};
use std::collections::BTreeSet;

/// Greatest number of charts for one condition. The rest is in the database.
const CHARTS_MAX: usize = 24;

pub(super) fn write(experiment: &Experiment<'_>, page: &mut Page) {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for cell in &experiment.cells {
        names.extend(
            cell.done()
                .flat_map(|r| r.series.iter().map(|s| s.name.as_str())),
        );
    }
    for name in names {
        let cells: Vec<(&Cell<'_>, Vec<&Series>)> = experiment
            .cells
            .iter()
            .map(|cell| (cell, series_of(cell, name)))
            .filter(|(_, all)| all.iter().any(|series| series.values.len() >= POINTS_MIN))
            .collect();
        if cells.is_empty() {
            continue;
        }
        page.heading(&format!("{name}: second by second"));
        draw(name, &cells, page);
    }
}

fn series_of<'a>(cell: &'a Cell<'_>, name: &str) -> Vec<&'a Series> {
    cell.done()
        .filter_map(|record| record.series.iter().find(|series| series.name == name))
        .collect()
}

fn draw(name: &str, cells: &[(&Cell<'_>, Vec<&Series>)], page: &mut Page) {
    let all = || cells.iter().flat_map(|(_, all)| all.iter());
    let largest = all()
        .flat_map(|s| s.values.iter())
        .fold(0.0, |a: f64, b| a.max(*b));
    let unit = all().next().map_or("", |series| series.unit.as_str());
    let scale = Scale::of(unit, largest);
    let y = Axis::holding(
        &format!("{name}, {}", scale.unit),
        Spacing::Linear,
        [scale.divide(largest)],
    );
    let longest = all()
        .map(|s| s.values.len() as f64 * s.step)
        .fold(1.0, f64::max);
    let x = Axis::holding("seconds after the warm-up", Spacing::Linear, [longest]);
    page.push("<p class=\"soft\">Thin lines are the blocks, the thick one their median at each step. All charts have one scale.</p><div class=\"charts\">\n");
    for (cell, all) in cells.iter().take(CHARTS_MAX) {
        let mut chart = Chart::new(x.clone(), y.clone());
        let style = cell.system_index;
        for series in all {
            chart.course(&points(series, &series.values, &scale), style, "thin solid");
        }
        if let Some(first) = all.first() {
            let middle = medians(all);
            chart.course(&points(first, &middle, &scale), style, "course solid");
        }
        page.push(&format!(
            "<figure data-durability=\"{}\">{}<figcaption>{}{}: {}</figcaption></figure>\n",
            durability_label(cell.durability),
            chart.finish(&format!("{}: {name} over time", cell.name())),
            escape(&cell.name()),
            badge(cell.durability),
            steadiness(all)
        ));
    }
    page.push("</div>\n");
    if cells.len() > CHARTS_MAX {
        page.paragraph(&format!(
            "{} more cells have such series; they are in the database.",
            cells.len() - CHARTS_MAX
        ));
    }
}

fn points(series: &Series, values: &[f64], scale: &Scale) -> Vec<(f64, f64)> {
    values
        .iter()
        .enumerate()
        .map(|(i, value)| ((i as f64 + 0.5) * series.step, scale.divide(*value)))
        .collect()
}

/// The median over blocks at each step that more than half of them have.
fn medians(all: &[&Series]) -> Vec<f64> {
    let longest = all
        .iter()
        .map(|series| series.values.len())
        .max()
        .unwrap_or(0);
    (0..longest)
        .map_while(|step| {
            let values: Vec<f64> = all
                .iter()
                .filter_map(|s| s.values.get(step).copied())
                .collect();
            let enough = values.len() * 2 > all.len();
            enough.then(|| median(&values).map(|found| found.value))?
        })
        .collect()
}

/// Variation and stalls, over the blocks.
pub(super) fn steadiness(all: &[&Series]) -> String {
    let variations: Vec<f64> = all
        .iter()
        .filter_map(|s| coefficient_of_variation(&s.values))
        .collect();
    let variation = median(&variations).map_or_else(
        || "no variation to tell".to_owned(),
        |found| {
            format!(
                "coefficient of variation {} (median)",
                significant(found.value)
            )
        },
    );
    let stall = all
        .iter()
        .map(|series| longest_stall(&series.values) as f64 * series.step)
        .fold(0.0, f64::max);
    let stall = if stall > 0.0 {
        format!("longest stall {stall} s (below a tenth of the median)")
    } else {
        "no stall".to_owned()
    };
    format!("{variation}; {stall}")
}
