//! Latency distributions: percentiles up to the slowest operation.

use super::bars::badge;
use super::chart::{Axis, Chart, POINTS_MIN, Spacing, legend};
use super::digest::{Cell, Experiment, durability_label};
use super::number::quantity;
use super::page::{Page, escape};
use crate::model::{Durability, Latencies};
use crate::stats::{merge, percentile};
use std::collections::BTreeSet;

/// Shares that a percentile plot and its table have.
const SHARES: [(f64, &str); 5] = [
    (0.5, "p50"),
    (0.9, "p90"),
    (0.95, "p95"),
    (0.99, "p99"),
    (0.999, "p99.9"),
];

pub(super) fn write(experiment: &Experiment<'_>, page: &mut Page) {
    let mut names: BTreeSet<&str> = BTreeSet::new();
    for cell in &experiment.cells {
        names.extend(
            cell.done()
                .flat_map(|r| r.latencies.iter().map(|l| l.name.as_str())),
        );
    }
    for name in names {
        for slice in &experiment.slices {
            let cells: Vec<(&Cell<'_>, Latencies)> = slice
                .cells
                .iter()
                .map(|&index| &experiment.cells[index])
                .filter_map(|cell| {
                    let all = cell
                        .done()
                        .flat_map(|r| r.latencies.iter())
                        .filter(|l| l.name == name);
                    let merged = merge(all)?;
                    percentile(&merged, 1.0).map(|_| (cell, merged))
                })
                .collect();
            if !cells.is_empty() {
                draw(name, &slice.condition, &cells, page);
            }
        }
    }
}

/// Nines: 0 for the fastest, 1 for p90, 2 for p99.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-6).log10()
}

/// The distribution as steps: nines and latency at every bucket's end.
fn course(latencies: &Latencies) -> Vec<(f64, f64)> {
    let total = latencies.counts.iter().map(|&c| c as f64).sum::<f64>();
    let mut below = 0.0;
    let mut points = Vec::new();
    for (upper, count) in latencies.upper.iter().zip(&latencies.counts) {
        if *count == 0 || *upper <= 0.0 {
            continue;
        }
        below += *count as f64;
        let share = below / total;
        // The share of the slowest operation would be 1, which is infinitely
        // many nines.
        let share = share.min(1.0 - 0.5 / total);
        points.push((nines(share), upper * 1e3));
    }
    points
}

fn chart(name: &str, courses: &[(&Cell<'_>, Vec<(f64, f64)>)], page: &mut Page) {
    let all = || courses.iter().flat_map(|(_, course)| course);
    let x = Axis::holding("percentile", Spacing::Linear, all().map(|(x, _)| *x)).with_ticks(
        [
            (0.5, "50"),
            (0.9, "90"),
            (0.99, "99"),
            (0.999, "99.9"),
            (0.9999, "99.99"),
            (0.99999, "99.999"),
        ]
        .into_iter()
        .map(|(share, label)| (nines(share), label.to_owned()))
        .collect(),
    );
    let y = Axis::holding("milliseconds", Spacing::Logarithmic, all().map(|(_, y)| *y));
    let systems: Vec<&str> = courses
        .iter()
        .map(|(cell, _)| cell.system.as_str())
        .collect();
    let mut chart = Chart::with_names(x, y, &systems);
    for (cell, course) in courses {
        chart.course(course, cell.system_index, "course");
        if let Some(end) = course.last() {
            chart.name(*end, &cell.system, cell.system_index);
        }
    }
    let names: Vec<(usize, &str, Durability)> = courses
        .iter()
        .map(|(c, _)| (c.system_index, c.system.as_str(), c.durability))
        .collect();
    page.push(&format!(
        "<figure class=\"wide\">{}<figcaption>All blocks together; lower is better.</figcaption>{}</figure>\n",
        chart.finish(&format!("{name}: latency over percentile; the table below has the figures")),
        legend(&names)
    ));
}

fn draw(name: &str, condition: &str, cells: &[(&Cell<'_>, Latencies)], page: &mut Page) {
    let suffix = if condition.is_empty() {
        String::new()
    } else {
        format!(" ({condition})")
    };
    page.heading(&format!("{name}: latency{suffix}"));
    let courses = cells
        .iter()
        .map(|(cell, latencies)| (*cell, course(latencies)));
    // Distributions with fewer points are only in the table.
    let courses: Vec<(&Cell<'_>, Vec<(f64, f64)>)> = courses
        .filter(|(_, course)| course.len() >= POINTS_MIN)
        .collect();
    if !courses.is_empty() {
        chart(name, &courses, page);
    }
    let heads: String = SHARES
        .iter()
        .map(|(_, label)| format!("<th scope=\"col\" class=\"number\">{label}</th>"))
        .collect();
    let mut rows = String::new();
    for (cell, latencies) in cells {
        let columns: String = SHARES
            .iter()
            .map(|(share, _)| *share)
            .chain([1.0])
            .map(|share| {
                let value = percentile(latencies, share);
                let shown = value.map_or_else(|| "–".to_owned(), |v| escape(&quantity(v, "s")));
                let raw = value.map_or_else(String::new, |v| v.to_string());
                format!("<td class=\"number\" data-value=\"{raw}\">{shown}</td>")
            })
            .collect();
        let operations = latencies
            .counts
            .iter()
            .fold(0_u64, |all, count| all.saturating_add(*count));
        rows.push_str(&format!(
            "<tr data-durability=\"{}\"><th scope=\"row\">{}{}</th>{columns}<td class=\"number\" data-value=\"{operations}\">{operations}</td></tr>\n",
            durability_label(cell.durability),
            escape(&cell.system),
            badge(cell.durability),
        ));
    }
    page.push(&format!(
        "<div class=\"scroll\"><table class=\"sortable\"><caption>Latency of {}{}: upper ends of the buckets that hold the percentiles</caption>\
         <thead><tr><th scope=\"col\">System</th>{heads}<th scope=\"col\" class=\"number\">slowest</th><th scope=\"col\" class=\"number\">operations</th></tr></thead>\
         <tbody>{rows}</tbody></table></div>\n",
        escape(name),
        escape(&suffix)
    ));
}
